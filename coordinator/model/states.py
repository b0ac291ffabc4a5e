"""The steps of a gang's life, and the only function that changes them.

Laws:

1. `Gang.step` changes in `move` and nowhere else; a move that the table does not have raises and changes nothing.
2. Members are granted in the ledger exactly in the steps GRANTED (and, for an instant, in those of a commit in flight).
3. Every step but ENDED has a way to ENDED, and no step waits for ever: each has a timer, or an answer that is bounded
   by one, or it is the queue.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

from ...runtime.state_machine import IllegalMove, Stepping, diagram


class GangStep(StrEnum):
    """Where a gang is."""

    QUEUED = "queued"
    """Waits for room, and holds nothing."""
    HOLDING = "holding"
    """Holds were sent, not all are answered."""
    COMMITTING = "committing"
    """All hold; the batch that grants the members is on its way."""
    FORMED = "formed"
    REPAIRING = "repairing"
    """Some members were lost, the others go on; replacements are looked for or held."""
    REJOINING = "rejoining"
    """The batch that swaps the lost members for new ones is on its way."""
    RETIRING = "retiring"
    """Serves on for a moment, callers were told to go elsewhere."""
    CLOSING = "closing"
    """The batch that ends the members is on its way."""
    STOPPING = "stopping"
    """The members were told to stop; not all have confirmed."""
    BACKOFF = "backoff"
    """Nothing is left of the old generation; waits before the next."""
    ENDED = "ended"


class Move(StrEnum):
    """What takes a gang from one step to another."""

    PLACED = "placed"
    HELD = "held"
    REFUSED = "refused"
    COMMITTED = "committed"
    LOST_MEMBER = "lost_member"
    RETIRE = "retire"
    CLOSE = "close"
    RESTART = "restart"
    FINISH = "finish"
    ELAPSED = "elapsed"
    DROP = "drop"


TRANSITIONS: Final[dict[tuple[GangStep, Move], GangStep]] = {
    (GangStep.QUEUED, Move.PLACED): GangStep.HOLDING,
    (GangStep.QUEUED, Move.DROP): GangStep.ENDED,
    (GangStep.HOLDING, Move.HELD): GangStep.COMMITTING,
    (GangStep.HOLDING, Move.REFUSED): GangStep.QUEUED,
    (GangStep.HOLDING, Move.DROP): GangStep.ENDED,
    (GangStep.COMMITTING, Move.COMMITTED): GangStep.FORMED,
    (GangStep.COMMITTING, Move.REFUSED): GangStep.QUEUED,
    (GangStep.FORMED, Move.LOST_MEMBER): GangStep.REPAIRING,
    (GangStep.FORMED, Move.RETIRE): GangStep.RETIRING,
    (GangStep.FORMED, Move.CLOSE): GangStep.CLOSING,
    (GangStep.REPAIRING, Move.HELD): GangStep.REJOINING,
    (GangStep.REPAIRING, Move.LOST_MEMBER): GangStep.REPAIRING,
    (GangStep.REPAIRING, Move.CLOSE): GangStep.CLOSING,
    (GangStep.REJOINING, Move.COMMITTED): GangStep.FORMED,
    (GangStep.REJOINING, Move.REFUSED): GangStep.REPAIRING,
    (GangStep.RETIRING, Move.CLOSE): GangStep.CLOSING,
    (GangStep.CLOSING, Move.COMMITTED): GangStep.STOPPING,
    (GangStep.STOPPING, Move.RESTART): GangStep.BACKOFF,
    (GangStep.STOPPING, Move.FINISH): GangStep.ENDED,
    (GangStep.BACKOFF, Move.ELAPSED): GangStep.QUEUED,
    (GangStep.BACKOFF, Move.DROP): GangStep.ENDED,
}

GRANTED: Final = frozenset(
    {GangStep.FORMED, GangStep.REPAIRING, GangStep.REJOINING, GangStep.RETIRING, GangStep.CLOSING}
)
"""The ledger has the members' records."""

WAITING: Final = frozenset({GangStep.QUEUED, GangStep.HOLDING, GangStep.COMMITTING, GangStep.BACKOFF})
"""Not formed yet, or not formed again."""


class _Gang(Stepping[GangStep], Protocol):
    id: str


def move(gang: _Gang, what: Move) -> None:
    """Change the gang's step as the table says.

    Raises:
        IllegalMove: the table has no such move; the gang is unchanged.
    """
    found = TRANSITIONS.get((gang.step, what))
    if found is None:
        raise IllegalMove(f"gang {gang.id} cannot be {what.value} while it is {gang.step.value}")
    gang.step = found


def states_diagram() -> str:
    """The table as a mermaid state diagram, for the documentation."""
    edges = ((before.value, after.value, what.value) for (before, what), after in TRANSITIONS.items())
    return diagram(GangStep.QUEUED, edges, GangStep.ENDED)
