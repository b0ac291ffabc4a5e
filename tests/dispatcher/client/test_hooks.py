"""What runs around a client's calls, streams and submissions."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import pytest

from gangline.dispatcher.client.client import Client
from gangline.dispatcher.client.hooks import CallNext, ClientRequest, Hook, HookChain, StreamNext, SubmitNext
from gangline.dispatcher.jobs.job import Job
from gangline.schemas.errors.base import InvalidArguments, InvalidSettings, TaskFailed
from gangline.testing import cluster
from gangline.worker.pool.pool import Pool

from ...support.dispatcher.fakes import cancel_and_wait
from ...support.rows import in_rows


def make_pool() -> Pool:
    pool = Pool("images", slots=4)

    @pool.task
    async def double(value: int) -> int:
        return 2 * value

    @pool.task
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    @pool.task
    async def fails() -> None:
        raise ValueError("as asked")

    return pool


@contextlib.asynccontextmanager
async def client_with(*hooks: Hook) -> AsyncIterator[Client]:
    running = cluster(make_pool())
    async with running, Client(running.hub.connect("hooked"), names=running.names, middleware=hooks) as client:
        yield client


class Noting:
    """A hook of every kind that says what passes."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name = name
        self.seen = seen

    async def call(self, request: ClientRequest, call_next: CallNext) -> Any:
        self.seen.append(f"{self.name} {request.kind} {request.target}")
        try:
            return await call_next(request)
        finally:
            self.seen.append(f"{self.name} over")

    async def stream(self, request: ClientRequest, call_next: StreamNext) -> AsyncGenerator[Any, None]:
        self.seen.append(f"{self.name} {request.kind}")
        try:
            async with contextlib.aclosing(call_next(request)) as items:
                async for item in items:
                    yield item
        finally:
            self.seen.append(f"{self.name} over")

    async def submit(self, request: ClientRequest, call_next: SubmitNext) -> Job:
        self.seen.append(f"{self.name} {request.kind}")
        return await call_next(request)


async def test_hooks_nest_in_their_order_around_calls_and_dispatches() -> None:
    seen: list[str] = []
    async with client_with(Noting("outer", seen), Noting("inner", seen)) as client:
        assert await client.call("images.double", 21) == 42
        assert seen == ["outer call images.double", "inner call images.double", "inner over", "outer over"]
        seen.clear()
        async with client.choose_worker("images") as selection:
            assert await client.dispatch(selection, "double", value=2) == 4
        assert seen[:2] == ["outer dispatch images.double", "inner dispatch images.double"]


async def test_a_hook_may_change_the_request_answer_itself_or_ask_again() -> None:
    async def changing(request: ClientRequest, call_next: CallNext) -> Any:
        if request.target == "images.cached":
            return "from the cache"
        if request.target == "images.fails":
            try:
                return await call_next(request)
            except TaskFailed:
                return await call_next(dataclasses.replace(request, target="images.double", kwargs={"value": 1}))
        return await call_next(dataclasses.replace(request, kwargs={"value": request.kwargs["value"] + 1}))

    async with client_with(changing) as client:
        assert await client.call("images.double", value=1) == 4
        assert await client.call("images.cached") == "from the cache"
        assert await client.options(timeout_s=5).call("images.fails") == 2


async def test_errors_and_cancellations_pass_through_hooks() -> None:
    seen: list[str] = []
    async with client_with(Noting("a", seen)) as client:
        with pytest.raises(InvalidArguments):
            await client.call("images.double", nothing=1)
        assert seen[-1] == "a over"

    waiting = asyncio.Event()

    async def slow(request: ClientRequest, call_next: CallNext) -> Any:
        waiting.set()
        await asyncio.sleep(3600)

    async with client_with(slow) as client:
        task = asyncio.ensure_future(client.call("images.double", 1))
        await waiting.wait()
        await cancel_and_wait(task)


async def test_streams_pass_through_hooks_and_leaving_early_closes_them() -> None:
    seen: list[str] = []
    async with client_with(Noting("outer", seen), Noting("inner", seen)) as client:
        assert [item async for item in client.stream("images.count", 5)] == [0, 1, 2, 3, 4]
        assert seen == ["outer stream", "inner stream", "inner over", "outer over"]
        async with contextlib.aclosing(client.stream("images.count", 5)) as items:
            async for _ in items:
                break
        assert seen[4:] == seen[:4]


async def test_submissions_pass_through_hooks_each_by_itself() -> None:
    seen: list[str] = []

    async def priority(request: ClientRequest, call_next: CallNext) -> Any:
        seen.append(f"{request.kind} {dict(request.kwargs)}")
        return await call_next(dataclasses.replace(request, kwargs={"value": 7}))

    async with client_with(priority, Noting("inner", seen)) as client:
        job = await client.submit("images.double", value=1)
        jobs = await client.options(idempotency_key="k").submit_many("images.double", [{"value": 2}, {"value": 3}])
        assert len({job.id, *(each.id for each in jobs)}) == 3
        assert sorted(seen) == [
            "inner submit",
            "inner submit",
            "inner submit",
            "submit {'value': 1}",
            "submit {'value': 2}",
            "submit {'value': 3}",
        ]
        again = await client.options(idempotency_key="k").submit_many("images.double", [{"value": 2}, {"value": 3}])
        assert [each.id for each in again] == [each.id for each in jobs]


async def test_options_of_a_client_reach_its_hooks_and_copies_share_them() -> None:
    keys: list[Any] = []

    async def noting(request: ClientRequest, call_next: CallNext) -> Any:
        keys.append(request.options.key)
        return await call_next(request)

    async with client_with(noting) as client:
        await client.call("images.double", 1)
        await client.options(key="user-7").call("images.double", 1)
    assert keys == [None, "user-7"]


@in_rows("wrong", [None, 7, "timed", lambda request, call_next: None, Noting, object()])
def test_what_is_no_hook_is_refused_when_it_is_given(wrong: Any) -> None:
    with pytest.raises(InvalidSettings, match="is not middleware"):
        HookChain([wrong])


def test_an_object_that_can_be_awaited_like_a_function_will_do() -> None:
    class Callable_:  # noqa: N801
        async def __call__(self, request: ClientRequest, call_next: CallNext) -> Any:
            return await call_next(request)

    hooks: Sequence[Hook] = [Callable_()]
    chain = HookChain(hooks)
    assert (len(chain.calls), len(chain.streams), len(chain.submits)) == (1, 0, 1)
    assert repr(chain) == "HookChain(calls=1, streams=0, submits=1)"
