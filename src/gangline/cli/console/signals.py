"""SIGTERM and SIGINT: the first one asks to finish, the second one to stop at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from ...bus.lifecycle import on_signals


@contextmanager
def until_signal() -> Iterator[asyncio.Event]:
    """An event that the first signal sets; a second signal ends the process at once, with exit code 130."""
    stop = asyncio.Event()

    def give_up() -> None:
        raise SystemExit(130)

    with on_signals(stop.set, give_up):
        yield stop
