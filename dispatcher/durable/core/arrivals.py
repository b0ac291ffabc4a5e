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

    def __init__(self, books: QueueState, admission: Admission, ending: Completion) -> None:
        self._books = books
        self._admission = admission
        self._ending = ending

    # -- messages ----------------------------------------------------------------------------------------------------

    def arrived(self, event: on.TaskArrived) -> None:
        books = self._books
        if self._again(event.seq):
            return
        task = self._new(event.seq, event.submission, event.size)
        other = books.tasks.get(books.jobs.get(task.job, -1))
        if other is not None and other.step is not TaskStep.ACKING:
            books.totals["repeated"] += 1
            self._ending.forget(task)
            return
        task.attempts = event.attempts
        task.tried = task.begun
        task.ready_at = books.mono(event.not_before) if task.begun else books.now
        if task.submission.deadline_at is not None:
            task.deadline = books.mono(task.submission.deadline_at)
        delayed = self._delayed(task.submission)
        if delayed and not event.look:
            self._schedule(task)
            return
        if not delayed:
            self._enter(task, cancelled=event.cancelled)
        if event.look:
            books.out.append(LookUpResult(seq=task.seq, job=task.job))
        if task.step is not TaskStep.NEW:
            return  # it runs
        if event.look:
            books.move(task, TaskStep.LOOKING)
        else:
            books.out.extend(books.tell(task, JobState.QUEUED))
            self._go_on(task)

    def malformed(self, event: on.Malformed) -> None:
        if self._again(event.seq):
            return
        job = event.job or str(event.seq)
        submission = Submission(
            endpoint=self._books.endpoint, method="", job=job, published_at=event.published_at or self._books.wall
        )
        self._ending.bury(self._new(event.seq, submission, event.size), DeadReason.MALFORMED, event.error)

    def looked(self, event: on.Looked) -> None:
        task = self._books.tasks.get(event.seq)
        if task is not None and event.finished and task.step is TaskStep.RUNNING and task.worker:
            self._ending.stop(task, StopReason.CANCELLED)  # in vain, as it is
        if task is None or task.step is not TaskStep.LOOKING:
            return
        if event.finished and not self._books.open:
            task.found = True
        elif event.finished:
            self._finished(task)
        elif self._delayed(task.submission):
            self._schedule(task)
        else:
            if self._books.jobs.get(task.job) != task.seq:
                self._enter(task)  # its time has come meanwhile
            if task.step is TaskStep.LOOKING:
                if (TimerKind.UNKNOWN, task.seq) not in self._books.agenda and not self._books.pools.knows(
                    task.submission
                ):
                    self.unknown(task)  # that was due while its result was looked up
                self._go_on(task)

    def _finished(self, task: Task) -> None:
        self._books.totals["repeated"] += 1
        self._ending.forget(task)

    def acked(self, seq: int) -> None:
        books = self._books
        task = books.tasks.get(seq)
        if task is None or task.step is not TaskStep.ACKING:
            return
        books.move(task, TaskStep.GONE)
        books.count[TaskStep.GONE] -= 1
        books.window.remove(task.size)
        del books.tasks[seq]
        if books.jobs.get(task.job) == seq:
            del books.jobs[task.job]

    def _again(self, seq: int) -> bool:
        """Whether it was delivered before."""
        books = self._books
        task = books.tasks.get(seq)
        books.window.delivered()
        if task is not None and task.step is TaskStep.ACKING:
            books.settle(Ack(seq=seq, job=task.job, tried=False))
        return task is not None

    def _new(self, seq: int, submission: Submission, size: int) -> Task:
        books = self._books
        place = place_of(submission, seq, books.settings.age_step_s)
        task = Task(seq=seq, submission=submission, size=size, draw=books.draw, place=place, now=books.now)
        books.put(task)
        return task

    def _enter(self, task: Task, *, cancelled: bool = False) -> None:
        """It takes part in the queue from now on, whatever it still waits for."""
        books = self._books
        books.jobs[task.job] = task.seq
        self._admission.enrol(task)
        if task.deadline is not None:
            books.agenda.set((TimerKind.DEADLINE, task.seq), task.deadline)
        if not books.pools.knows(task.submission):
            self.unknown(task)
        if cancelled:
            task.marked = task.tried = True
            self._ending.doom(task)
        adoption = books.adoptions.pop(task.job, None) if books.adoptions else None
        if adoption is not None:
            self._attach(task, *adoption)

    def _go_on(self, task: Task) -> None:
        """Nothing ended it before: it waits for its turn, or for its next try."""
        books = self._books
        if self._ending.overdue(task):
            return
        if task.ready_at > books.now:
            books.move(task, TaskStep.WAITING)
            books.agenda.set((TimerKind.RETRY, task.seq), task.ready_at)
        else:
            self._admission.admit(task)

    def unknown(self, task: Task) -> None:
        """Nobody knows its endpoint: it has so long to become known."""
        books = self._books
        books.agenda.set((TimerKind.UNKNOWN, task.seq), books.now + books.settings.unknown_after_s)

    # -- schedules ---------------------------------------------------------------------------------------------------

    def _delayed(self, submission: Submission) -> bool:
        due = submission.not_before
        return submission.cron is not None or (due is not None and due > self._books.wall)

    def _schedule(self, task: Task) -> None:
        self._books.move(task, TaskStep.SCHEDULING)
        self._books.settle(Schedule(seq=task.seq, job=task.job), *self._books.tell(task, JobState.SCHEDULED))

    def scheduled(self, seq: int) -> None:
        task = self._books.tasks.get(seq)
        if task is not None and task.step is TaskStep.SCHEDULING:
            task.end = JobState.SCHEDULED
            self._ending.forget(task)

    def schedule_refused(self, seq: int, error: GanglineError) -> None:
        task = self._books.tasks.get(seq)
        if task is not None and task.step is TaskStep.SCHEDULING:
            reason = DeadReason.MALFORMED if isinstance(error, InvalidSchedule) else DeadReason.IMPOSSIBLE
            self._ending.bury(task, reason, error)

    # -- what runs already -------------------------------------------------------------------------------------------

    def adopted(self, event: on.TaskAdopted) -> None:
        books = self._books
        task = books.tasks.get(books.jobs.get(event.job, -1))
        if task is not None:
            self._attach(task, event.attempt, event.worker, event.pool)
        elif event.job not in books.adoptions or books.adoptions[event.job][0] < event.attempt:
            books.adoptions[event.job] = (event.attempt, event.worker, event.pool)

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
        books = self._books
        books.out.append(ReattachAttempt(seq=task.seq, job=task.job, attempt=task.attempts, worker=task.worker))
        limit_s = timeout_s(task.submission, books.rules)
        if limit_s is not None:
            task.timeout_at = books.now + limit_s  # at the latest: its worker knows since when it runs
            books.agenda.set((TimerKind.TIMEOUT, task.seq), task.timeout_at)
        if task.doom is not None or task.found:
            self._ending.stop(task, task.doom or StopReason.CANCELLED)

    # -- opening -----------------------------------------------------------------------------------------------------

    def recovered(self) -> None:
        """What ran is known: those that had ended before, were cancelled or have expired meanwhile can end."""
        books = self._books
        if books.open:
            return
        books.open = True
        for task in list(books.tasks.values()):
            if task.found and task.step is TaskStep.LOOKING:
                self._finished(task)
            elif task.doom is not None and (task.step in ADMITTED or task.step is TaskStep.WAITING):
                self._ending.overdue(task)

    def known_anew(self) -> None:
        """Routes or registrations have changed: who is unknown now, or not any more?"""
        books = self._books
        for task in books.tasks.values():
            if task.step not in UNSETTLED or task.begun:
                continue
            entry = (TimerKind.UNKNOWN, task.seq)
            if books.pools.knows(task.submission):
                books.agenda.cancel(entry)
            elif entry not in books.agenda:
                self.unknown(task)
