"""What the server forbids this user at the moment, and when each of it is tried again.

1. No refusal is for ever: each subject is tried again, after pauses that grow. The server does not tell us when a right
   is given back, and a reload of its configuration that takes one away does not disconnect us.
2. A refusal is reported once, however often it is repeated, and its end once.
3. What worked before and is refused now is a *lost* right. The process is not ready meanwhile, and tries it more often
   than what never worked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

FIRST_PAUSE_S: Final = 5.0
"""Longer than it takes until a second message to the subject tells its sender about the refusal of the first."""
FIRST_LOST_PAUSE_S: Final = 1.0
LOST_PAUSE_S: Final = 4.0
"""Longest pause for a lost right."""
LONGEST_PAUSE_S: Final = 60.0
"""Longest pause for others: the server logs each attempt."""
UNUSED_S: Final = 15.0
"""After how long without an attempt it no longer matters that a subject could not be published to."""
MAX_REFUSALS: Final = 4096
MAX_REPORTED: Final = 20
"""So many are reported loudly at a time: each answer has a subject of its own."""


class Right(StrEnum):
    PUBLISH = "publish to"
    SUBSCRIBE = "subscribe to"


@dataclass(slots=True, kw_only=True)
class SubjectRefusal:
    right: Right
    subject: str
    lost: bool
    """It worked before."""
    loud: bool
    """It was reported so that operators see it, and so will be its end."""
    pause_s: float
    again_at: float
    trying: bool = False
    """An attempt is under way, and was not refused so far."""


class RefusalTable:
    """See the module's docstring. Times are those of the event loop."""

    def __init__(self) -> None:
        self._refusals: dict[tuple[Right, str], SubjectRefusal] = {}

    def __repr__(self) -> str:
        return f"RefusalTable({len(self._refusals)})"

    def get(self, right: Right, subject: str) -> SubjectRefusal | None:
        return self._refusals.get((right, subject))

    def of(self, right: Right) -> list[SubjectRefusal]:
        return [refusal for refusal in self._refusals.values() if refusal.right is right]

    def refused(self, right: Right, subject: str, now: float, *, lost: bool) -> SubjectRefusal | None:
        """The server refused it; None if that is known already."""
        known = self._refusals.get((right, subject))
        if known is not None:
            if known.trying:  # otherwise it answers a message that was sent before the first refusal came
                known.trying = False
                known.pause_s = min(2 * known.pause_s, LOST_PAUSE_S if known.lost else LONGEST_PAUSE_S)
                known.again_at = now + known.pause_s
            return None
        if len(self._refusals) >= MAX_REFUSALS:
            del self._refusals[next(iter(self._refusals))]
        loud = sum(refusal.loud for refusal in self._refusals.values()) < MAX_REPORTED
        pause_s = FIRST_LOST_PAUSE_S if lost else FIRST_PAUSE_S
        refusal = SubjectRefusal(
            right=right, subject=subject, lost=lost, loud=loud, pause_s=pause_s, again_at=now + pause_s
        )
        self._refusals[right, subject] = refusal
        return refusal

    def begin(self, refusals: Iterable[SubjectRefusal]) -> None:
        """These are tried now."""
        for refusal in refusals:
            refusal.trying = True

    def confirm(self, refusals: Iterable[SubjectRefusal]) -> list[SubjectRefusal]:
        """The server has seen the attempts: those that it did not refuse again have ended, and are returned."""
        ended = [each for each in refusals if each.trying and self.get(each.right, each.subject) is each]
        for refusal in ended:
            self.forget(refusal)
        return ended

    def postpone(self, refusals: Iterable[SubjectRefusal], now: float) -> None:
        """It is unknown what became of the attempts."""
        for refusal in refusals:
            refusal.trying = False
            refusal.again_at = now + refusal.pause_s

    def forget(self, refusal: SubjectRefusal) -> None:
        """Nobody needs it any more."""
        self._refusals.pop((refusal.right, refusal.subject), None)

    def lost(self, now: float) -> list[SubjectRefusal]:
        """Lost rights that are still needed. Only reads, so any thread may call it."""
        return [
            refusal
            for refusal in list(self._refusals.values())
            if refusal.lost and (refusal.right is Right.SUBSCRIBE or now < refusal.again_at + UNUSED_S)
        ]

    def sweep(self, now: float) -> None:
        """Forget what nobody has tried to publish to for long."""
        for refusal in self.of(Right.PUBLISH):
            if now >= refusal.again_at + LONGEST_PAUSE_S:
                self.forget(refusal)
