"""One task of the queue, the steps of its life, and the only function that changes them.

Laws:

1. `Task.step` changes in `move` and nowhere else; a move that the table does not have raises and changes nothing.
2. A task runs, as far as is known, exactly in the steps RUNNING and STOPPING; it has a place among those that may be
   started next exactly in the steps ADMITTED.
3. Every step but GONE has a way to GONE. Those that wait for an answer of the server or of a worker get it, or the
   queue is lost; WAITING and PARKED have a timer; ADMITTED waits its turn, or until its deadline.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ....runtime.state_machine import IllegalMove, diagram
from ....schemas.errors.base import GanglineError
from ....schemas.messages.submission import Submission
from ....schemas.records.jobs import JobState
from ..policies.start_order import Place
from .effects import StopReason


class TaskStep(StrEnum):
    """Where a task is."""

    NEW = "new"
    """Just arrived."""
    LOOKING = "looking"
    """Its result is looked up: it may have ended before."""
    SCHEDULING = "scheduling"
    """It is being given back to the server until its time."""
    BEHIND = "behind"
    """An older one of its ordered key has not ended."""
    CAPPED = "capped"
    """Others of its key run, or go before it, as many as may at once."""
    LINED = "lined"
    """In the line of its pool: starts when its turn comes."""
    PARKED = "parked"
    """It takes more slots than any worker of its pool has."""
    RUNNING = "running"
    STOPPING = "stopping"
    """It was told to stop; it has not ended."""
    NOTING = "noting"
    """It failed; that is being written down."""
    WAITING = "waiting"
    """... and was: it waits for its next try."""
    STORING = "storing"
    """Done or cancelled; that is being written down."""
    BURYING = "burying"
    """Dead; that is being written down."""
    ACKING = "acking"
    """Ended for good; the server has not confirmed yet that it forgets it."""
    GONE = "gone"


ADMITTED: Final = frozenset({TaskStep.BEHIND, TaskStep.CAPPED, TaskStep.LINED, TaskStep.PARKED})
"""Could start if nobody else were there."""
STARTED: Final = frozenset({TaskStep.RUNNING, TaskStep.STOPPING})
UNSETTLED: Final = ADMITTED | STARTED | {TaskStep.LOOKING, TaskStep.NOTING, TaskStep.WAITING}
"""May still be cancelled, or expire."""

_ENDS: Final = {TaskStep.STORING, TaskStep.BURYING}

NEXT: Final[dict[TaskStep, frozenset[TaskStep]]] = {
    TaskStep.NEW: ADMITTED
    | _ENDS
    | {TaskStep.LOOKING, TaskStep.SCHEDULING, TaskStep.WAITING, TaskStep.RUNNING, TaskStep.ACKING},
    TaskStep.LOOKING: ADMITTED | _ENDS | {TaskStep.SCHEDULING, TaskStep.WAITING, TaskStep.RUNNING, TaskStep.ACKING},
    TaskStep.SCHEDULING: frozenset({TaskStep.BURYING, TaskStep.ACKING}),
    TaskStep.BEHIND: ADMITTED | _ENDS | {TaskStep.RUNNING},
    TaskStep.CAPPED: ADMITTED | _ENDS | {TaskStep.RUNNING},
    TaskStep.LINED: ADMITTED | _ENDS | {TaskStep.RUNNING},
    TaskStep.PARKED: ADMITTED | _ENDS | {TaskStep.RUNNING},
    TaskStep.RUNNING: ADMITTED | _ENDS | {TaskStep.STOPPING, TaskStep.NOTING, TaskStep.WAITING},
    TaskStep.STOPPING: ADMITTED | _ENDS | {TaskStep.NOTING, TaskStep.WAITING},
    TaskStep.NOTING: ADMITTED | _ENDS | {TaskStep.WAITING},
    TaskStep.WAITING: ADMITTED | _ENDS | {TaskStep.RUNNING},
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
    **dict.fromkeys(STARTED, JobState.RUNNING),
    TaskStep.NOTING: JobState.WAITING,
    TaskStep.WAITING: JobState.WAITING,
    TaskStep.STORING: JobState.RUNNING,
    TaskStep.BURYING: JobState.RUNNING,
}
"""What people are told; of ACKING it is how the task ended."""


def move(task: Task, to: TaskStep) -> None:
    """Change the task's step, if the table allows it.

    Raises:
        IllegalMove: it does not; the task is unchanged.
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
    """What is known of a message from its arrival until the server has forgotten it. All times are monotonic, but for
    those that say otherwise."""

    # No slots: what most of them never set stands in the class, which makes one of them cheaper to make.

    ordered = False
    """Among those of its key, as the rules are now."""
    deadline: float | None = None
    pool = ""
    """Where it was last in line, or started; empty before."""
    cost = 1
    """Slots that it takes there."""
    attempts = 0
    """Tries that were begun, the one that runs included, and those of an earlier life (see Submission.attempts)."""
    tried = False
    """A TryRecord of it may stand."""
    refusals = 0
    """Tries in a row that came to nothing."""
    lost = False
    """It once vanished together with its worker."""
    ready_at = 0.0
    """When its next try may begin."""
    timeout_at: float | None = None
    """When the try that runs has run too long."""
    started_at: float | None = None
    """Unix time; of the last try, if this dispatcher began it."""
    worker = ""
    """`<pool>.<worker>` that it was found on at the takeover."""
    doom: StopReason | None = None
    """It will be cancelled or is dead, as soon as it is known what became of what is on its way."""
    marked = False
    """That it is cancelled is written down."""
    found = False
    """Its end was found stored, before it was known whether it runs all the same."""
    error: GanglineError | None = None
    """The last."""
    end: JobState | None = None
    """How it ended."""
    reason: str | None = None
    """Of its death."""

    def __init__(self, *, seq: int, submission: Submission, size: int, draw: float, place: Place) -> None:
        self.seq = seq
        self.submission = submission
        self.job = submission.job
        self.size = size
        self.draw = draw
        """Chooses its pool, again and again the same."""
        self.place = place
        self.step = TaskStep.NEW
        self.key = submission.key

    @property
    def begun(self) -> bool:
        """It was started once; in an earlier life, before it was submitted anew, does not count."""
        return self.attempts > self.submission.attempts

    def __repr__(self) -> str:
        return f"<Task {self.seq} {self.job} {self.step.value} attempts={self.attempts}>"
