"""When a gang or a job can start, from the board: who holds slots until when, who else waits, which workers drain."""

from __future__ import annotations

import random
from statistics import fmean, quantiles
from typing import Any

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
    JobTurn,
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

from ..scale import repetitions
from ..support.rows import in_rows

NOW = 1_790_000_000.0
NOTHING = Durations({})
ROUNDS = repetitions(100, whole=500)


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
    return board


@pytest.fixture
def waiting_gang(board: Board) -> None:
    """The gang `me` waits."""
    gang(board, "me", priority=3, state=GangState.QUEUED)


def test_a_gang_of_lower_priority_frees_all_its_slots_when_one_of_its_workers_has_drained(board, waiting_gang):
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


@in_rows(
    ("priority", "restart", "bounded"),
    [
        (1, RestartPolicy.RESTART_GANG, True),
        (3, RestartPolicy.RESTART_GANG, False),
        (5, RestartPolicy.RESTART_GANG, False),
        (5, RestartPolicy.FAIL, True),
        (1, RestartPolicy.RESTART_MEMBER, False),
    ],
)
def test_a_drained_gang_that_may_take_its_slots_back_bounds_nothing(board, waiting_gang, priority, restart, bounded):
    worker(board, "w2", used=4)
    worker(board, "w4", used=1, drain_by=NOW + 30)
    gang(board, "other", "w2", "w4", priority=priority, restart=restart)
    board.take()
    found = gang_outlook(board, waits(holds("w2", "gang other", 4), w2=1), NOTHING, NOW)
    assert (found.told["no_later_than_s"] is not None) is bounded


def test_a_gang_that_fits_nowhere_is_told_which_workers_drain(board, waiting_gang):
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
    for _ in range(ROUNDS):
        wait = SimulatedDrains(chance)
        bound = gang_outlook(wait.board, wait.why, NOTHING, NOW).told["no_later_than_s"]
        if bound is not None:
            bounds += 1
            assert wait.starts_in_s() <= bound + 1e-3
    print(f"gangs with drains: {bounds} bounds of {ROUNDS}")
    assert bounds > 0.2 * ROUNDS


def line_of_go(**facts: Any) -> JobLine:
    return JobLine(pool="p", method="go", **facts)


def runs(seq: int, name: str, at_most_s: float | None, *, once: bool = False) -> LineRunning:
    """Since five seconds."""
    return LineRunning(seq=seq, method="go", worker=f"p.{name}", started_at=NOW - 5, at_most_s=at_most_s, once=once)


def job(*obstacles: JobObstacle, line: JobLine | None) -> JobWhyReply:
    info = JobInfo(job="p.j1", endpoint="p", method="go", state=JobState.QUEUED)
    slots = JobObstacle(kind="slots", text="No lease in pool 'p' has 1 slot free for it: its workers are busy.")
    return JobWhyReply(job=info, position=0, obstacles=(*obstacles, slots), line=line)


