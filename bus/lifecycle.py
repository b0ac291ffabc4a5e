"""The life of a service on the bus: a start that waits for storage, and an end by a signal or with the connection."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, TypeVar

from ..runtime.lifecycle import Service
from ..schemas.errors.base import ClosedError, Disconnected, ServerUnsupported, Unavailable, WorkerIdTaken
from ..telemetry.logs import Log
from .jetstream.stream_admin import NotOurStream
from .port.bus import Bus, ConnectionEvent, NotPermitted

T = TypeVar("T")

RETRY_S: Final = 0.25


class StartPatience:
    """Repeats the steps of one start until they succeed. Attempts start within `timeout_s` from now, plus one: the one
    before may have asked while there was no leader, and such requests are never answered."""

    def __init__(self, timeout_s: float, log: Log) -> None:
        self._loop = asyncio.get_running_loop()
        self._give_up_at = self._loop.time() + timeout_s
        self._log = log

    async def __call__(self, step: Callable[[], Awaitable[T]]) -> T:
        """Run a step, which must leave nothing behind if it fails.

        Raises:
            Unavailable: it still fails after the timeout. Errors that waiting cannot fix are raised at once.
        """
        while True:
            last = self._loop.time() >= self._give_up_at
            try:
                return await step()
            except NotOurStream:  # another component creates it
                if last:
                    raise
            except (ServerUnsupported, NotPermitted, WorkerIdTaken):
                raise
            except Unavailable as error:
                if last:
                    raise
                self._log.debug("start will be retried: %s", error, extra={"action": "start.retry"})
            await asyncio.sleep(RETRY_S)


SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGHUP says that the terminal has gone; for a process under `nohup` it stays ignored."""


@contextmanager
def on_signals(first: Callable[[], object], second: Callable[[], object]) -> Iterator[None]:
    """Call `first` on the first SIGINT, SIGTERM or SIGHUP and `second` on each further one, on the running loop.

    Needs the main thread. Not supported on Windows.
    """
    seen = 0

    def handle() -> None:
        nonlocal seen
        seen += 1
        (first if seen == 1 else second)()

    loop = asyncio.get_running_loop()
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    handled = [number for number in SIGNALS if number != signal.SIGHUP or not ignored]
    for number in handled:
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


_YOUNG: Final = 2000
"""After how many new objects garbage is collected, at least: the default of Python 3.13. Earlier ones do it after 700,
which are few tasks that wait, and nearly all of them alive."""


@contextmanager
def settled_memory() -> Iterator[None]:
    """Hide all current objects from the garbage collector until the end, and let it look at new ones less often. A
    process that starts to serve keeps its modules, models and declarations, and traversing them repeatedly under load
    costs more than the requests."""
    before = gc.get_threshold()
    if 0 < before[0] < _YOUNG:
        gc.set_threshold(_YOUNG, *before[1:])
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


async def run_until_left(
    bus: Bus, life: Coroutine[object, object, None], *, finish: Callable[[], bool], stop: Callable[[], object]
) -> None:
    """Run `life` to its end, and handle signals and the end of the connection. Cancelling cancels `life`.

    Args:
        finish: called on the first signal; False: there is nothing to finish yet, so `life` is cancelled.
        stop: called on each further signal.

    Raises:
        Disconnected: the server closed the connection for good.
    """
    task = asyncio.get_running_loop().create_task(life, name="gangline life")
    ended_by: list[str] = []

    def give_up(why: str) -> None:
        ended_by.append(why)
        task.cancel()

    def first() -> None:
        if not finish():
            give_up("signal")

    def connection(event: ConnectionEvent) -> None:
        if event is ConnectionEvent.CLOSED:
            give_up("server")

    forget = bus.on_connection(connection)
    try:
        with on_signals(first, stop), settled_memory():
            await task
    except asyncio.CancelledError:
        if "server" in ended_by:
            raise Disconnected("the server closed the connection for good; its log says why") from None
        if "signal" not in ended_by:
            raise
    finally:
        forget()


async def run_service(
    bus: Bus,
    service: Service[Any],
    *,
    before: Callable[[], Awaitable[object]] | None = None,
    leave: Callable[[], Coroutine[Any, Any, None]] | None = None,
    also: Callable[[Callable[[], object]], AbstractContextManager[None]] | None = None,
) -> None:
    """Start `service` and return when it has stopped, because of a signal or the program itself. Needs the main thread.

    Args:
        before: awaited first; a signal meanwhile ends everything.
        leave: called on the first SIGTERM or SIGINT; by default `service.stop`. Further signals stop the service. A
            signal during the start ends the start, which is not an error.
        also: makes a context around all of this; it gets a function that stops the service.

    Raises:
        Disconnected: the server closed the connection for good.
        GanglineError: as `service.start` and `service.wait_closed`.
    """
    ends: list[asyncio.Future[None]] = []

    def end(how: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        if service.state == "new":
            return False
        ends.append(asyncio.ensure_future(how()))
        return True

    def stop() -> bool:
        return end(service.stop)

    async def life() -> None:
        if before is not None:
            await before()
        try:
            async with service:
                await service.wait_closed()
        except ClosedError:
            if not ends:  # otherwise it was stopped during its start, as requested
                raise

    with also(stop) if also is not None else nullcontext():
        await run_until_left(bus, life(), finish=lambda: end(leave or service.stop), stop=stop)
    await asyncio.gather(*ends)
