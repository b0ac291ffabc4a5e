"""The environment of a run: a server, and the processes of each part of the run."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from ..bus.embedded.cluster import free_ports
from ..bus.embedded.server import EmbeddedServer
from .process import Child

_CONNECTION_VARIABLES: Final = ("NATS_", "GANGLINE_", "OTEL_")
"""Kinds of settings that the caller may have; the bench uses its own."""


def clean_environment() -> dict[str, str]:
    """The environment without any settings of the caller's."""
    return {key: value for key, value in os.environ.items() if not key.startswith(_CONNECTION_VARIABLES)}


class Site:
    """Created by `opened`; everything it starts is stopped with it."""

    def __init__(self, server: EmbeddedServer, monitoring: int, stack: AsyncExitStack) -> None:
        self.url = server.url
        assert server.pid is not None
        self.server_pid = server.pid
        self.monitoring = monitoring
        self.server_version = server.version
        self.environment = clean_environment()
        self._stack = stack

    async def start(self, module: str, **arguments: object) -> Child:
        """Start a child; `module` is one of this folder, and gets the server's URL."""
        child = await Child.start(module, environment=self.environment, **arguments)
        return await self._stack.enter_async_context(child)

    async def worker(self, pool: str, slots: int, *, workers: int = 1, trace: str = "none") -> Child:
        """A process with this many workers."""
        return await self.start("our_worker", url=self.url, pool=pool, slots=slots, workers=workers, trace=trace)

    async def client(self, pool: str, trace: str = "none") -> Child:
        return await self.start("our_client", url=self.url, pool=pool, trace=trace)


@asynccontextmanager
async def opened(config: str = "") -> AsyncIterator[Site]:
    """Start our own server; stop everything at the end, whatever happens.

    Args:
        config: more lines of its configuration.

    Raises:
        ServerUnreachable: it does not start.
    """
    (monitoring,) = free_ports(1)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedServer(config=f'http: "127.0.0.1:{monitoring}"\n{config}'))
        yield Site(server, monitoring, stack)


@asynccontextmanager
async def part_of(site: Site) -> AsyncIterator[Site]:
    """A part of the run, whose processes are stopped after it, so that no idle process takes time from the next
    part."""
    async with AsyncExitStack() as stack:
        part = Site.__new__(Site)
        part.__dict__.update(site.__dict__)
        part._stack = stack
        yield part
