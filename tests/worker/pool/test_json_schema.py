"""The JSON Schema of a task."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import AsyncIterator
from typing import Annotated, Any

from pydantic import BaseModel, Field

import gangline
from gangline.schemas.catalogue.task_schemas import schema_hash, schema_text
from gangline.schemas.limits import MAX_SCHEMA_BYTES
from gangline.worker.pool.pool import Pool

pool = Pool("shop", slots=2)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Part(BaseModel):
    name: str
    parts: list[Part] = Field(default_factory=list)


class Order(BaseModel):
    id: int
    colour: Colour = Colour.RED
    part: Part | None = None


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


class Database: ...


@pool.task
async def place(
    order: Order,
    count: Annotated[int, Field(ge=1)] = 1,
    *,
    image: bytes = b"\xff",
    db: Database = gangline.resource(),
    at: Point | None = None,
) -> Order:
    """Place an order."""
    return order


@pool.task
async def points(to, *rest: int, **named: str) -> AsyncIterator[Point]:  # noqa: ANN001
    yield Point(0)


@pool.task
async def nothing() -> None: ...


class Odd:
    """Has no schema, but a validator."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(lambda value: value)


@pool.task
async def odd(value: Odd, limit: float = float("inf")) -> Odd:
    return value


def body(name: str) -> dict[str, Any]:
    task = pool.tasks[name]
    task.prepare()
    assert task.schema is not None
    return task.schema.body


def test_parameters_are_named_with_their_types_defaults_and_order():
    parameters = body("place")["parameters"]
    assert list(parameters["properties"]) == ["order", "count", "image", "at"]
    assert parameters["properties"]["count"] == {"default": 1, "minimum": 1, "type": "integer"}
    assert parameters["properties"]["order"] == {"$ref": "#/$defs/Order"}
    assert parameters["properties"]["image"] == {"type": "string", "contentEncoding": "base64", "default": "/w=="}
    assert parameters["required"] == ["order"]
    assert parameters["additionalProperties"] is False
    assert parameters["x-positional"] == ["order", "count"]


def test_models_are_shared_definitions_and_the_result_is_one_of_them():
    found = body("place")
    # What callers may leave out, a result has.
    assert set(found["$defs"]) == {"Colour", "Order", "Order-Output", "Part", "Part-Output", "Point"}
    assert found["$defs"]["Order-Output"]["required"] == ["id", "colour", "part"]
    assert found["$defs"]["Order"]["required"] == ["id"]
    assert found["result"] == {"$ref": "#/$defs/Order-Output"}
    assert "items" not in found


def test_a_task_that_yields_has_the_schema_of_its_items():
    found = body("points")
    assert found["items"] == {"$ref": "#/$defs/Point"}
    assert found["$defs"]["Point"]["required"] == ["x", "y"]
    assert "result" not in found
    assert found["parameters"]["properties"] == {"to": {}}
    assert found["parameters"]["x-rest"] == {"type": "integer"}
    assert found["parameters"]["additionalProperties"] == {"type": "string"}


def test_no_parameters_and_no_result():
    assert body("nothing") == {
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        "result": {"type": "null"},
    }


def test_what_has_no_schema_may_be_anything():
    assert body("odd") == {
        "parameters": {
            "type": "object",
            "properties": {"value": {}, "limit": {"type": "number"}},
            "additionalProperties": False,
            "required": ["value"],
            "x-positional": ["value", "limit"],
        },
        "result": {},
    }


def test_the_hash_names_the_content_and_is_in_the_registration():
    task = pool.tasks["place"]
    assert task.schema is not None
    assert task.info().schema_hash == task.schema.hash == schema_hash(schema_text(task.schema.body))
    assert len(task.schema.hash) == 32
    assert pool.tasks["points"].info().schema_hash != task.schema.hash


def test_a_schema_that_is_too_large_is_not_offered():
    large = Pool("large")
    many = enum.Enum("Many", {f"name_{number}": "x" * 50 + str(number) for number in range(MAX_SCHEMA_BYTES // 50)})

    async def take(value: Any) -> None: ...

    take.__annotations__["value"] = many
    large.task(take)
    task = large.tasks["take"]
    task.prepare()
    assert task.schema is None
    assert task.info().schema_hash == ""
