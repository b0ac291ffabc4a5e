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
    worker_server = Desk(total=4)
    assert worker_server.hold(slots=(2, 3)) is Refusal.TOO_LARGE
    worker_server.run(None)
    assert worker_server.hold(slots=(2, 2), attempt=2) is Refusal.FULL
    assert worker_server.load == (1, 0)
    worker_server.held(slots=(2, 1), attempt=3)
    assert worker_server.load == (1, 3)


def test_the_same_attempt_gets_the_same_answer():
    worker_server = Desk(total=1)
    hold = worker_server.held()
    assert worker_server.hold() is hold
    assert worker_server.hold("other") is Refusal.FULL
    worker_server.gangs.unhold("g", 1, 1, worker_server.now)
    assert worker_server.hold("other") is Refusal.FULL, "the coordinator may have acted on it"
    assert worker_server.hold() is Refusal.EXPIRED
    assert worker_server.load == (0, 0)


def test_the_same_attempt_gets_the_same_answer_when_it_has_formed():
    worker_server = Desk()
    hold = worker_server.gang()
    assert worker_server.hold() is hold
    assert worker_server.hold(attempt=2) is Refusal.EXPIRED
    assert worker_server.load == (0, 1)


def test_a_later_attempt_takes_the_place_of_an_earlier_one_and_never_the_other_way_about():
    worker_server = Desk()
    worker_server.held(attempt=1, slots=(2,))
    second = worker_server.held(attempt=2, slots=(3,))
    assert worker_server.load == (0, 3)
    assert worker_server.hold(attempt=1, slots=(2,)) is Refusal.EXPIRED
    assert not worker_server.gangs.unhold("g", 1, 1, worker_server.now), "that of the attempt before came late"
    assert worker_server.hold(attempt=2, slots=(3,)) is second


def test_an_unhold_that_overtakes_its_hold_leaves_a_mark():
    worker_server = Desk()
    assert not worker_server.gangs.unhold("g", 1, 4, worker_server.now)
    assert worker_server.hold(attempt=3) is Refusal.EXPIRED
    assert worker_server.hold(attempt=4) is Refusal.EXPIRED
    worker_server.held(attempt=5)


def test_nothing_starts_on_a_held_seat():
    worker_server = Desk()
    hold = worker_server.held()
    assert worker_server.start(hold.tokens[0]) is Refusal.FULL, "as if full: the commit may have come a moment ago"
    assert worker_server.start("t99") is Refusal.UNKNOWN_TOKEN


def test_time_alone_does_not_free_a_hold():
    worker_server = Desk()
    hold = worker_server.held()
    assert worker_server.gangs.next_at() == 2.0
    worker_server.now = 2.0
    assert worker_server.gangs.take_due(worker_server.now) == ([hold], [], [])
    assert worker_server.gangs.take_due(99.0) == ([], [], []), "named once"
    assert worker_server.load == (0, 1)
    assert worker_server.hold() is hold, "with the registration's revision as it was first answered"
    worker_server.gangs.free(hold, worker_server.now)
    assert worker_server.load == (0, 0)
    assert worker_server.hold() is Refusal.EXPIRED


def test_a_hold_that_is_looked_up_can_still_form():
    worker_server = Desk()
    hold = worker_server.held()
    worker_server.gangs.take_due(2.0)
    worker_server.formed(hold)
    worker_server.gangs.free(hold, 2.0)
    assert worker_server.load == (0, 1), "free comes too late"


# -- members -----------------------------------------------------------------------------------------------------------


def test_seats_can_be_used_again_and_again_and_do_not_expire():
    worker_server = Desk()
    hold = worker_server.gang(slots=(2,))
    (token,) = hold.tokens
    for _ in range(3):
        worker_server.now += 1000.0
        worker_server.core.expire(worker_server.now)
        first, second = worker_server.run(token), worker_server.run(token)
        assert worker_server.start(token) is Refusal.LEASE_BUSY
        worker_server.end(first)
        worker_server.end(second)
    assert first.lease is not None and first.lease.fence == 9
    assert worker_server.load == (0, 2)


