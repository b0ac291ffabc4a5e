"""The queue of one endpoint: which task starts when, what becomes of each. Pure: no IO, no clock, no chance, no await.

Laws, which `check`, the model of the tests and the simulations assert:

1. *One end.* Every message that arrived ends exactly once: done, dead, cancelled, given back to the server until its
   time, or as a repetition of a job that is in the queue or had ended before. Then it is acknowledged, and not before
   the server has stored that end.
2. *No twin.* A task is never started while a try of it runs, as far as anybody who lives knows: not before `Recovered`,
   and not before the Ended of the try before.
3. *Counted.* Attempts grow by one with each start. A failure is noted before the wait for the next try begins, so that
   no takeover forgets it. What started nothing is not counted.
4. *Limits.* At no start more than `max_running`, the pool's limit, or `per_key` of a key run; starts keep the rate over
   all dispatchers that ever had the queue; no more slots are used than there was credit for.
5. *Order.* Of an ordered key one task at a time is between its first start and its stored end, by sequence, through
   retries, cancellation and death. Else, whoever goes first by place (see start_order) of those that may start does.
6. *Bounded starvation.* A task that may start does so before every task of its pool and of higher priority that was
   published more than (difference of priorities) x `age_step_s` after it. One that takes more slots than any lease has
   free keeps those behind it waiting, and is passed by them, by turns of `age_step_s`.
7. *Ours.* While it is in doubt whether the queue is ours, nothing is started, stored, noted, buried or acknowledged.
8. *Cancelled.* A task of which somebody was told that it is cancelled (see `promised`) is not started any more, not
   after a takeover either.
9. *In time.* Nothing is started after its deadline; what runs then is told to stop.

An event costs O(log n) of the tasks in the window, but for changes of routes and registrations, which cost O(n log n).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, assert_never

from ....schemas.errors.base import GanglineError
from ....schemas.errors.tasks import InvalidSchedule
from ....schemas.messages.jobs import JobInfo, JobWhyReply
from ....schemas.messages.submission import Submission
from ....schemas.records.jobs import DeadReason, JobState
from ..policies.retry_policy import timeout_s
from ..policies.settings import DispatcherSettings
from ..policies.start_order import AT_ONCE, RateLimiter, place_of
from . import events as on
from .completion import Completion
from .effects import Ack, Effect, Fetch, LookUpResult, ReattachAttempt, Schedule, StopReason
from .introspection import QueueCounts, counts, info, promised, why
from .scheduler import Admission, StartScheduler
from .state import Entry, QueueState, TimerKind, check
from .task import ADMITTED, UNSETTLED, Task, TaskStep


class Arrivals:
    """What becomes of a message until it may be started: is it new, has it ended before, does it run already?"""

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
        task = Task(seq=seq, submission=submission, size=size, draw=queue_state.draw, place=place)
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


class QueueCore:
    """One possession of one endpoint's queue. `event.now` must never go backwards from call to call."""

    def __init__(self, endpoint: str, settings: DispatcherSettings | None = None) -> None:
        self._state = queue_state = QueueState(endpoint, settings or DispatcherSettings())
        self._admission = Admission(queue_state)
        self._ending = Completion(queue_state, self._admission)
        self._arriving = Arrivals(queue_state, self._admission, self._ending)
        self._starting = StartScheduler(queue_state, self._admission)

    def __repr__(self) -> str:
        queue_state = self._state
        state = "open" if queue_state.open and queue_state.sure else "in doubt" if queue_state.open else "recovering"
        return (
            f"<QueueCore {queue_state.endpoint} {state}, {len(queue_state.tasks)} tasks, {queue_state.running} running>"
        )

    # -- what can be seen --------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Recovered: tasks are started."""
        return self._state.open

    def info(self, job: str) -> JobInfo | None:
        """What is known of a job; None if it has not arrived, or its end is confirmed. The shell adds the worker."""
        return info(self._state, job)

    def promised(self, job: str) -> bool:
        """Whether a cancellation that was asked for survives us: it is written down, or has ended the job."""
        return promised(self._state, job)

    def why(self, job: str) -> JobWhyReply | None:
        """What a job waits for. Looks at all tasks: for people, not for loops."""
        return why(self._state, job)

    def statistics(self) -> QueueCounts:
        """Counts, as of the last event."""
        return counts(self._state)

    def check(self) -> None:
        """Assert the invariants; for tests."""
        check(self._state)

    # -- what happens ------------------------------------------------------------------------------------------------

    def handle(self, *events: on.AnyEvent) -> list[Effect]:
        """Decide. Effects are to be carried out in order. Several events are as if they had come one by one, but what
        may start then is looked for once, after the last."""
        queue_state, agenda = self._state, self._state.agenda
        for event in events:
            assert event.now >= queue_state.now, "time went backwards"
            queue_state.now, queue_state.wall, queue_state.draw = event.now, event.wall, event.draw
            if agenda:
                self._tick()
            HANDLERS[type(event)](self, event)
        self._starting.pump()
        self._starting.want()
        self._pull()
        self._starting.wake()
        out, queue_state.out = queue_state.out, []
        return out

    def _taken(self, event: on.QueueTaken) -> None:
        self._state.taken = True
        self._state.waiting = event.waiting
        self._new_gate()

    def _recovered(self) -> None:
        self._arriving.recovered()
        self._tick()

    def _doubted(self) -> None:
        self._state.sure = False

    def _sure(self) -> None:
        queue_state = self._state
        queue_state.sure = True
        held, queue_state.held = queue_state.held, []
        queue_state.out.extend(held)

    def _credit(self, event: on.SlotsGranted) -> None:
        self._state.pools[event.pool].credit(event.free)

    def _pool_seen(self, event: on.PoolSeen) -> None:
        if self._state.pools.seen(event):
            self._admission.rebuild()
        self._arriving.known_anew()

    def _routed(self, event: on.Routed) -> None:
        queue_state = self._state
        before, queue_state.rules = queue_state.rules, event.route.queue
        queue_state.pools.route(event.route, event.explicit)
        if (before.rate_per_s, before.burst) != (queue_state.rules.rate_per_s, queue_state.rules.burst):
            self._new_gate()
        self._admission.rebuild()
        self._arriving.known_anew()

    def _new_gate(self) -> None:
        """It begins empty: what was started under the rate before is not known, or was judged otherwise."""
        queue_state = self._state
        rate = queue_state.rules.rate_per_s
        queue_state.gate = (
            None if rate is None else RateLimiter(rate_per_s=rate, burst=queue_state.rules.burst, now=queue_state.now)
        )

    def _pull(self) -> None:
        queue_state = self._state
        if not queue_state.taken:
            return
        # What the holder before us had in hand is all asked for at once: nothing starts before it has come.
        most = (
            AT_ONCE if queue_state.open else None if queue_state.waiting is None else max(AT_ONCE, queue_state.waiting)
        )
        count = queue_state.window.ask(most)
        if count:
            queue_state.out.append(Fetch(count=count))

    # -- time --------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """What is due comes before what happens, so that nothing starts past its deadline."""
        if self._state.open:
            for entry in self._state.agenda.due(self._state.now):
                self._due(entry)

    def _due(self, entry: Entry) -> None:
        due, seq = entry
        task = self._state.tasks[seq]
        match due:
            case TimerKind.DEADLINE:
                self._ending.doom(task, StopReason.EXPIRED)
            case TimerKind.TIMEOUT:
                self._ending.doom(task, StopReason.TIMED_OUT)
            case TimerKind.RETRY:
                if task.step is TaskStep.WAITING:
                    self._admission.admit(task)
            case TimerKind.UNKNOWN:
                waits = task.step in ADMITTED or task.step is TaskStep.WAITING
                if waits and not self._state.pools.knows(task.submission):
                    self._ending.unknown(task)
            case TimerKind.MISFIT:
                if task.step is TaskStep.PARKED:
                    self._ending.misfit(task)
            case _:
                assert_never(due)


