"""The metrics of routers and of workers. (Those of the coordinator and of durable tasks stand beside.) All have the
attribute `namespace`, too.

===================================  =======================  =====================================================
metric                               attributes               meaning
===================================  =======================  =====================================================
gangline.router.requests             endpoint, pool           requests accepted (with a route: ended)
gangline.router.errors               endpoint, pool, code     requests that ended in an error, by error code
gangline.router.queue_size           pool                     requests that wait for a worker
gangline.router.reserved_slots       pool                     slots that this router holds in selections and leases
gangline.router.backoffs             pool                     waits after a refusal
gangline.router.attempts             endpoint, pool           attempts per request (histogram)
gangline.router.fulfilment_time      endpoint, pool           seconds from request to answer (histogram)
gangline.router.held_back            endpoint                 requests that wait because of a route's limits
gangline.router.shadows              endpoint, pool, outcome  copies for shadow pools: sent, then ok, failed, refused,
                                                              late or lost; or dropped (dispatcher.traffic.shadowing)
gangline.worker.slots.running        pool, worker             slots in use by tasks
gangline.worker.slots.reserved       pool, worker             slots held by leases but not in use
gangline.worker.slots.total          pool, worker             slots of the worker
gangline.worker.tasks.started        pool, worker, method
gangline.worker.tasks.finished       pool, worker, method,    outcome: ok, or the error code
                                     outcome
gangline.worker.task_time            pool, worker, method     seconds of execution (histogram)
gangline.worker.leases               pool, worker, event      granted, expired, released
gangline.worker.rejections           pool, worker, reason     full, draining, stale, expired
gangline.worker.epochs               pool, worker, reason     new epochs, which void all leases: frozen, ...
gangline.worker.gangs                pool, worker, event      held, refused, freed, formed, torn_down, stopped,
                                                              failed, alone
gangline.worker.gang_members         pool, worker             members of formed gangs now
gangline.worker.gang_teardown_time   pool, worker             seconds until all members have ended (histogram)
gangline.worker.gang_wait_time       pool, worker             seconds in which a rank waited for the others, in one
                                                              barrier, broadcast or all-gather (histogram)
===================================  =======================  =====================================================

Callers can use names of endpoints and pools that nobody serves. When a router has seen more than a thousand names,
those no longer in use are counted as `_other`, and so are the times of requests that were never sent to a worker.

Prometheus shows them with underscores: `gangline_router_reserved_slots`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Set
from typing import Final

from ...schemas.wire.frames import Load
from ..logs import logger_for
from .instruments import (
    ATTEMPTS,
    MOST_VALUES,
    OTHER,
    SECONDS,
    Tally,
    Values,
    counter,
    gauge,
    histogram,
    level,
    metrics_enabled,
)

_log: Final = logger_for("telemetry")

_POOL: Final = ("namespace", "pool")
_ENDPOINT: Final = ("namespace", "endpoint", "pool")
_WORKER: Final = ("namespace", "pool", "worker")

_requests = counter("gangline.router.requests", "{request}", "Requests taken", _ENDPOINT)
_errors = counter("gangline.router.errors", "{request}", "Requests that ended in an error", (*_ENDPOINT, "code"))
_queue_size = level("gangline.router.queue_size", "{request}", "Requests that wait for a worker", _POOL)
_reserved = level("gangline.router.reserved_slots", "{slot}", "Slots held by selections and leases", _POOL)
_backoffs = counter("gangline.router.backoffs", "{wait}", "Waits after a refusal", _POOL)
_held_back = level(
    "gangline.router.held_back",
    "{request}",
    "Requests that wait because of a route's limits",
    ("namespace", "endpoint"),
)
_shadows = counter("gangline.router.shadows", "{request}", "Copies for shadow pools", (*_ENDPOINT, "outcome"))
_attempts = histogram("gangline.router.attempts", "{attempt}", "Attempts per request", _ENDPOINT, ATTEMPTS)
_fulfilment = histogram("gangline.router.fulfilment_time", "s", "From request to answer", _ENDPOINT, SECONDS)


class RouterMetrics:
    """The metrics of one router. Called only from its event loop."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._requests = _requests.of(self, namespace)
        self._errors = _errors.of(self, namespace)
        self._queue_size = _queue_size.of(self, namespace)
        self._reserved = _reserved.of(self, namespace)
        self._backoffs = _backoffs.of(self, namespace)
        self._held_back = _held_back.of(self, namespace)
        self._shadows = _shadows.of(self, namespace)
        self._served: set[str] = set()
        """Endpoints for which at least one attempt was sent to a worker: they exist, so there are few."""
        self._times: dict[tuple[str, str], tuple[Values, Values]] = {}

    def request(self, endpoint: str, pool: str) -> None:
        """A request was accepted."""
        self._requests[endpoint, pool] += 1

    def taken(self, endpoint: str, pool: str) -> Tally:
        """A counter for callers with many requests: each count is one `request`."""
        return self._requests.tally((endpoint, pool))

    def finished(self, endpoint: str, pool: str, seconds: float, attempts: int, error_code: str | None) -> None:
        """A request ended after this many seconds and attempts. `error_code` None: it succeeded."""
        if error_code is not None:
            self._errors[endpoint, pool, error_code] += 1
        if metrics_enabled():
            if attempts and endpoint not in self._served:
                self._served.add(endpoint)
            elif not attempts and endpoint not in self._served:
                endpoint = pool = OTHER
            _fulfilment.record(seconds, (self._namespace, endpoint, pool))
            _attempts.record(attempts, (self._namespace, endpoint, pool))

    def answered(self, endpoint: str, pool: str, seconds: float) -> None:
        """`finished` after one attempt and without an error. Call it only while `metrics_enabled`."""
        times = self._times.get((endpoint, pool))
        if times is None:
            self._served.add(endpoint)
            key = self._namespace, endpoint, pool
            times = self._times[endpoint, pool] = _fulfilment.of(key), _attempts.of(key)
        fulfilment, attempts = times
        fulfilment.add(seconds)
        attempts.add(1)
        if len(fulfilment) >= MOST_VALUES:
            fulfilment.flush()
            attempts.flush()

    def queued(self, pool: str, change: int) -> None:
        """A request started (+1) or stopped (-1) waiting for a worker."""
        self._queue_size[pool,] += change

    def held(self, pool: str) -> Tally:
        """A counter for callers that reserve often: the number of held slots, as in `reserved`."""
        return self._reserved.tally((pool,))

    def reserved(self, pool: str, change: int) -> None:
        """This many slots were reserved (+n) or are no longer held (-n)."""
        self._reserved[pool,] += change

    def backoff(self, pool: str) -> None:
        """A wait after a refusal begins."""
        self._backoffs[pool,] += 1

    def held_back(self, endpoint: str, change: int) -> None:
        """A request started (+1) or stopped (-1) waiting because of its route's limits."""
        self._held_back[endpoint,] += change

    def shadow(self, endpoint: str, pool: str, outcome: str) -> None:
        """The outcome of a copy for a shadow pool."""
        self._shadows[endpoint, pool, outcome] += 1

    def forget(self, pools: Set[str]) -> None:
        """Nobody requests or serves these pools any more: see Numbers.forget."""
        for counted in (self._requests, self._errors, self._backoffs, self._shadows):
            counted.forget(pools, keep=True)
        for level_ in (self._queue_size, self._reserved, self._held_back):
            level_.forget(pools, keep=False)

    def statistics(self) -> dict[str, int]:
        """Sums over endpoints and pools: requests, errors, queue_size, reserved_slots, backoffs."""
        return {
            "requests": self._requests.sum(),
            "errors": sum(self._errors.values()),
            "queue_size": sum(self._queue_size.values()),
            "reserved_slots": self._reserved.sum(),
            "backoffs": sum(self._backoffs.values()),
        }

    def __repr__(self) -> str:
        return f"RouterMetrics({', '.join(f'{name}={number}' for name, number in self.statistics().items())})"