def test_nobody_releases_or_renews_a_seat_by_its_token():
    worker_server = Desk()
    (token,) = worker_server.gang().tokens
    sender = worker_server.core.sender("s", 0.0)
    assert not worker_server.core.release(sender, None, token, worker_server.now)
    assert worker_server.core.renew(token, 0.5, worker_server.now) == 10.0
    worker_server.now = 60.0
    worker_server.core.expire(worker_server.now)
    worker_server.run(token)


def test_form_is_idempotent():
    worker_server = Desk()
    hold = worker_server.held()
    first = worker_server.formed(hold)
    again = worker_server.formed(hold)
    assert first.started and first.new
    assert again.member is first.member and not again.started and not again.new


def test_form_is_refused_for_what_is_not_held_is_of_another_epoch_or_is_not_ours():
    worker_server = Desk()
    hold = worker_server.held()
    stranger = [seat.model_copy(update={"token": "t77"}) for seat in seats_of(hold)]
    assert "not held" in worker_server.form(hold, seats=stranger)
    old = [seat.model_copy(update={"epoch": 4}) for seat in seats_of(hold)]
    assert "epoch" in worker_server.form(hold, seats=old)
    assert "no seat" in worker_server.form(hold, seats=[])
    assert worker_server.load == (0, 1), "the hold stands"


def test_form_frees_what_was_held_beside_the_seats():
    worker_server = Desk()
    hold = worker_server.held(slots=(1, 2))
    worker_server.formed(hold, seats=seats_of(hold)[:1])
    assert worker_server.load == (0, 1)


def test_survivors_go_on_in_the_next_generation():
    worker_server = Desk()
    hold = worker_server.gang(slots=(1, 1))
    survivor, lost = seats_of(hold)
    record = worker_server.run(survivor.token)
    (leaving,) = worker_server.teardown(only=[lost.token])
    assert not leaving.whole and worker_server.load == (1, 0)
    assert worker_server.gangs.take_stopped() == [leaving]
    fresh = worker_server.held(generation=2, attempt=2, first=1)
    formed = worker_server.formed(fresh, seats=[survivor, *seats_of(fresh)], fence=12)
    assert [seat.rank for seat in formed.started] == [1]
    assert record.lease is not None and record.lease.fence == 12
    assert worker_server.start(lost.token) is Refusal.GANG_OVER
    assert worker_server.form(hold) == "generation 2 is formed here"
    worker_server.end(record)
    assert worker_server.load == (0, 2)


def test_a_seat_that_the_next_generation_does_not_name_leaves():
    worker_server = Desk()
    stays, goes = seats_of(worker_server.gang(slots=(1, 1)))
    record = worker_server.run(goes.token)
    formed = worker_server.formed(seats=[stays], generation=2)
    assert formed.leaving is not None and [seat.lease.token for seat in formed.leaving.seats] == [goes.token]
    worker_server.end(record)
    assert worker_server.gangs.take_stopped() == [formed.leaving]
    assert worker_server.load == (0, 1)


def test_a_ping_renews_what_it_names_and_tells_what_is_missing():
    worker_server = Desk()
    worker_server.gang("a")
    worker_server.gang("b")
    worker_server.held("c")
    worker_server.now = 7.0
    missing, unnamed = worker_server.gangs.ping({"a": 1, "b": 2, "c": 1, "d": 1}, worker_server.now)
    assert missing == {"b": 2, "d": 1}, "c is held: its form is on the way"
    assert unnamed == []
    assert worker_server.gangs.members["a"].look_at == 17.0
    assert worker_server.gangs.members["b"].look_at == 10.0
    _, unnamed = worker_server.gangs.ping({"a": 1}, worker_server.now)
    assert [member.gang for member in unnamed] == ["b"]


