"""The worker's core: one test for each promise, in words. The state machine beside this one looks for the rest."""

from __future__ import annotations

import pytest

from gangline.runtime.timers import NEVER
from gangline.schemas.wire.frames import Load, LoadFlag, TaskState
from gangline.worker.slots.admission_core import AdmissionCore, CoreSettings
from gangline.worker.slots.lease_table import WITHDRAWN, GrantedLease, LeaseTransition, Refusal, TaskRecord
from gangline.worker.slots.limiter import LimiterError


class Bench:
    """A core, a clock and a source of tokens. `check` runs after every call."""

    def __init__(self, slots: int = 2, **settings: float) -> None:
        self.core = AdmissionCore(slots, 1000, CoreSettings(**settings))  # type: ignore[arg-type]
        self.now = 0.0
        self.tokens = 0

    def me(self, name: str = "router"):
        return self.core.sender(name, self.now)

    def reserve(
        self,
        rid: int | str | None = 1,
        *,
        slots: int = 1,
        ttl_s: float = 10.0,
        claim_s: float = 2.0,
        single_use: bool = False,
    ) -> GrantedLease | Refusal:  # noqa: E501
        self.tokens += 1
        answer = self.core.reserve(
            self.me(), rid, slots=slots, ttl_s=ttl_s, claim_s=claim_s, single_use=single_use, owner="",
            token=f"token-{self.tokens}", now=self.now,
        )  # fmt: skip
        self.core.check()
        return answer

    def granted(self, rid: int | str | None = 1, **terms) -> GrantedLease:
        lease = self.reserve(rid, **terms)
        assert isinstance(lease, GrantedLease), lease
        return lease

    def admit(self, task_id: int, *, cost: int = 1, token: str | None = None, deadline_at: float = NEVER):
        answer = self.core.admit(self.me(), task_id, cost=cost, token=token, deadline_at=deadline_at, now=self.now)
        self.core.check()
        return answer

    def started(self, task_id: int, **terms) -> TaskRecord:
        record = self.admit(task_id, **terms)
        assert isinstance(record, TaskRecord), record
        return record

    def end(self, record: TaskRecord, answer: bytes = b"answer") -> None:
        self.core.settle(record.sender, record.id, answer, self.now)
        self.core.finish(record)
        self.core.check()

    def changes(self) -> list[LeaseTransition]:
        return [change for change, _ in self.core.take_changes()]

    @property
    def slots(self) -> tuple[int, int, int]:
        load = self.core.load
        return load.running, load.reserved, load.total


# -- L1, L2 -----------------------------------------------------------------------------------------------------------


def test_leases_and_tasks_share_one_capacity():
    bench = Bench(slots=2)
    bench.granted(1)
    record = bench.started(2)
    assert bench.reserve(3) is Refusal.FULL
    assert bench.admit(4) is Refusal.FULL
    bench.end(record)
    assert bench.slots == (0, 1, 2)
    bench.started(5)


def test_a_task_leaves_its_slots_once():
    bench = Bench()
    record = bench.started(1)
    bench.end(record)
    with pytest.raises(LimiterError):
        bench.core.finish(record)
    assert bench.slots == (0, 0, 2)


def test_a_request_for_more_than_the_worker_ever_has_is_told_so():
    bench = Bench(slots=2)
    assert bench.reserve(1, slots=3) is Refusal.TOO_LARGE
    assert bench.admit(2, cost=3) is Refusal.TOO_LARGE


def test_a_paused_worker_is_full_and_not_too_small():
    bench = Bench(slots=2)
    bench.core.resize(0)
    assert bench.reserve(1, slots=2) is Refusal.FULL
    assert bench.admit(2) is Refusal.FULL


def test_a_resize_downwards_grants_nothing_until_all_fits():
    bench = Bench(slots=3)
    records = [bench.started(number) for number in range(3)]
    bench.core.resize(1)
    bench.core.check()
    bench.end(records[0])
    assert bench.admit(10) is Refusal.FULL
    bench.end(records[1])
    assert bench.admit(11) is Refusal.FULL
    bench.end(records[2])
    bench.started(12)


