"""What a leadership's effects and events say in numbers and in log lines."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...schemas.messages.gangs import GangEvent, GangEventKind
from ...telemetry.logs import Log
from ...telemetry.metrics.coordinator import CoordinatorMetrics
from ..model import effects as do
from ..model import events as on
from ..model.commits import CommitKind

_QUIET = frozenset({GangEventKind.QUEUED})
_TROUBLE = frozenset({GangEventKind.MEMBER_LOST, GangEventKind.RESTARTING})


class CoordinatorGauges:
    """Measures one leadership."""

    def __init__(self, metrics: CoordinatorMetrics, now: Callable[[], float], log: Log) -> None:
        self.metrics = metrics
        self._now = now
        self._log = log
        self._asked_at: dict[str, float] = {}
        """Gangs that are to form."""
        self._closing_at: dict[str, float] = {}
        """Gangs that are torn down."""
        self._commits: dict[int, str] = {}

    def committing(self, effect: do.Commit) -> None:
        """A batch is sent."""
        self._commits[effect.number] = effect.what
        if effect.what == CommitKind.CLOSE:
            self._closing_at.setdefault(effect.gang, self._now())

    def answered(self, event: on.Committed | on.CommitRefused | on.CommitUnknown) -> None:
        """How it went."""
        what = self._commits.pop(event.number, "")
        match event:
            case on.Committed():
                self.metrics.committed(what)
            case on.CommitRefused():
                self.metrics.not_committed(what, "refused")
            case on.CommitUnknown():
                self.metrics.not_committed(what, "unknown")

    def happened(self, event: GangEvent) -> None:
        """A broadcast."""
        self._report(event)
        gang, now, cause = event.gang, self._now(), event.reason.partition(":")[0]
        match event.kind:
            case GangEventKind.QUEUED:
                self._asked_at[gang] = now
            case GangEventKind.FORMED:
                asked_at = self._asked_at.pop(gang, None)
                if asked_at is not None:
                    self.metrics.formed(now - asked_at)
            case GangEventKind.MEMBER_LOST:
                self.metrics.restarted(cause, "repair")
            case GangEventKind.RESTARTING:
                self.metrics.restarted(cause, "restart")
                self._torn_down(gang, now)
                self._asked_at[gang] = now
            case GangEventKind.ENDED:
                self.metrics.ended(cause)
                self._torn_down(gang, now)
                self._asked_at.pop(gang, None)
            case _:
                pass

    def _torn_down(self, gang: str, now: float) -> None:
        closing_at = self._closing_at.pop(gang, None)
        if closing_at is not None:
            self.metrics.torn_down(now - closing_at)

    def _report(self, event: GangEvent) -> None:
        level = logging.WARNING if event.kind in _TROUBLE or event.unconfirmed else logging.INFO
        if event.kind in _QUIET or not self._log.isEnabledFor(level):
            return
        extra: dict[str, object] = {
            "action": f"gang.{event.kind.value}",
            "gang": event.gang,
            "generation": event.generation,
        }
        if event.gangset is not None:
            extra["gangset"] = event.gangset
        if event.rank is not None:
            extra["rank"] = event.rank
        if event.unconfirmed:
            extra["unconfirmed"] = ", ".join(event.unconfirmed)
        self._log.log(level, "gang of %d%s", event.size, f": {event.reason}" if event.reason else "", extra=extra)

    def close(self) -> None:
        """The leadership is over."""
        self.metrics.close()
