"""What a queue is told of its pools."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from gangline.dispatcher.durable.workers.pool_observer import LOOK_S, KnownPools, PoolObserver
from gangline.telemetry.logs import logger_for


class Pool:
    """As the router knows it."""

    def __init__(self) -> None:
        self.used_at = 0.0
        self.costs: dict[str, int] = {}
        self.idempotent: set[str] = set()
        self.core = SimpleNamespace(view=self)
        self.workers: dict[str, SimpleNamespace] = {}

    @property
    def methods(self) -> list[str]:
        return sorted(self.costs)

    def method(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(slots=self.costs[name], idempotent=name in self.idempotent, policy=None)

    def has(self, workers: int, **costs: int) -> None:
        self.workers = {str(number): SimpleNamespace(total=4) for number in range(workers)}
        self.costs = costs


async def test_what_tasks_take_is_remembered_while_no_worker_lives() -> None:
    pool, told = Pool(), []

    async def open_pool(_name: str) -> Pool:
        return pool

    sets = SimpleNamespace(pool_of=lambda _name: None)
    router = SimpleNamespace(known_target={"images": pool}.get, target=open_pool, sets=sets)
    pool_observer = PoolObserver(
        router,  # type: ignore[arg-type]
        KnownPools(),
        tell=lambda **seen: told.append(tuple(seen.values())),
        log=logger_for("test"),
    )
    pool.idempotent = {"light"}
    pool.has(1, heavy=2, light=1)
    await pool_observer.open(["images"])
    pool.has(0)
    await asyncio.sleep(2 * LOOK_S)
    pool.has(1, light=1)
    await asyncio.sleep(2 * LOOK_S)
    await pool_observer.stop()
    assert told == [
        ("images", True, 1, 4, {"heavy": 2}, frozenset({"heavy"}), {}, frozenset({"heavy", "light"}), ""),
        ("images", True, 0, 0, {"heavy": 2}, frozenset({"heavy"}), {}, frozenset(), ""),
        ("images", True, 1, 4, {}, frozenset(), {}, frozenset({"light"}), ""),
    ]
