"""Back-pressure across threads: how many items of a stream may still go out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from ....schemas.errors.base import GanglineError


class StreamCredit:
    """Taken by the thread that produces, given by the thread that hears from the reader."""

    def __init__(
        self, items: int, *, on_park: Callable[[], None] | None = None, on_unpark: Callable[[], None] | None = None
    ) -> None:
        """
        Args:
            items: room at the start.
            on_park: called by the producer's thread before it blocks.
            on_unpark: called by whoever ends the block, before the producer's thread goes on.
        """
        self._changed = threading.Condition()
        self._items = items
        self._closed: GanglineError | None = None
        self._parked = False
        self._on_park = on_park
        self._on_unpark = on_unpark
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def take(self) -> None:
        """Take room for one item, blocking this thread until there is some.

        Raises:
            GanglineError: the reason that `close` was given.
        """
        with self._changed:
            if not self._take_nowait():
                self._parked = True
                if self._on_park is not None:
                    self._on_park()
                self._changed.wait_for(lambda: not self._parked)
                if not self._take_nowait():
                    raise AssertionError("unparked without room")

    async def take_async(self) -> None:
        """The same for a coroutine, which leaves its loop running meanwhile."""
        while True:
            with self._changed:
                if self._take_nowait():
                    return
                loop = asyncio.get_running_loop()
                waiter = loop.create_future()
                self._waiter = (loop, waiter)
            await waiter

    def add(self, items: int) -> None:
        """The reader took so many."""
        with self._changed:
            self._items += items
            if self._items > 0:
                self._wake()

    def close(self, reason: GanglineError) -> None:
        """Nothing goes out any more; whoever waits gets the reason."""
        with self._changed:
            self._closed = self._closed or reason
            self._wake()

    def _take_nowait(self) -> bool:
        if self._closed is not None:
            raise self._closed
        if self._items <= 0:
            return False
        self._items -= 1
        return True

    def _wake(self) -> None:
        if self._parked:
            self._parked = False
            if self._on_unpark is not None:
                self._on_unpark()
            self._changed.notify_all()
        if self._waiter is not None:
            (loop, waiter), self._waiter = self._waiter, None
            loop.call_soon_threadsafe(_resolve, waiter)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
