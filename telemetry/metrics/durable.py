"""Numbers of durable tasks, as a dispatcher counts them.

===================================  =======================  =====================================================
name                                 attributes               meaning
===================================  =======================  =====================================================
gangline.queue.depth                 endpoint                 tasks in the stream, running ones included
gangline.queue.running               endpoint                 tasks that workers have
gangline.queue.waiting               endpoint                 tasks that failed and wait for their next try
gangline.queue.oldest                endpoint                 seconds since the oldest was published that has not
                                                              started
gangline.queue.started               endpoint, pool           tries sent to workers
gangline.queue.done                  endpoint                 tasks that succeeded
gangline.queue.cancelled             endpoint
gangline.queue.dead                  endpoint, reason         tasks that became dead letters
gangline.queue.retried               endpoint, code           tries that failed and are followed by another
gangline.queue.takeovers             endpoint                 times that this process took the queue
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

_started = counter("gangline.queue.started", "{task}", "Tries sent to workers", ("endpoint", "pool"))
_done = counter("gangline.queue.done", "{task}", "Tasks that succeeded", _ENDPOINT)
_cancelled = counter("gangline.queue.cancelled", "{task}", "Tasks that were cancelled", _ENDPOINT)
_dead = counter("gangline.queue.dead", "{task}", "Tasks that became dead letters", ("endpoint", "reason"))
_retried = counter("gangline.queue.retried", "{task}", "Tries that are followed by another", ("endpoint", "code"))
_takeovers = counter("gangline.queue.takeovers", "{queue}", "Times that the queue was taken", _ENDPOINT)
_wait_time = histogram("gangline.queue.wait_time", "s", "From publication to the first start", SECONDS)
_recovery_time = histogram("gangline.queue.recovery_time", "s", "From a takeover to the first possible start", SECONDS)


class QueueLevels(NamedTuple):
    """One queue at one moment."""

    endpoint: str
    depth: int
    running: int
    waiting: int
    oldest_s: float | None


_owners: weakref.WeakSet[DurableMetrics] = weakref.WeakSet()


class DurableMetrics:
    """One dispatcher's numbers. Called from its event loop only."""

    def __init__(self) -> None:
        self.levels: tuple[QueueLevels, ...] = ()
        """Of the queues that it has; replaced as a whole now and then, since exporters read it from their threads."""
        self._started = _started.of(self)
        self._done = _done.of(self)
        self._cancelled = _cancelled.of(self)
        self._dead = _dead.of(self)
        self._retried = _retried.of(self)
        self._takeovers = _takeovers.of(self)
        _owners.add(self)

    def started(self, endpoint: str, pool: str, waited_s: float | None) -> None:
        """A try was sent; `waited_s` since its publication, of a first one."""
        self._started[endpoint, pool] += 1
        if waited_s is not None and metrics_enabled():
            _wait_time.record(waited_s, {"endpoint": endpoint})

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
        """A try failed with that code, and there is another."""
        self._retried[endpoint, code] += 1

    def taken(self, endpoint: str) -> None:
        """The queue was taken."""
        self._takeovers[endpoint,] += 1

    def recovered(self, endpoint: str, seconds: float) -> None:
        """... and tasks start from now on."""
        if metrics_enabled():
            _recovery_time.record(seconds, {"endpoint": endpoint})

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
gauge("gangline.queue.running", "{task}", "Tasks that workers have", _ENDPOINT, _read(lambda levels: levels.running))
gauge("gangline.queue.waiting", "{task}", "Wait for their next try", _ENDPOINT, _read(lambda levels: levels.waiting))
gauge("gangline.queue.oldest", "s", "Age of the oldest not started", _ENDPOINT, _read(lambda levels: levels.oldest_s))
