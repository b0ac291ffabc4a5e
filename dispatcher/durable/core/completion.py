"""How tries and tasks end.

=========================  ==========================================================================================
a try                      and then
=========================  ==========================================================================================
succeeded                  STORING done
failed for good            BURYING with the reason of retry_policy.VERDICTS
failed, tries are left     NOTING, then WAITING or in line again
failed, none is left       BURYING with the reason of retry_policy.VERDICTS
started nothing            in line again, at its old place; from the second time in a row on after a short wait
was cancelled              STORING cancelled (done, if it was faster)
ran past the deadline      BURYING expired (done, if it was faster)
=========================  ==========================================================================================
"""

from __future__ import annotations

from ....schemas.errors.base import DeadlineExceeded, GanglineError, NoWorkers, Saturated
from ....schemas.records.jobs import DeadReason, JobState
from ....schemas.text import count_of, plain
from ..policies.retry_policy import (
    NotStarted,
    Permanent,
    Retry,
    backoff_s,
    classify,
    max_attempts,
    refused_s,
    result_ttl_s,
)
from . import events as on
from .effects import Ack, Bury, Mark, Note, StopAttempt, StopReason, Store
from .scheduler import Admission
from .state import QueueState, TimerKind
from .task import ADMITTED, STARTED, Task, TaskStep


class Completion:
    """Ends of tries and of tasks."""

    def __init__(self, queue_state: QueueState, admission: Admission) -> None:
        self._state = queue_state
        self._admission = admission

    # -- a try ends --------------------------------------------------------------------------------------------------

    def ended(self, event: on.AttemptEnded) -> None:
        queue_state = self._state
        task = queue_state.tasks.get(event.seq)
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
        queue_state = self._state
        task.refusals += 1
        self._wait(task, queue_state.now + refused_s(task.refusals))

    def _again(self, task: Task, reason: DeadReason, error: GanglineError, *, at_once: bool, once: bool) -> None:
        queue_state = self._state
        task.refusals = 0
        once = once or task.submission.method in queue_state.pools[task.pool].once
        if task.attempts >= max_attempts(task.submission, queue_state.rules, queue_state.settings, once=once):
            self.bury(task, reason, error)
            return
        wait_s = backoff_s(
            task.submission, queue_state.rules, queue_state.settings, attempts=task.attempts, draw=queue_state.draw
        )
        if at_once and not task.lost:
            task.lost = True
            wait_s = 0.0
        task.ready_at = queue_state.now + wait_s
        task.tried = True
        queue_state.totals["retried"] += 1
        queue_state.move(task, TaskStep.NOTING)
        queue_state.settle(
            Note(
                seq=task.seq,
                job=task.job,
                attempts=task.attempts,
                not_before=queue_state.wall + wait_s,
                error=error,
                started_at=task.started_at,
            ),
            *queue_state.tell(task, JobState.WAITING, error),
        )

    def noted(self, seq: int) -> None:
        task = self._state.tasks.get(seq)
        if task is not None and task.step is TaskStep.NOTING and not self.overdue(task):
            self._wait(task, task.ready_at)

    def _wait(self, task: Task, until: float) -> None:
        queue_state = self._state
        task.ready_at = until
        if until > queue_state.now:
            queue_state.move(task, TaskStep.WAITING)
            queue_state.agenda.set((TimerKind.RETRY, task.seq), until)
        else:
            self._admission.admit(task)

    # -- a task is to end --------------------------------------------------------------------------------------------

    def cancel(self, job: str) -> None:
        """Somebody asks for it."""
        task = self._state.tasks.get(self._state.jobs.get(job, -1))
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
            if self._state.open and (task.step in ADMITTED or task.step is TaskStep.WAITING):
                self.overdue(task)
                return
        if why is StopReason.CANCELLED and not task.marked:
            self._mark(task)

    def _mark(self, task: Task) -> None:
        task.tried = True
        failed = task.attempts - 1 if task.step in STARTED else task.attempts
        self._state.settle(Mark(seq=task.seq, job=task.job, attempts=failed))

    def marked(self, seq: int) -> None:
        task = self._state.tasks.get(seq)
        if task is not None:
            task.marked = True

    def stop(self, task: Task, why: StopReason) -> None:
        """Have its worker end it."""
        task.doom = why
        self._state.move(task, TaskStep.STOPPING)
        self._state.out.append(StopAttempt(seq=task.seq, job=task.job, attempt=task.attempts, why=why))

    def overdue(self, task: Task) -> bool:
        """End one that does not run, if it was doomed or its deadline has passed. Not before it is known what runs."""
        queue_state = self._state
        if not queue_state.open:
            return False
        if task.doom is None and task.deadline is not None and queue_state.now >= task.deadline:
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
        where = task.submission.pool or self._state.endpoint
        self.drop(
            task,
            DeadReason.UNKNOWN_ENDPOINT,
            NoWorkers(
                f"no pool {where!r}, and no standing set or route of that name, appeared within "
                f"{plain(self._state.settings.unknown_after_s)} s: start a worker, or set a route, then replay it",
                details={"endpoint": self._state.endpoint},
            ),
        )

    def misfit(self, task: Task) -> None:
        """No worker is large enough."""
        largest = self._state.pools[task.pool].largest
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
        queue_state = self._state
        assert state is JobState.DONE or state is JobState.CANCELLED
        task.end = state
        queue_state.agenda.forget(task.seq)
        queue_state.move(task, TaskStep.STORING)
        queue_state.settle(
            Store(
                seq=task.seq,
                job=task.job,
                state=state,
                attempts=task.attempts,
                started_at=task.started_at,
                result_ttl_s=result_ttl_s(task.submission, queue_state.rules, queue_state.settings),
            )
        )

    def bury(self, task: Task, reason: DeadReason, error: GanglineError) -> None:
        """Dead, for that reason."""
        queue_state = self._state
        task.end, task.reason, task.error = JobState.DEAD, reason.value, error
        queue_state.agenda.forget(task.seq)
        queue_state.move(task, TaskStep.BURYING)
        queue_state.settle(
            Bury(
                seq=task.seq,
                job=task.job,
                reason=reason,
                error=error,
                attempts=task.attempts,
                started_at=task.started_at,
                result_ttl_s=result_ttl_s(task.submission, queue_state.rules, queue_state.settings),
            )
        )

    def stored(self, seq: int, step: TaskStep) -> None:
        """Its end is stored, which it was being in that step."""
        task = self._state.tasks.get(seq)
        if task is None or task.step is not step or task.end is None:
            return
        self._state.totals[task.end.value] += 1
        self.forget(task)

    def forget(self, task: Task) -> None:
        """Its end is stored (or it only repeats what is in the queue): the server may forget it."""
        queue_state = self._state
        queue_state.agenda.forget(task.seq)
        queue_state.move(task, TaskStep.ACKING)
        ack = Ack(seq=task.seq, job=task.job, tried=task.tried)
        if task.submission.events and task.end is not None and task.end.final:
            queue_state.settle(ack, *queue_state.tell(task, task.end, task.error))
        else:
            queue_state.settle(ack)
        self._admission.dismiss(task)
