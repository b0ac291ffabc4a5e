"""The worker's part in gangs: tentative holds, seats of formed gangs, teardown. Decisions only: no await and no clock.

All slots come from the one limiter, and seats are leases of the one table, so the laws of worker.slots.admission_core
on capacity and balance (L1, L2, L3, L12) hold here by construction. In addition:

- **No member before the commit (L7).** A held seat's token is not in the lease table: nothing starts on it until
  `form`. A hold ends by `form`, by `unhold`, by `teardown`, by a new epoch, or because the ledger was read *after* the
  registration was rewritten (which voids every commit in flight); never by time alone.
- **Once (L8).** Generations that were torn down and attempts that were given up leave marks: late messages for them are
  refused.
- **All seats of a gang end together.** Nobody renews or releases a seat by its token.
- **Only the owner uses them.** Coordinator, ledger and other workers name a seat by its public id, which admits
  nothing. Only the seats of a standing gang, which has no owner, are used by that id, by any router.
- **Stopped is stopped.** A teardown is complete when the code on each of its seats and its hooks have ended; the slots
  of tasks that cannot be stopped stay counted. Hooks have a limit, and are then left behind.
- **No leak (L4).** If a member gets no ping for its gang's time to live, its gang is looked up in the ledger. It ends
  when the ledger says so, or when it got no ping and could not read the ledger for ALONE_TTLS times as long.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ...runtime.timers import NEVER
from ...schemas.messages.gangs import FormRequest, HoldRequest
from ...schemas.names import public_id
from ...schemas.records.gangs import Seat
from .lease_table import GrantedLease, LeaseTable, LeaseTransition, Refusal
from .limiter import SlotLimiter

ALONE_TTLS: Final = 2.0
"""A member that got no ping for this many times its gang's time to live, and could not read the ledger either, is cut
off and stops by itself."""
FIRST_CANCEL_S: Final = 0.05
"""The shortest time between two cancellations of the same code, even without a grace time. Code that has not seen the
first one when the second one comes sees only one: it would catch that, and run on for good."""


@dataclass(slots=True, kw_only=True, eq=False)
class LocalSeat:
    """One part of one rank of a gang, on this worker."""

    rank: int
    part: int
    lease: GrantedLease
    """While the seat is only held, the lease is not in the table: nothing can start on it (L7)."""


@dataclass(slots=True, kw_only=True, eq=False)
class TentativeHold:
    """Slots held tentatively, for a commit that may or may not follow."""

    gang: str
    generation: int
    attempt: int
    seats: tuple[LocalSeat, ...]
    due_at: float
    """When to look up whether the commit came."""
    due: bool = False
    """That time has come. The hold remains until the ledger has been read."""
    reg_revision: int = 0
    """As answered; a repeated request gets the same, never a newer one: the commit must not survive `due`."""
    port: int | None = None

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(seat.lease.token for seat in self.seats)

    @property
    def ids(self) -> set[str]:
        return {seat.lease.id for seat in self.seats}


@dataclass(slots=True, kw_only=True, eq=False)
class LocalMember:
    """The seats of one generation of a gang on this worker."""

    gang: str
    form: FormRequest
    seats: dict[str, LocalSeat]
    """By public id, never empty. While not `over`, each has its lease in the table."""
    hold: TentativeHold | None = None
    """The hold that its newest seats came from."""
    proven_at: float
    """When the gang was last known to exist: formed, named in a ping, or read in the ledger."""
    look_at: float
    """When to read the ledger; NEVER while that is in progress."""
    over: bool = False
    """The worker's epoch ended, and its leases with it; running tasks continue until the gang is torn down."""

    @property
    def generation(self) -> int:
        return self.form.generation

    @property
    def ranks(self) -> list[int]:
        return sorted({seat.rank for seat in self.seats.values() if seat.part == 0}) or [
            min(seat.rank for seat in self.seats.values())
        ]

    @property
    def alone_at(self) -> float:
        """When it stops by itself if it gets no ping and cannot read the ledger until then."""
        return self.proven_at + ALONE_TTLS * self.form.ttl_s

    def __repr__(self) -> str:
        return (
            f"<LocalMember {self.gang} generation={self.generation} ranks={self.ranks}{' over' if self.over else ''}>"
        )


