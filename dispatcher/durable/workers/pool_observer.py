"""Tells a queue's core about pools: checks a few times a second, and reports changes.

A standing set is reported as a pool whose workers are its formed gangs. It is known as soon as it is declared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Final

from ....runtime.tasks import TaskSet
from ....schemas.records.workers import TaskPolicy
from ....schemas.text import nearest_name
from ....telemetry.logs import Log
from ...jobs.storage import until_answered
from ...pools.pool import RoutedPool
from ...router.router import Router

LOOK_S: Final = 0.25
_MOST_UNKNOWN: Final = 1000

Seen = dict[str, Any]
"""The fields of PoolSeen, besides time and pool."""


class KnownPools:
    """Standing sets, and pools that ever had a worker, as seen by this process. A ledger in memory forgets them when
    the server restarts, but they stay known."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._near: dict[str, tuple[object, str]] = {}
        """By unknown name: what it was compared with, and the nearest of these."""

    def nearest(self, name: str, routes: Collection[str]) -> str:
        """The pool, standing set or route that was perhaps meant by an unknown name; empty: none is near."""
        compared = (len(self.names), tuple(routes))  # names are never removed
        before = self._near.get(name)
        if before is None or before[0] != compared:
            if len(self._near) >= _MOST_UNKNOWN:
                self._near.clear()
            before = self._near[name] = compared, nearest_name(name, sorted({*self.names, *routes})) or ""
        return before[1]


class PoolObserver:
    """Follows the pools of one queue."""

    def __init__(
        self,
        router: Router,
        known: KnownPools,
        *,
        tell: Callable[..., None],
        log: Log,
    ) -> None:
        """`tell` is called with the fields of PoolSeen, by name."""
        self._router = router
        self._known = known
        self._tell = tell
        self._log = log
        self._seen: dict[str, Seen | None] = {}
        self._opening: set[str] = set()
        self._tasks = TaskSet("open pools", log)
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def open(self, pools: list[str]) -> None:
        """Open these pools and report them, before anything else. Waits for storage as long as it takes."""
        for name in pools:
            await self._open(name)
            self._seen.setdefault(name, None)
        self._look()

    def follow(self, pool: str) -> None:
        """Report this pool from now on."""
        if pool not in self._seen:
            self._seen[pool] = None
            self._reopen(pool)

    def told_policy(self, pool: str, method: str) -> TaskPolicy | None:
        """What the core was last told that a task declares."""
        seen = self._seen.get(pool)
        return None if seen is None else seen["policies"].get(method)

    async def stop(self) -> None:
        """Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._tasks.stop()

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _open(self, name: str) -> RoutedPool:
        return await until_answered(f"opening pool {name}", lambda: self._router.target(name), self._log)

    def _reopen(self, name: str) -> None:
        if name not in self._opening and not self._closed:
            self._opening.add(name)
            self._tasks.start(self._open(name)).add_done_callback(lambda _: self._opening.discard(name))

    def _look(self) -> None:
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        for name, before in list(self._seen.items()):
            pool = self._router.known_target(name)
            if pool is None:
                self._reopen(name)  # whether it has workers is not known yet
                continue
            pool.used_at = loop.time()
            seen = self._describe(name, pool)
            if seen != before:
                self._seen[name] = seen
                self._tell(pool=name, **seen)
        self._timer = loop.call_later(LOOK_S, self._look)

    def _describe(self, name: str, pool: RoutedPool) -> Seen:
        view = pool.core.view
        if view.workers or self._router.sets.pool_of(name) is pool:
            self._known.names.add(name)
        methods = {name: found for name in view.methods if (found := view.method(name)) is not None}
        costs = {method: found.slots for method, found in methods.items() if found.slots != 1}
        once = frozenset(method for method, found in methods.items() if not found.idempotent)
        policies = {method: found.policy for method, found in methods.items() if found.policy is not None}
        before = self._seen.get(name)
        if not view.workers and before is not None:
            # The next worker's tasks probably need as many slots as the last one's. A task with too low a cost would be
            # refused, and others would overtake it. And methods that were not idempotent still are not, nor have other
            # limits.
            costs, once, policies = before["costs"], before["once"], before["policies"]
        largest = max((worker.total for worker in view.workers.values()), default=0)
        known = name in self._known.names
        return {
            "known": known,
            "workers": len(view.workers),
            "largest": largest,
            "costs": costs,
            "once": once,
            "policies": policies,
            "methods": frozenset(methods),
            "near": "" if known else self._known.nearest(name, self._router.routes.known),
        }

    def __repr__(self) -> str:
        return f"PoolObserver({sorted(self._seen)})"
