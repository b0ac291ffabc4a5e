"""Sends the board's deltas to browsers, as server-sent events.

Each event has the board's revision as its id, with the name of this process before it. A browser that reconnects sends
the last id it has seen, and gets the deltas since then, or a snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator
from typing import Final

from pydantic_core import to_json

from ..board.board_core import Delta
from ..board.feed import BoardFeed

MOST_WAITING: Final = 16
"""Deltas that wait for a slow browser; after that it gets a snapshot instead."""
PING_S: Final = 10.0
"""Time after which something is sent in any case, so that a browser notices a dead connection."""


class DeltaStream:
    """One for all browsers: each delta is serialized once.

    Args:
        feed: a started feed.
    """

    def __init__(self, feed: BoardFeed) -> None:
        self._feed = feed
        self.instance = secrets.token_hex(4)
        """Revisions of another process mean something else."""
        self._queues: set[asyncio.Queue[bytes | None]] = set()
        self._forget = feed.listen(self._send)
        self._forget_connection = feed.listen_to_connection(self._tell_connection)
        self._snapshot: tuple[int, bytes] | None = None

    def close(self) -> None:
        """End all streams."""
        self._forget()
        self._forget_connection()
        for queue in self._queues:
            while queue.full():
                queue.get_nowait()
            queue.put_nowait(None)

    def _send(self, delta: Delta) -> None:
        if not self._queues:
            return
        event = self._event(delta)
        for queue in self._queues:
            if queue.full():
                # It reads more slowly than the board changes: start again from a snapshot, which is not larger.
                while not queue.empty():
                    queue.get_nowait()
                event_now = self._whole()
                queue.put_nowait(event_now)
            else:
                queue.put_nowait(event)

    def _tell_connection(self) -> None:
        for queue in self._queues:
            if not queue.full():  # otherwise it follows with the next ping
                queue.put_nowait(self._ping())

    def _ping(self) -> bytes:
        """Says whether the console is connected to NATS."""
        return b"event: ping\ndata: %d\n\n" % self._feed.connected

    def _event(self, delta: Delta) -> bytes:
        kind = "board" if delta.whole else "delta"
        body = to_json(delta.to_json())
        return b"id: %s\nevent: %s\ndata: %s\n\n" % (f"{self.instance}-{delta.revision}".encode(), kind.encode(), body)

    def _whole(self) -> bytes:
        """A snapshot; one for all who ask for it at the same revision."""
        revision = self._feed.board.revision
        if self._snapshot is None or self._snapshot[0] != revision:
            self._snapshot = revision, self._event(self._feed.board.snapshot())
        return self._snapshot[1]

    async def events(self, last_id: str = "") -> AsyncGenerator[bytes, None]:
        """The events for one browser.

        Args:
            last_id: id of the last event that it has seen; empty: none.
        """
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(MOST_WAITING)
        self._queues.add(queue)
        first = self._first(last_id)
        try:
            for begin in (b"retry: 1000\n\n", *first, self._ping()):
                yield begin
            while True:
                event: bytes | None = None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PING_S):
                        event = await queue.get()
                        if event is None:
                            return
                yield event if event is not None else self._ping()
        finally:
            self._queues.discard(queue)

    def _first(self, last_id: str) -> list[bytes]:
        instance, _, number = last_id.rpartition("-")
        if instance == self.instance and number.isdecimal():
            deltas = self._feed.board.since(int(number))
            if deltas is not None:
                return [self._event(delta) for delta in deltas]
        return [self._whole()]