@dataclass(slots=True, kw_only=True, eq=False)
class LeavingMember:
    """Seats taken from a gang, or all of them: their leases have ended, and their tasks are being stopped."""

    gang: str
    generation: int
    seats: list[LocalSeat]
    form: FormRequest
    whole: bool
    """Nothing of this generation stays here."""
    reason: str
    rank: int | None
    grace_at: float
    """When to cancel again what still runs; NEVER after that."""
    hooks: int = 0
    """Hooks that still run; while there are any, the seats' idle slots are not free."""

    @property
    def stopped(self) -> bool:
        return self.hooks == 0 and all(seat.lease.busy == 0 for seat in self.seats)


@dataclass(slots=True)
class EndedGang:
    """The ended generations and attempts of one gang."""

    at: float = 0.0
    generation: int = 0
    """Newest generation torn down here; all before it are over too."""
    attempt: int = -1
    """Newest attempt given up or refused; all before it are over too."""
    refusal: Refusal = Refusal.EXPIRED
    """The answer to that attempt."""


@dataclass(slots=True)
class EndedGangs:
    """Marks of ended generations and attempts, so that late messages start nothing. Limited by age and count."""

    keep_s: float
    keep: int
    _by_gang: OrderedDict[str, EndedGang] = field(default_factory=OrderedDict)
    """Least recently marked first."""

    def get(self, gang: str) -> EndedGang | None:
        return self._by_gang.get(gang)

    def over(self, gang: str, generation: int, now: float) -> None:
        """That generation was torn down."""
        past = self._mark(gang, now)
        past.generation = max(past.generation, generation)

    def given_up(self, gang: str, attempt: int, refusal: Refusal, now: float) -> None:
        """That attempt holds nothing and never will."""
        past = self._mark(gang, now)
        if attempt > past.attempt:
            past.attempt, past.refusal = attempt, refusal

    def sweep(self, now: float) -> None:
        while self._by_gang and next(iter(self._by_gang.values())).at + self.keep_s <= now:
            self._by_gang.popitem(last=False)

    def _mark(self, gang: str, now: float) -> EndedGang:
        past = self._by_gang.setdefault(gang, EndedGang())
        past.at = now
        self._by_gang.move_to_end(gang)
        while len(self._by_gang) > self.keep:
            self._by_gang.popitem(last=False)
        return past

    def __len__(self) -> int:
        return len(self._by_gang)


@dataclass(slots=True, eq=False)
class SlotReservation:
    """Slots reserved for one gang."""

    wanted: int = 0
    has: int = 0
    until: float = NEVER


