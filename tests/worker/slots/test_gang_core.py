"""The worker's part in gangs, without a clock and without a bus."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.schemas.messages.gangs import FormRequest, HoldRequest, SeatRequest
from gangline.schemas.records.gangs import Seat
from gangline.worker.registration.gang_shares import shares
from gangline.worker.slots.admission_core import AdmissionCore
from gangline.worker.slots.gang_core import FormedGang
from gangline.worker.slots.gang_records import LeavingMember, TentativeHold
from gangline.worker.slots.lease_table import Refusal
from gangline.worker.slots.request_dedup import TaskRecord
from gangline.worker.slots.timers import NEVER

EPOCH = 5


class Desk:
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


# -- holds -------------------------------------------------------------------------------------------------------------


def test_a_hold_takes_all_seats_or_none():
    desk = Desk(total=4)
    assert desk.hold(slots=(2, 3)) is Refusal.TOO_LARGE
    desk.run(None)
    assert desk.hold(slots=(2, 2), attempt=2) is Refusal.FULL
    assert desk.load == (1, 0)
    desk.held(slots=(2, 1), attempt=3)
    assert desk.load == (1, 3)


def test_the_same_attempt_gets_the_same_answer():
    desk = Desk(total=1)
    hold = desk.held()
    assert desk.hold() is hold
    assert desk.hold("other") is Refusal.FULL
    desk.gangs.unhold("g", 1, 1, desk.now)
    assert desk.hold("other") is Refusal.FULL, "the coordinator may have acted on it"
    assert desk.hold() is Refusal.EXPIRED
    assert desk.load == (0, 0)


def test_the_same_attempt_gets_the_same_answer_when_it_has_formed():
    desk = Desk()
    hold = desk.gang()
    assert desk.hold() is hold
    assert desk.hold(attempt=2) is Refusal.EXPIRED
    assert desk.load == (0, 1)


def test_a_later_attempt_takes_the_place_of_an_earlier_one_and_never_the_other_way_about():
    desk = Desk()
    desk.held(attempt=1, slots=(2,))
    second = desk.held(attempt=2, slots=(3,))
    assert desk.load == (0, 3)
    assert desk.hold(attempt=1, slots=(2,)) is Refusal.EXPIRED
    assert not desk.gangs.unhold("g", 1, 1, desk.now), "that of the attempt before came late"
    assert desk.hold(attempt=2, slots=(3,)) is second


def test_an_unhold_that_overtakes_its_hold_leaves_a_mark():
    desk = Desk()
    assert not desk.gangs.unhold("g", 1, 4, desk.now)
    assert desk.hold(attempt=3) is Refusal.EXPIRED
    assert desk.hold(attempt=4) is Refusal.EXPIRED
    desk.held(attempt=5)


def test_nothing_starts_on_a_held_seat():
    desk = Desk()
    hold = desk.held()
    assert desk.start(hold.tokens[0]) is Refusal.FULL, "as if full: the commit may have come a moment ago"
    assert desk.start("t99") is Refusal.UNKNOWN_TOKEN


def test_time_alone_does_not_free_a_hold():
    desk = Desk()
    hold = desk.held()
    assert desk.gangs.next_at() == 2.0
    desk.now = 2.0
    assert desk.gangs.take_due(desk.now) == ([hold], [], [])
    assert desk.gangs.take_due(99.0) == ([], [], []), "named once"
    assert desk.load == (0, 1)
    assert desk.hold() is hold, "with the registration's revision as it was first answered"
    desk.gangs.free(hold, desk.now)
    assert desk.load == (0, 0)
    assert desk.hold() is Refusal.EXPIRED


def test_a_hold_that_is_looked_up_can_still_form():
    desk = Desk()
    hold = desk.held()
    desk.gangs.take_due(2.0)
    desk.formed(hold)
    desk.gangs.free(hold, 2.0)
    assert desk.load == (0, 1), "free comes too late"


# -- members -----------------------------------------------------------------------------------------------------------


def test_seats_can_be_used_again_and_again_and_do_not_expire():
    desk = Desk()
    hold = desk.gang(slots=(2,))
    (token,) = hold.tokens
    for _ in range(3):
        desk.now += 1000.0
        desk.core.expire(desk.now)
        first, second = desk.run(token), desk.run(token)
        assert desk.start(token) is Refusal.LEASE_BUSY
        desk.end(first)
        desk.end(second)
    assert first.lease is not None and first.lease.fence == 9
    assert desk.load == (0, 2)


def test_nobody_releases_or_renews_a_seat_by_its_token():
    desk = Desk()
    (token,) = desk.gang().tokens
    sender = desk.core.sender("s", 0.0)
    assert not desk.core.release(sender, None, token, desk.now)
    assert desk.core.renew(token, 0.5, desk.now) == 10.0
    desk.now = 60.0
    desk.core.expire(desk.now)
    desk.run(token)


def test_form_is_idempotent():
    desk = Desk()
    hold = desk.held()
    first = desk.formed(hold)
    again = desk.formed(hold)
    assert first.started and first.new
    assert again.member is first.member and not again.started and not again.new


def test_form_is_refused_for_what_is_not_held_is_of_another_epoch_or_is_not_ours():
    desk = Desk()
    hold = desk.held()
    stranger = [seat.model_copy(update={"token": "t77"}) for seat in seats_of(hold)]
    assert "not held" in desk.form(hold, seats=stranger)
    old = [seat.model_copy(update={"epoch": 4}) for seat in seats_of(hold)]
    assert "epoch" in desk.form(hold, seats=old)
    assert "no seat" in desk.form(hold, seats=[])
    assert desk.load == (0, 1), "the hold stands"


def test_form_frees_what_was_held_beside_the_seats():
    desk = Desk()
    hold = desk.held(slots=(1, 2))
    desk.formed(hold, seats=seats_of(hold)[:1])
    assert desk.load == (0, 1)


def test_survivors_go_on_in_the_next_generation():
    desk = Desk()
    hold = desk.gang(slots=(1, 1))
    survivor, lost = seats_of(hold)
    record = desk.run(survivor.token)
    (leaving,) = desk.teardown(only=[lost.token])
    assert not leaving.whole and desk.load == (1, 0)
    assert desk.gangs.take_stopped() == [leaving]
    fresh = desk.held(generation=2, attempt=2, first=1)
    formed = desk.formed(fresh, seats=[survivor, *seats_of(fresh)], fence=12)
    assert [seat.rank for seat in formed.started] == [1]
    assert record.lease is not None and record.lease.fence == 12
    assert desk.start(lost.token) is Refusal.GANG_OVER
    assert desk.form(hold) == "generation 2 is formed here"
    desk.end(record)
    assert desk.load == (0, 2)


def test_a_seat_that_the_next_generation_does_not_name_leaves():
    desk = Desk()
    stays, goes = seats_of(desk.gang(slots=(1, 1)))
    record = desk.run(goes.token)
    formed = desk.formed(seats=[stays], generation=2)
    assert formed.leaving is not None and [seat.lease.token for seat in formed.leaving.seats] == [goes.token]
    desk.end(record)
    assert desk.gangs.take_stopped() == [formed.leaving]
    assert desk.load == (0, 1)


def test_a_ping_renews_what_it_names_and_tells_what_is_missing():
    desk = Desk()
    desk.gang("a")
    desk.gang("b")
    desk.held("c")
    desk.now = 7.0
    missing, unnamed = desk.gangs.ping({"a": 1, "b": 2, "c": 1, "d": 1}, desk.now)
    assert missing == {"b": 2, "d": 1}, "c is held: its form is on the way"
    assert unnamed == []
    assert desk.gangs.members["a"].look_at == 17.0
    assert desk.gangs.members["b"].look_at == 10.0
    _, unnamed = desk.gangs.ping({"a": 1}, desk.now)
    assert [member.gang for member in unnamed] == ["b"]


def test_a_member_that_hears_nothing_is_looked_up_and_is_alone_after_twice_its_time_to_live():
    desk = Desk()
    desk.gang()
    member = desk.gangs.members["g"]
    assert desk.gangs.take_due(9.9)[1] == []
    assert desk.gangs.take_due(10.0)[1] == [member]
    assert desk.gangs.take_due(11.0)[1] == [], "while it is being looked up"
    desk.gangs.ping({"g": 1}, 11.0)
    assert member.look_at == NEVER and member.alone_at == 31.0
    desk.gangs.look_again(member, 12.0)
    assert desk.gangs.next_at() == 12.0
    desk.gangs.proven(member, 12.0)
    assert (member.look_at, member.alone_at) == (22.0, 32.0)


# -- the end -----------------------------------------------------------------------------------------------------------


def test_a_teardown_is_complete_when_the_last_task_has_ended():
    desk = Desk()
    hold = desk.gang(slots=(1, 2))
    records = [desk.run(token) for token in hold.tokens]
    (leaving,) = desk.teardown()
    assert desk.load == (2, 0), "the idle slot came back at once"
    assert desk.teardown() == [leaving], "asked again, it waits for the same"
    desk.end(records[0])
    assert desk.gangs.take_stopped() == []
    desk.end(records[1])
    assert desk.gangs.take_stopped() == [leaving]
    assert desk.teardown() == []
    assert desk.start(hold.tokens[0]) is Refusal.GANG_OVER


def test_idle_slots_wait_for_the_hooks_of_their_seat():
    desk = Desk()
    desk.gangs.lingers = True
    desk.gang(slots=(2,))
    (leaving,) = desk.teardown()
    leaving.hooks = 1
    assert desk.load == (0, 2) and desk.gangs.take_stopped() == []
    assert not desk.core.at_rest
    leaving.hooks = 0
    assert desk.gangs.take_stopped() == [leaving]
    assert desk.load == (0, 0) and desk.core.at_rest


def test_a_generation_that_was_torn_down_does_not_come_back():
    desk = Desk()
    hold = desk.gang(generation=2)
    desk.teardown(generation=2)
    assert "torn down" in desk.form(hold)
    assert desk.hold(generation=2, attempt=9) is Refusal.EXPIRED
    assert desk.hold(generation=1, attempt=9) is Refusal.EXPIRED
    desk.gang(generation=3, attempt=10)


def test_a_teardown_that_overtakes_its_hold_leaves_a_mark():
    desk = Desk()
    assert desk.teardown() == []
    assert desk.hold() is Refusal.EXPIRED


def test_a_teardown_of_an_older_generation_does_not_touch_a_newer_one():
    desk = Desk()
    hold = desk.gang(generation=2)
    assert desk.teardown(generation=1) == []
    desk.run(hold.tokens[0])


def test_a_teardown_ends_holds_of_its_generation():
    desk = Desk()
    desk.held()
    desk.held(generation=2, attempt=2)
    desk.teardown(generation=1)
    assert desk.load == (0, 1), "that of the next generation stands"


def test_seats_that_are_lost_before_they_formed_are_freed():
    desk = Desk()
    hold = desk.held(slots=(1, 1))
    first, second = seats_of(hold)
    assert desk.teardown(only=[second.token]) == []
    assert desk.load == (0, 1)
    assert "rank 1" in desk.form(hold, seats=[first, second])
    desk.formed(hold, seats=[first])


def test_the_grace_is_over_once():
    desk = Desk()
    (token,) = desk.gang().tokens
    desk.run(token)
    (leaving,) = desk.teardown()
    assert desk.gangs.next_at() == 1.0
    assert desk.gangs.take_due(1.0)[2] == [leaving]
    assert desk.gangs.take_due(2.0)[2] == []
    assert desk.load == (1, 0), "code that does not stop keeps its slot"


def test_a_new_epoch_ends_holds_and_members_and_tasks_run_on_until_the_teardown():
    desk = Desk()
    hold = desk.gang()
    desk.held("other", attempt=2)
    desk.gangs.keep("third", 2, 1.0, desk.now)
    record = desk.run(hold.tokens[0])
    desk.core.new_epoch(EPOCH + 1, desk.now)
    assert desk.load == (1, 0)
    (voided,) = desk.gangs.take_voided()
    assert voided.gang == "g" and desk.gangs.take_voided() == []
    assert desk.gangs.ping({"g": 1}, desk.now)[0] == {"g": 1}
    assert desk.form(hold) == "the worker has a new epoch"
    (leaving,) = desk.teardown()
    assert not leaving.stopped
    desk.end(record)
    assert desk.gangs.take_stopped() == [leaving]
    assert desk.load == (0, 0)


# -- draining ----------------------------------------------------------------------------------------------------------


def test_a_draining_worker_holds_nothing_new_and_honours_its_gangs_until_the_grace_ends():
    desk = Desk()
    hold, pending = desk.gang("a"), desk.held("b", attempt=2)
    desk.gangs.keep("c", 1, 9.0, desk.now)
    desk.core.drain(30.0, desk.now)
    assert desk.hold("d", attempt=3) is Refusal.DRAINING
    assert desk.gangs.keep("c", 1, 9.0, desk.now) == 0
    assert desk.gangs.take_due(desk.now)[0] == [pending], "looked up now: the registration is written anew anyway"
    desk.formed(pending)
    desk.now = 29.0
    desk.end(desk.run(hold.tokens[0]))
    assert not desk.core.at_rest
    desk.now = 30.0
    desk.core.expire(desk.now)
    assert {leaving.gang for leaving in desk.gangs.take_cut(desk.now)} == {"a", "b"}
    assert desk.start(pending.tokens[0]) is Refusal.LEASE_EXPIRED
    assert len(desk.gangs.take_stopped()) == 2
    assert desk.load == (0, 0) and desk.core.at_rest


def test_a_hold_is_not_rest():
    desk = Desk()
    hold = desk.held()
    assert not desk.core.at_rest
    desk.gangs.forsake(desk.now)
    assert desk.core.at_rest and desk.hold() is Refusal.EXPIRED and hold.tokens


# -- slots set aside ---------------------------------------------------------------------------------------------------


def test_slots_are_set_aside_as_they_become_free_before_anybody_else_gets_them():
    desk = Desk(total=3)
    records = [desk.run(None) for _ in range(3)]
    assert desk.gangs.keep("g", 2, 5.0, desk.now) == 0
    desk.end(records[0])
    assert desk.start(None) is Refusal.FULL
    assert desk.load == (2, 1)
    desk.end(records[1])
    desk.end(records[2])
    assert desk.load == (0, 2)
    assert desk.gangs.keep("g", 2, 5.0, desk.now) == 2
    desk.run(None)


def test_a_hold_takes_what_was_set_aside_for_it_and_gives_back_the_rest():
    desk = Desk(total=3)
    desk.gangs.keep("g", 3, 5.0, desk.now)
    assert desk.hold("other", attempt=5) is Refusal.FULL
    desk.held(slots=(2,))
    assert desk.load == (0, 2)
    desk.run(None)


def test_what_a_hold_gives_back_goes_to_the_next_in_line():
    desk = Desk(total=3)
    desk.gangs.keep("g", 3, 5.0, desk.now)
    assert desk.gangs.keep("h", 2, 5.0, desk.now) == 0
    desk.held("g", slots=(1,))
    assert desk.gangs.keeps.has("h") == 2


def test_a_keep_is_replaced_by_the_next_and_lapses():
    desk = Desk(total=4)
    assert desk.gangs.keep("g", 3, 5.0, desk.now) == 3
    assert desk.gangs.keep("g", 1, 5.0, desk.now) == 1
    assert desk.load == (0, 1)
    assert desk.gangs.keep("g", 0, 5.0, desk.now) == 0
    desk.gangs.keep("g", 2, 5.0, desk.now)
    assert desk.gangs.next_at() == 5.0
    desk.now = 5.0
    desk.gangs.take_due(desk.now)
    assert desk.load == (0, 0)


def test_a_resize_upwards_goes_to_the_keeps_first():
    desk = Desk(total=1)
    desk.run(None)
    desk.gangs.keep("g", 2, 5.0, desk.now)
    desk.core.resize(3)
    assert desk.load == (1, 2)


def test_what_was_set_aside_makes_no_room_while_a_resize_downwards_is_not_worked_off():
    desk = Desk(total=3)
    desk.run(None, 2)
    assert desk.gangs.keep("g", 1, 5.0, desk.now) == 1
    desk.core.resize(2)
    assert desk.hold() is Refusal.FULL
    assert desk.load == (2, 1)


# -- others ------------------------------------------------------------------------------------------------------------


def test_marks_are_forgotten_after_a_while():
    desk = Desk()
    desk.gangs.unhold("g", 1, 1, desk.now)
    desk.now = 60.0
    desk.core.sweep(desk.now)
    desk.held()


def test_operators_see_what_is_held_for_whom():
    desk = Desk(total=9)
    desk.gang("a", slots=(2, 1))
    desk.held("b", generation=3)
    desk.gangs.keep("c", 2, 5.0, desk.now)
    stopping = desk.gang("d")
    desk.run(stopping.tokens[0])
    desk.teardown("d")
    found = [(share.gang, share.state, share.generation, share.ranks, share.slots) for share in shares(desk.gangs)]
    assert found == [
        ("c", "kept", 0, (), 2),
        ("b", "held", 3, (0,), 1),
        ("a", "formed", 1, (0, 1), 3),
        ("d", "stopping", 1, (0,), 1),
    ]


@pytest.mark.parametrize("what", ["hold", "member", "leaving"])
def test_check_finds_what_is_wrong(what):
    desk = Desk()
    desk.gang("a")
    hold = desk.held("b", attempt=2)
    desk.gang("c", attempt=3)
    if what == "hold":
        desk.core._leases.living[hold.tokens[0]] = hold.seats[0].lease
    elif what == "member":
        del desk.gangs.members["a"]
    else:
        desk.gangs.leaving.append(desk.gangs.stop(desk.gangs.members["c"], "over", 1.0, 0.0))
        desk.gangs.leaving[-1].seats[0].lease.ended = None
    with pytest.raises(AssertionError):
        desk.core.check()


# -- subleases ---------------------------------------------------------------------------------------------------------


def sublease(desk: Desk, seat: str, slots: int = 1, *, single_use: bool = True, rid: int | None = None) -> Any:
    desk.tasks += 1
    desk.tokens += 1
    found = desk.core.reserve(
        desk.core.sender("s", desk.now),
        desk.tasks if rid is None else rid,
        slots=slots,
        ttl_s=5.0,
        claim_s=2.0,
        single_use=single_use,
        owner="",
        token=f"sub{desk.tokens}",
        seat=seat,
        now=desk.now,
    )
    desk.core.check()
    return found


def test_slots_of_a_seat_can_be_held_by_a_token_of_their_own_and_nobody_else_gets_them():
    desk = Desk(total=4)
    (token,) = desk.gang(slots=(2,)).tokens
    first, second = sublease(desk, token), sublease(desk, token, single_use=False)
    assert desk.load == (0, 2), "they are the seat's"
    assert sublease(desk, token) is Refusal.FULL
    assert desk.start(token) is Refusal.LEASE_BUSY
    once, often = desk.run(first.token), desk.run(second.token)
    assert desk.load == (2, 0) and once.fence == often.fence == 9, "the gang's own"
    assert desk.start(first.token) is Refusal.LEASE_USED
    assert desk.start(second.token) is Refusal.LEASE_BUSY
    desk.end(once)
    desk.end(often)
    assert desk.load == (0, 2)
    desk.run(token)
    desk.run(second.token)


def test_what_is_held_of_a_seat_comes_back_to_it_released_or_expired_or_used():
    desk = Desk(total=1)
    (token,) = desk.gang().tokens
    held = sublease(desk, token, rid=90)
    assert sublease(desk, token, rid=90) is held, "the same request, the same answer"
    assert desk.core.release(desk.core.sender("s", 0.0), None, held.token, desk.now)
    held = sublease(desk, token)
    desk.now = 2.0
    desk.core.expire(desk.now)
    assert desk.start(held.token) is Refusal.LEASE_EXPIRED
    held = sublease(desk, token, single_use=False)
    task = desk.run(held.token)
    desk.core.release(desk.core.sender("s", desk.now), None, held.token, desk.now)
    assert sublease(desk, token) is Refusal.FULL, "its task has not ended"
    desk.end(task)
    desk.run(sublease(desk, token).token)


@pytest.mark.parametrize("lingers", [False, True])
def test_what_is_held_of_a_seat_ends_with_it_and_its_tasks_are_waited_for(lingers: bool):
    desk = Desk(total=3)
    desk.gangs.lingers = lingers
    (token,) = desk.gang(slots=(3,)).tokens
    held = [sublease(desk, token), sublease(desk, token, single_use=False), sublease(desk, token)]
    tasks = [desk.run(lease.token) for lease in held[:2]]
    (leaving,) = desk.teardown()
    assert not leaving.stopped and {lease.ended for lease in held} == {Refusal.LEASE_USED, Refusal.GANG_OVER}
    assert [desk.start(lease.token) for lease in held] == [Refusal.LEASE_USED, Refusal.GANG_OVER, Refusal.GANG_OVER]
    assert sublease(desk, token) is Refusal.GANG_OVER
    for task in tasks:
        desk.end(task)
    assert leaving.stopped
    desk.gangs.take_stopped()
    assert desk.load == (0, 0) and desk.core.at_rest


def test_nothing_is_held_of_what_is_no_seat_or_too_small_or_drains():
    desk = Desk(total=4)
    hold = desk.held(slots=(1,))
    assert sublease(desk, hold.tokens[0]) is Refusal.FULL, "before the commit, as tasks on it"
    desk.formed(hold)
    assert sublease(desk, hold.tokens[0], 2) is Refusal.LEASE_TOO_SMALL
    assert sublease(desk, "nobody's") is Refusal.UNKNOWN_TOKEN
    held = sublease(desk, hold.tokens[0])
    assert sublease(desk, held.token) is Refusal.UNKNOWN_TOKEN, "not of another sublease"
    desk.core.drain(9.0, desk.now)
    assert sublease(desk, hold.tokens[0]) is Refusal.DRAINING
    desk.run(held.token)
    desk.core.new_epoch(EPOCH + 1, desk.now)
    desk.core.check()
    assert desk.core.leases == {} and desk.load == (1, 0)
