"""When a gang or a job can start, from the board: who holds slots until when, who else waits, which workers drain."""

from __future__ import annotations

import random

import pytest

from gangline.board.board_core import Board
from gangline.board.durations import durations_of
from gangline.board.forecast_core import Durations
from gangline.board.outlook import gang_outlook, job_outlook
from gangline.schemas.messages.gangs import GangObstacle, GangWhyReply
from gangline.schemas.messages.jobs import (
    JobInfo,
    JobLine,
    JobObstacle,
    JobWhyReply,
    LineLease,
    LineRunning,
    LineTask,
    QueueStats,
)
from gangline.schemas.names import public_id
from gangline.schemas.records.gangs import GangRecord, GangSpec, GangState, RestartPolicy, Seat
from gangline.schemas.records.history import HistoryKind, HistoryRecord
from gangline.schemas.records.jobs import JobState
from gangline.schemas.records.workers import LEASE_SLACK_S, Heartbeat, LeaseRecord, MethodInfo, Registration

NOW = 1_790_000_000.0
NOTHING = Durations({})


def worker(board: Board, name: str, *, slots: int = 4, used: int = 0, drain_by: float | None = None) -> None:
    state = "serving" if drain_by is None else "draining"
    record = Registration(
        pool="p", worker=name, epoch=1, instance="i", slots=slots, state=state, methods={"go": MethodInfo()},
        drain_by=drain_by,
    )  # fmt: skip
    board.see_entry(f"reg.p.{name}", record.model_dump_json().encode())
    beat = Heartbeat(epoch=1, instance="i", running=0, reserved=used, total=slots, draining=drain_by is not None)
    board.see_entry(f"alive.p.{name}", beat.model_dump_json().encode())


def lease(board: Board, name: str, token: str, *, slots: int = 1, ends_in_s: float = 40.0, owner: str = "etl") -> str:
    id = public_id(token)
    record = LeaseRecord(
        pool="p", worker=name, epoch=1, token=id, slots=slots, fence=1, single_use=False, owner=owner,
        granted_at=NOW - 10, expires_at=NOW + ends_in_s,
    )  # fmt: skip
    board.see_entry(f"lease.p.{name}.{id[1:]}", record.model_dump_json().encode())
    return id


def gang(
    board: Board,
    id: str,
    *workers: str,
    priority: int = 0,
    restart: RestartPolicy = RestartPolicy.RESTART_GANG,
    state: GangState = GangState.FORMED,
) -> None:
    seats = tuple(
        Seat(rank=rank, pool="p", worker=name, slots=1, epoch=1, token="~s") for rank, name in enumerate(workers)
    )
    spec = GangSpec.model_validate(
        {"pool": "p", "size": len(workers) or 1, "priority": priority, "restart": restart, "grace_s": 5.0}
    )
    record = GangRecord(id=id, spec=spec, state=state, generation=1, seats=seats, formed_at=NOW - 100, created_at=NOW)
    board.see_entry(f"gang.{id}", record.model_dump_json().encode())


def waits(*obstacles: GangObstacle, place: int = 0, **target: int) -> GangWhyReply:
    wanted = {f"p.{name}": slots for name, slots in target.items()}
    return GangWhyReply(id="me", step="queued", place=place, target=wanted, obstacles=obstacles)


def holds(name: str, holder: str, slots: int = 1, **others: object) -> GangObstacle:
    return GangObstacle(pool="p", worker=name, holder=holder, slots=slots, **others)  # type: ignore[arg-type]


def texts(outlook: object) -> list[str]:
    return [sentence.text + sentence.after for sentence in outlook.sentences]  # type: ignore[attr-defined]


@pytest.fixture
def board() -> Board:
    board = Board()
    board.tick(NOW)
    gang(board, "me", priority=3, state=GangState.QUEUED)
    return board


# -- gangs ------------------------------------------------------------------------------------------------------------


