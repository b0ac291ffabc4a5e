"""The board: deltas, slots and what waits, without any server."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.board.board_core import MOST_DELTAS, MOST_ENDED, MOST_EVENTS, Board, Rows, Table, apply
from gangline.board.slots import Cells
from gangline.cli.top.screen import system_lines
from gangline.schemas.messages.gangs import GangEvent, GangEventKind, GangObstacle, GangWhyReply
from gangline.schemas.messages.jobs import QueueStats
from gangline.schemas.messages.operations import GangShare, LeaseInfo, LoadReply, RouterQueues, StatsReply
from gangline.schemas.names import public_id
from gangline.schemas.records.gangs import GangRecord, GangSpec, GangState, HeldSeat, LeaderRecord, MemberRecord, Seat
from gangline.schemas.records.jobs import DeadReason, DispatcherEvent, JobEvent, JobState, TaskDeadEvent
from gangline.schemas.records.workers import Heartbeat, LeaseRecord, Registration

from ..scale import repetitions
from ..support.rows import in_rows

NOW = 1_790_000_000.0


def raw(record) -> bytes:
    return record.model_dump_json().encode()


def register(board, name="w1", slots=4, epoch=1, instance="i", **fields):
    record = Registration(pool="p", worker=name, epoch=epoch, instance=instance, slots=slots, **fields)
    board.see_entry(f"reg.p.{name}", raw(record))


def beat(board, running=0, reserved=0, total=4, name="w1", epoch=1, instance="i", **fields):
    record = Heartbeat(epoch=epoch, instance=instance, running=running, reserved=reserved, total=total, **fields)
    board.see_entry(f"alive.p.{name}", raw(record))


def serve(board, running=0, reserved=0, **fields):
    """A worker of four slots that lives."""
    register(board)
    beat(board, running, reserved, **fields)


def queue_stats(**fields):
    stats = {"endpoint": "p", "dispatcher": "d1", "depth": 7, "seen": 7, "running": 4, "waiting": 0, "blocked": 0}
    return [QueueStats.model_validate({**stats, "credit": 0, "leased": 4, **fields})]


def gang_event(kind, gang="g1", generation=1, size=2, **fields):
    event = GangEvent(kind=kind, gang=gang, generation=generation, size=size, at=NOW, **fields)
    return f"gangline.event.gang.{gang}", raw(event), NOW


@pytest.fixture
def board():
    return Board()


def lease(board, token="secret", slots=1, name="w1", epoch=1, single_use=False, granted_at=NOW):
    id = public_id(token)
    record = LeaseRecord(
        pool="p",
        worker=name,
        epoch=epoch,
        token=token,
        slots=slots,
        fence=1,
        single_use=single_use,
        owner="me",
        granted_at=granted_at,
        expires_at=NOW + 15,
    )
    board.see_entry(f"lease.p.{name}.{id[1:]}", raw(record))
    return id


def member(board, gang="g1", slots=2, name="w1", epoch=1):
    seat = HeldSeat(rank=0, slots=slots, token="~seat")
    record = MemberRecord(gang=gang, generation=1, epoch=epoch, seats=(seat,))
    board.see_entry(f"member.p.{name}.{gang}", raw(record))


def gang(board, id="g1", state=GangState.QUEUED, **fields):
    spec = GangSpec.model_validate({"pool": "p", "size": 2, "slots": 2, "owner": "train"})
    board.see_entry(f"gang.{id}", raw(GangRecord(id=id, state=state, spec=spec, created_at=NOW, **fields)))


def cells(board, name="p.w1"):
    board.take()
    board.check()
    return board.slots[name].cells


def test_a_slot_is_free_only_if_neither_the_ledger_nor_the_heartbeat_says_otherwise(board):
    serve(board)
    id = lease(board, slots=3)
    assert cells(board) == (Cells("lease", 3, id), Cells("free", 1))
    beat(board, running=1, reserved=2)
    assert cells(board) == (Cells("lease", 3, id, 1), Cells("free", 1))
    beat(board, running=2, reserved=2)
    assert cells(board) == (Cells("lease", 3, id, 1), Cells("task", 1, "", 1))


def test_rows_of_one_delta_are_in_the_order_of_their_keys(board):
    register(board, slots=50)
    ids = [lease(board, token=f"secret{number}") for number in range(50)]
    delta = board.take()
    assert delta is not None and list(delta.rows["leases"]) == sorted(ids)


def test_slots_of_gangs_come_first_and_calls_without_a_lease_count_as_tasks(board):
    register(board, slots=8)
    beat(board, running=3, reserved=4, total=8)
    member(board, slots=2)
    id = lease(board, slots=2)
    # Three slots are neither a gang's nor a lease's: those run.
    assert cells(board) == (Cells("gang", 2, "g1"), Cells("lease", 2, id), Cells("task", 3, "", 3), Cells("free", 1))


def test_leases_of_an_earlier_epoch_take_no_slots(board):
    register(board, epoch=2)
    beat(board, epoch=2)
    lease(board, slots=4, epoch=1)
    assert cells(board) == (Cells("free", 4),)


def test_a_heartbeat_of_an_earlier_process_makes_a_worker_lost(board):
    register(board, instance="new", epoch=2)
    beat(board, running=4, instance="old", epoch=1)
    assert cells(board) == (Cells("lost", 4),)
    assert board.rows[Table.WORKERS]["p.w1"]["state"] == "lost"


def test_a_worker_without_a_heartbeat_is_lost_and_its_leases_are_still_shown(board):
    serve(board)
    id = lease(board)
    board.see_entry("alive.p.w1", None)
    assert cells(board) == (Cells("lease", 1, id), Cells("lost", 3))
    assert board.slots["p.w1"].free == 0


def test_free_slots_of_a_draining_worker_are_closed(board):
    serve(board, running=1, draining=True)
    assert cells(board) == (Cells("task", 1, "", 1), Cells("closed", 3))


def test_a_worker_that_was_made_smaller_shows_more_cells_than_it_has_slots(board):
    register(board, slots=1)
    beat(board, total=1, running=2, reserved=1)
    id = lease(board, slots=3)
    assert cells(board) == (Cells("lease", 3, id, 2),)
    assert board.slots["p.w1"].total == 1


def test_slots_that_the_coordinator_keeps_for_a_gang_are_kept_only_if_the_worker_has_reserved_them(board):
    serve(board, reserved=2)
    gang(board)
    board.answer_why(GangWhyReply(id="g1", step="queued", kept={"p.w1": 3}), NOW)
    assert cells(board) == (Cells("kept", 2, "g1"), Cells("free", 2))
    gang(board, state=GangState.FORMED)
    assert cells(board) == (Cells("reserved", 2), Cells("free", 2))


def test_the_statistics_of_a_worker_tell_what_runs_where_until_they_are_old(board):
    serve(board, running=1, reserved=2)
    first, second = lease(board, "a"), lease(board, "b", granted_at=NOW + 1)
    load = LoadReply(running=1, reserved=2, total=4, ongoing=3, free=1, draining=False)
    info = [
        LeaseInfo(token=id, slots=1, running=busy, single_use=False, owner="", expires_in_s=5)
        for id, busy in ((first, 0), (second, 1))
    ]
    share = GangShare(gang="g2", state="kept", slots=1)
    stats = StatsReply(pool="p", worker="w1", epoch=1, load=load, leases=info, tasks={}, gangs=(share,), ledger={})
    board.answer_stats(stats, NOW)
    known = (Cells("lease", 1, first), Cells("lease", 1, second, 1), Cells("kept", 1, "g2"), Cells("free", 1))
    assert cells(board) == known
    board.tick(NOW + 60)
    # One slot is in use that is no lease's, so the one that runs is taken to be that.
    guessed = (Cells("lease", 1, first), Cells("lease", 1, second), Cells("task", 1, "", 1), Cells("free", 1))
    assert cells(board) == guessed


@pytest.mark.parametrize(("silent_s", "state"), [(0.5, "left"), (3.0, "lost")])
def test_a_worker_that_is_gone_is_still_described_until_it_comes_back(silent_s, state, board):
    board.tick(NOW)
    register(board, slots=7, node="n1")
    beat(board)
    board.take()
    board.tick(NOW + silent_s)
    board.see_entry("alive.p.w1", None)
    board.see_entry("reg.p.w1", None)
    board.take()
    gone = board.rows[Table.GONE]["p.w1"]
    assert (gone["state"], gone["last_seen_at"], gone["slots"], gone["node"]) == (state, NOW, 7, "n1")
    assert "p.w1" not in board.rows[Table.WORKERS]
    register(board)
    board.take()
    assert "p.w1" not in board.rows[Table.GONE] and "p.w1" in board.rows[Table.WORKERS]


def test_a_pool_adds_up_its_workers_without_the_lost(board):
    for name in ("w1", "w2", "w3"):
        register(board, name)
    beat(board, running=1, name="w1")
    beat(board, running=2, reserved=1, name="w2")
    lease(board, name="w2")
    board.take()
    row = board.rows[Table.POOLS]["p"]
    assert (row["workers"], row["lost"], row["total"], row["running"], row["free"]) == (3, 1, 8, 3, 4)
    assert (row["leased"], row["leases"]) == (1, 1)


def test_a_gang_is_shown_with_its_generations_after_its_record_is_gone(board):
    gang(board, state=GangState.FORMED, seats=(Seat(rank=0, pool="p", worker="w1", token="~x", epoch=1),))
    for kind, generation in ((GangEventKind.FORMED, 1), (GangEventKind.TORN_DOWN, 1), (GangEventKind.ENDED, 2)):
        board.see_event(*gang_event(kind, generation=generation, reason="crashed"))
    board.take()
    board.see_entry("gang.g1", None)
    board.take()
    row = board.rows[Table.GANGS]["g1"]
    assert row["state"] == "ended"
    steps = [(step["kind"], step["generation"]) for step in row["steps"]]
    assert steps == [("formed", 1), ("torn_down", 1), ("ended", 2)]


def test_ended_gangs_and_lists_of_events_are_bounded(board):
    for number in range(MOST_EVENTS + MOST_ENDED):
        id = f"g{number}"
        gang(board, id)
        board.take()
        board.see_event(*gang_event(GangEventKind.ENDED, id))
        board.see_entry(f"gang.{id}", None)
    # An event of a gang whose record never comes leaves nothing behind either.
    for number in range(MOST_ENDED * 3):
        board.see_event(*gang_event(GangEventKind.QUEUED, f"s{number}"))
    board.take()
    assert len(board.rows[Table.EVENTS]) == MOST_EVENTS
    assert len(board.rows[Table.GANGS]) <= MOST_ENDED
    assert len(board._steps) <= MOST_ENDED


def test_a_queued_gang_waits_for_holders_with_their_ends(board):
    gang(board)
    obstacle = GangObstacle(pool="p", worker="w1", holder="lease ~x", slots=2, owner="etl", ends_in_s=41.0)
    why = GangWhyReply(id="g1", step="queued", place=0, lacks=("2 slots",), obstacles=(obstacle,))
    board.answer_why(why, NOW)
    board.take()
    row = board.rows[Table.WAITS]["gang:g1"]
    assert row["reasons"] == ["2 slots"] and row["count"] == 2 and row["place"] == 0
    (shown,) = row["obstacles"]
    assert (shown["worker"], shown["holder"], shown["owner"], shown["ends_at"]) == ("p.w1", "lease ~x", "etl", NOW + 41)
    gang(board, state=GangState.FORMED)
    board.take()
    assert board.rows[Table.WAITS] == {}


@in_rows(
    ("fields", "route", "reason"),
    [
        ({}, None, "all 4 slots of its pools are in use"),
        ({"blocked": 3}, None, "3 tasks wait because of a limit or the order of their key"),
        ({"waiting": 1}, None, "1 task failed and wait for the next attempt"),
        ({"dispatcher": ""}, None, "no dispatcher runs it: start 'gangline dispatcher'"),
        ({}, b'{"queue": {"paused": true}}', "its route pauses it"),
        ({}, b'{"to": {"q": 1}}', "no worker serves its pools"),
    ],
)
def test_a_queue_says_why_its_tasks_wait(fields, route, reason):
    board = Board()
    serve(board, running=4)
    board.answer_queues(queue_stats(**fields))
    if route is not None:
        board.see_route("p", route)
    board.take()
    row = board.rows[Table.WAITS]["queue:p"]
    assert row["count"] == 3
    assert reason in row["reasons"]


def test_queues_for_which_nobody_answers_any_more_are_shown_with_their_age(board):
    board.tick(NOW)
    board.miss("queues", "never answered, and nothing is shown")
    answer = queue_stats()
    board.answer_queues(answer)
    board.miss("queues", "no storage")
    board.tick(NOW + 4)
    board.take()
    assert board.rows[Table.SYSTEM] == {}
    board.tick(NOW + 60)
    board.miss("queues", "no connection")
    board.take()
    old = {"kind": "old", "id": "queues", "at": NOW, "why": "no storage"}
    assert board.rows[Table.SYSTEM] == {"old:queues": old} and board.rows[Table.QUEUES]
    assert [line.plain for line in system_lines(board)][0].endswith("no storage")
    board.answer_queues(answer)
    board.take()
    assert board.rows[Table.SYSTEM] == {}


def test_calls_that_wait_are_told_by_pool_until_their_router_is_silent(board):
    queues = RouterQueues(router="r1", owner="web", node="n", waiting={"p": 3})
    board.see_event("gangline.event.router.r1", raw(queues), NOW)
    board.take()
    row = board.rows[Table.WAITS]["calls:p"]
    assert (row["count"], row["owner"], row["reasons"]) == (3, "web", ["no worker of p serves"])
    board.tick(NOW + 60)
    board.take()
    assert board.rows[Table.WAITS] == {} and board.rows[Table.POOLS] == {}


def test_an_invalid_route_is_shown_with_what_is_wrong(board):
    board.see_route("resize", b'{"too": {"a": 1}}')
    board.take()
    assert "too" in board.rows[Table.ROUTES]["resize"]["error"]
    board.see_route("resize", None)
    board.take()
    assert board.rows[Table.ROUTES] == {}


def test_the_system_has_leaders_and_dispatchers_and_forgets_the_silent(board):
    board.see_entry("leader", raw(LeaderRecord(term=3, instance="c1", since=NOW)))
    event = DispatcherEvent(dispatcher="d1", event="here", has=2, at=NOW)
    board.see_event("gangline.event.dispatcher.d1", raw(event), NOW)
    board.take()
    leader = board.rows[Table.SYSTEM]["leader:"]
    assert (leader["term"], leader["instance"], leader["alive"]) == (3, "c1", False)
    assert board.rows[Table.SYSTEM]["dispatcher:d1"]["queues"] == 2
    board.tick(NOW + 60)
    board.take()
    assert set(board.rows[Table.SYSTEM]) == {"leader:"}


def test_jobs_and_dead_letters_are_listed(board):
    for job in ("j1", "j2"):
        board.see_job(raw(JobEvent(job=job, state=JobState.RUNNING, attempt=1, worker="p.w1", at=NOW)))
        dead = TaskDeadEvent(job=job, endpoint="p", method="m", reason=DeadReason.FAILED, attempts=3, at=NOW)
        board.see_event("gangline.event.task.p", raw(dead), NOW)
    board.take()
    assert set(board.rows[Table.JOBS]) == {"j1", "j2"}
    assert board.rows[Table.DEAD]["j2"]["reason"] == "failed"


@in_rows("value", [b"", b"{", b"[]", b'{"pool": 1}', b"\xff"])
def test_what_cannot_be_read_changes_nothing_else(value):
    board = Board()
    register(board, "w2")
    for of_worker in ("reg.p.w1", "alive.p.w1", "lease.p.w1.x", "member.p.w1.g"):
        board.see_entry(of_worker, value)
    for key in ("gang.g", "gangset.s", "leader", "reg", "x.y"):
        board.see_entry(key, value)
    board.see_route("r", value)
    board.see_job(value)
    for kind in ("gang.g1", "worker.p.w1", "task.p", "dispatcher.d", "router.r", "route.r", "x"):
        board.see_event(f"gangline.event.{kind}", value, NOW)
    board.take()
    board.check()
    assert list(board.rows[Table.WORKERS]) == ["p.w2"]


def test_no_row_has_a_token_even_if_an_earlier_version_wrote_it_into_the_ledger(board):
    register(board)
    lease(board, token="very-secret-token")
    member(board)
    seat = Seat(rank=0, pool="p", worker="w1", token="very-secret-token", epoch=1)
    gang(board, state=GangState.FORMED, seats=(seat,), owner_token="very-secret-token")
    board.take()
    assert "very-secret" not in json.dumps(board.snapshot().to_json())


def test_nothing_new_is_no_delta_and_no_revision(board):
    serve(board)
    assert board.take() is not None
    beat(board)
    assert board.take() is None
    assert board.revision == 1


def test_a_client_that_was_away_too_long_gets_a_snapshot(board):
    register(board)
    for running in range(MOST_DELTAS + 2):
        beat(board, running=running % 4)
        assert board.take() is not None
    assert board.since(1) is None and board.since(board.revision + 1) is None and board.since(-1) is None
    assert board.since(board.revision) == ()
    since = board.since(2)
    assert since is not None and [delta.revision for delta in since] == list(range(3, MOST_DELTAS + 3))


NAMES = st.sampled_from(["w1", "w2"])
SMALL = st.integers(0, 4)
STEPS = st.one_of(
    st.tuples(st.just("register"), NAMES, st.integers(1, 5), st.integers(1, 2)),
    st.tuples(st.just("beat"), NAMES, SMALL, SMALL, st.integers(1, 2)),
    st.tuples(st.just("lease"), NAMES, st.sampled_from("abc"), st.integers(1, 3), st.integers(1, 2)),
    st.tuples(st.just("member"), NAMES, st.sampled_from(["g1", "g2"]), st.integers(1, 3)),
    st.tuples(st.just("gang"), st.sampled_from(["g1", "g2"]), st.sampled_from(list(GangState))),
    st.tuples(st.just("why"), st.sampled_from(["g1", "g2"]), NAMES, SMALL),
    st.tuples(st.just("event"), st.sampled_from(["g1", "g2"]), st.sampled_from(list(GangEventKind))),
    st.tuples(st.just("gone"), st.sampled_from(["reg.p.w1", "alive.p.w1", "lease", "member.p.w1.g1", "gang.g1"])),
    st.tuples(st.just("calls"), SMALL),
    st.tuples(st.just("tick"), st.integers(0, 9)),
    st.tuples(st.just("take")),
)


def play(board, step):
    match step:
        case ("register", name, slots, epoch):
            register(board, name, slots=slots, epoch=epoch)
        case ("beat", name, running, reserved, epoch):
            beat(board, running, reserved, name=name, epoch=epoch)
        case ("lease", name, token, slots, epoch):
            lease(board, token, slots, name, epoch)
        case ("member", name, id, slots):
            member(board, id, slots, name)
        case ("gang", id, state):
            gang(board, id, state)
        case ("why", id, name, slots):
            board.answer_why(GangWhyReply(id=id, step="queued", kept={f"p.{name}": slots}), NOW)
        case ("event", id, kind):
            board.see_event(*gang_event(kind, id, size=1))
        case ("gone", "lease"):
            board.see_entry(f"lease.p.w1.{public_id('a')[1:]}", None)
        case ("gone", key):
            board.see_entry(key, None)
        case ("calls", count):
            queues = RouterQueues(router="r", owner="", node="", waiting={"p": count})
            board.see_event("gangline.event.router.r", raw(queues), NOW)
        case ("tick", seconds):
            board.tick(NOW + seconds)


@settings(max_examples=repetitions(15, whole=150), deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_deltas_lead_from_every_revision_to_the_present_snapshot(steps):
    board = Board()
    shown: list[tuple[int, Rows]] = [(0, {})]
    for step in [*steps, ("take",)]:
        if step != ("take",):
            play(board, step)
            continue
        board.take()
        board.check()
        shown.append((board.revision, copy.deepcopy(board.snapshot().rows)))
    for revision, rows in shown:
        for delta in board.since(revision) or ():
            apply(rows, delta)
        assert {t: r for t, r in rows.items() if r} == {t: r for t, r in board.rows.items() if r}


@settings(max_examples=repetitions(15, whole=150), deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_a_board_depends_on_what_it_was_told_and_not_on_when_deltas_were_taken(steps):
    """Ended gangs aside, whose last row is the last one that was shown."""
    often, once = Board(), Board()
    for step in steps:
        if step[0] in ("event",) or step == ("gone", "gang.g1"):
            continue
        play(often, step)
        play(once, step)
        often.take()
    once.take()
    often.take()
    assert often.rows == once.rows
