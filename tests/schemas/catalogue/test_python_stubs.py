"""Modules of typed handles, made of the schemas of tasks."""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import date, datetime
from typing import Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from gangline.errors import NoWorkers
from gangline.schemas.catalogue.python_stubs import python_stubs
from gangline.schemas.catalogue.task_schemas import TaskSchema
from gangline.schemas.records.workers import MethodInfo
from gangline.testing import cluster
from gangline.worker.pool.pool import Pool

from ...support.rows import case

Day = date

pool = Pool("shop", slots=4)


class Part(BaseModel):
    """A part of an order."""

    name: str
    parts: list[Part] = Field(default_factory=list)


class Order(BaseModel):
    id: int
    at: datetime
    date: Day | None = None
    of: dict[str, Part] = Field(default_factory=dict)
    key: UUID | None = Field(default=None, alias="the-key")


@pool.task
async def place(
    order: Order, count: int = 1, *, note: str | None = None, image: bytes = b"x", size: Literal["s", "l"] = "s"
) -> Order:
    """Place an order. Say "please"."""
    return order


@pool.task(name="sum-up")
def sum_up(*numbers: float, **named: int) -> float:
    return sum(numbers) + sum(named.values())


@pool.task
async def parts(to: int) -> AsyncIterator[Part]:
    for number in range(to):
        yield Part(name=str(number))


@pool.task(name="list")
async def listed(where: tuple[int, str], when: datetime) -> list[dict[str, Any]]:
    return [{"where": where[1], "year": when.year}]


@pool.task
async def untyped(a, b=2):  # noqa: ANN001, ANN201
    return [a, b]


@pool.task
async def nothing() -> None: ...


PROGRAM = """
from datetime import UTC, date, datetime
from typing import Any, assert_type

import gangline
from shop_client import Order, OrderOutput, Part, list_, nothing, parts, place, sum_up, untyped


async def main(client: gangline.Client) -> list[Any]:
    order = Order(id=1, at=datetime(2026, 5, 1, tzinfo=UTC), date=date(2026, 5, 1))
    placed = await client.call(place, order, 2, note="a", image=b"1")
    assert_type(placed, OrderOutput)
    assert placed["at"] == datetime(2026, 5, 1, tzinfo=UTC) and placed["date"] == date(2026, 5, 1)
    total = await client.call(sum_up, 1.5, 2, three=3)
    assert_type(total, float)
    found = [item["name"] async for item in client.stream(parts, to=2)]
    assert_type(found, list[str])
    assert_type(await client.call(list_, (1, "a"), datetime(2026, 5, 1)), list[dict[str, Any]])
    assert_type(await client.call(nothing), None)
    assert_type(await (await client.submit(sum_up, 1.0)).result(), float)
    return [placed["id"], total, found, await client.call(list_, (1, "a"), datetime(2026, 5, 1)),
            await client.call(untyped, 1)]
"""
WRONG = """
import gangline
from shop_client import place, sum_up


async def main(client: gangline.Client) -> None:
    await client.call(place, order=5)  # wrong
    await client.call(place, size="xl", order={})  # wrong
    await client.call(sum_up, "a")  # wrong
"""


async def source() -> str:
    async with cluster(pool) as client:
        return python_stubs((await client.schemas("shop")).values(), about="Tasks of the shop.")


@pytest.mark.long
async def test_the_module_passes_type_checkers_and_works_when_run(tmp_path):
    (tmp_path / "shop_client.py").write_text(await source())
    (tmp_path / "right.py").write_text(PROGRAM)
    (tmp_path / "wrong.py").write_text(WRONG)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir=/dev/null", "."]
    run = functools.partial(subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, check=False)
    told = (await asyncio.to_thread(run)).stdout
    wrong = [number for number, line in enumerate(WRONG.splitlines(), 1) if "# wrong" in line]
    assert {line.partition(": error")[0] for line in told.splitlines() if ": error" in line} == {
        f"wrong.py:{number}" for number in wrong
    }, told
    sys.path.insert(0, str(tmp_path))
    try:
        import right  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(tmp_path))
    try:
        async with cluster(pool, dispatcher=True) as client:
            assert await right.main(client) == [1, 6.5, ["0", "1"], [{"where": "a", "year": 2026}], [1, 2]]
    finally:
        del sys.modules["right"], sys.modules["shop_client"]