def test_a_lease_is_honoured_after_a_resize_below_it():
    bench = Bench(slots=2)
    lease = bench.granted(slots=2)
    bench.core.resize(1)
    bench.started(5, token=lease.token)
    bench.started(6, token=lease.token)


# -- reserve and release ----------------------------------------------------------------------------------------------


def test_the_same_request_id_gets_the_same_grant():
    bench = Bench()
    first = bench.granted(1)
    assert bench.reserve(1) is first
    assert bench.slots == (0, 1, 2)
    assert bench.changes() == [LeaseTransition.GRANT]


def test_a_refusal_is_repeated_too_even_when_there_is_room_now():
    bench = Bench(slots=1)
    lease = bench.granted(1)
    assert bench.reserve(2) is Refusal.FULL
    bench.core.release(bench.me(), None, lease.token, bench.now)
    assert bench.reserve(2) is Refusal.FULL, "the caller was told so and may have gone elsewhere"
    assert isinstance(bench.reserve(3), GrantedLease)


def test_a_repeated_request_whose_lease_has_ended_gets_nothing_new():
    bench = Bench()
    lease = bench.granted(1)
    bench.core.release(bench.me(), None, lease.token, bench.now)
    assert bench.reserve(1) is Refusal.EXPIRED
    bench.granted(2)
    bench.now = 2.0
    assert bench.reserve(2) is Refusal.EXPIRED


def test_a_release_that_overtakes_its_reserve_wins():
    bench = Bench()
    assert not bench.core.release(bench.me(), 1, None, bench.now)
    assert bench.reserve(1) is Refusal.EXPIRED
    assert bench.slots == (0, 0, 2)


def test_a_release_by_request_id_ends_the_lease():
    bench = Bench()
    bench.granted(1)
    assert bench.core.release(bench.me(), 1, None, bench.now)
    assert not bench.core.release(bench.me(), 1, None, bench.now)
    assert bench.slots == (0, 0, 2)
    assert bench.changes() == [LeaseTransition.GRANT, LeaseTransition.RELEASE]


def test_releasing_the_unknown_is_a_no_op():
    bench = Bench()
    assert not bench.core.release(bench.me(), None, "nobody", bench.now)
    assert not bench.core.release(bench.me(), None, None, bench.now)
    assert bench.core.statistics()["reserves"] == 0


def test_a_release_after_a_full_answer_leaves_the_answer_standing():
    bench = Bench(slots=1)
    bench.granted(1)
    assert bench.reserve(2) is Refusal.FULL
    assert not bench.core.release(bench.me(), 2, None, bench.now)
    assert bench.reserve(2) is Refusal.FULL


def test_senders_cannot_release_each_others_requests():
    bench = Bench()
    bench.granted(1)
    assert not bench.core.release(bench.me("other"), 1, None, bench.now)
    assert bench.slots == (0, 1, 2)


# -- L3 ---------------------------------------------------------------------------------------------------------------


def test_a_single_use_token_starts_one_task():
    bench = Bench()
    lease = bench.granted(single_use=True)
    record = bench.started(2, token=lease.token)
    assert bench.slots == (1, 0, 2)
    assert bench.admit(3, token=lease.token) is Refusal.LEASE_USED
    bench.end(record)
    assert bench.slots == (0, 0, 2)
    assert bench.admit(4, token=lease.token) is Refusal.LEASE_USED
    assert bench.changes() == [LeaseTransition.GRANT, LeaseTransition.USE]


def test_a_single_use_token_is_consumed_by_a_task_that_cannot_start():
    bench = Bench()
    late = bench.granted(1, single_use=True)
    wrong = bench.granted(2, single_use=True)
    bench.now = 1.0
    assert bench.admit(3, token=late.token, deadline_at=1.0) is Refusal.EXPIRED
    bench.core.refuse(wrong.token, bench.now)
    assert bench.slots == (0, 0, 2)
    assert bench.admit(4, token=wrong.token) is Refusal.LEASE_USED


