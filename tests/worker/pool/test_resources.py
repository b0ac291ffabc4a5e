"""Resources of a worker's lifespans as parameters of tasks."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from gangline.schemas.errors.base import InvalidArguments, InvalidSettings
from gangline.schemas.wire.frames import AnswerOp
from gangline.worker.pool.pool import Pool
from gangline.worker.pool.signature import Resource

from ...support.worker.harness import running
from ...support.worker.rig import Rig, task

MODULES = str(Path(__file__).resolve().parents[2] / "support" / "modules")


class Database:
    name = "db"


class Cache:
    name = "cache"


@pytest.fixture
def pool() -> Pool:
    pool = Pool("images", slots=4)

    @pool.lifespan
    async def database() -> AsyncIterator[Database]:
        yield Database()

    @pool.lifespan
    def cache() -> Iterator[Cache]:
        yield Cache()

    return pool


async def test_a_marked_parameter_is_filled_in_wherever_it_stands_and_wherever_the_task_runs(pool: Pool):

    @pool.task
    async def last(path: str, db: Annotated[Database, Resource]) -> list[str]:
        return [path, db.name]

    @pool.task
    def first(db: Annotated[Database, Resource()], path: str, cache: Annotated[Cache, Resource], width: int = 3) -> Any:
        return [db.name, path, cache.name, width]

    @pool.task
    async def named(*paths: str, db: Annotated[Database, Resource], **more: int) -> AsyncIterator[Any]:
        yield [*paths, db.name, more]

    @pool.task
    def alone(db: Annotated[Database, Resource]) -> Iterator[str]:
        yield db.name

    async with running(pool) as harness:
        assert await harness.value("last", path="a") == ["a", "db"]
        assert await harness.value("first", path="a") == ["db", "a", "cache", 3]
        assert await harness.value("first", path="a", width=5) == ["db", "a", "cache", 5]
        assert await harness.value("named", x=1) == [["db", {"x": 1}]]
        assert await harness.value("alone") == ["db"]


async def test_callers_give_the_other_arguments_by_place_as_if_it_were_not_there():
    rig = Rig()
    pool = rig.worker.pool

    @pool.lifespan
    async def database() -> AsyncIterator[Database]:
        yield Database()

    @pool.task
    async def store(a: int, db: Annotated[Database, Resource], b: int = 2, *rest: int) -> list[Any]:
        return [a, db.name, b, *rest]

    async with rig:
        assert await rig.hand.ask(*task(1, "store", [1, 5, 6])) == [AnswerOp.OK, 1, [1, "db", 5, 6]]
        assert await rig.hand.ask(*task(2, "store", [1])) == [AnswerOp.OK, 2, [1, "db", 2]]
        assert await rig.hand.ask(*task(3, "store", [1], kwargs={"b": 9})) == [AnswerOp.OK, 3, [1, "db", 9]]


async def test_no_caller_can_give_it_or_sees_it(pool: Pool):

    @pool.task
    async def store(path: str, db: Annotated[Database, Resource]) -> None: ...

    async with running(pool):
        with pytest.raises(InvalidArguments, match="no parameter 'db'; it has: path$"):
            pool.find("store").bind(None, {"path": "a", "db": {}})
        with pytest.raises(InvalidArguments, match="takes 1 argument by place, 2 were given"):
            pool.find("store").bind(["a", {}], None)


async def test_a_worker_whose_lifespans_yield_no_such_thing_does_not_start():
    pool, closed = Pool("images"), []

    @pool.lifespan
    async def cache() -> AsyncIterator[Cache]:
        yield Cache()
        closed.append(True)

    @pool.task
    async def store(db: Annotated[Database, Resource]) -> None: ...

    with pytest.raises(
        InvalidSettings, match="images.store: parameter 'db': no @pool.lifespan of 'images' yields a Database"
    ):
        async with running(pool):
            pass
    assert closed == [True]


def test_what_cannot_be_filled_in_is_refused_where_it_is_declared(pool: Pool):
    with pytest.raises(InvalidSettings, match="asked for by its class"):

        @pool.task(name="union")
        async def union(db: Annotated[Database | None, Resource]) -> None: ...

    with pytest.raises(InvalidSettings, match="cannot be filled in"):

        @pool.task(name="rest")
        async def rest(*db: Annotated[Database, Resource]) -> None: ...

    with pytest.raises(InvalidSettings, match="cannot be filled in"):

        @pool.task(name="unnamed")
        async def unnamed(db: Annotated[Database, Resource], /) -> None: ...


def test_other_annotations_are_left_alone(pool: Pool):

    @pool.task
    async def plain(width: Annotated[int, "pixels"]) -> int:
        return width

    assert pool.find("plain").bind(["7"], None).args == [7]
    assert pool.find("plain").signature.filled == ()


@pytest.mark.processes
async def test_a_child_process_fills_in_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(MODULES)
    import job_samples  # type: ignore[import-not-found]

    async with running(job_samples.pool) as harness:
        task_pid, resource_pid, text = await harness.value("whose", text="x")
        assert task_pid == resource_pid != os.getpid()
        assert text == "x"
