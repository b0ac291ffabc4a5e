"""Calls through the router to scripted workers: every fate of a try, and what the caller hears of it."""

from __future__ import annotations

import asyncio
import json

import pytest

from gangline import errors
from gangline.schemas.wire.frames import AnswerOp, Reason, RequestOp, TaskState

from ...support.dispatcher.fakes import Rig, cancel_and_wait, obedient, rejects, silent, turns
from ...waiting import loop_time


async def test_a_call_returns_what_the_worker_answers(rig: Rig, known: bool) -> None:
    worker = await rig.worker(known=known)
    assert await rig.client.call("images.echo", 1, x=2) == ["w1", "echo"]
    [frame] = worker.heard
    assert frame[2:5] == ["echo", [1], {"x": 2}]
    assert rig.router.metrics.statistics()["requests"] == 1 + known


async def test_what_cannot_be_sent_fails_alone(rig: Rig) -> None:
    worker = await rig.worker(slots=5)
    values = (b"x" * 2_000_000, object(), 1)
    results = await asyncio.gather(*(rig.client.call("images.echo", each) for each in values), return_exceptions=True)
    assert isinstance(results[0], errors.PayloadTooLarge) and "2000" in str(results[0])
    assert isinstance(results[1], errors.InvalidRequest) and results[2] == ["w1", "echo"]
    assert len(worker.heard_of(RequestOp.TASK)) == 1


async def test_a_task_that_raised_is_told_with_its_type(rig: Rig, known: bool) -> None:
    failed = (AnswerOp.ERROR, "task_failed", "boom", {"type": "ValueError"}, True)
    await rig.worker(behave=lambda _, frame: [(failed[0], frame[1], *failed[1:])], known=known)
    with pytest.raises(errors.TaskFailed) as caught:
        await rig.client.call("images.echo")
    assert caught.value.remote_type == "ValueError" and caught.value.may_have_started
    numbers = rig.router.metrics.statistics()
    assert (numbers["requests"], numbers["errors"]) == (1 + known, 1)


async def test_a_call_waits_while_all_workers_are_full_and_goes_on_when_one_has_room(rig: Rig) -> None:
    worker = await rig.full_worker()
    call = asyncio.ensure_future(rig.client.call("images.echo"))
    await asyncio.sleep(5)
    assert not call.done()
    worker.behave, worker.load = obedient, None
    assert await call == ["w1", "echo"]


async def test_probes_of_a_full_worker_back_off_to_half_a_second(rig: Rig) -> None:
    worker = await rig.full_worker()
    call = asyncio.ensure_future(rig.client.options(timeout_s=20).call("images.echo"))
    await asyncio.sleep(1)
    early = len(worker.heard_of(RequestOp.TASK))
    await asyncio.sleep(10)
    late = len(worker.heard_of(RequestOp.TASK)) - early
    assert 4 <= early <= 10  # 25, 50, 100, 200, 400 ms, with jitter
    assert 20 <= late <= 40  # every 0.25 to 0.5 s
    call.cancel()


@pytest.mark.router(saturated_wait_s=7)
@pytest.mark.parametrize(("timeout_s", "waits_s"), [(3, 3), (None, 7)])
async def test_a_saturated_pool_is_an_error_in_time(rig: Rig, timeout_s: float | None, waits_s: float) -> None:
    await rig.full_worker()
    began_at = loop_time()
    with pytest.raises(errors.Saturated) as caught:
        await rig.client.options(timeout_s=timeout_s).call("images.echo")
    assert waits_s - 0.1 < loop_time() - began_at < waits_s + 1
    assert not caught.value.may_have_started


async def test_max_attempts_bounds_the_tries(rig: Rig) -> None:
    worker = await rig.full_worker()
    with pytest.raises(errors.Saturated) as caught:
        await rig.client.options(max_attempts=3).call("images.echo")
    assert len(worker.heard_of(RequestOp.TASK)) == 3
    assert caught.value.details["attempts"] == 3


