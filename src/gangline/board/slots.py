"""The slots of one worker, as cells: what each is doing, and for whom. Pure.

The ledger tells which slots are leased or belong to gangs, the heartbeat how many are running and reserved, and the
worker's own statistics, if it was asked for them, what runs where. Heartbeats are up to a second older than the ledger.
So a slot counts as free only if neither of them says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..schemas.messages.operations import StatsReply
from ..schemas.names import public_id
from ..schemas.records.gangs import MemberRecord
from ..schemas.records.workers import Heartbeat, LeaseRecord, Registration


class Cells(NamedTuple):
    """Neighbouring slots that have the same use and the same holder."""

    kind: str
    """`gang` and `lease`: held by the holder; `task`: a call runs without a lease; `reserved`: held for a moment, for
    example while a gang is being formed; `kept`: reserved for the gang at the head of the queue; `free`; `closed`:
    free, but the worker is draining; `lost`: the worker is not heard from."""
    slots: int
    holder: str = ""
    """Public id of the lease, or id of the gang."""
    running: int = 0
    """How many of them run a task now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSlots:
    """The slots of one worker at one revision.

    Invariants: `leased + gang + kept + free <= max(total, leased + gang + kept)`, and the slots of the cells add up to
    `total`, or more while a worker that was resized has more in use.
    """

    total: int
    running: int
    reserved: int
    leased: int
    """Slots of leases in the ledger."""
    gang: int
    """Slots of gangs in the ledger."""
    kept: int
    free: int
    lost: bool
    cells: tuple[Cells, ...]

    def to_row(self) -> dict[str, object]:
        return {
            "total": self.total,
            "running": self.running,
            "reserved": self.reserved,
            "leased": self.leased,
            "gang": self.gang,
            "kept": self.kept,
            "free": self.free,
            "lost": self.lost,
            "cells": [list(cells) for cells in self.cells],
        }


def state_of(registration: Registration, heartbeat: Heartbeat | None) -> str:
    """`serving`, `draining` or `lost`. A heartbeat of another process with the same id does not count."""
    if heartbeat is None or heartbeat.instance != registration.instance:
        return "lost"
    return "draining" if heartbeat.draining else registration.state


def slots_of(
    registration: Registration,
    heartbeat: Heartbeat | None,
    leases: Sequence[LeaseRecord],
    members: Sequence[MemberRecord],
    stats: StatsReply | None = None,
    kept: Mapping[str, int] | None = None,
) -> WorkerSlots:
    """
    Args:
        leases, members: those of this worker in the ledger, of any epoch.
        stats: the worker's recent answer, if there is one.
        kept: slots that the coordinator says it keeps here, by gang; used without `stats`.
    """
    state = state_of(registration, heartbeat)
    epoch = registration.epoch
    beat = heartbeat if heartbeat is not None and state != "lost" and heartbeat.epoch == epoch else None
    if stats is not None and stats.epoch != epoch:
        stats = None
    held = [lease for lease in leases if lease.epoch == epoch]
    granted = [member for member in members if member.epoch == epoch]
    leased = sum(lease.slots for lease in held)
    gang = sum(seat.slots for member in granted for seat in member.seats)
    total = beat.total if beat is not None else registration.slots
    running, reserved = (beat.running, beat.reserved) if beat is not None else (0, 0)
    if stats is not None:
        keeps = {share.gang: share.slots for share in stats.gangs if share.state == "kept"}
    else:
        keeps = dict(kept or {})
    # What the coordinator keeps is reserved at the worker, so there cannot be more of it than is reserved.
    room = max(0, running + reserved - leased - gang)
    keeps = {id: min(slots, room) for id, slots in keeps.items() if slots}
    kept_slots = min(room, sum(keeps.values()))
    others = max(0, running + reserved - leased - gang - kept_slots)
    tasks = min(others, running)
    used = leased + gang + kept_slots + others
    rest = max(0, total - used)
    lost = state == "lost"
    cells = _held_cells(held, granted, running - tasks, stats)
    if tasks:
        cells.append(Cells("task", tasks, "", tasks))
    if others - tasks:
        cells.append(Cells("reserved", others - tasks))
    cells += _kept_cells(keeps, kept_slots)
    if rest:
        cells.append(Cells("lost" if lost else "free" if state == "serving" else "closed", rest))
    return WorkerSlots(
        total=total,
        running=running,
        reserved=reserved,
        leased=leased,
        gang=gang,
        kept=kept_slots,
        free=rest if state == "serving" else 0,
        lost=lost,
        cells=tuple(cells),
    )


def _kept_cells(keeps: Mapping[str, int], most: int) -> list[Cells]:
    found = []
    for id, slots in sorted(keeps.items()):
        count = min(slots, most)
        most -= count
        if count:
            found.append(Cells("kept", count, id))
    return found


def _held_cells(
    leases: Sequence[LeaseRecord], members: Sequence[MemberRecord], running: int, stats: StatsReply | None
) -> list[Cells]:
    """Gangs, then leases, oldest first. `running`: how many of their slots run a task. The worker's statistics tell
    which; without them, leases for one task are taken to run first, since they are used at once."""
    busy: dict[str, int] = {}
    if stats is not None:
        for info in stats.leases:
            holder = info.gang or public_id(info.token)
            busy[holder] = busy.get(holder, 0) + info.running
    else:
        for lease in sorted(leases, key=lambda lease: (not lease.single_use, lease.granted_at, lease.token)):
            busy[public_id(lease.token)] = used = min(lease.slots, running)
            running -= used
        for member in sorted(members, key=lambda member: member.gang):
            slots = sum(seat.slots for seat in member.seats)
            busy[member.gang] = used = min(slots, running)
            running -= used
    found = []
    for member in sorted(members, key=lambda member: member.gang):
        slots = sum(seat.slots for seat in member.seats)
        found.append(Cells("gang", slots, member.gang, min(slots, busy.get(member.gang, 0))))
    for lease in sorted(leases, key=lambda lease: (lease.granted_at, lease.token)):
        id = public_id(lease.token)
        found.append(Cells("lease", lease.slots, id, min(lease.slots, busy.get(id, 0))))
    return found
