"""What a gang waits for, said so that somebody can do something about it."""

from __future__ import annotations

from collections.abc import Mapping

from ...schemas.messages.gangs import GangObstacle, GangWhyReply
from ...schemas.names import WorkerId
from ...schemas.text import count_of
from ..model.gang import GangStep, ManagedGang
from ..scheduling.infeasibility import lacks
from ..scheduling.placement import place
from ..scheduling.queue import target_of
from .state import SchedulerState


def why(scheduler_state: SchedulerState, gang_id: str) -> GangWhyReply | None:
    """None: no such gang."""
    gang = scheduler_state.gangs.get(gang_id)
    if gang is None:
        ended = scheduler_state.ended.get(gang_id)
        return (
            None if ended is None else GangWhyReply(id=gang_id, step=GangStep.ENDED.value, lacks=(ended.reply.reason,))
        )
    head = scheduler_state.head if scheduler_state.head is not None and scheduler_state.head.gang == gang_id else None
    target: Mapping[WorkerId, int] = head.target.slots if head is not None else {}
    if not target and gang.step is GangStep.QUEUED:
        target = target_of(gang.spec, scheduler_state.inventory).slots
    return GangWhyReply(
        id=gang_id,
        step=gang.step.value,
        place=scheduler_state.queue.place_of(gang_id),
        lacks=tuple(_lacks(scheduler_state, gang)),
        target={str(worker): slots for worker, slots in target.items()},
        kept={str(worker): slots for worker, slots in head.kept.items()} if head is not None else {},
        obstacles=tuple(obstacle for worker in target for obstacle in _obstacles(scheduler_state, gang_id, worker)),
    )


def standing(scheduler_state: SchedulerState, gang: ManagedGang) -> list[str]:
    """What stands in the way of a gang that has no members yet, each a sentence; at least one."""
    found = _lacks(scheduler_state, gang) or ["its workers were just asked for their slots"]
    ahead = scheduler_state.queue.place_of(gang.id)
    if ahead:
        found.append(f"{count_of(ahead, 'gang')} ahead of it in the queue")
    return found


def _lacks(scheduler_state: SchedulerState, gang: ManagedGang) -> list[str]:
    spec = gang.spec.smallest
    match gang.step:
        case GangStep.QUEUED if gang.aside:
            missing = lacks(spec, scheduler_state.inventory.free)
            return [f"beside the gang of its set that it replaces: {lack.text}" for lack in missing]
        case GangStep.QUEUED:
            if place(spec, scheduler_state.inventory.total) is None:
                missing = lacks(spec, scheduler_state.inventory.total)
                return [f"{lack.text} (even if all were free)" for lack in missing]
            if place(spec, scheduler_state.inventory.free) is None:
                return [lack.text for lack in lacks(spec, scheduler_state.inventory.free)]
            if gang.not_before > scheduler_state.now:
                again_s = gang.not_before - scheduler_state.now
                return [f"tried and refused {count_of(gang.refusals, 'time')}; tries again in {again_s:.2f} s"]
            ahead = scheduler_state.head.gang if scheduler_state.head is not None else "?"
            return [f"there is room, but gang {ahead} is ahead and needs it"]
        case GangStep.HOLDING | GangStep.REPAIRING if gang.attempt is not None:
            silent = [str(worker) for worker in gang.attempt.wanted if worker not in gang.attempt.answers]
            return [f"waits for {', '.join(silent)} to answer"]
        case GangStep.REPAIRING:
            ranks = ", ".join(str(rank) for rank in gang.lost)
            return [f"no room for the lost rank {ranks} yet; otherwise restarts as a whole"]
        case GangStep.COMMITTING | GangStep.REJOINING | GangStep.CLOSING:
            return [f"waits for the ledger; {count_of(len(scheduler_state.ledger.line), 'commit')} in line"]
        case GangStep.STOPPING if gang.closing is not None:
            return [f"waits for {', '.join(map(str, gang.closing.waiting))} to stop ({gang.reason})"]
        case GangStep.BACKOFF:
            return [f"restarts soon ({gang.reason})"]
        case _:
            return []


def _obstacles(scheduler_state: SchedulerState, gang_id: str, worker: WorkerId) -> list[GangObstacle]:
    view = scheduler_state.inventory.workers.get(worker)
    if view is None:
        return []
    found: list[GangObstacle] = []
    for gang_id in scheduler_state.on.get(worker, {}):
        slots = sum(seat.slots for seat in scheduler_state.gangs[gang_id].seats_by_worker[worker])
        found.append(GangObstacle(pool=worker.pool, worker=worker.worker, holder=f"gang {gang_id}", slots=slots))
    head = scheduler_state.head
    kept = head.kept.get(worker, 0) if head is not None else 0
    if head is not None and kept and head.gang != gang_id:
        holder = f"gang {head.gang} (kept for it at the head of the queue)"
        found.append(GangObstacle(pool=worker.pool, worker=worker.worker, holder=holder, slots=kept))
    others = view.ongoing - view.granted - kept
    if others > 0:
        # Which leases these are the ledger knows; the shell puts them in place of this line.
        found.append(GangObstacle(pool=worker.pool, worker=worker.worker, holder="tasks", slots=others))
    return found
