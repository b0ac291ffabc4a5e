"""The judge of bench.chaos on records that were written by hand: each law broken once, and what is excused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gangline.testing.kit.judge import DRAIN_GRACE_S, LAWS, SLACK_S, judge
from gangline.testing.kit.records import (
    NEVER,
    HeldGrant,
    Life,
    Member,
    Run,
    SentRequest,
    ShownToken,
    SystemHistory,
    Trouble,
)

from ...support.rows import case

W1, W1_SECOND, W2, CLIENT = 11, 12, 21, 31
DRAINED, KILLED = 32, 42
TTL_S = 5.0


def run(id: str, began: float, ended: float, **facts: Any) -> Run:
    """An execution on w1, unless said otherwise."""
    return Run(**{"id": id, "pid": W1, "worker": "w1", "began": began, "ended": ended, "done": True, **facts})


def request(id: str, **facts: Any) -> SentRequest:
    """A call that was answered well, unless said otherwise."""
    told = {"asked": 10.0, "due": 18.0, "told": 11.0, "answers": 1, "ok": True, "may_have_started": True}
    return SentRequest(
        **{"id": id, "kind": "once", "pid": CLIENT, "once": True, "expected": id, "value": id, **told, **facts}
    )


def failed(id: str, code: str, **facts: Any) -> SentRequest:
    return request(id, ok=False, value=None, code=code, **facts)


def job_requests(id: str, **facts: Any) -> list[SentRequest]:
    """Its submission, and the wait for its result."""
    submitted = request(id, kind="submit", once=False, value=None, job=f"job-{id}", **facts)
    return [submitted, request(f"{id}/result", kind="job", once=False, expected=id, value=id, due=99.0, told=15.0)]


def attempt(id: str, number: int, began: float, ended: float, **facts: Any) -> Run:
    return run(id, began, ended, **{"job": f"job-{id}", "attempt": number, "fence": 100 + number, **facts})


def lease(name: str, told: float, left: float, **facts: Any) -> HeldGrant:
    """A lease of the client's."""
    terms = {"slots": 2, "ttl_s": TTL_S, "asked": told - 0.1}
    return HeldGrant(**{"name": name, "pid": CLIENT, "told": told, "left": left, **terms, **facts})


def shown(token: str, seen: float, gone: float, **facts: Any) -> ShownToken:
    """In the ledger, as a lease of w2."""
    return ShownToken(**{"token": token, "worker": "w2", "epoch": 7, "seen": seen, "gone": gone, "due": gone, **facts})


def on_lease(id: str, token: str, began: float, **facts: Any) -> Run:
    """On w2."""
    return run(id, began, began + 0.1, **{"pid": W2, "worker": "w2", "epoch": 7, "token": token, **facts})


