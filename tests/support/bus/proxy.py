"""A TCP proxy in front of a nats-server that can hold back data, cut connections and refuse new ones."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    def __init__(self, server_url: str) -> None:
        parts = urlsplit(server_url)
        self._target = (parts.hostname, parts.port)
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.refusing = False
        self.url = ""
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hold_answers(self) -> None:
        """Hold back data from the server; data from the client passes."""
        self._open.clear()

    def let_answers_pass(self) -> None:
        self._open.set()

    def cut(self) -> None:
        """Break all connections; held back data is lost."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            if self.refusing:
                return
            down_reader, down_writer = await asyncio.open_connection(*self._target)
            self._writers.add(down_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy(reader, down_writer, held=False))
                group.create_task(self._copy(down_reader, writer, held=True))
            self._writers.discard(down_writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, held: bool) -> None:
        try:
            while chunk := await reader.read(65536):
                if held:
                    await self._open.wait()
                if writer.is_closing():
                    return
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()
