"""Telling how many requests wait in this router, so that an operator sees who waits where."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from ...bus.port.bus import Bus, NotPermitted
from ...schemas.errors.base import ClosedError, Disconnected
from ...schemas.messages.operations import RouterQueues
from ...schemas.names import Names

PERIOD_S: Final = 1.0


class QueueLengths:
    """Broadcasts the lengths of one router's queues, once a second while anything waits, and once when nothing does any
    more."""

    def __init__(
        self, bus: Bus, names: Names, waiting: Callable[[], dict[str, int]], *, router: str, owner: str, node: str
    ) -> None:
        """
        Args:
            waiting: tells how many wait now, by pool; of those for which any does.
            router: a name for it in subjects.
            owner, node: whose it is and where, for people.
        """
        self._bus = bus
        self._subject = names.router_event(router)
        self._waiting = waiting
        self._router = router
        self._owner = owner
        self._node = node
        self._said_at = float("-inf")
        self._said: dict[str, int] = {}
        self._forbidden = False

    def tick(self, now: float) -> None:
        """To be called more often than once a second."""
        if self._forbidden or now - self._said_at < PERIOD_S:
            return
        waiting = self._waiting()
        if not waiting and not self._said:
            return
        told = {**dict.fromkeys(self._said, 0), **waiting}
        self._said, self._said_at = waiting, now
        event = RouterQueues(router=self._router, owner=self._owner, node=self._node, waiting=told)
        with contextlib.suppress(Disconnected, ClosedError):
            try:
                self._bus.publish(self._subject, event.model_dump_json().encode())
            except NotPermitted:
                self._forbidden = True  # said once by the connection; it is news, not work
