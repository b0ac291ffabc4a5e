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


class Planted(SystemHistory):
    """Records in which each method plants a breach."""

    def of(self, id: str, **facts: Any) -> Run:
        """The first run of that id, and of such a rank."""
        return next(
            each for each in self.runs
            if each.id == id and all(getattr(each, name) == value for name, value in facts.items())
        )  # fmt: skip

    def at(self, id: str, began: float) -> None:
        """Let it begin then."""
        moved = self.of(id)
        moved.began, moved.ended = began, began + 0.05

    def request_of(self, id: str) -> SentRequest:
        return next(each for each in self.requests if each.id == id)

    def fifth_slot(self) -> None:
        self.runs.append(run("c9", 10.9, 12.0))
        self.requests[-1] = request("c9")

    def second_process_of_the_same_worker(self) -> None:
        """The one that woke starts new tasks beside its successor's."""
        self.troubles.append(Trouble(pid=W1, how="frozen", since=20.0, until=30.0))
        for n in range(4):
            self.runs.append(run(f"t{n}", 29.0, 32.0, pid=W1_SECOND))
            self.requests.append(request(f"t{n}", asked=28.5, due=36.5, told=32.5))
        self.runs.append(run("new", 31.0, 31.5))
        self.requests.append(request("new", asked=30.5, due=38.5, told=31.5))

    def started_twice(self) -> None:
        self.runs.append(run("c1", 11.5, 11.8, pid=W2, worker="w2"))

    def rank_started_twice(self) -> None:
        self.runs.append(run("g1", 13.1, 13.2, gang="G", generation=1, rank=1, done=False))

    def told_that_nothing_started(self) -> None:
        self.runs.append(run("c9", 11.5, 11.8))

    def submission_refused_that_ran(self) -> None:
        self.requests.append(failed("j2", "refused", kind="submit", once=False, may_have_started=False))
        self.runs.append(attempt("j2", 1, 16.0, 16.1))

    def wrong_answer(self) -> None:
        self.requests[0].value = "c1"

    def answer_of_what_never_ended(self) -> None:
        self.runs[0].done = False

    def answer_of_part_of_a_gang(self) -> None:
        self.of("g1", rank=1).done = False

    def error_of_another_kind(self) -> None:
        self.requests[-1] = failed("c9", "not_ours", text="KeyError: 1")

    def no_answer(self) -> None:
        self.requests.append(request("c8", answers=0, told=NEVER, ok=False))

    def two_answers(self) -> None:
        self.requests[0].answers = 2

    def late_answer(self) -> None:
        self.requests[0].told = self.requests[0].due + SLACK_S + 0.1

    def job_without_end(self) -> None:
        self.results["job-j1"] = ("not ended (deadline_exceeded)", "")

    def job_with_a_wrong_result(self) -> None:
        self.results["job-j1"] = ("done", "j2")

    def dead_job(self) -> None:
        self.results["job-j1"] = ("job_dead", "crashed")

    def unknown_job(self) -> None:
        self.results.clear()

    def fence_that_stays(self) -> None:
        self.runs[5].fence = self.runs[4].fence

    def job_started_while_it_runs(self) -> None:
        self.runs[4].ended = 13.6

    def job_started_again_after_it_ended_well(self) -> None:
        self.runs[4].done = True

    def job_started_after_its_result(self) -> None:
        self.runs.append(attempt("j1", 3, 16.0, 16.1))

    def two_jobs_of_one_submission(self) -> None:
        self.runs[5].job = "job-other"

    def job_before_its_time(self) -> None:
        self.requests[4].not_before = 12.5

    def third_task_of_a_key(self) -> None:
        for n in range(2):
            self.requests += job_requests(f"k{n}")
            self.runs.append(attempt(f"k{n}", 1, 13.6, 13.9, key="k"))
            self.results[f"job-k{n}"] = ("done", f"k{n}")

    def ledger_with_half_a_gang(self) -> None:
        self.ledger.append("L7 at revision 7: G is formed with [] instead of [...]")

    def generations_that_overlap(self) -> None:
        self.members[0].ended = 14.6

    def ranks_of_two_generations(self) -> None:
        self.of("g1", rank=1).generation = 2

    def lease_that_stays(self) -> None:
        self.leaks.append("w1 holds a lease")

    def task_that_never_ends(self) -> None:
        self.of("g1", rank=1).ended = NEVER

    # -- L5

    def token_used_in_two_processes(self) -> None:
        self.of("l2").pid, self.of("l2").worker = W1, "w1"

    def token_of_an_older_epoch(self) -> None:
        self.of("l2").epoch = 8

    def start_on_a_lease_that_was_given_back(self) -> None:
        self.at("l2", 39.0 + SLACK_S + 0.1)

    def start_on_the_lease_of_a_dead_holder(self) -> None:
        self.lives[-1].killed, self.lives[-1].ended = True, 90.0
        self.holdings.append(lease("W", 80.0, NEVER))
        self.shown.append(shown("W", 80.1, 95.1))
        self.runs.append(on_lease("w1", "W", 90.0 + TTL_S + SLACK_S + 0.1))

    def start_on_the_gang_of_a_dead_owner(self) -> None:
        self.lives[-1].killed, self.lives[-1].ended = True, 90.0
        self.holdings.append(lease("H", 80.0, NEVER, slots=None))
        self.runs.append(run("w1", 99.0, 99.1, gang="H", generation=1, rank=0))

    def start_on_a_lease_whose_holder_stood_still(self) -> None:
        self.troubles.append(Trouble(pid=CLIENT, how="frozen", since=90.0, until=99.0))
        self.holdings.append(lease("W", 89.0, 100.0))
        self.runs.append(on_lease("w1", "W", 99.1))

    def start_after_the_deadline(self) -> None:
        self.of("l1").began = 32.0
        self.request_of("l1").due = 32.0 - SLACK_S - 0.1
        self.request_of("l1").told = 30.0

    # -- L6

    def lease_that_is_never_shown(self) -> None:
        del self.shown[0]

    def sync_lease_that_is_never_shown(self) -> None:
        del self.shown[1]

    def lease_that_is_shown_late(self) -> None:
        self.shown[0].seen = 31.0 + SLACK_S + 0.1

    def lease_that_is_shown_for_too_long(self) -> None:
        self.shown[0].gone = 39.0 + SLACK_S + 0.1

    def token_that_outlives_its_worker(self) -> None:
        self.shown[2].gone = 86.0 + 2.0 + SLACK_S + 0.1

    def token_that_is_never_gone(self) -> None:
        self.shown[2].gone = NEVER

    # -- L9

    def two_that_lead(self) -> None:
        self.deposed.append("L9 at revision 8: ...")

    def two_fences_of_one_generation(self) -> None:
        self.members[1].fence = 51

    def rank_in_two_places(self) -> None:
        self.members.append(Member(gang="G", generation=2, rank=0, pid=W2, fence=60, began=14.6, ended=14.9))

    def fence_of_a_gang_that_stays(self) -> None:
        self.members[2].fence = 50

    def fence_of_a_gang_that_shrinks(self) -> None:
        self.members[2].fence = 49

    # -- L11

    def start_in_a_drain(self) -> None:
        self.lives[3].drains = 59.4

    def lease_granted_in_a_drain(self) -> None:
        self.holdings[2].asked = 61.6
        self.of("d2").began = 61.8

    def stopped_before_the_grace_time(self) -> None:
        self.of("d2").ended = 70.0

    def left_while_a_task_ran(self) -> None:
        self.of("d1").ended = 71.6

    def does_not_leave(self) -> None:
        self.lives[3].overdue = True

    # -- streams

    def item_that_is_left_out(self) -> None:
        self.request_of("s1").value = ["s1/0", "s1/2"]

    def item_that_comes_twice(self) -> None:
        self.request_of("s1").value = ["s1/0", "s1/1", "s1/1", "s1/2"]

    def items_that_change_places(self) -> None:
        self.request_of("s1").value = ["s1/1", "s1/0", "s1/2"]

    def stream_that_ends_early_and_well(self) -> None:
        self.request_of("s1").value = ["s1/0", "s1/1"]

    def items_of_another_stream(self) -> None:
        self.request_of("s2").value = ["s1/0"]

    def item_left_out_before_an_error(self) -> None:
        self.request_of("s2").value = ["s2/1"]

    # -- order

    def next_of_a_line_begins_while_the_one_before_runs(self) -> None:
        self.at("o2", 70.55)

    def next_of_a_line_comes_between_two_tries(self) -> None:
        self.at("o2", 70.3)

    def line_in_the_wrong_order(self) -> None:
        self.at("o2", 69.95)

    def kind_that_never_succeeds_again(self) -> None:
        self.unrecovered.append("gang of p1")