HANDLERS: Final[dict[type[on.AnyEvent], Callable[[QueueCore, Any], None]]] = {
    on.QueueTaken: QueueCore._taken,
    on.TaskAdopted: lambda core, event: core._arriving.adopted(event),
    on.Recovered: lambda core, _: core._recovered(),
    on.OwnershipDoubted: lambda core, _: core._doubted(),
    on.OwnershipConfirmed: lambda core, _: core._sure(),
    on.TaskArrived: lambda core, event: core._arriving.arrived(event),
    on.Malformed: lambda core, event: core._arriving.malformed(event),
    on.Looked: lambda core, event: core._arriving.looked(event),
    on.Acked: lambda core, event: core._arriving.acked(event.seq),
    on.SlotsGranted: QueueCore._credit,
    on.AttemptEnded: lambda core, event: core._ending.ended(event),
    on.Noted: lambda core, event: core._ending.noted(event.seq),
    on.Marked: lambda core, event: core._ending.marked(event.seq),
    on.Stored: lambda core, event: core._ending.stored(event.seq, TaskStep.STORING),
    on.Buried: lambda core, event: core._ending.stored(event.seq, TaskStep.BURYING),
    on.Scheduled: lambda core, event: core._arriving.scheduled(event.seq),
    on.ScheduleRefused: lambda core, event: core._arriving.schedule_refused(event.seq, event.error),
    on.Cancel: lambda core, event: core._ending.cancel(event.job),
    on.Routed: QueueCore._routed,
    on.PoolSeen: QueueCore._pool_seen,
    on.Tick: lambda core, _: None,
}
"""What each event does. One for each of AnyEvent: a test sees to it."""
