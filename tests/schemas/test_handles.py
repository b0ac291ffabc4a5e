"""Tasks named by their functions."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from pydantic import BaseModel, ConfigDict

import gangline
from gangline.schemas.errors import base as errors
from gangline.schemas.handles import ResultDecoder, handle, name_of, remote, task_of
from gangline.testing import cluster
from gangline.worker.pool.pool import Pool

pool = Pool("shop", slots=4)
other = Pool("branch", slots=2)
third = Pool("mirror", slots=2)


class Order(BaseModel):
    id: int
    at: datetime
    note: str = ""


class StrictOrder(BaseModel):
    model_config = ConfigDict(strict=True)
    at: datetime


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Database:
    """A resource."""

    def name(self) -> str:
        return "db"


@pool.lifespan
async def database() -> AsyncIterator[Database]:
    yield Database()


NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pool.task
async def place(id: int) -> Order:
    return Order(id=id, at=NOON)


@pool.task
async def strict() -> StrictOrder:
    return StrictOrder(at=NOON)


@pool.task
async def points(to: int) -> AsyncIterator[Point]:
    for number in range(to):
        yield Point(number, -number)


@pool.task
def pair(a: int, b: bytes) -> tuple[int, bytes]:
    return a, b


@pool.task
async def untyped(a):  # noqa: ANN001, ANN201
    return {"a": a}


@pool.task
async def rank_of(where: str) -> Point:
    return Point(len(where), 0)


@pool.task
async def stored(name: str, db: Database = gangline.resource(), times: int = 1) -> str:
    return f"{name} in {db.name()}" * times


@other.task
@third.task
async def shared() -> int:
    return 1


@other.task(name="one")
@other.task(name="two")
async def twice() -> int:
    return 2


async def nothing() -> None: ...


async def test_a_call_by_function_returns_what_its_annotation_says():
    async with cluster(pool) as client:
        assert await client.call(place, id=3) == Order(id=3, at=NOON)
        assert await client.call(place, 3) == Order(id=3, at=NOON)
        assert await client.call(strict) == StrictOrder(at=NOON)
        assert await client.call(pair, 1, b=b"x") == (1, b"x")
        assert await client.call(untyped, 1) == {"a": 1}
        assert await client.call(points, to=2) == [Point(0, 0), Point(1, -1)]


async def test_streams_leases_and_selections_take_functions():
    async with cluster(pool) as client:
        assert [item async for item in client.stream(points, to=2)] == [Point(0, 0), Point(1, -1)]
        async with client.lease(place, slots=2) as lease:
            assert await lease.call(place, id=1) == Order(id=1, at=NOON)
            assert [item async for item in lease.stream(points, to=1)] == [Point(0, 0)]
        async with client.choose_worker(place) as selection:
            assert await client.dispatch(selection, place, id=1) == Order(id=1, at=NOON)
        async with client.choose_worker(points) as selection:
            assert [item async for item in client.stream(selection, points, to=1)] == [Point(0, 0)]


async def test_a_submitted_function_has_a_typed_result():
    async with cluster(pool, dispatcher=True) as client:
        job = await client.submit(place, id=4)
        assert await job.result() == Order(id=4, at=NOON)
        assert await client.job(job.id).of(place).result() == Order(id=4, at=NOON)
        assert (await client.job(job.id).result())["id"] == 4
        jobs = await client.submit_many(pair, [{"a": 1, "b": b"1"}, {"a": 2, "b": b"2"}])
        assert [await each.result() for each in jobs] == [(1, b"1"), (2, b"2")]
        items = await client.submit(points, to=2)
        assert [item async for item in items.items()] == [Point(0, 0), Point(1, -1)]
        assert await items.result() is None


async def test_gangs_run_functions_on_all_ranks():
    async with cluster(pool, workers=2, coordinator=True) as client, client.gang(pool="shop", size=2) as gang:
        await gang.ready()
        assert await gang.run(rank_of, "abc") == [Point(3, 0), Point(3, 0)]
        assert await gang.run_each(rank_of, [("a",), ("bb",)]) == [Point(1, 0), Point(2, 0)]
        assert await gang.call(1, rank_of, where="a") == Point(1, 0)
        assert [item async for item in gang.stream(0, points, to=1)] == [Point(0, 0)]
        with pytest.raises(errors.GangFailed) as caught:
            await gang.run(handle(shared, "branch"))
        assert isinstance(caught.value.__cause__, errors.WrongPool)
        with pytest.raises(errors.UnknownMethod):  # of several pools: each rank runs that of its own
            await gang.call(0, shared)


async def test_a_resource_with_a_default_is_filled_in_by_the_worker():
    async with cluster(pool) as client:
        assert await client.call(stored, name="a") == "a in db"
        assert await client.call(stored, "a", times=2) == "a in dba in db"
        assert await client.call("shop.stored", "a") == "a in db"


async def test_a_resource_that_nobody_passed_says_so():
    with pytest.raises(AttributeError, match="this resource was not passed"):
        await stored("a")
    assert await stored("a", Database()) == "a in db"


def test_a_resource_needs_a_class():
    bad = Pool("bad")
    with pytest.raises(errors.InvalidSettings, match="asked for by its class"):

        @bad.task
        async def store(name: str, db=gangline.resource()) -> None: ...  # noqa: ANN001


async def test_a_function_that_is_no_task_is_refused_before_sending():
    async with cluster(pool) as client:
        for target in (nothing, 5, None):
            with pytest.raises(errors.InvalidRequest, match="is not a task"):
                await client.call(target)
        with pytest.raises(errors.InvalidRequest, match="nothing is not a task"):
            client.lease(nothing)


async def test_a_function_of_several_pools_has_to_say_which():
    async with cluster(other, third) as client:
        with pytest.raises(
            errors.InvalidRequest, match=r"several pools \(mirror, branch\).*handle\(shared, 'mirror'\)"
        ):
            await client.call(shared)
        assert await client.call(handle(shared, other)) == 1
        assert await client.call(handle(shared, "mirror")) == 1
        async with client.lease("branch") as lease:
            assert await lease.call(shared) == 1  # a lease has a pool


def test_a_function_with_two_names_in_one_pool_has_to_say_which():
    with pytest.raises(errors.InvalidRequest, match=r"two tasks of one pool.*'branch.one' or branch.two"):
        name_of(twice)
    assert name_of(handle(twice, "branch.two")) == "branch.two"


def test_a_handle_names_another_endpoint_and_is_still_the_function():
    thumbs = handle(pair, "thumbs")
    assert name_of(thumbs) == "thumbs.pair"
    assert thumbs(1, b"x") == (1, b"x")
    assert repr(thumbs) == "handle(pair, 'thumbs.pair')"
    assert task_of(thumbs).decode([1, b"x"]) == (1, b"x")
    with pytest.raises(errors.InvalidName):
        handle(pair, "not a name")
    with pytest.raises(errors.InvalidRequest):
        handle(nothing, "thumbs")


async def test_a_remote_task_is_called_by_its_declared_signature():
    @remote("shop.place")
    async def order(id: int) -> Order:
        raise NotImplementedError

    @remote("shop.points")
    def stream(to: int) -> AsyncIterator[Point]:
        raise NotImplementedError

    async with cluster(pool) as client:
        assert await client.call(order, id=1) == Order(id=1, at=NOON)
        assert [item async for item in client.stream(stream, to=1)] == [Point(0, 0)]
        assert await client.call(stream, to=1) == [Point(0, 0)]


def test_a_result_of_another_version_is_refused_with_its_place():
    decode = ResultDecoder(Order, "shop.place")
    with pytest.raises(errors.InvalidResult, match=r"shop.place: result.id is not what the function's annotation says"):
        decode({"id": "many", "at": "2026-05-01T12:00:00Z"})


async def test_text_of_a_subclass_is_still_a_name():
    class Name(str):
        __slots__ = ()

    async with cluster(pool, dispatcher=True) as client:
        assert (await client.call(Name("shop.place"), id=1))["id"] == 1
        assert (await (await client.submit(Name("shop.place"), id=1)).result())["id"] == 1
        assert [item async for item in client.stream(Name("shop.points"), to=1)] == [{"x": 0, "y": 0}]
        async with client.lease(Name("shop")) as lease:
            assert (await lease.call(Name("place"), id=1))["id"] == 1