def waiting_calls() -> list[tuple[tuple[str, str], float]]:
    """By namespace and pool: requests that wait in this process's routers. May be called from any thread."""
    return [((namespace, pool), float(number)) for (namespace, pool), number in _queue_size.total()]


_workers: weakref.WeakSet[WorkerMetrics] = weakref.WeakSet()


def busy_slots() -> list[tuple[tuple[str, str], float]]:
    """By namespace and pool: slots that run or are reserved on this process's workers. May be called from any
    thread."""
    busy: dict[tuple[str, str], float] = {}
    for metrics in list(_workers):
        load, key = metrics.load(), (metrics.namespace, metrics.pool)
        busy[key] = busy.get(key, 0.0) + load.running + load.reserved
    return list(busy.items())


def _loads(place: int) -> Callable[[], Iterable[tuple[tuple[str, ...], float]]]:
    def read() -> Iterable[tuple[tuple[str, ...], float]]:
        found: list[tuple[tuple[str, ...], float]] = []
        for metrics in list(_workers):
            try:
                found.append(((metrics.namespace, metrics.pool, metrics.worker), metrics.load()[place]))
            except Exception:  # a worker that is being closed must not hide the others
                _log.exception("load cannot be read", extra={"action": "metrics.load", "worker": metrics.worker})
        return found

    return read