def test_a_member_that_hears_nothing_is_looked_up_and_is_alone_after_twice_its_time_to_live():
    worker_server = Desk()
    worker_server.gang()
    member = worker_server.gangs.members["g"]
    assert worker_server.gangs.take_due(9.9)[1] == []
    assert worker_server.gangs.take_due(10.0)[1] == [member]
    assert worker_server.gangs.take_due(11.0)[1] == [], "while it is being looked up"
    worker_server.gangs.ping({"g": 1}, 11.0)
    assert member.look_at == NEVER and member.alone_at == 31.0
    worker_server.gangs.look_again(member, 12.0)
    assert worker_server.gangs.next_at() == 12.0
    worker_server.gangs.proven(member, 12.0)
    assert (member.look_at, member.alone_at) == (22.0, 32.0)


# -- the end -----------------------------------------------------------------------------------------------------------


def test_a_teardown_is_complete_when_the_last_task_has_ended():
    worker_server = Desk()
    hold = worker_server.gang(slots=(1, 2))
    records = [worker_server.run(token) for token in hold.tokens]
    (leaving,) = worker_server.teardown()
    assert worker_server.load == (2, 0), "the idle slot came back at once"
    assert worker_server.teardown() == [leaving], "asked again, it waits for the same"
    worker_server.end(records[0])
    assert worker_server.gangs.take_stopped() == []
    worker_server.end(records[1])
    assert worker_server.gangs.take_stopped() == [leaving]
    assert worker_server.teardown() == []
    assert worker_server.start(hold.tokens[0]) is Refusal.GANG_OVER


def test_idle_slots_wait_for_the_hooks_of_their_seat():
    worker_server = Desk()
    worker_server.gangs.lingers = True
    worker_server.gang(slots=(2,))
    (leaving,) = worker_server.teardown()
    leaving.hooks = 1
    assert worker_server.load == (0, 2) and worker_server.gangs.take_stopped() == []
    assert not worker_server.core.at_rest
    leaving.hooks = 0
    assert worker_server.gangs.take_stopped() == [leaving]
    assert worker_server.load == (0, 0) and worker_server.core.at_rest


def test_a_generation_that_was_torn_down_does_not_come_back():
    worker_server = Desk()
    hold = worker_server.gang(generation=2)
    worker_server.teardown(generation=2)
    assert "torn down" in worker_server.form(hold)
    assert worker_server.hold(generation=2, attempt=9) is Refusal.EXPIRED
    assert worker_server.hold(generation=1, attempt=9) is Refusal.EXPIRED
    worker_server.gang(generation=3, attempt=10)


def test_a_teardown_that_overtakes_its_hold_leaves_a_mark():
    worker_server = Desk()
    assert worker_server.teardown() == []
    assert worker_server.hold() is Refusal.EXPIRED


def test_a_teardown_of_an_older_generation_does_not_touch_a_newer_one():
    worker_server = Desk()
    hold = worker_server.gang(generation=2)
    assert worker_server.teardown(generation=1) == []
    worker_server.run(hold.tokens[0])


def test_a_teardown_ends_holds_of_its_generation():
    worker_server = Desk()
    worker_server.held()
    worker_server.held(generation=2, attempt=2)
    worker_server.teardown(generation=1)
    assert worker_server.load == (0, 1), "that of the next generation stands"


def test_seats_that_are_lost_before_they_formed_are_freed():
    worker_server = Desk()
    hold = worker_server.held(slots=(1, 1))
    first, second = seats_of(hold)
    assert worker_server.teardown(only=[second.token]) == []
    assert worker_server.load == (0, 1)
    assert "rank 1" in worker_server.form(hold, seats=[first, second])
    worker_server.formed(hold, seats=[first])


def test_the_grace_is_over_once():
    worker_server = Desk()
    (token,) = worker_server.gang().tokens
    worker_server.run(token)
    (leaving,) = worker_server.teardown()
    assert worker_server.gangs.next_at() == 1.0
    assert worker_server.gangs.take_due(1.0)[2] == [leaving]
    assert worker_server.gangs.take_due(2.0)[2] == []
    assert worker_server.load == (1, 0), "code that does not stop keeps its slot"


