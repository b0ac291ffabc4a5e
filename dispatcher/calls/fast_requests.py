"""Requests on their short way: see express.

Nearly all of them are answered at the first try. What a ticket would know of such a request is the same for all, so
that none is made: a flight of these counts on its worker as one slot by itself, from its placing to its end.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from ...runtime.timeouts import Alarms
from ...schemas.wire.frames import Answer, Frame
from ..pools.pool import RoutedPool
from ..routing.worker_table import Worker
from ..transport.flights import Awaited, Books, Outcome

_OK: Final = int(Answer.OK)
_GRANTED: Final = int(Answer.GRANTED)
_HELD: Final = int(Answer.HELD)


class Detour:
    """What a short way comes to instead of a result; from there on it is the general one's."""

    __slots__ = ("outcome",)

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class Way:
    """The short way to one task: where its calls go for as long as its endpoint is served by that pool alone."""

    __slots__ = ("endpoint", "method", "pool")

    def __init__(self, endpoint: str, method: str, pool: RoutedPool) -> None:
        self.endpoint = endpoint
        self.method = method
        self.pool = pool


class ShortFlight(Awaited):
    """What all of them have in common. Times are those of the message: of a frame of its own nobody needs one."""

    pool: RoutedPool

    @property
    def books(self) -> Books:  # type: ignore[override]
        return self.pool

    @property
    def sent_at(self) -> float:
        """Loop time, not later than its sending."""
        return self.future.get_loop().time() if self.parcel is None else self.parcel.begun_at

    def _told(self, outcome: Outcome) -> Any:
        return Detour(outcome)


class PlainFlight(ShortFlight):
    """A task. Its future ends with the bare result, or with a Detour."""

    checked = True

    @property
    def deadline(self) -> float | None:
        """Loop time; None: never."""
        return None

    def __init__(self, id: int, worker: Worker, future: asyncio.Future[Any], pool: RoutedPool) -> None:
        self.id = id
        self.worker = worker
        self.future = future
        self.pool = pool

    @property
    def endpoint(self) -> str:
        """What was asked for; for the metrics."""
        return self.pool.name

    def settle(self) -> None:
        self.pool.core.end_plain(self.worker)

    def deliver(self, frame: Frame) -> bool:
        if frame[0] != _OK:
            return self._deliver_other(frame)
        self.worker.ended += 1  # all that one message ends are settled together
        if not self.future.done():
            self.future.set_result(frame[2])
        return True

    def _deliver_other(self, frame: Frame) -> bool:
        if frame[0] == _HELD:
            return False
        self._end(frame)
        return True


class TimedFlight(PlainFlight):
    """A task that is to be done in time."""

    def __init__(
        self,
        id: int,
        worker: Worker,
        future: asyncio.Future[Any],
        pool: RoutedPool,
        *,
        target: str,
        timeout_s: float,
        alarms: Alarms[TimedFlight],
    ) -> None:
        """`alarms`: where it is added by whoever sends it, to be ended at its deadline."""
        super().__init__(id, worker, future, pool)
        self.target = target
        self.timeout_s = timeout_s
        self._alarms = alarms

    @property
    def deadline(self) -> float:
        return self.sent_at + self.timeout_s

    def deliver(self, frame: Frame) -> bool:
        last = super().deliver(frame)
        if last:
            self._alarms.drop(self)
        return last

    def _end(self, outcome: Outcome) -> None:
        self._alarms.drop(self)
        super()._end(outcome)
