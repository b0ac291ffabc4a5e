"""Calls through a route that has only weights take the fast path, and end as on the general one."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from gangline.dispatcher.calls.call import CallOptions
from gangline.dispatcher.traffic.route_core import RouteCore
from gangline.schemas.errors.base import DeadlineExceeded, WorkerLost
from gangline.schemas.records.routes import RouteRecord
from gangline.schemas.wire.frames import AnswerOp, Frame, Reason, RequestOp

from ...support.dispatcher.fakes import FakeWorker, Rig, give_up, rejects, silent, turns
from .test_route_core import bound
from .test_routes import call, crew, set_route, traffic


def requests(rig: Rig) -> Counter[tuple[str, ...]]:
    """How many were counted, by endpoint and pool."""
    found: Counter[tuple[str, ...]] = Counter()
    for (_namespace, *key), number in rig.router.metrics._requests.now():
        found[tuple(key)] += number
    return found


AT_REST = {"inside": {}, "waiting": 0}


async def routed(rig: Rig, *pools: str, **route: object) -> list[FakeWorker]:
    """Workers in these pools, a route to them, and a first call to each."""
    workers = await crew(rig, *pools, slots=1000)
    await set_route(rig, "e", {"to": dict.fromkeys(pools, 1), **route})
    while len({await call(rig) for _ in range(8)}) < len(pools):
        pass
    return workers


async def held(rig: Rig, **options: Any) -> tuple[FakeWorker, asyncio.Task[Any], Frame]:
    """A worker, a call that waits for it through a route, and the frame of that call."""
    (worker,) = await routed(rig, "v1")
    worker.behave = silent
    running = asyncio.create_task(call(rig, **options))
    return worker, running, (await worker.hears(RequestOp.TASK, 9))[-1]


@pytest.mark.parametrize("by_key", [False, True])
async def test_with_and_without_a_key_nothing_else_is_asked(rig: Rig, by_key: bool, monkeypatch) -> None:
    await routed(rig, "v1", "v2", by_key=by_key)
    pool = await call(rig, key="k") if by_key else None
    before = requests(rig)
    monkeypatch.setattr(rig.router, "order", None)
    if by_key:
        assert await call(rig, key="k") == pool
    counted = Counter(await asyncio.gather(*(call(rig) for _ in range(500))))
    assert abs(counted["v1"] - 250) < bound(500, 0.5), counted
    counted[pool] += by_key
    assert requests(rig) - before == {("e", each): counted[each] for each in ("v1", "v2")}
    assert traffic(rig) == AT_REST
    monkeypatch.undo()


@pytest.mark.parametrize("answer", [(AnswerOp.OK, "v1"), (AnswerOp.ERROR, "task_failed", "no", None, True)])
async def test_a_call_cancelled_just_after_its_answer_is_not_counted(rig: Rig, answer: tuple[object, ...]) -> None:
    (worker,) = await routed(rig, "v1")
    worker.behave = silent
    flight = rig.router._fast_path.launch("e.echo", (), {}, CallOptions(), 0)
    assert flight is not None and flight.share is not None
    sent = (await worker.hears(RequestOp.TASK, 9))[-1]
    worker.answer((answer[0], sent[1], *answer[1:]))
    await flight.future
    rig.router._fast_path.failed(flight, asyncio.CancelledError())
    assert traffic(rig) == AT_REST


@pytest.mark.parametrize("ends_by", ["deadline", "cancellation"])
async def test_a_call_that_is_given_up_is_counted_until_its_worker_has_let_go(rig: Rig, ends_by: str) -> None:
    worker, running, sent = await held(rig, timeout_s=1)
    if ends_by == "deadline":
        with pytest.raises(DeadlineExceeded):
            await running
    else:
        await give_up(running)
    assert traffic(rig)["inside"] == {"v1": 1}
    await worker.hears(RequestOp.CANCEL)
    worker.answer((AnswerOp.ERROR, sent[1], "task_cancelled", "as told", None, True))
    await turns()
    assert traffic(rig) == AT_REST


async def test_a_refused_call_is_tried_again_in_its_pool_and_counted_once(rig: Rig) -> None:
    first, second = await routed(rig, "v1", "v2")
    heard = len(first.heard), len(second.heard)
    first.behave, second.behave = rejects(Reason.FULL, 1), rejects(Reason.FULL, 1)
    running = asyncio.ensure_future(call(rig))
    await turns()
    inside = traffic(rig)["inside"]
    assert inside in ({"v1": 1}, {"v2": 1})
    assert (await running)[0] == f"w-{next(iter(inside))}"
    assert sorted((len(first.heard) - heard[0], len(second.heard) - heard[1])) == [0, 2]
    assert traffic(rig) == AT_REST
    assert {pool.core.placed for pool in rig.router.pools.values()} == {0}


async def test_a_lost_worker_leaves_no_count(rig: Rig) -> None:
    worker, running, _ = await held(rig)
    worker.stop_beating()
    with pytest.raises(WorkerLost) as caught:
        await running
    assert caught.value.may_have_started
    assert traffic(rig) == AT_REST


async def test_a_route_that_is_deleted_under_traffic_comes_to_rest(rig: Rig) -> None:
    workers = await routed(rig, "v1")
    await crew(rig, "e")
    workers[0].behave = silent
    running = asyncio.ensure_future(call(rig))
    sent = (await workers[0].hears(RequestOp.TASK, 9))[-1]
    await set_route(rig, "e", None)
    assert await call(rig) == "e"
    workers[0].answer((AnswerOp.OK, sent[1], "v1"))
    assert await running == "v1"
    assert await call(rig) == "e"
    assert traffic(rig) is None


async def test_a_full_pool_keeps_its_share(rig: Rig) -> None:
    """A call whose pool has no free slot waits there, and does not draw again."""
    slow, _fast = await routed(rig, "v1", "v2")
    slow.behave = silent
    running = [asyncio.ensure_future(call(rig)) for _ in range(2400)]
    await asyncio.sleep(0.1)
    inside = traffic(rig)["inside"]
    assert set(inside) == {"v1"} and abs(inside["v1"] - 1200) < bound(2400, 0.5), inside
    assert rig.router.pools["v1"].core.waiting == inside["v1"] - 1000
    await give_up(*running)


def test_a_drawn_pool_is_used_unless_it_has_left_the_route():
    class Request:
        number = 0
        key = None
        queue = None

    core = RouteCore("e", RouteRecord(to={"a": 1, "b": 1}), draw=random.Random(1).random, deserted=lambda pool: False)
    for drawn in ("a", "b"):
        assert {core.enter(Request(), drawn) for _ in range(20)} == {drawn}  # type: ignore[arg-type]
    core.changed(RouteRecord(to={"b": 1}))
    assert core.enter(Request(), "a") == "b"  # type: ignore[arg-type]
