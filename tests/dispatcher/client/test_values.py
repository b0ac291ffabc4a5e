"""What is sent arrives as it was, or is refused before it is sent."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pydantic.dataclasses
import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretBytes, SecretStr
from pydantic.alias_generators import to_camel

from gangline.schemas.errors.base import GanglineError, InvalidArguments, InvalidResult
from gangline.testing import cluster
from gangline.worker.pool.pool import Pool

pool = Pool("app", slots=20)


class Inner(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)
    some_number: int = 0


class Order(BaseModel):
    unit_price: int = Field(0, alias="price")
    written: int = Field(0, serialization_alias="written_as")
    read: int = Field(0, validation_alias=AliasChoices("read_as", "read_also"))
    inner: Inner = Inner()
    listed: list[Inner] = []


class Login(BaseModel):
    user: str
    password: SecretStr


@pydantic.dataclasses.dataclass
class Bin:
    width: int = Field(0, alias="w")


def order() -> Order:
    inner = Inner(someNumber=4)  # type: ignore[call-arg]
    return Order.model_validate({"price": 1, "read_as": 3, "inner": inner, "listed": [inner]}).model_copy(
        update={"written": 2}
    )


@pool.task
async def make() -> Order:
    return order()


@pool.task
async def make_many() -> dict[str, list[Order]]:
    return {"a": [order()]}


@pool.task
async def make_items() -> AsyncIterator[Order]:
    yield order()


@pool.task
async def take(value: Inner) -> Inner:
    return value


@pool.task
async def take_bin(value: Bin) -> int:
    return value.width


@pool.task
async def binary() -> bytes:
    return b"\x00\xff"


@pool.task
async def untyped() -> Any:
    return {"a": [b"\xff", float("inf")], (1): 2}


@pool.task
async def binary_items() -> AsyncIterator[bytes]:
    yield b"\x00\xff"


@pool.task
async def secret() -> SecretStr:
    return SecretStr("hunter2")


@pool.task
async def login() -> Any:
    return [Login(user="a", password=SecretStr("hunter2"))]


@pool.task
async def anything(value: Any = None) -> Any:
    return value


async def test_models_with_aliases_are_typed_results_of_calls_streams_and_jobs() -> None:
    async with cluster(pool, dispatcher=True) as client:
        assert await client.call(make) == order()
        assert await client.call(make_many) == {"a": [order()]}
        assert [item async for item in client.stream(make_items)] == [order()]
        assert await (await client.submit(make)).result() == order()
        job = await client.submit(make_items)
        assert [item async for item in job.items()] == [order()]
        value = Inner(someNumber=7)  # type: ignore[call-arg]
        assert await client.call(take, value) == value
        assert await client.call(take_bin, Bin(w=3)) == 3  # type: ignore[call-arg]


async def test_a_job_has_the_result_that_a_call_has() -> None:
    async with cluster(pool, dispatcher=True) as client:
        for task in ("app.binary", "app.untyped"):
            assert await (await client.submit(task)).result() == await client.call(task)
        job = await client.submit("app.binary_items")
        assert [item async for item in job.items()] == [b"\x00\xff"]


@dataclasses.dataclass
class Holder:
    secret: SecretBytes


@pytest.mark.parametrize(
    "value",
    [
        SecretStr("a"),
        [SecretBytes(b"a")],
        {"a": Login(user="a", password=SecretStr("b"))},
        Holder(SecretBytes(b"a")),
        {SecretStr("a"): 1},
    ],
    ids=["text", "bytes", "model", "dataclass", "key"],
)
async def test_secrets_are_refused_with_what_to_do(value: Any) -> None:
    async with cluster(pool) as client:
        for send in (client.call, client.submit):
            with pytest.raises(InvalidArguments, match="get_secret_value"):
                await send("app.anything", value)
        for task in ("app.secret", "app.login"):
            with pytest.raises(InvalidResult, match="get_secret_value"):
                await client.call(task)


# -- wrong types of parameters -----------------------------------------------------------------------------------------


async def test_wrong_types_of_parameters_are_errors_of_ours() -> None:
    async with cluster(pool) as client:
        odd: Any = client
        ways: list[Any] = [
            *(lambda target=target: odd.call(target) for target in (5, None, b"app.make", "\ud800.a", ["app.make"])),
            *(lambda key=key: odd.options(key=key).call("app.make") for key in (5, b"k", "\ud800")),
            *(lambda key=key: odd.options(key=key).submit("app.make") for key in (5, b"k", "\ud800", "")),
            lambda: odd.options(model=5).call("app.make"),
            lambda: odd.options(labels=5).call("app.make"),
            lambda: odd.options(labels={"a": 5}).call("app.make"),
            lambda: odd.options(pool=5).call("app.make"),
            lambda: odd.options(idempotency_key=5).submit("app.make"),
            lambda: odd.options(idempotency_key="\ud800").submit("app.make"),
            lambda: odd.options(deadline_s="5").call("app.make"),
            lambda: odd.options(timeout_s="5").call("app.make"),
            lambda: odd.submit_many("app.make", [[1], [2]]),
            lambda: odd.submit_many("app.make", [5]),
            lambda: odd.submit_many("app.make", 5),
            lambda: odd.submit_many("app.make", [{5: 1}]),
            lambda: odd.submit(5),
            lambda: odd.stream(5).__anext__(),
            lambda: odd.lease(5).__aenter__(),
            lambda: odd.lease("app", slots="2").__aenter__(),
            lambda: odd.choose_worker(5).__aenter__(),
        ]
        for number, way in enumerate(ways):
            try:
                await way()
            except GanglineError:
                continue
            except Exception as error:
                raise AssertionError(f"way {number}: {error!r}") from error
            raise AssertionError(f"way {number} was taken")
