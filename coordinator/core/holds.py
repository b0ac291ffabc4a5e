"""Tentative slots on workers: requested on all of them at once, and released on all at once."""

from __future__ import annotations

from ...schemas.messages.gangs import HoldRequest, SeatRequest, UnholdRequest
from ...schemas.names import WorkerId
from ...schemas.records.gangs import Seat
from ..model.effects import ReleaseHold, SendHold
from ..model.events import HoldAnswered
from ..model.gang import HoldAttempt, ManagedGang
from ..scheduling.placement import Assignment, Placement
from .state import SchedulerState


def send(scheduler_state: SchedulerState, gang: ManagedGang, placement: Placement) -> None:
    """Ask every worker of a placement to hold its seats."""
    assert gang.attempt is None
    settings = scheduler_state.settings
    attempt = gang.attempt = HoldAttempt(
        number=scheduler_state.next_attempt(),
        wanted=placement.by_worker(),
        hold_until=scheduler_state.now + settings.hold_s,
    )
    for worker, seats in attempt.wanted.items():
        scheduler_state.inventory.charge(worker, _slots(seats))
        scheduler_state.out.append(
            SendHold(
                worker=worker,
                request=HoldRequest(
                    gang=gang.id,
                    generation=gang.next_generation,
                    attempt=attempt.number,
                    seats=tuple(SeatRequest(rank=s.rank, part=s.part, slots=s.slots) for s in seats),
                    hold_s=settings.hold_s,
                ),
                traceparent=gang.spec.traceparent,
            )
        )
    scheduler_state.agenda.set(("hold", gang.id), scheduler_state.now + settings.hold_wait_s)


def accept(scheduler_state: SchedulerState, attempt: HoldAttempt, event: HoldAnswered) -> None:
    """Note a yes of a worker that is there, with a token for each seat. While the others have yet to answer, there is
    time to make its seats."""
    worker, wanted = event.worker, attempt.wanted[event.worker]
    facts = scheduler_state.inventory.workers[worker].facts
    scheduler_state.inventory.held(worker, _slots(wanted))
    attempt.answers[worker] = event
    attempt.fresh[worker] = [
        Seat(
            rank=item.rank,
            part=item.part,
            pool=worker.pool,
            worker=worker.worker,
            slots=item.slots,
            token=token,
            epoch=event.epoch,
            node=facts.node,
            zone=facts.zone,
            address=facts.address,
            labels=facts.labels,
        )
        for item, token in zip(wanted, event.tokens, strict=True)
    ]


def abandon(scheduler_state: SchedulerState, gang: ManagedGang) -> None:
    """Give up the attempt, if there is one: every worker is told, also those that said no or nothing, since what they
    said may have been lost. The worker forgets by itself if this is lost as well."""
    attempt, gang.attempt = gang.attempt, None
    scheduler_state.agenda.cancel(("hold", gang.id))
    if attempt is None:
        return
    for worker, seats in attempt.wanted.items():
        if worker in attempt.answers:
            scheduler_state.inventory.occupy(worker, -_slots(seats))
        else:
            scheduler_state.inventory.charge(worker, -_slots(seats))
        release(scheduler_state, worker, gang.id, gang.next_generation, attempt.number)
    scheduler_state.look_for_room = True


def release(scheduler_state: SchedulerState, worker: WorkerId, gang: str, generation: int, attempt: int) -> None:
    request = UnholdRequest(gang=gang, generation=generation, attempt=attempt)
    scheduler_state.out.append(ReleaseHold(worker=worker, request=request))


def _slots(seats: list[Assignment]) -> int:
    return sum(seat.slots for seat in seats)