async def test_what_a_function_says_is_what_the_task_says():
    text = await source()
    assert '@gangline.remote("shop.sum-up")\nasync def sum_up(*args: float, **kwargs: int) -> float:' in text
    assert "    count: int = 1,\n    *,\n    note: str | None = None,\n    image: bytes = _DEFAULT,\n" in text
    assert "    size: Literal['s', 'l'] = 's',\n) -> OrderOutput:" in text
    assert 'Place an order. Say "please".' in text
    assert "def parts(to: int) -> AsyncIterator[Part]:" in text
    assert "async def list_(where: tuple[int, str], when: _datetime.datetime)" in text
    assert '"""A part of an order."""' in text


def compiled(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    exec(compile(text, "client.py", "exec"), found)  # noqa: S102
    return found


def test_a_task_without_a_schema_takes_and_returns_anything():
    text = python_stubs([TaskSchema(pool="p", method="m", info=MethodInfo())])
    assert "async def m(*args: Any, **kwargs: Any) -> Any:" in text
    assert "m" in compiled(text)
    text = python_stubs([TaskSchema(pool="p", method="m", info=MethodInfo(streams=True))])
    assert "def m(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:" in text
    assert "m" in compiled(text)


def test_schemas_that_pydantic_does_not_write_have_types_too():
    cases = [
        ({"type": ["integer", "null"]}, "int | None"),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, "str | None"),
        ({"anyOf": [{}, {"type": "string"}]}, "Any"),
        ({"allOf": [{"$ref": "#/$defs/Number"}]}, "float"),
        ({"$ref": "#/$defs/Loop"}, "list[Any]"),
        ({"$ref": "#/$defs/Nowhere"}, "Any"),
        ({"const": "a"}, "Literal['a']"),
        ({"enum": [1.5]}, "Any"),
        ({"type": "array"}, "list[Any]"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "dict[str, int]"),
        ({"type": "object"}, "dict[str, Any]"),
        ({"type": "strange"}, "Any"),
        (True, "Any"),
    ]
    for schema, kind in cases:
        with case(schema, kind):
            body = {
                "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
                "result": schema,
                "$defs": {"Number": {"type": "number"}, "Loop": {"type": "array", "items": {"$ref": "#/$defs/Loop"}}},
            }
            text = python_stubs(
                [TaskSchema(pool="p", method="m", info=MethodInfo(), body=json.loads(json.dumps(body)))]
            )
            assert f"async def m() -> {kind}:" in text
            compiled(text)


def test_names_that_python_does_not_allow_are_written_otherwise():
    properties = {
        "from": {"type": "integer"},
        "ok": {"type": "object", "properties": {"a-b": {"type": "integer"}, "str": {}}},
    }
    parameters = {"type": "object", "properties": properties, "required": ["from", "ok"]}
    body = {"parameters": {**parameters, "additionalProperties": False}, "result": {"type": "null"}}
    tasks = [
        TaskSchema(pool=pool, method=name, info=MethodInfo(), body=body) for pool in "ab" for name in ("class", "1")
    ]
    text = python_stubs(tasks)
    assert "async def class_(*, ok: Ok, **kwargs: Any) -> None:" in text
    assert "async def _1(" in text and "async def class_2(" in text
    assert "'a-b': 'NotRequired[int]'" in text
    assert "class_2" in compiled(text)


def test_a_description_cannot_end_the_docstring():
    info = MethodInfo(description='""" + print("x") + """\\')
    text = python_stubs([TaskSchema(pool="p", method="m", info=info)])
    assert "m" in compiled(text)


async def test_a_pool_without_workers_has_no_schemas():
    async with cluster(pool) as client:
        with pytest.raises(NoWorkers, match="'other' has no workers"):
            await client.schemas("other")
