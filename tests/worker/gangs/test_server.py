"""The gang operations of a worker, asked by hand on the in-memory bus."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from gangline.schemas.errors.base import WorkerIdTaken
from gangline.schemas.names import public_id
from gangline.schemas.wire.codec import Format
from gangline.schemas.wire.frames import AnswerOp, ReserveFlag
from gangline.worker.context.task_context import current_task
from gangline.worker.pool.pool import Pool

from ...support.rows import in_rows
from ...support.worker.gang_rig import Leader, load_of
from ...support.worker.rig import Gates, Rig, on_rig, reserve, task

OK, ERROR, GRANTED, REJECTED = AnswerOp.OK, AnswerOp.ERROR, AnswerOp.GRANTED, AnswerOp.REJECTED


@on_rig(slots=4)
async def test_a_gang_from_hold_to_teardown(rig: Rig, leader: Leader):
    held = await leader.hold(ranks=2)
    assert held["accepted"] and len(held["tokens"]) == 2 and held["port"] > 0
    assert held["reg_revision"] > 0 and held["epoch"] == rig.worker.core.epoch
    assert load_of(rig) == (0, 2)
    seats = leader.seats(held)
    await leader.commit(seats, held)
    assert (await rig.hand.ask(*task(1, token=seats[0].token)))[:1] == [REJECTED], "nothing starts before the commit"
    told = {"formed": True, "reason": None, "starting": False, "tokens": held["tokens"]}
    assert await leader.form(seats) == told
    assert (await rig.hand.ask(*task(2, args=["hello"], token=seats[0].token)))[::2] == [OK, "hello"]
    assert load_of(rig) == (0, 2), "a seat is not used up"
    assert not rig.keys("lease."), "the member record is the seats' own"
    assert await leader.ping(g=1, other=3) == {"other": 3}
    answer = await leader.teardown()
    assert answer["stopped"] and answer["load"]["reserved"] == 0
    assert load_of(rig) == (0, 0)
    late = await rig.hand.ask(*task(3, token=seats[0].token))
    assert late[0] == ERROR and late[2] == "gang_ended"
    assert await leader.ping(g=1) == {"g": 1}
    assert rig.events("hold", "form", "grant", "teardown", "release", "stopped") == [
        "hold", "grant", "grant", "form", "release", "release", "teardown", "stopped",
    ]  # fmt: skip


@in_rows("fmt", list(Format))
@on_rig()
async def test_requests_are_json_or_msgpack(rig: Rig, fmt):
    seats = [{"rank": 0, "slots": 1}]
    body = {"gang": "g", "generation": 1, "attempt": 1, "hold_s": 2.0, "seats": seats}
    held, _ = await rig.hand.request("hold", body, fmt)
    again, _ = await rig.hand.request("hold", body, fmt)
    assert held["accepted"] and again["tokens"] == held["tokens"] and again["port"] == held["port"]
    unheld, _ = await rig.hand.request("unhold", {"gang": "g", "generation": 1, "attempt": 1}, fmt)
    assert unheld["released"] and load_of(rig) == (0, 0)
    kept, _ = await rig.hand.request("keep", {"gang": "g", "slots": 5, "keep_s": 1.0}, fmt)
    assert kept["kept"] == 2
    pinged, _ = await rig.hand.request("ping", {"gangs": {"g": 1}}, fmt)
    assert pinged == {"missing": {"g": 1}, "starting": {}}


@in_rows(
    "operation, body, says",
    [
        ("hold", {"gang": "g", "generation": 1, "attempt": 1, "hold_s": 2.0, "seats": []}, "at least one"),
        (
            "hold",
            {"gang": "g", "generation": 1, "attempt": 1, "hold_s": 2.0, "seats": [{"rank": 0, "slots": 1}] * 2},
            "once",
        ),
        ("hold", {"gang": "g"}, "generation"),
        ("teardown", {"gang": "a.b", "generation": 1, "reason": "", "grace_s": 1}, "gang"),
        ("form", [], "list"),
        ("ping", None, "gangs"),
    ],
)
@on_rig()
async def test_malformed_requests_say_what_is_wrong(rig: Rig, operation, body, says):
    answer, headers = await rig.hand.request(operation, body)
    assert answer["code"] == "invalid_request" and says in answer["message"]
    assert headers["Nats-Service-Error-Code"] == "400"
    assert load_of(rig) == (0, 0)


@on_rig(slots=2)
async def test_a_refused_hold_says_why(rig: Rig, leader: Leader):
    assert (await leader.hold(ranks=3))["reason"] == "too_large"
    await leader.hold("other", ranks=2)
    refused = await leader.hold(ranks=1)
    assert not refused["accepted"] and refused["reason"] == "full" and refused["load"]["free"] == 0


@on_rig(slots=4)
async def test_a_teardown_is_answered_when_the_last_task_has_stopped(rig: Rig, leader: Leader):
    seats = await leader.gang(ranks=2)
    rig.hand.send(task(1, "wait", token=seats[0].token), task(2, "wait", token=seats[1].token))
    await rig.hand.quiet()
    assert load_of(rig) == (2, 0)
    assert (await leader.teardown(reason="member 1 died"))["stopped"]
    assert load_of(rig) == (0, 0)
    answer = await rig.hand.answer(1)
    assert answer[0] == ERROR and answer[2] == "task_cancelled" and "member 1 died" in answer[3]


def stubborn_pool(gates: Gates) -> Pool:
    pool = Pool("images", slots=4)

    async def run(wait: Callable[[], Awaitable[object]]) -> None:
        for number in range(2):
            try:
                await wait()
            except asyncio.CancelledError:
                gates.started.append(f"cancelled {number}")

    @pool.task
    async def stubborn() -> None:
        await run(lambda: asyncio.sleep(1000))

    @pool.task
    async def stubborn_group() -> None:
        await run(lambda: asyncio.gather(asyncio.sleep(1000), asyncio.sleep(1000)))

    return pool


@on_rig(pool=stubborn_pool)
async def test_who_swallows_the_first_cancellation_is_told_again_when_the_grace_is_over(rig: Rig, leader: Leader):
    (seat,) = await leader.gang()
    rig.hand.send(task(1, "stubborn", token=seat.token))
    await rig.hand.quiet()
    began = asyncio.get_running_loop().time()
    first = asyncio.ensure_future(leader.teardown(grace_s=1.5))
    await asyncio.sleep(1.0)
    assert rig.gates.started == ["cancelled 0"] and not first.done()
    again = asyncio.ensure_future(leader.teardown(grace_s=1.5))
    assert (await first)["stopped"] and (await again)["stopped"], "a request that came again is answered too"
    assert rig.gates.started == ["cancelled 0", "cancelled 1"]
    assert asyncio.get_running_loop().time() - began == pytest.approx(1.5, abs=0.1)


@on_rig(pool=stubborn_pool)
async def test_code_that_takes_some_turns_of_the_loop_to_see_a_cancellation_is_told_twice_without_a_grace_time(
    rig: Rig, leader: Leader
):
    (seat,) = await leader.gang()
    rig.hand.send(task(1, "stubborn_group", token=seat.token))
    await rig.hand.quiet()
    async with asyncio.timeout(1.0):
        assert (await leader.teardown(grace_s=0.0))["stopped"]
    assert rig.gates.started == ["cancelled 0", "cancelled 1"]


# -- what tasks see ----------------------------------------------------------------------------------------------------


def seeing_pool(_gates: Gates) -> Pool:
    pool = Pool("images", slots=4)

    @pool.task
    async def look() -> dict[str, Any]:
        gang = current_task().gang
        return {
            "id": gang.id,
            "generation": gang.generation,
            "rank": gang.rank,
            "world_size": gang.world_size,
            "workers": [member.worker for member in gang.members],
            "address": gang.me.address,
            "rendezvous": gang.rendezvous,
            "fence": gang.fence,
            "task_fence": current_task().fence,
            "run": gang.run,
        }

    @pool.task
    async def meet() -> None:
        await current_task().gang.barrier()

    @pool.task
    async def stay() -> int:
        while True:
            await asyncio.sleep(0.1)
            gang = current_task().gang
            if gang.latest.generation > gang.generation:
                return gang.latest.generation

    @pool.task
    async def give_up() -> None:
        current_task().gang.fail("out of memory")
        await asyncio.sleep(1000)

    @pool.task
    async def alone() -> bool:
        return current_task().in_gang

    @pool.task
    async def raises() -> None:
        raise ValueError("bad input")

    return pool


@on_rig(pool=seeing_pool)
async def test_a_task_knows_its_gang(rig: Rig, leader: Leader):
    seats = await leader.gang(ranks=2, fence=123)
    answer = await rig.hand.ask(*task(1, "look", token=seats[1].token, meta={"run": 7}))
    assert answer[2] == {
        "id": "g",
        "generation": 1,
        "rank": 1,
        "world_size": 2,
        "workers": ["images.w1", "images.w1"],
        "address": "10.0.0.1",
        "rendezvous": ["10.0.0.1", 4000],
        "fence": 123,
        "task_fence": 123,
        "run": 7,
    }
    body = {"token": seats[0].token, "method": "look"}
    plain, _ = await leader.hand.request("dispatch", body)
    assert plain["rank"] == 0 and plain["run"] == 0
    assert (await rig.hand.ask(*task(2, "alone")))[2] is False
    outside = await rig.hand.ask(*task(3, "look"))
    assert outside[0] == ERROR and "does not run in a gang" in outside[3]


@on_rig(pool=seeing_pool)
async def test_a_rank_that_returns_without_a_call_is_named_to_those_who_wait_in_it(rig: Rig, leader: Leader):
    seats = await leader.gang(ranks=3)
    rig.hand.send(*(task(seat.rank, "meet", token=seat.token, meta={"run": 1}) for seat in seats[1:]))
    await rig.hand.quiet(5.0)
    rig.hand.send(task(0, "look", token=seats[0].token, meta={"run": 1}))
    for seat in seats[1:]:
        answer = await rig.hand.answer(seat.rank, within_s=1.0)
        assert answer[0] == ERROR and "rank 0 returned without calling barrier()" in answer[3]


@on_rig(pool=seeing_pool)
async def test_a_survivor_sees_the_new_generation_and_a_collective_call_of_the_old_one_fails_at_once(
    rig: Rig, leader: Leader
):
    first, lost, third = await leader.gang(ranks=3)
    rig.hand.send(task(1, "stay", token=first.token), task(2, "meet", token=third.token))
    await rig.hand.quiet()
    assert (await leader.teardown(only=[lost.token]))["stopped"]
    assert (await leader.form(await leader.replaced(1, first, third), generation=2))["formed"]
    assert (await rig.hand.answer(1))[::2] == [OK, 2]
    failed = await rig.hand.answer(2)
    assert failed[0] == ERROR and "generation, 2" in failed[3], failed


# -- failures that are reported ----------------------------------------------------------------------------------------


@on_rig(pool=seeing_pool)
async def test_a_task_that_raises_is_its_callers_business(rig: Rig, leader: Leader):
    (seat,) = await leader.gang()
    assert (await rig.hand.ask(*task(1, "raises", token=seat.token)))[2] == "task_failed"
    await asyncio.sleep(5.0)
    assert leader.reports == []
    assert (await rig.hand.ask(*task(2, "alone", token=seat.token)))[2] is True


@on_rig(pool=seeing_pool)
async def test_a_report_is_sent_until_somebody_leads(rig: Rig, leader: Leader):
    (seat,) = await leader.gang()
    leader.deaf = True
    rig.hand.send(task(1, "give_up", token=seat.token))
    await asyncio.sleep(7.0)
    leader.deaf = False
    assert (await leader.report())["cause"] == "failed"
    await asyncio.sleep(10.0)
    assert len(leader.reports) == 1


@on_rig(pool=seeing_pool)
async def test_a_failure_is_reported_again_to_a_leader_that_takes_the_gang_for_whole(rig: Rig, leader: Leader):
    """The one that accepted the report may have lost its leadership before it wrote anything."""
    (seat,) = await leader.gang()
    rig.hand.send(task(1, "give_up", token=seat.token))
    report = await leader.report()
    await rig.hand.quiet(5.0)
    assert leader.reports == [report]
    assert await leader.ping(g=1) == {}
    await rig.hand.quiet(5.0)
    assert leader.reports == [report, report]
    assert (await leader.teardown())["stopped"]
    assert await leader.ping(g=1) == {"g": 1}
    await rig.hand.quiet(5.0)
    assert leader.reports == [report, report]


@on_rig(freeze_after_s=1.0)
async def test_a_new_epoch_ends_members_and_reports_them_and_their_tasks_run_on(rig: Rig, leader: Leader):
    seats = await leader.gang()
    old = await leader.hold("other")
    rig.hand.send(task(1, "wait", token=seats[0].token))
    await rig.hand.quiet()
    rig.worker._worker_server.new_epoch("frozen")  # type: ignore[union-attr]
    report = await leader.report()
    assert (report["cause"], report["rank"]) == ("failed", 0) and "epoch" in report["detail"]
    assert load_of(rig) == (1, 0), "the task runs on and is counted; the hold is gone"
    assert await leader.ping(g=1) == {"g": 1}
    refused = await leader.form(leader.seats(old), "other")
    assert not refused["formed"] and "epoch" in refused["reason"]
    assert (await leader.teardown())["stopped"]
    assert load_of(rig) == (0, 0)
    assert (await rig.hand.answer(1))[2] == "task_cancelled"


@on_rig()
async def test_members_stop_when_another_process_has_the_workers_id(rig: Rig, leader: Leader):
    """The teardown of their generation goes to that process, too, and this one does not hear it any more."""
    (seat,) = await leader.gang()
    rig.hand.send(task(1, "wait", token=seat.token))
    await rig.hand.quiet()
    rig.worker._on_lost("another")
    answer = await rig.hand.answer(1)
    assert answer[2] == "task_cancelled" and "another process has the worker's id" in answer[3]
    assert load_of(rig) == (0, 0)
    with pytest.raises(WorkerIdTaken):
        await rig.worker.wait_closed()


@on_rig(drain_grace_s=5.0)
async def test_a_drain_honours_gangs_until_its_grace_ends_and_reports_who_is_left(rig: Rig, leader: Leader):
    (seat,) = await leader.gang()
    loop = asyncio.get_running_loop()
    began = loop.time()
    draining = asyncio.ensure_future(rig.worker.drain())
    await asyncio.sleep(4.0)
    assert (await rig.hand.ask(*task(1, token=seat.token)))[0] == OK
    assert not (await leader.hold("late"))["accepted"]
    report = await leader.report()
    assert (report["cause"], report["rank"]) == ("drained", 0)
    await draining
    assert loop.time() - began < 8.0
    assert load_of(rig) == (0, 0)


@on_rig(drain_grace_s=60.0)
async def test_a_drain_ends_when_its_gangs_were_moved(rig: Rig, leader: Leader):
    await leader.gang()
    draining = asyncio.ensure_future(rig.worker.drain())
    await asyncio.sleep(1.0)
    assert rig.value("reg.images.w1")["state"] == "draining"
    assert (await leader.teardown())["stopped"]
    async with asyncio.timeout(3.0):
        await draining
    assert leader.reports == []


@on_rig()
async def test_a_worker_that_stops_at_once_says_so(rig: Rig, leader: Leader):
    await leader.gang(ranks=2)
    await rig.worker.stop()
    assert [(report["cause"], report["rank"]) for report in leader.reports] == [("left", 0), ("left", 1)]
    assert load_of(rig) == (0, 0)


@on_rig(pool=seeing_pool)
async def test_a_report_that_a_leaving_leader_turns_away_is_sent_again(rig: Rig, leader: Leader):
    (seat,) = await leader.gang()
    leader.turns_away = 2
    rig.hand.send(task(1, "give_up", token=seat.token))
    await asyncio.sleep(5.0)
    assert [report["rank"] for report in leader.reports] == [0, 0, 0], "twice in vain, and once taken"


# -- hooks -------------------------------------------------------------------------------------------------------------


def hooked_pool(gates: Gates, *, fails: bool = False) -> Pool:
    pool, log = Pool("images", slots=4), gates.started

    @pool.gang_start
    async def start(gang: Any) -> None:
        log.append(f"start {gang.rank} of {gang.world_size}")
        await gates.open.wait()
        if fails:
            raise RuntimeError("no GPU")

    @pool.gang_stop
    async def stop(gang: Any) -> None:
        log.append(f"stop {gang.rank}")
        await asyncio.sleep(0.5)
        log.append(f"stopped {gang.rank}")

    @pool.task
    async def work() -> str:
        log.append("work")
        try:
            await asyncio.sleep(1.0)
        finally:
            await asyncio.sleep(0.2)
            log.append("worked")
        return "done"

    return pool


@on_rig(pool=hooked_pool)
async def test_tasks_wait_for_the_start_of_their_member(rig: Rig, leader: Leader):
    (seat,) = await leader.gang()
    rig.hand.send(task(1, "work", token=seat.token))
    await rig.hand.quiet(0.5)
    assert rig.gates.started == ["start 0 of 1"]
    rig.gates.open.set()
    assert (await rig.hand.answer(1))[::2] == [OK, "done"]
    rig.hand.send(task(2, "work", token=seat.token))
    await rig.hand.quiet(0.1)
    assert (await leader.teardown())["stopped"]
    assert rig.gates.started == ["start 0 of 1", "work", "worked", "work", "worked", "stop 0", "stopped 0"]
    assert load_of(rig) == (0, 0)


@on_rig(pool=partial(hooked_pool, fails=True))
async def test_a_start_that_fails_is_reported_and_its_tasks_fail_without_having_started(rig: Rig, leader: Leader):
    (seat,) = await leader.gang()
    rig.hand.send(task(1, "work", token=seat.token))
    rig.gates.open.set()
    report = await leader.report()
    assert (report["cause"], report["detail"]) == ("failed_at_start", "RuntimeError: no GPU")
    answer = await rig.hand.answer(1)
    assert answer[2] == "gang_failed" and answer[5] is False
    assert (await rig.hand.ask(*task(2, "work", token=seat.token)))[2] == "gang_failed"
    assert (await leader.teardown())["stopped"]
    assert rig.gates.started == ["start 0 of 1", "stop 0", "stopped 0"]
    assert load_of(rig) == (0, 0)


@on_rig(pool=hooked_pool)
async def test_a_member_is_reported_as_started_when_its_start_hooks_have_ended(rig: Rig, leader: Leader):
    seats = await leader.committed(ranks=2)
    assert (await leader.ask("ping", gangs={"g": 1})) == {"missing": {}, "starting": {"g": 1}}, "held only"
    assert (await leader.form(seats))["starting"] is True
    await asyncio.sleep(5.0)
    assert leader.started == [] and (await leader.ask("ping", gangs={"g": 1}))["starting"] == {"g": 1}
    rig.gates.open.set()
    await asyncio.sleep(1.0)
    assert sorted((report["generation"], report["rank"]) for report in leader.started) == [(1, 0), (1, 1)]
    assert (await leader.form(seats))["starting"] is False
    assert (await leader.ask("ping", gangs={"g": 1}))["starting"] == {}
    assert leader.reports == []


@on_rig(pool=hooked_pool)
async def test_that_a_member_has_started_is_reported_until_somebody_leads(rig: Rig, leader: Leader):
    await leader.gang()
    leader.deaf = True
    rig.gates.open.set()
    await asyncio.sleep(10.0)
    leader.deaf = False
    await asyncio.sleep(4.0)
    assert [report["rank"] for report in leader.started] == [0]


def ignoring_pool(gates: Gates) -> Pool:
    pool = Pool("images", slots=4)

    @pool.gang_start
    async def stubborn(gang: Any) -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            gates.started.append("ignored")

    @pool.gang_start
    async def second(gang: Any) -> None:
        gates.started.append("second")

    return pool


@on_rig(pool=ignoring_pool)
async def test_a_start_hook_that_ignores_that_its_time_is_over_does_not_make_its_member_start(rig: Rig, leader: Leader):
    await leader.gang(start_timeout_s=2.0)
    assert (await leader.report())["cause"] == "failed_at_start"
    await asyncio.sleep(5.0)
    assert rig.gates.started == ["ignored"] and leader.started == [] and len(leader.reports) == 1


@on_rig(pool=hooked_pool)
async def test_the_time_for_a_start_is_not_counted_on_once_it_has_ended(rig: Rig, leader: Leader):
    rig.gates.open.set()
    await leader.gang(start_timeout_s=1.0)
    await asyncio.sleep(5.0)
    assert leader.reports == [] and len(leader.started) == 1


@on_rig(pool=hooked_pool)
async def test_a_member_that_stayed_while_it_started_is_reported_in_its_new_generation(rig: Rig, leader: Leader):
    seats = await leader.gang()
    assert (await leader.form(seats, generation=2))["starting"] is True
    rig.gates.open.set()
    await asyncio.sleep(1.0)
    assert [(report["generation"], report["rank"]) for report in leader.started] == [(2, 0)]


@on_rig(pool=hooked_pool)
async def test_a_teardown_during_the_start_ends_it(rig: Rig, leader: Leader):
    (seat,) = await leader.gang()
    rig.hand.send(task(1, "work", token=seat.token))
    await rig.hand.quiet(0.1)
    assert (await leader.teardown())["stopped"]
    assert (await rig.hand.answer(1))[2] == "task_cancelled"
    assert rig.gates.started == ["start 0 of 1", "stop 0", "stopped 0"] and leader.reports == []
    assert load_of(rig) == (0, 0)


@on_rig(pool=hooked_pool)
async def test_no_hook_begins_once_the_member_was_torn_down(rig: Rig, leader: Leader):
    seats = await leader.committed()
    formed, torn = await asyncio.gather(leader.form(seats), leader.teardown())
    assert formed["formed"] and torn["stopped"]
    assert rig.gates.started == [] and load_of(rig) == (0, 0), "nor one for its end: it never began"


@on_rig(pool=hooked_pool)
async def test_a_worker_that_leaves_runs_the_stop_hooks(rig: Rig, leader: Leader):
    rig.gates.open.set()
    await leader.gang()
    await rig.hand.quiet(0.1)
    await rig.worker.stop()
    assert rig.gates.started == ["start 0 of 1", "stop 0", "stopped 0"], "waited for"


# -- operators ---------------------------------------------------------------------------------------------------------


@on_rig(slots=4)
async def test_stats_show_gangs(rig: Rig, leader: Leader):
    (seat,) = await leader.gang()
    await leader.hold("other")
    await asyncio.sleep(1.0)
    stats, _ = await rig.hand.request("stats")
    (lease,) = stats["leases"]
    assert (lease["token"], lease["gang"], lease["owner"]) == (public_id(seat.token), "g", "gang g")
    assert lease["expires_in_s"] == pytest.approx(9.0, abs=0.1)
    assert [(share["gang"], share["state"], share["slots"]) for share in stats["gangs"]] == [
        ("other", "held", 1),
        ("g", "formed", 1),
    ]
    assert rig.worker.statistics().gangs["formed"] == 1 and rig.worker.statistics().gangs["members"] == 1


@on_rig(slots=2)
async def test_the_journal_tells_of_every_hold_that_ends_without_members(rig: Rig, leader: Leader):
    await leader.hold(attempt=1)
    assert (await leader.hold(attempt=2, ranks=3))["accepted"] is False, "the first attempt is given up all the same"
    assert rig.events("hold", "unhold") == ["hold", "unhold"]
    await leader.hold(attempt=3)
    await leader.teardown()
    assert rig.events("hold", "unhold") == ["hold", "unhold"] * 2 and load_of(rig) == (0, 0)


@on_rig(slots=4)
async def test_the_journal_tells_of_the_seats_that_a_hold_loses(rig: Rig, leader: Leader):
    held = await leader.hold(ranks=3)
    await leader.teardown(only=[seat.token for seat in leader.seats(held)[:1]])
    assert rig.events("hold", "unhold") == ["hold", "unhold"] and load_of(rig) == (0, 2)
    assert rig.journal[-1]["left"] == 2


@on_rig()
async def test_slots_of_a_seat_are_held_by_a_token_on_which_tasks_are_the_gangs(rig: Rig, leader: Leader):
    seat = (await leader.gang())[0].token
    single, sync = int(ReserveFlag.SINGLE_USE), int(ReserveFlag.SYNC)
    granted = await rig.hand.ask(*reserve(1, flags=single, meta={"seat": seat}))
    assert granted[:2] == [GRANTED, 1] and load_of(rig) == (0, 1)
    assert (await rig.hand.ask(*reserve(2, meta={"seat": seat}))) == [REJECTED, 2, "full"]
    assert (await rig.hand.ask(*task(3, token=seat)))[2] == "lease_busy"
    rig.hand.send(task(4, "wait", token=granted[2]))
    await rig.hand.quiet()
    assert load_of(rig) == (1, 0) and rig.events("grant", "use") == ["grant", "grant", "use"]
    assert [line["seat"] for line in rig.journal if "seat" in line] == [public_id(seat)]
    assert not rig.keys("lease."), "the member record says all of it"
    assert (await rig.hand.ask(*reserve(5, flags=sync, meta={"seat": seat})))[2] == "invalid_request"
    assert (await rig.hand.ask(*reserve(6, meta={"seat": 7})))[2] == "invalid_request"
    stopping = asyncio.ensure_future(leader.teardown())
    assert (await rig.hand.answer(4))[2] == "task_cancelled"
    assert (await stopping)["stopped"] and load_of(rig) == (0, 0)
    assert (await rig.hand.ask(*reserve(7, meta={"seat": seat})))[2] == "gang_ended"
