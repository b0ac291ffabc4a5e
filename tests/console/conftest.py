"""A console on a port of its own, and plain HTTP requests to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gangline.cli.console.options import ConnectionOptions
from gangline.cli.serving.console import serving


class Answer:
    def __init__(self, status: int, fields: list[tuple[str, str]], body: bytes) -> None:
        self.status = status
        self.fields = dict(fields)
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Visitor:
    """Sends requests as a browser would, or as an attacker."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""
        self.host = f"127.0.0.1:{port}"

    async def _send(self, method: str, path: str, fields: Mapping[str, str], body: bytes) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        given = {"host": self.host, "connection": "close"} | dict(fields)
        if self.cookie:
            given.setdefault("cookie", self.cookie)
        if method not in ("GET", "HEAD"):
            given.setdefault("content-length", str(len(body)))
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items() if value), "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        self._writer = writer
        return reader

    async def _head(self, reader: asyncio.StreamReader) -> tuple[int, list[tuple[str, str]]]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *rest = head.split("\r\n")
        pairs = [line.split(": ", 1) for line in rest if line]
        return int(first.split()[1]), [(name.lower(), value) for name, value in pairs]

    async def ask(self, method: str, path: str, body: object = None, **fields: str) -> Answer:
        """Underscores in names of fields stand for hyphens; an empty value leaves one out."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        reader = await self._send(method, path, named, raw)
        status, answered = await self._head(reader)
        rest = await reader.read()
        if dict(answered).get("transfer-encoding") == "chunked":
            rest = b"".join(part for part in _chunks(rest))
        self._writer.close()
        return Answer(status, answered, rest)

    async def get(self, path: str, **fields: str) -> Answer:
        return await self.ask("GET", path, **fields)

    async def act(self, action: str, **body: object) -> Answer:
        """As a page of the console does it."""
        fields = {"content_type": "application/json", "sec_fetch_site": "same-origin"}
        return await self.ask("POST", f"/api/act/{action}", {"reason": "a test", **body}, **fields)

    @asynccontextmanager
    async def stream(self, path: str = "/api/stream", **fields: str) -> AsyncIterator[asyncio.StreamReader]:
        """An open stream of events, behind the head of the answer."""
        reader = await self._send("GET", path, {name.replace("_", "-"): value for name, value in fields.items()}, b"")
        writer = self._writer
        status, _ = await self._head(reader)
        assert status == 200
        try:
            yield reader
        finally:
            writer.close()

    async def sign_in(self, link: str) -> Answer:
        answer = await self.get(link)
        assert answer.status == 303, answer.body
        self.cookie = answer.fields["set-cookie"].partition(";")[0]
        return answer


def _chunks(data: bytes) -> list[bytes]:
    found = []
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        found.append(data[:length])
        data = data[length + 2 :]
    return found


async def event(reader: asyncio.StreamReader) -> dict[str, str]:
    """The next event of a stream: its id, name and data."""
    while True:
        block = (await reader.readuntil(b"\n\n")).decode()
        lines = [line for line in block.split("\n") if ": " in line]
        found = dict(line.split(": ", 1) for line in lines)
        if "data" in found and found.get("event") != "ping":
            return found


class ServedConsole:
    """A console and what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.printed = ""

    def link(self) -> str:
        """The last sign-in link, from its path on."""
        self.printed += self._capsys.readouterr().out
        address = self.printed.rsplit("http://", 1)[1].split()[0]
        return "/" + address.partition("/")[2]

    @property
    def port(self) -> int:
        self.link()
        return int(self.printed.rsplit("http://", 1)[1].partition("/")[0].rpartition(":")[2])

    @asynccontextmanager
    async def open(self, connection: ConnectionOptions, **given: Any) -> AsyncIterator[Visitor]:
        """A console that is served meanwhile, and a visitor who has not signed in."""
        async with serving(connection, **{"listen": "127.0.0.1:0"} | given):
            yield Visitor(self.port)


@pytest.fixture
def served(capsys: pytest.CaptureFixture[str]) -> ServedConsole:
    return ServedConsole(capsys)