gauge("gangline.worker.slots.running", "{slot}", "Slots in use by tasks", _WORKER, _loads(0))
gauge("gangline.worker.slots.reserved", "{slot}", "Slots held by leases but not in use", _WORKER, _loads(1))
gauge("gangline.worker.slots.total", "{slot}", "Slots of the worker", _WORKER, _loads(2))
_started = counter("gangline.worker.tasks.started", "{task}", "Tasks started", (*_WORKER, "method"))
_finished = counter("gangline.worker.tasks.finished", "{task}", "Tasks ended", (*_WORKER, "method", "outcome"))
_leases = counter("gangline.worker.leases", "{lease}", "Events of leases", (*_WORKER, "event"))
_rejections = counter("gangline.worker.rejections", "{request}", "Rejected requests", (*_WORKER, "reason"))
_epochs = counter("gangline.worker.epochs", "{epoch}", "New epochs, which void all leases", (*_WORKER, "reason"))
_task_time = histogram("gangline.worker.task_time", "s", "Execution time", (*_WORKER, "method"), SECONDS)


class WorkerMetrics:
    """The metrics of one worker. Called only from its event loop."""

    def __init__(self, namespace: str, pool: str, worker: str, load: Callable[[], Load]) -> None:
        """
        Args:
            load: returns the worker's current slots; called from an exporter's thread, so it must only read.
        """
        self.namespace = namespace
        self.pool = pool
        self.worker = worker
        self.load = load
        self._started = _started.of(self, namespace)
        self._finished = _finished.of(self, namespace)
        self._leases = _leases.of(self, namespace)
        self._rejections = _rejections.of(self, namespace)
        self._epochs = _epochs.of(self, namespace)
        # Prometheus sees no increase in a counter that begins with 1, so what may never happen begins with 0.
        self._epochs[pool, worker, "frozen"] = 0
        for reason in ("full", "draining", "stale", "expired"):
            self._rejections[pool, worker, reason] = 0
        self._keys: dict[str, tuple[tuple[str, str, str], tuple[str, str, str, str]]] = {}
        """By method: the keys under which a start and a success are counted."""
        self._times: dict[str, Values] = {}
        _workers.add(self)

    def started(self, method: str, count: int = 1) -> None:
        """This many executions of a task started."""
        keys = self._keys.get(method)
        if keys is None:
            keys = self._keys[method] = (self.pool, self.worker, method), (self.pool, self.worker, method, "ok")
        self._started[keys[0]] += count

    def succeeded(self, method: str, count: int) -> None:
        """This many executions started and succeeded; `took` tells how long each took."""
        self._started[self.pool, self.worker, method] += count
        self._finished[self.pool, self.worker, method, "ok"] += count

    def finished(self, method: str, seconds: float, outcome: str) -> None:
        """A task's code ended. `outcome`: `ok`, or the error code."""
        if outcome == "ok" and method in self._keys:
            self._finished[self._keys[method][1]] += 1
        else:
            self._finished[self.pool, self.worker, method, outcome] += 1
        if metrics_enabled():
            self.took(method, seconds)

    def took(self, method: str, seconds: float) -> None:
        """An execution took so long. Call it only while `metrics_enabled`."""
        values = self._times.get(method)
        if values is None:
            values = self._times[method] = _task_time.of((self.namespace, self.pool, self.worker, method))
        values.add(seconds)
        if len(values) >= MOST_VALUES:
            values.flush()

    def leases(self, granted: int, expired: int, released: int) -> None:
        """This many leases were granted, expired, or ended otherwise."""
        if granted:
            self._leases[self.pool, self.worker, "granted"] += granted
        if expired:
            self._leases[self.pool, self.worker, "expired"] += expired
        if released:
            self._leases[self.pool, self.worker, "released"] += released

    def rejected(self, reason: str) -> None:
        """A request was rejected because of `reason`; nothing was started or reserved."""
        self._rejections[self.pool, self.worker, reason] += 1

    def epoch(self, reason: str) -> None:
        """It took a new epoch while it served: `frozen`, or what else made its leases void."""
        self._epochs[self.pool, self.worker, reason] += 1

    def close(self) -> None:
        """The worker has left: remove its gauges. Idempotent."""
        _workers.discard(self)

    def statistics(self) -> dict[str, int]:
        """Sums over methods, outcomes and reasons."""
        leases = {event: self._leases[self.pool, self.worker, event] for event in ("granted", "expired", "released")}
        return {
            "started": sum(self._started.values()),
            "finished": sum(self._finished.values()),
            "rejected": sum(self._rejections.values()),
            **leases,
        }

    def __repr__(self) -> str:
        return f"WorkerMetrics({self.pool}.{self.worker}, {self.load()})"


