"""Asks the health port of a process on this machine. Probes come often, on each machine: this imports nothing but
sockets, so that it costs little more than the start of Python."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Final

MOST_BYTES: Final = 10_000
TIMEOUT_S: Final = 2.0


class NotReady(Exception):
    """It is not ready, or nothing answers; the text says which, and why."""


def ask_readiness(port: int, timeout_s: float) -> None:
    """
    Raises:
        NotReady: see there.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout_s) as link:
            link.sendall(b"GET /readyz HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            answer = bytearray()
            while len(answer) < MOST_BYTES and (more := link.recv(MOST_BYTES)):
                answer += more
    except OSError as error:
        raise NotReady(f"nothing answers on port {port}: was it started with --health-port? ({error})") from error
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise NotReady(f"what answers on port {port} is no health port: was it started with --health-port?")
    if words[1] != b"200":
        reasons = body.decode("utf-8", "backslashreplace").strip().splitlines()
        raise NotReady(f"not ready: {'; '.join(reasons)}")


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """`gangline health` with a port and nothing else; returns the exit code. None: it is anything else."""
    port = environment.get("GANGLINE_HEALTH_PORT", "")
    match arguments:
        case ["--port", port]:
            pass
        case [one] if one.startswith("--port="):
            port = one.removeprefix("--port=")
        case []:
            if environment.get("GANGLINE_NODE"):
                return None
        case _:
            return None
    if not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65_536:
        return None
    try:
        ask_readiness(int(port), TIMEOUT_S)
    except NotReady as error:
        text = "".join(char if char.isprintable() else "?" for char in str(error))
        sys.stderr.buffer.write(f"gangline: {text}\n".encode("utf-8", "backslashreplace"))
        return 3
    print("ready")
    return 0
