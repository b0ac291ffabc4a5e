"""What a process that lives on one connection listens to: signals, and the connection's end."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Final

from ...schemas.errors.base import Disconnected
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
