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
   retries, cancellation and death. Else, whoever goes first by place (see order.py) of those that may start does.
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

from ....schemas.messages.jobs import JobInfo, JobWhyReply
from ..policies.prefetch_window import AT_ONCE
from ..policies.rate_limit import RateLimiter
from ..policies.settings import DispatcherSettings
from . import events as on
from .arrivals import Arrivals
from .completion import Completion
from .effects import Effect, Fetch, StopReason
from .introspection import QueueCounts, counts, info, promised, why
from .scheduler import Admission, StartScheduler
from .state import QueueState, check
from .states import ADMITTED, TaskStep
from .timers import Entry, TimerKind


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
