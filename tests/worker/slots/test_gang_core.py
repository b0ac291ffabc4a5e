"""The worker's part in gangs, without a clock and without a bus."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.runtime.timers import NEVER
from gangline.schemas.messages.gangs import FormRequest, HoldRequest, SeatRequest
from gangline.schemas.records.gangs import Seat
from gangline.worker.registration.description import shares
from gangline.worker.slots.admission_core import AdmissionCore
from gangline.worker.slots.gang_core import FormedGang, LeavingMember, TentativeHold
from gangline.worker.slots.lease_table import Refusal, TaskRecord

from ...support.rows import in_rows

EPOCH = 5


class GangSlots:
    """A core, and short words for what a coordinator asks of it."""

    def __init__(self, total: int = 4) -> None:
        self.core = AdmissionCore(total, EPOCH)
        self.gangs = self.core.gangs
        self.now = 0.0
        self.tokens = 0
        self.tasks = 0

    def hold(
        self, gang: str = "g", *, generation: int = 1, attempt: int = 1, slots: tuple[int, ...] = (1,), first: int = 0
    ) -> Any:
        request = HoldRequest(
            gang=gang,
            generation=generation,
            attempt=attempt,
            hold_s=2.0,
            seats=tuple(SeatRequest(rank=first + rank, slots=count) for rank, count in enumerate(slots)),
        )
        self.tokens += len(slots)
        tokens = [f"t{self.tokens - number}" for number in range(len(slots))]
        found = self.gangs.hold(request, tokens, ttl_s=2.0, most=self.core.most_slots, now=self.now)
        self.core.check()
        return found

    def held(self, *args: Any, **terms: Any) -> TentativeHold:
        found = self.hold(*args, **terms)
        assert isinstance(found, TentativeHold), found
        return found

    def form(
        self,
        hold: TentativeHold | None = None,
        *,
        generation: int | None = None,
        seats: list[Seat] | None = None,
        **more: Any,
    ) -> Any:
        seats = seats if seats is not None else seats_of(hold) if hold is not None else []
        request = FormRequest(
            gang=more.pop("gang", hold.gang if hold is not None else "g"),
            generation=generation or (hold.generation if hold is not None else 1),
            fence=more.pop("fence", 9),
            size=max(1, len(seats)),
            seats=tuple(seats),
            ttl_s=10.0,
            grace_s=1.0,
        )
        found = self.gangs.form(request, seats, epoch=self.core.epoch, now=self.now)
        self.core.check()
        return found

    def formed(self, *args: Any, **terms: Any) -> FormedGang:
        found = self.form(*args, **terms)
        assert isinstance(found, FormedGang), found
        return found

    def gang(
        self, gang: str = "g", *, slots: tuple[int, ...] = (1,), attempt: int = 1, generation: int = 1
    ) -> TentativeHold:
        hold = self.held(gang, slots=slots, attempt=attempt, generation=generation)
        self.formed(hold)
        return hold

    def teardown(self, gang: str = "g", *, generation: int = 1, only: list[str] | None = None) -> list[LeavingMember]:
        found = self.gangs.teardown(
            gang, generation, reason="over", rank=None, grace_s=1.0, only=only, now=self.now
        )  # fmt: skip
        self.core.check()
        return found

    def unhold(self, gang: str, generation: int, attempt: int) -> bool:
        return self.gangs.unhold(gang, generation, attempt, self.now)

    def keep(self, gang: str, slots: int, keep_s: float = 5.0) -> int:
        return self.gangs.keep(gang, slots, keep_s, self.now)

    def sublease(self, seat: str, slots: int = 1, *, single_use: bool = True, rid: int | None = None) -> Any:
        self.tasks += 1
        self.tokens += 1
        found = self.core.reserve(
            self.core.sender("s", self.now), self.tasks if rid is None else rid, slots=slots, ttl_s=5.0, claim_s=2.0,
            single_use=single_use, owner="", token=f"sub{self.tokens}", seat=seat, now=self.now,
        )  # fmt: skip
        self.core.check()
        return found

    def start(self, token: str | None, cost: int = 1) -> TaskRecord | Refusal:
        self.tasks += 1
        sender = self.core.sender("s", self.now)
        found = self.core.admit(sender, self.tasks, cost=cost, token=token, deadline_at=NEVER, now=self.now)
        self.core.check()
        return found

    def run(self, token: str | None, cost: int = 1) -> TaskRecord:
        record = self.start(token, cost)
        assert isinstance(record, TaskRecord), record
        return record

    def end(self, record: TaskRecord) -> None:
        self.core.settle(record.sender, record.id, b"answer", self.now)
        self.core.finish(record)
        self.core.check()

    @property
    def load(self) -> tuple[int, int]:
        self.core.check()
        return self.core.load.running, self.core.load.reserved


@pytest.fixture
def slots() -> GangSlots:
    return GangSlots()


def seats_of(hold: TentativeHold) -> list[Seat]:
    return [
        Seat(
            rank=seat.rank,
            part=seat.part,
            pool="p",
            worker="w",
            slots=seat.lease.slots,
            token=seat.lease.token,
            epoch=EPOCH,
        )
        for seat in hold.seats
    ]


def test_the_same_attempt_gets_the_same_answer():
    slots = GangSlots(total=1)
    hold = slots.held()
    assert slots.hold() is hold
    assert slots.hold("other") is Refusal.FULL
    slots.unhold("g", 1, 1)
    assert slots.hold("other") is Refusal.FULL, "the coordinator may have acted on it"
    assert slots.hold() is Refusal.EXPIRED
    assert slots.load == (0, 0)


def test_a_later_attempt_takes_the_place_of_an_earlier_one_and_never_the_other_way_about(slots: GangSlots):
    slots.held(attempt=1, slots=(2,))
    second = slots.held(attempt=2, slots=(3,))
    assert slots.load == (0, 3)
    assert slots.hold(attempt=1, slots=(2,)) is Refusal.EXPIRED
    assert not slots.unhold("g", 1, 1), "that of the attempt before came late"
    assert slots.hold(attempt=2, slots=(3,)) is second


def test_form_is_refused_for_what_is_not_held_is_of_another_epoch_or_is_not_ours(slots: GangSlots):
    hold = slots.held()
    stranger = [seat.model_copy(update={"token": "t77"}) for seat in seats_of(hold)]
    assert "not held" in slots.form(hold, seats=stranger)
    old = [seat.model_copy(update={"epoch": 4}) for seat in seats_of(hold)]
    assert "epoch" in slots.form(hold, seats=old)
    assert "no seat" in slots.form(hold, seats=[])
    assert slots.load == (0, 1), "the hold stands"


def test_form_frees_what_was_held_beside_the_seats(slots: GangSlots):
    hold = slots.held(slots=(1, 2))
    slots.formed(hold, seats=seats_of(hold)[:1])
    assert slots.load == (0, 1)


def test_survivors_go_on_in_the_next_generation(slots: GangSlots):
    hold = slots.gang(slots=(1, 1))
    survivor, lost = seats_of(hold)
    record = slots.run(survivor.token)
    (leaving,) = slots.teardown(only=[lost.token])
    assert not leaving.whole and slots.load == (1, 0)
    assert slots.gangs.take_stopped() == [leaving]
    fresh = slots.held(generation=2, attempt=2, first=1)
    formed = slots.formed(fresh, seats=[survivor, *seats_of(fresh)], fence=12)
    assert [seat.rank for seat in formed.started] == [1]
    assert record.lease is not None and record.lease.fence == 12
    assert slots.start(lost.token) is Refusal.GANG_OVER
    assert slots.form(hold) == "generation 2 is formed here"
    slots.end(record)
    assert slots.load == (0, 2)


def test_a_seat_that_the_next_generation_does_not_name_leaves(slots: GangSlots):
    stays, goes = seats_of(slots.gang(slots=(1, 1)))
    record = slots.run(goes.token)
    formed = slots.formed(seats=[stays], generation=2)
    assert formed.leaving is not None and [seat.lease.token for seat in formed.leaving.seats] == [goes.token]
    slots.end(record)
    assert slots.gangs.take_stopped() == [formed.leaving]
    assert slots.load == (0, 1)


def test_a_teardown_ends_holds_of_its_generation(slots: GangSlots):
    slots.held()
    slots.held(generation=2, attempt=2)
    slots.teardown(generation=1)
    assert slots.load == (0, 1), "that of the next generation stands"


def test_slots_are_set_aside_as_they_become_free_before_anybody_else_gets_them():
    slots = GangSlots(total=3)
    records = [slots.run(None) for _ in range(3)]
    assert slots.keep("g", 2) == 0
    slots.end(records[0])
    assert slots.start(None) is Refusal.FULL
    assert slots.load == (2, 1)
    slots.end(records[1])
    slots.end(records[2])
    assert slots.load == (0, 2)
    assert slots.keep("g", 2) == 2
    slots.run(None)


def test_a_hold_takes_what_was_set_aside_for_it_and_gives_back_the_rest():
    slots = GangSlots(total=3)
    slots.keep("g", 3)
    assert slots.hold("other", attempt=5) is Refusal.FULL
    slots.held(slots=(2,))
    assert slots.load == (0, 2)
    slots.run(None)


def test_what_a_hold_gives_back_goes_to_the_next_in_line():
    slots = GangSlots(total=3)
    slots.keep("g", 3)
    assert slots.keep("h", 2) == 0
    slots.held("g", slots=(1,))
    assert slots.gangs.keeps.has("h") == 2


def test_a_keep_is_replaced_by_the_next_and_lapses():
    slots = GangSlots(total=4)
    assert slots.keep("g", 3) == 3
    assert slots.keep("g", 1) == 1
    assert slots.load == (0, 1)
    assert slots.keep("g", 0) == 0
    slots.keep("g", 2)
    assert slots.gangs.next_at() == 5.0
    slots.now = 5.0
    slots.gangs.take_due(slots.now)
    assert slots.load == (0, 0)


def test_a_resize_upwards_goes_to_the_keeps_first():
    slots = GangSlots(total=1)
    slots.run(None)
    slots.keep("g", 2)
    slots.core.resize(3)
    assert slots.load == (1, 2)


def test_what_was_set_aside_makes_no_room_while_a_resize_downwards_is_not_worked_off():
    slots = GangSlots(total=3)
    slots.run(None, 2)
    assert slots.keep("g", 1) == 1
    slots.core.resize(2)
    assert slots.hold() is Refusal.FULL
    assert slots.load == (2, 1)


def test_marks_are_forgotten_after_a_while(slots: GangSlots):
    slots.unhold("g", 1, 1)
    slots.now = 60.0
    slots.core.sweep(slots.now)
    slots.held()


def test_operators_see_what_is_held_for_whom():
    slots = GangSlots(total=9)
    slots.gang("a", slots=(2, 1))
    slots.held("b", generation=3)
    slots.keep("c", 2)
    stopping = slots.gang("d")
    slots.run(stopping.tokens[0])
    slots.teardown("d")
    found = [(share.gang, share.state, share.generation, share.ranks, share.slots) for share in shares(slots.gangs)]
    assert found == [
        ("c", "kept", 0, (), 2),
        ("b", "held", 3, (0,), 1),
        ("a", "formed", 1, (0, 1), 3),
        ("d", "stopping", 1, (0,), 1),
    ]


def test_what_is_held_of_a_seat_comes_back_to_it_released_or_expired_or_used():
    slots = GangSlots(total=1)
    (token,) = slots.gang().tokens
    held = slots.sublease(token, rid=90)
    assert slots.sublease(token, rid=90) is held, "the same request, the same answer"
    assert slots.core.release(slots.core.sender("s", 0.0), None, held.token, slots.now)
    held = slots.sublease(token)
    slots.now = 2.0
    slots.core.expire(slots.now)
    assert slots.start(held.token) is Refusal.LEASE_EXPIRED
    held = slots.sublease(token, single_use=False)
    task = slots.run(held.token)
    slots.core.release(slots.core.sender("s", slots.now), None, held.token, slots.now)
    assert slots.sublease(token) is Refusal.FULL, "its task has not ended"
    slots.end(task)
    slots.run(slots.sublease(token).token)


@in_rows("lingers", [False, True])
def test_what_is_held_of_a_seat_ends_with_it_and_its_tasks_are_waited_for(lingers: bool):
    slots = GangSlots(total=3)
    slots.gangs.lingers = lingers
    (token,) = slots.gang(slots=(3,)).tokens
    held = [
        slots.sublease(token),
        slots.sublease(token, single_use=False),
        slots.sublease(token),
    ]
    tasks = [slots.run(lease.token) for lease in held[:2]]
    (leaving,) = slots.teardown()
    assert not leaving.stopped and {lease.ended for lease in held} == {Refusal.LEASE_USED, Refusal.GANG_OVER}
    assert [slots.start(lease.token) for lease in held] == [
        Refusal.LEASE_USED,
        Refusal.GANG_OVER,
        Refusal.GANG_OVER,
    ]
    assert slots.sublease(token) is Refusal.GANG_OVER
    for task in tasks:
        slots.end(task)
    assert leaving.stopped
    slots.gangs.take_stopped()
    assert slots.load == (0, 0) and slots.core.at_rest


def test_nothing_is_held_of_what_is_no_seat_or_too_small_or_drains():
    slots = GangSlots(total=4)
    hold = slots.held(slots=(1,))
    assert slots.sublease(hold.tokens[0]) is Refusal.FULL, "before the commit, as tasks on it"
    slots.formed(hold)
    assert slots.sublease(hold.tokens[0], 2) is Refusal.LEASE_TOO_SMALL
    assert slots.sublease("nobody's") is Refusal.UNKNOWN_TOKEN
    held = slots.sublease(hold.tokens[0])
    assert slots.sublease(held.token) is Refusal.UNKNOWN_TOKEN, "not of another sublease"
    slots.core.drain(9.0, slots.now)
    assert slots.sublease(hold.tokens[0]) is Refusal.DRAINING
    slots.run(held.token)
    slots.core.new_epoch(EPOCH + 1, slots.now)
    slots.core.check()
    assert slots.core.leases == {} and slots.load == (1, 0)
