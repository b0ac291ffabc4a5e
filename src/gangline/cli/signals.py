"""SIGTERM and SIGINT: the first asks to finish, the second to stop at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_signals(first: Callable[[], object], second: Callable[[], object]) -> Iterator[None]:
    """Call `first` at the first signal and `second` at each further one, on the running loop."""
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
def until_signal() -> Iterator[asyncio.Event]:
    """An event that the first signal sets; a second one ends the process at once, with exit code 130."""
    stop = asyncio.Event()

    def give_up() -> None:
        raise SystemExit(130)

    with on_signals(stop.set, give_up):
        yield stop
