"""The metrics of durable tasks, recorded by a dispatcher. All have the attribute `namespace`, too.

===================================  =======================  =====================================================
name                                 attributes               meaning
===================================  =======================  =====================================================
gangline.queue.depth                 endpoint                 tasks in the stream, including running ones
gangline.queue.running               endpoint                 tasks that run on workers
gangline.queue.waiting               endpoint                 tasks that failed and wait for their next attempt
gangline.queue.pending               endpoint, obstacle       tasks that do not run, by what they wait for
gangline.queue.oldest                endpoint                 age of the oldest task that has not started, in seconds
gangline.queue.started               endpoint, pool           attempts sent to workers
gangline.queue.done                  endpoint                 tasks that succeeded
gangline.queue.cancelled             endpoint
gangline.queue.dead                  endpoint, reason         tasks that became dead letters
gangline.queue.retried               endpoint, code           failed attempts that are followed by another
gangline.queue.takeovers             endpoint                 times that this process took the queue over
gangline.queue.wait_time             endpoint                 seconds from publication to the first start (histogram)
gangline.queue.recovery_time         endpoint                 seconds from a takeover until tasks start (histogram)
===================================  =======================  =====================================================
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from ...schemas.records.jobs import DeadReason
from .instruments import SECONDS, counter, gauge, histogram, metrics_enabled

_ENDPOINT: Final = ("namespace", "endpoint")

_started = counter("gangline.queue.started", "{task}", "Attempts sent to workers", (*_ENDPOINT, "pool"))
_done = counter("gangline.queue.done", "{task}", "Tasks that succeeded", _ENDPOINT)
_cancelled = counter("gangline.queue.cancelled", "{task}", "Tasks that were cancelled", _ENDPOINT)
_dead = counter("gangline.queue.dead", "{task}", "Tasks that became dead letters", (*_ENDPOINT, "reason"))
_retried = counter(
    "gangline.queue.retried", "{task}", "Failed attempts that are followed by another", (*_ENDPOINT, "code")
)
_takeovers = counter("gangline.queue.takeovers", "{queue}", "Takeovers of the queue", _ENDPOINT)
_wait_time = histogram("gangline.queue.wait_time", "s", "From publication to the first start", _ENDPOINT, SECONDS)
_recovery_time = histogram(
    "gangline.queue.recovery_time", "s", "From a takeover to the first possible start", _ENDPOINT, SECONDS
)


_NONE: Final[Mapping[str, int]] = {}


class QueueLevels(NamedTuple):
    """One queue at one moment."""

    endpoint: str
    depth: int
    running: int
    waiting: int
    oldest_s: float | None
    pending: Mapping[str, int] = _NONE
    """By obstacle."""


_owners: weakref.WeakSet[DurableMetrics] = weakref.WeakSet()


class DurableMetrics:
    """The metrics of one dispatcher. Called only from its event loop."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.levels: tuple[QueueLevels, ...] = ()
        """The levels of its queues; replaced as a whole, because exporters read it from their threads."""
        self._wanted: dict[tuple[str, str], int] = {}
        self._started = _started.of(self, namespace)
        self._done = _done.of(self, namespace)
        self._cancelled = _cancelled.of(self, namespace)
        self._dead = _dead.of(self, namespace)
        self._retried = _retried.of(self, namespace)
        self._takeovers = _takeovers.of(self, namespace)
        _owners.add(self)

    def started(self, endpoint: str, pool: str, waited_s: float | None) -> None:
        """An attempt was sent; `waited_s` is the time since publication, given for a first attempt."""
        self._started[endpoint, pool] += 1
        if waited_s is not None and metrics_enabled():
            _wait_time.record(waited_s, (self.namespace, endpoint))

    def wanted(self, endpoint: str, pool: str, slots: int) -> None:
        """The queue could use this many more slots of the pool now."""
        if slots:
            self._wanted[endpoint, pool] = slots
        else:
            self._wanted.pop((endpoint, pool), None)

    def left(self, endpoint: str) -> None:
        """The queue is no longer run here."""
        self.levels = tuple(levels for levels in self.levels if levels.endpoint != endpoint)
        for key in [key for key in self._wanted if key[0] == endpoint]:
            del self._wanted[key]

    def done(self, endpoint: str) -> None:
        """A task succeeded."""
        self._done[endpoint,] += 1

    def cancelled(self, endpoint: str) -> None:
        """A task was cancelled."""
        self._cancelled[endpoint,] += 1

    def dead(self, endpoint: str, reason: str) -> None:
        """A task became a dead letter."""
        self._dead[endpoint, reason] += 1

    def retried(self, endpoint: str, code: str) -> None:
        """An attempt failed with that code, and there will be another."""
        self._retried[endpoint, code] += 1

    def taken(self, endpoint: str) -> None:
        """The queue was taken over."""
        self._takeovers[endpoint,] += 1
        # Prometheus sees no increase in a counter that begins with 1: without this, the first dead letter would alert
        # nobody.
        for numbers in (self._done, self._cancelled):
            numbers[endpoint,] += 0
        for reason in DeadReason:
            self._dead[endpoint, reason.value] += 0

    def recovered(self, endpoint: str, seconds: float) -> None:
        """After a takeover, tasks start from now on."""
        if metrics_enabled():
            _recovery_time.record(seconds, (self.namespace, endpoint))

    def statistics(self) -> dict[str, int]:
        """Sums over endpoints: started, done, cancelled, dead, retried, takeovers."""
        return {
            "started": sum(self._started.values()),
            "done": sum(self._done.values()),
            "cancelled": sum(self._cancelled.values()),
            "dead": sum(self._dead.values()),
            "retried": sum(self._retried.values()),
            "takeovers": sum(self._takeovers.values()),
        }

    def __repr__(self) -> str:
        return f"DurableMetrics({', '.join(f'{name}={number}' for name, number in self.statistics().items())})"


