"""Whatever Python programs send arrives as it was on every path, or is refused before it is sent."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings

from gangline.dispatcher.client.client import Client
from gangline.dispatcher.jobs.storage import TaskStreams
from gangline.dispatcher.leases.lease import Lease
from gangline.schemas.errors.base import (
    DoNotRetry,
    GangFailed,
    GanglineError,
    InvalidArguments,
    InvalidResult,
    JobDead,
    TaskFailed,
)
from gangline.schemas.records.jobs import JobProgress
from gangline.testing import VirtualLoop, cluster
from gangline.worker.context.task_context import current_task
from gangline.worker.pool.pool import Pool

from ...scale import repetitions
from ...support.values import VALUES, arrived_as, nested

pool = Pool("app", slots=8)
received: list[Any] = []
held: list[Any] = []
"""What tasks return, yield, report and raise, without being sent to them first."""


@pool.task
async def take(value: Any = None, **named: Any) -> None:
    received.extend((value, *named.values()))


@pool.task
async def take_items(value: Any = None) -> AsyncIterator[int]:
    received.append(value)
    yield 1


@pool.task
async def give() -> Any:
    return held[0]


@pool.task
async def give_items() -> AsyncIterator[Any]:
    yield held[0]


@pool.task
async def report() -> None:
    await current_task().progress(held[0])


@pool.task
async def fail() -> None:
    raise ValueError(held[0])


@pool.task
async def fail_with_details() -> None:
    raise DoNotRetry("no", details={"value": held[0]})


class Paths:
    """Every path of a value, each in the cluster of all examples."""

    def __init__(self, streams: TaskStreams, client: Client, lease: Lease) -> None:
        self.streams = streams
        self.client = client
        self.lease = lease

    @classmethod
    async def open(cls, stack: AsyncExitStack) -> Paths:
        running = cluster(pool, dispatcher=True, coordinator=True)
        client = await stack.enter_async_context(running)
        lease = await stack.enter_async_context(client.lease("app"))
        bus = running.hub.connect("observer")
        stack.push_async_callback(bus.close)
        return cls(TaskStreams(bus, running.names), client, lease)

    async def dispatch(self, method: str, *args: Any) -> Any:
        async with self.client.choose_worker("app") as selection:
            return await self.client.dispatch(selection, method, *args)

    async def gang(self, method: str, *args: Any) -> Any:
        async with self.client.gang(pool="app", size=1) as gang:
            try:
                return await gang.run(method, *args)
            except GangFailed as error:
                assert isinstance(error.__cause__, GanglineError)
                raise error.__cause__ from None

    async def items(self, method: str, *args: Any) -> Any:
        return [item async for item in self.client.stream(f"app.{method}", *args)]

    async def submit(self, method: str, *args: Any) -> Any:
        job = await self.client.options(max_attempts=1).submit(f"app.{method}", *args)
        return await job.result()

    async def submitted_items(self) -> Any:
        job = await self.client.options(max_attempts=1).submit("app.give_items")
        return [item async for item in job.items()]

    async def progress(self) -> Any:
        job = await self.client.options(max_attempts=1).submit("app.report")
        reported = [event.value async for event in job.events() if isinstance(event, JobProgress)]
        await job.result()
        return reported

    async def arguments(self, value: Any) -> None:
        client = self.client
        ways: list[Callable[[], Awaitable[Any]]] = [
            lambda: client.call("app.take", value),
            lambda: client.call("app.take", named=value),
            lambda: client.options(key="k", timeout_s=60.0).call("app.take", value),
            lambda: self.items("take_items", value),
            lambda: self.lease.call("take", value),
            lambda: self.dispatch("take", value),
            lambda: self.gang("take", value),
            lambda: self.submit("take", value),
        ]
        refusals = 0
        for number, way in enumerate(ways):
            received.clear()
            try:
                await way()
            except InvalidArguments:
                assert received == [], number
                refusals += 1
            else:
                (arrived,) = (each for each in received if each is not None) if value is not None else {None}
                assert arrived_as(value, arrived), (number, value, arrived)
        assert refusals in (0, len(ways)), (refusals, value)
        if refusals:
            state = await (await self.streams.tasks()).state()
            assert state.messages == 0

    async def results(self, value: Any) -> None:
        held[:] = [value]
        alone: list[Callable[[], Awaitable[Any]]] = [
            lambda: self.client.call("app.give"),
            lambda: self.lease.call("give"),
            lambda: self.dispatch("give"),
            lambda: self.submit("give"),
        ]
        listed: list[Callable[[], Awaitable[Any]]] = [
            lambda: self.items("give_items"),
            lambda: self.gang("give"),
            self.submitted_items,
            self.progress,
        ]
        refused = []
        for number, way in enumerate((*alone, *listed)):
            try:
                arrived = await way()
            except (InvalidResult, JobDead) as error:
                refused.append(number)
                assert "invalid_result" in (error.code, error.details.get("error", {}).get("code")), (number, error)
            else:
                if number >= len(alone):
                    (arrived,) = arrived
                assert arrived_as(value, arrived), (number, value, arrived)
        assert len(refused) in (0, len(alone) + len(listed)), (refused, value)

    async def errors(self, value: Any) -> None:
        held[:] = [value]
        for method in ("fail", "fail_with_details"):
            with pytest.raises(TaskFailed) as raised:
                await self.client.call(f"app.{method}")
            if "value" in raised.value.details:
                assert arrived_as(value, raised.value.details["value"])
            with pytest.raises(JobDead):
                await self.submit(method)


def test_a_value_arrives_as_it_was_on_every_path_or_is_refused_on_all() -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        stack = AsyncExitStack()
        paths = runner.run(Paths.open(stack))

        @settings(
            max_examples=repetitions(1, whole=40),
            # Shrinking would take minutes: each example takes as long as forty requests.
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(VALUES)
        @example([b"\xff", float("inf"), {1: 2}])
        @example(dt.time(1, tzinfo=dt.timezone(dt.timedelta(seconds=30))))
        @example(nested(UUID(int=1), 63))
        def check(value: Any) -> None:
            async def each() -> None:
                await paths.arguments(value)
                await paths.results(value)
                await paths.errors(value)

            try:
                runner.run(each())
            except GanglineError as error:
                raise AssertionError(f"{error!r} for {value!r}") from error

        try:
            check()
        finally:
            runner.run(stack.aclose())
