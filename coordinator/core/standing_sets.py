"""Standing sets: keeps k gangs of one shape running; scales, rolls and moves them as whole gangs.

Laws:

1. A formed gang is told to retire before it is torn down, so that callers go elsewhere first.
2. Rolling and moving replace one gang at a time. With surge 1 its replacement has been ready for `min_ready_s` before
   it retires, if there is room for both. While it waits for room it stands aside: it is never the head of the queue and
   reserves no slots. After `surge_wait_s` without room the old gang goes first, as with surge 0, and its replacement
   takes its place in the queue.
3. A gang is out of date when its set's template has changed, or when one of its workers drains. If only the template
   has changed, it goes first only if that makes room for its replacement and it is not the last one of several that
   still serves. A gang on a draining worker has to go anyway, and does so well before the drain's grace ends.
4. A roll whose new gangs fail `roll_failures` times, before one has been ready for `min_ready_s`, stops: the set keeps
   the shape that served before until it is declared again. Until a new shape has served, gangs of the previous shape
   restart when they fail.
5. A gang that ends by its own fault is replaced after a wait that doubles each time; one success resets the wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from ...schemas.messages.gangs import GangEventKind
from ...schemas.records.gangs import GangSetRecord, GangSetStatus, SetState, read_gang, template_of, write_gang
from ...schemas.text import count_of
from ..model.commits import CommitKind
from ..model.events import Cause
from ..model.gang import REPLACING, Failure, GangStep, ManagedGang, Move, move
from ..scheduling.placement import place
from .members import Teardown
from .state import SchedulerState, StandingSetState


class StandingSets:
    """Keeps standing sets as declared. A part of the core."""

    def __init__(self, scheduler_state: SchedulerState, teardown: Teardown) -> None:
        self._state = scheduler_state
        self._teardown = teardown

    def declare(self, name: str, record: GangSetRecord | None) -> None:
        """Take over a new declaration; None: the set was removed."""
        scheduler_state = self._state
        if record is not None:
            known = scheduler_state.sets.get(name)
            if known is not None:
                if known.record.template != record.template:
                    mine = [gang for gang in map(scheduler_state.gangs.__getitem__, known.gangs) if gang.serves]
                    if known.served or any(gang.spec == known.record.template for gang in mine):
                        known.previous = known.record.gang
                    known.served = False
                known.record = record
                known.failures, known.not_before = 0, 0.0
                known.short, known.wait_from = 0, None
                known.tries, known.trouble, known.stopped = 0, "", False
            else:
                found = {gang.id: None for gang in scheduler_state.gangs.values() if gang.gangset == name}
                scheduler_state.sets[name] = StandingSetState(record=record, gangs=found)
        elif name in scheduler_state.sets:
            known = scheduler_state.sets[name]
            known.record = known.record.model_copy(update={"gangs": 0})
        scheduler_state.sets_to_look_at[name] = None

    def remember(self, name: str, status: GangSetStatus) -> None:
        """The status of a set that an earlier leader wrote."""
        of_set = self._state.sets.get(name)
        if of_set is None:
            self._state.ledger.push_status(name)  # it is no longer declared
            return
        of_set.status = status
        current = read_gang(status.current)
        of_set.previous = read_gang(status.previous)
        if current is not None and template_of(current) == of_set.record.template:
            of_set.served, of_set.stopped = status.served, status.stopped
            # Those that are being repaired are found and counted again, unless the roll has stopped.
            of_set.tries = status.failures - (0 if status.stopped else status.repairing)
            of_set.trouble = status.last_failure
        elif status.served:
            of_set.previous = current

    def not_told(self, name: str) -> None:
        """Its status could not be written. Retry only when something happens to the set: nothing depends on the status,
        and we may lack the permission."""
        of_set = self._state.sets.get(name)
        if of_set is not None and not self._state.ledger.waits_status(name):
            of_set.status = None

    def status(self, name: str) -> GangSetStatus | None:
        """The status to write; None: the set is gone."""
        of_set = self._state.sets.get(name)
        if of_set is None or of_set.status is None:
            return None
        return of_set.status.model_copy(update={"at": self._state.wall})

    def look(self) -> None:
        """Reconcile the sets that have changed with their declaration."""
        scheduler_state = self._state
        while scheduler_state.sets_to_look_at:
            name = next(iter(scheduler_state.sets_to_look_at))
            del scheduler_state.sets_to_look_at[name]
            of_set = scheduler_state.sets.get(name)
            if of_set is not None:
                self._reconcile(name, of_set)

    def _reconcile(self, name: str, of_set: StandingSetState) -> None:
        scheduler_state, record = self._state, of_set.record
        live = [scheduler_state.gangs[gang] for gang in of_set.gangs if not _leaving(scheduler_state.gangs[gang])]
        if any(self._steady(gang, of_set) for gang in live if gang.spec == record.template):
            of_set.served, of_set.tries, of_set.trouble = True, 0, ""
        kept = (of_set.template, None if of_set.served else of_set.before)
        for gang in [gang for gang in live if not _serving(gang) and gang.spec not in kept]:
            # Serves nobody, and would restart in the old shape.
            self._teardown.end(gang, Failure(cause=Cause.REPLACED))
        live = [gang for gang in live if gang.id in of_set.gangs and not _leaving(gang)]
        stale = [gang for gang in live if self._out_of_date(gang, of_set)]
        fresh = [gang for gang in live if gang not in stale]
        if any(self._steady(gang, of_set) for gang in fresh):
            of_set.failures = 0
        fresh = self._shrink(fresh, record.gangs)
        self._lose_patience(name, of_set, stale, fresh)
        stale = self._retire_stale(of_set, stale, fresh)
        fresh += self._grow(name, of_set, stale, fresh)
        self._stand_aside(of_set, stale, fresh)
        self._wake(name, of_set)
        if record.gangs == 0 and not of_set.gangs:
            scheduler_state.agenda.cancel(("surge", name))
            scheduler_state.agenda.cancel(("ready", name))
            del scheduler_state.sets[name]
            scheduler_state.ledger.push_status(name)
            return
        status = self._describe(of_set)
        if of_set.status is None or status != of_set.status.model_copy(update={"at": 0.0}):
            of_set.status = status
            scheduler_state.ledger.push_status(name)

    def _steady(self, gang: ManagedGang, of_set: StandingSetState) -> bool:
        """Whether it has been ready for long enough."""
        return gang.serves and self._state.now >= gang.ready_at + of_set.record.min_ready_s

    def _wake(self, name: str, of_set: StandingSetState) -> None:
        """Check again when the next gang has been ready for long enough."""
        scheduler_state = self._state
        ready = [gang for gang in map(scheduler_state.gangs.__getitem__, of_set.gangs) if gang.serves]
        times = [gang.ready_at + of_set.record.min_ready_s for gang in ready if not self._steady(gang, of_set)]
        if times:
            scheduler_state.agenda.set(("ready", name), min(times))

    def _describe(self, of_set: StandingSetState) -> GangSetStatus:
        scheduler_state, record = self._state, of_set.record
        gangs = [scheduler_state.gangs[gang] for gang in of_set.gangs]
        mine = [gang for gang in gangs if gang.spec == record.template and not self._graces(gang)]
        serving = [gang for gang in gangs if gang.ready and gang.step in (GangStep.FORMED, GangStep.RETIRING)]
        ready = sum(gang in mine and gang.step is GangStep.FORMED for gang in serving)
        old = sum(gang not in mine or gang.step is not GangStep.FORMED for gang in serving)
        steady = ready == len(gangs) == record.gangs and (of_set.served or not gangs)
        state, reason = SetState.STEADY, ""
        if of_set.stopped or (not steady and of_set.tries >= record.roll_failures):
            state = SetState.FAILING
            what = "the roll was stopped and the previous shape stays, because the new gangs failed"
            reason = (
                f"{what if of_set.stopped else 'its gangs failed'} {count_of(of_set.tries, 'time')}: {of_set.trouble}"
            )
        elif not steady:
            state, reason = SetState.ROLLING, _waits_for(record, mine, ready, old, of_set.trouble)
        return GangSetStatus(
            state=state,
            reason=reason,
            gangs=record.gangs,
            formed=sum(gang.step is GangStep.FORMED for gang in mine),
            ready=ready,
            old=old,
            failures=of_set.tries,
            repairing=sum(gang.tried and gang.step in REPLACING for gang in gangs),
            last_failure=of_set.trouble,
            stopped=of_set.stopped,
            served=of_set.served,
            current=write_gang(record.gang),
            previous=None if of_set.previous is None else write_gang(of_set.previous),
        )

    def _shrink(self, fresh: list[ManagedGang], wanted: int) -> list[ManagedGang]:
        """Retire whole gangs: those that do not serve first, then the newest."""
        order = sorted(fresh, key=lambda gang: (gang.serves, _serving(gang), -gang.created_at, gang.id))
        for gang in order[: max(0, len(fresh) - wanted)]:
            self._retire(gang)
        gone = order[: max(0, len(fresh) - wanted)]
        return [gang for gang in fresh if gang not in gone]

    def _lose_patience(
        self, name: str, of_set: StandingSetState, stale: list[ManagedGang], fresh: list[ManagedGang]
    ) -> None:
        """If replacements have found no room for long enough, let the set be short of one gang to make room; of one
        more each time while gangs on draining workers are left, since those have to go in any case."""
        scheduler_state = self._state
        patience_s = self._patience_s(of_set, stale, fresh)
        if not stale or patience_s == math.inf:
            of_set.short = min(of_set.short, 1) if stale else 0
            of_set.wait_from = None
            scheduler_state.agenda.cancel(("surge", name))
            return
        if of_set.wait_from is None:
            of_set.wait_from = scheduler_state.now
        limit_s = patience_s if of_set.short == 0 else max(patience_s, _LOOK_AGAIN_S)
        if scheduler_state.now >= of_set.wait_from + limit_s:
            if of_set.short == 0 or any(self._graces(gang) for gang in stale):
                of_set.short += 1
            of_set.wait_from, limit_s = scheduler_state.now, max(patience_s, _LOOK_AGAIN_S)
        scheduler_state.agenda.set(("surge", name), of_set.wait_from + limit_s)

    def _patience_s(self, of_set: StandingSetState, stale: list[ManagedGang], fresh: list[ManagedGang]) -> float:
        """How long the old gangs wait for their replacements: longer if these have room and are starting, but only a
        small part of the grace of a draining worker, which needs the rest for the move itself."""
        grace_s = min((grace for gang in stale for grace in self._graces(gang) if grace is not None), default=math.inf)
        if any(gang.step in _WAITS_FOR_ROOM for gang in fresh):
            return min(of_set.record.surge_wait_s, grace_s / _PART_OF_GRACE)
        return math.inf if all(self._steady(gang, of_set) for gang in fresh) else grace_s / _PART_TO_START

    def _retire_stale(
        self, of_set: StandingSetState, stale: list[ManagedGang], fresh: list[ManagedGang]
    ) -> list[ManagedGang]:
        """Retire out-of-date gangs one by one, once their replacements have been ready for long enough; at once if
        there are too many gangs anyway."""
        scheduler_state, record = self._state, of_set.record
        steady = sum(self._steady(gang, of_set) for gang in fresh)
        wanted = max(0, record.gangs - steady)
        short = max(of_set.short, 1 - record.surge)
        remaining = list(stale)
        for gang in sorted(stale, key=lambda gang: (not self._graces(gang), gang.serves, gang.created_at, gang.id)):
            retiring = any(_leaving(scheduler_state.gangs[other]) for other in of_set.gangs)
            if len(remaining) <= max(0, wanted - short):
                break
            if retiring and len(remaining) + len(fresh) <= record.gangs + record.surge:
                break
            if len(remaining) <= wanted and record.surge and not self._makes_room(gang, of_set):
                continue
            if record.gangs > 1 and self._last_that_serves(gang, (*remaining, *fresh)):
                continue
            if len(remaining) <= wanted:
                of_set.places.append(gang.created_at)
            remaining.remove(gang)
            self._retire(gang)
        return remaining

    def _last_that_serves(self, gang: ManagedGang, live: Iterable[ManagedGang]) -> bool:
        """Whether an old gang that may stay is the only one of these that serves: the others, old or new, are waiting
        for room or starting."""
        return gang.serves and not self._graces(gang) and not any(other.serves for other in live if other is not gang)

    def _makes_room(self, gang: ManagedGang, of_set: StandingSetState) -> bool:
        """Whether a gang that has no room beside this one would fit in its place once plain tasks are done, or this one
        cannot stay in any case."""
        if self._graces(gang):
            return True
        freed = {worker: sum(seat.slots for seat in seats) for worker, seats in gang.seats_by_worker.items()}
        return place(of_set.template, self._state.inventory.claimable, changes=freed) is not None

    def _stand_aside(self, of_set: StandingSetState, stale: list[ManagedGang], fresh: list[ManagedGang]) -> None:
        """Replacements wait beside gangs that still serve, without blocking others. In their turn they take the place
        in the queue of the gang that retired."""
        scheduler_state = self._state
        waiting = sorted((gang for gang in fresh if gang.step is not GangStep.FORMED), key=lambda gang: gang.made)
        too_many = max(0, len(stale) + len(fresh) - of_set.record.gangs)
        due = len(waiting) - too_many
        for number, gang in enumerate(waiting):
            aside = number >= due
            if gang.aside and not aside:
                scheduler_state.set_place(gang, of_set.take_place(gang.created_at))
            if gang.aside is not aside:
                gang.aside = aside
                scheduler_state.look_for_room = True
        if not stale:
            of_set.places.clear()

    def _grow(
        self, name: str, of_set: StandingSetState, stale: list[ManagedGang], fresh: list[ManagedGang]
    ) -> list[ManagedGang]:
        scheduler_state, record = self._state, of_set.record
        missing = record.gangs - len(stale) - len(fresh)
        forming = not all(self._steady(gang, of_set) for gang in fresh)
        surge = record.surge and not of_set.short
        if missing <= 0 and stale and surge and not forming and len(fresh) < record.gangs:
            retiring = any(_leaving(scheduler_state.gangs[gang]) for gang in of_set.gangs)
            missing = 0 if retiring else 1
        if missing > 0 and scheduler_state.now < of_set.not_before:
            scheduler_state.agenda.set(("set", name), of_set.not_before)
            return []
        made: list[ManagedGang] = []
        for _ in range(missing):
            scheduler_state.made += 1
            gang = ManagedGang(
                id=f"{name}-{scheduler_state.term}-{scheduler_state.made}",
                spec=of_set.template,
                owner_id="",
                gangset=name,
                created_at=of_set.take_place(scheduler_state.wall),
                queued_at=scheduler_state.now,
                queued_wall=scheduler_state.wall,
                made=scheduler_state.made,
            )
            scheduler_state.add(gang)
            made.append(gang)
            scheduler_state.tell(GangEventKind.QUEUED, gang)
            scheduler_state.sets_to_look_at[name] = None  # its wait beside another gang begins
        return made

    def _out_of_date(self, gang: ManagedGang, of_set: StandingSetState) -> bool:
        if gang.spec != of_set.template:
            return True
        return bool(self._graces(gang))

    def _graces(self, gang: ManagedGang) -> list[float | None]:
        """The longest time that the drain of each of the gang's draining workers may take, where known."""
        workers = (self._state.inventory.workers.get(worker) for worker in gang.seats_by_worker)
        return [view.facts.drain_grace_s for view in workers if view is not None and view.draining]

    def _retire(self, gang: ManagedGang) -> None:
        if gang.step is GangStep.FORMED and not gang.starting:
            move(gang, Move.RETIRE)
            self._state.commit(CommitKind.RETIRE, gang)
        else:
            self._teardown.end(gang, Failure(cause=Cause.REPLACED))

    def retiring(self, gang: ManagedGang) -> None:
        """The ledger has its retirement: notify callers, and give them time to go elsewhere."""
        scheduler_state = self._state
        of_set = scheduler_state.sets.get(gang.gangset or "")
        scheduler_state.tell(GangEventKind.RETIRING, gang)
        scheduler_state.agenda.set(
            ("retire", gang.id), scheduler_state.now + (of_set.record.retire_s if of_set is not None else 0.0)
        )

    def retired(self, gang: ManagedGang) -> None:
        if gang.step is GangStep.RETIRING:
            self._teardown.close(gang, Failure(cause=Cause.REPLACED), ends=True)