def clean() -> SystemHistory:
    """A little of everything, with faults, and nothing wrong with it."""
    gang = {"kind": "gang", "expected": 2}
    stream = {"kind": "stream", "expected": ["s1/0", "s1/1", "s1/2"]}
    drained = {"pid": DRAINED, "worker": "w3"}
    return SystemHistory(
        runs=[
            *(run(f"c{n}", 10.0 + n / 10, 11.0) for n in range(4)),
            attempt("j1", 1, 12.0, 13.0, done=False),
            attempt("j1", 2, 13.5, 14.0, pid=W2, worker="w2", key="k"),
            run("g1", 12.0, 13.0, gang="G", generation=1, rank=0),
            run("g1", 12.0, 13.0, gang="G", generation=1, rank=1, pid=W2, worker="w2"),
            on_lease("l1", "T", 32.0),
            on_lease("l2", "T", 38.0),
            on_lease("l3", "S", 41.0),
            run("s1", 32.0, 32.5),
            run("d1", 60.0, 63.0, **drained),
            run("d2", 60.5, 71.2, token="U", cancelled=True, done=False, **drained),
            attempt("o1", 1, 70.0, 70.1, key="line", done=False),
            attempt("o1", 2, 70.5, 70.6, key="line"),
            attempt("o2", 1, 70.8, 70.9, key="line"),
        ],
        members=[
            Member(gang="G", generation=1, rank=0, pid=W1, fence=50, began=11.5, ended=14.0),
            Member(gang="G", generation=1, rank=1, pid=W2, fence=50, began=11.5, ended=14.0),
            Member(gang="G", generation=2, rank=0, pid=W1, fence=60, began=14.5, ended=15.0),
        ],
        holdings=[lease("T", 31.0, 39.0), lease("S", 40.9, 41.3, sync=True), lease("U", 55.0, 71.4, lost=True)],
        shown=[
            shown("T", 31.1, 39.1),
            shown("S", 40.95, 41.4),
            shown("V", 80.0, 88.0, worker="w4", due=86.0),
            shown("U", 55.1, 71.45, worker="w3"),
        ],
        requests=[
            *(request(f"c{n}") for n in range(4)),
            *job_requests("j1"),
            request("g1", value=["g1/0/1", "g1/1/1"], **gang),
            *(request(f"l{n}", kind="lease", asked=30.0, due=45.0, told=42.0) for n in (1, 2, 3)),
            request("s1", value=["s1/0", "s1/1", "s1/2"], asked=31.0, due=39.0, told=33.0, **stream),
            failed("s2", "worker_lost", kind="stream", expected=["s2/0", "s2/1"]),
            request("d1", asked=59.0, due=67.0, told=63.1),
            failed("d2", "worker_lost", asked=59.0, due=75.0, told=71.3),
            *(each for n in (1, 2) for each in ordered(n)),
            failed("c9", "saturated", may_have_started=False),
        ],
        lives=[
            Life(name="w1", role="worker", pid=W1, began=1.0, worker="w1", ended=150.0),
            Life(name="w1'", role="worker", pid=W1_SECOND, began=20.0, worker="w1"),
            Life(name="w2", role="worker", pid=W2, began=1.0, worker="w2"),
            Life(name="w3", role="worker", pid=DRAINED, began=1.0, worker="w3", drains=61.0, ended=71.5),
            Life(name="w4", role="worker", pid=KILLED, began=1.0, worker="w4", killed=True, ended=83.0),
            Life(name="p1", role="client", pid=CLIENT, began=2.0),
        ],
        results={"job-j1": ("done", "j1"), "job-o1": ("done", "o1"), "job-o2": ("done", "o2")},
    )


def ordered(number: int) -> list[SentRequest]:
    """The submission of one of a line, and the wait for its result."""
    asked = 69.0 + number / 2
    told = {"kind": "submit", "once": False, "value": None, "job": f"job-o{number}", "line": "line"}
    wait = {"kind": "job", "once": False, "expected": f"o{number}", "value": f"o{number}"}
    times = {"asked": asked, "due": asked + 30.0}
    return [
        request(f"o{number}", **told, **times, told=asked + 0.1),
        request(f"o{number}/result", **wait, **times, told=asked + 5.0),
    ]


def of(history: SystemHistory, id: str, **facts: Any) -> Run:
    """The first run of that id, and of such a rank."""
    return next(
        each for each in history.runs
        if each.id == id and all(getattr(each, name) == value for name, value in facts.items())
    )  # fmt: skip


def at(history: SystemHistory, id: str, began: float) -> None:
    """Let it begin then."""
    moved = of(history, id)
    moved.began, moved.ended = began, began + 0.05


def request_of(history: SystemHistory, id: str) -> SentRequest:
    return next(each for each in history.requests if each.id == id)


def broken(history: SystemHistory) -> set[str]:
    return {law for law, found in judge(history).items() if found}


def test_clean_records_break_no_law() -> None:
    assert judge(clean()) == {law: [] for law in LAWS}


# -- what is planted ------------------------------------------------------------------------------------------------


def fifth_slot(history: SystemHistory) -> None:
    history.runs.append(run("c9", 10.9, 12.0))
    history.requests[-1] = request("c9")


def second_process_of_the_same_worker(history: SystemHistory) -> None:
    """The one that woke starts new tasks beside its successor's."""
    history.troubles.append(Trouble(pid=W1, how="frozen", since=20.0, until=30.0))
    for n in range(4):
        history.runs.append(run(f"t{n}", 29.0, 32.0, pid=W1_SECOND))
        history.requests.append(request(f"t{n}", asked=28.5, due=36.5, told=32.5))
    history.runs.append(run("new", 31.0, 31.5))
    history.requests.append(request("new", asked=30.5, due=38.5, told=31.5))


def started_twice(history: SystemHistory) -> None:
    history.runs.append(run("c1", 11.5, 11.8, pid=W2, worker="w2"))


def rank_started_twice(history: SystemHistory) -> None:
    history.runs.append(run("g1", 13.1, 13.2, gang="G", generation=1, rank=1, done=False))