def test_a_new_epoch_ends_holds_and_members_and_tasks_run_on_until_the_teardown():
    worker_server = Desk()
    hold = worker_server.gang()
    worker_server.held("other", attempt=2)
    worker_server.gangs.keep("third", 2, 1.0, worker_server.now)
    record = worker_server.run(hold.tokens[0])
    worker_server.core.new_epoch(EPOCH + 1, worker_server.now)
    assert worker_server.load == (1, 0)
    (voided,) = worker_server.gangs.take_voided()
    assert voided.gang == "g" and worker_server.gangs.take_voided() == []
    assert worker_server.gangs.ping({"g": 1}, worker_server.now)[0] == {"g": 1}
    assert worker_server.form(hold) == "the worker has a new epoch"
    (leaving,) = worker_server.teardown()
    assert not leaving.stopped
    worker_server.end(record)
    assert worker_server.gangs.take_stopped() == [leaving]
    assert worker_server.load == (0, 0)


# -- draining ----------------------------------------------------------------------------------------------------------


def test_a_draining_worker_holds_nothing_new_and_honours_its_gangs_until_the_grace_ends():
    worker_server = Desk()
    hold, pending = worker_server.gang("a"), worker_server.held("b", attempt=2)
    worker_server.gangs.keep("c", 1, 9.0, worker_server.now)
    worker_server.core.drain(30.0, worker_server.now)
    assert worker_server.hold("d", attempt=3) is Refusal.DRAINING
    assert worker_server.gangs.keep("c", 1, 9.0, worker_server.now) == 0
    assert worker_server.gangs.take_due(worker_server.now)[0] == [pending], (
        "looked up now: the registration is written anew anyway"
    )
    worker_server.formed(pending)
    worker_server.now = 29.0
    worker_server.end(worker_server.run(hold.tokens[0]))
    assert not worker_server.core.at_rest
    worker_server.now = 30.0
    worker_server.core.expire(worker_server.now)
    assert {leaving.gang for leaving in worker_server.gangs.take_cut(worker_server.now)} == {"a", "b"}
    assert worker_server.start(pending.tokens[0]) is Refusal.LEASE_EXPIRED
    assert len(worker_server.gangs.take_stopped()) == 2
    assert worker_server.load == (0, 0) and worker_server.core.at_rest


def test_a_hold_is_not_rest():
    worker_server = Desk()
    hold = worker_server.held()
    assert not worker_server.core.at_rest
    worker_server.gangs.forsake(worker_server.now)
    assert worker_server.core.at_rest and worker_server.hold() is Refusal.EXPIRED and hold.tokens


# -- slots set aside ---------------------------------------------------------------------------------------------------


def test_slots_are_set_aside_as_they_become_free_before_anybody_else_gets_them():
    worker_server = Desk(total=3)
    records = [worker_server.run(None) for _ in range(3)]
    assert worker_server.gangs.keep("g", 2, 5.0, worker_server.now) == 0
    worker_server.end(records[0])
    assert worker_server.start(None) is Refusal.FULL
    assert worker_server.load == (2, 1)
    worker_server.end(records[1])
    worker_server.end(records[2])
    assert worker_server.load == (0, 2)
    assert worker_server.gangs.keep("g", 2, 5.0, worker_server.now) == 2
    worker_server.run(None)


def test_a_hold_takes_what_was_set_aside_for_it_and_gives_back_the_rest():
    worker_server = Desk(total=3)
    worker_server.gangs.keep("g", 3, 5.0, worker_server.now)
    assert worker_server.hold("other", attempt=5) is Refusal.FULL
    worker_server.held(slots=(2,))
    assert worker_server.load == (0, 2)
    worker_server.run(None)


def test_what_a_hold_gives_back_goes_to_the_next_in_line():
    worker_server = Desk(total=3)
    worker_server.gangs.keep("g", 3, 5.0, worker_server.now)
    assert worker_server.gangs.keep("h", 2, 5.0, worker_server.now) == 0
    worker_server.held("g", slots=(1,))
    assert worker_server.gangs.keeps.has("h") == 2