_PART_OF_GRACE: Final = 5
"""Wait for room beside the old gang for at most one part in this many of a drain's grace."""
_PART_TO_START: Final = 2
"""Likewise for a replacement that is starting."""
_LOOK_AGAIN_S: Final = 1.0
_WAITS_FOR_ROOM = frozenset({GangStep.QUEUED, GangStep.HOLDING, GangStep.COMMITTING})


def _serving(gang: ManagedGang) -> bool:
    """Whether it serves callers, or soon will again."""
    ready = gang.step is GangStep.FORMED and not gang.starting
    return ready or gang.step in REPLACING or gang.step is GangStep.RETIRING


def _waits_for(record: GangSetRecord, mine: list[ManagedGang], ready: int, old: int, trouble: str) -> str:
    parts = [f"{ready} of {count_of(record.gangs, 'gang')} {'is' if record.gangs == 1 else 'are'} ready"]
    if old:
        parts.append(f"{old} old {'gang serves' if old == 1 else 'gangs serve'} meanwhile")
    waiting = min((gang for gang in mine if not gang.serves), key=lambda gang: (gang.made, gang.id), default=None)
    if waiting is not None:
        parts.append(f"{waiting.id} is {'starting' if waiting.step is GangStep.FORMED else waiting.state.value}")
    if trouble:
        parts.append(f"last failure: {trouble}")
    return "; ".join(parts)


def _leaving(gang: ManagedGang) -> bool:
    doomed = gang.doom is not None and gang.doom.cause is Cause.REPLACED
    return doomed or gang.step is GangStep.RETIRING or (gang.closing is not None and gang.closing.ends)