def wanted_by_jobs() -> list[tuple[tuple[str, str], float]]:
    """By namespace and pool: slots that this process's queues could use now, beyond those they have. May be called
    from any thread."""
    return [
        ((metrics.namespace, pool), float(slots))
        for metrics in list(_owners)
        for (_, pool), slots in list(metrics._wanted.items())
    ]


def _read(level: Callable[[QueueLevels], float]) -> Callable[[], Iterable[tuple[tuple[str, ...], float]]]:
    def read() -> Iterable[tuple[tuple[str, ...], float]]:
        return [
            ((metrics.namespace, levels.endpoint), level(levels))
            for metrics in list(_owners)
            for levels in metrics.levels
        ]

    return read


gauge("gangline.queue.depth", "{task}", "Tasks in the stream", _ENDPOINT, _read(lambda levels: levels.depth))
gauge("gangline.queue.running", "{task}", "Tasks that run on workers", _ENDPOINT, _read(lambda levels: levels.running))
gauge(
    "gangline.queue.waiting",
    "{task}",
    "Tasks that wait for their next attempt",
    _ENDPOINT,
    _read(lambda levels: levels.waiting),
)
gauge(
    "gangline.queue.pending",
    "{task}",
    "Tasks that do not run, by what they wait for",
    (*_ENDPOINT, "obstacle"),
    lambda: [
        ((metrics.namespace, levels.endpoint, obstacle), float(tasks))
        for metrics in list(_owners)
        for levels in metrics.levels
        for obstacle, tasks in {"slots": 0, **levels.pending}.items()  # so that a panel is not empty while none waits
    ],
)
gauge(
    "gangline.queue.oldest",
    "s",
    "Age of the oldest task that has not started; 0: there is none",
    _ENDPOINT,
    _read(lambda levels: levels.oldest_s or 0.0),
)
