"""The NATS protocol by hand, as any client in any language speaks it: none of our code, no client library."""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ..waiting import PATIENCE_S


class NoAnswer(Exception):
    """Nobody listens, or nobody answered in time, or the server refused it or went away."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Who asks, and whom it trusts. Without `trusted` the connection is not encrypted."""

    user: str = ""
    password: str = ""
    inbox: str = "_INBOX"
    trusted: ssl.SSLContext | None = None

    @classmethod
    def of(cls, secrets: Path, user: str) -> Self:
        """A user for whom `deploy/secrets.sh` wrote a context."""
        context = json.loads((secrets / "nats" / "context" / f"{user}.json").read_text())
        return cls(
            user=context["user"],
            password=context["password"],
            inbox=context["inbox_prefix"],
            trusted=ssl.create_default_context(cafile=context["ca"]),
        )


@dataclass(frozen=True)
class Answer:
    body: bytes
    headers: dict[str, str]

    def json(self) -> object:
        return json.loads(self.body)


async def request(port: int, identity: Identity, subject: str, body: bytes = b"", *, timeout_s: float = 5.0) -> Answer:
    """One request over a new connection.

    Raises:
        NoAnswer: see there.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                await reader.readline()  # INFO
                if identity.trusted is not None:
                    await writer.start_tls(identity.trusted, server_hostname="127.0.0.1")
                return await _ask(reader, writer, identity, subject, body)
            finally:
                writer.close()
    except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
        raise NoAnswer(f"{subject} by port {port}: {type(error).__name__} {error}") from error


async def greeting(port: int, context: ssl.SSLContext) -> str:
    """What a server says to those who connect as another server, or why it says nothing."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            said = await reader.readline()
            writer.close()
    except (ssl.SSLError, ConnectionError) as error:
        return repr(error)
    return said.decode()


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, identity: Identity, subject: str, body: bytes
) -> Answer:
    inbox = f"{identity.inbox}.{id(reader):x}"
    options: dict[str, object] = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
    if identity.user:
        options |= {"user": identity.user, "pass": identity.password}
    connect = f"CONNECT {json.dumps(options)}\r\n"
    writer.write(f"{connect}SUB {inbox} 1\r\nPUB {subject} {inbox} {len(body)}\r\n".encode())
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
