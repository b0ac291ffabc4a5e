"""The NATS protocol by hand, as any client in any language speaks it: none of our code, no client library."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass


class NoAnswer(Exception):
    """Nobody listens, or nobody answered in time, or the server went away."""


@dataclass(frozen=True)
class Answer:
    body: bytes
    headers: dict[str, str]

    def json(self) -> object:
        return json.loads(self.body)


async def request(port: int, subject: str, body: bytes = b"", *, timeout_s: float = 5.0) -> Answer:
    """One request over a new connection.

    Raises:
        NoAnswer: see there.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                return await _ask(reader, writer, subject, body)
            finally:
                writer.close()
    except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
        raise NoAnswer(f"{subject} by port {port}: {type(error).__name__} {error}") from error


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, subject: str, body: bytes) -> Answer:
    await reader.readline()  # INFO
    inbox = f"_INBOX.{id(reader):x}"
    options = json.dumps({"verbose": False, "pedantic": False, "headers": True, "no_responders": True})
    writer.write(f"CONNECT {options}\r\nSUB {inbox} 1\r\nPUB {subject} {inbox} {len(body)}\r\n".encode())
    writer.write(body + b"\r\n")
    while True:
        line = (await reader.readuntil(b"\r\n")).decode().split()
        match line[0]:
            case "PING":
                writer.write(b"PONG\r\n")
            case "MSG":
                return Answer((await reader.readexactly(int(line[-1]) + 2))[:-2], {})
            case "HMSG":
                return _with_headers(await reader.readexactly(int(line[-1]) + 2), int(line[-2]), subject)
            case "-ERR":
                raise NoAnswer(" ".join(line))


def _with_headers(data: bytes, headers_bytes: int, subject: str) -> Answer:
    status, *lines = data[:headers_bytes].decode().split("\r\n")
    if "503" in status:
        raise NoAnswer(f"{subject}: no responders")
    headers = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    return Answer(data[headers_bytes:-2], headers)
