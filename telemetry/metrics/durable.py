"""The metrics of durable tasks, recorded by a dispatcher.

===================================  =======================  =====================================================
name                                 attributes               meaning
===================================  =======================  =====================================================
gangline.queue.depth                 endpoint                 tasks in the stream, including running ones
gangline.queue.running               endpoint                 tasks that run on workers
gangline.queue.waiting               endpoint                 tasks that failed and wait for their next attempt
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
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from .instruments import SECONDS, counter, gauge, histogram, metrics_enabled

_ENDPOINT: Final = ("endpoint",)

_started = counter("gangline.queue.started", "{task}", "Attempts sent to workers", ("endpoint", "pool"))
_done = counter("gangline.queue.done", "{task}", "Tasks that succeeded", _ENDPOINT)
_cancelled = counter("gangline.queue.cancelled", "{task}", "Tasks that were cancelled", _ENDPOINT)
_dead = counter("gangline.queue.dead", "{task}", "Tasks that became dead letters", ("endpoint", "reason"))
_retried = counter(
    "gangline.queue.retried", "{task}", "Failed attempts that are followed by another", ("endpoint", "code")
)
_takeovers = counter("gangline.queue.takeovers", "{queue}", "Takeovers of the queue", _ENDPOINT)
_wait_time = histogram("gangline.queue.wait_time", "s", "From publication to the first start", ("endpoint",), SECONDS)
_recovery_time = histogram(
    "gangline.queue.recovery_time", "s", "From a takeover to the first possible start", ("endpoint",), SECONDS
)


class QueueLevels(NamedTuple):
    """One queue at one moment."""

    endpoint: str
    depth: int
    running: int
    waiting: int
    oldest_s: float | None


_owners: weakref.WeakSet[DurableMetrics] = weakref.WeakSet()


class DurableMetrics:
    """The metrics of one dispatcher. Called only from its event loop."""

    def __init__(self) -> None:
        self.levels: tuple[QueueLevels, ...] = ()
        """The levels of its queues; replaced as a whole, because exporters read it from their threads."""
        self._started = _started.of(self)
        self._done = _done.of(self)
        self._cancelled = _cancelled.of(self)
        self._dead = _dead.of(self)
        self._retried = _retried.of(self)
        self._takeovers = _takeovers.of(self)
        _owners.add(self)

    def started(self, endpoint: str, pool: str, waited_s: float | None) -> None:
        """An attempt was sent; `waited_s` is the time since publication, given for a first attempt."""
        self._started[endpoint, pool] += 1
        if waited_s is not None and metrics_enabled():
            _wait_time.record(waited_s, (endpoint,))

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

    def recovered(self, endpoint: str, seconds: float) -> None:
        """After a takeover, tasks start from now on."""
        if metrics_enabled():
            _recovery_time.record(seconds, (endpoint,))

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


def _read(level: Callable[[QueueLevels], float | None]) -> Callable[[], Iterable[tuple[tuple[str, ...], float]]]:
    def read() -> Iterable[tuple[tuple[str, ...], float]]:
        return [
            ((levels.endpoint,), number)
            for metrics in list(_owners)
            for levels in metrics.levels
            if (number := level(levels)) is not None
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
    "gangline.queue.oldest",
    "s",
    "Age of the oldest task that has not started",
    _ENDPOINT,
    _read(lambda levels: levels.oldest_s),
)
