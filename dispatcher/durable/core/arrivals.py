"""What becomes of a message until it may be started: is it new, has it ended before, does it run already?"""

from __future__ import annotations

from ....schemas.errors.base import GanglineError
from ....schemas.errors.tasks import InvalidSchedule
from ....schemas.messages.submission import Submission
from ....schemas.records.jobs import DeadReason, JobState
from ..policies.priority_order import place_of
from ..policies.retry_policy import timeout_s
from . import events as on
from .completion import Completion
from .effects import Ack, LookUpResult, ReattachAttempt, Schedule, StopReason
from .scheduler import Admission
from .state import QueueState
from .states import ADMITTED, UNSETTLED, TaskStep
from .task import Task
from .timers import TimerKind


class Arrivals:
    """Arrivals, lookups, adoptions and schedules."""

    def __init__(self, queue_state: QueueState, admission: Admission, ending: Completion) -> None:
        self._state = queue_state
        self._admission = admission
        self._ending = ending

    # -- messages ----------------------------------------------------------------------------------------------------

    def arrived(self, event: on.TaskArrived) -> None:
        queue_state = self._state
        if self._again(event.seq):
            return
        task = self._new(event.seq, event.submission, event.size)
        other = queue_state.tasks.get(queue_state.jobs.get(task.job, -1))
        if other is not None and other.step is not TaskStep.ACKING:
            queue_state.totals["repeated"] += 1
            self._ending.forget(task)
            return
        task.attempts = event.attempts
        task.tried = task.begun
        task.ready_at = queue_state.mono(event.not_before) if task.begun else queue_state.now
        if task.submission.deadline_at is not None:
            task.deadline = queue_state.mono(task.submission.deadline_at)
        delayed = self._delayed(task.submission)
        if delayed and not event.look:
            self._schedule(task)
            return
        if not delayed:
            self._enter(task, cancelled=event.cancelled)
        if event.look:
            queue_state.out.append(LookUpResult(seq=task.seq, job=task.job))
        if task.step is not TaskStep.NEW:
            return  # it runs
        if event.look:
            queue_state.move(task, TaskStep.LOOKING)
        else:
            queue_state.out.extend(queue_state.tell(task, JobState.QUEUED))
            self._go_on(task)

    def malformed(self, event: on.Malformed) -> None:
        if self._again(event.seq):
            return
        job = event.job or str(event.seq)
        submission = Submission(
            endpoint=self._state.endpoint, method="", job=job, published_at=event.published_at or self._state.wall
        )
        self._ending.bury(self._new(event.seq, submission, event.size), DeadReason.MALFORMED, event.error)

    def looked(self, event: on.Looked) -> None:
        task = self._state.tasks.get(event.seq)
        if task is not None and event.finished and task.step is TaskStep.RUNNING and task.worker:
            self._ending.stop(task, StopReason.CANCELLED)  # in vain, as it is
        if task is None or task.step is not TaskStep.LOOKING:
            return
        if event.finished and not self._state.open:
            task.found = True
        elif event.finished:
            self._finished(task)
        elif self._delayed(task.submission):
            self._schedule(task)
        else:
            if self._state.jobs.get(task.job) != task.seq:
                self._enter(task)  # its time has come meanwhile
            if task.step is TaskStep.LOOKING:
                if (TimerKind.UNKNOWN, task.seq) not in self._state.agenda and not self._state.pools.knows(
                    task.submission
                ):
                    self.unknown(task)  # that was due while its result was looked up
                self._go_on(task)

    def _finished(self, task: Task) -> None:
        self._state.totals["repeated"] += 1
        self._ending.forget(task)

    def acked(self, seq: int) -> None:
        queue_state = self._state
        task = queue_state.tasks.get(seq)
        if task is None or task.step is not TaskStep.ACKING:
            return
        queue_state.move(task, TaskStep.GONE)
        queue_state.count[TaskStep.GONE] -= 1
        queue_state.window.remove(task.size)
        del queue_state.tasks[seq]
        if queue_state.jobs.get(task.job) == seq:
            del queue_state.jobs[task.job]

    def _again(self, seq: int) -> bool:
        """Whether it was delivered before."""
        queue_state = self._state
        task = queue_state.tasks.get(seq)
        queue_state.window.delivered()
        if task is not None and task.step is TaskStep.ACKING:
            queue_state.settle(Ack(seq=seq, job=task.job, tried=False))
        return task is not None

    def _new(self, seq: int, submission: Submission, size: int) -> Task:
        queue_state = self._state
        place = place_of(submission, seq, queue_state.settings.age_step_s)
        task = Task(seq=seq, submission=submission, size=size, draw=queue_state.draw, place=place, now=queue_state.now)
        queue_state.put(task)
        return task

    def _enter(self, task: Task, *, cancelled: bool = False) -> None:
        """It takes part in the queue from now on, whatever it still waits for."""
        queue_state = self._state
        queue_state.jobs[task.job] = task.seq
        self._admission.enrol(task)
        if task.deadline is not None:
            queue_state.agenda.set((TimerKind.DEADLINE, task.seq), task.deadline)
        if not queue_state.pools.knows(task.submission):
            self.unknown(task)
        if cancelled:
            task.marked = task.tried = True
            self._ending.doom(task)
        adoption = queue_state.adoptions.pop(task.job, None) if queue_state.adoptions else None
        if adoption is not None:
            self._attach(task, *adoption)

    def _go_on(self, task: Task) -> None:
        """Nothing ended it before: it waits for its turn, or for its next try."""
        queue_state = self._state
        if self._ending.overdue(task):
            return
        if task.ready_at > queue_state.now:
            queue_state.move(task, TaskStep.WAITING)
            queue_state.agenda.set((TimerKind.RETRY, task.seq), task.ready_at)
        else:
            self._admission.admit(task)

    def unknown(self, task: Task) -> None:
        """Nobody knows its endpoint: it has so long to become known."""
        queue_state = self._state
        queue_state.agenda.set((TimerKind.UNKNOWN, task.seq), queue_state.now + queue_state.settings.unknown_after_s)

    # -- schedules ---------------------------------------------------------------------------------------------------

    def _delayed(self, submission: Submission) -> bool:
        due = submission.not_before
        return submission.cron is not None or (due is not None and due > self._state.wall)

    def _schedule(self, task: Task) -> None:
        self._state.move(task, TaskStep.SCHEDULING)
        self._state.settle(Schedule(seq=task.seq, job=task.job), *self._state.tell(task, JobState.SCHEDULED))

    def scheduled(self, seq: int) -> None:
        task = self._state.tasks.get(seq)
        if task is not None and task.step is TaskStep.SCHEDULING:
            task.end = JobState.SCHEDULED
            self._ending.forget(task)

    def schedule_refused(self, seq: int, error: GanglineError) -> None:
        task = self._state.tasks.get(seq)
        if task is not None and task.step is TaskStep.SCHEDULING:
            reason = DeadReason.MALFORMED if isinstance(error, InvalidSchedule) else DeadReason.IMPOSSIBLE
            self._ending.bury(task, reason, error)

    # -- what runs already -------------------------------------------------------------------------------------------

    def adopted(self, event: on.TaskAdopted) -> None:
        queue_state = self._state
        task = queue_state.tasks.get(queue_state.jobs.get(event.job, -1))
        if task is not None:
            self._attach(task, event.attempt, event.worker, event.pool)
        elif event.job not in queue_state.adoptions or queue_state.adoptions[event.job][0] < event.attempt:
            queue_state.adoptions[event.job] = (event.attempt, event.worker, event.pool)

    def _attach(self, task: Task, attempt: int, worker: str, pool: str) -> None:
        if attempt <= task.attempts:
            return  # that try is known to have failed, or a later one was found
        if task.step is TaskStep.RUNNING and task.worker:
            self._leave_the_older(task, attempt, worker)
            return
        if task.step not in ADMITTED | {TaskStep.NEW, TaskStep.LOOKING, TaskStep.WAITING}:
            return
        if task.step in ADMITTED:
            self._admission.withdraw(task)
        task.attempts, task.worker, task.pool = attempt, worker, pool or worker.partition(".")[0]
        self._admission.begin(task)
        self._attached(task)

    def _leave_the_older(self, task: Task, attempt: int, worker: str) -> None:
        """Two workers have the job, one of them since it was taken for lost: only the later try counts."""
        task.attempts, task.worker = attempt, worker
        self._attached(task)

    def _attached(self, task: Task) -> None:
        queue_state = self._state
        queue_state.out.append(ReattachAttempt(seq=task.seq, job=task.job, attempt=task.attempts, worker=task.worker))
        limit_s = timeout_s(task.submission, queue_state.rules)
        if limit_s is not None:
            task.timeout_at = queue_state.now + limit_s  # at the latest: its worker knows since when it runs
            queue_state.agenda.set((TimerKind.TIMEOUT, task.seq), task.timeout_at)
        if task.doom is not None or task.found:
            self._ending.stop(task, task.doom or StopReason.CANCELLED)

    # -- opening -----------------------------------------------------------------------------------------------------

    def recovered(self) -> None:
        """What ran is known: those that had ended before, were cancelled or have expired meanwhile can end."""
        queue_state = self._state
        if queue_state.open:
            return
        queue_state.open = True
        for task in list(queue_state.tasks.values()):
            if task.found and task.step is TaskStep.LOOKING:
                self._finished(task)
            elif task.doom is not None and (task.step in ADMITTED or task.step is TaskStep.WAITING):
                self._ending.overdue(task)

    def known_anew(self) -> None:
        """Routes or registrations have changed: who is unknown now, or not any more?"""
        queue_state = self._state
        for task in queue_state.tasks.values():
            if task.step not in UNSETTLED or task.begun:
                continue
            entry = (TimerKind.UNKNOWN, task.seq)
            if queue_state.pools.knows(task.submission):
                queue_state.agenda.cancel(entry)
            elif entry not in queue_state.agenda:
                self.unknown(task)
