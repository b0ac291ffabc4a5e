"""Limits that hold over all workers of a pool: how many executions of a task run at once, how fast they start, and who
waits for a share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
QUIET_S: Final = 8.0
"""So long after a fault, shares of workers that are gone are with others."""


@dataclass(frozen=True, slots=True)
class _Body:
    node: str
    worker: str
    method: str
    since: float


class SharedLimits:
    """The executions outside of gangs that count for limits of one plan."""

    def __init__(
        self,
        checker: Checker,
        clock: Callable[[], float],
        troubles: Troubles,
        limits: Mapping[str, int],
        rates: Mapping[str, float],
        pools: Mapping[str, str],
        *,
        expires_s: Mapping[str, float],
        quiet_for: Callable[[], float],
        names: Names,
        record: Callable[[str], LimitRecord | None],
    ) -> None:
        """
        Args:
            limits: `max_running` by method.
            rates: `rate_per_s` by method.
            pools: the pool of each worker.
            expires_s: when the heartbeat of a worker expires, by its name.
            quiet_for: seconds since the last fault.
            record: the ledger's record at a key.
        """
        self._checker = checker
        self._clock = clock
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
        self._running: dict[int, _Body] = {}
        self._stuck_since: dict[tuple[str, str], float] = {}

    def starts(self, number: int, node: str, method: str) -> None:
        """An execution starts in that process."""
        worker = node.partition(".")[0]
        pool = self._pools[worker]
        if method in self._rates:
            self._check_rate(pool, node, method, self._rates[method])
        limit = self._limits.get(method)
        if limit is None:
            return
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
        self._running.pop(number, None)

    def died(self, node: str) -> None:
        """A process died, and its code with it."""
        self._running = {number: each for number, each in self._running.items() if each.node != node}

    def _cut_off(self, body: _Body) -> bool:
        """Whether its worker was frozen or cut off for so long that its heartbeat may have expired: its share is not
        its own any more, and what it runs cannot be stopped."""
        return self._troubles.lasted(body.worker, body.since, self._expires_s[body.worker] * 0.6)

    def look(self) -> None:
        """Find workers that wait for units which nobody uses."""
        for pool in sorted(set(self._pools.values())):
            for method, limit in self._limits.items():
                used = sum(
                    each.method == method and self._pools[each.worker] == pool for each in self._running.values()
                )
                rate = self._rates.get(method)
                # Units of a rate may be in use without a start: see law 4 of worker.slots.share_core.
                waits_s = WAITS_S if rate is None else WAITS_S + burst_of(rate) / rate
                if rate is not None and self._used(pool, method) >= burst_of(rate):
                    used = limit  # it is the rate that they wait for
                self._look(pool, method, used, limit, self._record(self._names.limit_key(pool, method)), waits_s)
                if rate is not None:
                    record = self._record(self._names.rate_key(pool, method))
                    self._look(pool, f"{method}'s rate", self._used(pool, method), burst_of(rate), record, waits_s)

    def _used(self, pool: str, method: str) -> int:
        """Units of the rate that are in use."""
        rate = self._rates[method]
        since = self._clock() - burst_of(rate) / rate
        return sum(each > since for each in self._starts.get((pool, method), ()))

    def _look(self, pool: str, what: str, used: int, limit: int, record: LimitRecord | None, waits_s: float) -> None:
        if record is None or self._quiet_for() < QUIET_S or not record.waiting or used >= limit:
            self._stuck_since.pop((pool, what), None)
            return
        now = self._clock()
        since = self._stuck_since.setdefault((pool, what), now)
        if now - since > waits_s:
            self._checker.fail(
                "limit-waits",
                f"{', '.join(record.waiting)} wait for {what} for {now - since:.1f} s while {used} of {limit}"
                f" are in use: {dict(record.shares)}",
            )
