"""The checker's model of durable tasks: what was requested, what runs where, and how each ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ....schemas.records.jobs import ResultRecord
from ..plan.durable_plan import JobStep


@dataclass(slots=True)
class TaskBody:
    """One attempt that runs or ran."""

    number: int
    node: str
    worker: str
    cost: int
    attempt: int
    since: float
    ended_at: float | None = None
    how: str = ""
    """`returned`, `raised`, `stopped`, or `died` with its process."""
    drained_s: float | None = None
    """How long its worker had been draining when it ended, if it was."""
    late: bool = False
    """It arrived late, from a dispatcher that had lost the queue meanwhile."""


@dataclass(slots=True)
class JobModel:
    """One durable task. Steps with the same idempotency key share one."""

    request: str
    step: JobStep
    asked_at: float
    stored_at: float | None = None
    """When a publisher first got the acknowledgement."""
    job: str | None = None
    """Its id, if known."""
    bodies: list[TaskBody] = field(default_factory=list[TaskBody])
    doomed: bool = False
    """Whether a cancellation was requested."""
    cancelled_at: float | None = None
    """When a client was told that it is cancelled."""
    record: ResultRecord | None = None
    recorded_at: float = 0.0
    """When its last record was stored."""
    replaying: int = 0
    """Requests that may be replaying it."""
    replayed: int = 0
    """... and how many of these were told that they did."""
    revived_at: float | None = None
    """When the record of its last death was removed."""
    attempts_before: int = 0
    """... and how many attempts that record counted."""
    buried: int = 0
    """How many attempts its last dead letter counts."""

    @property
    def most_attempts(self) -> int:
        """The highest allowed number of an attempt."""
        return self.attempts_before + self.step.max_attempts

    @property
    def life(self) -> list[TaskBody]:
        """Attempts since it was last replayed."""
        return [body for body in self.bodies if self.revived_at is None or body.since >= self.revived_at]

    @property
    def running(self) -> list[TaskBody]:
        return [body for body in self.bodies if body.ended_at is None]

    def __str__(self) -> str:
        return f"{self.request} ({self.job or 'of unknown id'})"


def of_job(models: Mapping[str, JobModel], job: str) -> JobModel | None:
    """The task with that id, if it is known."""
    return next((model for model in models.values() if model.job == job), None)
