"""The invariants of a queue, asserted by tests after every event."""

from __future__ import annotations

from collections import Counter

from .agenda import Due
from .books import Books
from .states import ADMITTED, STARTED, UNSETTLED, Step
from .task import Task


def check(books: Books) -> None:
    """Raises:
    AssertionError: names the task and what is wrong with it.
    """
    assert not books.out, "effects were left behind"
    assert books.sure or not books.held or books.taken, "effects are held back for nobody"
    assert not (books.sure and books.held), "effects are held back for nothing"
    by_step = Counter(task.step for task in books.tasks.values())
    assert by_step == +Counter(books.count), f"steps are miscounted: {by_step} is not {books.count}"
    assert books.window.held == len(books.tasks), "the window is miscounted"
    assert books.window.bytes == sum(task.size for task in books.tasks.values()), "bytes are miscounted"
    for task in books.tasks.values():
        _check_task(books, task)
    _check_pools(books)
    _check_keys(books)
    for due, seq in books.agenda:
        assert seq in books.tasks, f"{due.value} of {seq}, which is gone"
        assert books.tasks[seq].step in UNSETTLED, f"{due.value} of {books.tasks[seq]}"
    for job, seq in books.jobs.items():
        assert books.tasks[seq].job == job, f"job {job} is not {seq}"
    lined = any(pool.line for pool in books.pools)
    if books.open and lined and books.sure and not books.rules.paused:
        _check_that_nothing_could_start(books)


def _check_task(books: Books, task: Task) -> None:
    step = task.step
    assert step not in (Step.NEW, Step.GONE), f"{task} is remembered"
    assert books.jobs.get(task.job) == task.seq or step not in UNSETTLED or step is Step.LOOKING, f"{task} has no job"
    assert (step is Step.LINED) == any(task.seq in pool.line for pool in books.pools), f"{task} is (not) in line"
    assert step is not Step.STOPPING or task.doom is not None, f"{task} stops for no reason"
    assert step in UNSETTLED or step is Step.SCHEDULING or task.end or step is Step.ACKING, f"{task} has no end"
    assert step not in STARTED or task.attempts > 0, f"{task} runs without an attempt"
    assert step is not Step.WAITING or (Due.RETRY, task.seq) in books.agenda, f"{task} waits for ever"
    assert step is not Step.PARKED or (Due.MISFIT, task.seq) in books.agenda, f"{task} is parked for ever"
    assert not (books.open and task.found and step is Step.LOOKING), f"{task} has ended, and is not forgotten"
    if not books.open:
        assert step is not Step.RUNNING or task.worker, f"{task} was started before it was known what runs"
        return
    if step in ADMITTED or step is Step.WAITING:
        assert task.doom is None, f"{task} is doomed and goes on waiting"
        assert task.deadline is None or books.now < task.deadline, f"{task} has expired and goes on waiting"
    if step is Step.RUNNING:
        assert task.doom is None, f"{task} is doomed and goes on"
        assert task.deadline is None or books.now < task.deadline, f"{task} has expired and goes on"
        assert task.timeout_at is None or books.now < task.timeout_at, f"{task} has timed out and goes on"


def _check_pools(books: Books) -> None:
    running = Counter(task.pool for task in books.tasks.values() if task.step in STARTED)
    for pool in books.pools:
        assert pool.free == sorted(slots for slots in pool.free if slots > 0), f"{pool} has odd leases"
        assert pool.free_slots == sum(pool.free), f"{pool} has miscounted its credit"
        assert pool.running == running[pool.name], f"{pool} has miscounted what runs"
        assert pool.line.slots == sum(pool.line.cost(seq) for seq in pool.line), f"{pool} has miscounted its line"
        for seq in pool.line:
            task = books.tasks[seq]
            assert pool is books.pools.choose(task.submission, task.draw), f"{task} is in the line of {pool}"


def _check_keys(books: Books) -> None:
    books.lanes.check()
    for task in books.tasks.values():
        if task.step in UNSETTLED and task.ordered and task.key is not None:
            head = books.lanes.head(task.key)
            assert task.seq in books.lanes.members(task.key), f"{task} is not in its lane"
            assert (task.step is Step.BEHIND) == (task.step in ADMITTED and head != task.seq), f"{task} is (not) behind"
        else:
            assert task.step is not Step.BEHIND, f"{task} is behind nobody"
    if books.caps is None:
        assert not books.count[Step.CAPPED], "tasks are kept back by no limit"
        return
    books.caps.check()
    for task in books.tasks.values():
        if task.key is None:
            continue
        listed = books.caps.may_start(task.key, task.seq)
        assert listed == (task.step in (Step.LINED, Step.PARKED)), f"{task} is (not) a candidate of its key"
        assert (task.seq in books.caps.running(task.key)) == (task.step in STARTED), (
            f"{task} is (not) counted by its key"
        )


def _check_that_nothing_could_start(books: Books) -> None:
    if books.gate is not None and not books.gate.ready(books.now):
        return
    if books.rules.max_running is not None and books.running >= books.rules.max_running:
        return
    for pool in books.pools:
        assert pool.next(books.now, books.settings.age_step_s) is None, f"{pool} has room, and nobody was started"
