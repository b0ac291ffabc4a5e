"""The judge of bench.chaos on records that were written by hand: each law broken once, and what is excused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench.chaos.judge import LAWS, SLACK_S, judge
from bench.chaos.records import NEVER, History, Life, Member, Request, Run, Trouble

W1, W1_SECOND, W2, CLIENT = 11, 12, 21, 31


def run(id: str, began: float, ended: float, **facts: Any) -> Run:
    """An execution on w1, unless said otherwise."""
    return Run(**{"id": id, "pid": W1, "worker": "w1", "began": began, "ended": ended, "done": True, **facts})


def request(id: str, **facts: Any) -> Request:
    """A call that was answered well, unless said otherwise."""
    told = {"asked": 10.0, "due": 18.0, "told": 11.0, "answers": 1, "ok": True, "may_have_started": True}
    return Request(
        **{"id": id, "kind": "once", "pid": CLIENT, "once": True, "expected": id, "value": id, **told, **facts}
    )


def failed(id: str, code: str, **facts: Any) -> Request:
    return request(id, ok=False, value=None, code=code, **facts)


def job_requests(id: str, **facts: Any) -> list[Request]:
    """Its submission, and the wait for its result."""
    submitted = request(id, kind="submit", once=False, value=None, job=f"job-{id}", **facts)
    return [submitted, request(f"{id}/result", kind="job", once=False, expected=id, value=id, due=99.0, told=15.0)]


def attempt(id: str, number: int, began: float, ended: float, **facts: Any) -> Run:
    return run(id, began, ended, **{"job": f"job-{id}", "attempt": number, "fence": 100 + number, **facts})


def clean() -> History:
    """A little of everything, with faults, and nothing wrong with it."""
    gang = {"kind": "gang", "expected": 2}
    return History(
        runs=[
            *(run(f"c{n}", 10.0 + n / 10, 11.0) for n in range(4)),
            attempt("j1", 1, 12.0, 13.0, done=False),
            attempt("j1", 2, 13.5, 14.0, pid=W2, worker="w2", key="k"),
            run("g1", 12.0, 13.0, gang="G", generation=1, rank=0),
            run("g1", 12.0, 13.0, gang="G", generation=1, rank=1, pid=W2, worker="w2"),
        ],
        members=[
            Member(gang="G", generation=1, rank=0, pid=W1, began=11.5, ended=14.0),
            Member(gang="G", generation=2, rank=0, pid=W1, began=14.5, ended=15.0),
        ],
        requests=[
            *(request(f"c{n}") for n in range(4)),
            *job_requests("j1"),
            request("g1", value=["g1/0/1", "g1/1/1"], **gang),
            failed("c9", "saturated", may_have_started=False),
        ],
        lives=[
            Life(name="w1", role="worker", pid=W1, began=1.0, worker="w1", ended=50.0),
            Life(name="w1'", role="worker", pid=W1_SECOND, began=20.0, worker="w1"),
            Life(name="w2", role="worker", pid=W2, began=1.0, worker="w2"),
            Life(name="p1", role="client", pid=CLIENT, began=2.0),
        ],
        results={"job-j1": ("done", "j1")},
    )


def broken(history: History) -> set[str]:
    return {law for law, found in judge(history).items() if found}


def test_clean_records_break_no_law() -> None:
    assert judge(clean()) == {law: [] for law in LAWS}


# -- what is planted ------------------------------------------------------------------------------------------------


def fifth_slot(history: History) -> None:
    history.runs.append(run("c9", 10.9, 12.0))
    history.requests[-1] = request("c9")


def second_process_of_the_same_worker(history: History) -> None:
    """The one that woke starts new tasks beside its successor's."""
    history.troubles.append(Trouble(pid=W1, how="frozen", since=20.0, until=30.0))
    for n in range(4):
        history.runs.append(run(f"s{n}", 29.0, 32.0, pid=W1_SECOND))
        history.requests.append(request(f"s{n}"))
    history.runs.append(run("new", 31.0, 31.5))
    history.requests.append(request("new"))


def started_twice(history: History) -> None:
    history.runs.append(run("c1", 11.5, 11.8, pid=W2, worker="w2"))


def rank_started_twice(history: History) -> None:
    history.runs.append(run("g1", 13.1, 13.2, gang="G", generation=1, rank=1, done=False))


def told_that_nothing_started(history: History) -> None:
    history.runs.append(run("c9", 11.5, 11.8))


def submission_refused_that_ran(history: History) -> None:
    history.requests.append(failed("j2", "refused", kind="submit", once=False, may_have_started=False))
    history.runs.append(attempt("j2", 1, 16.0, 16.1))


def wrong_answer(history: History) -> None:
    history.requests[0].value = "c1"


def answer_of_what_never_ended(history: History) -> None:
    history.runs[0].done = False


def answer_of_part_of_a_gang(history: History) -> None:
    history.runs[-1].done = False


def error_of_another_kind(history: History) -> None:
    history.requests[-1] = failed("c9", "not_ours", text="KeyError: 1")


def no_answer(history: History) -> None:
    history.requests.append(request("c8", answers=0, told=NEVER, ok=False))


def two_answers(history: History) -> None:
    history.requests[0].answers = 2


def late_answer(history: History) -> None:
    history.requests[0].told = history.requests[0].due + SLACK_S + 0.1


def job_without_end(history: History) -> None:
    history.results["job-j1"] = ("not ended (deadline_exceeded)", "")


def job_with_a_wrong_result(history: History) -> None:
    history.results["job-j1"] = ("done", "j2")


def dead_job(history: History) -> None:
    history.results["job-j1"] = ("job_dead", "crashed")


def unknown_job(history: History) -> None:
    history.results.clear()


def fence_that_stays(history: History) -> None:
    history.runs[5].fence = history.runs[4].fence


def job_started_while_it_runs(history: History) -> None:
    history.runs[4].ended = 13.6


def job_started_again_after_it_ended_well(history: History) -> None:
    history.runs[4].done = True


def job_started_after_its_result(history: History) -> None:
    history.runs.append(attempt("j1", 3, 16.0, 16.1))


def two_jobs_of_one_submission(history: History) -> None:
    history.runs[5].job = "job-other"


def job_before_its_time(history: History) -> None:
    history.requests[4].not_before = 12.5


def third_task_of_a_key(history: History) -> None:
    for n in range(2):
        history.requests += job_requests(f"k{n}")
        history.runs.append(attempt(f"k{n}", 1, 13.6, 13.9, key="k"))
        history.results[f"job-k{n}"] = ("done", f"k{n}")


def ledger_with_half_a_gang(history: History) -> None:
    history.ledger.append("L7 at revision 7: G is formed with [] instead of [...]")


def generations_that_overlap(history: History) -> None:
    history.members[0].ended = 14.6


def ranks_of_two_generations(history: History) -> None:
    history.runs[-1].generation = 2


def lease_that_stays(history: History) -> None:
    history.leaks.append("w1 holds a lease")


def task_that_never_ends(history: History) -> None:
    history.runs[-1].ended = NEVER


def kind_that_never_succeeds_again(history: History) -> None:
    history.unrecovered.append("gang of p1")


PLANTED: list[tuple[Callable[[History], None], set[str]]] = [
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
    (kind_that_never_succeeds_again, {"everything recovers"}),
]


@pytest.mark.parametrize(("plant", "laws"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_what_is_planted_is_found(plant: Callable[[History], None], laws: set[str]) -> None:
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
