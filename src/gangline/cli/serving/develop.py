"""`gangline dev`: a server, all services, and one worker process that is replaced when the code changes."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ...bus.embedded.server import EmbeddedServer
from ...bus.port.bus import Bus, ConnectionEvent, KeyValue, KvEntry, KvOperation
from ..console.children import end, ended, spawn
from ..console.options import ConnectionOptions, plain_environment
from ..console.session import open_bus, open_ledger
from ..console.signals import until_signal
from .coordinator import open_coordinator
from .dispatcher import open_dispatcher
from .worker import open_gateway

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PORT: Final = 4222
READY_S: Final = 600.0
"""How long a new worker may take to start."""
ENDING_S: Final = 2.0
"""If the server is still running this long after its connections broke, it did not exit."""
PATIENCE_S: Final = 10.0
"""How long an old worker may take to finish its tasks after a change."""


async def develop(
    target: str, connection: ConnectionOptions, *, data: Path | None, port: int | None, reload: bool, options: list[str]
) -> None:
    """Run until a signal.

    Args:
        connection: if it has a server or a context, that is used and no server is started.
        data: folder of the embedded server; None: a temporary one.
        port: port of the embedded server; None: 4222, or a free one if that is in use.
        options: more options for `gangline worker`.
    """
    async with AsyncExitStack() as stack:
        server: EmbeddedServer | None = None
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
        await stack.enter_async_context(open_coordinator(bus, connection))
        await stack.enter_async_context(open_dispatcher(bus, connection))
        seat = CurrentWorker(target, environment, ledger, connection, options, reload=reload)
        stack.push_async_callback(seat.leave)
        tasks = [asyncio.create_task(_follow(seat, reload), name="gangline dev reload")]
        if server is not None:
            tasks.append(asyncio.create_task(_revive(server, bus), name="gangline dev server"))
        for task in tasks:
            stack.push_async_callback(_cancelled, task)
        await _first(stop, tasks)
        click.echo("stopping: running tasks may finish; Ctrl-C again stops at once", err=True)


async def _first(stop: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
    """Wait for `stop`; an error of any task is raised."""
    waiting = asyncio.create_task(stop.wait())
    try:
        running = {waiting, *tasks}
        while not waiting.done():
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        waiting.cancel()


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))


async def _start_server(stack: AsyncExitStack, data: Path | None, port: int | None) -> EmbeddedServer:
    wanted = DEFAULT_PORT if port is None else port
    if port is None and _taken(DEFAULT_PORT):
        click.secho(f"port {DEFAULT_PORT} is in use, so another one is used; --port sets it", fg="yellow", err=True)
        wanted = 0
    elif port and _taken(port):
        raise click.UsageError(f"port {port} is in use: give another one, or 0 for a free one")
    return await stack.enter_async_context(EmbeddedServer(data=data, port=wanted))


async def _revive(server: EmbeddedServer, bus: Bus) -> None:
    """Restart the server if it exits; nothing else would."""
    lost = asyncio.Event()
    forget = bus.on_connection(lambda event: lost.set() if event is ConnectionEvent.DISCONNECTED else None)
    try:
        while True:
            await lost.wait()
            lost.clear()
            if not await asyncio.to_thread(server.await_end, ENDING_S):
                continue
            click.secho(f"server    has exited: restarting it on port {server.port}", fg="yellow", err=True)
            await server.astart()
    finally:
        forget()


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


class CurrentWorker:
    """Holds the current worker. A new worker replaces it once the new one serves; only then must the old one finish."""

    def __init__(
        self,
        target: str,
        environment: Mapping[str, str],
        ledger: KeyValue,
        connection: ConnectionOptions,
        options: list[str],
        *,
        reload: bool,
    ) -> None:
        self._target = target
        self._next = "waiting for the next file change" if reload else "start gangline dev again for another"
        self._environment = environment
        self._ledger = ledger
        self._names = connection.names
        self._options = options
        self._numbers = itertools.count(1)
        self._taken_by: asyncio.subprocess.Process | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        self._left = False

    async def replace(self) -> bool:
        """Start a worker with the current code. False: it failed to start, and the old one, if any, keeps serving."""
        name = f"dev-{next(self._numbers)}"
        hints = [] if self._taken_by else ["--hints"]
        process = await spawn(
            "worker", self._target, "--id", name, *hints, *self._options, environment=self._environment
        )
        try:
            serves = await self._serves(name, process)
        except BaseException:
            process.kill()
            raise
        if not serves:
            await end(process, PATIENCE_S)
            rest = "the previous version keeps serving" if self._alive else self._next
            click.secho(f"worker    {self._target} failed to start: {rest}", fg="red", err=True)
            return False
        old, self._taken_by = self._taken_by, process
        if old is not None:
            self._keep(end(old, PATIENCE_S))
        self._keep(self._tell_end(process))
        return True

    def _keep(self, work: Coroutine[object, object, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_end(self, process: asyncio.subprocess.Process) -> None:
        """Report a worker that exits without having been stopped here."""
        code = await process.wait()
        if self._taken_by is process and not self._left:
            click.secho(f"worker    has exited with code {code}: {self._next}", fg="red", err=True)

    @property
    def _alive(self) -> bool:
        return self._taken_by is not None and self._taken_by.returncode is None

    async def _serves(self, name: str, process: asyncio.subprocess.Process) -> bool:
        """Wait until it has registered, which happens when its lifespans have started, or has exited."""
        seen = asyncio.Event()

        def on_entry(entry: KvEntry) -> None:
            if entry.operation is KvOperation.PUT and self._names.parse_worker_key(entry.key).worker == name:
                seen.set()

        watch = await self._ledger.watch(self._names.registrations_of(), on_entry)
        waits = {asyncio.create_task(seen.wait()), asyncio.create_task(ended(process, READY_S))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await watch.unsubscribe()
        return seen.is_set()

    async def leave(self) -> None:
        """Stop every worker, including the current one."""
        self._left = True
        if self._taken_by is not None:
            await end(self._taken_by, PATIENCE_S)
        await asyncio.gather(*self._tasks)


async def _follow(seat: CurrentWorker, reload: bool) -> None:
    """Start the first worker, then replace it at each change of a Python file in the current folder."""
    changes = _changes(Path.cwd()) if reload else None
    # Start watching before the code is loaded, so that no later change is missed.
    change = None if changes is None else asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    await seat.replace()
    if changes is None or change is None:
        return
    click.secho(f"watching  {Path.cwd()} for changes; Ctrl-C stops", fg="cyan")
    try:
        while True:
            click.secho(f"reload    {', '.join(sorted(await change))} changed", fg="cyan")
            change = asyncio.ensure_future(anext(changes))
            if await seat.replace():
                click.secho("reload    the new worker is serving; the old one finishes its tasks", fg="cyan")
    finally:
        change.cancel()


async def _changes(folder: Path) -> AsyncIterator[set[str]]:
    """Names of changed Python files, in batches; yields nothing without watchfiles."""
    try:
        from watchfiles import PythonFilter, awatch
    except ImportError:
        click.secho("no reload on change: pip install 'gangline[server]' brings watchfiles", fg="yellow", err=True)
        await asyncio.Event().wait()
        return
    async for changes in awatch(folder, watch_filter=PythonFilter()):
        yield {str(Path(path).relative_to(folder)) for _, path in changes}
