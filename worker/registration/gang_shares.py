"""What a worker has of gangs, for operators: a part of the answer to `stats`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ...schemas.messages.operations import GangShare
from ..slots.gang_core import WorkerGangCore
from ..slots.gang_records import LeavingMember, LocalMember, LocalSeat, TentativeHold


def shares(gangs: WorkerGangCore) -> tuple[GangShare, ...]:
    """What a worker has of gangs, for operators."""
    kept = [GangShare(gang=gang, state="kept", slots=keep.has) for gang, keep in gangs.keeps.by_gang.items()]
    held = [_share(hold, "held", hold.seats, 0) for hold in gangs.holds.values()]
    formed = [
        _share(member, "over" if member.over else "formed", member.seats.values(), 0)
        for member in gangs.members.values()
    ]
    stopping = [_share(leaving, "stopping", leaving.seats, gangs.reserved_by(leaving)) for leaving in gangs.leaving]
    return (*kept, *held, *formed, *stopping)


def _share(
    of: TentativeHold | LocalMember | LeavingMember,
    state: Literal["held", "formed", "over", "stopping"],
    seats: Iterable[LocalSeat],
    more: int,
) -> GangShare:
    seats = list(seats)
    slots = sum(seat.lease.slots if seat.lease.ended is None else seat.lease.busy for seat in seats)
    ranks = tuple(sorted({seat.rank for seat in seats}))
    return GangShare(gang=of.gang, generation=of.generation, state=state, ranks=ranks, slots=slots + more)