def told_that_nothing_started(history: SystemHistory) -> None:
    history.runs.append(run("c9", 11.5, 11.8))


def submission_refused_that_ran(history: SystemHistory) -> None:
    history.requests.append(failed("j2", "refused", kind="submit", once=False, may_have_started=False))
    history.runs.append(attempt("j2", 1, 16.0, 16.1))


def wrong_answer(history: SystemHistory) -> None:
    history.requests[0].value = "c1"


def answer_of_what_never_ended(history: SystemHistory) -> None:
    history.runs[0].done = False


def answer_of_part_of_a_gang(history: SystemHistory) -> None:
    of(history, "g1", rank=1).done = False


def error_of_another_kind(history: SystemHistory) -> None:
    history.requests[-1] = failed("c9", "not_ours", text="KeyError: 1")


def no_answer(history: SystemHistory) -> None:
    history.requests.append(request("c8", answers=0, told=NEVER, ok=False))


def two_answers(history: SystemHistory) -> None:
    history.requests[0].answers = 2


def late_answer(history: SystemHistory) -> None:
    history.requests[0].told = history.requests[0].due + SLACK_S + 0.1


def job_without_end(history: SystemHistory) -> None:
    history.results["job-j1"] = ("not ended (deadline_exceeded)", "")


def job_with_a_wrong_result(history: SystemHistory) -> None:
    history.results["job-j1"] = ("done", "j2")


def dead_job(history: SystemHistory) -> None:
    history.results["job-j1"] = ("job_dead", "crashed")


def unknown_job(history: SystemHistory) -> None:
    history.results.clear()


def fence_that_stays(history: SystemHistory) -> None:
    history.runs[5].fence = history.runs[4].fence


def job_started_while_it_runs(history: SystemHistory) -> None:
    history.runs[4].ended = 13.6


def job_started_again_after_it_ended_well(history: SystemHistory) -> None:
    history.runs[4].done = True


def job_started_after_its_result(history: SystemHistory) -> None:
    history.runs.append(attempt("j1", 3, 16.0, 16.1))


def two_jobs_of_one_submission(history: SystemHistory) -> None:
    history.runs[5].job = "job-other"


def job_before_its_time(history: SystemHistory) -> None:
    history.requests[4].not_before = 12.5


def third_task_of_a_key(history: SystemHistory) -> None:
    for n in range(2):
        history.requests += job_requests(f"k{n}")
        history.runs.append(attempt(f"k{n}", 1, 13.6, 13.9, key="k"))
        history.results[f"job-k{n}"] = ("done", f"k{n}")


def ledger_with_half_a_gang(history: SystemHistory) -> None:
    history.ledger.append("L7 at revision 7: G is formed with [] instead of [...]")


def generations_that_overlap(history: SystemHistory) -> None:
    history.members[0].ended = 14.6


def ranks_of_two_generations(history: SystemHistory) -> None:
    of(history, "g1", rank=1).generation = 2


def lease_that_stays(history: SystemHistory) -> None:
    history.leaks.append("w1 holds a lease")


def task_that_never_ends(history: SystemHistory) -> None:
    of(history, "g1", rank=1).ended = NEVER


# -- L5


def token_used_in_two_processes(history: SystemHistory) -> None:
    of(history, "l2").pid, of(history, "l2").worker = W1, "w1"


def token_of_an_older_epoch(history: SystemHistory) -> None:
    of(history, "l2").epoch = 8


def start_on_a_lease_that_was_given_back(history: SystemHistory) -> None:
    at(history, "l2", 39.0 + SLACK_S + 0.1)


def start_on_the_lease_of_a_dead_holder(history: SystemHistory) -> None:
    history.lives[-1].killed, history.lives[-1].ended = True, 90.0
    history.holdings.append(lease("W", 80.0, NEVER))
    history.shown.append(shown("W", 80.1, 95.1))
    history.runs.append(on_lease("w1", "W", 90.0 + TTL_S + SLACK_S + 0.1))


def start_on_the_gang_of_a_dead_owner(history: SystemHistory) -> None:
    history.lives[-1].killed, history.lives[-1].ended = True, 90.0
    history.holdings.append(lease("H", 80.0, NEVER, slots=None))
    history.runs.append(run("w1", 99.0, 99.1, gang="H", generation=1, rank=0))