def test_a_multi_use_token_survives_a_task_that_cannot_start():
    bench = Bench()
    lease = bench.granted()
    bench.core.refuse(lease.token, bench.now)
    assert bench.admit(3, token=lease.token, deadline_at=0.0) is Refusal.EXPIRED
    bench.started(4, token=lease.token)


def test_a_multi_use_lease_runs_as_many_at_once_as_it_has_slots():
    bench = Bench(slots=4)
    lease = bench.granted(slots=2)
    one, two = bench.started(2, token=lease.token), bench.started(3, token=lease.token)
    assert bench.admit(4, token=lease.token) is Refusal.LEASE_BUSY
    bench.end(one)
    assert bench.slots == (1, 1, 4), "its slot is the lease's again"
    bench.started(5, token=lease.token)
    bench.end(two)


def test_a_task_that_costs_more_than_its_whole_lease_is_told_so():
    bench = Bench(slots=4)
    lease = bench.granted(slots=2)
    assert bench.admit(4, cost=3, token=lease.token) is Refusal.LEASE_TOO_SMALL


def test_slots_of_a_released_lease_come_back_idle_at_once_and_used_ones_later():
    bench = Bench(slots=3)
    lease = bench.granted(slots=3)
    record = bench.started(2, token=lease.token)
    bench.core.release(bench.me(), None, lease.token, bench.now)
    assert bench.slots == (1, 0, 3)
    bench.end(record)
    assert bench.slots == (0, 0, 3)


def test_a_running_task_that_comes_again_is_known():
    bench = Bench()
    bench.started(1)
    repeat = bench.core.repeated(bench.me(), 1)
    assert repeat is not None
    assert repeat.state is TaskState.RUNNING


def test_an_answered_task_that_comes_again_gets_its_answer():
    bench = Bench()
    bench.end(bench.started(1), b"42")
    repeat = bench.core.repeated(bench.me(), 1)
    assert repeat == (TaskState.ANSWERED, b"42")


def test_a_forgotten_task_that_comes_again_is_not_taken_for_a_new_one():
    bench = Bench(keep_s=5.0)
    bench.end(bench.started(7), b"42")
    bench.now = 5.0
    bench.core.sweep(bench.now)
    for task_id in (3, 7):
        repeat = bench.core.repeated(bench.me(), task_id)
        assert repeat is not None
        assert repeat.state is TaskState.FORGOTTEN
    assert bench.core.repeated(bench.me(), 8) is None


def test_a_task_withdrawn_before_it_came_never_starts():
    bench = Bench()
    assert bench.core.withdraw(bench.me(), 1, bench.now) is None
    assert bench.core.repeated(bench.me(), 1) == (TaskState.ANSWERED, WITHDRAWN)
    assert bench.core.look_up(bench.me(), 1, bench.now).state is TaskState.UNKNOWN


def test_a_task_that_was_asked_after_before_it_came_never_starts():
    bench = Bench()
    assert bench.core.look_up(bench.me(), 1, bench.now).state is TaskState.UNKNOWN
    assert bench.core.look_up(bench.me(), 1, bench.now).state is TaskState.UNKNOWN
    assert bench.core.repeated(bench.me(), 1) is not None


def test_a_task_of_a_forgotten_sender_is_never_called_unknown():
    bench = Bench(keep_s=1.0)
    bench.end(bench.started(7))
    for bench.now in (5.0, 10.0):
        bench.core.sweep(bench.now)
    assert bench.core.statistics()["senders"] == 0
    for task_id in (7, 3):
        assert bench.core.look_up(bench.me(), task_id, bench.now).state is TaskState.FORGOTTEN
    assert bench.core.repeated(bench.me(), 8) is None
    bench.started(8)
    assert bench.core.look_up(bench.me(), 9, bench.now).state is TaskState.UNKNOWN


def test_a_running_task_that_is_withdrawn_is_handed_out_for_cancelling():
    bench = Bench()
    record = bench.started(1)
    assert bench.core.withdraw(bench.me(), 1, bench.now) is record
    assert bench.slots == (1, 0, 2), "it holds its slot until its code has stopped"
    bench.end(record)


