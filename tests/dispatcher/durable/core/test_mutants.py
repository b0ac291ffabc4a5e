"""Planted bugs, each a small and believable mistake in the core: the world, the oracle or `check` must report it in
some random history. One that gets away means that they are too weak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from gangline.dispatcher.durable.core import queue_core as core
from gangline.dispatcher.durable.core.effects import Ack, StopReason
from gangline.dispatcher.durable.core.events import Persisted, TaskAdopted
from gangline.dispatcher.durable.core.pools import PoolCredit
from gangline.dispatcher.durable.core.queue_core import QueueCore
from gangline.dispatcher.durable.core.scheduler import StartScheduler
from gangline.dispatcher.durable.core.task import ADMITTED, QueueState, Task, TaskStep
from gangline.dispatcher.durable.policies.start_order import KeyConcurrency, StartChanges
from gangline.runtime.rate import RateLimiter

from ....scale import repetitions
from ....support.durable.walk import walk
from ....support.planted import Place, Plant, planting

SEEDS = repetitions(40, whole=150)

QUICK = {
    1: "it_is_acknowledged_before_its_end_is_stored",
    2: "tasks_start_before_it_is_known_what_runs",
    3: "the_wait_begins_before_the_failure_is_noted",
    4: "nobody_is_woken_when_the_declared_rate_allows_more",
    5: "an_ordered_key_goes_on_while_its_head_waits_for_a_retry",
    6: "a_head_that_does_not_fit_is_passed_at_once",
    7: "in_doubt_ends_are_stored_all_the_same",
    8: "a_cancellation_is_confirmed_before_it_is_written_down",
    9: "time_is_looked_at_after_what_happens",
}
"""For each law of the core, the bug that the quick suite plants: the one that is caught with the least work. Tests of
tenants and their turns have laws 10 and 11."""

Bug = TypeVar("Bug", bound=Callable[..., Any])


@dataclass(frozen=True)
class Mutant:
    law: int
    plant: Plant
    inside: bool
    """Only `check` sees it, or sees it soon."""


MUTANTS: dict[str, Mutant] = {}


def mutant(law: int, *, inside: bool = False, **place: Place) -> Callable[[Bug], Bug]:
    """Declare the decorated function, whose name tells the bug: it plants it, or is planted (see `planting`)."""

    def declare(bug: Bug) -> Bug:
        MUTANTS[bug.__name__] = Mutant(law, planting(bug, **place), inside)
        return bug

    return declare


# -- law 1 ------------------------------------------------------------------------------------------------------------


@mutant(1, around=(QueueCore, "_store"))
def it_is_acknowledged_before_its_end_is_stored(original: Any, self: QueueCore, task: Task, state: Any) -> None:
    original(self, task, state)
    self._state.settle(Ack(seq=task.seq, job=task.job, tried=False))


@mutant(1, inside=True, instead_of=(QueueState, "settle"))
def what_was_held_back_in_doubt_is_forgotten(self: QueueState, effect: Any, *told: Any) -> None:
    if self.sure:
        self.out.extend((effect, *told))


@mutant(1, inside=True, instead_of=(QueueCore, "_wait"))
def a_retry_is_never_woken(self: QueueCore, task: Task, until: float) -> None:
    if until > self._state.now:
        self._state.move(task, TaskStep.WAITING)
    else:
        self._scheduler.admit(task)


# -- law 2 ------------------------------------------------------------------------------------------------------------


@mutant(2, around=(StartScheduler, "room"))
def tasks_start_before_it_is_known_what_runs(original: Any, self: StartScheduler) -> int:
    before, self._state.open = self._state.open, True
    try:
        return original(self)
    finally:
        self._state.open = before


@mutant(2, around=(core.HANDLERS, TaskAdopted))
def what_is_told_before_it_arrives_is_not_attached_to(original: Any, self: QueueCore, event: Any) -> None:
    if event.job in self._state.jobs:
        original(self, event)


@mutant(2, around=(QueueCore, "stop"))
def a_timed_out_try_is_given_up_before_it_has_ended(
    original: Any, self: QueueCore, task: Task, why: StopReason
) -> None:
    original(self, task, why)
    if why is StopReason.TIMED_OUT:
        self._scheduler.end(task)
        task.doom = None
        self._wait(task, self._state.now)


# -- law 3 ------------------------------------------------------------------------------------------------------------


@mutant(3, around=(QueueCore, "_again"))
def the_wait_begins_before_the_failure_is_noted(
    original: Any, self: QueueCore, task: Task, *args: Any, **rest: Any
) -> None:
    original(self, task, *args, **rest)
    if task.step is TaskStep.NOTING:
        self._wait(task, task.ready_at)


@mutant(3, around=(QueueCore, "_refused"))
def what_started_nothing_counts(original: Any, self: QueueCore, task: Task) -> None:
    task.attempts += 1
    original(self, task)


# -- law 4 ------------------------------------------------------------------------------------------------------------


@mutant(4)
def what_is_stopping_does_not_count_as_running(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueState, "running", property(lambda self: self.count[TaskStep.RUNNING]))


@mutant(4, inside=True)
def adopted_tasks_do_not_count_for_their_key(patch: pytest.MonkeyPatch) -> None:
    original = KeyConcurrency.start

    def start(self: KeyConcurrency, key: str, seq: int) -> StartChanges:
        if not self.may_start(key, seq):
            self.discard(key, seq)
            return StartChanges()
        return original(self, key, seq)

    def stop(self: KeyConcurrency, key: str, seq: int) -> StartChanges:
        return original_stop(self, key, seq) if seq in self.running(key) else StartChanges()

    original_stop = KeyConcurrency.stop
    patch.setattr(KeyConcurrency, "start", start)
    patch.setattr(KeyConcurrency, "stop", stop)


@mutant(4, around=(RateLimiter, "__init__"))
def the_rate_begins_with_a_full_bucket(
    original: Any, self: RateLimiter, *, rate_per_s: float, burst: int, now: float
) -> None:
    original(self, rate_per_s=rate_per_s, burst=burst, now=now)
    self._tat = now


@mutant(4, around=(StartScheduler, "limits_of"))
def what_ran_before_the_declaration_changed_does_not_count_for_it(
    original: Any, self: StartScheduler, task: Task
) -> Any:
    return original(self, task) if task.step in ADMITTED | {TaskStep.NEW, TaskStep.WAITING} else ()


@mutant(4, instead_of=(KeyConcurrency, "_most"))
def a_declared_limit_counts_those_in_line_only(self: KeyConcurrency, cap: Any) -> int:
    limit = 1 << 62 if self.limit is None else self.limit
    return limit if self.rate is None else min(limit, self.rate.allowed(self.now, self.now))


@mutant(4, around=(StartScheduler, "_keep_rates"))
def a_declared_rate_starts_anew_whenever_a_worker_comes_or_goes(original: Any, self: StartScheduler) -> None:
    self._rates = {}
    original(self)
    for rate in self._rates.values():
        rate._tat = self._state.now


@mutant(4)
def a_start_does_not_use_up_the_declared_rate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RateLimiter, "take", lambda self, now: None)


@mutant(4)
def nobody_is_woken_when_the_declared_rate_allows_more(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StartScheduler, "tick", lambda self: None)


@mutant(4, inside=True)
def slots_of_all_leases_are_taken_together(patch: pytest.MonkeyPatch) -> None:
    original = PoolCredit.credit
    patch.setattr(PoolCredit, "credit", lambda self, free: original(self, (sum(free),)))


@mutant(4, inside=True)
def a_pools_limit_is_looked_at_only_when_it_is_set(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PoolCredit, "full", False)


# -- laws 5 and 6 -----------------------------------------------------------------------------------------------------


@mutant(5, around=(core.HANDLERS, Persisted))
def an_ordered_key_goes_on_while_its_head_waits_for_a_retry(original: Any, self: QueueCore, event: Persisted) -> None:
    original(self, event)
    task = self._state.tasks.get(event.seq)
    if task is not None and task.step is TaskStep.WAITING:
        self._scheduler.dismiss(task)
        task.ordered = False


@mutant(5, inside=True, around=(QueueCore, "_store"))
def an_ordered_key_goes_on_before_the_end_of_its_head_is_stored(
    original: Any, self: QueueCore, task: Task, state: Any
) -> None:
    original(self, task, state)
    self._scheduler.dismiss(task)
    task.ordered = False


@mutant(5, inside=True, around=(StartScheduler, "enrol"))
def an_ordered_key_goes_by_priority(original: Any, self: StartScheduler, task: Task) -> None:
    original(self, task)
    if task.ordered and (task.submission.priority or 0) > 0 and task.step in ADMITTED | {TaskStep.NEW}:
        self._demote(self.ordered_keys.start(task.key or "", task.seq))


@mutant(5, inside=True, around=(QueueCore, "_wait"))
def one_that_comes_back_goes_to_the_end_of_the_line(original: Any, self: QueueCore, task: Task, until: float) -> None:
    task.place = (self._state.wall, task.seq)
    original(self, task, until)


@mutant(5, instead_of=(StartScheduler, "_first"))
def the_first_pool_with_room_goes_first(self: StartScheduler) -> Any:
    for pool in self.pools:
        place = pool.next(self._state.now, self._state.settings.age_step_s)
        if place is not None:
            return (place, pool)
    return None


@mutant(6, inside=True)
def a_head_that_does_not_fit_is_passed_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PoolCredit, "_turn", lambda self, now, turn_s: 1)


@mutant(5, inside=True, around=(KeyConcurrency, "stop"))
def a_freed_key_is_not_passed_on(original: Any, self: KeyConcurrency, key: str, seq: int) -> StartChanges:
    original(self, key, seq)
    return StartChanges()


@mutant(5, inside=True)
def a_cancelled_candidate_keeps_its_place_in_the_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StartScheduler, "withdraw", lambda self, task: self._unline(task))


# -- laws 7 to 9 -----------------------------------------------------------------------------------------------------


@mutant(7, inside=True, around=(StartScheduler, "room"))
def in_doubt_tasks_are_started_all_the_same(original: Any, self: StartScheduler) -> int:
    before, self._state.sure = self._state.sure, True
    try:
        return original(self)
    finally:
        self._state.sure = before


@mutant(7)
def in_doubt_ends_are_stored_all_the_same(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueState, "settle", lambda self, effect, *told: self.out.extend((effect, *told)))


@mutant(8)
def a_cancellation_is_confirmed_before_it_is_written_down(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(core, "promised", lambda queue, job: True)


@mutant(8, around=(QueueCore, "_enter"))
def a_cancellation_that_was_written_down_is_not_read(original: Any, self: QueueCore, task: Task) -> None:
    task.cancelled = False
    original(self, task)


@mutant(9, inside=True, around=(QueueCore, "handle"))
def time_is_looked_at_after_what_happens(original: Any, self: QueueCore, event: Any) -> Any:
    self._tick = lambda: None
    try:
        return original(self, event)
    finally:
        del self._tick


def caught(seeds: range) -> str | None:
    """What the first history that breaks a law says."""
    for seed in seeds:
        try:
            walk(seed)
        except (AssertionError, KeyError) as error:
            return str(error)
    return None


def planted(name: str) -> Any:
    return pytest.param(name, marks=() if name in QUICK.values() else pytest.mark.long)


@pytest.mark.parametrize("name", [planted(name) for name in MUTANTS])
def test_a_planted_bug_is_caught(name: str, monkeypatch) -> None:
    """By what can be seen from outside, if it shows there."""
    if not MUTANTS[name].inside:
        monkeypatch.setattr(core, "check", lambda queue, scheduler: None)
    MUTANTS[name].plant(monkeypatch)
    assert caught(range(SEEDS)) is not None, f"{name} got away in {SEEDS} histories"


def test_each_law_has_a_planted_bug_in_the_quick_suite() -> None:
    assert {law: MUTANTS[name].law for law, name in QUICK.items()} == {law: law for law in range(1, 10)}
    assert QUICK.keys() == {mutant.law for mutant in MUTANTS.values()}


def test_without_a_planted_bug_nothing_is_caught() -> None:
    assert caught(range(SEEDS, SEEDS + repetitions(10, whole=50))) is None
