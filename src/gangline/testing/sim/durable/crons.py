"""Schedules: each firing becomes one task, and there is none after the schedule's end."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from ....bus.port.bus import StreamMessage
from ..history.checker import Checker
from ..history.troubles import Troubles
from ..plan.durable_plan import JobStep
from .records import JobModel

SCHEDULED_S = 1.5
"""How long dispatchers may take to create a schedule that was submitted as a task, even if they change meanwhile."""


@dataclass(slots=True)
class CronModel:
    """One schedule."""

    step: JobStep
    publishers: set[str] = field(default_factory=set[str])
    """Client processes that are storing it."""
    stored_at: float | None = None
    ending_at: float | None = None
    """When its cancellation was first requested."""
    ended_at: float | None = None
    """When its cancellation was confirmed."""
    fired: list[float] = field(default_factory=list[float])
    taken: int = 0
    """How many firings have become tasks."""

    @property
    def period_s(self) -> int:
        assert self.step.period_s is not None
        return self.step.period_s

    def __str__(self) -> str:
        return f"{self.step.request} ({self.step.cron})"


class CronWatch:
    """All schedules of a run.

    Args:
        models: firings are added here as tasks.
    """

    def __init__(
        self,
        checker: Checker,
        troubles: Troubles,
        models: dict[str, JobModel],
    ) -> None:
        self._checker = checker
        self._trace = checker.trace
        self._clock = checker.clock
        self._troubles = troubles
        self._models = models
        self._crons: dict[str, CronModel] = {}

    # -- clients --------------------------------------------------------------------------------------------------

    def begins(self, step: JobStep, node: str) -> None:
        """A client process begins to store it."""
        self._crons.setdefault(step.request, CronModel(step)).publishers.add(node)

    def stored(self, step: JobStep) -> None:
        """Its publisher got the acknowledgement."""
        self._crons[step.request].stored_at = self._clock()

    def left(self, step: JobStep, node: str) -> None:
        """That client process no longer tries to store it."""
        self._crons[step.request].publishers.discard(node)

    def publishers(self, step: JobStep) -> set[str]:
        """Client processes that may still store it, unless they died."""
        cron = self._crons.get(step.request)
        return set() if cron is None else cron.publishers

    def dooms(self, step: JobStep) -> None:
        """A client requests its cancellation."""
        cron = self._crons.get(step.request)
        if cron is not None and cron.ending_at is None:
            cron.ending_at = self._clock()
            self._check_fired(cron, cron.ending_at)

    def ended(self, step: JobStep) -> None:
        """A client was told that it has ended."""
        self._crons[step.request].ended_at = self._clock()

    # -- the server -----------------------------------------------------------------------------------------------

    def on_due(self, message: StreamMessage) -> None:
        """The stream of schedules has a new message."""
        cron = self._firing(message)
        if cron is None:
            return
        now = self._clock()
        self._trace.note("sim", f"{cron} fires")
        if cron.ended_at is not None:
            self._checker.fail("L10", f"{cron} fires {now - cron.ended_at:.3f} s after its cancellation was confirmed")
        since = cron.fired[-1] if cron.fired else float("-inf")
        if now - since < 0.9 * cron.period_s and not self._troubles.delayed(since):
            self._checker.fail("L10", f"{cron} fires again after {now - since:.3f} s")
        cron.fired.append(now)

    def on_stored(self, message: StreamMessage) -> None:
        """The stream of tasks has a new message. A firing that was due before a cancellation may be stored after it."""
        cron = self._firing(message)
        if cron is None:
            return
        cron.taken += 1
        now, request = self._clock(), f"{cron.step.request}@{message.sequence}"
        self._models[request] = JobModel(
            request=request, step=cron.step, asked_at=now, stored_at=now, job=str(message.sequence)
        )

    def check_rest(self) -> None:
        """Check that each firing has become a task."""
        for cron in self._crons.values():
            if cron.taken != len(cron.fired):
                self._checker.fail("L10", f"{cron} fired {len(cron.fired)} times, and made {cron.taken} tasks")

    def _firing(self, message: StreamMessage) -> CronModel | None:
        """The schedule that published the message."""
        return self._crons.get(_request(message)) if "Nats-Scheduler" in (message.headers or {}) else None

    def firings(self) -> int:
        return sum(len(cron.fired) for cron in self._crons.values())

    def _check_fired(self, cron: CronModel, until: float) -> None:
        """Check that it fired as often as it should."""
        if cron.stored_at is None or self._troubles.delayed(cron.stored_at):
            return
        if not self._troubles.calm:  # a dispatcher has to schedule it
            return
        stood_s = until - cron.stored_at - SCHEDULED_S
        wanted = int(stood_s / cron.period_s) - 1
        if len(cron.fired) < wanted:
            self._checker.fail("L10", f"{cron} stood for {stood_s:.3f} s, and fired {len(cron.fired)} times")


def _request(message: StreamMessage) -> str:
    try:
        return str(json.loads(message.data)["request"])
    except (ValueError, KeyError, TypeError):
        return ""
