"""What a process that lives on one connection listens to: signals, and the connection's end."""

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
    """Call `first` at the first SIGINT or SIGTERM and `second` at each further one, on the running loop.

    Needs the main thread, and not Windows, which has no such thing.
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
    """Keep what exists now out of the garbage collector's way until the end: modules, models and declarations of a
    process that begins to serve are there to stay, and looking through them again and again, as the collector does once
    many requests are under way, costs more than the requests."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def run_until_left(
    bus: Bus, life: Coroutine[object, object, None], *, finish: Callable[[], bool], stop: Callable[[], object]
) -> None:
    """Run `life` to its end, with signals and the connection's end looked after. Cancelling cancels `life`.

    Args:
        finish: what the first signal does; False: nothing has begun that could finish, so `life` is cancelled.
        stop: what each further signal does.

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
    """Start `service`, and return when it was stopped: by a signal, or by the program itself. Needs the main thread.

    Args:
        before: done first; a signal that comes meanwhile ends it all.
        leave: what the first SIGTERM or SIGINT does; `service.stop` if not given. Further ones stop the service. One
            that comes during the start ends the start, which is no error.
        also: what else may stop it: a context around all of this, given a function that does.

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
            if not ends:  # else it was stopped while it started, as it was told to
                raise

    with also(stop) if also is not None else nullcontext():
        await run_until_left(bus, life(), finish=lambda: end(leave or service.stop), stop=stop)
    await asyncio.gather(*ends)
