"""From the queue to holds on workers: which gang is tried next, what the head of the queue waits for, and which slots
others may take meanwhile.

Laws:

1. A gang holds nothing while it waits: either all of its holds are accepted, or all are released. Two gangs cannot
   deadlock.
2. Repairs go first (their survivors hold slots), then the queue in its order, then back-fill behind a waiting head.
3. Slots are reserved for the head only, and released when it is no longer the head.
4. Beyond its smallest size a gang takes only what no other gang in the queue can use: nothing while a gang that cannot
   be placed waits for the same pools, otherwise what is left after the others are placed.
5. The head is the first gang that cannot be placed and has no predecessor that still serves: a replacement that waits
   for room beside the standing gang it replaces (`ManagedGang.aside`) takes free slots in its turn, and blocks nobody.
6. Nothing is tried for a gang that its tenant's quota holds back, nor for the tenant's gangs behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from ...schemas.messages.gangs import KeepRequest
from ...schemas.names import WorkerId
from ..model.commits import CommitKind
from ..model.effects import SendReserve
from ..model.events import Cause, HoldAnswered, HoldUnanswered, KeepAnswered
from ..model.gang import Failure, GangStep, ManagedGang, Move, move
from ..scheduling.placement import Placement, place, place_most, wanted_of
from ..scheduling.queue import QueueHead, QueueTarget, guard, lower_than, still_good, target_of, victims
from .members import MemberFailures
from .state import SchedulerState
from .tenants import borrowed, within


class GangScheduler:
    """Starts gangs from the queue. A part of the core."""

    def __init__(self, scheduler_state: SchedulerState, members: MemberFailures) -> None:
        self._state = scheduler_state
        self._members = members

    # -- who is next -------------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Start all gangs that can start. Called when there may be more room, or when a new gang waits."""
        scheduler_state = self._state
        scheduler_state.look_for_room = False
        if not (scheduler_state.queue or scheduler_state.repairs or scheduler_state.head):
            return  # nothing waits
        for gang_id in list(scheduler_state.repairs):
            self._try_repair(scheduler_state.gangs[gang_id])
        turns = scheduler_state.in_turn()
        held_back: set[str] = set()
        for gang_id in turns:
            gang = scheduler_state.gangs[gang_id]
            if self._held_back(gang, held_back):
                continue
            placement = self._place(gang)
            if placement is not None:
                self._start(gang, placement)
            elif not gang.aside:
                self._wait_at_head(gang)
                self._backfill(turns, held_back)
                return
        self._set_head(None)

    def _held_back(self, gang: ManagedGang, tenants: set[str], *, behind: ManagedGang | None = None) -> bool:
        """Whether it waits for its tenant's quota. `tenants`: those with a gang ahead of it that does; it may become
        one of them. `behind`: the head, whose part of the quota it leaves alone."""
        if not gang.tenant:
            return False
        if gang.tenant not in tenants and self._state.held_back(gang, behind=behind):
            tenants.add(gang.tenant)
        return gang.tenant in tenants

    def _place(self, gang: ManagedGang) -> Placement | None:
        """Place the first gang that has not started; slots reserved for it count as free."""
        scheduler_state = self._state
        if gang.not_before > scheduler_state.now:
            return None
        fit, gang.fit = gang.fit, None
        if fit is not None and fit.still is not None:
            return fit.still
        head = scheduler_state.head
        kept = head.kept if head is not None and head.gang == gang.id else {}
        return self._placed(gang, kept)

    def _placed(
        self, gang: ManagedGang, changes: Mapping[WorkerId, int], *, behind: ManagedGang | None = None
    ) -> Placement | None:
        """Place it with this many more or fewer slots than are free, and with as many members as others leave room
        for."""
        scheduler_state = self._state
        found = place(gang.spec.smallest, scheduler_state.inventory.free, changes=changes, exact=behind is None)
        if found is None or not gang.spec.elastic:
            return found
        left = self._left_for_more(gang, found, changes)
        if left is None:
            return found
        limits = scheduler_state.quota_of(gang.tenant, behind=behind)
        spec = gang.spec if limits is None else within(gang.spec, *limits)
        return place_most(spec, scheduler_state.inventory.free, changes=left) or found

    def _left_for_more(
        self, gang: ManagedGang, smallest: Placement, changes: Mapping[WorkerId, int]
    ) -> Counter[WorkerId] | None:
        """`changes`, less what the others in the queue need beside it at its smallest size. None: one of them waits for
        workers of the same pools and may need every slot that is left."""
        scheduler_state = self._state
        pools = gang.spec.pools
        left = Counter(changes)
        beside = Counter(changes)
        beside.subtract(smallest.slots_by_worker())
        for other_id in islice(scheduler_state.queue, scheduler_state.settings.backfill_depth):
            other = scheduler_state.gangs[other_id]
            if other is gang or pools.isdisjoint(other.spec.pools) or scheduler_state.held_back(other):
                continue
            found = place(other.spec.smallest, scheduler_state.inventory.free, changes=beside, exact=False)
            if found is not None:
                beside.subtract(found.slots_by_worker())
                left.subtract(found.slots_by_worker())
            elif not other.aside:
                return None
        return left

    def _start(self, gang: ManagedGang, placement: Placement) -> None:
        scheduler_state = self._state
        head = scheduler_state.head
        if head is not None and head.gang == gang.id:
            # Its holds use what was reserved on the same worker; the rest is returned.
            scheduler_state.head = None
            used = placement.by_worker()
            for worker, slots in head.kept.items():
                scheduler_state.inventory.occupy(worker, -slots)
            if head.keeping:
                self._keep(gang.id, {worker: 0 for worker in head.target.slots if worker not in used})
        scheduler_state.queue.discard(gang.id)
        scheduler_state.agenda.cancel(("retry", gang.id))
        scheduler_state.agenda.cancel(("starve", gang.id))
        move(gang, Move.PLACED)
        scheduler_state.send_holds(gang, placement)

    def _backfill(self, turns: Iterator[str], held_back: set[str]) -> None:
        scheduler_state = self._state
        assert scheduler_state.head is not None
        head = scheduler_state.gangs[scheduler_state.head.gang]
        changes = guard(scheduler_state.head.target.slots)
        for gang_id in islice(turns, scheduler_state.settings.backfill_depth):
            gang = scheduler_state.gangs[gang_id]
            if self._held_back(gang, held_back, behind=head) or gang.not_before > scheduler_state.now:
                continue
            placement = self._placed(gang, changes, behind=head)
            if placement is not None:
                self._start(gang, placement)

    # -- the head waits ----------------------------------------------------------------------------------------------

    def _wait_at_head(self, gang: ManagedGang) -> None:
        scheduler_state = self._state
        head = scheduler_state.head
        if head is None or head.gang != gang.id:
            head = QueueHead(gang=gang.id, target=target_of(gang.spec, scheduler_state.inventory))
            self._set_head(head)
        elif not self._still_leaving(head) and not still_good(gang.spec, head.target, scheduler_state.inventory):
            self._move_target(head, target_of(gang.spec, scheduler_state.inventory))
        if gang.spec.preempt:
            self._preempt(gang, head, lower_than(gang, self._formed()))
        starved_at = gang.queued_at + scheduler_state.settings.starve_after_s
        if scheduler_state.now < starved_at:
            scheduler_state.agenda.set(("starve", gang.id), starved_at)
            return
        if gang.tenant:
            others = borrowed(gang, self._formed(), scheduler_state.used_by, scheduler_state.settings.quotas.of)
            self._preempt(gang, head, others)
        if ("keep",) not in scheduler_state.agenda:
            self.renew_keeps()

    def _move_target(self, head: QueueHead, target: QueueTarget) -> None:
        if head.keeping:
            self._keep(head.gang, {worker: 0 for worker in head.target.slots if worker not in target.slots})
        head.target = target
        head.kept = {worker: slots for worker, slots in head.kept.items() if worker in target.slots}

    def _set_head(self, head: QueueHead | None) -> None:
        scheduler_state = self._state
        before, scheduler_state.head = scheduler_state.head, head
        if before is not None and before.keeping:
            scheduler_state.agenda.cancel(("keep",))
            self._keep(before.gang, dict.fromkeys(before.target.slots, 0))

    def renew_keeps(self) -> None:
        """Ask the workers of the head's target to reserve slots, and repeat that periodically."""
        scheduler_state = self._state
        head = scheduler_state.head
        waiting = scheduler_state.gangs.get(head.gang) if head is not None else None
        if head is None or waiting is None or not head.target.slots:
            return  # it has just ended: the next scheduling finds another head
        if scheduler_state.now < waiting.queued_at + scheduler_state.settings.starve_after_s:
            return
        head.keeping = True
        self._keep(head.gang, head.target.slots)
        scheduler_state.agenda.set(("keep",), scheduler_state.now + scheduler_state.settings.keep_renew_s)

    def _keep(self, gang: str, slots: Mapping[WorkerId, int]) -> None:
        scheduler_state = self._state
        for worker, count in slots.items():
            request = KeepRequest(gang=gang, slots=count, keep_s=scheduler_state.settings.keep_s)
            scheduler_state.out.append(SendReserve(worker=worker, request=request))

    def kept(self, event: KeepAnswered) -> None:
        scheduler_state = self._state
        if event.load is not None and scheduler_state.inventory.load(event.worker, event.load):
            scheduler_state.look_for_room = True
        head = scheduler_state.head
        if head is None or head.gang != event.gang or event.worker not in head.target.slots:
            return
        if event.kept > head.kept.get(event.worker, 0):
            scheduler_state.look_for_room = True
        head.kept[event.worker] = event.kept

    def _formed(self) -> list[ManagedGang]:
        return [other for other in self._state.gangs.values() if other.step is GangStep.FORMED]

    def _preempt(self, gang: ManagedGang, head: QueueHead, candidates: Sequence[ManagedGang]) -> None:
        """Tear down some of these gangs, the first ones first. The slots that they free are guarded, so that they
        cannot take them again."""
        scheduler_state = self._state
        if not candidates or gang.not_before > scheduler_state.now or self._still_leaving(head):
            return
        found = victims(gang, candidates, scheduler_state.inventory)
        if found is None:
            return
        chosen, target = found
        self._move_target(head, target)
        head.preempting = tuple(victim.id for victim in chosen)
        for victim in chosen:
            self._members.fail(victim, Failure(cause=Cause.PREEMPTED, detail=f"by gang {gang.id}"))

    def _still_leaving(self, head: QueueHead) -> bool:
        gangs = (self._state.gangs.get(gang) for gang in head.preempting)
        return any(gang is not None and gang.step in (GangStep.CLOSING, GangStep.STOPPING) for gang in gangs)

    # -- repairs -----------------------------------------------------------------------------------------------------

    def _try_repair(self, gang: ManagedGang) -> None:
        scheduler_state = self._state
        if gang.not_before > scheduler_state.now:
            return
        stay = [seat for seat in gang.seats if seat.rank not in gang.lost and seat.part == 0]
        places = (WorkerId(seat.pool, seat.worker) for seat in stay)
        nodes = frozenset(
            scheduler_state.inventory.free.place_of(w).node for w in places if w in scheduler_state.inventory.free
        )
        wanted = [item for item in wanted_of(gang.spec) if item.rank in gang.lost]
        placement = place(gang.spec, scheduler_state.inventory.free, only=wanted, taken_nodes=nodes)
        if placement is not None:
            del scheduler_state.repairs[gang.id]
            scheduler_state.send_holds(gang, placement)

    # -- answers to holds --------------------------------------------------------------------------------------------

    def answered(self, event: HoldAnswered) -> None:
        scheduler_state = self._state
        gang = scheduler_state.gangs.get(event.gang)
        attempt = gang.attempt if gang is not None else None
        if gang is None or attempt is None or attempt.number != event.attempt or event.worker not in attempt.wanted:
            if event.accepted and not (gang is not None and self._owns(gang, event)):
                scheduler_state.release_hold(event.worker, event.gang, event.generation, event.attempt)
            return
        if event.worker in attempt.answers:
            return  # the same again
        facts = scheduler_state.inventory.workers.get(event.worker)
        tokens = len(attempt.wanted[event.worker])
        if not event.accepted or facts is None or facts.facts.epoch > event.epoch or len(event.tokens) != tokens:
            self._members.refused(gang)
        else:
            scheduler_state.accept_hold(attempt, event)
        if event.load is not None:
            scheduler_state.inventory.load(event.worker, event.load)
        if attempt is gang.attempt and attempt.held:
            scheduler_state.agenda.cancel(("hold", gang.id))
            move(gang, Move.HELD)
            scheduler_state.commit(CommitKind.REJOIN if gang.seats else CommitKind.FORM, gang)

    def unanswered(self, event: HoldUnanswered) -> None:
        gang = self._state.gangs.get(event.gang)
        attempt = gang.attempt if gang is not None else None
        if gang is None or attempt is None or attempt.number != event.attempt:
            return
        if event.worker in attempt.wanted and event.worker not in attempt.answers:
            self._members.refused(gang)

    def timed_out(self, gang: ManagedGang) -> None:
        """A hold was not answered in time."""
        if gang.attempt is not None and not gang.attempt.held:
            self._members.refused(gang)

    @staticmethod
    def _owns(gang: ManagedGang, event: HoldAnswered) -> bool:
        """A repeated answer about a hold whose seats are already granted."""
        return any(seat.token in event.tokens for seat in gang.seats)