class SlotReservations:
    """Slots reserved, as they become free, for the gangs at the head of the queue, so that these do not starve under
    load. Free slots go to them first, oldest first.

    Invariant: a reservation has what it wants, or no slot is free.
    """

    __slots__ = ("_limiter", "_paused", "by_gang")

    def __init__(self, limiter: SlotLimiter) -> None:
        self._limiter = limiter
        self._paused = False
        """Slots move from a reservation to a hold: nobody may take them in between."""
        self.by_gang: dict[str, SlotReservation] = {}
        """Oldest first."""

    def __len__(self) -> int:
        return len(self.by_gang)

    @property
    def slots(self) -> int:
        """Slots reserved now, for all gangs."""
        return sum(keep.has for keep in self.by_gang.values())

    def has(self, gang: str) -> int:
        """Slots reserved now for this gang."""
        keep = self.by_gang.get(gang)
        return keep.has if keep is not None else 0

    def ask(self, gang: str, slots: int, keep_s: float, now: float) -> int:
        """Reserve up to `slots` for `keep_s` from now, in place of any earlier reservation. Returns how many it has."""
        self.lapse(now)
        if slots == 0:
            self._give_back(gang)
            return 0
        keep = self.by_gang.setdefault(gang, SlotReservation())
        self._limiter.on_free = self._top_up
        keep.wanted, keep.until = slots, now + keep_s
        surplus = keep.has - slots
        if surplus > 0:
            rest = object()
            keep.has -= self._limiter.move(keep, rest, surplus)
            self._limiter.release(rest)
        self._top_up()
        return keep.has

    @contextmanager
    def spent(self, gang: str) -> Iterator[None]:
        """End this gang's reservation; only the code inside the `with` block can take its slots."""
        self._paused = True
        try:
            self._give_back(gang)
            yield
        finally:
            self._paused = False
            self._top_up()

    def lapse(self, now: float) -> None:
        """Give back reservations that were not renewed in time."""
        for gang in [gang for gang, keep in self.by_gang.items() if keep.until <= now]:
            self._give_back(gang)

    def clear(self) -> None:
        """Give back all reservations."""
        self._paused = True
        for gang in list(self.by_gang):
            self._give_back(gang)
        self._paused = False

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        for keep in self.by_gang.values():
            assert 0 <= keep.has <= keep.wanted, keep
            assert self._limiter.held(keep)[0] == keep.has, keep
            assert keep.has == keep.wanted or self._limiter.free == 0, "free slots were not set aside"

    def _give_back(self, gang: str) -> None:
        keep = self.by_gang.pop(gang, None)
        if not self.by_gang:
            self._limiter.on_free = None  # otherwise every task calls it for nothing
        if keep is not None:
            self._limiter.release(keep)

    def _top_up(self) -> None:
        if self._paused:
            return
        for keep in self.by_gang.values():
            slots = min(keep.wanted - keep.has, self._limiter.free)
            if slots > 0:
                fresh = object()
                self._limiter.reserve_nowait(fresh, slots)
                keep.has += self._limiter.move(fresh, keep)


class FormedGang(NamedTuple):
    """The outcome of a `form`."""

    member: LocalMember
    started: list[LocalSeat]
    """Seats that start now; empty if the request is a repeat."""
    leaving: LeavingMember | None
    """Seats of the previous generation that are no longer ours (`restart_member`)."""
    new: bool
    """False: the request is a repeat."""


