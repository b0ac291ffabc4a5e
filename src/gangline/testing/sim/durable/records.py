"""The checker's own books of durable tasks: what was asked for, what runs where, how each ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from ....schemas.records.jobs import ResultRecord
from ..plan.durable_plan import JobStep


@dataclass(slots=True)
class TaskBody:
    """One try: code that runs, or ran."""

    number: int
    node: str
    worker: str
    cost: int
    attempt: int
    since: float
    ended_at: float | None = None
    how: str = ""
    """returned, raised, stopped; or died, with its process."""
    drained_s: float | None = None
    """For how long its worker had been draining when it ended, if it was."""
    late: bool = False
    """It was on its way for long, from a dispatcher that had handed the queue over meanwhile."""


@dataclass(slots=True)
class JobModel:
    """One durable task. Steps with the same idempotency key have one."""

    request: str
    step: JobStep
    asked_at: float
    stored_at: float | None = None
    """When a publisher first had the acknowledgement."""
    job: str | None = None
    """Its id, as far as it is known."""
    bodies: list[TaskBody] = field(default_factory=list[TaskBody])
    doomed: bool = False
    """Somebody wants it cancelled."""
    cancelled_at: float | None = None
    """When somebody was told that it is."""
    told: list[str] = field(default_factory=list[str])
    record: ResultRecord | None = None
    replaying: int = 0
    """Calls that may be sending it anew."""
    replayed: int = 0
    """... of which so many are said to be done."""
    revived_at: float | None = None
    """When the record of its last death was removed."""
    attempts_before: int = 0
    """... which told of so many."""

    @property
    def most_attempts(self) -> int:
        """None of its tries may have a greater number."""
        return self.attempts_before + self.step.max_attempts

    @property
    def life(self) -> list[TaskBody]:
        """Tries since it was last revived."""
        return [body for body in self.bodies if self.revived_at is None or body.since >= self.revived_at]

    @property
    def running(self) -> list[TaskBody]:
        return [body for body in self.bodies if body.ended_at is None]

    def __str__(self) -> str:
        return f"{self.request} ({self.job or 'of unknown id'})"
