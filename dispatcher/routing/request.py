"""One request on its way to a worker. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol

from ...schemas.names import WorkerId
from .outcome import TryOutcome
from .worker_table import WorkerEntry


class RouteStay(Protocol):
    """A request's stay with the route that chose its pool."""

    def settled(self) -> None:
        """It no longer counts on a worker."""

    def sent(self) -> None:
        """A try of it was sent."""


class RoutedRequest:
    """One request on its way to a worker, through all its tries."""

    # No slots: what most requests never set stands in the class, which makes one of them cheaper to make.

    slots: int | None = None
    """Slots to reserve; None: what the task costs."""
    key: str | None = None
    model: str | None = None
    labels: Mapping[str, str] | None = None
    idempotent: bool | None = None
    """None: as the task declares."""
    in_line = True
    """Whether it may wait for a worker with room."""
    patient = False
    """Whether the caller ends the wait itself (it has a deadline); else `saturated_wait_s` does."""
    repeatable = False
    """`idempotent`, or what the task of the last try declares."""
    number = 0
    queue: Hashable = None
    waits = False
    queued_at = 0.0
    """Since when it has been waiting to be taken, refusals included."""
    attempts = 0
    avoid: set[WorkerEntry] | None = None
    worker: WorkerEntry | None = None
    """Where it is placed and charged; None while it is not."""
    cost = 0
    """Slots charged there."""
    asked_at: float | None = None
    """Loop time at which a worker was first looked for."""
    last: WorkerId | None = None
    """Where the last try went."""
    uncertain: TryOutcome | None = None
    """The fate of a try that may have started something and was repeated: whatever error comes, it may have run."""
    fate: TryOutcome | None = None
    """What became of the last try."""
    waiter: object | None = None
    """The shell's own attachment."""
    endpoint: str | None = None
    """The endpoint whose route it follows, so that it leaves a pool that leaves the route. None: it means the pool."""
    moved = False
    """It waited before, in another pool: that too many wait is no reason to refuse it."""
    admission: RouteStay | None = None
    """None: no route chose its pool."""

    def __init__(
        self,
        *,
        method: str | None,
        slots: int | None = None,
        key: str | None = None,
        model: str | None = None,
        labels: Mapping[str, str] | None = None,
        idempotent: bool | None = None,
        patient: bool = False,
        max_attempts: int = 10_000,
        queue: bool | None = None,
    ) -> None:
        self.method = method
        self.max_attempts = max_attempts
        if slots is not None:
            self.slots = slots
        if key is not None:
            self.key = key
        if model is not None:
            self.model = model
        if labels:
            self.labels = labels
        if idempotent is not None:
            self.idempotent = self.repeatable = idempotent
        if patient:
            self.patient = patient
        if queue is False:
            self.in_line = False

    def __repr__(self) -> str:
        where = "waits" if self.waits else f"on {self.worker.id}" if self.worker else "idle"
        return f"RoutedRequest(#{self.number} {self.method}, {where}, attempts={self.attempts})"
