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


class Step(StrEnum):
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


ADMITTED: Final = frozenset({Step.BEHIND, Step.CAPPED, Step.LINED, Step.PARKED})
"""Could start if nobody else were there."""
STARTED: Final = frozenset({Step.RUNNING, Step.STOPPING})
UNSETTLED: Final = ADMITTED | STARTED | {Step.LOOKING, Step.NOTING, Step.WAITING}
"""May still be cancelled, or expire."""

_ENDS: Final = {Step.STORING, Step.BURYING}

NEXT: Final[dict[Step, frozenset[Step]]] = {
    Step.NEW: ADMITTED | _ENDS | {Step.LOOKING, Step.SCHEDULING, Step.WAITING, Step.RUNNING, Step.ACKING},
    Step.LOOKING: ADMITTED | _ENDS | {Step.SCHEDULING, Step.WAITING, Step.RUNNING, Step.ACKING},
    Step.SCHEDULING: frozenset({Step.BURYING, Step.ACKING}),
    Step.BEHIND: ADMITTED | _ENDS | {Step.RUNNING},
    Step.CAPPED: ADMITTED | _ENDS | {Step.RUNNING},
    Step.LINED: ADMITTED | _ENDS | {Step.RUNNING},
    Step.PARKED: ADMITTED | _ENDS | {Step.RUNNING},
    Step.RUNNING: ADMITTED | _ENDS | {Step.STOPPING, Step.NOTING, Step.WAITING},
    Step.STOPPING: ADMITTED | _ENDS | {Step.NOTING, Step.WAITING},
    Step.NOTING: ADMITTED | _ENDS | {Step.WAITING},
    Step.WAITING: ADMITTED | _ENDS | {Step.RUNNING},
    Step.STORING: frozenset({Step.ACKING}),
    Step.BURYING: frozenset({Step.ACKING}),
    Step.ACKING: frozenset({Step.GONE}),
    Step.GONE: frozenset(),
}

TOLD: Final[dict[Step, JobState]] = {
    Step.NEW: JobState.QUEUED,
    Step.LOOKING: JobState.QUEUED,
    Step.SCHEDULING: JobState.SCHEDULED,
    **dict.fromkeys(ADMITTED, JobState.QUEUED),
    **dict.fromkeys(STARTED, JobState.RUNNING),
    Step.NOTING: JobState.WAITING,
    Step.WAITING: JobState.WAITING,
    Step.STORING: JobState.RUNNING,
    Step.BURYING: JobState.RUNNING,
}
"""What people are told; of ACKING it is how the task ended."""


class _Task(Stepping[Step], Protocol):
    seq: int


def move(task: _Task, to: Step) -> None:
    """Change the task's step, if the table allows it.

    Raises:
        IllegalMove: it does not; the task is unchanged.
    """
    if to not in NEXT[task.step]:
        raise IllegalMove(f"task {task.seq} cannot become {to.value} while it is {task.step.value}")
    task.step = to


def states_diagram() -> str:
    """The table as a mermaid state diagram, for the documentation; ADMITTED is drawn as one state."""

    def name(step: Step) -> str:
        return "admitted" if step in ADMITTED else step.value

    edges = {(name(before), name(after), ""): None for before, afters in NEXT.items() for after in sorted(afters)}
    return diagram(Step.NEW, (edge for edge in edges if edge[0] != edge[1]), Step.GONE)