def test_a_job_behind_slots_is_told_who_ends_when_what_is_before_it_and_which_workers_drain(board):
    worker(board, "w1", slots=2, used=2)
    worker(board, "w2", slots=1, used=1, drain_by=NOW + 20)
    own, away = lease(board, "w1", "own", slots=1), lease(board, "w1", "other", slots=1)
    board.take()
    line = line_of_go(
        ahead=(LineTask(method="go", count=2, at_most_s=10.0),),
        running=(runs(1, "w1", 7.0), runs(2, "w2", 7.0)),
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


@pytest.mark.parametrize("read", [False, True], ids=["not read", "read since the slots were counted"])
def test_slots_that_the_queue_has_just_leased_are_not_free_although_the_board_shows_them_so(board, read):
    worker(board, "w1", slots=2, used=0)
    board.take()
    own = lease(board, "w1", "own", slots=2) if read else "~unseen"
    line = line_of_go(
        running=(LineRunning(seq=1, method="go", worker="p.w1", started_at=NOW, at_most_s=7.0),) * 2,
        leases=(LineLease(lease=own, worker="p.w1", slots=2),),
    )
    assert job_outlook(board, job(line=line), NOTHING, NOW).told["no_later_than_s"] == 7.0


def test_a_job_waits_for_leases_of_others_and_for_nobody_who_leaves(board):
    worker(board, "w1", slots=1, used=1)
    worker(board, "w2", slots=1, used=1, drain_by=NOW + 20)
    id = lease(board, "w1", "other", ends_in_s=40.0)
    lease(board, "w2", "leaving", ends_in_s=5.0)
    board.take()
    found = job_outlook(board, job(line=line_of_go()), NOTHING, NOW)
    assert found.told["no_later_than_s"] == 40.0 + LEASE_SLACK_S
    assert f"p.w1: lease {id} (etl) ends in " in texts(found)


def test_a_job_whose_only_worker_drains_is_told_that(board):
    worker(board, "w1", slots=1, used=1, drain_by=NOW + 20)
    board.take()
    nobody = JobObstacle(kind="no_workers", text="Pool 'p' has no worker.")
    found = job_outlook(board, job(nobody, line=line_of_go()), NOTHING, NOW)
    assert found.told["no_later_than_s"] is None and found.told["unknown"] == ["Pool 'p' has no worker"]
    assert texts(found)[1:] == [
        "p.w1 drains: its slot does not come back, and it is gone in ",
        "unknown: Pool 'p' has no worker",
    ]


def test_others_who_wait_for_the_same_slots_leave_a_job_without_a_bound(board, waiting_gang):
    worker(board, "w1", slots=1, used=1)
    lease(board, "w1", "other")
    queue = QueueStats(
        endpoint="p2", dispatcher="d", depth=3, seen=3, running=1, waiting=0, blocked=0, credit=0, leased=1
    )
    board.see_route("p2", b'{"to": {"p": 1.0}}')
    board.answer_queues([queue])
    board.answer_why(waits(w1=1), NOW)
    board.take()
    found = job_outlook(board, job(line=line_of_go()), NOTHING, NOW)
    assert found.told["no_later_than_s"] is None and found.told["about_s"] is None
    assert found.told["not_before_about_s"] == 40.0 + LEASE_SLACK_S and found.told["others"] == ["gang me", "queue p2"]
    assert "gang me, queue p2 wait for the same slots" in " ".join(texts(found))


def test_a_job_that_a_rate_holds_back_has_no_start_before_the_rate_allows_it(board):
    worker(board, "w1")
    board.take()
    rate = JobObstacle(kind="rate", text="A rate.", until=NOW + 90.0)
    line = line_of_go(only_slots=False)
    found = job_outlook(board, job(rate, line=line), NOTHING, NOW)
    assert (found.told["not_before_s"], found.told["about_s"]) == (90.0, 90.0)


def test_a_paused_queue_is_not_estimated_and_a_backoff_is_a_moment(board):
    board.take()
    paused = JobObstacle(kind="paused", text="The route says that the queue is paused.")
    found = job_outlook(board, job(paused, line=line_of_go()), NOTHING, NOW)
    assert found.told["unknown"] and "no_later_than_s" not in found.told
    later = JobObstacle(kind="backoff", text="Attempt 1 failed; it waits for the next.", until=NOW + 9)
    info = JobInfo(job="p.j1", endpoint="p", method="go", state=JobState.WAITING)
    found = job_outlook(board, JobWhyReply(job=info, position=0, obstacles=(later,)), NOTHING, NOW)
    assert found.told["not_before_s"] == 9.0 and texts(found)[1] == "not before  from now"


def behind_key(turn: JobTurn, *jobs: str) -> JobWhyReply:
    info = JobInfo(job="p.j1", endpoint="p", method="go", state=JobState.QUEUED)
    obstacle = JobObstacle(kind=turn.kind, text="At most 1 of key 'u7' run at once.", jobs=jobs)
    return JobWhyReply(job=info, position=1, obstacles=(obstacle,), turn=turn)


def one_runs(*, at_most_s: float | None = 30.0, once: bool = False) -> tuple[LineRunning, ...]:
    return (runs(1, "w1", at_most_s, once=once),)


def test_a_job_behind_a_key_is_told_when_its_turn_comes(board):
    worker(board, "w1", slots=2, used=1)
    board.take()
    turn = JobTurn(kind="key", running=one_runs(), line=line_of_go(running=one_runs()))
    found = job_outlook(board, behind_key(turn, "p.j0"), Durations({"task p.go": [10.0, 12.0, 14.0]}), NOW)
    assert found.told["turn"] == {"kind": "key", "ahead": 0, "no_later_than_s": 30.0, "about_s": 7.0}
    assert (found.told["about_s"], found.told["no_later_than_s"], found.told["unknown"]) == (7.0, None, [])
    assert found.told["because"] == [{"worker": "p.w1", "holder": "p.go", "in_s": 7.0, "estimated": True}]
    assert texts(found) == [
        "p.j1 (p.go) is queued",
        "about  from now (estimated)",
        "p.w1: p.go is expected to end in ",
        "its turn comes no later than  from now, if no task takes longer than it may",
        "At most 1 of key 'u7' run at once",
    ]


def test_a_job_that_has_its_turn_before_there_is_a_slot_is_estimated_by_the_slot(board):
    worker(board, "w1", slots=1, used=1)
    lease(board, "w1", "other", ends_in_s=40.0)
    board.take()
    turn = JobTurn(kind="key", running=one_runs(), line=line_of_go())
    found = job_outlook(board, behind_key(turn), NOTHING, NOW)
    assert found.told["about_s"] == 40.0 + LEASE_SLACK_S
    assert [step["in_s"] for step in found.told["because"]] == [30.0, 40.0 + LEASE_SLACK_S]  # type: ignore[attr-defined,union-attr]


@in_rows(
    ("turn", "bounded", "certain"),
    [
        ({}, True, True),
        ({"last": False}, True, False),
        ({"turns": True}, False, False),
        ({"ahead": (LineTask(method="go", at_most_s=1.0),)}, False, True),
        ({"kind": "order"}, False, True),
        ({"kind": "order", "running": one_runs(once=True)}, True, True),
    ],
)
def test_a_turn_has_a_bound_if_only_running_tasks_go_before_it_and_an_estimate_if_nothing_else_follows(
    board, turn, bounded, certain
):
    worker(board, "w1", slots=2, used=1)
    board.take()
    facts = {"kind": "key", "running": one_runs(), "line": line_of_go(), **turn}
    found = job_outlook(board, behind_key(JobTurn(**facts)), NOTHING, NOW).told
    assert (found["turn"]["no_later_than_s"] is not None) is bounded  # type: ignore[index]
    assert (found["about_s"] is not None, found["not_before_about_s"] is not None) == (certain, not certain)


def test_a_turn_behind_tasks_that_nothing_is_known_of_is_unknown(board):
    worker(board, "w1", slots=2, used=1)
    board.take()
    turn = JobTurn(kind="key", running=one_runs(at_most_s=None), line=line_of_go())
    found = job_outlook(board, behind_key(turn), NOTHING, NOW)
    assert found.told["unknown"] == ["p.go"] and found.told["about_s"] is None


class SimulatedKeys:
    """Tasks of several keys, at most one of each at a time, on a few slots. Another starts as soon as there is a slot:
    the first whose key is not running. The job is held back by its key."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.means = {f"m{number}": chance.uniform(5, 60) for number in range(3)}
        self.seen = {f"task p.{name}": [self._lasts(name) for _ in range(30)] for name in self.means}
        self.slots = chance.randint(2, 5)
        keys = [f"k{number}" for number in range(self.slots)]
        self.running: list[tuple[float, str, str]] = []
        self.told: list[LineRunning] = []
        for number, key in enumerate(keys):
            name = chance.choice(list(self.means))
            lasts_s = self._lasts(name)
            age_s = chance.uniform(0, lasts_s)
            self.running.append((lasts_s - age_s, key, name))
            at_most_s = (lasts_s - age_s) * chance.uniform(1, 2)
            self.told.append(
                LineRunning(seq=number, method=name, worker="p.w1", started_at=NOW - age_s, at_most_s=at_most_s)
            )
        self.key = "k0"
        self.before = [
            (chance.choice([*keys, "x", "y"]), chance.choice(list(self.means))) for _ in range(chance.randint(0, 4))
        ]
        self.behind = [(chance.choice([*keys, "x", "y"]), chance.choice(list(self.means))) for _ in range(4)]

    def _lasts(self, name: str) -> float:
        return max(0.5, self.chance.gauss(self.means[name], 0.1 * self.means[name]))

    def why(self) -> JobWhyReply:
        def tasks(key: str | None = None) -> tuple[LineTask, ...]:
            return tuple(LineTask(method=name) for other, name in self.before if key in (None, other))

        line = JobLine(
            pool="p", method="m0", running=tuple(self.told), ahead=tasks(),
            leases=(LineLease(lease="~own", worker="p.w1", slots=self.slots),),
        )  # fmt: skip
        return behind_key(JobTurn(kind="key", running=(self.told[0],), ahead=tasks(self.key), line=line))

    def starts_in_s(self) -> tuple[float, float]:
        """Its turn, and its start."""
        running = sorted(self.running)
        waiting = [*self.before, (self.key, ""), *self.behind]
        turn_s = None
        while True:
            at, *_ = running.pop(0)
            while len(running) < self.slots:
                busy = {key for _, key, _ in running}
                found = next((each for each in waiting if each[0] not in busy), None)
                if turn_s is None and self.key not in {*busy, *(key for key, _ in self.before if (key, _) in waiting)}:
                    turn_s = at
                if found is None:
                    break
                waiting.remove(found)
                if not found[1]:
                    return turn_s or at, at
                running.append((at + self._lasts(found[1]), *found))
                running.sort()


def test_in_simulated_queues_with_keys_no_bound_of_a_turn_is_broken_and_starts_are_estimated():
    chance = random.Random("when-keys")
    turns, starts, bounds = list[float](), list[float](), 0
    for _ in range(ROUNDS):
        board = Board()
        board.tick(NOW)
        queue = SimulatedKeys(chance)
        worker(board, "w1", slots=queue.slots, used=queue.slots)
        board.take()
        told = job_outlook(board, queue.why(), Durations(queue.seen), NOW).told
        turn_s, start_s = queue.starts_in_s()
        bound_s, about_s, estimate_s = told["turn"]["no_later_than_s"], told["turn"]["about_s"], told["about_s"]  # type: ignore[index]
        if bound_s is not None:
            bounds += 1
            assert turn_s <= bound_s + 1e-3
        assert isinstance(estimate_s, float)
        task_s = fmean(queue.means.values())
        turns.append(abs(about_s - turn_s) / max(turn_s, task_s))
        starts.append(abs(estimate_s - start_s) / max(start_s, task_s))
    of_turn, of_start = quantiles(turns, n=10), quantiles(starts, n=10)
    print(f"keys: {bounds} bounds; errors, of the wait or one task: turns p50 {of_turn[4]:.1%}, p90 {of_turn[8]:.1%};"
          f" starts p50 {of_start[4]:.1%}, p90 {of_start[8]:.1%}")  # fmt: skip
    assert bounds > 0.3 * ROUNDS and of_turn[8] <= 0.20
    assert of_start[4] <= 0.10 and of_start[8] <= 0.40, "tasks of other keys go between"


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


def _in_line(*obstacles: JobObstacle) -> JobWhyReply:
    info = JobInfo(job="p.me", endpoint="p", method="go", state=JobState.QUEUED)
    line = JobLine(pool="p", method="go", slots=1, only_slots=True)
    return JobWhyReply(job=info, position=0, obstacles=obstacles, line=line)


MOMENTS = {
    "a pool that does not exist": ("no_workers", 27.0, None),
    "a method that no worker has": ("no_workers", None, None),
    "more slots than any worker has": ("slots", 27.0, None),
    "a backoff": ("backoff", 27.0, 27.0),
    "a rate": ("rate", 27.0, 27.0),
    "a time that has not come": ("schedule", 27.0, 27.0),
}


@pytest.mark.parametrize(("kind", "until_s", "not_before_s"), MOMENTS.values(), ids=MOMENTS)
def test_only_what_ends_by_itself_is_a_moment_before_which_a_job_cannot_start(board, kind, until_s, not_before_s):
    worker(board, "w1", used=0)
    obstacle = JobObstacle(kind=kind, text="It waits.", until=None if until_s is None else NOW + until_s)
    outlook = job_outlook(board, _in_line(obstacle), NOTHING, NOW)
    assert outlook.told["not_before_s"] == not_before_s
    assert any("not before" in text for text in texts(outlook)) == (not_before_s is not None)
    if kind == "no_workers":
        assert outlook.told["about_s"] is None and outlook.told["no_later_than_s"] is None
        assert outlook.told["unknown"] == ["It waits"]


def test_a_queue_that_its_route_pauses_does_not_compete_for_slots(board):
    worker(board, "w1", used=0)
    stats = {"dispatcher": "d", "seen": 3, "running": 0, "waiting": 0, "blocked": 0, "credit": 0, "leased": 0}
    for endpoint, paused in (("other", b"false"), ("still", b"true")):
        board.see_route(endpoint, b'{"to": {"p": 1.0}, "queue": {"paused": %s}}' % paused)
    board.answer_queues([QueueStats(endpoint=endpoint, depth=3, **stats) for endpoint in ("other", "still")])
    board.take()
    assert job_outlook(board, _in_line(), NOTHING, NOW).told["others"] == ["queue other"]
