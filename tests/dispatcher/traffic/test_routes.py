"""Requests through routes, to scripted workers of several pools: who gets them, who waits, who is moved."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from gangline import errors
from gangline.bus.port.bus import BucketSettings, KeyValue, StorageUnavailable
from gangline.schemas.records.routes import RouteRecord
from gangline.schemas.records.workers import MethodInfo
from gangline.schemas.wire import codec
from gangline.schemas.wire.frames import AnswerOp, Frame, Reason, RequestOp

from ...support.dispatcher.fakes import FakeWorker, Rig, give_up, obedient, silent, turns
from ...waiting import loop_time
from .test_route_core import bound


async def routes(rig: Rig) -> KeyValue:
    return await rig.hub.connect("writer").bucket(rig.names.routes_bucket, BucketSettings())


async def set_route(rig: Rig, endpoint: str, route: dict[str, Any] | None) -> None:
    bucket = await routes(rig)
    if route is None:
        await bucket.delete(endpoint)
    else:
        await bucket.put(endpoint, codec.to_json(route))
    await asyncio.sleep(0.05)  # a twentieth of what is promised


def pool_named(worker: FakeWorker, frame: Frame) -> Any:
    """Like obedient; a task's result is the pool's name."""
    if frame[0] == RequestOp.TASK:
        return [(AnswerOp.OK, frame[1], worker.id.pool)]
    return obedient(worker, frame)


async def crew(rig: Rig, *pools: str, **facts: Any) -> list[FakeWorker]:
    """A worker in each pool that says where it ran."""
    return [await rig.worker(f"w-{pool}", pool_named, pool=pool, **facts) for pool in pools]


async def call(rig: Rig, **options: Any) -> Any:
    return await rig.client.options(**options).call("e.echo")


def calls(rig: Rig, count: int) -> list[asyncio.Task[Any]]:
    return [asyncio.ensure_future(call(rig)) for _ in range(count)]


def traffic(rig: Rig) -> Any:
    return rig.client.statistics()["routes"]["traffic"].get("e")


async def routed(rig: Rig, *pools: str) -> None:
    """Workers in these pools, and a route to the first of them that the client follows."""
    await crew(rig, *pools)
    await set_route(rig, "e", {"to": {pools[0]: 1}})
    assert await call(rig) == pools[0]


# -- following ----------------------------------------------------------------------------------------------------


async def test_an_endpoint_without_a_route_is_its_pool_and_found_by_one_look(rig: Rig) -> None:
    await crew(rig, "e")
    assert await call(rig) == "e"
    assert set(rig.router._traffic.plain) == {"e"}
    assert rig.hub.store(rig.names.routes_bucket) is None


async def test_weights_decide_the_shares_and_changes_hold_at_once(rig: Rig) -> None:
    await crew(rig, "v1", "v2", slots=1000)
    await set_route(rig, "e", {"to": {"v1": 90, "v2": 10}})
    counted = Counter(await asyncio.gather(*(call(rig) for _ in range(500))))
    assert abs(counted["v2"] - 50) < bound(500, 0.1), counted
    await set_route(rig, "e", {"to": {"v1": 1, "v2": 1}})
    counted = Counter(await asyncio.gather(*(call(rig) for _ in range(500))))
    assert abs(counted["v2"] - 250) < bound(500, 0.5), counted
    requests = rig.router.metrics._requests.now()
    assert {key for key, number in requests if number} == {("test", "e", "v1"), ("test", "e", "v2")}
    assert sum(number for _, number in requests) == 1000


async def test_who_names_a_pool_means_it_whatever_the_route_says(rig: Rig) -> None:
    await crew(rig, "v1", "e")
    await set_route(rig, "e", {"to": {"v1": 1}})
    assert await call(rig, pool="e") == "e"
    assert await call(rig, pool="v1") == "v1"
    assert await call(rig) == "v1"


# -- moving -------------------------------------------------------------------------------------------------------


async def stuck(rig: Rig, pool: str) -> FakeWorker:
    """A worker whose only slot is taken for good."""
    return await rig.worker(f"stuck-{pool}", silent, pool=pool, slots=1)


async def held(rig: Rig, *, to: str = "v1") -> tuple[FakeWorker, asyncio.Task[Any]]:
    """A route to a pool with one slot, and a call that has it."""
    worker = await stuck(rig, to)
    await set_route(rig, "e", {"to": {to: 1}})
    running = asyncio.create_task(call(rig))
    await worker.hears(RequestOp.TASK)
    return worker, running


async def test_requests_that_wait_for_a_pool_that_leaves_the_route_go_on_in_the_new_one_in_order(rig: Rig) -> None:
    old, running = await held(rig)
    waiting = [asyncio.ensure_future(rig.client.call("e.echo", number)) for number in range(20)]
    await turns()
    new = await rig.worker("new", silent, pool="v2", slots=1)
    await set_route(rig, "e", {"to": {"v2": 1}})
    younger = asyncio.ensure_future(rig.client.call("e.echo", 20))
    served = []
    for count in range(1, 22):
        frame = (await new.hears(RequestOp.TASK, count))[-1]
        served.append(frame[3][0])
        new.answer((AnswerOp.OK, frame[1], None))
        await turns()
    assert served == list(range(21))
    await asyncio.gather(*waiting, younger)
    assert not running.done()
    old.answer((AnswerOp.OK, old.heard_of(RequestOp.TASK)[0][1], "late but right"))
    assert await running == "late but right"
    assert traffic(rig) == {"inside": {}, "waiting": 0}


async def test_requests_that_wait_for_the_pool_of_the_endpoints_name_follow_its_first_route(rig: Rig) -> None:
    old = await stuck(rig, "e")
    first = asyncio.ensure_future(call(rig))
    await old.hears(RequestOp.TASK)
    waiting = calls(rig, 5)
    named = asyncio.ensure_future(call(rig, pool="e"))
    await turns()
    await crew(rig, "v1")
    await set_route(rig, "e", {"to": {"v1": 1}})
    assert await asyncio.gather(*waiting) == ["v1"] * 5
    assert not named.done()  # it asked for that pool
    await give_up(first, named)


async def test_a_request_that_is_refused_after_its_pool_left_is_tried_in_the_new_one(rig: Rig) -> None:
    await crew(rig, "v2")
    old, asked = await held(rig)
    await set_route(rig, "e", {"to": {"v2": 1}})
    old.answer((AnswerOp.REJECTED, old.heard_of(RequestOp.TASK)[0][1], str(Reason.FULL)))
    assert await asked == "v2"


async def test_a_request_that_may_have_started_is_not_moved(rig: Rig) -> None:
    await crew(rig, "v2")
    old, asked = await held(rig)
    await set_route(rig, "e", {"to": {"v2": 1}})
    await old.die()
    with pytest.raises(errors.WorkerLost):
        await asked


@pytest.mark.router(max_queued=3)
async def test_those_who_move_are_not_refused_because_many_wait(rig: Rig) -> None:
    old, new = await stuck(rig, "v1"), await stuck(rig, "v2")
    await set_route(rig, "e", {"to": {"v1": 1}})
    tasks = calls(rig, 4)
    await old.hears(RequestOp.TASK)
    await turns()
    with pytest.raises(errors.QueueFull):
        await call(rig)
    tasks += [asyncio.ensure_future(call(rig, pool="v2")) for _ in range(4)]
    await new.hears(RequestOp.TASK)
    await set_route(rig, "e", {"to": {"v2": 1}})
    await turns()
    assert rig.router.pools["v2"].core.waiting == 6
    assert not any(task.done() for task in tasks)
    await give_up(*tasks)
    assert rig.router.pools["v2"].core.waiting == 0


# -- pools without workers ----------------------------------------------------------------------------------------


async def test_the_share_of_a_pool_without_workers_is_taken_by_the_others(rig: Rig) -> None:
    await crew(rig, "v1")
    await set_route(rig, "e", {"to": {"v1": 50, "gone": 50}})
    assert await asyncio.gather(*calls(rig, 20)) == ["v1"] * 20  # some after a second, none of them refused
    began_at = loop_time()
    assert await asyncio.gather(*calls(rig, 50)) == ["v1"] * 50
    assert loop_time() - began_at < 0.5  # by now it is known
    await crew(rig, "gone")
    await asyncio.sleep(1)
    assert set(await asyncio.gather(*calls(rig, 50))) == {"v1", "gone"}


async def test_when_no_pool_of_the_route_has_workers_everybody_hears_so(rig: Rig) -> None:
    await set_route(rig, "e", {"to": {"a": 1, "b": 1}})
    results = await asyncio.gather(*calls(rig, 10), return_exceptions=True)
    assert {type(result) for result in results} == {errors.NoWorkers}


async def test_a_task_that_a_pool_of_the_route_lacks_is_an_error_that_names_the_pool(rig: Rig) -> None:
    await rig.worker("w1", pool="v1", methods={"other": MethodInfo()})
    await set_route(rig, "e", {"to": {"v1": 1}})
    with pytest.raises(errors.UnknownMethod, match="v1"):
        await call(rig)


# -- limits -------------------------------------------------------------------------------------------------------


async def limited(rig: Rig, to: int, **facts: Any) -> FakeWorker:
    """A route to a pool with a limit, and a worker there that answers nothing."""
    worker = await rig.worker("w1", silent, pool="v1", **facts)
    await set_route(rig, "e", {"to": {"v1": 1}, "limits": {"v1": to}})
    return worker


async def test_a_limit_bounds_what_runs_and_the_rest_waits_in_order(rig: Rig) -> None:
    worker = await limited(rig, 2, slots=100)
    tasks = [asyncio.ensure_future(rig.client.call("e.echo", number)) for number in range(6)]
    await worker.hears(RequestOp.TASK, 2)
    await asyncio.sleep(0.1)
    assert traffic(rig) == {"inside": {"v1": 2}, "waiting": 4}
    for count in range(6):
        frame = (await worker.hears(RequestOp.TASK, count + 1))[count]
        assert frame[3] == [count]
        assert len(worker.heard_of(RequestOp.TASK)) <= count + 2
        worker.answer((AnswerOp.OK, frame[1], count))
        await turns()
    assert await asyncio.gather(*tasks) == list(range(6))
    assert traffic(rig) == {"inside": {}, "waiting": 0}


async def test_a_cancelled_task_counts_until_its_worker_has_let_go(rig: Rig) -> None:
    worker = await limited(rig, 1)
    first = asyncio.ensure_future(call(rig))
    [frame] = await worker.hears(RequestOp.TASK)
    second = asyncio.ensure_future(call(rig))
    await turns()
    await give_up(first)
    await worker.hears(RequestOp.CANCEL)
    await asyncio.sleep(1)
    assert len(worker.heard_of(RequestOp.TASK)) == 1
    worker.answer((AnswerOp.ERROR, frame[1], "task_cancelled", "as told", None, True))
    [_, frame] = await worker.hears(RequestOp.TASK, 2)
    worker.answer((AnswerOp.OK, frame[1], "second"))
    assert await second == "second"


async def test_who_gives_up_while_it_waits_for_a_limit_leaves_nothing_behind(rig: Rig) -> None:
    worker = await limited(rig, 1)
    first = asyncio.ensure_future(call(rig))
    [frame] = await worker.hears(RequestOp.TASK)
    cancelled, unlucky, waits = calls(rig, 3)
    with pytest.raises(errors.Saturated, match="limits"):
        await call(rig, timeout_s=2)
    assert traffic(rig)["waiting"] == 3
    await give_up(cancelled)
    assert traffic(rig)["waiting"] == 2
    # Its turn comes, and it is cancelled, in one turn of the loop: the next one goes.
    rig.router._traffic.routes["e"].changed(RouteRecord(to={"v1": 1}, limits={"v1": 2}))
    unlucky.cancel()
    [_, second] = await worker.hears(RequestOp.TASK, 2)
    worker.answer((AnswerOp.OK, frame[1], "first"), (AnswerOp.OK, second[1], "second"))
    assert [await first, await waits] == ["first", "second"]
    assert traffic(rig) == {"inside": {}, "waiting": 0}


@pytest.mark.router(saturated_wait_s=5.0)
async def test_without_a_deadline_waiting_for_a_limit_ends_when_the_route_does_not_move(rig: Rig) -> None:
    worker = await limited(rig, 1)
    first, second, third = calls(rig, 3)
    began_at = loop_time()
    [frame] = await worker.hears(RequestOp.TASK)
    await asyncio.sleep(3)
    worker.answer((AnswerOp.OK, frame[1], "first"))
    assert await first == "first"
    with pytest.raises(errors.Saturated):
        await third
    assert 7.9 < loop_time() - began_at < 9
    await give_up(second)


@pytest.mark.router(max_queued=2)
async def test_too_many_that_wait_for_a_limit_are_refused_at_once(rig: Rig) -> None:
    await limited(rig, 1)
    tasks = calls(rig, 3)
    await asyncio.sleep(0.1)
    with pytest.raises(errors.QueueFull, match="the queue for route .* is full"):
        await call(rig)
    await give_up(*tasks)


async def test_raising_a_limit_lets_those_in_who_wait(rig: Rig) -> None:
    worker = await limited(rig, 1, slots=10)
    tasks = calls(rig, 4)
    await worker.hears(RequestOp.TASK)
    await set_route(rig, "e", {"to": {"v1": 1}, "limits": {"v1": 3}})
    await worker.hears(RequestOp.TASK, 3)
    await set_route(rig, "e", None)  # the pool of its name: nobody serves it
    with pytest.raises(errors.NoWorkers):
        await tasks[3]
    await give_up(*tasks)


# -- selections and leases ----------------------------------------------------------------------------------------


async def test_closing_refuses_those_who_wait_for_a_limit(rig: Rig) -> None:
    await limited(rig, 1)
    tasks = calls(rig, 3)
    await asyncio.sleep(0.1)
    await rig.client.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {errors.ClosedError}


async def test_selections_and_leases_follow_the_route_and_count_until_they_are_given_back(rig: Rig) -> None:
    await crew(rig, "v1", slots=8)
    await set_route(rig, "e", {"to": {"v1": 1}, "limits": {"v1": 2}})
    async with rig.client.lease("e", slots=2) as lease:
        assert (lease.pool, lease.endpoint) == ("v1", "e")
        assert await lease.call("e.echo") == "v1"
        assert await lease.call("v1.echo") == await lease.call("echo") == "v1"
        with pytest.raises(errors.WrongPool):
            await lease.call("v2.echo")
        async with rig.client.choose_worker("e.echo") as selection:
            assert (selection.pool, selection.endpoint) == ("v1", "e")
            assert traffic(rig)["inside"] == {"v1": 2}
            with pytest.raises(errors.WrongPool):
                await rig.client.dispatch(selection, "v2.echo")
            assert await rig.client.dispatch(selection, "e.echo") == "v1"
        assert traffic(rig)["inside"] == {"v1": 1}
    assert traffic(rig)["inside"] == {}


# -- from a client ------------------------------------------------------------------------------------------------


async def test_a_client_sets_reads_and_deletes_routes_and_follows_them_when_it_returns(rig: Rig) -> None:
    await crew(rig, "v1", "e")
    record = await rig.client.set_route("e", {"to": {"v1": 1}, "queue": {"per_key": 3}})
    assert await call(rig) == "v1"
    assert await rig.client.routes() == {"e": record}
    with pytest.raises(errors.InvalidRoute, match="add up to 0"):
        await rig.client.set_route("e", {"to": {"v1": 0}})
    assert await rig.client.set_route("e", RouteRecord(to={"e": 1, "v1": 0})) == RouteRecord(to={"e": 1, "v1": 0})
    assert await call(rig) == "e"
    await rig.client.delete_route("e")
    await rig.client.delete_route("e")
    assert await rig.client.routes() == {}
    rig.hub.storage_down()
    with pytest.raises(StorageUnavailable):
        await rig.client.set_route("e", {"to": {"v1": 1}})
    with pytest.raises(StorageUnavailable):
        await rig.router.routes.refresh()


async def test_when_an_endpoint_loses_its_route_and_has_no_pool_those_who_wait_hear_so(rig: Rig) -> None:
    old, first = await held(rig)
    waiting = calls(rig, 5)
    await turns()
    began_at = loop_time()
    await set_route(rig, "e", None)
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(result) for result in results} == {errors.NoWorkers}
    assert loop_time() - began_at < 1.5
    await give_up(first)