def test_a_keep_is_replaced_by_the_next_and_lapses():
    worker_server = Desk(total=4)
    assert worker_server.gangs.keep("g", 3, 5.0, worker_server.now) == 3
    assert worker_server.gangs.keep("g", 1, 5.0, worker_server.now) == 1
    assert worker_server.load == (0, 1)
    assert worker_server.gangs.keep("g", 0, 5.0, worker_server.now) == 0
    worker_server.gangs.keep("g", 2, 5.0, worker_server.now)
    assert worker_server.gangs.next_at() == 5.0
    worker_server.now = 5.0
    worker_server.gangs.take_due(worker_server.now)
    assert worker_server.load == (0, 0)


def test_a_resize_upwards_goes_to_the_keeps_first():
    worker_server = Desk(total=1)
    worker_server.run(None)
    worker_server.gangs.keep("g", 2, 5.0, worker_server.now)
    worker_server.core.resize(3)
    assert worker_server.load == (1, 2)


def test_what_was_set_aside_makes_no_room_while_a_resize_downwards_is_not_worked_off():
    worker_server = Desk(total=3)
    worker_server.run(None, 2)
    assert worker_server.gangs.keep("g", 1, 5.0, worker_server.now) == 1
    worker_server.core.resize(2)
    assert worker_server.hold() is Refusal.FULL
    assert worker_server.load == (2, 1)


# -- others ------------------------------------------------------------------------------------------------------------


def test_marks_are_forgotten_after_a_while():
    worker_server = Desk()
    worker_server.gangs.unhold("g", 1, 1, worker_server.now)
    worker_server.now = 60.0
    worker_server.core.sweep(worker_server.now)
    worker_server.held()


def test_operators_see_what_is_held_for_whom():
    worker_server = Desk(total=9)
    worker_server.gang("a", slots=(2, 1))
    worker_server.held("b", generation=3)
    worker_server.gangs.keep("c", 2, 5.0, worker_server.now)
    stopping = worker_server.gang("d")
    worker_server.run(stopping.tokens[0])
    worker_server.teardown("d")
    found = [
        (share.gang, share.state, share.generation, share.ranks, share.slots) for share in shares(worker_server.gangs)
    ]
    assert found == [
        ("c", "kept", 0, (), 2),
        ("b", "held", 3, (0,), 1),
        ("a", "formed", 1, (0, 1), 3),
        ("d", "stopping", 1, (0,), 1),
    ]


@in_rows("what", ["hold", "member", "leaving"])
def test_check_finds_what_is_wrong(what):
    worker_server = Desk()
    worker_server.gang("a")
    hold = worker_server.held("b", attempt=2)
    worker_server.gang("c", attempt=3)
    if what == "hold":
        worker_server.core._leases.living[hold.tokens[0]] = hold.seats[0].lease
    elif what == "member":
        del worker_server.gangs.members["a"]
    else:
        worker_server.gangs.leaving.append(worker_server.gangs.stop(worker_server.gangs.members["c"], "over", 1.0, 0.0))
        worker_server.gangs.leaving[-1].seats[0].lease.ended = None
    with pytest.raises(AssertionError):
        worker_server.core.check()


# -- subleases ---------------------------------------------------------------------------------------------------------


def sublease(worker_server: Desk, seat: str, slots: int = 1, *, single_use: bool = True, rid: int | None = None) -> Any:
    worker_server.tasks += 1
    worker_server.tokens += 1
    found = worker_server.core.reserve(
        worker_server.core.sender("s", worker_server.now),
        worker_server.tasks if rid is None else rid,
        slots=slots,
        ttl_s=5.0,
        claim_s=2.0,
        single_use=single_use,
        owner="",
        token=f"sub{worker_server.tokens}",
        seat=seat,
        now=worker_server.now,
    )
    worker_server.core.check()
    return found