def clean() -> Planted:
    """A little of everything, with faults, and nothing wrong with it."""
    gang = {"kind": "gang", "expected": 2}
    stream = {"kind": "stream", "expected": ["s1/0", "s1/1", "s1/2"]}
    drained = {"pid": DRAINED, "worker": "w3"}
    return Planted(
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


def broken(history: SystemHistory) -> set[str]:
    return {law for law, found in judge(history).items() if found}


def test_clean_records_break_no_law() -> None:
    assert judge(clean()) == {law: [] for law in LAWS}


PLANTED = {
    ("L1 capacity",): (Planted.fifth_slot, Planted.second_process_of_the_same_worker),
    ("L3 at most once",): (Planted.started_twice, Planted.rank_started_twice),
    ("may_have_started is honest",): (Planted.told_that_nothing_started, Planted.submission_refused_that_ran),
    ("answers are right",): (
        Planted.wrong_answer, Planted.answer_of_what_never_ended, Planted.answer_of_part_of_a_gang,
        Planted.error_of_another_kind,
    ),
    ("every request is answered in time",): (Planted.no_answer, Planted.two_answers, Planted.late_answer),
    ("L10 durable tasks",): (
        Planted.job_without_end, Planted.job_with_a_wrong_result, Planted.dead_job, Planted.unknown_job,
        Planted.fence_that_stays, Planted.job_started_while_it_runs, Planted.job_started_again_after_it_ended_well,
        Planted.job_started_after_its_result, Planted.two_jobs_of_one_submission, Planted.job_before_its_time,
    ),
    ("limits of keys",): (Planted.third_task_of_a_key,),
    ("L7, L8 gangs",): (Planted.ledger_with_half_a_gang, Planted.generations_that_overlap),
    ("answers are right", "L7, L8 gangs"): (Planted.ranks_of_two_generations,),
    ("L2, L4, L12 nothing leaks",): (Planted.lease_that_stays, Planted.task_that_never_ends),
    ("L5 expired is dead",): (
        Planted.token_used_in_two_processes, Planted.token_of_an_older_epoch,
        Planted.start_on_a_lease_that_was_given_back, Planted.start_on_the_lease_of_a_dead_holder,
        Planted.start_on_the_gang_of_a_dead_owner, Planted.start_on_a_lease_whose_holder_stood_still,
        Planted.start_after_the_deadline,
    ),
    ("L6 ledger",): (
        Planted.lease_that_is_never_shown, Planted.sync_lease_that_is_never_shown, Planted.lease_that_is_shown_late,
        Planted.lease_that_is_shown_for_too_long, Planted.token_that_outlives_its_worker,
        Planted.token_that_is_never_gone,
    ),
    ("L9 one coordinator",): (
        Planted.two_that_lead, Planted.two_fences_of_one_generation, Planted.rank_in_two_places,
        Planted.fence_of_a_gang_that_stays, Planted.fence_of_a_gang_that_shrinks,
    ),
    ("L11 drain",): (
        Planted.start_in_a_drain, Planted.lease_granted_in_a_drain, Planted.stopped_before_the_grace_time,
        Planted.left_while_a_task_ran, Planted.does_not_leave,
    ),
    ("streams are whole",): (
        Planted.item_that_is_left_out, Planted.item_that_comes_twice, Planted.items_that_change_places,
        Planted.stream_that_ends_early_and_well, Planted.items_of_another_stream,
        Planted.item_left_out_before_an_error,
    ),
    ("order of ordered keys",): (
        Planted.next_of_a_line_begins_while_the_one_before_runs, Planted.next_of_a_line_comes_between_two_tries,
        Planted.line_in_the_wrong_order,
    ),
    ("everything recovers",): (Planted.kind_that_never_succeeds_again,),
}  # fmt: skip


def test_what_is_planted_is_found() -> None:
    for laws, plants in PLANTED.items():
        for plant in plants:
            with case(plant, laws):
                history = clean()
                plant(history)
                assert broken(history) == set(laws)


def test_every_law_is_planted_against() -> None:
    assert set().union(*PLANTED) == set(LAWS)


# -- what is excused ------------------------------------------------------------------------------------------------


def test_what_ran_on_when_its_process_was_frozen_does_not_count_beside_its_successor() -> None:
    history = clean()
    history.second_process_of_the_same_worker()
    history.runs[-1].began = 19.0
    assert broken(history) == set()


def test_a_process_that_was_cut_off_serves_on_until_it_reaches_storage() -> None:
    history = clean()
    history.second_process_of_the_same_worker()
    history.troubles[0].how = "cut off"
    assert broken(history) == set()
    for late in history.runs[-5:]:  # long after it could have reached storage
        late.began, late.ended = late.began + 10.0, late.ended + 10.0
    assert broken(history) == {"L1 capacity"}


def test_each_process_of_an_id_keeps_to_its_own_slots_whatever_happens_to_it() -> None:
    history = clean()
    history.fifth_slot()
    history.troubles.append(Trouble(pid=W1, how="frozen", since=5.0, until=30.0))
    assert broken(history) == {"L1 capacity"}


def test_an_idempotent_call_may_start_twice() -> None:
    history = clean()
    history.started_twice()
    history.requests[1].once = False
    assert broken(history) == set()


@pytest.mark.parametrize("how", ["frozen", "cut off", "killed"])
def test_a_job_may_start_elsewhere_when_its_process_is_lost(how: str) -> None:
    history = clean()
    history.job_started_while_it_runs()
    if how == "killed":
        history.lives[0].killed, history.lives[0].ended = True, 13.4
    else:
        history.troubles.append(Trouble(pid=W1, how=how, since=12.5, until=13.0))
    assert broken(history) == set()


def test_a_job_may_not_start_elsewhere_because_another_process_is_lost() -> None:
    history = clean()
    history.job_started_while_it_runs()
    history.troubles.append(Trouble(pid=W2, how="frozen", since=12.5, until=13.0))
    assert broken(history) == {"L10 durable tasks"}


def test_the_requests_of_a_killed_client_need_no_answer() -> None:
    history = clean()
    history.no_answer()
    history.holdings.clear()
    history.lives[-1].killed, history.lives[-1].ended = True, 12.0
    assert broken(history) == set()


def test_a_frozen_client_may_be_late_by_as_long_as_it_was_frozen() -> None:
    history = clean()
    history.late_answer()
    history.troubles.append(Trouble(pid=CLIENT, how="frozen", since=12.0, until=13.0))
    assert broken(history) == set()


def test_members_of_a_lost_worker_are_not_waited_for() -> None:
    history = clean()
    history.generations_that_overlap()
    history.troubles.append(Trouble(pid=W1, how="cut off", since=13.0, until=14.0))
    assert broken(history) == set()


@pytest.mark.parametrize(
    "plant",
    [Planted.lease_that_is_never_shown, Planted.lease_that_is_shown_for_too_long, Planted.token_that_is_never_gone],
)
def test_nobody_knows_what_the_ledger_showed_while_storage_was_away(plant: Callable[[Planted], None]) -> None:
    history = clean()
    plant(history)
    history.blind += [(30.0, 31.5), (84.0, 85.0)]
    assert broken(history) == set()


def test_a_lease_that_was_given_back_at_once_need_not_be_shown() -> None:
    history = clean()
    history.lease_that_is_never_shown()
    history.holdings[0].told, history.holdings[0].left = 38.9, 39.0
    assert broken(history) == set()


@pytest.mark.parametrize("pid", [CLIENT, W2])
def test_what_was_kept_on_its_way_may_start_late(pid: int) -> None:
    history = clean()
    history.start_on_a_lease_that_was_given_back()
    history.troubles.append(Trouble(pid=pid, how="cut off", since=38.0, until=42.0))
    assert broken(history) == set()


def test_a_holder_that_stood_still_for_a_moment_may_go_on() -> None:
    history = clean()
    history.troubles.append(Trouble(pid=CLIENT, how="frozen", since=33.0, until=33.0 + TTL_S))
    assert broken(history) == set()


def test_what_runs_past_the_grace_time_may_be_stopped() -> None:
    history = clean()
    assert history.of("d2").cancelled and history.of("d2").ended > history.lives[3].drains + DRAIN_GRACE_S
    assert broken(history) == set()


def test_the_next_of_a_line_need_not_wait_for_a_lost_process() -> None:
    history = clean()
    history.next_of_a_line_comes_between_two_tries()
    history.lives[0].killed, history.lives[0].ended = True, 70.05
    history.of("o2").pid = history.of("o1", attempt=2).pid = W2
    assert broken(history) == set()


def test_two_submissions_at_once_have_no_order() -> None:
    history = clean()
    history.line_in_the_wrong_order()
    history.request_of("o1").told = history.request_of("o2").asked + 0.1
    assert broken(history) == set()