_events = counter("gangline.worker.gangs", "{event}", "Events of gangs", (*_WORKER, "event"))
_members = level("gangline.worker.gang_members", "{member}", "Members of formed gangs", _WORKER)
_teardown = histogram(
    "gangline.worker.gang_teardown_time",
    "s",
    "From the start of a teardown until all members have ended",
    _WORKER,
    SECONDS,
)
_wait = histogram(
    "gangline.worker.gang_wait_time",
    "s",
    "How long a rank waited for the others of its gang in one barrier, broadcast or all-gather",
    _WORKER,
    SECONDS,
)


class WorkerGangMetrics:
    """The metrics of one worker. Called only from its event loop."""

    def __init__(self, namespace: str, pool: str, worker: str) -> None:
        self._namespace, self._where = namespace, (pool, worker)
        self._events = _events.of(self, namespace)
        self._members = _members.of(self, namespace)

    def event(self, name: str) -> None:
        """Count one of the events above."""
        self._events[(*self._where, name)] += 1

    def members(self, change: int) -> None:
        """This many members started (+n) or ended (-n)."""
        self._members[self._where] += change

    def waited(self, seconds: float) -> None:
        """A rank has waited for the others."""
        if metrics_enabled():
            _wait.record(seconds, (self._namespace, *self._where))

    def torn_down(self, seconds: float) -> None:
        """A teardown is complete and took this long."""
        self.event("stopped")
        if metrics_enabled():
            _teardown.record(seconds, (self._namespace, *self._where))

    def statistics(self) -> dict[str, int]:
        """Counts by event, and the current `members`."""
        names = ("held", "refused", "freed", "formed", "torn_down", "stopped", "failed", "alone")
        counts = {name: self._events[(*self._where, name)] for name in names}
        return {**counts, "members": self._members[self._where]}