def test_slots_of_a_seat_can_be_held_by_a_token_of_their_own_and_nobody_else_gets_them():
    worker_server = Desk(total=4)
    (token,) = worker_server.gang(slots=(2,)).tokens
    first, second = sublease(worker_server, token), sublease(worker_server, token, single_use=False)
    assert worker_server.load == (0, 2), "they are the seat's"
    assert sublease(worker_server, token) is Refusal.FULL
    assert worker_server.start(token) is Refusal.LEASE_BUSY
    once, often = worker_server.run(first.token), worker_server.run(second.token)
    assert worker_server.load == (2, 0) and once.fence == often.fence == 9, "the gang's own"
    assert worker_server.start(first.token) is Refusal.LEASE_USED
    assert worker_server.start(second.token) is Refusal.LEASE_BUSY
    worker_server.end(once)
    worker_server.end(often)
    assert worker_server.load == (0, 2)
    worker_server.run(token)
    worker_server.run(second.token)


def test_what_is_held_of_a_seat_comes_back_to_it_released_or_expired_or_used():
    worker_server = Desk(total=1)
    (token,) = worker_server.gang().tokens
    held = sublease(worker_server, token, rid=90)
    assert sublease(worker_server, token, rid=90) is held, "the same request, the same answer"
    assert worker_server.core.release(worker_server.core.sender("s", 0.0), None, held.token, worker_server.now)
    held = sublease(worker_server, token)
    worker_server.now = 2.0
    worker_server.core.expire(worker_server.now)
    assert worker_server.start(held.token) is Refusal.LEASE_EXPIRED
    held = sublease(worker_server, token, single_use=False)
    task = worker_server.run(held.token)
    worker_server.core.release(worker_server.core.sender("s", worker_server.now), None, held.token, worker_server.now)
    assert sublease(worker_server, token) is Refusal.FULL, "its task has not ended"
    worker_server.end(task)
    worker_server.run(sublease(worker_server, token).token)


@in_rows("lingers", [False, True])
def test_what_is_held_of_a_seat_ends_with_it_and_its_tasks_are_waited_for(lingers: bool):
    worker_server = Desk(total=3)
    worker_server.gangs.lingers = lingers
    (token,) = worker_server.gang(slots=(3,)).tokens
    held = [
        sublease(worker_server, token),
        sublease(worker_server, token, single_use=False),
        sublease(worker_server, token),
    ]
    tasks = [worker_server.run(lease.token) for lease in held[:2]]
    (leaving,) = worker_server.teardown()
    assert not leaving.stopped and {lease.ended for lease in held} == {Refusal.LEASE_USED, Refusal.GANG_OVER}
    assert [worker_server.start(lease.token) for lease in held] == [
        Refusal.LEASE_USED,
        Refusal.GANG_OVER,
        Refusal.GANG_OVER,
    ]
    assert sublease(worker_server, token) is Refusal.GANG_OVER
    for task in tasks:
        worker_server.end(task)
    assert leaving.stopped
    worker_server.gangs.take_stopped()
    assert worker_server.load == (0, 0) and worker_server.core.at_rest


def test_nothing_is_held_of_what_is_no_seat_or_too_small_or_drains():
    worker_server = Desk(total=4)
    hold = worker_server.held(slots=(1,))
    assert sublease(worker_server, hold.tokens[0]) is Refusal.FULL, "before the commit, as tasks on it"
    worker_server.formed(hold)
    assert sublease(worker_server, hold.tokens[0], 2) is Refusal.LEASE_TOO_SMALL
    assert sublease(worker_server, "nobody's") is Refusal.UNKNOWN_TOKEN
    held = sublease(worker_server, hold.tokens[0])
    assert sublease(worker_server, held.token) is Refusal.UNKNOWN_TOKEN, "not of another sublease"
    worker_server.core.drain(9.0, worker_server.now)
    assert sublease(worker_server, hold.tokens[0]) is Refusal.DRAINING
    worker_server.run(held.token)
    worker_server.core.new_epoch(EPOCH + 1, worker_server.now)
    worker_server.core.check()
    assert worker_server.core.leases == {} and worker_server.load == (1, 0)
