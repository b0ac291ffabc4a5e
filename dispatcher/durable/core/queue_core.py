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
from ..settings import DispatcherSettings
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
        self._books = books = QueueState(endpoint, settings or DispatcherSettings())
        self._admission = Admission(books)
        self._ending = Completion(books, self._admission)
        self._arriving = Arrivals(books, self._admission, self._ending)
        self._starting = StartScheduler(books, self._admission)

    def __repr__(self) -> str:
        books = self._books
        state = "open" if books.open and books.sure else "in doubt" if books.open else "recovering"
        return f"<QueueCore {books.endpoint} {state}, {len(books.tasks)} tasks, {books.running} running>"

    # -- what can be seen --------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Recovered: tasks are started."""
        return self._books.open

    def info(self, job: str) -> JobInfo | None:
        """What is known of a job; None if it has not arrived, or its end is confirmed. The shell adds the worker."""
        return info(self._books, job)

    def promised(self, job: str) -> bool:
        """Whether a cancellation that was asked for survives us: it is written down, or has ended the job."""
        return promised(self._books, job)

    def why(self, job: str) -> JobWhyReply | None:
        """What a job waits for. Looks at all tasks: for people, not for loops."""
        return why(self._books, job)

    def statistics(self) -> QueueCounts:
        """Counts, as of the last event."""
        return counts(self._books)

    def check(self) -> None:
        """Assert the invariants; for tests."""
        check(self._books)

    # -- what happens ------------------------------------------------------------------------------------------------

    def handle(self, *events: on.AnyEvent) -> list[Effect]:
        """Decide. Effects are to be carried out in order. Several events are as if they had come one by one, but what
        may start then is looked for once, after the last."""
        books, agenda = self._books, self._books.agenda
        for event in events:
            assert event.now >= books.now, "time went backwards"
            books.now, books.wall, books.draw = event.now, event.wall, event.draw
            if agenda:
                self._tick()
            HANDLERS[type(event)](self, event)
        self._starting.pump()
        self._starting.want()
        self._pull()
        self._starting.wake()
        out, books.out = books.out, []
        return out

    def _taken(self, event: on.QueueTaken) -> None:
        self._books.taken = True
        self._books.waiting = event.waiting
        self._new_gate()

    def _recovered(self) -> None:
        self._arriving.recovered()
        self._tick()

    def _doubted(self) -> None:
        self._books.sure = False

    def _sure(self) -> None:
        books = self._books
        books.sure = True
        held, books.held = books.held, []
        books.out.extend(held)

    def _credit(self, event: on.SlotsGranted) -> None:
        self._books.pools[event.pool].credit(event.free)

    def _pool_seen(self, event: on.PoolSeen) -> None:
        if self._books.pools.seen(event):
            self._admission.rebuild()
        self._arriving.known_anew()

    def _routed(self, event: on.Routed) -> None:
        books = self._books
        before, books.rules = books.rules, event.route.queue
        books.pools.route(event.route, event.explicit)
        if (before.rate_per_s, before.burst) != (books.rules.rate_per_s, books.rules.burst):
            self._new_gate()
        self._admission.rebuild()
        self._arriving.known_anew()

    def _new_gate(self) -> None:
        """It begins empty: what was started under the rate before is not known, or was judged otherwise."""
        books = self._books
        rate = books.rules.rate_per_s
        books.gate = None if rate is None else RateLimiter(rate_per_s=rate, burst=books.rules.burst, now=books.now)

    def _pull(self) -> None:
        books = self._books
        if not books.taken:
            return
        # What the holder before us had in hand is all asked for at once: nothing starts before it has come.
        most = AT_ONCE if books.open else None if books.waiting is None else max(AT_ONCE, books.waiting)
        count = books.window.ask(most)
        if count:
            books.out.append(Fetch(count=count))

    # -- time --------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """What is due comes before what happens, so that nothing starts past its deadline."""
        if self._books.open:
            for entry in self._books.agenda.due(self._books.now):
                self._due(entry)

    def _due(self, entry: Entry) -> None:
        due, seq = entry
        task = self._books.tasks[seq]
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
                if waits and not self._books.pools.knows(task.submission):
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
