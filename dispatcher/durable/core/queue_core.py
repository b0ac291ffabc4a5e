"""The queue of one endpoint: which task starts when, and how each ends. Pure: no IO, no clock, no randomness, no await.

Laws, asserted by `check`, by the model of the tests and by the simulations:

1. *One end.* Every message that arrived ends exactly once: done, dead, cancelled, returned to the server until its
   time, or as a repeat of a job that is in the queue or had ended before. It is acknowledged only after the server has
   stored that end; but of the runs of schedules that quotas refuse, most are only counted (see tenants).
2. *No twin.* A task is never started while an attempt of it runs, as far as any live process knows: not before
   `Recovered`, and not before the AttemptEnded of the last attempt.
3. *Counted.* Attempts grow by one with each start. A failure is stored before the wait for the next attempt starts, so
   that no takeover forgets it. An attempt that started nothing is not counted.
4. *Limits.* No start exceeds `max_running`, the pool's limit, or `per_key` of a key, nor those that the task declares;
   starts keep the rates across all dispatchers that ever had the queue; no more slots are used than were free.
5. *Order.* Only one task of an ordered key at a time is between its first start and its stored end, in sequence order,
   through retries, cancellation and death. Otherwise, of the startable tasks of one tenant, the one with the lowest
   place starts first (see start_order). Keys belong to their tenant.
6. *Bounded starvation.* A startable task starts before every task of its tenant and pool and of higher priority that
   was published more than (difference of priorities) x `age_step_s` after it. One that needs more slots than any lease
   has free blocks those behind it, and is passed by them, in turns of `age_step_s`.
7. *Ours.* While ownership of the queue is in doubt, nothing is started, stored or acknowledged.
8. *Cancelled.* A task whose cancellation was confirmed (see `promised`) is never started again, not even after a
   takeover.
9. *In time.* Nothing is started after its deadline, nor with less time left than its method usually needs; running
   tasks are told to stop.
10. *Quotas.* No task is accepted above its tenant's quotas (see tenants); one that is not accepted is dead, `refused`.
   Tasks that are refused are stored after those that start.
11. *Turns.* While several tenants have startable tasks for one pool, they take turns there: none gets more slots than
   another, divided by their weights, than one task of each needs. The same holds for the starts under a limit that a
   method declares; and if the route limits how many tasks run or start, for all pools together. A tenant that had no
   startable task has saved nothing up.

How attempts end:

===============================  ====================================================================================
the attempt                      and then
===============================  ====================================================================================
succeeded                        STORING done
failed permanently               BURYING with the reason of retry_policy.VERDICTS
failed, attempts are left        NOTING, then WAITING or in line again
failed, no attempt is left       BURYING with the reason of retry_policy.VERDICTS
started nothing                  in line again, at its old place; from the second time in a row after a short wait
was cancelled                    STORING cancelled (done, if it was faster)
passed the deadline              BURYING expired (done, if it was faster)
===============================  ====================================================================================

An event costs O(log n) in the tasks of the window, but changes of routes and registrations cost O(n log n).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, assert_never

from ....schemas.errors.base import (
    DeadlineExceeded,
    GanglineError,
    InvalidSchedule,
    NoWorkers,
    QuotaExceeded,
    Saturated,
)
from ....schemas.messages.jobs import JobInfo, JobWhyReply
from ....schemas.messages.submission import Submission
from ....schemas.records.jobs import DeadReason, JobState
from ....schemas.records.workers import TaskPolicy
from ....schemas.text import count_of, plain
from ..policies.retry_policy import (
    UNDECLARED,
    NotStarted,
    Permanent,
    Retry,
    backoff_s,
    classify,
    max_attempts,
    refused_s,
    result_ttl_s,
)
from ..policies.settings import DispatcherSettings
from ..policies.start_order import AT_ONCE, place_of
from . import events as on
from .effects import (
    Ack,
    Effect,
    EndState,
    Fetch,
    LookUpResult,
    Persist,
    ReattachAttempt,
    RecordKind,
    StopAttempt,
    StopReason,
)
from .introspection import QueueCounts, check, counts, info, listed, promised, why
from .scheduler import StartScheduler
from .task import ADMITTED, ENDING, STARTED, UNSETTLED, Entry, QueueState, Task, TaskStep, TimerKind
from .tenants import TenantTasks

_BEING_STORED: Final = {
    RecordKind.TRY: TaskStep.NOTING,
    RecordKind.RESULT: TaskStep.STORING,
    RecordKind.DEAD_LETTER: TaskStep.BURYING,
    RecordKind.SCHEDULE: TaskStep.SCHEDULING,
}


class QueueCore:
    """One term of ownership of one endpoint's queue. `event.now` must never decrease from call to call."""

    def __init__(self, endpoint: str, settings: DispatcherSettings | None = None) -> None:
        self._state = QueueState(endpoint, settings or DispatcherSettings())
        self._scheduler = StartScheduler(self._state)
        self._tenants = TenantTasks(endpoint, self._state.settings.quotas)
        self._waiting: int | None = None
        """Messages of the queue when it was taken; None: not known."""
        self._unentered: dict[str, Task] = {}
        """By job: tasks that are being scheduled, or will be or enter the queue when their result was looked up."""
        self._adoptions: dict[str, tuple[int, str, str]] = {}
        """Attempt, worker and pool of running jobs whose messages have not arrived."""

    def __repr__(self) -> str:
        queue = self._state
        state = "open" if queue.open and queue.sure else "in doubt" if queue.open else "recovering"
        return f"<QueueCore {queue.endpoint} {state}, {len(queue.tasks)} tasks, {queue.running} running>"

    # -- what can be seen --------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether it has recovered and starts tasks."""
        return self._state.open

    def info(self, job: str) -> JobInfo | None:
        """The state of a job; None if it has not arrived, or its end is confirmed. The shell adds the worker."""
        return info(self._state, self._scheduler, job)

    def promised(self, job: str) -> bool:
        """Whether a requested cancellation survives this dispatcher: it is stored, or has ended the job."""
        return promised(self._state, job)

    def why(self, job: str) -> JobWhyReply | None:
        """What a job waits for. Goes through all tasks: for interactive use, not for loops."""
        return why(self._state, self._scheduler, job)

    def unentered(self, job: str) -> int | None:
        """Where the message of a job is that was fetched and takes no part in the queue, such as one that is delayed
        and not yet returned to the server."""
        task = self._unentered.get(job)
        return None if task is None else task.seq

    def knows(self, seq: int) -> bool:
        """Whether this message was fetched, or was removed without a delivery."""
        return seq in self._state.tasks or seq in self._state.removed

    @property
    def paused(self) -> bool:
        """Whether the route says that nothing is started."""
        return self._state.rules.paused

    def listed(self, after: int) -> Iterator[JobInfo]:
        """The state of all fetched tasks with a sequence above `after`, in the order of publication."""
        return listed(self._state, self._scheduler, after)

    @property
    def crowded(self) -> bool:
        """Whether the window is full, so that tasks behind it are hidden."""
        return self._state.open and self._state.window.full

    def statistics(self) -> QueueCounts:
        """Counts, as of the last event."""
        return counts(self._state, self._scheduler)

    def check(self) -> None:
        """Assert the invariants; for tests."""
        check(self._state, self._scheduler)
        self._tenants.check(self._state.tasks.values())

    # -- what happens ------------------------------------------------------------------------------------------------

    def handle(self, *events: on.AnyEvent) -> list[Effect]:
        """Handle events and return the effects, to be carried out in order. Tasks are started once, after the last
        event."""
        queue, scheduler = self._state, self._scheduler
        for event in events:
            if event.now != queue.now:
                self._clock(event)
            queue.wall, queue.draw = event.wall, event.draw
            HANDLERS[type(event)](self, event)
        while (late := scheduler.pump()) is not None:
            self._drop_late(late)
        scheduler.want()
        self._pull()
        scheduler.wake()
        out, queue.out = queue.out, []
        if queue.refused:
            out += queue.refused
            queue.refused = []
        return out

    def _pull(self) -> None:
        queue = self._state
        if not queue.taken:
            return
        # Request everything that the last owner had fetched at once: nothing starts before it has arrived.
        most = AT_ONCE if queue.open else None if self._waiting is None else max(AT_ONCE, self._waiting)
        count = queue.window.ask(most)
        if count:
            queue.out.append(Fetch(count=count))

    def _clock(self, event: on.AnyEvent) -> None:
        """Time has passed."""
        assert event.now > self._state.now, "time went backwards"
        self._state.now, self._state.wall = event.now, event.wall
        self._scheduler.tick()
        if type(event) is not on.Unheard:
            self._tick()

    def _tick(self) -> None:
        """Handle what is due before the event, so that nothing starts past its deadline."""
        if self._state.open:
            for entry in self._state.agenda.due(self._state.now):
                self._due(entry)

    def _due(self, entry: Entry) -> None:
        due, seq = entry
        task = self._state.tasks[seq]
        match due:
            case TimerKind.DEADLINE:
                self.doom(task, StopReason.EXPIRED)
            case TimerKind.TIMEOUT:
                self.doom(task, StopReason.TIMED_OUT)
            case TimerKind.RETRY:
                if task.step is TaskStep.WAITING:
                    self._scheduler.admit(task)
            case TimerKind.UNKNOWN:
                waits = task.step in ADMITTED or task.step is TaskStep.WAITING
                if waits and not self._scheduler.pools.knows(task.submission):
                    self._drop_unknown(task)
            case TimerKind.MISFIT:
                if task.step is TaskStep.PARKED:
                    self._drop_misfit(task)
            case _:
                assert_never(due)

    # -- the queue ---------------------------------------------------------------------------------------------------

    def taken(self, event: on.QueueTaken) -> None:
        self._state.taken, self._waiting = True, event.waiting
        self._scheduler.taken()

    def recovered(self, _: on.Recovered) -> None:
        """All running tasks are known: tasks that ended before, or were cancelled or expired meanwhile, can end."""
        queue = self._state
        if not queue.open:
            queue.open = True
            for task in list(queue.tasks.values()):
                if task.found and task.step is TaskStep.LOOKING:
                    self._repeated(task)
                elif task.held and task.step is TaskStep.LOOKING:
                    self._held(task)
                elif task.doom is not None and (task.step in ADMITTED or task.step is TaskStep.WAITING):
                    self._overdue(task)
            self._judge_found()
        self._tick()

    def _held(self, task: Task) -> None:
        """Its time came during the takeover."""
        if self._present(task.job):
            self._repeated(task)  # what its schedule has published may be gone when it is looked up
            return
        if task.job in self._adoptions:
            self._state.unclear.add(task.seq)
        self._look_up(task)

    def _judge_found(self) -> None:
        """All that ran before the takeover are known: refuse what is above its tenant's quotas."""
        found = [task for task in self._state.tasks.values() if task.accepted]
        for task in found:
            self._tenants.leave(task)
        for task in sorted(found, key=lambda task: task.seq):
            self._accept(task)

    def doubted(self, _: on.OwnershipDoubted) -> None:
        self._state.sure = False

    def confirmed(self, _: on.OwnershipConfirmed) -> None:
        queue = self._state
        queue.sure = True
        held, queue.held = queue.held, []
        queue.out.extend(held)

    def credited(self, event: on.SlotsGranted) -> None:
        pools = self._scheduler.pools
        pool = pools.add(event.pool)
        pool.credit(event.free)
        pools.touch(pool)

    def pool_seen(self, event: on.PoolSeen) -> None:
        if self._scheduler.pools.seen(event):
            self._scheduler.rebuild()
        self._know_anew()

    def routed(self, event: on.Routed) -> None:
        self._scheduler.route(event.route, event.explicit)
        self._know_anew()

    def unheard(self, event: on.Unheard) -> None:
        """The workers that tasks wait for may have come and gone while we heard nothing: prolong these waits before any
        of them is due."""
        agenda = self._state.agenda
        for entry in list(agenda):
            at = agenda.at(entry)
            if at is not None and entry[0] in (TimerKind.UNKNOWN, TimerKind.MISFIT):
                agenda.set(entry, at + event.seconds)
        self._tick()

    def ticked(self, _: on.Tick) -> None:
        self._tick()  # this event may have the time of the last one

    def _know_anew(self) -> None:
        """Routes or registrations have changed: find the tasks whose endpoints are unknown now."""
        queue = self._state
        for task in queue.tasks.values():
            if task.step not in UNSETTLED or task.begun:
                continue
            entry = (TimerKind.UNKNOWN, task.seq)
            if self._scheduler.pools.knows(task.submission):
                queue.agenda.cancel(entry)
            elif entry not in queue.agenda:
                self._unknown(task)

    def _unknown(self, task: Task) -> None:
        """Its endpoint is unknown: it has a limited time to become known."""
        queue = self._state
        queue.agenda.set((TimerKind.UNKNOWN, task.seq), queue.now + queue.settings.unknown_after_s)

    # -- messages: is a task new, has it ended before, does it run already? --------------------------------------------

    def arrived(self, event: on.TaskArrived) -> None:
        queue, submission = self._state, event.submission
        if self._redelivered(event.seq, event.ahead):
            return
        task = self._new(event.seq, submission, event.size, event.ahead)
        other = self._present(task.job)
        if other is not None:
            self._continue_attempts(other, submission.attempts)
            self._repeated(task)
            return
        task.attempts = event.attempts
        task.tried = task.begun
        task.ready_at = queue.mono(event.not_before) if task.tried else queue.now
        if submission.deadline_at is not None:
            task.deadline = queue.mono(submission.deadline_at)
        delayed = self._delayed(submission)
        if delayed and (submission.cron is not None or not event.look):
            # A recurring schedule may be declared anew after its end: what is stored of it is read as it is stored.
            self._schedule(task)
            return
        task.cancelled = event.cancelled
        # The last owner may have stored its schedule. What that has published, and the last owner has perhaps buried,
        # stands for the job; it is further down the stream.
        task.held = event.look and not delayed and not queue.open and submission.not_before is not None
        if delayed or task.held:
            self._unentered[task.job] = task
        else:
            self._enter(task)
        if event.look and not task.held:
            self._look_up(task)
        if task.step is not TaskStep.NEW:
            return  # it runs
        if event.look:
            queue.move(task, TaskStep.LOOKING)
        else:
            if submission.events:
                queue.out.extend(queue.tell(task, JobState.QUEUED))
            self._go_on(task)

    def _look_up(self, task: Task) -> None:
        task.looks = True
        self._state.out.append(LookUpResult(seq=task.seq, job=task.job))

    def _present(self, job: str) -> Task | None:
        """The message of this job that takes part in the queue, unless it is about to leave it."""
        other = self._state.of_job(job)
        return None if other is None or other.step is TaskStep.ACKING else other

    @staticmethod
    def _continue_attempts(task: Task, attempts: int) -> None:
        """The repetition is a replayed dead letter if it has had more attempts; then `task` is a message of its first
        life that nobody has acknowledged, and stands for the replayed one: a delayed task is delivered again if its
        schedule was stored, but its dispatcher died before it heard of that."""
        if attempts > task.attempts and not task.begun:
            task.submission, task.attempts = task.submission._replace(attempts=attempts), attempts

    def malformed(self, event: on.Malformed) -> None:
        if self._redelivered(event.seq, event.ahead):
            return
        job, at = event.job or str(event.seq), event.published_at or self._state.wall
        submission = Submission(endpoint=self._state.endpoint, method="", job=job, published_at=at)
        self._bury(self._new(event.seq, submission, event.size, event.ahead), DeadReason.MALFORMED, event.error)

    def looked(self, event: on.Looked) -> None:
        task = self._state.tasks.get(event.seq)
        self._state.unclear.discard(event.seq)
        if task is None:
            return
        task.looks = False
        if task.step in STARTED:
            self._looked_while_running(task, finished=event.finished)
        elif task.step is TaskStep.LOOKING:
            self._looked_before_start(task, finished=event.finished)

    def _looked_while_running(self, task: Task, *, finished: bool) -> None:
        ending, task.ending = task.ending, None
        if ending is not None and finished:
            self._scheduler.end(task)
            self._tenants.leave(task)
            self._repeated(task)
        elif ending is not None:
            self.ended(ending)
        elif finished and task.step is TaskStep.RUNNING and task.worker:
            self.stop(task, StopReason.CANCELLED)  # its result will not be used

    def _looked_before_start(self, task: Task, *, finished: bool) -> None:
        if finished and not self._state.open:
            task.found = True
        elif finished:
            self._repeated(task)
        elif task.doubted:
            task.doubted = False
            if task.job in self._adoptions:
                self._state.unclear.add(task.seq)
            self._look_up(task)
        elif self._delayed(task.submission):
            self._schedule(task)
        elif not self._state.open and not self._state.has_entered(task):
            task.held = True
        else:
            if not self._state.has_entered(task):  # its time has come meanwhile
                if self._present(task.job):  # so has what its schedule published
                    self._repeated(task)
                    return
                self._enter(task)
            if task.step is TaskStep.LOOKING:
                waits = (TimerKind.UNKNOWN, task.seq) in self._state.agenda
                if not waits and not self._scheduler.pools.knows(task.submission):
                    self._unknown(task)  # this became due while its result was looked up
                self._go_on(task)

    def acked(self, event: on.Acked) -> None:
        queue = self._state
        for seq in event.seqs:
            task = queue.tasks.get(seq)
            if task is None or task.step is not TaskStep.ACKING:
                continue
            queue.move(task, TaskStep.GONE)
            queue.count[TaskStep.GONE] -= 1
            queue.drop(task)
            if queue.jobs.get(task.job) == seq:
                del queue.jobs[task.job]

    def _redelivered(self, seq: int, ahead: bool) -> bool:
        queue = self._state
        task = queue.tasks.get(seq)
        if ahead:
            return task is not None or seq in queue.removed
        queue.window.delivered()
        if seq in queue.removed:
            queue.settle(Ack(seq=seq, job="", tried=False))
            return True
        if task is not None:
            queue.delivered(task)
        if task is not None and task.step is TaskStep.ACKING:
            queue.settle(Ack(seq=seq, job=task.job, tried=False))
        return task is not None

    def _new(self, seq: int, submission: Submission, size: int, ahead: bool) -> Task:
        queue = self._state
        place = place_of(submission, seq, queue.settings.age_step_s)
        task = Task(seq=seq, submission=submission, size=size, draw=queue.draw, place=place)
        task.ahead = ahead
        queue.put(task)
        return task

    def _enter(self, task: Task) -> None:
        """It takes part in the queue from now on, whatever it still waits for."""
        queue = self._state
        queue.jobs[task.job] = task.seq
        self._unentered.pop(task.job, None)
        self._scheduler.enrol(task)
        if task.deadline is not None:
            queue.agenda.set((TimerKind.DEADLINE, task.seq), task.deadline)
        if not self._scheduler.pools.knows(task.submission):
            self._unknown(task)
        if task.cancelled:
            task.marked = task.tried = True
            self.doom(task)
        adoption = self._adoptions.pop(task.job, None) if self._adoptions else None
        if adoption is not None:
            self._attach(task, *adoption)

    def _go_on(self, task: Task) -> None:
        """It has not ended before: it waits for its turn or for its next attempt."""
        if self._overdue(task):
            return
        pool = task.submission.pool
        if task.submission.tenant and not self._accept(task):
            return
        if pool is None or self._scheduler.pools.allows(pool):
            self._wait(task, task.ready_at)
        else:
            self._drop_foreign(task, pool)

    def _accept(self, task: Task) -> bool:
        """False: its tenant's quotas do not allow it, and it is dead."""
        if self._state.open and not task.accepted and not task.begun:
            error = self._tenants.refusal(task)
            if error is not None:
                self._refuse(task, error)
                return False
        self._tenants.accept(task)
        return True

    def _refuse(self, task: Task, error: GanglineError) -> None:
        letter = self._tenants.letter(task, error, self._state.now)
        if letter is not None or task.step not in (TaskStep.NEW, TaskStep.LOOKING) or task.tried:
            self._drop(task, DeadReason.REFUSED, letter or error)
        else:
            task.reason, task.error = DeadReason.REFUSED.value, error
            self._settled(task, JobState.DEAD)

    # -- schedules ---------------------------------------------------------------------------------------------------

    def _delayed(self, submission: Submission) -> bool:
        due = submission.not_before
        return submission.cron is not None or (due is not None and due > self._state.wall)

    def _schedule(self, task: Task) -> None:
        queue = self._state
        if (error := self._tenants.not_entitled(task)) is not None:
            self._bury(task, DeadReason.REFUSED, error)
            return
        self._unentered[task.job] = task
        queue.move(task, TaskStep.SCHEDULING)
        schedule = Persist(seq=task.seq, job=task.job, kind=RecordKind.SCHEDULE)
        queue.settle(schedule, *queue.tell(task, JobState.SCHEDULED))

    # -- what runs already -------------------------------------------------------------------------------------------

    def adopted(self, event: on.TaskAdopted) -> None:
        task = self._state.of_job(event.job)
        if task is not None:
            self._attach(task, event.attempt, event.worker, event.pool)
        elif event.job not in self._adoptions or self._adoptions[event.job][0] < event.attempt:
            self._adoptions[event.job] = (event.attempt, event.worker, event.pool)

    def _attach(self, task: Task, attempt: int, worker: str, pool: str) -> None:
        if attempt <= task.attempts:
            return  # that attempt has failed, or a later one was found
        # Two workers may have the job, if one of them was taken for lost: only the later attempt counts.
        later = task.step is TaskStep.RUNNING and bool(task.worker)
        if not later and task.step not in ADMITTED | {TaskStep.NEW, TaskStep.LOOKING, TaskStep.WAITING}:
            return
        if task.step in ADMITTED:
            self._scheduler.withdraw(task)
        task.attempts, task.worker = attempt, worker
        self._tenants.accept(task)
        if not later:
            task.pool = self._scheduler.pools.add(pool or worker.partition(".")[0]).name
            self._scheduler.begin(task)
        limit_s = self._scheduler.set_timeout(task)  # an upper bound: its worker knows since when it runs
        self._state.out.append(
            ReattachAttempt(seq=task.seq, job=task.job, attempt=attempt, worker=worker, timeout_s=limit_s)
        )
        if task.doom is not None or task.found:
            self.stop(task, task.doom or StopReason.CANCELLED)

    # -- an attempt ends -----------------------------------------------------------------------------------------------

    def ended(self, event: on.AttemptEnded) -> None:
        task = self._state.tasks.get(event.seq)
        if task is None or task.step not in STARTED or event.attempt != task.attempts:
            return
        if event.error is not None and task.looks:
            task.ending = event
            return
        self._scheduler.end(task)
        queue = self._state
        if task.started_at is not None and (event.error is None or task.doom is StopReason.EXPIRED):
            learn = queue.usual.ended if event.error is None else queue.usual.cut_short
            learn(task.submission.method, max(0.0, queue.wall - task.started_at))
        task.error, task.worker = event.error, ""
        if event.error is None:
            self._store(task, JobState.DONE)
            return
        verdict = classify(event.error)
        if isinstance(verdict, NotStarted):
            task.attempts -= 1
            if not task.begun:
                self._scheduler.unstarted(task)
        if task.doom is StopReason.CANCELLED:
            self._store(task, JobState.CANCELLED)
            return
        if task.doom is StopReason.EXPIRED:
            self._bury(task, DeadReason.EXPIRED, event.error)
            return
        timed_out, task.doom = task.doom is StopReason.TIMED_OUT, None
        match verdict:
            case Permanent(reason):
                self._bury(task, reason, event.error)
            case NotStarted():
                self._refused(task)
            case Retry(reason, at_once):
                reason = DeadReason.TIMED_OUT if timed_out else reason
                self._again(task, reason, event, at_once=at_once)

    def _refused(self, task: Task) -> None:
        task.refusals += 1
        self._wait(task, self._state.now + refused_s(task.refusals))

    def _again(self, task: Task, reason: DeadReason, event: on.AttemptEnded, *, at_once: bool) -> None:
        queue, submission, error = self._state, task.submission, event.error
        assert error is not None
        rules, settings = queue.rules, queue.settings
        task.refusals = 0
        once = event.once or submission.method in self._scheduler.pools[task.pool].once
        declared = event.policy or self._declared(task)
        if task.attempts >= max_attempts(submission, rules, settings, once=once, declared=declared):
            self._bury(task, reason, error)
            return
        wait_s = backoff_s(submission, rules, settings, attempts=task.attempts, draw=queue.draw, declared=declared)
        if at_once and not task.lost:
            task.lost = True
            wait_s = 0.0
        task.ready_at = queue.now + wait_s
        task.tried = True
        queue.totals["retried"] += 1
        queue.move(task, TaskStep.NOTING)
        queue.settle(
            Persist(
                seq=task.seq,
                job=task.job,
                kind=RecordKind.TRY,
                attempts=task.attempts,
                not_before=queue.wall + wait_s,
                error=error,
                started_at=task.started_at,
            ),
            *queue.tell(task, JobState.WAITING, error),
        )

    def _declared(self, task: Task) -> TaskPolicy:
        """What the task declares in the pool where it ran last or would run."""
        return self._scheduler.pools.policy(task.pool, task.submission.method) or UNDECLARED

    def _wait(self, task: Task, until: float) -> None:
        queue = self._state
        task.ready_at = until
        if until > queue.now:
            queue.move(task, TaskStep.WAITING)
            queue.agenda.set((TimerKind.RETRY, task.seq), until)
        else:
            self._scheduler.admit(task)

    # -- a task has to end ---------------------------------------------------------------------------------------------

    def cancel(self, event: on.Cancel) -> None:
        task = self._state.of_job(event.job)
        if task is not None:
            self.doom(task)
        elif (unentered := self._unentered.get(event.job)) is not None:
            unentered.doubted = True

    def doom(self, task: Task, why: StopReason = StopReason.CANCELLED) -> None:
        """End it as soon as possible. Of several reasons, a cancellation has precedence, since somebody waits for it,
        and a timeout comes last."""
        if task.doom is StopReason.CANCELLED or task.step in ENDING or task.step is TaskStep.ACKING:
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
                self._overdue(task)
                return
        if task.step is TaskStep.SCHEDULING:
            return  # it ends as soon as that is stored
        if why is StopReason.CANCELLED and not task.marked:
            task.tried = True
            failed = task.attempts - 1 if task.step in STARTED else task.attempts
            self._state.settle(Persist(seq=task.seq, job=task.job, kind=RecordKind.CANCELLATION, attempts=failed))

    def stop(self, task: Task, why: StopReason) -> None:
        """Tell its worker to end it."""
        task.doom = why
        self._state.move(task, TaskStep.STOPPING)
        if task.ending is None:
            self._state.out.append(StopAttempt(seq=task.seq, job=task.job, attempt=task.attempts, why=why))

    def _overdue(self, task: Task) -> bool:
        """End a task that does not run, if it is doomed or its deadline has passed. Only once all running tasks are
        known."""
        queue, last = self._state, task.error
        if not queue.open:
            return False
        if task.doom is None and task.deadline is not None and queue.now >= task.deadline:
            task.doom = StopReason.EXPIRED
        if task.doom is None:
            return False
        if task.doom is StopReason.CANCELLED:
            if task.step in ADMITTED:
                self._scheduler.withdraw(task)
            self._store(task, JobState.CANCELLED)
            return True
        error = DeadlineExceeded(
            f"its deadline passed before it {'could be retried' if task.begun else 'was started'}"
            + (f"; the last error was {last.code}: {last.message}" if last is not None else ""),
            may_have_started=task.begun,
        )
        self._drop(task, DeadReason.EXPIRED, error)
        return True

    def _drop_late(self, task: Task) -> None:
        """It could start now, but hardly end in time."""
        assert task.deadline is not None
        method, left_s = task.submission.method, task.deadline - self._state.now
        self._drop(
            task,
            DeadReason.EXPIRED,
            DeadlineExceeded(
                f"too little time was left to {'retry' if task.begun else 'start'} it: "
                f"{self._state.usual.shortage(method, left_s)}",
                may_have_started=task.begun,
            ),
        )

    def _drop(self, task: Task, reason: DeadReason, error: GanglineError) -> None:
        """Make it dead without running it (again)."""
        if task.step in ADMITTED:
            self._scheduler.withdraw(task)
        self._bury(task, reason, error)

    def _drop_unknown(self, task: Task) -> None:
        pool = self._scheduler.pools.add(task.submission.pool or self._state.endpoint)
        error = NoWorkers(
            f"no pool {pool.name!r}, and no standing set or route of that name, appeared within "
            f"{plain(self._state.settings.unknown_after_s)} s{pool.near_for(task.submission)}: start a worker, or set "
            "a route, then replay it",
            details={"endpoint": self._state.endpoint},
        )
        self._drop(task, DeadReason.UNKNOWN_ENDPOINT, error)

    def _drop_foreign(self, task: Task, pool: str) -> None:
        """A producer of this endpoint may not be allowed to use that pool."""
        endpoint = self._state.endpoint
        error = NoWorkers(
            f"Gangline-Pool names {pool!r}, not a pool of the route of {endpoint!r}: add it to the route (with a "
            f"weight of 0, if you like) and replay it, or omit the header",
            details={"endpoint": endpoint, "pool": pool},
        )
        self._drop(task, DeadReason.UNKNOWN_ENDPOINT, error)

    def _drop_misfit(self, task: Task) -> None:
        largest = self._scheduler.pools[task.pool].largest
        error = Saturated(
            f"{task.submission.method} takes {count_of(task.cost, 'slot')}, and no worker of pool {task.pool!r} "
            f"has more than {largest}: start a larger one, then replay it",
            details={"pool": task.pool, "slots": task.cost, "largest": largest},
        )
        self._drop(task, DeadReason.IMPOSSIBLE, error)

    # -- a task ends ---------------------------------------------------------------------------------------------------

    def _store(self, task: Task, state: EndState) -> None:
        """End it as done or cancelled."""
        self._persist_end(task, TaskStep.STORING, state)

    def _bury(self, task: Task, reason: DeadReason, error: GanglineError) -> None:
        """End it as dead, for this reason."""
        task.reason, task.error = reason.value, error
        self._persist_end(task, TaskStep.BURYING, JobState.DEAD, reason, error)

    def _persist_end(
        self,
        task: Task,
        step: TaskStep,
        state: EndState,
        reason: DeadReason | None = None,
        error: GanglineError | None = None,
    ) -> None:
        queue, task.end = self._state, state
        if task.accepted:
            self._tenants.leave(task)
        ttl_s = result_ttl_s(task.submission, queue.rules, queue.settings, declared=self._declared(task))
        if state is JobState.DONE and ttl_s <= 0:
            self._settled(task, state)  # there is nothing to store
            return
        queue.agenda.forget(task.seq)
        queue.move(task, step)
        persist = Persist(
            seq=task.seq,
            job=task.job,
            kind=RecordKind.RESULT if reason is None else RecordKind.DEAD_LETTER,
            attempts=task.attempts,
            state=state,
            reason=reason,
            error=error,
            started_at=task.started_at,
            result_ttl_s=ttl_s,
        )
        if reason is DeadReason.REFUSED and queue.sure:
            queue.refused.append(persist)
        else:
            queue.settle(persist)

    def persisted(self, event: on.Persisted) -> None:
        task, kind = self._state.tasks.get(event.seq), event.kind
        if task is None:
            return
        if kind is RecordKind.CANCELLATION:
            task.marked = True
        elif task.step is not _BEING_STORED[kind]:
            return
        elif kind is RecordKind.TRY:
            self._go_on(task)
        elif event.error is not None:
            self._bury(task, _why_not_scheduled(event.error), event.error)
        elif kind is RecordKind.SCHEDULE and task.doom is StopReason.CANCELLED:
            self._store(task, JobState.CANCELLED)  # the requester removes the schedule if it repeats
        else:
            self._settled(task, task.end or JobState.SCHEDULED)

    def _settled(self, task: Task, end: JobState) -> None:
        """It has ended, and what remains of it is stored."""
        task.end = end
        self._state.totals[end.value] += 1
        self._forget(task)

    def _repeated(self, task: Task) -> None:
        """Acknowledge it: it repeats a job of the queue, or had ended before."""
        self._state.totals["repeated"] += 1
        self._forget(task)

    def _forget(self, task: Task) -> None:
        """Its end is stored: let the server remove it."""
        queue, end = self._state, task.end
        if self._unentered.get(task.job) is task:
            del self._unentered[task.job]
        queue.agenda.forget(task.seq)
        queue.move(task, TaskStep.ACKING)
        told = queue.tell(task, end, task.error) if task.submission.events and end is not None and end.final else ()
        queue.settle(Ack(seq=task.seq, job=task.job, tried=task.tried, end=end), *told)
        self._scheduler.dismiss(task)