class WorkerGangCore:
    """Holds, members and leaving members of one worker. A part of AdmissionCore, which creates it."""

    __slots__ = ("_cut_at", "_leases", "_limiter", "_past", "draining", "holds", "keeps", "leaving",
                 "lingers", "members", "present", "voided")  # fmt: skip

    def __init__(self, limiter: SlotLimiter, leases: LeaseTable, *, keep_s: float, keep: int) -> None:
        self._limiter = limiter
        self._leases = leases
        self._past = EndedGangs(keep_s, keep)
        self._cut_at = NEVER
        self.holds: dict[tuple[str, int], TentativeHold] = {}
        """By gang and generation: the newest attempt of each."""
        self.members: dict[str, LocalMember] = {}
        """By gang: the newest generation formed here."""
        self.leaving: list[LeavingMember] = []
        self.keeps = SlotReservations(limiter)
        self.voided: list[LocalMember] = []
        """Members ended by a new epoch, to be reported; see `take_voided`."""
        self.present = (self.holds, self.members, self.leaving, self.keeps.by_gang, self.voided)
        """`any(present)`: whether there is anything of a gang."""
        self.draining = False
        self.lingers = False
        """Whether hooks run at the end of seats, whose idle slots are free only afterwards."""

    def __repr__(self) -> str:
        return f"<WorkerGangCore {len(self.holds)} holds, {len(self.members)} members, {len(self.leaving)} leaving>"

    # -- what can be seen -----------------------------------------------------------------------------------------

    @property
    def holding(self) -> bool:
        """Whether anything is held that is neither a lease nor a task."""
        return bool(self.holds or self.leaving)

    @property
    def reserved(self) -> int:
        """Slots held by anything but leases of the table."""
        held = self._limiter.held
        return (
            sum(held(seat.lease)[0] for hold in self.holds.values() for seat in hold.seats)
            + self.keeps.slots
            + sum(held(leaving)[0] for leaving in self.leaving)
        )

    def reserved_by(self, leaving: LeavingMember) -> int:
        """Idle slots that wait for the hooks of ended seats."""
        return self._limiter.held(leaving)[0]

    @property
    def borrowers(self) -> int:
        return sum(len(hold.seats) for hold in self.holds.values()) + len(self.keeps) + len(self.leaving)

    def member_of(self, lease: GrantedLease) -> LocalMember | None:
        """The member whose seat this is, while the gang exists here."""
        member = self.members.get(lease.gang) if lease.gang is not None else None
        return member if member is not None and lease.id in member.seats else None

    def holds_token(self, token: str) -> bool:
        """Whether this is the token or the public id of a seat that is held but not formed yet."""
        return any(public_id(token) in hold.ids for hold in self.holds.values())

    def next_at(self) -> float | None:
        """When `take_due` must be called next."""
        times = [hold.due_at for hold in self.holds.values() if not hold.due]
        times += [keep.until for keep in self.keeps.by_gang.values()]
        times += [member.look_at for member in self.members.values()]
        times += [leaving.grace_at for leaving in self.leaving]
        soonest = min(times, default=NEVER)
        return None if soonest == NEVER else soonest

    @property
    def _room(self) -> int:
        """Free slots; below 0 after a downward resize until the slots in use fit."""
        limiter = self._limiter
        return limiter.total - limiter.reserved - limiter.running

    # -- before the commit ----------------------------------------------------------------------------------------

    def hold(
        self, request: HoldRequest, tokens: Sequence[str], *, ttl_s: float, most: int, now: float
    ) -> TentativeHold | Refusal:
        """Take the slots of all seats or of none. A repeated attempt gets the same answer.

        Args:
            tokens: a new one for each seat, used if slots are held.
            ttl_s: shown for the seats' leases until the gang's own is known.
            most: the most slots that this worker can ever grant at once.
        """
        known = self._known(request)
        if known is not None:
            return known
        self.keeps.lapse(now)
        total = sum(seat.slots for seat in request.seats)
        refusal = None
        if self.draining:
            refusal = Refusal.DRAINING
        elif total > most:
            refusal = Refusal.TOO_LARGE
        elif total > self._room + self.keeps.has(request.gang):
            refusal = Refusal.FULL
        if refusal is not None:
            self._past.given_up(request.gang, request.attempt, refusal, now)
            return refusal
        hold = TentativeHold(
            gang=request.gang,
            generation=request.generation,
            attempt=request.attempt,
            due_at=now + request.hold_s,
            seats=tuple(
                LocalSeat(rank=seat.rank, part=seat.part, lease=_lease(token, request.gang, seat.slots, ttl_s, now))
                for seat, token in zip(request.seats, tokens, strict=True)
            ),
        )
        with self.keeps.spent(request.gang):
            for seat in hold.seats:
                taken = self._limiter.reserve_nowait(seat.lease, seat.lease.slots)
                assert taken, "counted before"
        self.holds[hold.gang, hold.generation] = hold
        return hold

    def _known(self, request: HoldRequest) -> TentativeHold | Refusal | None:
        """The answer to a request that takes no slots; None: it is new."""
        hold = self.holds.get((request.gang, request.generation))
        member = self.members.get(request.gang)
        past = self._past.get(request.gang)
        if hold is not None and hold.attempt == request.attempt:
            return hold
        if member is not None and member.generation >= request.generation:
            came = member.hold
            return came if came is not None and came.attempt == request.attempt else Refusal.EXPIRED
        if past is not None and past.generation >= request.generation:
            return Refusal.EXPIRED
        if past is not None and past.attempt >= request.attempt:
            return past.refusal if past.attempt == request.attempt else Refusal.EXPIRED
        if hold is not None:
            if hold.attempt > request.attempt:
                return Refusal.EXPIRED
            # There is only one attempt at a time, so nothing can be committed for the older one now.
            self._drop(hold)
        return None

    def unhold(self, gang: str, generation: int, attempt: int, now: float) -> bool:
        """Give up an attempt, even one that has not arrived yet. A formed gang is not affected. True: slots were
        freed."""
        self._past.given_up(gang, attempt, Refusal.EXPIRED, now)
        hold = self.holds.get((gang, generation))
        if hold is None or hold.attempt > attempt:
            return False
        self._drop(hold)
        return True

    def free(self, hold: TentativeHold, now: float) -> None:
        """The ledger was read after the registration was rewritten: there was no commit for this hold."""
        if self.holds.get((hold.gang, hold.generation)) is hold:
            self._past.given_up(hold.gang, hold.attempt, Refusal.EXPIRED, now)
            self._drop(hold)

    def _drop(self, hold: TentativeHold) -> None:
        del self.holds[hold.gang, hold.generation]
        for seat in hold.seats:
            self._limiter.release(seat.lease)

    def keep(self, gang: str, slots: int, keep_s: float, now: float) -> int:
        """Reserve slots for a gang as they become free, before anybody else gets them. Returns how many it has."""
        return self.keeps.ask(gang, 0 if self.draining else slots, keep_s, now)

    # -- members --------------------------------------------------------------------------------------------------

    def form(self, request: FormRequest, ours: Sequence[Seat], *, epoch: int, now: float) -> FormedGang | str:
        """The commit is in the ledger: of the seats `ours`, start the held ones and continue the others. Text: why not.

        Idempotent for one generation. Other seats of the gang here are leaving.
        """
        member = self.members.get(request.gang)
        refusal = self._not_formed(request, ours, member, epoch)
        if refusal is not None:
            return refusal
        if member is not None and member.generation == request.generation:
            member.proven_at = now
            member.look_at = now + member.form.ttl_s
            return FormedGang(member, [], None, False)
        hold = self.holds.get((request.gang, request.generation))
        held = {seat.lease.id: seat for seat in hold.seats} if hold is not None else {}
        before = dict(member.seats) if member is not None else {}
        seats: dict[str, LocalSeat] = {}
        started: list[LocalSeat] = []
        for seat in ours:
            id = public_id(seat.token)  # earlier versions write the token itself
            here = before.pop(id, None)
            if here is None:
                here = held.pop(id)
                started.append(here)
                if request.open:
                    here.lease.token = id
            here.lease.fence, here.lease.ttl_s = request.fence, request.ttl_s
            seats[id] = here
        if hold is not None:
            del self.holds[request.gang, request.generation]
            for spare in held.values():
                self._limiter.release(spare.lease)
        for here in started:
            self._leases.seat(here.lease, self._cut_at)
        leaving = None
        if member is not None and before:
            leaving = self._leave(
                member, list(before.values()), "it moved to another worker", None, 0.0, now, whole=False
            )
        member = LocalMember(
            gang=request.gang,
            form=request,
            seats=seats,
            hold=hold if started else member.hold if member is not None else None,
            proven_at=now,
            look_at=now + request.ttl_s,
        )
        self.members[request.gang] = member
        return FormedGang(member, started, leaving, True)

    def _not_formed(
        self, request: FormRequest, ours: Sequence[Seat], member: LocalMember | None, epoch: int
    ) -> str | None:
        past = self._past.get(request.gang)
        hold = self.holds.get((request.gang, request.generation))
        if not ours:
            return "it names no seat of this worker"
        if past is not None and past.generation >= request.generation:
            return f"generation {request.generation} was torn down here"
        if member is not None and member.generation > request.generation:
            return f"generation {member.generation} is formed here"
        if member is not None and member.generation == request.generation:
            return "the worker has a new epoch" if member.over else None
        if any(seat.epoch != epoch for seat in ours):
            return f"the worker has a new epoch, {epoch}"
        known = hold.ids if hold is not None else set()
        if member is not None and not member.over:
            known |= member.seats.keys()
        lacks = [seat.rank for seat in ours if public_id(seat.token) not in known]
        return f"rank {lacks[0]} is not held here (any more)" if lacks else None

    def ping(self, gangs: Mapping[str, int], now: float) -> tuple[dict[str, int], list[LocalMember]]:
        """Renew. Returns the named gangs that are neither formed nor held here, and the members that were not named."""
        missing: dict[str, int] = {}
        for gang, generation in gangs.items():
            member = self.members.get(gang)
            if member is not None and member.generation == generation and not member.over:
                member.proven_at = now
                if member.look_at != NEVER:
                    member.look_at = now + member.form.ttl_s
            elif (gang, generation) not in self.holds:
                missing[gang] = generation
        return missing, [member for gang, member in self.members.items() if gang not in gangs]

    def proven(self, member: LocalMember, now: float) -> None:
        """The ledger has the gang as it is here."""
        member.proven_at = now
        member.look_at = now + member.form.ttl_s

    def look_again(self, member: LocalMember, at: float) -> None:
        """Read the ledger again at this time."""
        member.look_at = at

    # -- the end of members ---------------------------------------------------------------------------------------

    def teardown(
        self,
        gang: str,
        generation: int,
        *,
        reason: str,
        rank: int | None,
        grace_s: float,
        only: Iterable[str] | None,
        now: float,
    ) -> list[LeavingMember]:
        """End a generation and all before it, or only these seats (public ids, or tokens). Nothing newer is affected.

        Returns all that must stop before this is complete, including what an earlier teardown began.
        """
        if only is not None:
            self._end_some(gang, generation, set(map(public_id, only)), reason, rank, grace_s, now)
        else:
            self._past.over(gang, generation, now)
            for key in [key for key in self.holds if key[0] == gang and key[1] <= generation]:
                self._drop(self.holds[key])
            member = self.members.get(gang)
            if member is not None and member.generation <= generation:
                self._leave(member, list(member.seats.values()), reason, rank, grace_s, now, whole=True)
        return [leaving for leaving in self.leaving if leaving.gang == gang and leaving.generation <= generation]

    def stop(self, member: LocalMember, reason: str, grace_s: float, now: float) -> LeavingMember:
        """End a whole member on our own initiative."""
        self._past.over(member.gang, member.generation, now)
        return self._leave(member, list(member.seats.values()), reason, None, grace_s, now, whole=True)

    def _end_some(
        self, gang: str, generation: int, ids: set[str], reason: str, rank: int | None, grace_s: float, now: float
    ) -> None:
        hold = self.holds.get((gang, generation))
        if hold is not None and ids & hold.ids:
            for seat in hold.seats:
                if seat.lease.id in ids:
                    self._limiter.release(seat.lease)
            hold.seats = tuple(seat for seat in hold.seats if seat.lease.id not in ids)
            if not hold.seats:
                del self.holds[gang, generation]
        member = self.members.get(gang)
        if member is None or member.generation > generation:
            return
        lost = [seat for id, seat in member.seats.items() if id in ids]
        if lost:
            self._leave(member, lost, reason, rank, grace_s, now, whole=len(lost) == len(member.seats))

    def _leave(
        self,
        member: LocalMember,
        seats: list[LocalSeat],
        reason: str,
        rank: int | None,
        grace_s: float,
        now: float,
        *,
        whole: bool,
    ) -> LeavingMember:
        leaving = LeavingMember(
            gang=member.gang,
            generation=member.generation,
            seats=seats,
            form=member.form,
            whole=whole,
            reason=reason,
            rank=rank,
            grace_at=now + max(grace_s, FIRST_CANCEL_S),
        )
        if whole:
            del self.members[member.gang]
        else:
            for seat in seats:
                member.seats.pop(seat.lease.id, None)
        # Added before its leases end, since their slots may be requested at once.
        self.leaving.append(leaving)
        for seat in seats:
            if seat.lease.ended is None:
                self._leases.end(seat.lease, LeaseTransition.TEARDOWN, now, heir=leaving if self.lingers else None)
        return leaving

    def take_stopped(self) -> list[LeavingMember]:
        """Take the teardowns that are now complete; their last slots are free."""
        done = [leaving for leaving in self.leaving if leaving.stopped]
        for leaving in done:
            self.leaving.remove(leaving)
            self._limiter.release(leaving)
        return done

    def take_cut(self, now: float) -> list[LeavingMember]:
        """Stop the members whose seats ended with a drain's grace time."""
        cut = [
            member
            for member in self.members.values()
            if not member.over and any(seat.lease.ended is not None for seat in member.seats.values())
        ]
        return [self.stop(member, "the grace time of the worker's drain is over", 0.0, now) for member in cut]

    def take_voided(self) -> list[LocalMember]:
        """Members ended by a new epoch since the last call."""
        voided = self.voided.copy()
        self.voided.clear()
        return voided

    # -- time -----------------------------------------------------------------------------------------------------

    def take_due(self, now: float) -> tuple[list[TentativeHold], list[LocalMember], list[LeavingMember]]:
        """What is due: holds and members to look up in the ledger, and leaving members to cancel again. Each is
        returned once."""
        self.keeps.lapse(now)
        holds = [hold for hold in self.holds.values() if not hold.due and hold.due_at <= now]
        for hold in holds:
            hold.due = True
        members = [member for member in self.members.values() if member.look_at <= now]
        for member in members:
            member.look_at = NEVER
        hard = [leaving for leaving in self.leaving if leaving.grace_at <= now]
        for leaving in hard:
            leaving.grace_at = NEVER
        return holds, members, hard

    def drain(self, cut_at: float, now: float) -> None:
        """Hold nothing new. Existing holds are looked up now: the registration is rewritten anyway. Members continue
        until `cut_at`."""
        self.draining = True
        self._cut_at = cut_at
        self.keeps.clear()
        for hold in self.holds.values():
            hold.due_at = min(hold.due_at, now)

    def forsake(self, now: float) -> list[TentativeHold]:
        """The registration is gone, so every commit conditioned on it is void: no hold is needed."""
        holds = list(self.holds.values())
        for hold in holds:
            self.free(hold, now)
        return holds

    def new_epoch(self, now: float) -> None:
        """Every hold and every seat belongs to an earlier epoch."""
        for hold in list(self.holds.values()):
            self._past.given_up(hold.gang, hold.attempt, Refusal.EXPIRED, now)
            self._drop(hold)
        self.keeps.clear()
        for member in self.members.values():
            if not member.over:
                member.over = True
                self.voided.append(member)

    def sweep(self, now: float) -> None:
        """Forget old marks."""
        self._past.sweep(now)

    # -- for tests ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        living = self._leases.living
        seated: set[str] = set()
        for key, hold in self.holds.items():
            assert key == (hold.gang, hold.generation) and hold.seats, hold
            for seat in hold.seats:
                assert seat.lease.token not in living, "a held seat can be used"
                assert self._limiter.held(seat.lease) == (seat.lease.slots, 0), seat
        for gang, member in self.members.items():
            assert gang == member.gang and member.seats, member
            for id, seat in member.seats.items():
                token = seat.lease.token
                assert id == seat.lease.id and seat.lease.gang == gang, seat
                assert token != id or member.form.open, "a seat of an owner's gang can be used by its public id"
                seated.add(token)
                if not member.over and seat.lease.ended is None:
                    assert living[token] is seat.lease, "a seat cannot be used"
        assert {token for token, lease in living.items() if lease.gang is not None} <= seated, "a seat without a gang"
        for leaving in self.leaving:
            assert all(seat.lease.ended is not None for seat in leaving.seats), leaving
        self.keeps.check()


def _lease(token: str, gang: str, slots: int, ttl_s: float, now: float) -> GrantedLease:
    owner = f"gang {gang}"
    return GrantedLease(
        token, slots=slots, ttl_s=ttl_s, claim_s=ttl_s, single_use=False, owner=owner, fence=0, now=now, gang=gang
    )
