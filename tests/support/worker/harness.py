"""Runs tasks of a pool without a worker around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from gangline.schemas.errors.base import TaskCancelled
from gangline.worker.context.task_context import TaskContext
from gangline.worker.execution.executor_registry import ExecutorRegistry
from gangline.worker.execution.executors.execution import ExecutorSettings
from gangline.worker.pool.pool import Execution, Outcome, Pool


class Launched:
    """One call and everything received from it."""

    def __init__(
        self, executors: ExecutorRegistry, pool: Pool, method: str, kwargs: dict[str, Any], options: dict[str, Any]
    ):
        self.done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.abandoned: list[Outcome] = []
        self.items: list[Any] = []
        self.arrived = asyncio.Event()
        """Set at each item; clear it to wait for the next."""
        self.on_arrival: Callable[[], None] | None = None
        streams = options.pop("streams", False)
        window = options.pop("window", 64)
        self.context = TaskContext(pool=pool.name, method=method, **options)
        self._launching = True
        self.execution: Execution = executors.launch(
            pool.find(method).bind(None, kwargs),
            self.context,
            on_done=self._on_done,
            on_item=self._on_item if streams else None,
            on_abandoned=self._on_abandoned,
            window=window,
        )
        self._launching = False

    def _on_done(self, outcome: Outcome) -> None:
        assert not self._launching
        assert not self.done.done(), "on_done was called twice"
        self.done.set_result(outcome)

    def _on_item(self, sequence: int, value: Any) -> None:
        assert not self.done.done(), "an item came after the end"
        assert sequence == len(self.items)
        self.items.append(value)
        self.arrived.set()
        if self.on_arrival is not None:
            self.on_arrival()

    def _on_abandoned(self, outcome: Outcome) -> None:
        assert not self.done.done()
        self.abandoned.append(outcome)

    def cancel(self) -> TaskCancelled:
        reason = TaskCancelled("told to stop")
        self.execution.cancel(reason)
        return reason

    async def until_items(self, count: int) -> None:
        while len(self.items) < count:
            self.arrived.clear()
            await self.arrived.wait()


class Harness:
    """Running executors of one pool."""

    def __init__(self, pool: Pool, executors: ExecutorRegistry) -> None:
        self.pool = pool
        self.executors = executors

    def launch(self, method: str, /, *, options: dict[str, Any] | None = None, **kwargs: Any) -> Launched:
        return Launched(self.executors, self.pool, method, kwargs, dict(options or {}))

    async def run(self, method: str, /, *, options: dict[str, Any] | None = None, **kwargs: Any) -> Outcome:
        return await self.launch(method, options=options, **kwargs).done

    async def value(self, method: str, /, *, options: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        outcome = await self.run(method, options=options, **kwargs)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value


@asynccontextmanager
async def running(
    pool: Pool, settings: ExecutorSettings | None = None, on_models: Callable[[tuple[str, ...]], None] | None = None
) -> AsyncIterator[Harness]:
    executors = ExecutorRegistry(pool, settings=settings, on_models=on_models)
    await executors.start()
    try:
        yield Harness(pool, executors)
    finally:
        await executors.stop()
