"""Notices when what a dispatcher believes may be out of date: it stood still, or the connection was lost, or somebody
was not heard of for a while.

Whoever has a queue must then ask the server whether it still has it, before anything is started or written. After a
freeze asyncio runs the sockets before the timers, so the gap is looked for on entry of every event, not by the timer
alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ...bus.port.bus import Bus, ConnectionEvent
from ...runtime.failure_detector import TICK_S, FreezeDetector

_ONCE_IN_S: Final = 1.5
"""Silence makes us doubt so often at most. Who was sure after the last doubt and was cut off since then was so for less
than this, and nobody takes a queue from a dispatcher that soon: see transport.exchange.GAP_S."""


class DoubtMonitor:
    """Counts the times at which belief ended. Used on one loop; `start` and `stop` are idempotent."""

    def __init__(self, bus: Bus, freeze_after_s: float) -> None:
        """
        Args:
            freeze_after_s: a gap of so long in which nothing ran here is a freeze.
        """
        self._bus = bus
        self._loop: asyncio.AbstractEventLoop | None = None
        self._freeze = FreezeDetector(freeze_after_s, 0.0)
        self._timer: asyncio.TimerHandle | None = None
        self._unlisten: Callable[[], None] | None = None
        self._listeners: list[Callable[[float], None]] = []
        self.term = 0
        """Grows with every freeze and every reconnection: what was verified in an older term is doubtful."""
        self.freezes = 0
        self._cut_off_at = float("-inf")
        self.connected_at = 0.0
        """Since when we are connected, as far as we know, by the loop's clock."""
        self.reconnected_at = float("-inf")
        """When the connection was last regained."""

    def start(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._freeze.last_at = self.connected_at = self._loop.time()
            self._unlisten = self._bus.on_connection(self._on_connection)
            self._tick()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None

    def on_doubt(self, listener: Callable[[float], None]) -> Callable[[], None]:
        """Call `listener` whenever a new term begins, with the seconds that we stood still (0: a reconnection).
        Returns a function that stops that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def cut_off(self) -> None:
        """Somebody was not heard of for a while. It may have been we who were cut off, or our server that stood still:
        then our queues may be others' by now."""
        if self._loop is not None and self._loop.time() - self._cut_off_at > _ONCE_IN_S:
            self._cut_off_at = self._loop.time()
            self._doubt(0.0)

    def look(self) -> int:
        """On entry of everything that comes from outside: the term as of now."""
        assert self._loop is not None, "started first"
        if self._freeze.tick(self._loop.time()):
            self.freezes += 1
            self._doubt(self._freeze.gap_s)
        return self.term

    def _tick(self) -> None:
        assert self._loop is not None
        self.look()
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _on_connection(self, event: ConnectionEvent) -> None:
        if event is ConnectionEvent.RECONNECTED:
            self.look()
            assert self._loop is not None
            self.connected_at = self.reconnected_at = self._loop.time()
            self._doubt(0.0)

    def _doubt(self, gap_s: float) -> None:
        self.term += 1
        for listener in list(self._listeners):
            listener(gap_s)

    def __repr__(self) -> str:
        return f"DoubtMonitor(term={self.term}, freezes={self.freezes})"
