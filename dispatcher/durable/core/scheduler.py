"""Who starts now, what more could be used, and when to look again.

Among the next of all pools that have room, the one with the first place starts, for as long as the limits allow.
"""

from __future__ import annotations

from typing import Final

from ....schemas.records.jobs import JobState
from ..policies.key_limits import KeyConcurrency, OrderedKeys, StartChanges
from ..policies.priority_order import Place
from ..policies.retry_policy import timeout_s
from .effects import RequestSlots, SetQueueTimer, StartAttempt
from .pool_credit import PoolCredit
from .state import QueueState
from .states import ADMITTED, STARTED, UNSETTLED, TaskStep
from .task import Task
from .timers import TimerKind

LEAD_S: Final = 0.25
"""How long before a rate allows a start leases are asked for."""


class StartScheduler:
    """Starts and wants."""

    def __init__(self, books: QueueState, admission: Admission) -> None:
        self._books = books
        self._admission = admission
        self._woken: float | None = None
        """What the last SetQueueTimer said."""

    def pump(self) -> None:
        """Start whoever can start, in order."""
        room = self.room()
        while room > 0:
            found = self._first()
            if found is None:
                return
            self._start(*found)
            room = room - 1 if self._books.gate is None else self.room()

    def room(self) -> int:
        """How many tasks may start now, if there are slots for them."""
        books = self._books
        if not books.open or not books.sure or books.rules.paused:
            return 0
        if books.gate is not None and not books.gate.ready(books.now):
            return 0
        if books.rules.max_running is not None:
            return max(0, books.rules.max_running - books.running)
        return len(books.tasks)

    def _first(self) -> tuple[Place, PoolCredit] | None:
        books = self._books
        best: tuple[Place, PoolCredit] | None = None
        for pool in books.pools:
            place = pool.next(books.now, books.settings.age_step_s)
            if place is not None and (best is None or place < best[0]):
                best = (place, pool)
        return best

    def _start(self, place: Place, pool: PoolCredit) -> None:
        books = self._books
        task = books.tasks[place[1]]
        cost = pool.line.cost(task.seq)
        pool.take(cost)
        if books.gate is not None:
            books.gate.take(books.now)
        task.attempts += 1
        task.started_at, task.timeout_at, task.worker = books.wall, None, ""
        self._admission.begin(task)
        books.totals["started"] += 1
        limit_s = timeout_s(task.submission, books.rules)
        if limit_s is not None:
            task.timeout_at = books.now + limit_s
            books.agenda.set((TimerKind.TIMEOUT, task.seq), task.timeout_at)
        books.out.append(
            StartAttempt(
                seq=task.seq,
                job=task.job,
                attempt=task.attempts,
                pool=pool.name,
                cost=cost,
                timeout_s=limit_s,
                deadline_at=task.submission.deadline_at,
            )
        )
        books.out.extend(books.tell(task, JobState.RUNNING))

    def want(self) -> None:
        """Say what more could be used, if that has changed."""
        books = self._books
        most = self._soon()
        for pool in books.pools:
            lacks = pool.lacks(most, books.now, books.settings.age_step_s)
            if lacks != pool.told:
                pool.told = lacks
                books.out.append(RequestSlots(pool=pool.name, slots=lacks[0], largest=lacks[1]))

    def _soon(self) -> int:
        """How many tasks may start within LEAD_S, if there are slots for them."""
        books = self._books
        if not books.open or not books.sure or books.rules.paused:
            return 0
        most = len(books.tasks)
        if books.rules.max_running is not None:
            most = min(most, books.rules.max_running - books.running)
        if books.gate is not None:
            most = min(most, books.gate.allowed(books.now, books.now + LEAD_S))
        return max(0, most)

    def wake(self) -> None:
        """Say when to look again, if that has changed."""
        books = self._books
        at = None
        if books.open:
            turns = (pool.turn_ends_at(books.now, books.settings.age_step_s) for pool in books.pools)
            at = min((at for at in (books.agenda.next_at, self._rate_at(), *turns) if at is not None), default=None)
        if at != self._woken:
            self._woken = at
            books.out.append(SetQueueTimer(at=at))

    def _rate_at(self) -> float | None:
        """When the rate allows more, or it is time to ask for leases."""
        books = self._books
        if books.gate is None or not any(pool.line for pool in books.pools):
            return None
        next_at = books.gate.next_at
        return next((at for at in (next_at - LEAD_S, next_at) if at > books.now), None)


