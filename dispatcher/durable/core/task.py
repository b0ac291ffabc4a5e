"""The tasks of one queue: the steps of a task, the only function that changes them, timers, and the effects so far.

Laws:

1. `Task.step` changes only in `move`; a move that is not in the table raises and changes nothing.
2. As far as is known, a task runs exactly in the steps RUNNING and STOPPING; it is a candidate for the next start
   exactly in the steps ADMITTED.
3. Every step except GONE has a way to GONE. Those that wait for an answer from the server or a worker get it, or the
   queue is lost; WAITING and PARKED have a timer; ADMITTED waits for its turn or its deadline.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Final

from ....runtime.state_machine import IllegalMove, diagram
from ....runtime.timers import TimerQueue, UsualDurations
from ....schemas.errors.base import GanglineError
from ....schemas.messages.submission import Submission
from ....schemas.records.jobs import JobState
from ....schemas.records.routes import QueueRules
from ..policies.settings import DispatcherSettings
from ..policies.start_order import KeyConcurrency, Place, PrefetchWindow
from .effects import Ack, Effect, EmitJobEvent, Persist, StopReason
from .events import AttemptEnded


class TaskStep(StrEnum):
    """The step of a task."""

    NEW = "new"
    """Just arrived."""
    LOOKING = "looking"
    """Its result is looked up: it may have ended before."""
    SCHEDULING = "scheduling"
    """It is being returned to the server until its time."""
    BEHIND = "behind"
    """An older task of its ordered key has not ended."""
    CAPPED = "capped"
    """The limit of its key or its method is reached by tasks that run or go first."""
    LINED = "lined"
    """It is in the line of its pool, and starts when its turn comes."""
    PARKED = "parked"
    """It needs more slots than any worker of its pool has."""
    RUNNING = "running"
    STOPPING = "stopping"
    """It was told to stop but has not ended."""
    NOTING = "noting"
    """It failed; the failure is being stored."""
    WAITING = "waiting"
    """It waits for its next attempt."""
    STORING = "storing"
    """Done or cancelled; that is being stored."""
    BURYING = "burying"
    """Dead; that is being stored."""
    ACKING = "acking"
    """It has ended, and the server has not confirmed the acknowledgement yet."""
    GONE = "gone"


ADMITTED: Final = frozenset({TaskStep.BEHIND, TaskStep.CAPPED, TaskStep.LINED, TaskStep.PARKED})
"""Tasks that could start if they were alone."""
STARTED: Final = frozenset({TaskStep.RUNNING, TaskStep.STOPPING})
UNSETTLED: Final = ADMITTED | STARTED | {TaskStep.LOOKING, TaskStep.NOTING, TaskStep.WAITING}
"""Tasks that may still be cancelled or expire."""
ENDING: Final = frozenset({TaskStep.STORING, TaskStep.BURYING})

NEXT: Final[dict[TaskStep, frozenset[TaskStep]]] = {
    TaskStep.NEW: ADMITTED
    | ENDING
    | {TaskStep.LOOKING, TaskStep.SCHEDULING, TaskStep.WAITING, TaskStep.RUNNING, TaskStep.ACKING},
    TaskStep.LOOKING: ADMITTED | ENDING | {TaskStep.SCHEDULING, TaskStep.WAITING, TaskStep.RUNNING, TaskStep.ACKING},
    TaskStep.SCHEDULING: frozenset({TaskStep.BURYING, TaskStep.STORING, TaskStep.ACKING}),
    **dict.fromkeys(
        (TaskStep.BEHIND, TaskStep.CAPPED, TaskStep.LINED, TaskStep.PARKED), ADMITTED | ENDING | {TaskStep.RUNNING}
    ),
    TaskStep.RUNNING: ADMITTED | ENDING | {TaskStep.STOPPING, TaskStep.NOTING, TaskStep.WAITING, TaskStep.ACKING},
    TaskStep.STOPPING: ADMITTED | ENDING | {TaskStep.NOTING, TaskStep.WAITING, TaskStep.ACKING},
    TaskStep.NOTING: ADMITTED | ENDING | {TaskStep.WAITING},
    TaskStep.WAITING: ADMITTED | ENDING | {TaskStep.RUNNING},
    TaskStep.STORING: frozenset({TaskStep.ACKING}),
    TaskStep.BURYING: frozenset({TaskStep.ACKING}),
    TaskStep.ACKING: frozenset({TaskStep.GONE}),
    TaskStep.GONE: frozenset(),
}

TOLD: Final[dict[TaskStep, JobState]] = {
    TaskStep.NEW: JobState.QUEUED,
    TaskStep.LOOKING: JobState.QUEUED,
    TaskStep.SCHEDULING: JobState.SCHEDULED,
    **dict.fromkeys(ADMITTED, JobState.QUEUED),
    **dict.fromkeys(STARTED | ENDING, JobState.RUNNING),
    TaskStep.NOTING: JobState.WAITING,
    TaskStep.WAITING: JobState.WAITING,
}
"""The state shown to users; in ACKING it is how the task ended."""


def move(task: Task, to: TaskStep) -> None:
    """Change the task's step, if the table allows it.

    Raises:
        IllegalMove: the table does not allow it; the task is unchanged.
    """
    if to not in NEXT[task.step]:
        raise IllegalMove(f"task {task.seq} cannot become {to.value} while it is {task.step.value}")
    task.step = to


def states_diagram() -> str:
    """The table as a mermaid state diagram, for the documentation; ADMITTED is drawn as one state."""

    def name(step: TaskStep) -> str:
        return "admitted" if step in ADMITTED else step.value

    edges = {(name(before), name(after), ""): None for before, afters in NEXT.items() for after in sorted(afters)}
    return diagram(TaskStep.NEW, (edge for edge in edges if edge[0] != edge[1]), TaskStep.GONE)


class Task:
    """What is known of a message from its arrival until the server has removed it. Times are monotonic unless stated
    otherwise."""

    # No __slots__: most tasks never set most fields, and defaults on the class make a task cheaper to create.

    ordered = False
    """Whether the current rules order it among those of its key."""
    deadline: float | None = None
    pool = ""
    """Pool in whose line it was last, or where it started; empty before."""
    cost = 1
    """Slots that it needs there."""
    attempts = 0
    """Attempts started, including the running one and those before it was a dead letter (see Submission.attempts)."""
    tried = False
    """Whether it may have a TryRecord."""
    refusals = 0
    """Attempts in a row that started nothing."""
    lost = False
    """Whether it was lost once together with its worker."""
    ready_at = 0.0
    """When its next attempt may start."""
    timeout_at: float | None = None
    """When the running attempt times out."""
    started_at: float | None = None
    """Unix time; of the last attempt, if this dispatcher started it."""
    worker = ""
    """`<pool>.<worker>` on which it was found at the takeover."""
    doom: StopReason | None = None
    """Why it will be cancelled or dead as soon as the outcome of its current step is known."""
    marked = False
    """Whether its cancellation is stored."""
    found = False
    """Whether its stored result was found before it was known whether it still runs."""
    held = False
    """Whether its result is to be looked up when all that its schedule may have published was read."""
    looks = False
    """Whether its stored result is being looked up."""
    ending: AttemptEnded | None = None
    """How its attempt failed while its result was looked up: it may have ended before, and then this does not count."""
    doubted = False
    """Whether somebody wanted to cancel its job while its result was looked up, and may have stored that."""
    cancelled = False
    """Whether its cancellation was stored when it arrived."""
    error: GanglineError | None = None
    """The last error."""
    end: JobState | None = None
    """How it ended."""
    reason: str | None = None
    """Why it is dead."""
    accepted = False
    """Whether it counts for its tenant's quotas; see TenantTasks."""
    ahead = False
    """Whether it was read beyond the window, and the consumer has not delivered it yet."""
    limits: tuple[tuple[KeyConcurrency, str], ...] = ()
    """While it is admitted or runs: the limits that it has to pass, in order, and its key in each."""

    def __init__(self, *, seq: int, submission: Submission, size: int, draw: float, place: Place) -> None:
        self.seq = seq
        self.submission = submission
        self.job = submission.job
        self.size = size
        self.draw = draw
        """Chooses its pool; always the same."""
        self.place = place
        self.step = TaskStep.NEW
        self.key = submission.key
        if submission.tenant and submission.key is not None:
            # Keys belong to their tenant. No header has a line break, so this is no key of another.
            self.key = f"{submission.tenant}\n{submission.key}"

    @property
    def begun(self) -> bool:
        """Whether it was started; attempts before it was a dead letter do not count."""
        return self.attempts > self.submission.attempts

    def __repr__(self) -> str:
        return f"<Task {self.seq} {self.job} {self.step.value} attempts={self.attempts}>"


