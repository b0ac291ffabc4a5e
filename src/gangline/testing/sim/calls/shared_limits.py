"""Limits that hold over all workers of a pool: how many executions of a task run at once, how fast they start, and who
waits for a share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ....runtime.rate import burst_of
from ....schemas.names import Names
from ....schemas.records.workers import LimitRecord
from ..history.checker import Checker
from ..history.troubles import SERVER, Troubles

WAITS_S: Final = 3.0
"""How long a worker may wait for units that nobody uses, without faults: its request may be lost among others, and is
repeated after a second."""
KEPT_S: Final = 1.0
"""A worker that got a unit may keep it for its own callers for most of this time: see HOLD_S and PACE_S of
worker.slots.share_core."""
QUIET_S: Final = 8.0
"""So long after a fault, shares of workers that are gone are with others."""


@dataclass(frozen=True, slots=True)
class _Body:
    node: str
    worker: str
    method: str
    since: float


@dataclass(slots=True)
class _Passed:
    """The first worker in the line for a unit, and how many executions have started on others since then."""

    worker: str
    since: float
    count: int = 0


@dataclass(frozen=True, slots=True)
class Waiter:
    """A call or a submitted task that has not started, and takes one slot."""

    what: str
    pool: str
    method: str
    since: float


class SharedLimits:
    """The executions outside of gangs that count for limits of one plan."""

    def __init__(
        self,
        checker: Checker,
        troubles: Troubles,
        limits: Mapping[str, int],
        rates: Mapping[str, float],
        pools: Mapping[str, str],
        *,
        expires_s: Mapping[str, float],
        quiet_for: Callable[[], float],
        names: Names,
        record: Callable[[str], LimitRecord | None],
        waiters: Callable[[], Iterable[Waiter]],
        rooms: Callable[[], Iterable[str]],
    ) -> None:
        """
        Args:
            limits: `max_running` by method.
            rates: `rate_per_s` by method.
            pools: the pool of each worker.
            expires_s: when the heartbeat of a worker expires, by its name.
            quiet_for: seconds since the last fault.
            record: the ledger's record at a key.
            waiters: who waits for a slot or a unit, and for nothing else.
            rooms: worker processes that serve and have a free slot.
        """
        self._checker = checker
        self._clock = checker.clock
        self._troubles = troubles
        self._limits = limits
        self._rates = rates
        self._starts: dict[tuple[str, str], list[float]] = {}
        """By pool and method."""
        self._pools = pools
        self._expires_s = expires_s
        self._quiet_for = quiet_for
        self._names = names
        self._record = record
        self._waiters = waiters
        self._rooms = rooms
        self._running: dict[int, _Body] = {}
        self._idle_since: dict[tuple[str, str], float] = {}
        """By pool and method: since when some unit is in no use, and nothing has started."""
        self._room_since: dict[str, float] = {}
        """By worker process: since when it has a free slot."""
        self._passed: dict[tuple[str, str], _Passed] = {}
        """By pool and method."""

    def starts(self, number: int, node: str, method: str) -> None:
        """An execution starts in that process."""
        worker = node.partition(".")[0]
        pool = self._pools[worker]
        if method in self._rates:
            self._check_rate(pool, node, method, self._rates[method])
        limit = self._limits.get(method)
        if limit is None:
            return
        self._idle_since[pool, method] = self._clock()
        self._pass(pool, method, worker)
        others = [
            each
            for each in self._running.values()
            if each.method == method and self._pools[each.worker] == pool and not self._cut_off(each)
        ]
        if len(others) >= limit:
            names = ", ".join(sorted(each.node for each in others))
            self._checker.fail(
                "limit", f"{method} starts on {node} while it runs on {names}: at most {limit} may run in {pool}"
            )
        self._running[number] = _Body(node, worker, method, self._clock())

    def _check_rate(self, pool: str, node: str, method: str, rate: float) -> None:
        """In any t seconds, at most burst + rate * t start over all workers, whatever happens to them, unless the
        server has lost the ledger: a worker that starts then knows nothing of the others."""
        times = self._starts.setdefault((pool, method), [])
        times.append(self._clock())
        for number, time in enumerate(times):
            count, span_s = len(times) - number, times[-1] - time
            if count > burst_of(rate) + rate * span_s + 0.001 and not self._troubles.affected(SERVER, time):
                text = f"{method} starts on {node}, the {count}th in {pool} in {span_s:.3f} s: the rate is {rate:g}/s"
                self._checker.fail("limit-rate", text)

    def ends(self, number: int) -> None:
        """It has stopped."""
        body = self._running.pop(number, None)
        if body is not None:
            self._idle_since[self._pools[body.worker], body.method] = self._clock()

    def died(self, node: str) -> None:
        """A process died, and its code with it."""
        self._running = {number: each for number, each in self._running.items() if each.node != node}

    def _cut_off(self, body: _Body) -> bool:
        """Whether its worker was frozen or cut off for so long that its heartbeat may have expired: its share is not
        its own any more, and what it runs cannot be stopped."""
        return self._troubles.lasted(body.worker, body.since, self._expires_s[body.worker] * 0.6)

    def look(self) -> None:
        """Find callers and tasks that wait for units although some are idle, and workers whose turn does not come."""
        now = self._clock()
        self._room_since = {node: self._room_since.get(node, now) for node in self._rooms()}
        for pool in sorted(set(self._pools.values())):
            for method, limit in self._limits.items():
                rate = self._rates.get(method)
                used = sum(
                    each.method == method and self._pools[each.worker] == pool for each in self._running.values()
                )
                idle = used < limit and (rate is None or self._used(pool, method) < burst_of(rate))
                if not idle or self._quiet_for() < QUIET_S:
                    self._idle_since[pool, method] = now
        for pool, method in list(self._passed):
            record = self._record(self._names.limit_key(pool, method))
            if record is None or record.waiting[:1] != (self._passed[pool, method].worker,):
                del self._passed[pool, method]  # it has got a unit, which it may have given up by the next start
        if self._limits and self._quiet_for() >= QUIET_S:
            for waiter in self._waiters():
                self._look_at(waiter, now)

    def _look_at(self, waiter: Waiter, now: float) -> None:
        """Check one that may start as soon as its worker has a unit, and that is the only thing that it waits for."""
        pool, method = waiter.pool, waiter.method
        # A worker that has had a slot for all this time: if it asks, it gets the unit.
        room_since = min(
            (since for node, since in self._room_since.items() if self._pools[node.partition(".")[0]] == pool),
            default=now,
        )
        idle_s = now - max(self._idle_since.get((pool, method), now), room_since, waiter.since)
        if idle_s > WAITS_S + self._interval_s(method):
            record = self._record(self._names.limit_key(pool, method))
            self._checker.fail(
                "limit-waits",
                f"{waiter.what} waits for {method}: a unit and a slot have been idle for {idle_s:.1f} s: {record}",
            )

    def _interval_s(self, method: str) -> float:
        """Units of a rate may be in use for so long without a start: see law 4 of worker.slots.share_core."""
        rate = self._rates.get(method)
        return 0.0 if rate is None else burst_of(rate) / rate

    def _pass(self, pool: str, method: str, worker: str) -> None:
        """An execution starts there. Find a worker that is passed by for too long: units that become idle are for those
        who wait, in their order."""
        record = self._record(self._names.limit_key(pool, method))
        if record is None or not record.waiting or method in self._rates or self._quiet_for() < QUIET_S:
            self._passed.pop((pool, method), None)
            return
        first, passed = record.waiting[0], self._passed.get((pool, method))
        if passed is None or passed.worker != first or worker == first:
            self._passed[pool, method] = _Passed(first, self._clock())
            return
        waited_s = self._clock() - passed.since
        passed.count += waited_s > KEPT_S
        if passed.count > record.limit:
            self._checker.fail(
                "limit-waits",
                f"{first} has been the first in the line for {method} for {waited_s:.1f} s, and {passed.count} have "
                f"started on others after the first second, the last on {worker}: {dict(record.shares)}",
            )

    def _used(self, pool: str, method: str) -> int:
        """Units of the rate that are in use."""
        rate = self._rates[method]
        since = self._clock() - burst_of(rate) / rate
        return sum(each > since for each in self._starts.get((pool, method), ()))