def start_on_a_lease_whose_holder_stood_still(history: SystemHistory) -> None:
    history.troubles.append(Trouble(pid=CLIENT, how="frozen", since=90.0, until=99.0))
    history.holdings.append(lease("W", 89.0, 100.0))
    history.runs.append(on_lease("w1", "W", 99.1))


def start_after_the_deadline(history: SystemHistory) -> None:
    of(history, "l1").began = 32.0
    request_of(history, "l1").due = 32.0 - SLACK_S - 0.1
    request_of(history, "l1").told = 30.0


# -- L6


def lease_that_is_never_shown(history: SystemHistory) -> None:
    del history.shown[0]


def sync_lease_that_is_never_shown(history: SystemHistory) -> None:
    del history.shown[1]


def lease_that_is_shown_late(history: SystemHistory) -> None:
    history.shown[0].seen = 31.0 + SLACK_S + 0.1


def lease_that_is_shown_for_too_long(history: SystemHistory) -> None:
    history.shown[0].gone = 39.0 + SLACK_S + 0.1


def token_that_outlives_its_worker(history: SystemHistory) -> None:
    history.shown[2].gone = 86.0 + 2.0 + SLACK_S + 0.1


def token_that_is_never_gone(history: SystemHistory) -> None:
    history.shown[2].gone = NEVER


# -- L9


def two_that_lead(history: SystemHistory) -> None:
    history.deposed.append("L9 at revision 8: ...")


def two_fences_of_one_generation(history: SystemHistory) -> None:
    history.members[1].fence = 51


def rank_in_two_places(history: SystemHistory) -> None:
    history.members.append(Member(gang="G", generation=2, rank=0, pid=W2, fence=60, began=14.6, ended=14.9))


def fence_of_a_gang_that_stays(history: SystemHistory) -> None:
    history.members[2].fence = 50


def fence_of_a_gang_that_shrinks(history: SystemHistory) -> None:
    history.members[2].fence = 49


# -- L11


def start_in_a_drain(history: SystemHistory) -> None:
    history.lives[3].drains = 59.4


def lease_granted_in_a_drain(history: SystemHistory) -> None:
    history.holdings[2].asked = 61.6
    of(history, "d2").began = 61.8


def stopped_before_the_grace_time(history: SystemHistory) -> None:
    of(history, "d2").ended = 70.0


def left_while_a_task_ran(history: SystemHistory) -> None:
    of(history, "d1").ended = 71.6


def does_not_leave(history: SystemHistory) -> None:
    history.lives[3].overdue = True


# -- streams


def item_that_is_left_out(history: SystemHistory) -> None:
    request_of(history, "s1").value = ["s1/0", "s1/2"]


def item_that_comes_twice(history: SystemHistory) -> None:
    request_of(history, "s1").value = ["s1/0", "s1/1", "s1/1", "s1/2"]


def items_that_change_places(history: SystemHistory) -> None:
    request_of(history, "s1").value = ["s1/1", "s1/0", "s1/2"]


def stream_that_ends_early_and_well(history: SystemHistory) -> None:
    request_of(history, "s1").value = ["s1/0", "s1/1"]


def items_of_another_stream(history: SystemHistory) -> None:
    request_of(history, "s2").value = ["s1/0"]


def item_left_out_before_an_error(history: SystemHistory) -> None:
    request_of(history, "s2").value = ["s2/1"]


# -- order


def next_of_a_line_begins_while_the_one_before_runs(history: SystemHistory) -> None:
    at(history, "o2", 70.55)


def next_of_a_line_comes_between_two_tries(history: SystemHistory) -> None:
    at(history, "o2", 70.3)


def line_in_the_wrong_order(history: SystemHistory) -> None:
    at(history, "o2", 69.95)


def kind_that_never_succeeds_again(history: SystemHistory) -> None:
    history.unrecovered.append("gang of p1")


