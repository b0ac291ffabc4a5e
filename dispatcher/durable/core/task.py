"""One task of the queue."""

from __future__ import annotations

from ....schemas.errors.base import GanglineError
from ....schemas.messages.submission import Submission
from ....schemas.records.jobs import JobState
from ..policies.priority_order import Place
from .effects import StopReason
from .states import TaskStep


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

    def __init__(self, *, seq: int, submission: Submission, size: int, draw: float, place: Place, now: float) -> None:
        self.seq = seq
        self.submission = submission
        self.job = submission.job
        self.size = size
        self.draw = draw
        """Chooses its pool, again and again the same."""
        self.place = place
        self.arrived_at = now
        self.step = TaskStep.NEW
        self.key = submission.key

    @property
    def begun(self) -> bool:
        """It was started once; in an earlier life, before it was submitted anew, does not count."""
        return self.attempts > self.submission.attempts

    def __repr__(self) -> str:
        return f"<Task {self.seq} {self.job} {self.step.value} attempts={self.attempts}>"
