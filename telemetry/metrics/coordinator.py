"""The metrics of a coordinator, recorded by the leader. All have the attribute `namespace`.

===================================  ==============  ==============================================================
metric                               attributes      meaning
===================================  ==============  ==============================================================
gangline.gang.queue_length                           gangs that wait for room now
gangline.gang.queue_oldest                           seconds that the oldest of them has waited
gangline.gang.waiting                pool, obstacle  gangs that wait, by what they wait for
gangline.gang.slots_wanted           pool            slots that they need, each at its smallest size
gangline.gang.kept_slots             pool            free slots that are kept for the gang at the head of the queue
gangline.gang.formed                                 formed gangs
gangline.gang.commits                what            atomic batches committed: form, close, ...
gangline.gang.commits_refused        what, outcome   batches that were refused or not answered (unknown)
gangline.gang.restarts               reason, kind    restarts of whole gangs, and repairs, by cause
gangline.gang.ended                  reason          gangs that ended for good, by cause
gangline.gang.form_time                              seconds from request or restart until formed (histogram)
gangline.gang.teardown_time                          seconds from the decision to end a generation until all slots
                                                     are free or have timed out (histogram)
gangline.coordinator.terms                           elections that this process has won
gangline.coordinator.term            shard           number of the current term, while this process leads
===================================  ==============  ==============================================================
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from ..logs import logger_for
from .instruments import SECONDS, counter, gauge, histogram, metrics_enabled

_log: Final = logger_for("telemetry")
_NAMESPACE: Final = ("namespace",)

_commits = counter("gangline.gang.commits", "{batch}", "Batches that were committed", (*_NAMESPACE, "what"))
_refused = counter(
    "gangline.gang.commits_refused", "{batch}", "Batches refused or not answered", (*_NAMESPACE, "what", "outcome")
)
_restarts = counter("gangline.gang.restarts", "{restart}", "Restarts and repairs", (*_NAMESPACE, "reason", "kind"))
_ended = counter("gangline.gang.ended", "{gang}", "Gangs that ended for good", (*_NAMESPACE, "reason"))
_terms = counter("gangline.coordinator.terms", "{term}", "Elections won", _NAMESPACE)
_form_time = histogram("gangline.gang.form_time", "s", "From request or restart until formed", ("namespace",), SECONDS)
_teardown_time = histogram(
    "gangline.gang.teardown_time", "s", "From the decision until all slots are free", ("namespace",), SECONDS
)

_leaders: weakref.WeakSet[CoordinatorMetrics] = weakref.WeakSet()
_Observed = Iterable[tuple[tuple[str, ...], float]]


class Waiting(NamedTuple):
    """Gangs that wait for slots of one pool for one reason."""

    pool: str
    obstacle: str
    """`slots`: there are not enough free ones. `order`: a gang is ahead. `quota`: of its tenant. `backoff`: it was
    refused, and is tried again soon. `impossible`: not even all slots would do."""
    gangs: int
    slots: int
    """That they need in this pool, each at its smallest size."""


class Queued(NamedTuple):
    """What gangs wait for at one moment."""

    waiting: tuple[Waiting, ...] = ()
    kept: tuple[tuple[str, int], ...] = ()
    """By pool: slots kept for the head of the queue."""


def wanted_by_gangs() -> list[tuple[tuple[str, str], float]]:
    """By namespace and pool: slots that waiting gangs need, if this process leads. Those that can never fit are left
    out. May be called from any thread."""
    return [
        ((metrics.namespace, waiting.pool), float(waiting.slots))
        for metrics in list(_leaders)
        for waiting in metrics.queued.waiting
        if waiting.obstacle != "impossible"
    ]


def _queued(read: Callable[[Queued], Iterable[tuple[tuple[str, ...], float]]]) -> Callable[[], _Observed]:
    def observed() -> _Observed:
        found: dict[tuple[str, ...], float] = {}
        for metrics in list(_leaders):
            for key, number in read(metrics.queued):
                found[metrics.namespace, *key] = found.get((metrics.namespace, *key), 0.0) + number
        return list(found.items())

    return observed


def _levels(name: str) -> Callable[[], Iterable[tuple[tuple[str, ...], float]]]:
    def read() -> Iterable[tuple[tuple[str, ...], float]]:
        found: list[tuple[tuple[str, ...], float]] = []
        for metrics in list(_leaders):
            try:
                found.append(((metrics.namespace,), metrics.levels()[name]))
            except Exception:  # a leadership that is being closed must not hide the others
                _log.exception("a coordinator cannot be read", extra={"action": "metrics.coordinator"})
        return found

    return read


gauge("gangline.gang.queue_length", "{gang}", "Gangs that wait for room", _NAMESPACE, _levels("queued"))
gauge("gangline.gang.queue_oldest", "s", "How long the oldest of them has waited", _NAMESPACE, _levels("oldest_s"))
gauge("gangline.gang.formed", "{gang}", "Formed gangs", _NAMESPACE, _levels("formed"))


_PER_POOL: Final = (*_NAMESPACE, "pool")
gauge(
    "gangline.gang.waiting",
    "{gang}",
    "Gangs that wait, by what they wait for",
    (*_PER_POOL, "obstacle"),
    _queued(lambda queued: [((each.pool, each.obstacle), each.gangs) for each in queued.waiting]),
)
gauge(
    "gangline.gang.slots_wanted",
    "{slot}",
    "Slots that waiting gangs need, each at its smallest size",
    _PER_POOL,
    _queued(lambda queued: [((each.pool,), each.slots) for each in queued.waiting]),
)
gauge(
    "gangline.gang.kept_slots",
    "{slot}",
    "Free slots that are kept for the gang at the head of the queue",
    _PER_POOL,
    _queued(lambda queued: [((pool,), slots) for pool, slots in queued.kept]),
)


def current_terms() -> list[tuple[tuple[str, str], float]]:
    """By namespace and shard: the term in which this process leads. Unlike a counter of its elections it tells also
    those of processes that have just started. May be called from any thread."""
    return [((metrics.namespace, metrics.shard), float(metrics.term)) for metrics in list(_leaders)]


gauge("gangline.coordinator.term", "{term}", "Number of the current term", (*_NAMESPACE, "shard"), current_terms)


class CoordinatorMetrics:
    """The metrics of one leadership. Called only from its event loop."""

    def __init__(
        self, namespace: str, levels: Callable[[], Mapping[str, float]], *, term: int, shard: str = ""
    ) -> None:
        """
        Args:
            levels: returns the current `queued`, `oldest_s` and `formed`; called from an exporter's thread, so it must
                only read.
            term: the number of the leadership.
            shard: empty: it is the coordinator of all pools.
        """
        self.namespace = namespace
        self.levels = levels
        self.term = term
        self.shard = shard
        self.queued = Queued()
        """What gangs wait for; replaced as a whole, because exporters read it from their threads."""
        self._commits = _commits.of(self)
        self._refused = _refused.of(self)
        self._restarts = _restarts.of(self)
        self._ended = _ended.of(self)
        self._terms = _terms.of(self)
        self._terms[namespace,] += 1
        # So that the first of them is an increase.
        for outcome in ("refused", "unknown"):
            self._refused[namespace, "form", outcome] = 0
        for reason in ("worker_lost", "crashed", "failed", "failed_at_start"):
            self._restarts[namespace, reason, "restart"] = 0
        _leaders.add(self)

    def committed(self, what: str) -> None:
        self._commits[self.namespace, what] += 1

    def not_committed(self, what: str, outcome: str) -> None:
        """`outcome`: `refused` (nothing was written) or `unknown`."""
        self._refused[self.namespace, what, outcome] += 1

    def formed(self, seconds: float) -> None:
        """A gang was formed, this long after it was requested (or restarted)."""
        if metrics_enabled():
            _form_time.record(seconds, (self.namespace,))

    def restarted(self, reason: str, kind: str) -> None:
        """A failure led to a `restart` of the gang, or to the `repair` of members."""
        self._restarts[self.namespace, reason, kind] += 1

    def torn_down(self, seconds: float) -> None:
        """A generation ended, this long after the decision."""
        if metrics_enabled():
            _teardown_time.record(seconds, (self.namespace,))

    def ended(self, reason: str) -> None:
        """A gang ended for good."""
        self._ended[self.namespace, reason] += 1

    def close(self) -> None:
        """The leadership has ended: remove its gauges. Idempotent."""
        _leaders.discard(self)

    def statistics(self) -> dict[str, int]:
        """Sums over kinds and reasons: commits, commits_refused, restarts, ended."""
        return {
            "commits": sum(self._commits.values()),
            "commits_refused": sum(self._refused.values()),
            "restarts": sum(self._restarts.values()),
            "ended": sum(self._ended.values()),
        }

    def __repr__(self) -> str:
        return f"CoordinatorMetrics({self.namespace}, {self.statistics()})"
