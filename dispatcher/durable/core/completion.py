"""How tries and tasks end.

=========================  ==========================================================================================
a try                      and then
=========================  ==========================================================================================
succeeded                  STORING done
failed for good            BURYING with the reason of verdicts.VERDICTS
failed, tries are left     NOTING, then WAITING or in line again
failed, none is left       BURYING with the reason of verdicts.VERDICTS
started nothing            in line again, at its old place; from the second time in a row on after a short wait
was cancelled              STORING cancelled (done, if it was faster)
ran past the deadline      BURYING expired (done, if it was faster)
=========================  ==========================================================================================
"""

from __future__ import annotations

from ....schemas.errors.base import DeadlineExceeded, GanglineError, NoWorkers, Saturated
from ....schemas.records.jobs import DeadReason, JobState
from ....schemas.text import count_of, plain
from ..policies.retry_policy import backoff_s, max_attempts, refused_s, result_ttl_s
from ..policies.verdicts import NotStarted, Permanent, Retry, classify
from . import events as on
from .effects import Ack, Bury, Mark, Note, StopAttempt, StopReason, Store
from .scheduler import Admission
from .state import QueueState
from .states import ADMITTED, STARTED, TaskStep
from .task import Task
from .timers import TimerKind


class Completion:
    """Ends of tries and of tasks."""

    def __init__(self, books: QueueState, admission: Admission) -> None:
        self._books = books
        self._admission = admission

    # -- a try ends --------------------------------------------------------------------------------------------------

    def ended(self, event: on.AttemptEnded) -> None:
        books = self._books
        task = books.tasks.get(event.seq)
        if task is None or task.step not in STARTED or event.attempt != task.attempts:
            return
        self._admission.end(task)
        task.error, task.worker = event.error, ""
        if event.error is not None and isinstance(classify(event.error), NotStarted):
            task.attempts -= 1
            if not task.begun:
                self._admission.unstarted(task)
        if event.error is None:
            self._store(task, JobState.DONE)
        elif task.doom is StopReason.CANCELLED:
            self._store(task, JobState.CANCELLED)
        elif task.doom is StopReason.EXPIRED:
            self.bury(task, DeadReason.EXPIRED, event.error)
        else:
            self._judge(task, event.error, once=event.once)

    def _judge(self, task: Task, error: GanglineError, *, once: bool) -> None:
        timed_out, task.doom = task.doom is StopReason.TIMED_OUT, None
        match classify(error):
            case Permanent(reason):
                self.bury(task, reason, error)
            case NotStarted():
                self._refused(task)
            case Retry(reason, at_once):
                self._again(task, DeadReason.TIMED_OUT if timed_out else reason, error, at_once=at_once, once=once)

    def _refused(self, task: Task) -> None:
        books = self._books
        task.refusals += 1
        self._wait(task, books.now + refused_s(task.refusals))

    def _again(self, task: Task, reason: DeadReason, error: GanglineError, *, at_once: bool, once: bool) -> None:
        books = self._books
        task.refusals = 0
        once = once or task.submission.method in books.pools[task.pool].once
        if task.attempts >= max_attempts(task.submission, books.rules, books.settings, once=once):
            self.bury(task, reason, error)
            return
        wait_s = backoff_s(task.submission, books.rules, books.settings, attempts=task.attempts, draw=books.draw)
        if at_once and not task.lost:
            task.lost = True
            wait_s = 0.0
        task.ready_at = books.now + wait_s
        task.tried = True
        books.totals["retried"] += 1
        books.move(task, TaskStep.NOTING)
        books.settle(
            Note(
                seq=task.seq,
                job=task.job,
                attempts=task.attempts,
                not_before=books.wall + wait_s,
                error=error,
                started_at=task.started_at,
            ),
            *books.tell(task, JobState.WAITING, error),
        )

    def noted(self, seq: int) -> None:
        task = self._books.tasks.get(seq)
        if task is not None and task.step is TaskStep.NOTING and not self.overdue(task):
            self._wait(task, task.ready_at)

    def _wait(self, task: Task, until: float) -> None:
        books = self._books
        task.ready_at = until
        if until > books.now:
            books.move(task, TaskStep.WAITING)
            books.agenda.set((TimerKind.RETRY, task.seq), until)
        else:
            self._admission.admit(task)

    # -- a task is to end --------------------------------------------------------------------------------------------

    def cancel(self, job: str) -> None:
        """Somebody asks for it."""
        task = self._books.tasks.get(self._books.jobs.get(job, -1))
        if task is not None:
            self.doom(task)

    def doom(self, task: Task, why: StopReason = StopReason.CANCELLED) -> None:
        """End it as soon as that can be done; of two reasons a cancellation, which somebody is told of, counts most,
        and a time-out least."""
        if task.doom is StopReason.CANCELLED or task.step in (TaskStep.STORING, TaskStep.BURYING, TaskStep.ACKING):
            return
        if task.doom is StopReason.EXPIRED and why is not StopReason.CANCELLED:
            return
        if task.step is TaskStep.RUNNING:
            self.stop(task, why)
        elif why is StopReason.TIMED_OUT:
            return
        else:
            task.doom = why
            if self._books.open and (task.step in ADMITTED or task.step is TaskStep.WAITING):
                self.overdue(task)
                return
        if why is StopReason.CANCELLED and not task.marked:
            self._mark(task)

    def _mark(self, task: Task) -> None:
        task.tried = True
        failed = task.attempts - 1 if task.step in STARTED else task.attempts
        self._books.settle(Mark(seq=task.seq, job=task.job, attempts=failed))

    def marked(self, seq: int) -> None:
        task = self._books.tasks.get(seq)
        if task is not None:
            task.marked = True

    def stop(self, task: Task, why: StopReason) -> None:
        """Have its worker end it."""
        task.doom = why
        self._books.move(task, TaskStep.STOPPING)
        self._books.out.append(StopAttempt(seq=task.seq, job=task.job, attempt=task.attempts, why=why))

    def overdue(self, task: Task) -> bool:
        """End one that does not run, if it was doomed or its deadline has passed. Not before it is known what runs."""
        books = self._books
        if not books.open:
            return False
        if task.doom is None and task.deadline is not None and books.now >= task.deadline:
            task.doom = StopReason.EXPIRED
        if task.doom is None:
            return False
        if task.doom is StopReason.CANCELLED:
            self._leave_line(task)
            self._store(task, JobState.CANCELLED)
        else:
            self.drop(task, DeadReason.EXPIRED, self._too_late(task))
        return True

    def drop(self, task: Task, reason: DeadReason, error: GanglineError) -> None:
        """Dead without running (again)."""
        self._leave_line(task)
        self.bury(task, reason, error)

    def unknown(self, task: Task) -> None:
        """Nobody knows its endpoint."""
        where = task.submission.pool or self._books.endpoint
        self.drop(
            task,
            DeadReason.UNKNOWN_ENDPOINT,
            NoWorkers(
                f"no pool {where!r}, and no standing set or route of that name, appeared within "
                f"{plain(self._books.settings.unknown_after_s)} s: start a worker, or set a route, then replay it",
                details={"endpoint": self._books.endpoint},
            ),
        )

    def misfit(self, task: Task) -> None:
        """No worker is large enough."""
        largest = self._books.pools[task.pool].largest
        self.drop(
            task,
            DeadReason.IMPOSSIBLE,
            Saturated(
                f"{task.submission.method} takes {count_of(task.cost, 'slot')}, and no worker of pool {task.pool!r} "
                f"has more than {largest}: start a larger one, then replay it",
                details={"pool": task.pool, "slots": task.cost, "largest": largest},
            ),
        )

    def _too_late(self, task: Task) -> GanglineError:
        last = task.error
        return DeadlineExceeded(
            f"its deadline passed before it {'could be tried again' if task.begun else 'was started'}"
            + (f"; the last error was {last.code}: {last.message}" if last is not None else ""),
            may_have_started=task.begun,
        )

    def _leave_line(self, task: Task) -> None:
        if task.step in ADMITTED:
            self._admission.withdraw(task)

    # -- a task ends -------------------------------------------------------------------------------------------------

    def _store(self, task: Task, state: JobState) -> None:
        books = self._books
        assert state is JobState.DONE or state is JobState.CANCELLED
        task.end = state
        books.agenda.forget(task.seq)
        books.move(task, TaskStep.STORING)
        books.settle(
            Store(
                seq=task.seq,
                job=task.job,
                state=state,
                attempts=task.attempts,
                started_at=task.started_at,
                result_ttl_s=result_ttl_s(task.submission, books.rules, books.settings),
            )
        )

    def bury(self, task: Task, reason: DeadReason, error: GanglineError) -> None:
        """Dead, for that reason."""
        books = self._books
        task.end, task.reason, task.error = JobState.DEAD, reason.value, error
        books.agenda.forget(task.seq)
        books.move(task, TaskStep.BURYING)
        books.settle(
            Bury(
                seq=task.seq,
                job=task.job,
                reason=reason,
                error=error,
                attempts=task.attempts,
                started_at=task.started_at,
                result_ttl_s=result_ttl_s(task.submission, books.rules, books.settings),
            )
        )

    def stored(self, seq: int, step: TaskStep) -> None:
        """Its end is stored, which it was being in that step."""
        task = self._books.tasks.get(seq)
        if task is None or task.step is not step or task.end is None:
            return
        self._books.totals[task.end.value] += 1
        self.forget(task)

    def forget(self, task: Task) -> None:
        """Its end is stored (or it only repeats what is in the queue): the server may forget it."""
        books = self._books
        books.agenda.forget(task.seq)
        books.move(task, TaskStep.ACKING)
        ack = Ack(seq=task.seq, job=task.job, tried=task.tried)
        if task.submission.events and task.end is not None and task.end.final:
            books.settle(ack, *books.tell(task, task.end, task.error))
        else:
            books.settle(ack)
        self._admission.dismiss(task)