class Admission:
    """Moves tasks among the steps ADMITTED, and keeps lanes, caps and lines."""

    def __init__(self, books: QueueState) -> None:
        self._books = books

    # -- lanes: from arrival to the stored end ---------------------------------------------------------------------

    def enrol(self, task: Task) -> None:
        """It has arrived, or the rules have changed: it takes part in the order of its key."""
        task.ordered = task.key is not None and (task.submission.ordered or self._books.rules.ordered)
        if task.ordered and task.key is not None:
            self._demote(self._books.lanes.join(task.key, task.seq))
            if task.begun:
                self._demote(self._books.lanes.start(task.key, task.seq))

    def dismiss(self, task: Task) -> None:
        """Its end is stored: the next of its ordered key may go on."""
        if task.ordered and task.key is not None:
            self._promote(self._books.lanes.leave(task.key, task.seq))

    def unstarted(self, task: Task) -> None:
        """Its first try started nothing."""
        if task.ordered and task.key is not None:
            self._promote(self._books.lanes.unstart(task.key, task.seq))

    def _promote(self, seq: int | None) -> None:
        task = None if seq is None else self._books.tasks[seq]
        if task is not None and task.step is TaskStep.BEHIND:
            self._cap(task)

    def _demote(self, seq: int | None) -> None:
        task = None if seq is None else self._books.tasks[seq]
        if task is not None and task.step in ADMITTED:
            self.withdraw(task)
            self._books.move(task, TaskStep.BEHIND)

    # -- lines: while it waits for its turn --------------------------------------------------------------------------

    def admit(self, task: Task) -> None:
        """It could start."""
        if task.ordered and task.key is not None and self._books.lanes.head(task.key) != task.seq:
            self._books.move(task, TaskStep.BEHIND)
        else:
            self._cap(task)

    def withdraw(self, task: Task) -> None:
        """It could start, and is taken out (its step is for the caller to change)."""
        self._unline(task)
        if self._books.caps is not None and task.key is not None:
            self._shift(self._books.caps.discard(task.key, task.seq))

    def begin(self, task: Task) -> None:
        """It runs from now on, whatever it did before."""
        books = self._books
        if task.step in ADMITTED:
            self._unline(task)
        books.move(task, TaskStep.RUNNING)
        if books.agenda:
            books.agenda.cancel((TimerKind.RETRY, task.seq))
            books.agenda.cancel((TimerKind.UNKNOWN, task.seq))
        if task.ordered and task.key is not None:
            self._demote(books.lanes.start(task.key, task.seq))
        if books.caps is not None and task.key is not None:
            self._shift(books.caps.start(task.key, task.seq))
        books.pools[task.pool].running += 1

    def end(self, task: Task) -> None:
        """It does not run any more (its step is for the caller to change)."""
        books = self._books
        if books.agenda:
            books.agenda.cancel((TimerKind.TIMEOUT, task.seq))
        books.pools[task.pool].running -= 1
        if books.caps is not None and task.key is not None:
            self._shift(books.caps.stop(task.key, task.seq))

    def rebuild(self) -> None:
        """Rules, weights or workers have changed: everybody who has not started is admitted anew."""
        books = self._books
        limit = books.rules.per_key
        books.caps = None if limit is None else KeyConcurrency(limit)
        books.lanes = OrderedKeys()
        waiting = [task for task in books.tasks.values() if task.step in ADMITTED]
        for task in waiting:
            self._unline(task)
        for task in books.tasks.values():
            if task.step in UNSETTLED or task.step in (TaskStep.STORING, TaskStep.BURYING):
                self._enrol_again(task)
            if task.step in STARTED and books.caps is not None and task.key is not None:
                books.caps.start(task.key, task.seq)
        for task in waiting:
            self.admit(task)

    def _enrol_again(self, task: Task) -> None:
        """As `enrol`, while nobody has a place."""
        task.ordered = task.key is not None and (task.submission.ordered or self._books.rules.ordered)
        if task.ordered and task.key is not None:
            self._books.lanes.join(task.key, task.seq)
            if task.begun:
                self._books.lanes.start(task.key, task.seq)

    def _cap(self, task: Task) -> None:
        books = self._books
        if books.caps is None or task.key is None:
            self._line(task)
            return
        shift = books.caps.add(task.key, task.place)
        if task.seq not in shift.promoted:
            books.move(task, TaskStep.CAPPED)
        self._shift(shift)

    def _shift(self, shift: StartChanges) -> None:
        for seq in shift.demoted:
            task = self._books.tasks[seq]
            self._unline(task)
            self._books.move(task, TaskStep.CAPPED)
        for seq in shift.promoted:
            self._line(self._books.tasks[seq])

    def _line(self, task: Task) -> None:
        books = self._books
        pool = books.pools.choose(task.submission, task.draw)
        task.pool = pool.name
        task.cost = pool.costs.get(task.submission.method, 1)
        if 0 < pool.largest < task.cost:
            books.move(task, TaskStep.PARKED)
            if (TimerKind.MISFIT, task.seq) not in books.agenda:
                books.agenda.set((TimerKind.MISFIT, task.seq), books.now + books.settings.unknown_after_s)
            return
        if books.agenda:
            books.agenda.cancel((TimerKind.MISFIT, task.seq))
        books.move(task, TaskStep.LINED)
        pool.line.add(task.place, task.cost)

    def _unline(self, task: Task) -> None:
        if task.step is TaskStep.LINED:
            self._books.pools[task.pool].line.discard(task.seq)
