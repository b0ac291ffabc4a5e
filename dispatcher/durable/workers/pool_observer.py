"""What a queue's core is told of pools: looked at a few times a second, told when it has changed.

A standing set is told of as a pool whose workers are its formed gangs. It is known as soon as it is declared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ....telemetry.logs import Log
from ...jobs.storage import until_answered
from ...pools.pool import RoutedPool
from ...router.router import Router

LOOK_S: Final = 0.25

Seen = tuple[bool, int, int, tuple[tuple[str, int], ...], frozenset[str]]
"""Known, workers, largest, costs, once."""


class KnownPools:
    """Pools that were ever seen to have a worker, and standing sets, by anybody in this process. A ledger in memory
    forgets them all when the server restarts, and they are no less known for that."""

    def __init__(self) -> None:
        self.names: set[str] = set()


class PoolObserver:
    """Follows the pools of one queue."""

    def __init__(
        self,
        router: Router,
        known: KnownPools,
        *,
        tell: Callable[[str, bool, int, int, dict[str, int], frozenset[str]], None],
        log: Log,
    ) -> None:
        """`tell` is called with the fields of PoolSeen."""
        self._router = router
        self._known = known
        self._tell = tell
        self._log = log
        self._seen: dict[str, Seen | None] = {}
        self._opening: dict[str, asyncio.Task[RoutedPool]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def open(self, pools: list[str]) -> None:
        """Know these, and tell of them, before anything else. Waits for storage as long as it takes."""
        for name in pools:
            await self._open(name)
            self._seen.setdefault(name, None)
        self._look()

    def follow(self, pool: str) -> None:
        """Tell of this pool from now on."""
        if pool not in self._seen:
            self._seen[pool] = None
            self._reopen(pool)

    async def stop(self) -> None:
        """Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        if opening:
            await asyncio.wait(opening)

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _open(self, name: str) -> RoutedPool:
        return await until_answered(f"opening pool {name}", lambda: self._router.target(name), self._log)

    def _reopen(self, name: str) -> None:
        if name not in self._opening and not self._closed:
            task = asyncio.get_running_loop().create_task(self._open(name), name=f"gangline-open-{name}")
            self._opening[name] = task
            task.add_done_callback(lambda _: self._opening.pop(name, None))

    def _look(self) -> None:
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        for name, before in list(self._seen.items()):
            pool = self._router.known_target(name)
            if pool is None:
                self._reopen(name)  # it is not known yet whether it has workers
                continue
            pool.used_at = loop.time()
            seen = self._describe(name, pool)
            if seen != before:
                self._seen[name] = seen
                self._tell(name, seen[0], seen[1], seen[2], dict(seen[3]), seen[4])
        self._timer = loop.call_later(LOOK_S, self._look)

    def _describe(self, name: str, pool: RoutedPool) -> Seen:
        view = pool.core.view
        if view.workers or self._router.sets.pool_of(name) is pool:
            self._known.names.add(name)
        costs = tuple(
            (method, found.slots)
            for method in view.methods
            if (found := view.method(method)) is not None and found.slots != 1
        )
        once = frozenset(
            method for method in view.methods if (found := view.method(method)) is not None and not found.idempotent
        )
        before = self._seen.get(name)
        if not view.workers and before is not None:
            # The next worker's tasks will hardly take other slots than the last one's: what is taken for small until
            # it is known is refused, and overtaken meanwhile. And whether what that one ran may run twice is as it was.
            costs, once = before[3], before[4]
        largest = max((worker.total for worker in view.workers.values()), default=0)
        return name in self._known.names, len(view.workers), largest, costs, once

    def __repr__(self) -> str:
        return f"PoolObserver({sorted(self._seen)})"
