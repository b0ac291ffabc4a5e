"""Arguments that a worker could not read are refused before they are sent; whatever it cannot read ends at once."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from pydantic import BaseModel, ConfigDict

from gangline.dispatcher.client.client import Client
from gangline.schemas.errors.base import DoNotRetry, InvalidArguments, MalformedMessage, TaskFailed
from gangline.schemas.wire import codec, frames
from gangline.schemas.wire.frames import AnswerOp, RequestOp, TaskState
from gangline.testing import cluster
from gangline.worker.pool.pool import Pool

from ...support.dispatcher.fakes import FakeWorker, Rig, obedient, silent

pool = Pool("app", slots=20)


@pool.task
async def take(value: Any = None, **more: Any) -> Any:
    return value


@pool.task
async def items(value: Any = None) -> Any:
    yield value


@pool.task
async def fail() -> None:
    raise DoNotRetry("no", details={(1, 2): "a"})


@dataclasses.dataclass(frozen=True)
class Point:
    x: int


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    x: int


class ByPoint(BaseModel):
    values: dict[tuple[int, int], str]


def ring() -> list[Any]:
    values: list[Any] = []
    values.append(values)
    return values


UNREADABLE: dict[str, Any] = {
    "tuple key": {(1, 2): "a"},
    "frozenset key": {frozenset((1,)): "a"},
    "dataclass key": {Point(1): "a"},
    "model key": {Frozen(x=1): "a"},
    "nested": {"a": [{"b": {(1,): 2}}]},
    "in a model": ByPoint(values={(1, 2): "a"}),
    "extension type": [msgpack.ExtType(5, b"a")],
    "timestamp": msgpack.Timestamp(1 << 60),
    "65 bits": [1 << 64],
    "half a surrogate pair": "\ud800",
    "as a key": {"\ud800": 1},
    "a ring": ring(),
    "deep": __import__("functools").reduce(lambda value, _: [value], range(70), 1),
    "generator": (number for number in range(3)),
    "iterator": iter([1]),
    "object": object(),
}


@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_an_argument_that_the_worker_cannot_read_is_refused_by_every_way_to_send_it(value: Any) -> None:
    async with cluster(pool) as client, client.lease("app") as lease:
        ways: list[Callable[[], Any]] = [
            lambda: client.call("app.take", value),
            lambda: client.call("app.take", more=value),
            lambda: client.options(key="k", timeout_s=5.0).call("app.take", value),
            lambda: collect(client, value),
            lambda: lease.call("take", value),
            lambda: client.submit("app.take", value),
        ]
        for number, way in enumerate(ways):
            with pytest.raises(InvalidArguments, match=r"take|items") as raised:
                await way()
            assert "argument 1" in raised.value.message or "argument 'more'" in raised.value.message, number
            assert not raised.value.may_have_started
        async with client.choose_worker("app") as selection:
            with pytest.raises(InvalidArguments):
                await client.dispatch(selection, "take", value)


async def collect(client: Client, value: Any) -> list[Any]:
    return [item async for item in client.stream("app.items", value)]


async def test_the_error_names_the_argument_and_the_key() -> None:
    async with cluster(pool) as client:
        with pytest.raises(InvalidArguments, match=r"argument 1\.a\[0\] has a key of the type tuple.*\(1, 2\)"):
            await client.call("app.take", {"a": [{(1, 2): 3}]})


async def test_neighbours_of_a_frame_that_cannot_be_read_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a client that does not check, or another program."""
    monkeypatch.setattr("gangline.dispatcher.transport.channel._pack_task", codec.pack)
    async with cluster(pool) as client:
        await client.call("app.take", 0)
        async with asyncio.timeout(1):
            outcomes = await asyncio.gather(
                *(client.call("app.take", number) for number in range(5)),
                client.call("app.take", {(1, 2): "a"}),
                *(client.call("app.take", number) for number in range(5)),
                return_exceptions=True,
            )
    (refused,) = (one for one in outcomes if isinstance(one, BaseException))
    assert isinstance(refused, MalformedMessage)
    assert [one for one in outcomes if one is not refused] == [*range(5), *range(5)]


async def test_an_error_whose_details_cannot_be_read_arrives_without_them() -> None:
    async with cluster(pool) as client:
        with pytest.raises(TaskFailed, match="no"):
            await client.options(timeout_s=5.0).call("app.fail")


# -- refusals that do not say what they refuse -------------------------------------------------------------------------


def refuse(worker: FakeWorker, check: str = "") -> None:
    fields = {"Nats-Service-Error": "not readable", "Nats-Service-Error-Code": "400"}
    body = codec.to_json({"code": "malformed_message", "message": "not readable"})
    worker.bus.publish(worker.replies[-1] + check, body, headers=fields)


async def test_a_refused_message_ends_what_the_worker_has_not_seen_at_once(rig: Rig) -> None:
    worker = await rig.worker(behave=silent, slots=100)
    calls = [asyncio.ensure_future(rig.client.call("images.echo", number)) for number in range(3)]
    (known, *others) = [frame[1] for frame in await worker.hears(RequestOp.TASK, 3)]

    def behave(worker: FakeWorker, frame: frames.Frame) -> Any:
        if frame[0] != RequestOp.CHECK:
            return obedient(worker, frame)
        states = [TaskState.RUNNING if task == known else TaskState.UNKNOWN for task in frame[2]]
        return [(AnswerOp.CHECKED, frame[1], list(map(int, states)))]

    worker.behave = behave
    reply = worker.replies[-1]
    refuse(worker)
    async with asyncio.timeout(0.5):
        for call in calls[1:]:
            with pytest.raises(MalformedMessage, match="not readable"):
                await call
    worker.answer((AnswerOp.OK, known, "done"), reply=reply)
    assert await calls[0] == "done"


async def test_a_worker_that_refuses_even_the_question_ends_everything_sent_to_it(rig: Rig) -> None:
    worker = await rig.worker(behave=silent, slots=100)
    call = asyncio.ensure_future(rig.client.call("images.echo"))
    lease = asyncio.ensure_future(rig.client.lease("images").__aenter__())
    await worker.hears(RequestOp.TASK)
    await worker.hears(RequestOp.RESERVE)
    refuse(worker)
    await worker.hears(RequestOp.CHECK)
    refuse(worker)
    async with asyncio.timeout(0.5):
        for waiting in (call, lease):
            with pytest.raises(MalformedMessage, match="not readable"):
                await waiting


async def test_an_answer_that_cannot_be_read_ends_its_request_and_no_other(rig: Rig) -> None:
    worker = await rig.worker(behave=silent, slots=100)
    calls = [asyncio.ensure_future(rig.client.call("images.echo", number)) for number in range(2)]
    first, second = [frame[1] for frame in await worker.hears(RequestOp.TASK, 2)]
    worker.answer((AnswerOp.OK, first, {(1, 2): 3}), (AnswerOp.OK, second, "fine"))
    async with asyncio.timeout(0.5):
        assert await calls[1] == "fine"
        with pytest.raises(Exception, match="cannot be read") as raised:
            await calls[0]
    assert raised.value.may_have_started  # type: ignore[attr-defined]