def test_a_gang_of_lower_priority_frees_all_its_slots_when_one_of_its_workers_has_drained(board):
    worker(board, "w2", used=4)
    worker(board, "w4", used=1, drain_by=NOW + 30)
    gang(board, "other", "w2", "w4", priority=1)
    board.take()
    found = gang_outlook(board, waits(holds("w2", "gang other", 4), w2=1), NOTHING, NOW)
    assert found.told["no_later_than_s"] == 35.0, "the drain, and the grace of its members"
    assert found.told["because"] == [
        {"worker": "p.w2", "holder": "gang other (on p.w4, which drains)", "in_s": 35.0, "estimated": False}
    ]
    assert texts(found)[-1] == "p.w4 drains: its 4 slots do not come back, and it is gone in "


@pytest.mark.parametrize(
    ("priority", "restart", "bounded"),
    [
        (1, RestartPolicy.RESTART_GANG, True),
        (3, RestartPolicy.RESTART_GANG, False),
        (5, RestartPolicy.RESTART_GANG, False),
        (5, RestartPolicy.FAIL, True),
        (1, RestartPolicy.RESTART_MEMBER, False),
    ],
)
def test_a_drained_gang_that_may_take_its_slots_back_bounds_nothing(board, priority, restart, bounded):
    worker(board, "w2", used=4)
    worker(board, "w4", used=1, drain_by=NOW + 30)
    gang(board, "other", "w2", "w4", priority=priority, restart=restart)
    board.take()
    found = gang_outlook(board, waits(holds("w2", "gang other", 4), w2=1), NOTHING, NOW)
    assert (found.told["no_later_than_s"] is not None) is bounded


def test_a_gang_that_fits_nowhere_is_told_which_workers_drain(board):
    worker(board, "w4", drain_by=NOW + 30)
    board.take()
    why = GangWhyReply(id="me", step="queued", place=0, lacks=("no worker of pool 'p'",))
    found = gang_outlook(board, why, NOTHING, NOW)
    assert texts(found)[1:] == [
        "unknown: no worker of pool 'p'",
        "p.w4 drains: its 4 slots do not come back, and it is gone in ",
    ]


class SimulatedDrains:
    """Gangs on the worker that is waited for, each also on a worker of its own, of which some drain. A gang ends by
    itself at some time that nobody knows, or by the drain. Then it is queued again by its priority, and takes the slots
    back if it goes before the one that waits."""

    def __init__(self, chance: random.Random) -> None:
        self.board = Board()
        self.board.tick(NOW)
        gang(self.board, "me", priority=3, state=GangState.QUEUED)
        count = chance.randint(1, 6)
        worker(self.board, "w", slots=count, used=count)
        self.frees: list[float] = []
        obstacles = []
        for number in range(count):
            by_itself, drains_in_s = chance.expovariate(1 / 100), chance.uniform(0, 60)
            drains = chance.random() < 0.8
            worker(self.board, f"d{number}", used=1, drain_by=NOW + drains_in_s if drains else None)
            policy = chance.choice(list(RestartPolicy))
            priority = chance.randint(0, 6)
            gang(self.board, f"g{number}", "w", f"d{number}", priority=priority, restart=policy)
            obstacles.append(holds("w", f"gang g{number}"))
            stops = drains_in_s + chance.uniform(0, 5)  # its members have a grace time of 5 s
            stays = not drains or policy is RestartPolicy.RESTART_MEMBER
            again = policy is not RestartPolicy.FAIL and (priority > 3 or (priority == 3 and chance.random() < 0.5))
            self.frees.append(by_itself if stays or again or by_itself < stops else stops)
        self.wanted = chance.randint(1, count)
        self.why = waits(*obstacles, w=self.wanted)
        self.board.take()

    def starts_in_s(self) -> float:
        return sorted(self.frees)[self.wanted - 1]