class TimerKind(StrEnum):
    DEADLINE = "deadline"
    """The job must not run longer."""
    TIMEOUT = "timeout"
    """The attempt must not run longer."""
    RETRY = "retry"
    """The next attempt may start."""
    UNKNOWN = "unknown"
    """Its endpoint is unknown: it is dead."""
    MISFIT = "misfit"
    """No worker is large enough: it is dead."""


_ALL: Final = tuple(TimerKind)
Entry = tuple[TimerKind, int]
"""Kind and the task's sequence."""


class TaskTimers(TimerQueue[Entry]):
    """Timers by the monotonic clock."""

    __slots__ = ()

    def forget(self, seq: int) -> None:
        """Cancel all timers of a task."""
        if self:
            for due in _ALL:
                self.cancel((due, seq))


_REMEMBERED: Final = 10_000
"""Deliveries in flight are fewer."""


class QueueState:
    """The fetched tasks, the time of the event, and the effects so far."""

    def __init__(self, endpoint: str, settings: DispatcherSettings) -> None:
        self.endpoint = endpoint
        self.settings = settings
        self.now = float("-inf")
        self.wall = 0.0
        self.draw = 0.5
        self.taken = False
        self.open = False
        """Whether all tasks that ran before the takeover are known: tasks may start, and end without a start."""
        self.unclear: set[int] = set()
        """Tasks that seem to run but enter the queue only when their results were looked up. Nothing starts before
        that: they may count for limits and order."""
        self.sure = True
        """Whether the queue is certainly ours."""
        self.rules = QueueRules()
        self.tasks: dict[int, Task] = {}
        """By sequence; all that are not GONE."""
        self.jobs: dict[str, int] = {}
        """Sequence by job, without malformed ones and those being scheduled."""
        self.count: dict[TaskStep, int] = dict.fromkeys(TaskStep, 0)
        """Tasks by step."""
        self.agenda = TaskTimers()
        self.window = PrefetchWindow(count=settings.window_tasks, bytes_=settings.window_bytes)
        self.removed: dict[int, None] = {}
        """Sequences of tasks that were read beyond the window and are gone, oldest first: the consumer's delivery may
        have been on its way."""
        self.totals: Counter[str] = Counter()
        """Counts since the takeover: started, done, dead, cancelled, retried, repeated, scheduled."""
        self.usual = UsualDurations()
        """How long attempts usually take, by method."""
        self.out: list[Effect] = []
        self.held: list[Effect] = []
        """Effects that wait until the queue is certainly ours."""

    @property
    def running(self) -> int:
        """Number of tasks that workers have, as far as is known."""
        return self.count[TaskStep.RUNNING] + self.count[TaskStep.STOPPING]

    def starts_by(self, task: Task) -> float | None:
        """Until when it must start, so that it has as much time as its method usually needs; None: at any time."""
        if task.deadline is None:
            return None
        submission = task.submission
        began_at = max(submission.published_at, submission.not_before or 0.0)
        whole_s = task.deadline - self.now + max(0.0, self.wall - began_at)
        needed_s = self.usual.needed_s(submission.method, whole_s)
        return task.deadline - needed_s if needed_s else None

    def lacks_time(self, task: Task) -> bool:
        """Whether it could start, but would hardly end in time."""
        starts_by = self.starts_by(task)
        return starts_by is not None and self.now > starts_by

    def of_job(self, job: str) -> Task | None:
        return self.tasks.get(self.jobs.get(job, -1))

    def has_entered(self, task: Task) -> bool:
        """Whether it stands for its job in this queue, unlike one that only waits to be scheduled."""
        return self.jobs.get(task.job) == task.seq

    def move(self, task: Task, to: TaskStep) -> None:
        before, count = task.step, self.count
        move(task, to)
        count[before] -= 1
        count[to] += 1

    def put(self, task: Task) -> None:
        """Add a task that has arrived."""
        self.tasks[task.seq] = task
        self.count[task.step] += 1
        if not task.ahead:
            self.window.add(task.size)

    def drop(self, task: Task) -> None:
        """Remove a task that is gone from the server."""
        del self.tasks[task.seq]
        if not task.ahead:
            self.window.remove(task.size)
            return
        self.removed[task.seq] = None
        if len(self.removed) > _REMEMBERED:
            del self.removed[next(iter(self.removed))]

    def delivered(self, task: Task) -> None:
        """The consumer has delivered it, perhaps once more."""
        if task.ahead:
            task.ahead = False
            self.window.add(task.size)

    def settle(self, effect: Persist | Ack, *told: EmitJobEvent) -> None:
        """Request what only the owner of the queue may do."""
        (self.out if self.sure else self.held).extend((effect, *told))

    def tell(self, task: Task, state: JobState, error: GanglineError | None = None) -> tuple[EmitJobEvent, ...]:
        """The event of a change, if the job asked for events."""
        if not task.submission.events:
            return ()
        reason = task.reason if state is JobState.DEAD else None
        return (
            EmitJobEvent(
                seq=task.seq,
                job=task.job,
                state=state,
                attempt=task.attempts,
                at=self.wall,
                error=error,
                reason=reason,
            ),
        )

    def mono(self, wall: float) -> float:
        """A Unix time on the monotonic clock."""
        return self.now + (wall - self.wall)