PLANTED: list[tuple[Callable[[SystemHistory], None], set[str]]] = [
    (fifth_slot, {"L1 capacity"}),
    (second_process_of_the_same_worker, {"L1 capacity"}),
    (started_twice, {"L3 at most once"}),
    (rank_started_twice, {"L3 at most once"}),
    (told_that_nothing_started, {"may_have_started is honest"}),
    (submission_refused_that_ran, {"may_have_started is honest"}),
    (wrong_answer, {"answers are right"}),
    (answer_of_what_never_ended, {"answers are right"}),
    (answer_of_part_of_a_gang, {"answers are right"}),
    (error_of_another_kind, {"answers are right"}),
    (no_answer, {"every request is answered in time"}),
    (two_answers, {"every request is answered in time"}),
    (late_answer, {"every request is answered in time"}),
    (job_without_end, {"L10 durable tasks"}),
    (job_with_a_wrong_result, {"L10 durable tasks"}),
    (dead_job, {"L10 durable tasks"}),
    (unknown_job, {"L10 durable tasks"}),
    (fence_that_stays, {"L10 durable tasks"}),
    (job_started_while_it_runs, {"L10 durable tasks"}),
    (job_started_again_after_it_ended_well, {"L10 durable tasks"}),
    (job_started_after_its_result, {"L10 durable tasks"}),
    (two_jobs_of_one_submission, {"L10 durable tasks"}),
    (job_before_its_time, {"L10 durable tasks"}),
    (third_task_of_a_key, {"limits of keys"}),
    (ledger_with_half_a_gang, {"L7, L8 gangs"}),
    (generations_that_overlap, {"L7, L8 gangs"}),
    (ranks_of_two_generations, {"answers are right", "L7, L8 gangs"}),
    (lease_that_stays, {"L2, L4, L12 nothing leaks"}),
    (task_that_never_ends, {"L2, L4, L12 nothing leaks"}),
    (token_used_in_two_processes, {"L5 expired is dead"}),
    (token_of_an_older_epoch, {"L5 expired is dead"}),
    (start_on_a_lease_that_was_given_back, {"L5 expired is dead"}),
    (start_on_the_lease_of_a_dead_holder, {"L5 expired is dead"}),
    (start_on_the_gang_of_a_dead_owner, {"L5 expired is dead"}),
    (start_on_a_lease_whose_holder_stood_still, {"L5 expired is dead"}),
    (start_after_the_deadline, {"L5 expired is dead"}),
    (lease_that_is_never_shown, {"L6 ledger"}),
    (sync_lease_that_is_never_shown, {"L6 ledger"}),
    (lease_that_is_shown_late, {"L6 ledger"}),
    (lease_that_is_shown_for_too_long, {"L6 ledger"}),
    (token_that_outlives_its_worker, {"L6 ledger"}),
    (token_that_is_never_gone, {"L6 ledger"}),
    (two_that_lead, {"L9 one coordinator"}),
    (two_fences_of_one_generation, {"L9 one coordinator"}),
    (rank_in_two_places, {"L9 one coordinator"}),
    (fence_of_a_gang_that_stays, {"L9 one coordinator"}),
    (fence_of_a_gang_that_shrinks, {"L9 one coordinator"}),
    (start_in_a_drain, {"L11 drain"}),
    (lease_granted_in_a_drain, {"L11 drain"}),
    (stopped_before_the_grace_time, {"L11 drain"}),
    (left_while_a_task_ran, {"L11 drain"}),
    (does_not_leave, {"L11 drain"}),
    (item_that_is_left_out, {"streams are whole"}),
    (item_that_comes_twice, {"streams are whole"}),
    (items_that_change_places, {"streams are whole"}),
    (stream_that_ends_early_and_well, {"streams are whole"}),
    (items_of_another_stream, {"streams are whole"}),
    (item_left_out_before_an_error, {"streams are whole"}),
    (next_of_a_line_begins_while_the_one_before_runs, {"order of ordered keys"}),
    (next_of_a_line_comes_between_two_tries, {"order of ordered keys"}),
    (line_in_the_wrong_order, {"order of ordered keys"}),
    (kind_that_never_succeeds_again, {"everything recovers"}),
]


def test_what_is_planted_is_found() -> None:
    for plant, laws in PLANTED:
        with case(plant, laws):
            history = clean()
            plant(history)
            assert broken(history) == laws


def test_every_law_is_planted_against() -> None:
    assert set().union(*(laws for _, laws in PLANTED)) == set(LAWS)


# -- what is excused ------------------------------------------------------------------------------------------------


def test_what_ran_on_when_its_process_was_frozen_does_not_count_beside_its_successor() -> None:
    history = clean()
    second_process_of_the_same_worker(history)
    history.runs[-1].began = 19.0
    assert broken(history) == set()


