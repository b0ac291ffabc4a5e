"""The metrics of gangs at their workers. (For those of the coordinator see metrics.coordinator.)

===================================  =======================  =====================================================
metric                               attributes               meaning
===================================  =======================  =====================================================
gangline.worker.gangs                pool, worker, event      held, refused, freed, formed, torn_down, stopped,
                                                              failed, alone
gangline.worker.gang_members         pool, worker             members of formed gangs now
gangline.worker.gang_teardown_time   pool, worker             seconds until all members have ended (histogram)
===================================  =======================  =====================================================
"""

from __future__ import annotations

from typing import Final

from .instruments import SECONDS, counter, histogram, level, metrics_enabled

_WORKER: Final = ("pool", "worker")

_events = counter("gangline.worker.gangs", "{event}", "Events of gangs", (*_WORKER, "event"))
_members = level("gangline.worker.gang_members", "{member}", "Members of formed gangs", _WORKER)
_teardown = histogram(
    "gangline.worker.gang_teardown_time", "s", "From the start of a teardown until all members have ended", SECONDS
)


class WorkerGangMetrics:
    """The metrics of one worker. Called only from its event loop."""

    def __init__(self, pool: str, worker: str) -> None:
        self._where = (pool, worker)
        self._events = _events.of(self)
        self._members = _members.of(self)

    def event(self, name: str) -> None:
        """Count one of the events above."""
        self._events[(*self._where, name)] += 1

    def members(self, change: int) -> None:
        """This many members started (+n) or ended (-n)."""
        self._members[self._where] += change

    def torn_down(self, seconds: float) -> None:
        """A teardown is complete and took this long."""
        self.event("stopped")
        if metrics_enabled():
            pool, worker = self._where
            _teardown.record(seconds, {"pool": pool, "worker": worker})

    def statistics(self) -> dict[str, int]:
        """Counts by event, and the current `members`."""
        names = ("held", "refused", "freed", "formed", "torn_down", "stopped", "failed", "alone")
        counts = {name: self._events[(*self._where, name)] for name in names}
        return {**counts, "members": self._members[self._where]}
