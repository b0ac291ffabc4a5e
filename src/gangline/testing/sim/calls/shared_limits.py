"""Limits that hold over all workers of a pool: how many executions of a task run at once, and who waits for a share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ....schemas.records.workers import LimitRecord
from ..history.checker import Checker
from ..history.troubles import Troubles

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
        pools: Mapping[str, str],
        *,
        expires_s: Mapping[str, float],
        quiet_for: Callable[[], float],
        record: Callable[[str, str], LimitRecord | None],
    ) -> None:
        """
        Args:
            limits: `max_running` by method.
            pools: the pool of each worker.
            expires_s: when the heartbeat of a worker expires, by its name.
            quiet_for: seconds since the last fault.
            record: the ledger's record for a pool and a method.
        """
        self._checker = checker
        self._clock = clock
        self._troubles = troubles
        self._limits = limits
        self._pools = pools
        self._expires_s = expires_s
        self._quiet_for = quiet_for
        self._record = record
        self._running: dict[int, _Body] = {}
        self._stuck_since: dict[tuple[str, str], float] = {}

    def starts(self, number: int, node: str, method: str) -> None:
        """An execution starts in that process."""
        limit = self._limits.get(method)
        if limit is None:
            return
        worker = node.partition(".")[0]
        pool = self._pools[worker]
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
        now = self._clock()
        for method, limit in self._limits.items():
            for pool in sorted(set(self._pools.values())):
                record = self._record(pool, method)
                if record is None or self._quiet_for() < QUIET_S or not record.waiting:
                    self._stuck_since.pop((pool, method), None)
                    continue
                used = sum(
                    each.method == method and self._pools[each.worker] == pool for each in self._running.values()
                )
                if used >= limit:
                    self._stuck_since.pop((pool, method), None)
                    continue
                since = self._stuck_since.setdefault((pool, method), now)
                if now - since > WAITS_S:
                    self._checker.fail(
                        "limit-waits",
                        f"{', '.join(record.waiting)} wait for {method} for {now - since:.1f} s while {used} of {limit}"
                        f" run: {dict(record.shares)}",
                    )
