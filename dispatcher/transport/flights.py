"""Frames that wait for an answer.

A flight ends exactly once: by its answer, or by a TryOutcome (see retry). Whoever asked may be gone by then (cancelled,
timed out): the flight then still settles its ticket, so that the books balance on every path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from ...schemas.errors.base import GanglineError
from ...schemas.wire.frames import AnswerOp, Frame
from ..routing.outcome import TryOutcome
from ..routing.worker_table import WorkerEntry

if TYPE_CHECKING:
    from ..routing.request import RoutedRequest
    from .channel import OutboundMessage

_HELD: Final = int(AnswerOp.HELD)
_GRANTED: Final = int(AnswerOp.GRANTED)
Outcome = Frame | TryOutcome
"""An answer frame, or why there is none."""


class Settlement(Protocol):
    """Where tickets are settled: a pool, or the slots of a lease."""

    def settle(self, routed_request: RoutedRequest, /) -> None:
        """The ticket no longer counts on its worker. Idempotent."""

    def pump(self) -> None:
        """Serve whoever waits, as far as there is room."""


class InFlightRequest:
    """One frame in flight."""

    # No slots: what most of them never set stands in the class, which makes one of them cheaper to make.

    checked = False
    """Whether a worker may be asked what became of it (CHECK)."""
    durable = False
    """Whether it ends as lost only when its worker is lost for certain, however long that takes."""
    reserves = False
    """Whether slots are held when it is granted, to be given back with RELEASE."""
    outbound: OutboundMessage | None = None
    """The message that carries it."""
    check_at = 0.0
    """Loop time at which its worker is asked; 0: nobody has looked at it so far."""
    check_every_s = 0.0

    def __init__(self, id: int, worker: WorkerEntry) -> None:
        self.id = id
        self.worker = worker

    @property
    def message(self) -> int:
        """Number of the message that carried it, on its channel; 0 while it was not sent."""
        return 0 if self.outbound is None else self.outbound.number

    @property
    def epoch(self) -> int:
        """The worker's epoch that this message named."""
        return 0 if self.outbound is None else self.outbound.epoch

    def deliver(self, frame: Frame) -> bool:
        """An answer came; True when that was the last."""
        raise NotImplementedError

    def runs(self) -> None:
        """Its worker was asked, and says that it runs."""

    def lose(self, fate: TryOutcome) -> None:
        """There will be no answer."""
        raise NotImplementedError

    def fail(self, error: GanglineError) -> None:
        """The router closes: whoever waits gets the error."""
        self.lose(TryOutcome.GONE)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id} at {self.worker.id}, message={self.message})"


class AwaitedRequest(InFlightRequest):
    """A flight whose single answer somebody awaits, and which counts on its worker until it has ended."""

    books: Settlement
    """Where it counts."""
    future: asyncio.Future[Outcome]

    def __init__(
        self,
        id: int,
        worker: WorkerEntry,
        loop: asyncio.AbstractEventLoop,
        books: Settlement,
        routed_request: RoutedRequest,
    ) -> None:
        self.id = id
        self.worker = worker
        self.future = loop.create_future()
        self.books = books
        self.routed_request = routed_request

    def settle(self) -> None:
        """It no longer counts on its worker. At its end, or by whoever takes it back before it was sent."""
        self.books.settle(self.routed_request)

    def deliver(self, frame: Frame) -> bool:
        self._end(frame)
        return True

    def lose(self, fate: TryOutcome) -> None:
        self._end(fate)

    def fail(self, error: GanglineError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
        self._end(TryOutcome.GONE)

    def _end(self, outcome: Outcome) -> None:
        self.settle()
        if not self.future.done():
            self.future.set_result(outcome)


class TaskRequest(AwaitedRequest):
    """A TASK: its end settles the ticket, whether or not the caller still waits."""

    checked = True
    on_held: Callable[[], None] | None = None
    """Told that the task has its slots and waits for BEGIN, where it is to be held."""

    def deliver(self, frame: Frame) -> bool:
        if frame[0] == _HELD:
            if self.on_held is not None:
                self.on_held()
            return False
        self._end(frame)
        return True


class ReservationRequest(AwaitedRequest):
    """A RESERVE. Granted, it stays charged for as long as the slot is held."""

    reserves = True

    def deliver(self, frame: Frame) -> bool:
        if frame[0] != _GRANTED:
            self._end(frame)
        elif not self.future.done():
            self.future.set_result(frame)
        return True
