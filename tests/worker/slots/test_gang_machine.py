"""Hypothesis drives a core with gang traffic and plain traffic together; `check()` runs after every rule.

The model knows what the laws say: which generations were torn down, which attempts were given up, which seats may be
used, and how many slots are spoken for. It keeps no books of its own about the limiter: it adds up what is promised.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from gangline.runtime.timers import NEVER
from gangline.schemas.messages.gangs import FormRequest, HoldRequest, SeatRequest
from gangline.schemas.records.gangs import Seat
from gangline.worker.slots.admission_core import AdmissionCore, CoreSettings
from gangline.worker.slots.gang_core import FormedGang, LocalSeat, TentativeHold
from gangline.worker.slots.lease_table import GrantedLease, TaskRecord

from ...scale import repetitions

GANGS = st.sampled_from(["a", "b", "c"])
SELDOM = st.integers(0, 30)
"""7 does it: what ends everything must not happen in every run."""
AHEAD = st.sampled_from([1, 1, 1, 2, 0])
BACK = st.sampled_from([0, 0, 0, 0, 1, 2])
SLOTS = st.lists(st.integers(1, 2), min_size=1, max_size=2)


class GangMachine(RuleBasedStateMachine):
    holds = Bundle("holds")
    seats = Bundle("seats")
    records = Bundle("records")

    @initialize(total=st.integers(3, 8), lingers=st.booleans())
    def begin(self, total: int, lingers: bool) -> None:
        self.core = AdmissionCore(total, 1, CoreSettings(keep_s=1e9))
        self.core.gangs.lingers = lingers
        self.gangs = self.core.gangs
        self.now = 0.0
        self.count = 0
        self.attempts = 0
        self.torn: dict[str, int] = {}
        """The newest generation that was torn down."""
        self.given_up: set[tuple[str, int]] = set()
        self.cut_at = NEVER
        self.granted: dict[str, LocalSeat] = {}
        """Seats that may be used, by token."""
        self.running: set[TaskRecord] = set()
        self.due: set[int] = set()
        self.subleases: list[GrantedLease] = []

    def next(self) -> int:
        self.count += 1
        return self.count

    # -- plain traffic --------------------------------------------------------------------------------------------

    @rule(target=records, cost=st.integers(1, 2))
    def call(self, cost: int):
        found = self.core.admit(
            self.core.sender("s", self.now), self.next(), cost=cost, token=None, deadline_at=NEVER, now=self.now
        )
        if not isinstance(found, TaskRecord):
            assert self.core.draining or cost > self.core.load.free, found
            return multiple()
        assert not self.core.draining, "L11"
        self.running.add(found)
        return found

    @rule(record=records)
    def end(self, record: TaskRecord) -> None:
        if record in self.running:
            self.running.discard(record)
            self.core.settle(record.sender, record.id, b"x", self.now)
            self.core.finish(record)

    @rule(slots=st.integers(1, 3))
    def lease(self, slots: int) -> None:
        self.core.reserve(
            self.core.sender("s", self.now), self.next(), slots=slots, ttl_s=3.0, claim_s=1.0, single_use=False,
            owner="", token=f"l{self.next()}", now=self.now,
        )  # fmt: skip

    @rule(total=st.integers(2, 9))
    def resize(self, total: int) -> None:
        self.core.resize(total)

    # -- before the commit ----------------------------------------------------------------------------------------

    @rule(target=holds, gang=GANGS, ahead=AHEAD, slots=SLOTS, back=BACK)
    def hold(self, gang: str, ahead: int, slots: list[int], back: int):
        """`ahead`: of the generation that was torn down last. `back`: an attempt that may have been before."""
        generation = max(1, self.torn.get(gang, 0) + ahead)
        self.attempts += 1
        attempt = max(1, self.attempts - back)
        request = HoldRequest(
            gang=gang, generation=generation, attempt=attempt, hold_s=2.0,
            seats=tuple(SeatRequest(rank=rank, slots=count) for rank, count in enumerate(slots)),
        )  # fmt: skip
        known = self.gangs.holds.get((gang, generation))
        free, kept = self.core.load.free, self.gangs.keeps.has(gang)
        freed = sum(seat.lease.slots for seat in known.seats) if known is not None else 0
        tokens = [f"g{self.next()}" for _ in slots]
        found = self.gangs.hold(request, tokens, ttl_s=2.0, most=self.core.most_slots, now=self.now)
        if not isinstance(found, TentativeHold):
            return multiple()
        if found.tokens != tuple(tokens):
            assert found.attempt == attempt and found.gang == gang, "an answer of another attempt"
            return multiple()
        assert not self.core.draining, "L11"
        assert generation > self.torn.get(gang, 0), "L8: held for a generation that was torn down"
        assert (gang, attempt) not in self.given_up, "held for an attempt that was given up"
        assert sum(slots) <= free + kept + freed, "L1"
        return found

    @rule(gang=GANGS, generation=st.integers(1, 3), back=BACK)
    def unhold(self, gang: str, generation: int, back: int) -> None:
        attempt = max(1, self.attempts - back)
        self.gangs.unhold(gang, generation, attempt, self.now)
        self.given_up.add((gang, attempt))

    @rule(hold=holds)
    def free(self, hold: TentativeHold) -> None:
        standing = self.gangs.holds.get((hold.gang, hold.generation)) is hold
        self.gangs.free(hold, self.now)
        if standing:
            self.given_up.add((hold.gang, hold.attempt))

    @rule(gang=GANGS, slots=st.integers(0, 4), keep_s=st.sampled_from([0.5, 3.0]))
    def keep(self, gang: str, slots: int, keep_s: float) -> None:
        kept = self.gangs.keep(gang, slots, keep_s, self.now)
        assert kept <= slots and kept == self.gangs.keeps.has(gang)
        assert not (kept and self.core.draining)

    # -- members --------------------------------------------------------------------------------------------------

    @rule(target=seats, gang=GANGS, slots=SLOTS)
    def grant(self, gang: str, slots: list[int]):
        """Hold and form at once, as the next generation."""
        member = self.gangs.members.get(gang)
        ahead = 1 if member is None else member.generation - self.torn.get(gang, 0) + 1
        found = self.hold(gang, ahead, slots, 0)
        return self.form(found, False) if isinstance(found, TentativeHold) else multiple()

    @rule(target=seats, hold=holds, survivors=st.booleans())
    def form(self, hold: TentativeHold, survivors: bool):
        """Form what is held; with what the gang has here already, or in its place."""
        member = self.gangs.members.get(hold.gang)
        stay = list(member.seats.values()) if member is not None and survivors and not member.over else []
        standing = self.gangs.holds.get((hold.gang, hold.generation)) is hold
        asked = [*stay, *hold.seats]
        request = FormRequest(
            gang=hold.gang, generation=hold.generation, fence=self.next(), size=3, ttl_s=10.0, grace_s=1.0,
            seats=tuple(
                Seat(rank=s.rank, pool="p", worker="w", slots=s.lease.slots, token=s.lease.token, epoch=self.core.epoch)
                for s in {seat.lease.token: seat for seat in asked}.values()
            ),
        )  # fmt: skip
        found = self.gangs.form(request, request.seats, epoch=self.core.epoch, now=self.now)
        if not isinstance(found, FormedGang):
            newer = member is not None and member.generation >= hold.generation
            torn = self.torn.get(hold.gang, 0) >= hold.generation
            assert not standing or newer or torn, found
            return multiple()
        assert hold.generation > self.torn.get(hold.gang, 0), "L8: formed after its teardown"
        if not found.new:
            return multiple()
        assert standing, "formed without a hold"
        if found.leaving is not None:
            self.take_away(found.leaving.seats)
        for seat in found.started:
            self.granted[seat.lease.token] = seat
        return multiple(*found.started)

    def take_away(self, seats: list[LocalSeat]) -> None:
        for seat in seats:
            self.granted.pop(seat.lease.token, None)

    @rule(target=records, seat=seats, cost=st.integers(1, 2))
    def dispatch(self, seat: LocalSeat, cost: int):
        lease = seat.lease
        room = lease.slots - lease.busy
        found = self.core.admit(
            self.core.sender("s", self.now), self.next(), cost=cost, token=lease.token, deadline_at=NEVER, now=self.now
        )
        if not isinstance(found, TaskRecord):
            alive = lease.token in self.granted and self.now < self.cut_at
            assert not alive or cost > room, "a seat that is granted can be used"
            return multiple()
        assert lease.token in self.granted, "L5, L8: started on a seat that is not granted (any more)"
        assert self.now < self.cut_at, "L11: started after the grace"
        assert cost <= room, "L3"
        self.running.add(found)
        return found

    @rule(target=records, seat=seats, slots=st.integers(1, 2), single_use=st.booleans(), cost=st.integers(0, 2))
    def sublease(self, seat: LocalSeat, slots: int, single_use: bool, cost: int):
        """Hold slots of a seat by a token of their own, and maybe start a task on it."""
        room, free = seat.lease.slots - seat.lease.busy, self.core.load.free
        sender, token = self.core.sender("s", self.now), f"s{self.next()}"
        found = self.core.reserve(
            sender, self.next(), slots=slots, ttl_s=3.0, claim_s=1.0, single_use=single_use,
            owner="", token=token, seat=seat.lease.token, now=self.now,
        )  # fmt: skip
        if not isinstance(found, GrantedLease):
            alive = seat.lease.token in self.granted and self.now < self.cut_at
            assert not alive or self.core.draining or slots > room, "idle slots of a seat that is granted can be had"
            return multiple()
        assert seat.lease.token in self.granted, "L5, L8: of a seat that is not granted (any more)"
        assert not self.core.draining, "L11"
        assert slots <= room and self.core.load.free == free, "L1: the slots are the seat's, and no others"
        self.subleases.append(found)
        return self.dispatch_on(found, cost) if cost else multiple()

    def dispatch_on(self, lease: GrantedLease, cost: int):
        room, ended = lease.slots - lease.busy, lease.ended
        found = self.core.admit(
            self.core.sender("s", self.now), self.next(), cost=cost, token=lease.token, deadline_at=NEVER, now=self.now
        )
        if not isinstance(found, TaskRecord):
            assert cost > room or ended is not None or lease.ended is not None, found
            return multiple()
        assert cost <= room and ended is None, "L3, L5"
        assert lease.seat is not None and found.lease is (lease.seat if lease.single_use else lease)
        self.running.add(found)
        return found

    @rule(target=records, number=st.integers(0, 100), cost=st.integers(1, 2))
    def dispatch_on_a_sublease(self, number: int, cost: int):
        return self.dispatch_on(self.subleases[number % len(self.subleases)], cost) if self.subleases else multiple()

    @rule(number=st.integers(0, 100))
    def release_a_sublease(self, number: int) -> None:
        if self.subleases:
            token = self.subleases.pop(number % len(self.subleases)).token
            self.core.release(self.core.sender("s", self.now), None, token, self.now)
            assert token not in self.core.leases

    @rule(hold=holds)
    def dispatch_on_a_hold(self, hold: TentativeHold) -> None:
        if self.gangs.holds.get((hold.gang, hold.generation)) is hold:
            found = self.core.admit(
                self.core.sender("s", self.now), self.next(), cost=1, token=hold.tokens[0], deadline_at=NEVER,
                now=self.now,
            )  # fmt: skip
            assert not isinstance(found, TaskRecord), "L7: started before the commit"

    @rule(seat=seats)
    def release_or_renew_a_seat(self, seat: LocalSeat) -> None:
        before = seat.lease.ended
        self.core.release(self.core.sender("s", self.now), None, seat.lease.token, self.now)
        self.core.renew(seat.lease.token, 0.5, self.now)
        assert seat.lease.ended == before or self.now >= self.cut_at, "only the gang ends its seats"

    @rule(gang=GANGS, generation=st.integers(1, 3))
    def ping(self, gang: str, generation: int) -> None:
        missing, unnamed = self.gangs.ping({gang: generation}, self.now)
        member = self.gangs.members.get(gang)
        has = member is not None and member.generation == generation and not member.over
        assert (gang in missing) == (not has and (gang, generation) not in self.gangs.holds)
        assert all(other.gang != gang for other in unnamed)

    # -- the end --------------------------------------------------------------------------------------------------

    @rule(gang=GANGS, ahead=AHEAD, luck=st.integers(0, 5))
    def tear_down(self, gang: str, ahead: int, luck: int) -> None:
        if luck < 4:
            return
        generation = max(1, self.torn.get(gang, 0) + ahead)
        member = self.gangs.members.get(gang)
        touched = member is not None and member.generation <= generation
        found = self.gangs.teardown(gang, generation, reason="", rank=None, grace_s=1.0, only=None, now=self.now)
        self.torn[gang] = max(self.torn.get(gang, 0), generation)
        if touched:
            assert gang not in self.gangs.members and member is not None
            self.take_away(list(member.seats.values()))
        assert all(leaving.generation <= generation for leaving in found)
        if self.gangs.lingers:
            for leaving in found:
                leaving.hooks = 1

    @rule(seat=seats)
    def lose_one(self, seat: LocalSeat) -> None:
        gang = seat.lease.gang
        assert gang is not None
        member = self.gangs.members.get(gang)
        if member is not None:
            self.gangs.teardown(
                gang, member.generation, reason="", rank=0, grace_s=1.0, only=[seat.lease.token], now=self.now
            )
            if seat.lease.token not in (self.gangs.members[gang].seats if gang in self.gangs.members else {}):
                self.take_away([seat])

    @rule()
    def hooks_end(self) -> None:
        for leaving in self.gangs.leaving:
            leaving.hooks = 0

    @rule()
    def settle(self) -> None:
        self.gangs.take_voided()
        for leaving in self.gangs.take_cut(self.now):
            assert self.now >= self.cut_at
            self.torn[leaving.gang] = max(self.torn.get(leaving.gang, 0), leaving.generation)
            self.take_away(leaving.seats)
        for leaving in self.gangs.take_stopped():
            assert all(seat.lease.busy == 0 for seat in leaving.seats) and leaving.hooks == 0
            seats = [seat.lease for seat in leaving.seats]
            assert not any((record.lease.seat or record.lease) in seats for record in self.running if record.lease)

    # -- time -----------------------------------------------------------------------------------------------------

    @rule(step=st.sampled_from([0.3, 1.0, 4.0, 11.0]))
    def pass_time(self, step: float) -> None:
        self.now += step
        self.core.expire(self.now)
        holds, members, _ = self.gangs.take_due(self.now)
        for hold in holds:
            assert id(hold) not in self.due, "named twice"
            self.due.add(id(hold))
        for member in members:
            self.gangs.proven(member, self.now)

    @rule(luck=SELDOM)
    def new_epoch(self, luck: int) -> None:
        if luck == 7:
            self.core.new_epoch(self.core.epoch + 1, self.now)
            self.granted.clear()
            assert not self.gangs.holds and not self.gangs.keeps

    @rule(luck=SELDOM)
    def drain(self, luck: int) -> None:
        if luck == 7:
            self.cut_at = min(self.cut_at, self.now + 5.0)
            self.core.drain(self.cut_at, self.now)

    # -- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "core"):
            return
        self.core.check()
        for leaving in self.gangs.leaving:
            assert leaving.gang not in self.gangs.members or self.gangs.members[leaving.gang].form is not None
        held = sum(seat.lease.slots for hold in self.gangs.holds.values() for seat in hold.seats)
        seated = sum(s.lease.slots - s.lease.busy for s in self.granted.values() if s.lease.ended is None)
        assert self.core.load.reserved >= held + seated, "L12: less is reserved than was promised"
        assert self.core.load.running == sum(record.cost for record in self.running), "L12"
        living = {token for token, lease in self.core.leases.items() if lease.gang is not None}
        assert living <= self.granted.keys(), "a seat lives on"
        for lease in self.subleases:
            assert lease.ended is not None or (lease.seat is not None and lease.seat.token in living), (
                "outlives its seat"
            )

    def teardown(self) -> None:
        """At rest nothing is left, whatever has been (L2)."""
        if not hasattr(self, "core"):
            return
        for record in list(self.running):
            self.running.discard(record)
            self.core.settle(record.sender, record.id, b"x", self.now)
            self.core.finish(record)
        for gang in list(self.gangs.members):
            self.gangs.teardown(gang, 99, reason="", rank=None, grace_s=0.0, only=None, now=self.now)
        for hold in list(self.gangs.holds.values()):
            self.gangs.free(hold, self.now)
        for leaving in self.gangs.leaving:
            leaving.hooks = 0
        self.gangs.take_stopped()
        self.core.expire(self.now + 1e6)
        self.gangs.take_due(self.now + 1e6)
        assert self.core.at_rest and self.core.load[:2] == (0, 0), self.core


TestGangs = GangMachine.TestCase
TestGangs.settings = settings(max_examples=repetitions(4, whole=50), stateful_step_count=60, deadline=None)