@pytest.mark.router(max_queued=2)
async def test_calls_that_wait_for_the_first_look_at_the_pool_do_not_count_as_queued(rig: Rig) -> None:
    await rig.worker(slots=32)
    assert await asyncio.gather(*(rig.client.call("images.echo") for _ in range(10))) == [["w1", "echo"]] * 10


@pytest.mark.router(max_queued=2)
async def test_one_more_than_may_wait_is_refused_at_once(rig: Rig) -> None:
    await rig.worker(slots=1, behave=silent)
    calls = [asyncio.ensure_future(rig.client.call("images.echo")) for _ in range(3)]
    await turns()
    with pytest.raises(errors.QueueFull) as caught:
        await rig.client.call("images.echo")
    assert caught.value.details == {"pool": "images", "max_queued": 2}
    for call in calls:
        call.cancel()


async def test_no_worker_is_an_error_after_the_wait_for_one(rig: Rig) -> None:
    began = loop_time()
    with pytest.raises(errors.NoWorkers, match="images"):
        await rig.client.call("images.echo")
    assert loop_time() - began == pytest.approx(1, abs=0.1)


async def test_a_worker_that_appears_in_time_gets_the_waiting_call(rig: Rig) -> None:
    call = asyncio.ensure_future(rig.client.call("images.echo"))
    await asyncio.sleep(0.5)
    await rig.worker()
    assert await call == ["w1", "echo"]


async def test_an_unknown_method_is_an_error_at_once_that_names_the_known_ones(rig: Rig) -> None:
    worker = await rig.worker()
    with pytest.raises(errors.UnknownMethod, match="again, echo, heavy, items"):
        await rig.client.call("images.nope")
    assert worker.heard == []


async def test_a_draining_worker_gets_nothing_new(rig: Rig) -> None:
    leaving = await rig.known_worker("w1")
    leaving.draining = True
    await leaving.register()
    await rig.worker("w2")
    leaving.heard.clear()
    for _ in range(5):
        assert await rig.client.call("images.echo") == ["w2", "echo"]
    assert leaving.heard == []


async def test_when_all_workers_drain_the_error_says_so(rig: Rig) -> None:
    worker = await rig.worker()
    worker.draining = True
    await worker.register()
    with pytest.raises(errors.Draining):
        await rig.client.options(timeout_s=2).call("images.echo")


# -- deadline and cancellation ------------------------------------------------------------------------------------


async def test_a_cancelled_call_cancels_its_task_and_counts_until_that_has_stopped(rig: Rig, known: bool) -> None:
    worker, call, task = await rig.held_call("images.echo", 1, known=known)
    await cancel_and_wait(call)
    [cancel] = await worker.hears(RequestOp.CANCEL)
    assert cancel[1] == task[1]
    assert rig.router.pools["images"].core.placed == 1
    numbers = rig.router.metrics.statistics()
    assert (numbers["requests"], numbers["errors"]) == (1 + known, 1)


async def test_a_call_whose_frame_is_not_out_yet_is_taken_back_when_the_router_stops(rig: Rig) -> None:
    worker = await rig.known_worker()
    worker.heard.clear()
    call = asyncio.ensure_future(rig.client.call("images.echo"))
    asyncio.get_running_loop().call_soon(asyncio.ensure_future, rig.router.stop())
    with pytest.raises(errors.ClosedError) as caught:
        await call
    await turns()
    assert caught.value.may_have_started == bool(worker.heard_of(RequestOp.TASK))


# -- connection ---------------------------------------------------------------------------------------------------


async def test_without_a_connection_calls_wait_for_it(rig: Rig) -> None:
    await rig.known_worker()
    rig.hub.disconnect(rig.bus)
    call = asyncio.ensure_future(rig.client.call("images.echo"))
    await asyncio.sleep(10)
    assert not call.done()
    rig.hub.reconnect(rig.bus)
    began = loop_time()
    assert await call == ["w1", "echo"]
    assert loop_time() - began < 0.01  # the connection's return ends the wait, not the next backoff


