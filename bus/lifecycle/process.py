"""What ends a process with one connection: signals, and the end of the connection."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from ...runtime.lifecycle import Service
from ...schemas.errors.base import ClosedError, Disconnected
from ..port.bus import Bus, ConnectionEvent

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_signals(first: Callable[[], object], second: Callable[[], object]) -> Iterator[None]:
    """Call `first` on the first SIGINT or SIGTERM and `second` on each further one, on the running loop.

    Needs the main thread. Not supported on Windows.
    """
    seen = 0

    def handle() -> None:
        nonlocal seen
        seen += 1
        (first if seen == 1 else second)()

    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


@contextmanager
def settled_memory() -> Iterator[None]:
    """Hide all current objects from the garbage collector until the end: modules, models and declarations of a process
    that starts to serve stay for good, and traversing them again and again while many requests are in flight costs more
    than the requests."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


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
