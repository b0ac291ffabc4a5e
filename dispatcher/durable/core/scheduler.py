"""Who starts now, what more could be used, and when to look again.

Among the next of all pools that have room, the one with the first place starts, for as long as the limits allow.
"""

from __future__ import annotations

from typing import Final

from ....schemas.records.jobs import JobState
from ..policies.retry_policy import timeout_s
from ..policies.start_order import KeyConcurrency, OrderedKeys, Place, StartChanges
from .effects import RequestSlots, SetQueueTimer, StartAttempt
from .state import PoolCredit, QueueState, TimerKind
from .task import ADMITTED, STARTED, UNSETTLED, Task, TaskStep

LEAD_S: Final = 0.25
"""How long before a rate allows a start leases are asked for."""


class StartScheduler:
    """Starts and wants."""

    def __init__(self, queue_state: QueueState, admission: Admission) -> None:
        self._state = queue_state
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
            room = room - 1 if self._state.gate is None else self.room()

    def room(self) -> int:
        """How many tasks may start now, if there are slots for them."""
        queue_state = self._state
        if not queue_state.open or not queue_state.sure or queue_state.rules.paused:
            return 0
        if queue_state.gate is not None and not queue_state.gate.ready(queue_state.now):
            return 0
        if queue_state.rules.max_running is not None:
            return max(0, queue_state.rules.max_running - queue_state.running)
        return len(queue_state.tasks)

    def _first(self) -> tuple[Place, PoolCredit] | None:
        queue_state = self._state
        best: tuple[Place, PoolCredit] | None = None
        for pool in queue_state.pools:
            place = pool.next(queue_state.now, queue_state.settings.age_step_s)
            if place is not None and (best is None or place < best[0]):
                best = (place, pool)
        return best

    def _start(self, place: Place, pool: PoolCredit) -> None:
        queue_state = self._state
        task = queue_state.tasks[place[1]]
        cost = pool.line.cost(task.seq)
        pool.take(cost)
        if queue_state.gate is not None:
            queue_state.gate.take(queue_state.now)
        task.attempts += 1
        task.started_at, task.timeout_at, task.worker = queue_state.wall, None, ""
        self._admission.begin(task)
        queue_state.totals["started"] += 1
        limit_s = timeout_s(task.submission, queue_state.rules)
        if limit_s is not None:
            task.timeout_at = queue_state.now + limit_s
            queue_state.agenda.set((TimerKind.TIMEOUT, task.seq), task.timeout_at)
        queue_state.out.append(
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
        queue_state.out.extend(queue_state.tell(task, JobState.RUNNING))

    def want(self) -> None:
        """Say what more could be used, if that has changed."""
        queue_state = self._state
        most = self._soon()
        for pool in queue_state.pools:
            lacks = pool.lacks(most, queue_state.now, queue_state.settings.age_step_s)
            if lacks != pool.told:
                pool.told = lacks
                queue_state.out.append(RequestSlots(pool=pool.name, slots=lacks[0], largest=lacks[1]))

    def _soon(self) -> int:
        """How many tasks may start within LEAD_S, if there are slots for them."""
        queue_state = self._state
        if not queue_state.open or not queue_state.sure or queue_state.rules.paused:
            return 0
        most = len(queue_state.tasks)
        if queue_state.rules.max_running is not None:
            most = min(most, queue_state.rules.max_running - queue_state.running)
        if queue_state.gate is not None:
            most = min(most, queue_state.gate.allowed(queue_state.now, queue_state.now + LEAD_S))
        return max(0, most)

    def wake(self) -> None:
        """Say when to look again, if that has changed."""
        queue_state = self._state
        at = None
        if queue_state.open:
            turns = (pool.turn_ends_at(queue_state.now, queue_state.settings.age_step_s) for pool in queue_state.pools)
            at = min(
                (at for at in (queue_state.agenda.next_at, self._rate_at(), *turns) if at is not None), default=None
            )
        if at != self._woken:
            self._woken = at
            queue_state.out.append(SetQueueTimer(at=at))

    def _rate_at(self) -> float | None:
        """When the rate allows more, or it is time to ask for leases."""
        queue_state = self._state
        if queue_state.gate is None or not any(pool.line for pool in queue_state.pools):
            return None
        next_at = queue_state.gate.next_at
        return next((at for at in (next_at - LEAD_S, next_at) if at > queue_state.now), None)


class Admission:
    """Moves tasks among the steps ADMITTED, and keeps lanes, caps and lines."""

    def __init__(self, queue_state: QueueState) -> None:
        self._state = queue_state

    # -- lanes: from arrival to the stored end ---------------------------------------------------------------------

    def enrol(self, task: Task) -> None:
        """It has arrived, or the rules have changed: it takes part in the order of its key."""
        task.ordered = task.key is not None and (task.submission.ordered or self._state.rules.ordered)
        if task.ordered and task.key is not None:
            self._demote(self._state.ordered_keys.join(task.key, task.seq))
            if task.begun:
                self._demote(self._state.ordered_keys.start(task.key, task.seq))

    def dismiss(self, task: Task) -> None:
        """Its end is stored: the next of its ordered key may go on."""
        if task.ordered and task.key is not None:
            self._promote(self._state.ordered_keys.leave(task.key, task.seq))

    def unstarted(self, task: Task) -> None:
        """Its first try started nothing."""
        if task.ordered and task.key is not None:
            self._promote(self._state.ordered_keys.unstart(task.key, task.seq))

    def _promote(self, seq: int | None) -> None:
        task = None if seq is None else self._state.tasks[seq]
        if task is not None and task.step is TaskStep.BEHIND:
            self._cap(task)

    def _demote(self, seq: int | None) -> None:
        task = None if seq is None else self._state.tasks[seq]
        if task is not None and task.step in ADMITTED:
            self.withdraw(task)
            self._state.move(task, TaskStep.BEHIND)

    # -- lines: while it waits for its turn --------------------------------------------------------------------------

    def admit(self, task: Task) -> None:
        """It could start."""
        if task.ordered and task.key is not None and self._state.ordered_keys.head(task.key) != task.seq:
            self._state.move(task, TaskStep.BEHIND)
        else:
            self._cap(task)

    def withdraw(self, task: Task) -> None:
        """It could start, and is taken out (its step is for the caller to change)."""
        self._unline(task)
        if self._state.concurrency is not None and task.key is not None:
            self._shift(self._state.concurrency.discard(task.key, task.seq))

    def begin(self, task: Task) -> None:
        """It runs from now on, whatever it did before."""
        queue_state = self._state
        if task.step in ADMITTED:
            self._unline(task)
        queue_state.move(task, TaskStep.RUNNING)
        if queue_state.agenda:
            queue_state.agenda.cancel((TimerKind.RETRY, task.seq))
            queue_state.agenda.cancel((TimerKind.UNKNOWN, task.seq))
        if task.ordered and task.key is not None:
            self._demote(queue_state.ordered_keys.start(task.key, task.seq))
        if queue_state.concurrency is not None and task.key is not None:
            self._shift(queue_state.concurrency.start(task.key, task.seq))
        queue_state.pools[task.pool].running += 1

    def end(self, task: Task) -> None:
        """It does not run any more (its step is for the caller to change)."""
        queue_state = self._state
        if queue_state.agenda:
            queue_state.agenda.cancel((TimerKind.TIMEOUT, task.seq))
        queue_state.pools[task.pool].running -= 1
        if queue_state.concurrency is not None and task.key is not None:
            self._shift(queue_state.concurrency.stop(task.key, task.seq))

    def rebuild(self) -> None:
        """Rules, weights or workers have changed: everybody who has not started is admitted anew."""
        queue_state = self._state
        limit = queue_state.rules.per_key
        queue_state.concurrency = None if limit is None else KeyConcurrency(limit)
        queue_state.ordered_keys = OrderedKeys()
        waiting = [task for task in queue_state.tasks.values() if task.step in ADMITTED]
        for task in waiting:
            self._unline(task)
        for task in queue_state.tasks.values():
            if task.step in UNSETTLED or task.step in (TaskStep.STORING, TaskStep.BURYING):
                self._enrol_again(task)
            if task.step in STARTED and queue_state.concurrency is not None and task.key is not None:
                queue_state.concurrency.start(task.key, task.seq)
        for task in waiting:
            self.admit(task)

    def _enrol_again(self, task: Task) -> None:
        """As `enrol`, while nobody has a place."""
        task.ordered = task.key is not None and (task.submission.ordered or self._state.rules.ordered)
        if task.ordered and task.key is not None:
            self._state.ordered_keys.join(task.key, task.seq)
            if task.begun:
                self._state.ordered_keys.start(task.key, task.seq)

    def _cap(self, task: Task) -> None:
        queue_state = self._state
        if queue_state.concurrency is None or task.key is None:
            self._line(task)
            return
        shift = queue_state.concurrency.add(task.key, task.place)
        if task.seq not in shift.promoted:
            queue_state.move(task, TaskStep.CAPPED)
        self._shift(shift)

    def _shift(self, shift: StartChanges) -> None:
        for seq in shift.demoted:
            task = self._state.tasks[seq]
            self._unline(task)
            self._state.move(task, TaskStep.CAPPED)
        for seq in shift.promoted:
            self._line(self._state.tasks[seq])

    def _line(self, task: Task) -> None:
        queue_state = self._state
        pool = queue_state.pools.choose(task.submission, task.draw)
        task.pool = pool.name
        task.cost = pool.costs.get(task.submission.method, 1)
        if 0 < pool.largest < task.cost:
            queue_state.move(task, TaskStep.PARKED)
            if (TimerKind.MISFIT, task.seq) not in queue_state.agenda:
                queue_state.agenda.set(
                    (TimerKind.MISFIT, task.seq), queue_state.now + queue_state.settings.unknown_after_s
                )
            return
        if queue_state.agenda:
            queue_state.agenda.cancel((TimerKind.MISFIT, task.seq))
        queue_state.move(task, TaskStep.LINED)
        pool.line.add(task.place, task.cost)

    def _unline(self, task: Task) -> None:
        if task.step is TaskStep.LINED:
            self._state.pools[task.pool].line.discard(task.seq)
