"""`gangline dev`: a server, a gateway and one worker process, which is replaced when the code changes."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ..bus.embedded import EmbeddedServer
from ..bus.port import KeyValue, KvEntry, KvOperation
from .children import end, ended, spawn
from .options import Connection, plain_environment
from .serve import open_gateway
from .session import open_bus, open_ledger
from .signals import until_signal

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PORT: Final = 4222
READY_S: Final = 15.0
PATIENCE_S: Final = 10.0
"""What an old worker gets to finish its tasks after a change."""


async def develop(
    target: str, connection: Connection, *, data: Path | None, port: int | None, reload: bool, options: list[str]
) -> None:
    """Run until a signal.

    Args:
        connection: if it names a server or a context, that is used and no server is started.
        data: folder of the embedded server; None: a temporary one.
        port: of the embedded server; None: 4222, or a free one if that is taken.
        options: further options of `gangline worker`.
    """
    async with AsyncExitStack() as stack:
        environment = connection.environment()
        if not (connection.server or connection.context):
            server = await _start_server(stack, data, port)
            connection = connection.only(server.url)
            environment = connection.environment(plain_environment())
            where = f"data in {data}" if data else "data is forgotten at the end"
            click.secho(f"server    {server.url}  (nats-server {server.version}, {where})", fg="cyan")
        stop = stack.enter_context(until_signal())
        bus = await stack.enter_async_context(open_bus(connection, "gangline dev"))
        ledger = await open_ledger(bus, connection)
        await stack.enter_async_context(open_gateway(bus, connection))
        click.secho(f"gateway   answers {connection.names.calls}", fg="cyan")
        seat = Seat(target, environment, ledger, connection, options)
        stack.push_async_callback(seat.leave)
        await seat.replace()
        changes = asyncio.create_task(_follow(seat, reload), name="gangline dev reload")
        stack.callback(changes.cancel)
        await _first(stop, changes)
        click.echo("stopping: what runs may finish; once more to stop at once", err=True)


async def _first(stop: asyncio.Event, changes: asyncio.Task[None]) -> None:
    waiting = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((waiting, changes), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if changes.done() and not changes.cancelled():
        changes.result()


async def _start_server(stack: AsyncExitStack, data: Path | None, port: int | None) -> EmbeddedServer:
    wanted = DEFAULT_PORT if port is None else port
    if port is None and _taken(DEFAULT_PORT):
        click.secho(f"port {DEFAULT_PORT} is taken, so a free one is used; --port chooses", fg="yellow", err=True)
        wanted = 0
    return await stack.enter_async_context(EmbeddedServer(data=data, port=wanted))


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


class Seat:
    """The place of the one worker. A new one takes it when it serves; only then the old one has to finish."""

    def __init__(
        self,
        target: str,
        environment: Mapping[str, str],
        ledger: KeyValue,
        connection: Connection,
        options: list[str],
    ) -> None:
        self._target = target
        self._environment = environment
        self._ledger = ledger
        self._names = connection.names
        self._options = options
        self._numbers = itertools.count(1)
        self._taken_by: asyncio.subprocess.Process | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    async def replace(self) -> bool:
        """Start a worker with the code as it is now. False: it does not come up, and the old one, if any, goes on."""
        name = f"dev-{next(self._numbers)}"
        hints = [] if self._taken_by else ["--hints"]
        process = await spawn(
            "worker", self._target, "--id", name, *hints, *self._options, environment=self._environment
        )
        if not await self._serves(name, process):
            await end(process, PATIENCE_S)
            rest = "the last good version goes on" if self._alive else "waiting for a change"
            click.secho(f"worker    {self._target} does not come up: {rest}", fg="red", err=True)
            return False
        old, self._taken_by = self._taken_by, process
        if old is not None:
            task = asyncio.create_task(end(old, PATIENCE_S))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        return True

    @property
    def _alive(self) -> bool:
        return self._taken_by is not None and self._taken_by.returncode is None

    async def _serves(self, name: str, process: asyncio.subprocess.Process) -> bool:
        """Wait until its heartbeat shows, or it ends."""
        seen = asyncio.Event()

        def on_entry(entry: KvEntry) -> None:
            if entry.operation is KvOperation.PUT and self._names.parse_worker_key(entry.key).worker == name:
                seen.set()

        watch = await self._ledger.watch(self._names.alive_of(), on_entry)
        waits = {asyncio.create_task(seen.wait()), asyncio.create_task(ended(process, READY_S))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await watch.unsubscribe()
        return seen.is_set()

    async def leave(self) -> None:
        """End every worker, the last included."""
        if self._taken_by is not None:
            await end(self._taken_by, PATIENCE_S)
        await asyncio.gather(*self._leaving)


async def _follow(seat: Seat, reload: bool) -> None:
    """Replace the worker at each change of a Python file in the current folder."""
    async for changed in _changes(reload):
        click.secho(f"reload    {', '.join(sorted(changed))} changed", fg="cyan")
        if await seat.replace():
            click.secho("reload    the new version serves; the old one finishes", fg="cyan")


async def _changes(reload: bool) -> AsyncIterator[set[str]]:
    """Names of changed files; for ever nothing when there is no reload."""
    here = Path.cwd()
    if reload:
        try:
            from watchfiles import PythonFilter, awatch
        except ImportError:
            click.secho("no reload on change: pip install 'gangline[server]' brings watchfiles", fg="yellow", err=True)
        else:
            click.secho(f"watching  {here} for changes; ctrl-c ends", fg="cyan")
            async for changes in awatch(here, watch_filter=PythonFilter()):
                yield {str(Path(path).relative_to(here)) for _, path in changes}
    await asyncio.Event().wait()