def test_in_simulated_drains_no_bound_is_broken():
    chance = random.Random("when-drains")
    bounds = 0
    for _ in range(1000):
        wait = SimulatedDrains(chance)
        bound = gang_outlook(wait.board, wait.why, NOTHING, NOW).told["no_later_than_s"]
        if bound is not None:
            bounds += 1
            assert wait.starts_in_s() <= bound + 1e-3
    print(f"gangs with drains: {bounds} bounds of 1000")
    assert bounds > 200


# -- jobs -------------------------------------------------------------------------------------------------------------


def job(*obstacles: JobObstacle, line: JobLine | None) -> JobWhyReply:
    info = JobInfo(job="p.j1", endpoint="p", method="go", state=JobState.QUEUED)
    slots = JobObstacle(kind="slots", text="No lease in pool 'p' has 1 slot free for it: its workers are busy.")
    return JobWhyReply(job=info, position=0, obstacles=(*obstacles, slots), line=line)


def test_a_job_behind_slots_is_told_who_ends_when_what_is_before_it_and_which_workers_drain(board):
    board.see_entry("gang.me", None)
    worker(board, "w1", slots=2, used=2)
    worker(board, "w2", slots=1, used=1, drain_by=NOW + 20)
    own, away = lease(board, "w1", "own", slots=1), lease(board, "w1", "other", slots=1)
    board.take()
    line = JobLine(
        pool="p",
        method="go",
        ahead=(LineTask(method="go", count=2, at_most_s=10.0),),
        running=(
            LineRunning(seq=1, method="go", worker="p.w1", started_at=NOW - 5, at_most_s=7.0),
            LineRunning(seq=2, method="go", worker="p.w2", started_at=NOW - 5, at_most_s=7.0),
        ),
        leases=(LineLease(lease=own, worker="p.w1", slots=1), LineLease(lease="~d", worker="p.w2", slots=1)),
    )
    found = job_outlook(board, job(line=line), NOTHING, NOW)
    assert found.told["no_later_than_s"] == 34.0, "all four, one after the other, on the one slot that stays"
    assert found.told["about_s"] == 27.0 and found.told["ahead"] == 2
    assert [(step["worker"], step["in_s"]) for step in found.told["because"]] == [("p.w1", 7.0), ("p.w2", 7.0)]  # type: ignore[attr-defined,union-attr]
    assert away not in str(found.row()) and f"~{away[1:]}" not in texts(found)
    assert texts(found)[1].startswith("no later than ") and "2 tasks before it for the slots of p: 2 of p.go" in texts(
        found
    )
    assert texts(found)[-1] == "p.w2 drains: its slot does not come back, and it is gone in "
    assert found.told["unknown"] == []


@pytest.mark.parametrize(("once", "bound_s"), [(True, 8.0), (False, 14.0)])
def test_a_job_behind_tasks_that_start_once_has_the_bound_of_their_order(board, once, bound_s):
    board.see_entry("gang.me", None)
    worker(board, "w1", slots=2, used=2)
    own = lease(board, "w1", "own", slots=2)
    board.take()
    line = JobLine(
        pool="p",
        method="go",
        ahead=(LineTask(method="go", at_most_s=13.0, once=once),),
        running=(
            LineRunning(seq=1, method="go", worker="p.w1", started_at=NOW - 5, at_most_s=7.0, once=once),
            LineRunning(seq=2, method="go", worker="p.w1", started_at=NOW - 5, at_most_s=8.0, once=once),
        ),
        leases=(LineLease(lease=own, worker="p.w1", slots=2),),
    )
    assert job_outlook(board, job(line=line), NOTHING, NOW).told["no_later_than_s"] == bound_s


def test_a_job_waits_for_leases_of_others_and_for_nobody_who_leaves(board):
    board.see_entry("gang.me", None)
    worker(board, "w1", slots=1, used=1)
    worker(board, "w2", slots=1, used=1, drain_by=NOW + 20)
    id = lease(board, "w1", "other", ends_in_s=40.0)
    lease(board, "w2", "leaving", ends_in_s=5.0)
    board.take()
    found = job_outlook(board, job(line=JobLine(pool="p", method="go")), NOTHING, NOW)
    assert found.told["no_later_than_s"] == 40.0 + LEASE_SLACK_S
    assert f"p.w1: lease {id} (etl) ends in " in texts(found)


