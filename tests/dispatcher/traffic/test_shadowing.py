"""Copies for shadow pools: sent after the request, counted, and without any effect on it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gangline.schemas.errors.base import ClosedError
from gangline.schemas.wire.frames import AnswerOp, Frame, Reason, RequestOp, TaskFlag

from ...support.dispatcher.fakes import FakeWorker, Rig, give_up, silent, turns
from ...waiting import loop_time
from .test_route_core import bound
from .test_routes import call, calls, crew, pool_named, set_route


def counts(rig: Rig, pool: str) -> dict[str, int]:
    return dict(rig.client.statistics()["routes"]["shadows"].get("e", {}).get(pool, {}))


async def shadowed(rig: Rig, **shares: int) -> None:
    """A route with shadow pools. The first request opens them; copies go out from the next one on."""
    await set_route(rig, "e", {"to": {"v1": 1}, "shadow": shares})
    await call(rig)
    await asyncio.sleep(0.1)


@pytest.mark.router(max_shadows=10_000)
async def test_each_shadow_has_a_draw_of_its_own(rig: Rig) -> None:
    [_, s1, s2] = await crew(rig, "v1", "s1", "s2", slots=10_000)
    await shadowed(rig, s1=50, s2=10)
    s1.heard.clear(), s2.heard.clear()
    for _ in range(20):
        assert await asyncio.gather(*(rig.client.call("e.echo", number) for number in range(50))) == ["v1"] * 50
    await asyncio.sleep(1)
    heard = [[tuple(frame[3]) for frame in worker.heard_of(RequestOp.TASK)] for worker in (s1, s2)]
    assert abs(len(heard[0]) - 500) < bound(1000, 0.5)
    assert abs(len(heard[1]) - 100) < bound(1000, 0.1)
    both = counts(rig, "s1"), counts(rig, "s2")
    assert [each["ok"] for each in both] == [each["sent"] for each in both]


async def test_a_copy_is_sent_after_the_request_and_says_that_it_is_one(rig: Rig) -> None:
    order: list[str] = []

    def noting(worker: FakeWorker, frame: Frame) -> Any:
        order.append(worker.id.pool)
        return pool_named(worker, frame)

    primary = await rig.worker("w1", noting, pool="v1", slots=1)
    shadow = await rig.worker("w2", noting, pool="s")
    await shadowed(rig, s=100)
    order.clear(), shadow.heard.clear()
    await rig.client.options(key="user-7", timeout_s=60).call("e.echo", 1, a=2)
    await asyncio.sleep(0.1)
    assert order == ["v1", "s"]
    [frame] = shadow.heard_of(RequestOp.TASK)
    assert frame[3:5] == [[1], {"a": 2}]
    assert frame[5] == 5000  # its own short deadline, not the caller's
    assert frame[6] is None
    assert frame[9]["shadow"] is True and frame[9]["key"] == "user-7"
    # One that waits in line: its copy waits for it, too.
    order.clear()
    primary.behave = silent
    first = asyncio.ensure_future(call(rig))
    await primary.hears(RequestOp.TASK, 3)
    await asyncio.sleep(0.1)
    second = asyncio.ensure_future(call(rig))
    await asyncio.sleep(0.1)
    assert order == ["s"]
    primary.answer((AnswerOp.OK, primary.heard_of(RequestOp.TASK)[-1][1], None))
    await primary.hears(RequestOp.TASK, 4)
    await asyncio.sleep(0.1)
    assert order == ["s", "s"]
    primary.answer((AnswerOp.OK, primary.heard_of(RequestOp.TASK)[-1][1], None))
    await asyncio.gather(first, second)


ACCIDENTS = ("never started", "silent", "full", "dead", "failing", "refusing", "cut off")


@pytest.mark.router(max_shadows=5)
@pytest.mark.parametrize("accident", ACCIDENTS)
async def test_whatever_becomes_of_a_shadow_pool_requests_take_no_time_from_it(rig: Rig, accident: str) -> None:
    def misbehave(worker: FakeWorker, frame: Frame) -> Any:
        if frame[0] != RequestOp.TASK:
            return None
        if accident == "failing":
            return [(AnswerOp.ERROR, frame[1], "task_failed", "boom", {"type": "ValueError"}, True)]
        if accident == "refusing":
            return [(AnswerOp.REJECTED, frame[1], str(Reason.FULL))]
        return None

    await crew(rig, "v1", slots=1000)
    shadow = None
    if accident != "never started":
        shadow = await rig.worker("w2", misbehave, pool="s", slots=0 if accident == "full" else 1000)
    await shadowed(rig, s=100)
    if shadow is not None and accident == "dead":
        await shadow.die()
    if shadow is not None and accident == "cut off":
        rig.hub.disconnect(shadow.bus)
    began_at = loop_time()
    for _ in range(10):
        assert await asyncio.gather(*calls(rig, 10)) == ["v1"] * 10
        await asyncio.sleep(1)
    assert loop_time() - began_at < 10.001  # virtual time: answers take none
    await asyncio.sleep(30)
    told = counts(rig, "s")
    match accident:
        case "never started" | "full":
            assert told == {"dropped": 101}
        case "failing":
            assert told["failed"] == told["sent"] > 0
        case "refusing":
            assert told["refused"] == told["sent"] > 0
        case "silent":
            assert told["late"] == told["sent"] == 5
            assert shadow is not None and len(shadow.heard_of(RequestOp.CANCEL)) == 5
        case _:
            assert told["dropped"] > 50
            assert told["sent"] == sum(told.get(end, 0) for end in ("ok", "refused", "lost", "late"))
    core = rig.router.pools["s"].core if "s" in rig.router.pools else None
    assert core is None or core.waiting == 0
    assert rig.router.metrics.statistics()["errors"] == 0
    if accident == "cut off":
        await rig.client.close()  # nobody tells it that the tasks have stopped


async def test_items_of_a_streaming_task_are_read_and_dropped(rig: Rig) -> None:
    def streaming(worker: FakeWorker, frame: Frame) -> Any:
        if frame[0] != RequestOp.TASK:
            return None
        assert frame[8] & TaskFlag.STREAM
        items = [(AnswerOp.ITEM, frame[1], number, number) for number in range(64)]
        return [*items, (AnswerOp.END, frame[1], 64)]

    await rig.worker("w1", streaming, pool="v1")
    shadow = await rig.worker("w2", streaming, pool="s")
    await set_route(rig, "e", {"to": {"v1": 1}, "shadow": {"s": 100}})
    for _ in range(3):
        assert [item async for item in rig.client.stream("e.items")] == list(range(64))
        await asyncio.sleep(0.1)
    frame = shadow.heard_of(RequestOp.TASK)[-1]
    assert frame[9]["window"] == 64
    assert [each[2:] for each in shadow.heard_of(RequestOp.CREDIT) if each[1] == frame[1]] == [[32], [32]]
    told = counts(rig, "s")
    assert told["ok"] == told["sent"] >= 2


async def test_a_shadow_that_is_the_primary_of_others_does_not_overtake_them(rig: Rig) -> None:
    await crew(rig, "v1")
    busy = await rig.worker("w2", pool_named, pool="s", slots=1)
    await shadowed(rig, s=100)
    dropped = counts(rig, "s").get("dropped", 0)
    busy.behave = silent
    busy.heard.clear()
    tasks = [asyncio.ensure_future(rig.client.call("s.echo")) for _ in range(2)]
    await busy.hears(RequestOp.TASK)
    assert await call(rig) == "v1"
    await turns()
    assert counts(rig, "s")["dropped"] == dropped + 1
    assert len(busy.heard_of(RequestOp.TASK)) == 1
    await give_up(*tasks)


async def test_closing_tells_shadow_pools_to_stop(rig: Rig) -> None:
    await crew(rig, "v1")
    shadow = await rig.worker("w2", silent, pool="s")
    await shadowed(rig, s=100)
    assert await call(rig) == "v1"
    await shadow.hears(RequestOp.TASK)
    await rig.client.close()
    await turns()
    assert len(shadow.heard_of(RequestOp.CANCEL)) == len(shadow.heard_of(RequestOp.TASK))
    with pytest.raises(ClosedError):
        await call(rig)
