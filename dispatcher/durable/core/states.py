"""The steps of a task's life in a queue, and the only function that changes them.

Laws:

1. `Task.step` changes in `move` and nowhere else; a move that the table does not have raises and changes nothing.
2. A task runs, as far as is known, exactly in the steps RUNNING and STOPPING; it has a place among those that may be
   started next exactly in the steps ADMITTED.
3. Every step but GONE has a way to GONE. Those that wait for an answer of the server or of a worker get it, or the
   queue is lost; WAITING and PARKED have a timer; ADMITTED waits its turn, or until its deadline.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

from ....runtime.state_machine import IllegalMove, Stepping, diagram
from ....schemas.records.jobs import JobState


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


class _Task(Stepping[TaskStep], Protocol):
    seq: int


def move(task: _Task, to: TaskStep) -> None:
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