def test_a_process_that_was_cut_off_serves_on_until_it_reaches_storage() -> None:
    history = clean()
    second_process_of_the_same_worker(history)
    history.troubles[0].how = "cut off"
    assert broken(history) == set()
    for late in history.runs[-5:]:  # long after it could have reached storage
        late.began, late.ended = late.began + 10.0, late.ended + 10.0
    assert broken(history) == {"L1 capacity"}


def test_each_process_of_an_id_keeps_to_its_own_slots_whatever_happens_to_it() -> None:
    history = clean()
    fifth_slot(history)
    history.troubles.append(Trouble(pid=W1, how="frozen", since=5.0, until=30.0))
    assert broken(history) == {"L1 capacity"}


def test_an_idempotent_call_may_start_twice() -> None:
    history = clean()
    started_twice(history)
    history.requests[1].once = False
    assert broken(history) == set()


@pytest.mark.parametrize("how", ["frozen", "cut off", "killed"])
def test_a_job_may_start_elsewhere_when_its_process_is_lost(how: str) -> None:
    history = clean()
    job_started_while_it_runs(history)
    if how == "killed":
        history.lives[0].killed, history.lives[0].ended = True, 13.4
    else:
        history.troubles.append(Trouble(pid=W1, how=how, since=12.5, until=13.0))
    assert broken(history) == set()


def test_a_job_may_not_start_elsewhere_because_another_process_is_lost() -> None:
    history = clean()
    job_started_while_it_runs(history)
    history.troubles.append(Trouble(pid=W2, how="frozen", since=12.5, until=13.0))
    assert broken(history) == {"L10 durable tasks"}


def test_the_requests_of_a_killed_client_need_no_answer() -> None:
    history = clean()
    no_answer(history)
    history.holdings.clear()
    history.lives[-1].killed, history.lives[-1].ended = True, 12.0
    assert broken(history) == set()


def test_a_frozen_client_may_be_late_by_as_long_as_it_was_frozen() -> None:
    history = clean()
    late_answer(history)
    history.troubles.append(Trouble(pid=CLIENT, how="frozen", since=12.0, until=13.0))
    assert broken(history) == set()


def test_members_of_a_lost_worker_are_not_waited_for() -> None:
    history = clean()
    generations_that_overlap(history)
    history.troubles.append(Trouble(pid=W1, how="cut off", since=13.0, until=14.0))
    assert broken(history) == set()


@pytest.mark.parametrize(
    "plant", [lease_that_is_never_shown, lease_that_is_shown_for_too_long, token_that_is_never_gone]
)
def test_nobody_knows_what_the_ledger_showed_while_storage_was_away(plant: Callable[[SystemHistory], None]) -> None:
    history = clean()
    plant(history)
    history.blind += [(30.0, 31.5), (84.0, 85.0)]
    assert broken(history) == set()


def test_a_lease_that_was_given_back_at_once_need_not_be_shown() -> None:
    history = clean()
    lease_that_is_never_shown(history)
    history.holdings[0].told, history.holdings[0].left = 38.9, 39.0
    assert broken(history) == set()


@pytest.mark.parametrize("pid", [CLIENT, W2])
def test_what_was_kept_on_its_way_may_start_late(pid: int) -> None:
    history = clean()
    start_on_a_lease_that_was_given_back(history)
    history.troubles.append(Trouble(pid=pid, how="cut off", since=38.0, until=42.0))
    assert broken(history) == set()


def test_a_holder_that_stood_still_for_a_moment_may_go_on() -> None:
    history = clean()
    history.troubles.append(Trouble(pid=CLIENT, how="frozen", since=33.0, until=33.0 + TTL_S))
    assert broken(history) == set()


def test_what_runs_past_the_grace_time_may_be_stopped() -> None:
    history = clean()
    assert of(history, "d2").cancelled and of(history, "d2").ended > history.lives[3].drains + DRAIN_GRACE_S
    assert broken(history) == set()


def test_the_next_of_a_line_need_not_wait_for_a_lost_process() -> None:
    history = clean()
    next_of_a_line_comes_between_two_tries(history)
    history.lives[0].killed, history.lives[0].ended = True, 70.05
    of(history, "o2").pid = of(history, "o1", attempt=2).pid = W2
    assert broken(history) == set()


def test_two_submissions_at_once_have_no_order() -> None:
    history = clean()
    line_in_the_wrong_order(history)
    request_of(history, "o1").told = request_of(history, "o2").asked + 0.1
    assert broken(history) == set()
