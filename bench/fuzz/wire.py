"""A client without checks: messages go to the server as they are."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping

Answer = Callable[[str, str, bytes], None]
"""Called with subject, reply subject, and headers with body."""


class BareClient:
    """One connection. Headers may contain anything except line ends, which would break the protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._handlers: dict[int, Answer] = {}
        self._pongs: list[asyncio.Future[None]] = []
        self.errors: list[str] = []
        self._task = asyncio.ensure_future(self._read())

    @classmethod
    async def connect(cls, port: int, user: str, password: str) -> BareClient:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        await reader.readline()  # INFO
        options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "lang": "x"}
        writer.write(f"CONNECT {json.dumps({**options, 'user': user, 'pass': password})}\r\n".encode())
        return cls(reader, writer)

    async def close(self) -> None:
        self._task.cancel()
        self._writer.close()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await self._task

    def subscribe(self, subject: str, handler: Answer) -> None:
        sid = len(self._handlers) + 1
        self._handlers[sid] = handler
        self._writer.write(f"SUB {subject} {sid}\r\n".encode())

    def publish(self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None) -> None:
        if headers:
            lines = "".join(f"{_line(name)}:{_line(value)}\r\n" for name, value in headers.items())
            block = b"NATS/1.0\r\n" + lines.encode("utf-8", "replace") + b"\r\n"
            head = f"HPUB {subject} {reply} {len(block)} {len(block) + len(data)}\r\n".encode()
            self._writer.write(b"".join((head, block, data, b"\r\n")))
        else:
            self._writer.write(b"".join((f"PUB {subject} {reply} {len(data)}\r\n".encode(), data, b"\r\n")))

    async def flush(self) -> None:
        """Wait until the server has received everything sent so far."""
        pong: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pongs.append(pong)
        self._writer.write(b"PING\r\n")
        try:
            await self._writer.drain()
            await asyncio.wait_for(pong, 60)
        except OSError as error:
            raise ConnectionError("; ".join(self.errors) or str(error)) from error

    async def _read(self) -> None:
        try:
            await self._dispatch()
        except (OSError, asyncio.IncompleteReadError) as error:
            self.errors.append(f"the connection was lost: {error}")

    async def _dispatch(self) -> None:
        while line := await self._reader.readline():
            kind, *words = line.split()
            if kind in (b"MSG", b"HMSG"):
                size = int(words[-1])
                body = (await self._reader.readexactly(size + 2))[:size]
                fixed = 3 if kind == b"MSG" else 4
                reply = words[2].decode("utf-8", "replace") if len(words) > fixed else ""
                self._handlers[int(words[1])](words[0].decode("utf-8", "replace"), reply, body)
            elif kind == b"PING":
                self._writer.write(b"PONG\r\n")
            elif kind == b"PONG":
                self._pongs.pop(0).set_result(None)
            elif kind == b"-ERR":
                self.errors.append(line.decode(errors="replace").strip())
        self.errors.append("the server closed the connection")


def _line(text: str) -> str:
    return text.replace("\r", "").replace("\n", "")