def _why_not_scheduled(error: GanglineError) -> DeadReason:
    if isinstance(error, InvalidSchedule):
        return DeadReason.MALFORMED
    return DeadReason.REFUSED if isinstance(error, QuotaExceeded) else DeadReason.IMPOSSIBLE


HANDLERS: Final[dict[type[on.AnyEvent], Callable[[QueueCore, Any], None]]] = {
    on.QueueTaken: QueueCore.taken,
    on.TaskAdopted: QueueCore.adopted,
    on.Recovered: QueueCore.recovered,
    on.OwnershipDoubted: QueueCore.doubted,
    on.OwnershipConfirmed: QueueCore.confirmed,
    on.Unheard: QueueCore.unheard,
    on.TaskArrived: QueueCore.arrived,
    on.Malformed: QueueCore.malformed,
    on.Looked: QueueCore.looked,
    on.Acked: QueueCore.acked,
    on.SlotsGranted: QueueCore.credited,
    on.AttemptEnded: QueueCore.ended,
    on.Persisted: QueueCore.persisted,
    on.Cancel: QueueCore.cancel,
    on.Routed: QueueCore.routed,
    on.PoolSeen: QueueCore.pool_seen,
    on.Tick: QueueCore.ticked,
}
"""What each event does. A test checks that there is one for each of AnyEvent."""