async def test_a_deadline_ends_the_wait_for_a_connection(rig: Rig) -> None:
    await rig.known_worker()
    rig.hub.disconnect(rig.bus)
    with pytest.raises(errors.Disconnected) as caught:
        await rig.client.options(timeout_s=2).call("images.echo")
    assert not caught.value.may_have_started


async def test_after_a_reconnection_everything_in_flight_is_asked_for(rig: Rig) -> None:
    worker, call, task = await rig.held_call()
    rig.hub.disconnect(rig.bus)
    await asyncio.sleep(30)  # nobody is lost meanwhile
    rig.hub.reconnect(rig.bus)
    [check] = await worker.hears(RequestOp.CHECK)
    assert check[2] == [task[1]]
    worker.answer((AnswerOp.OK, task[1], "kept"), (AnswerOp.CHECKED, check[1], [int(TaskState.ANSWERED)]))
    assert await call == "kept"


async def test_cancellations_made_while_disconnected_are_sent_afterwards(rig: Rig) -> None:
    worker, call, task = await rig.held_call()
    rig.hub.disconnect(rig.bus)
    await turns()
    call.cancel()
    await turns()
    rig.hub.reconnect(rig.bus)
    [cancel] = await worker.hears(RequestOp.CANCEL)
    assert cancel[1] == task[1]


# -- closing ------------------------------------------------------------------------------------------------------


async def test_closing_ends_running_and_waiting_calls_and_stops_the_tasks(rig: Rig, known: bool) -> None:
    worker = await rig.worker(slots=1, behave=silent, known=known)
    running = asyncio.ensure_future(rig.client.call("images.echo"))
    waiting = asyncio.ensure_future(rig.client.call("images.echo"))
    await worker.hears(RequestOp.TASK)
    await rig.client.close()
    results = await asyncio.gather(running, waiting, return_exceptions=True)
    assert all(isinstance(result, errors.ClosedError) for result in results), results
    assert [result.may_have_started for result in results] == [True, False]  # type: ignore[union-attr]
    await worker.hears(RequestOp.CANCEL)
    with pytest.raises(errors.ClosedError):
        await rig.client.call("images.echo")


async def test_a_client_that_was_not_started_says_so() -> None:
    rig = Rig()
    with pytest.raises(errors.ClosedError, match="not started"):
        await rig.client.call("images.echo")
    await rig.client.close()


async def test_a_task_that_no_worker_is_large_enough_for_says_so(rig: Rig) -> None:
    await rig.worker(slots=1)
    with pytest.raises(errors.Saturated, match="takes 2 slots, and the largest worker has 1"):
        await rig.client.options(timeout_s=2).call("images.heavy")


async def test_labels_that_no_worker_has_any_more_are_named(rig: Rig) -> None:
    await rig.worker("w1")
    labelled = await rig.worker("w2", labels={"gpu": "yes", "size": "l"})
    client = rig.client.options(labels={"gpu": "yes", "size": "l"})
    assert await client.call("images.echo") == ["w2", "echo"]
    await labelled.die()
    with pytest.raises(errors.NoWorkers, match="no worker of pool 'images' has the labels gpu=yes, size=l") as caught:
        await client.call("images.echo")
    assert not caught.value.may_have_started and caught.value.details["labels"] == {"gpu": "yes", "size": "l"}
    waiting = asyncio.ensure_future(client.call("images.echo"))
    await asyncio.sleep(0.5)
    await rig.worker("w3", labels={"gpu": "yes", "size": "l"})
    assert await waiting == ["w3", "echo"], "one that restarts is waited for"


# -- a chosen worker that goes before its task comes ------------------------------------------------------------------


