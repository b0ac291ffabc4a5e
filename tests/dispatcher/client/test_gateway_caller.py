"""Clients that call through gateways, with a gateway and a worker behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import gangline
from gangline import errors
from gangline.bus.memory.server import MemoryBus
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.gateway.gateway import Gateway, GatewaySettings, PlainRequest
from gangline.dispatcher.gateway.streams import IDLE_S, WAIT_S
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.schemas.wire import codec, headers
from gangline.testing import cluster
from gangline.worker.pool.pool import Pool

from ...support.rows import in_rows
from ...waiting import loop_time, until


class BehindGateway:
    """A worker, a gateway, and a client that calls through it."""

    def __init__(self, running: Any, gateway: Gateway, bus: MemoryBus, client: Client) -> None:
        self.hub = running.hub
        self.names = running.names
        self.gateway = gateway
        self.bus = bus
        self.client = client
        self.told: list[Any] = []

    async def ask(self, subject: str, body: Any = None, **fields: str) -> Any:
        """A plain request in JSON; an error is returned as its code."""
        given = {name.replace("_", "-"): text for name, text in fields.items()}
        answer = await self.bus.request(
            subject, b"" if body is None else codec.to_json(body), timeout_s=9, headers=given
        )
        value = codec.from_json(answer.data)
        return value["code"] if answer.headers and headers.ERROR in answer.headers else value


def make_pool(told: list[Any]) -> Pool:
    pool = Pool("images", slots=4)

    @pool.task
    async def double(value: Any) -> Any:
        return 2 * value

    @pool.task
    async def both(value: int, named: int) -> list[int]:
        return [value, named]

    @pool.task
    async def seen(key: str = "") -> list[Any]:
        task = gangline.current_task()
        return [task.key, task.deadline is not None]

    @pool.task
    async def count(to: int, each_s: float = 0.0) -> AsyncIterator[int]:
        try:
            for number in range(to):
                await asyncio.sleep(each_s)
                told.append(number)
                yield number
        finally:
            told.append("over")

    @pool.task
    async def pages(lengths: list[int]) -> AsyncIterator[str]:
        for length in lengths:
            yield "x" * length

    @pool.task
    async def breaks(after: int) -> AsyncIterator[int]:
        for number in range(after):
            yield number
        raise ValueError("as asked")

    @pool.task
    async def wait() -> None:
        told.append("waits")
        await asyncio.sleep(3600)

    return pool


@contextlib.asynccontextmanager
async def site(settings: RouterSettings | None = None, **gateway_settings: Any) -> AsyncIterator[BehindGateway]:
    told: list[Any] = []
    running = cluster(make_pool(told))
    async with running:
        hub, names = running.hub, running.names
        async with Gateway(
            hub.connect("gateway"), names=names, settings=GatewaySettings(**gateway_settings)
        ) as gateway:
            bus = hub.connect("shop")
            async with Client(bus, names=names, settings=settings, gateway=True) as client:
                made = BehindGateway(running, gateway, bus, client)
                made.told = told
                yield made


@pytest.fixture
async def made(opened: contextlib.AsyncExitStack) -> BehindGateway:
    return await opened.enter_async_context(site())


async def test_a_call_has_the_same_result_as_a_direct_one_and_the_same_errors(made: BehindGateway) -> None:
    for value in (2, b"\x00\xff", [1.5], "a"):
        assert await made.client.call("images.double", value) == 2 * value
    assert await made.client.call("images.double", value=3) == 6
    assert await made.client.options(key="k", timeout_s=9).call("images.seen") == ["k", True]
    with pytest.raises(errors.TaskFailed):
        await made.client.call("images.double", None)
    assert await made.client.call("images.both", 1, named=2) == [1, 2]
    with pytest.raises(errors.InvalidArguments):
        await made.client.call("images.double", 1, value=2)


async def test_what_gateways_do_not_do_is_refused_before_anything_is_sent(made: BehindGateway) -> None:
    for given in ({"labels": {"a": "b"}}, {"pool": "video"}, {"queue": False}, {"max_attempts": 2}):
        with pytest.raises(errors.InvalidRequest, match=next(iter(given))):
            await made.client.options(**given).call("images.double", 1)  # type: ignore[arg-type]
    for refused in (
        lambda: made.client.choose_worker("images"),
        lambda: made.client.lease("images"),
        lambda: made.client.gang(pool="images", size=1),
    ):
        with pytest.raises(errors.InvalidRequest, match="role router, without gateway=True"):
            refused()
    assert made.gateway.statistics()["requests"] == 0


async def test_without_a_gateway_a_call_waits_for_one_for_a_moment(made: BehindGateway) -> None:
    await made.gateway.stop()
    with pytest.raises(errors.NoGateway, match="no gateway answers calls of images") as caught:
        await made.client.call("images.double", 1)
    assert not caught.value.may_have_started
    call = asyncio.ensure_future(made.client.call("images.double", 4))
    await asyncio.sleep(0.5)
    async with Gateway(made.hub.connect("next"), names=made.names):
        assert await call == 8


async def test_a_call_ends_at_its_deadline_whether_or_not_its_gateway_answers(made: BehindGateway) -> None:
    began = loop_time()
    with pytest.raises(errors.DeadlineExceeded):
        await made.client.options(timeout_s=2).call("images.wait")
    assert loop_time() - began < 2.5
    made.hub.partition(made.gateway.bus)
    with pytest.raises(errors.DeadlineExceeded) as caught:
        await made.client.options(timeout_s=2).call("images.wait")
    assert caught.value.may_have_started
    with pytest.raises(errors.DeadlineExceeded):
        await made.client.call("images.wait")
    assert loop_time() - began < 2.5 + 2.5 + 31
    made.hub.heal(made.gateway.bus)


async def test_a_lost_connection_is_an_unknown_outcome_unless_the_call_may_be_sent_again(made: BehindGateway) -> None:
    calls = [
        asyncio.ensure_future(made.client.options(idempotent=again, timeout_s=60).call("images.wait"))
        for again in (None, True)
    ]
    await until(lambda: made.told.count("waits") == 2)
    made.hub.disconnect(made.bus)
    with pytest.raises(errors.ResultLost, match="Make the call idempotent"):
        await calls[0]
    await asyncio.sleep(0.02)
    made.hub.reconnect(made.bus)
    await until(lambda: made.told.count("waits") == 3)
    calls[1].cancel()


async def test_closing_the_client_ends_what_waits(made: BehindGateway) -> None:
    call = asyncio.ensure_future(made.client.call("images.wait"))
    await until(lambda: bool(made.told))
    await made.client.close()
    with pytest.raises(errors.ClosedError):
        await call
    with pytest.raises(errors.ClosedError):
        await made.client.call("images.double", 1)


# -- streams ------------------------------------------------------------------------------------------------------


async def test_items_come_in_order_and_the_task_is_never_far_ahead():
    async with site(RouterSettings(stream_window=5)) as made:
        read = 0
        async for item in made.client.stream("images.count", 500):
            assert item == read
            read += 1
            # In an answer, read ahead by the gateway, and on their way from the worker.
            assert len(made.told) <= read + 5 + 5 + 64 + 1
        assert read == 500 and made.told[-1] == "over"
        await until(lambda: made.gateway.statistics()["pending"] == 0)


async def test_items_larger_than_a_message_together_come_in_several_answers(made: BehindGateway) -> None:
    lengths = [400_000, 10, 900_000, 700_000, 3, 3, 500_000]
    assert [len(page) async for page in made.client.stream("images.pages", lengths)] == lengths
    with pytest.raises(errors.GanglineError, match="bytes and a message takes at most"):
        _ = [page async for page in made.client.stream("images.pages", [5, made.bus.max_payload - 1030])]


async def test_an_error_comes_after_the_items_before_it(made: BehindGateway) -> None:
    got = []
    with pytest.raises(errors.TaskFailed, match="as asked"):
        async for item in made.client.stream("images.breaks", 100):
            got.append(item)
    assert got == list(range(100))
    with pytest.raises(errors.TaskFailed, match="as asked"):
        _ = [item async for item in made.client.stream("images.breaks", 0)]
    with pytest.raises(errors.InvalidRequest, match="does not stream"):
        _ = [item async for item in made.client.stream("images.double", 1)]
    await until(lambda: made.gateway.statistics()["pending"] == 0)


async def test_slow_items_outlast_the_wait_of_an_answer(made: BehindGateway) -> None:
    items = made.client.stream("images.count", 3, each_s=3 * WAIT_S)
    assert [item async for item in items] == [0, 1, 2]
    with pytest.raises(errors.DeadlineExceeded):
        _ = [item async for item in made.client.options(timeout_s=5).stream("images.count", 9, each_s=3.0)]


async def test_leaving_the_loop_early_cancels_the_task(made: BehindGateway) -> None:
    async with contextlib.aclosing(made.client.stream("images.count", 10_000, each_s=0.01)) as items:
        async for item in items:
            if item == 3:
                break
    await asyncio.sleep(1)
    assert made.told[-1] == "over" and len(made.told) < 200
    assert made.gateway.statistics()["pending"] == 0


async def test_a_stream_that_nobody_asks_for_is_closed(made: BehindGateway) -> None:
    first = await made.ask("gangline.call.images.count", [10_000, 0.01], Gangline_Stream="true")
    assert first["items"] == [0]
    assert made.gateway.statistics()["pending"] == 1
    await asyncio.sleep(IDLE_S + 1)
    assert made.told[-1] == "over" and made.gateway.statistics()["pending"] == 0
    assert await made.ask(first["next"]) == "stream_broken"


async def test_an_answer_that_was_lost_is_sent_again(made: BehindGateway) -> None:
    first = await made.ask("gangline.call.images.count", [99], Gangline_Stream="3")
    got = first["items"]
    while len(got) < 99:
        answer = await made.ask(first["next"], {"after": len(got)})
        if answer["next"] is not None:
            assert await made.ask(first["next"], {"after": len(got)}) == answer
        assert 1 <= len(answer["items"]) <= 3
        got += answer["items"]
    assert got == list(range(99))


async def test_a_caller_that_lacks_more_than_the_last_answer_is_told(made: BehindGateway) -> None:
    first = await made.ask("gangline.call.images.count", [99], Gangline_Stream="3")
    assert (await made.ask(first["next"]))["items"]
    assert await made.ask(first["next"], {"after": 0}) == "stream_broken"
    assert await made.ask(first["next"]) == "stream_broken"


async def test_a_stream_goes_on_after_a_lost_connection_of_its_reader(made: BehindGateway) -> None:
    got = []
    async for item in made.client.stream("images.count", 300, each_s=0.01):
        got.append(item)
        if item in (50, 200):
            made.hub.disconnect(made.bus)
            asyncio.get_running_loop().call_later(0.5, made.hub.reconnect, made.bus)
    assert got == list(range(300))


async def test_a_stream_whose_gateway_is_gone_breaks(made: BehindGateway) -> None:
    items = made.client.stream("images.count", 10_000, each_s=0.01)
    assert await anext(items) == 0
    await made.gateway.stop()
    with pytest.raises((errors.StreamBroken, errors.ClosedError)):
        async for _ in items:
            pass
    await asyncio.sleep(1)
    assert made.told[-1] == "over"


async def test_a_gateway_that_drains_lets_streams_end(made: BehindGateway) -> None:
    items = made.client.stream("images.count", 300, each_s=0.01)
    assert await anext(items) == 0
    draining = asyncio.ensure_future(made.gateway.drain(30))
    assert [item async for item in items] == list(range(1, 300))
    await draining


async def test_open_streams_count_as_calls_in_progress():
    async with site(max_pending=1) as made:
        first = await made.ask("gangline.call.images.count", [99], Gangline_Stream="3")
        with pytest.raises(errors.QueueFull):
            await made.client.call("images.double", 1)
        await made.ask(first["next"], {"close": True})
        await until(lambda: made.gateway.statistics()["pending"] == 0)
        assert await made.client.call("images.double", 1) == 2


async def test_an_answer_that_has_no_items_is_from_an_older_gateway(made: BehindGateway) -> None:
    await made.gateway.stop()
    bus = made.hub.connect("old")
    await bus.subscribe(
        "_GANGLINE.gangline.call.>", lambda message: bus.publish(message.reply, codec.to_json([0, 1])), queue="x"
    )
    with pytest.raises(errors.StreamBroken, match="update it"):
        _ = [item async for item in made.client.stream("images.count", 2)]


async def test_a_stream_is_never_asked_for_elsewhere_than_at_a_gateway(made: BehindGateway) -> None:
    await made.gateway.stop()
    bus, asked = made.hub.connect("evil"), []
    answer = codec.to_json({"items": [1], "next": "gangline.worker.images.w1.drain"})
    await bus.subscribe("_GANGLINE.gangline.call.>", lambda message: bus.publish(message.reply, answer), queue="x")
    await bus.subscribe("*.gangline.worker.images.w1.drain", asked.append)
    with pytest.raises(errors.StreamBroken):
        _ = [item async for item in made.client.stream("images.count", 2)]
    await asyncio.sleep(1)
    assert asked == []


@in_rows("body", [{"a": 1}, [], [[1]], [[1], {}, {}], [{}, []], [[1], {2: 3}], None, 7])
def test_arguments_of_both_kinds_are_a_list_and_an_object(body: Any):
    with pytest.raises(errors.InvalidRequest):
        PlainRequest.parse(body, {headers.ARGUMENTS: "both"}, 30.0)
    good = PlainRequest.parse([[1], {"a": 2}], {headers.ARGUMENTS: "both"}, 30.0)
    assert (good.args, good.kwargs) == ([1], {"a": 2})
    with pytest.raises(errors.InvalidRequest, match="Gangline-Arguments"):
        PlainRequest.parse([], {headers.ARGUMENTS: "neither"}, 30.0)


@in_rows("text, most", [("true", 64), ("no", 0), ("1", 1), ("1000", 1000)])
def test_the_number_of_items_of_an_answer(text: str, most: int):
    assert PlainRequest.parse(None, {headers.STREAM: text}, 30.0).most == most


@in_rows("text", ["", "x", "1001", "-1", "1.5", "9" * 5000, "\u0661"])
def test_a_number_of_items_that_cannot_be_is_refused(text: str):
    with pytest.raises(errors.InvalidRequest, match="Gangline-Stream"):
        PlainRequest.parse(None, {headers.STREAM: text}, 30.0)