def test_an_abandoned_task_is_answered_and_still_holds_its_slot():
    bench = Bench()
    record = bench.started(1)
    bench.core.settle(record.sender, 1, b"cancelled", bench.now)
    bench.core.check()
    assert bench.core.look_up(bench.me(), 1, bench.now) == (TaskState.ANSWERED, b"cancelled")
    assert bench.slots == (1, 0, 2)
    bench.core.finish(record)
    assert bench.slots == (0, 0, 2)


# -- L4, L5 -----------------------------------------------------------------------------------------------------------


def test_an_unclaimed_grant_frees_itself_after_the_claim_timeout():
    bench = Bench()
    bench.granted(claim_s=2.0)
    assert bench.core.next_deadline() == 2.0
    bench.now = 2.0
    assert bench.core.expire(bench.now).leases == 1
    assert bench.slots == (0, 0, 2)
    assert bench.core.next_deadline() is None


def test_a_use_gives_a_lease_its_whole_time_to_live():
    bench = Bench()
    lease = bench.granted(ttl_s=10.0)
    bench.now = 1.0
    bench.end(bench.started(2, token=lease.token))
    bench.now = 10.9
    assert bench.core.expire(bench.now).leases == 0
    bench.now = 11.0
    assert bench.core.expire(bench.now).leases == 1


def test_a_renewal_counts_as_the_claim_and_may_change_the_time_to_live():
    bench = Bench()
    lease = bench.granted(ttl_s=10.0)
    bench.now = 1.0
    assert bench.core.renew(lease.token, 30.0, bench.now) == 30.0
    bench.now = 20.0
    assert bench.core.renew(lease.token, None, bench.now) == 30.0
    assert lease.due_at == 50.0


def test_a_renewal_may_shorten_a_lease():
    bench = Bench()
    lease = bench.granted(ttl_s=100.0, claim_s=100.0)
    bench.core.renew(lease.token, 1.0, bench.now)
    assert bench.core.next_deadline() == 1.0
    assert bench.core.expire(1.0).leases == 1


def test_nothing_starts_on_an_expired_token_even_if_the_timer_is_late():
    bench = Bench()
    lease = bench.granted()
    bench.now = 2.0
    assert bench.admit(3, token=lease.token) is Refusal.LEASE_EXPIRED
    assert bench.core.renew(lease.token, None, bench.now) is Refusal.LEASE_EXPIRED
    assert bench.slots == (0, 0, 2)
    assert bench.changes() == [LeaseTransition.GRANT, LeaseTransition.EXPIRE]


def test_nothing_starts_on_an_unknown_token():
    bench = Bench()
    assert bench.admit(3, token="nobody") is Refusal.UNKNOWN_TOKEN
    assert bench.core.renew("nobody", None, bench.now) is Refusal.UNKNOWN_TOKEN


def test_nothing_starts_after_its_deadline():
    bench = Bench()
    bench.now = 5.0
    assert bench.admit(1, deadline_at=5.0) is Refusal.EXPIRED


def test_a_running_task_is_named_once_when_its_deadline_passes():
    bench = Bench()
    record = bench.started(1, deadline_at=3.0)
    bench.started(2, deadline_at=9.0)
    assert bench.core.next_deadline() == 3.0
    assert bench.core.expire(3.0).tasks == [record]
    assert bench.core.expire(4.0).tasks == []
    assert bench.slots == (2, 0, 2), "it holds its slot until its code has stopped"


def test_a_task_that_ended_is_not_overdue():
    bench = Bench()
    bench.end(bench.started(1, deadline_at=3.0))
    assert bench.core.expire(5.0).tasks == []


# -- epochs -----------------------------------------------------------------------------------------------------------


def test_a_new_epoch_voids_the_leases_and_lets_tasks_go_on():
    bench = Bench(slots=3)
    lease = bench.granted(slots=2)
    record = bench.started(2, token=lease.token)
    bench.core.new_epoch(1001, bench.now)
    bench.core.check()
    assert bench.slots == (1, 0, 3)
    assert bench.admit(3, token=lease.token) is Refusal.LEASE_STALE
    bench.end(record)
    assert bench.slots == (0, 0, 3)
    assert bench.changes() == [LeaseTransition.GRANT, LeaseTransition.RENEW, LeaseTransition.DROP]