def test_a_job_whose_only_worker_drains_is_told_that(board):
    board.see_entry("gang.me", None)
    worker(board, "w1", slots=1, used=1, drain_by=NOW + 20)
    board.take()
    nobody = JobObstacle(kind="no_workers", text="Pool 'p' has no worker.")
    found = job_outlook(board, job(nobody, line=JobLine(pool="p", method="go")), NOTHING, NOW)
    assert found.told["no_later_than_s"] is None and found.told["unknown"] == ["Pool 'p' has no worker"]
    assert texts(found)[1:] == [
        "p.w1 drains: its slot does not come back, and it is gone in ",
        "unknown: Pool 'p' has no worker",
    ]


def test_others_who_wait_for_the_same_slots_leave_a_job_without_a_bound(board):
    worker(board, "w1", slots=1, used=1)
    lease(board, "w1", "other")
    queue = QueueStats(
        endpoint="p2", dispatcher="d", depth=3, seen=3, running=1, waiting=0, blocked=0, credit=0, leased=1
    )
    board.see_route("p2", b'{"to": {"p": 1.0}}')
    board.answer_queues([queue])
    board.answer_why(waits(w1=1), NOW)
    board.take()
    found = job_outlook(board, job(line=JobLine(pool="p", method="go")), NOTHING, NOW)
    assert found.told["no_later_than_s"] is None and found.told["about_s"] is None
    assert found.told["not_before_about_s"] == 40.0 + LEASE_SLACK_S and found.told["others"] == ["gang me", "queue p2"]
    assert "gang me, queue p2 wait for the same slots" in " ".join(texts(found))


def test_a_paused_queue_is_not_estimated_and_a_backoff_is_a_moment(board):
    board.take()
    paused = JobObstacle(kind="paused", text="The route says that the queue is paused.")
    found = job_outlook(board, job(paused, line=JobLine(pool="p", method="go")), NOTHING, NOW)
    assert found.told["unknown"] and "no_later_than_s" not in found.told
    later = JobObstacle(kind="backoff", text="Attempt 1 failed; it waits for the next.", until=NOW + 9)
    info = JobInfo(job="p.j1", endpoint="p", method="go", state=JobState.WAITING)
    found = job_outlook(board, JobWhyReply(job=info, position=0, obstacles=(later,)), NOTHING, NOW)
    assert found.told["not_before_s"] == 9.0 and texts(found)[1] == "not before  from now"


def test_durations_are_those_of_leases_gangs_and_tasks_of_each_method():
    def record(kind: HistoryKind, **facts: object) -> HistoryRecord:
        return HistoryRecord(kind=kind, **{"at": 100.0, **facts})  # type: ignore[arg-type]

    durations = durations_of(
        [
            record(HistoryKind.ATTEMPTS, endpoint="p", method="go", count=4, seconds=2.0),
            *[record(HistoryKind.ATTEMPT_ENDED, endpoint="p", method="slow", since=90.0) for _ in range(3)],
            record(HistoryKind.ATTEMPT_ENDED, endpoint="p", since=90.0),
            *[record(HistoryKind.LEASE_ENDED, owner="etl", since=70.0) for _ in range(3)],
            *[
                record(kind, gang="g", generation=number, at=100.0 + 20 * (kind is HistoryKind.GANG_TORN_DOWN))
                for number in range(3)
                for kind in (HistoryKind.GANG_FORMED, HistoryKind.GANG_TORN_DOWN)
            ],
        ]
    )
    kinds = ("task p.go", "task p.slow", "task p.", "lease of etl", "gang")
    assert [durations.mean_s(kind) for kind in kinds] == [0.5, 10.0, None, 30.0, 20.0]