async def test_what_was_asked_of_the_chosen_worker_holds_for_the_one_that_takes_its_place(rig: Rig) -> None:
    await rig.worker("w1")
    chosen = await rig.worker("w2", labels={"gpu": "yes"})
    async with rig.client.options(labels={"gpu": "yes"}).choose_worker("images") as selection:
        assert selection.worker == "images.w2"
        await rig.worker("w3", labels={"gpu": "yes"})
        await chosen.die()
        assert await rig.client.dispatch(selection, "echo") == ["w3", "echo"]
        assert selection.worker == "images.w3"


async def test_a_task_that_may_not_be_moved_is_not(rig: Rig) -> None:
    other, chosen = await rig.worker("w1", slots=0), await rig.worker("w2")
    async with rig.client.choose_worker("images", move=False) as selection:
        await chosen.die()
        with pytest.raises(errors.WorkerLost, match="chosen with move=False") as caught:
            await rig.client.dispatch(selection, "echo")
        assert (caught.value.may_have_started, selection.worker) == (False, "images.w2")
    assert other.heard_of(RequestOp.TASK) == []
    third = await rig.worker("w3")
    async with rig.client.choose_worker("images", move=False) as selection:
        third.behave = rejects(Reason.STALE)
        with pytest.raises(errors.WorkerLost, match="newer epoch"):
            await rig.client.dispatch(selection, "echo")


# -- now or not at all ------------------------------------------------------------------------------------------------


async def test_who_may_not_wait_is_refused_at_once_and_takes_nothing(rig: Rig) -> None:
    await rig.worker(slots=1)
    client, loop = rig.client.options(queue=False), asyncio.get_running_loop()
    async with client.lease("images"):
        began_at = loop.time()
        for enter in (client.lease("images"), client.choose_worker("images")):
            with pytest.raises(errors.Saturated, match="had room right now"):
                await enter.__aenter__()
        with pytest.raises(errors.Saturated):
            await client.call("images.echo")
        with pytest.raises(errors.Saturated):
            await anext(client.stream("images.items"))
        assert loop.time() == began_at
    assert await client.call("images.echo") == ["w1", "echo"]


async def test_who_may_not_wait_goes_on_to_a_worker_with_room_when_one_refuses(rig: Rig) -> None:
    full = await rig.worker("w1", rejects(Reason.FULL))
    other = await rig.worker("w2", slots=0)
    with pytest.raises(errors.Saturated, match="the worker is full"):
        await rig.client.options(queue=False).call("images.echo")
    assert len(full.heard_of(RequestOp.TASK)) == 1 and other.heard_of(RequestOp.TASK) == []


# -- who waits where --------------------------------------------------------------------------------------------------


async def test_the_lengths_of_queues_are_told_every_second_while_anything_waits_and_once_more(rig: Rig) -> None:
    await rig.worker(slots=1)
    heard: list[dict[str, object]] = []
    listener = rig.hub.connect("operator")
    await listener.subscribe(f"{rig.names.namespace}.event.router.*", lambda m: heard.append(json.loads(m.data)))
    async with rig.client.lease("images"):
        calls = [asyncio.ensure_future(rig.client.call("images.echo")) for _ in range(3)]
        await asyncio.sleep(4.2)
        assert [event["waiting"] for event in heard] == [{"images": 3}] * 4
    await asyncio.gather(*calls)
    await asyncio.sleep(10)
    assert [event["waiting"] for event in heard[4:]] == [{"images": 0}]
    assert {(event["v"], event["router"], event["owner"]) for event in heard} == {(1, heard[0]["router"], "client")}
    await listener.close()


async def test_a_call_that_found_no_room_names_the_time_it_was_given_however_often_it_was_tried(rig: Rig) -> None:
    worker = await rig.worker("w1", behave=rejects(Reason.FULL))
    with pytest.raises(errors.Saturated, match=r"had room by its deadline, 4 s after it was asked for"):
        await rig.client.options(timeout_s=4).call("images.echo")
    assert len(worker.heard_of(RequestOp.TASK)) > 2
