"""Servers of a run: each measurement starts its own, so that nothing remains of the previous one."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from gangline.bus.embedded.cluster import free_ports
from gangline.bus.embedded.server import EmbeddedServer

from .catalogue import Server
from .environments import NotInstalled

_REDIS: Final = ("redis-server", "valkey-server")
_START_S: Final = 10.0
_POLL_S: Final = 0.02


def redis_program() -> str:
    """Path of a Redis-compatible server.

    Raises:
        NotInstalled: there is none.
    """
    for name in _REDIS:
        found = shutil.which(name)
        if found:
            return found
    raise NotInstalled("no redis-server and no valkey-server on PATH: install one (apt-get install redis-server)")


async def version_of(server: Server) -> str:
    """Version of the program that would be started.

    Raises:
        NotInstalled: see redis_program.
    """
    if server is Server.NATS:
        return EmbeddedServer().version
    program = redis_program()
    process = await asyncio.create_subprocess_exec(program, "--version", stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    words = said.decode().split()
    return next((word.removeprefix("v=") for word in words if word.startswith("v=")), said.decode().strip())


@asynccontextmanager
async def started(server: Server) -> AsyncIterator[tuple[str, int]]:
    """An empty server: its URL and process id. It is stopped, and its data deleted, at the end of the block.

    Raises:
        NotInstalled: there is no program to start.
    """
    if server is Server.NATS:
        async with EmbeddedServer() as nats:
            assert nats.pid is not None
            yield nats.url, nats.pid
        return
    program, (port,) = redis_program(), free_ports(1)
    with tempfile.TemporaryDirectory(prefix="gangline-bench-") as folder:
        # An append-only file synced every second: at least as durable as a JetStream stream, whose files are synced
        # every two minutes.
        process = await asyncio.create_subprocess_exec(
            *(program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder),
            *("--save", "", "--appendonly", "yes", "--appendfsync", "everysec"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            await _listens(port, process, Path(program).name)
            yield f"redis://127.0.0.1:{port}/0", process.pid
        finally:
            process.terminate()
            await process.wait()


async def _listens(port: int, process: asyncio.subprocess.Process, program: str) -> None:
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + _START_S
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            if process.returncode is not None or loop.time() > give_up_at:
                raise NotInstalled(f"{program} did not start") from None
            await asyncio.sleep(_POLL_S)
        else:
            writer.close()
            return
