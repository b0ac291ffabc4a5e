"""What a refusal of the core is called on the wire."""

from __future__ import annotations

from ...schemas.errors.base import (
    Draining,
    GanglineError,
    InvalidRequest,
    LeaseBusy,
    LeaseExpired,
    Saturated,
    StaleEpoch,
    UnknownToken,
)
from ...schemas.errors.gangs import GangEnded
from ...schemas.text import count_of
from ...schemas.wire.frames import Reason
from .lease_table import Refusal

REASONS = {
    Refusal.FULL: Reason.FULL,
    Refusal.DRAINING: Reason.DRAINING,
    Refusal.STALE: Reason.STALE,
    Refusal.EXPIRED: Reason.EXPIRED,
}
"""Refusals that a router meets by going elsewhere: answered as REJECTED. The others are errors."""


def error_of(
    refusal: Refusal, *, worker: str, slots: int = 0, total: int = 0, token: str | None = None
) -> GanglineError:
    """The error for a refusal.

    Args:
        refusal: of the core.
        worker: who refuses, for people.
        slots: how many were asked for.
        total: how many the worker has.
        token: the lease's, if one was named; the text shows its start only.
    """
    shown = f"{(token or '')[:8]}..."
    match refusal:
        case Refusal.TOO_LARGE:
            return InvalidRequest(f"{slots} slots were asked for and worker {worker} has {total}: ask for fewer")
        case Refusal.LEASE_TOO_SMALL:
            return InvalidRequest(
                f"the task costs {count_of(slots, 'slot')}, more than lease {shown} has: reserve that many"
            )
        case Refusal.LEASE_EXPIRED:
            return LeaseExpired(f"lease {shown} of worker {worker} ran out: reserve again, and renew in time")
        case Refusal.LEASE_STALE:
            return StaleEpoch(f"lease {shown} is of an earlier epoch of worker {worker}, and void: reserve again")
        case Refusal.LEASE_USED:
            return UnknownToken(f"lease {shown} of worker {worker} was used up or released: reserve again")
        case Refusal.UNKNOWN_TOKEN:
            return UnknownToken(f"worker {worker} knows no lease {shown}: reserve one first")
        case Refusal.LEASE_BUSY:
            return LeaseBusy(f"all slots of lease {shown} are in use: wait for a task to end, or lease more slots")
        case Refusal.GANG_OVER:
            return GangEnded(f"the gang of seat {shown} of worker {worker} was torn down: ask for its next generation")
        case Refusal.FULL:
            return Saturated(f"worker {worker} has not {count_of(slots, 'free slot')} now: try another, or later")
        case Refusal.DRAINING:
            return Draining(f"worker {worker} is leaving: try another")
        case Refusal.STALE:
            return StaleEpoch(f"worker {worker} has a newer epoch: read its registration again")
        case Refusal.EXPIRED:
            return LeaseExpired("the request's time was over, or it was withdrawn, before it arrived: nothing started")