def test_an_epoch_never_goes_back():
    bench = Bench()
    with pytest.raises(ValueError, match="is not after 1000"):
        bench.core.new_epoch(1000, bench.now)
    assert bench.core.epoch == 1000


def test_in_doubt_nothing_is_granted_or_started_until_a_new_epoch():
    bench = Bench(slots=3)
    lease = bench.granted()
    record = bench.started(2)
    bench.core.doubt()
    assert bench.reserve(3) is Refusal.STALE
    assert bench.admit(4) is Refusal.STALE
    assert bench.admit(5, token=lease.token) is Refusal.STALE
    assert bench.core.told_load == Load(1, 2, 3) and not bench.core.has_room
    bench.end(record)
    bench.core.check()
    bench.core.new_epoch(1001, bench.now)
    assert bench.core.told_load == bench.core.load == Load(0, 0, 3)
    bench.granted(6)


def test_once_fenced_it_never_grants_or_starts_anything_again_and_keeps_its_epoch():
    bench = Bench(slots=3)
    lease = bench.granted()
    record = bench.started(2)
    bench.core.fence(bench.now)
    bench.core.check()
    assert bench.core.epoch == 1000 and bench.slots == (1, 0, 3)
    assert bench.reserve(3) is Refusal.STALE
    assert bench.admit(4, token=lease.token) is Refusal.STALE
    bench.end(record)
    assert bench.core.at_rest


def test_fences_grow_over_epochs():
    bench = Bench()
    before = bench.granted(1).fence
    bench.core.new_epoch(1001, bench.now)
    assert bench.granted(2).fence > before


# -- L11 --------------------------------------------------------------------------------------------------------------


def test_a_draining_core_grants_nothing_and_honours_what_it_granted():
    bench = Bench(slots=4)
    lease = bench.granted()
    bench.core.drain(30.0, bench.now)
    bench.core.check()
    assert bench.reserve(2) is Refusal.DRAINING
    assert bench.admit(3) is Refusal.DRAINING
    record = bench.started(4, token=lease.token)
    assert bench.core.load == Load(1, 0, 4, LoadFlag.DRAINING)
    assert not bench.core.at_rest
    bench.end(record)
    bench.core.release(bench.me(), None, lease.token, bench.now)
    assert bench.core.at_rest


def test_no_lease_outlives_the_grace_of_a_drain():
    bench = Bench()
    lease = bench.granted(ttl_s=100.0, claim_s=100.0)
    bench.core.drain(5.0, bench.now)
    assert bench.core.next_deadline() == 5.0
    bench.now = 4.0
    assert bench.core.renew(lease.token, None, bench.now) == 1.0
    assert bench.core.expire(5.0).leases == 1


def test_a_second_drain_may_only_shorten_the_grace():
    bench = Bench()
    lease = bench.granted(ttl_s=100.0, claim_s=100.0)
    bench.core.drain(5.0, bench.now)
    bench.core.drain(50.0, bench.now)
    assert bench.core.renew(lease.token, None, bench.now) == 5.0
    bench.core.drain(1.0, bench.now)
    assert lease.due_at == 1.0


# -- accounts ---------------------------------------------------------------------------------------------------------


def test_its_statistics_are_zero_at_rest_and_its_repr_tells_the_state():
    bench = Bench(keep_s=1.0)
    lease = bench.granted()
    record = bench.started(2, token=lease.token)
    assert repr(bench.core).startswith("<AdmissionCore epoch=1000 1 leases, SlotLimiter(total=2, running=1")
    bench.end(record)
    bench.core.release(bench.me(), None, lease.token, bench.now)
    for bench.now in (5.0, 10.0):
        bench.core.sweep(bench.now)
    assert bench.core.statistics() == dict.fromkeys(
        ("leases", "tasks", "jobs", "unstored", "senders", "reserves", "answers", "answer_bytes"), 0
    )


def test_check_notices_a_slot_that_nobody_holds():
    bench = Bench()
    bench.core._limiter.run_nowait("stray")
    with pytest.raises(AssertionError):
        bench.core.check()
