"""`gangline dev`: a server, all services, and worker processes that are replaced when the code changes."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ...bus.embedded.server import EmbeddedServer
from ...bus.port.bus import Bus, ConnectionEvent, KeyValue, KvEntry, KvOperation
from ...worker.ledger.settings import WorkerSettings
from ..console.children import end, ended, how_it_ended, spawn
from ..console.options import ConnectionOptions, HealthAddress, plain_environment
from ..console.output import echo
from ..console.session import open_bus, open_ledger, telemetry
from ..console.signals import until_signal
from .console import beside, installed
from .coordinator import open_coordinator
from .dispatcher import open_dispatcher
from .health import observed
from .worker import open_gateway

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...schemas.names import Names

DEFAULT_PORT: Final = 4222
READY_S: Final = 600.0
"""How long a new worker may take to start."""
ENDING_S: Final = 2.0
"""If the server is still running this long after its connections broke, it did not exit."""
PATIENCE_S: Final = WorkerSettings().drain_grace_s + 5.0
"""How long a worker may take to drain, its tasks included, before it is killed."""


async def develop(
    targets: Sequence[str],
    connection: ConnectionOptions,
    *,
    data: Path | None,
    port: int | None,
    reload: bool,
    options: list[str],
    health: HealthAddress,
    workers: int = 1,
    console: bool | None = None,
) -> None:
    """Run until a signal.

    Args:
        connection: if it has a server or a context, that is used and no server is started.
        data: folder of the embedded server; None: a temporary one.
        port: port of the embedded server; None: 4222, or a free one if that is in use.
        console: whether to serve the web console; None: if its extra is installed.
        options: more options for `gangline worker`.
        health: where probes are answered, about all but the worker.
        workers: how many worker processes run at once.
    """
    async with AsyncExitStack() as stack:
        server: EmbeddedServer | None = None
        environment = connection.environment()
        if not (connection.server or connection.context):
            server = await _start_server(stack, data, port)
            connection = connection.only(server.url)
            environment = connection.environment(plain_environment())
            if data is not None:  # standing sets and gangs, too
                environment.setdefault("GANGLINE_STORAGE", "file")
            where = f"data in {data}" if data else "data is forgotten at the end"
            echo(f"server    {server.url}  (nats-server {server.version}, {where})", fg="cyan")
        stop = stack.enter_context(until_signal())
        bus = await stack.enter_async_context(open_bus(connection, "gangline dev"))
        ledger = await open_ledger(bus, connection, environment)
        await stack.enter_async_context(telemetry("gangline-dev", scraped=health.port is not None))
        services = (open_gateway(bus, connection), open_coordinator(bus, connection), open_dispatcher(bus, connection))
        await stack.enter_async_context(observed(health, bus, *services))
        for service in services:
            await stack.enter_async_context(service)
        if console or (console is None and installed()):
            await stack.enter_async_context(beside(connection))
        current = CurrentWorkers(targets, environment, ledger, connection, options, count=workers, reload=reload)
        stack.push_async_callback(current.leave)
        tasks = [asyncio.create_task(_follow(current, reload), name="gangline dev reload")]
        if server is not None:
            tasks.append(asyncio.create_task(_revive(server, bus), name="gangline dev server"))
        for task in tasks:
            stack.push_async_callback(_cancelled, task)
        await _first(stop, tasks)
        echo("stopping: running tasks may finish; Ctrl-C again stops at once", err=True)


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
        echo(f"port {DEFAULT_PORT} is in use, so another one is used; --port sets it", fg="yellow", err=True)
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
            echo(f"server    has exited: restarting it on port {server.port}", fg="yellow", err=True)
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


class CurrentWorkers:
    """Holds the current worker processes. New ones replace them once all of the new ones serve; only then must the old
    ones finish."""

    def __init__(
        self,
        targets: Sequence[str],
        environment: Mapping[str, str],
        ledger: KeyValue,
        connection: ConnectionOptions,
        options: list[str],
        *,
        count: int,
        reload: bool,
    ) -> None:
        self._targets = targets
        self._next = "waiting for the next file change" if reload else "start gangline dev again for another"
        self._environment = environment
        self._ledger = ledger
        self._names = connection.names
        self._options = options
        self._count = count
        self._numbers = itertools.count(1)
        self._current: list[asyncio.subprocess.Process] = []
        self._tasks: set[asyncio.Task[object]] = set()
        self._left = False

    async def replace(self) -> bool:
        """Start workers with the current code. False: one failed to start, and the old ones, if any, keep serving."""
        names = [f"dev-{next(self._numbers)}" for _ in range(self._count)]
        registered = _Registrations(names, len(self._targets))
        watch = await self._ledger.watch(
            self._names.registrations_of(), lambda entry: registered.take(self._names, entry)
        )
        started: list[asyncio.subprocess.Process] = []
        try:
            for name in names:
                hints = [] if self._current or started else ["--hints"]
                arguments = ("worker", *self._targets, "--id", name, *hints, *self._options)
                started.append(await spawn(*arguments, environment=self._environment))
            serve = await self._serve(registered, started)
        except BaseException:
            for process in started:
                process.kill()
            raise
        finally:
            await watch.unsubscribe()
        if not serve:
            await asyncio.gather(*(end(process, PATIENCE_S) for process in started))
            alive = any(process.returncode is None for process in self._current)
            rest = "the previous version keeps serving" if alive else self._next
            echo(f"worker    {' '.join(self._targets)} failed to start: {rest}", fg="red", err=True)
            return False
        old, self._current = self._current, started
        for process in old:
            self._keep(self._end(process))
        for process in started:
            self._keep(self._tell_end(process))
        return True

    def _keep(self, work: Coroutine[object, object, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_end(self, process: asyncio.subprocess.Process) -> None:
        """Report a worker that exits without having been stopped here."""
        code = await process.wait()
        if process in self._current and not self._left:
            echo(f"worker    {how_it_ended(code)}: {self._next}", fg="red", err=True)

    async def _serve(self, registered: _Registrations, started: list[asyncio.subprocess.Process]) -> bool:
        """Wait until all have registered, which happens when their lifespans have started, or one has exited."""
        waits: set[asyncio.Task[Any]] = {asyncio.create_task(registered.all.wait())}
        waits |= {asyncio.create_task(ended(process, READY_S)) for process in started}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        return registered.all.is_set()

    async def leave(self) -> None:
        """Stop every worker, including the current ones."""
        self._left = True
        await asyncio.gather(*(self._end(process) for process in self._current))
        await asyncio.gather(*self._tasks)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        await end(process, PATIENCE_S)
        if process.returncode == -signal.SIGKILL:
            echo(f"worker    did not finish within {PATIENCE_S:g} s: it was killed", fg="red", err=True)


class _Registrations:
    """Which workers have registered in all of their pools."""

    def __init__(self, names: Sequence[str], pools: int) -> None:
        self.all = asyncio.Event()
        self._pools = pools
        self._seen: dict[str, set[str]] = {name: set() for name in names}

    def take(self, names: Names, entry: KvEntry) -> None:
        worker = names.parse_worker_key(entry.key)
        if entry.operation is KvOperation.PUT and worker.worker in self._seen:
            self._seen[worker.worker].add(worker.pool)
            if all(len(pools) >= self._pools for pools in self._seen.values()):
                self.all.set()


async def _follow(current: CurrentWorkers, reload: bool) -> None:
    """Start the first workers, then replace them at each change of a Python file in the current folder."""
    changes = _changes(Path.cwd()) if reload else None
    # Start watching before the code is loaded, so that no later change is missed.
    change = None if changes is None else asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    await current.replace()
    if changes is None or change is None:
        return
    echo(f"watching  {Path.cwd()} for changes; Ctrl-C stops", fg="cyan")
    try:
        while True:
            echo(f"reload    {', '.join(sorted(await change))} changed", fg="cyan")
            change = asyncio.ensure_future(anext(changes))
            if await current.replace():
                echo("reload    the new worker is serving; the old one finishes its tasks", fg="cyan")
    finally:
        change.cancel()


async def _changes(folder: Path) -> AsyncIterator[set[str]]:
    """Names of changed Python files, in batches; yields nothing without watchfiles."""
    try:
        from watchfiles import PythonFilter, awatch
    except ImportError:
        echo("no reload on change: pip install 'gangline[server]' brings watchfiles", fg="yellow", err=True)
        await asyncio.Event().wait()
        return
    async for changes in awatch(folder, watch_filter=PythonFilter()):
        yield {str(Path(path).relative_to(folder)) for _, path in changes}
