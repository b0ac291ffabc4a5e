"""The worker's core: one test for each promise, in words. The state machine beside this one looks for the rest."""

from __future__ import annotations

import pytest

from gangline.runtime.timers import NEVER
from gangline.schemas.wire.frames import Load, LoadFlag, TaskState
from gangline.worker.slots.admission_core import AdmissionCore, CoreSettings
from gangline.worker.slots.lease_table import WITHDRAWN, GrantedLease, LeaseTransition, Refusal, TaskRecord


class Admission:
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


@pytest.fixture
def admission() -> Admission:
    return Admission()


# -- L1, L2 -----------------------------------------------------------------------------------------------------------


def test_leases_and_tasks_share_one_capacity(admission: Admission):
    admission.granted(1)
    record = admission.started(2)
    assert admission.reserve(3) is Refusal.FULL
    assert admission.admit(4) is Refusal.FULL
    admission.end(record)
    assert admission.slots == (0, 1, 2)
    admission.started(5)


def test_a_request_for_more_than_the_worker_ever_has_is_told_so(admission: Admission):
    assert admission.reserve(1, slots=3) is Refusal.TOO_LARGE
    assert admission.admit(2, cost=3) is Refusal.TOO_LARGE


def test_a_paused_worker_is_full_and_not_too_small(admission: Admission):
    admission.core.resize(0)
    assert admission.reserve(1, slots=2) is Refusal.FULL
    assert admission.admit(2) is Refusal.FULL


def test_a_lease_is_honoured_after_a_resize_below_it(admission: Admission):
    lease = admission.granted(slots=2)
    admission.core.resize(1)
    admission.started(5, token=lease.token)
    admission.started(6, token=lease.token)


# -- reserve and release ----------------------------------------------------------------------------------------------


def test_the_same_request_id_gets_the_same_grant(admission: Admission):
    first = admission.granted(1)
    assert admission.reserve(1) is first
    assert admission.slots == (0, 1, 2)
    assert admission.changes() == [LeaseTransition.GRANT]


def test_a_refusal_is_repeated_too_even_when_there_is_room_now():
    admission = Admission(slots=1)
    lease = admission.granted(1)
    assert admission.reserve(2) is Refusal.FULL
    admission.core.release(admission.me(), None, lease.token, admission.now)
    assert admission.reserve(2) is Refusal.FULL, "the caller was told so and may have gone elsewhere"
    assert isinstance(admission.reserve(3), GrantedLease)


def test_a_repeated_request_whose_lease_has_ended_gets_nothing_new(admission: Admission):
    lease = admission.granted(1)
    admission.core.release(admission.me(), None, lease.token, admission.now)
    assert admission.reserve(1) is Refusal.EXPIRED
    admission.granted(2)
    admission.now = 2.0
    assert admission.reserve(2) is Refusal.EXPIRED


def test_a_release_that_overtakes_its_reserve_wins(admission: Admission):
    assert not admission.core.release(admission.me(), 1, None, admission.now)
    assert admission.reserve(1) is Refusal.EXPIRED
    assert admission.slots == (0, 0, 2)


def test_a_release_by_request_id_ends_the_lease(admission: Admission):
    admission.granted(1)
    assert admission.core.release(admission.me(), 1, None, admission.now)
    assert not admission.core.release(admission.me(), 1, None, admission.now)
    assert admission.slots == (0, 0, 2)
    assert admission.changes() == [LeaseTransition.GRANT, LeaseTransition.RELEASE]


def test_releasing_the_unknown_is_a_no_op(admission: Admission):
    assert not admission.core.release(admission.me(), None, "nobody", admission.now)
    assert not admission.core.release(admission.me(), None, None, admission.now)
    assert admission.core.statistics()["reserves"] == 0


def test_a_release_after_a_full_answer_leaves_the_answer_standing():
    admission = Admission(slots=1)
    admission.granted(1)
    assert admission.reserve(2) is Refusal.FULL
    assert not admission.core.release(admission.me(), 2, None, admission.now)
    assert admission.reserve(2) is Refusal.FULL


def test_senders_cannot_release_each_others_requests(admission: Admission):
    admission.granted(1)
    assert not admission.core.release(admission.me("other"), 1, None, admission.now)
    assert admission.slots == (0, 1, 2)


# -- L3 ---------------------------------------------------------------------------------------------------------------


def test_a_single_use_token_starts_one_task(admission: Admission):
    lease = admission.granted(single_use=True)
    record = admission.started(2, token=lease.token)
    assert admission.slots == (1, 0, 2)
    assert admission.admit(3, token=lease.token) is Refusal.LEASE_USED
    admission.end(record)
    assert admission.slots == (0, 0, 2)
    assert admission.admit(4, token=lease.token) is Refusal.LEASE_USED
    assert admission.changes() == [LeaseTransition.GRANT, LeaseTransition.USE]


def test_a_single_use_token_is_consumed_by_a_task_that_cannot_start(admission: Admission):
    late = admission.granted(1, single_use=True)
    wrong = admission.granted(2, single_use=True)
    admission.now = 1.0
    assert admission.admit(3, token=late.token, deadline_at=1.0) is Refusal.EXPIRED
    admission.core.refuse(wrong.token, admission.now)
    assert admission.slots == (0, 0, 2)
    assert admission.admit(4, token=wrong.token) is Refusal.LEASE_USED


def test_a_multi_use_token_survives_a_task_that_cannot_start(admission: Admission):
    lease = admission.granted()
    admission.core.refuse(lease.token, admission.now)
    assert admission.admit(3, token=lease.token, deadline_at=0.0) is Refusal.EXPIRED
    admission.started(4, token=lease.token)


def test_a_multi_use_lease_runs_as_many_at_once_as_it_has_slots():
    admission = Admission(slots=4)
    lease = admission.granted(slots=2)
    one, two = admission.started(2, token=lease.token), admission.started(3, token=lease.token)
    assert admission.admit(4, token=lease.token) is Refusal.LEASE_BUSY
    admission.end(one)
    assert admission.slots == (1, 1, 4), "its slot is the lease's again"
    admission.started(5, token=lease.token)
    admission.end(two)


def test_a_task_that_costs_more_than_its_whole_lease_is_told_so():
    admission = Admission(slots=4)
    lease = admission.granted(slots=2)
    assert admission.admit(4, cost=3, token=lease.token) is Refusal.LEASE_TOO_SMALL


def test_a_task_that_comes_again_is_known_while_it_runs_and_gets_its_answer_afterwards(admission: Admission):
    record = admission.started(1)
    repeat = admission.core.repeated(admission.me(), 1)
    assert repeat is not None and repeat.state is TaskState.RUNNING
    admission.end(record, b"42")
    assert admission.core.repeated(admission.me(), 1) == (TaskState.ANSWERED, b"42")


def test_a_forgotten_task_that_comes_again_is_not_taken_for_a_new_one():
    admission = Admission(keep_s=5.0)
    admission.end(admission.started(7), b"42")
    admission.now = 5.0
    admission.core.sweep(admission.now)
    for task_id in (3, 7):
        repeat = admission.core.repeated(admission.me(), task_id)
        assert repeat is not None
        assert repeat.state is TaskState.FORGOTTEN
    assert admission.core.repeated(admission.me(), 8) is None


def test_a_task_withdrawn_before_it_came_never_starts(admission: Admission):
    assert admission.core.withdraw(admission.me(), 1, admission.now) is None
    assert admission.core.repeated(admission.me(), 1) == (TaskState.ANSWERED, WITHDRAWN)
    assert admission.core.look_up(admission.me(), 1, admission.now).state is TaskState.UNKNOWN


def test_a_task_that_was_asked_after_before_it_came_never_starts(admission: Admission):
    assert admission.core.look_up(admission.me(), 1, admission.now).state is TaskState.UNKNOWN
    assert admission.core.look_up(admission.me(), 1, admission.now).state is TaskState.UNKNOWN
    assert admission.core.repeated(admission.me(), 1) is not None


def test_a_task_of_a_forgotten_sender_is_never_called_unknown():
    admission = Admission(keep_s=1.0)
    admission.end(admission.started(7))
    for admission.now in (5.0, 10.0):
        admission.core.sweep(admission.now)
    assert admission.core.statistics()["senders"] == 0
    for task_id in (7, 3):
        assert admission.core.look_up(admission.me(), task_id, admission.now).state is TaskState.FORGOTTEN
    assert admission.core.repeated(admission.me(), 8) is None
    admission.started(8)
    assert admission.core.look_up(admission.me(), 9, admission.now).state is TaskState.UNKNOWN


def test_a_running_task_that_is_withdrawn_is_handed_out_for_cancelling(admission: Admission):
    record = admission.started(1)
    assert admission.core.withdraw(admission.me(), 1, admission.now) is record
    assert admission.slots == (1, 0, 2), "it holds its slot until its code has stopped"
    admission.end(record)


def test_an_abandoned_task_is_answered_and_still_holds_its_slot(admission: Admission):
    record = admission.started(1)
    admission.core.settle(record.sender, 1, b"cancelled", admission.now)
    admission.core.check()
    assert admission.core.look_up(admission.me(), 1, admission.now) == (TaskState.ANSWERED, b"cancelled")
    assert admission.slots == (1, 0, 2)
    admission.core.finish(record)
    assert admission.slots == (0, 0, 2)


# -- L4, L5 -----------------------------------------------------------------------------------------------------------


def test_a_renewal_counts_as_the_claim_and_may_change_the_time_to_live(admission: Admission):
    lease = admission.granted(ttl_s=10.0)
    admission.now = 1.0
    assert admission.core.renew(lease.token, 30.0, admission.now) == 30.0
    admission.now = 20.0
    assert admission.core.renew(lease.token, None, admission.now) == 30.0
    assert lease.due_at == 50.0


def test_a_renewal_is_answered_with_the_time_to_live_itself_at_any_time(admission: Admission):
    lease = admission.granted(claim_s=1000.0)
    admission.now = 495.94
    assert (admission.now + 30.0) - admission.now != 30.0
    assert admission.core.renew(lease.token, 30.0, admission.now) == 30.0


def test_a_renewal_may_shorten_a_lease(admission: Admission):
    lease = admission.granted(ttl_s=100.0, claim_s=100.0)
    admission.core.renew(lease.token, 1.0, admission.now)
    assert admission.core.next_deadline() == 1.0
    assert admission.core.expire(1.0).leases == 1


def test_nothing_starts_on_an_expired_token_even_if_the_timer_is_late(admission: Admission):
    lease = admission.granted()
    admission.now = 2.0
    assert admission.admit(3, token=lease.token) is Refusal.LEASE_EXPIRED
    assert admission.core.renew(lease.token, None, admission.now) is Refusal.LEASE_EXPIRED
    assert admission.slots == (0, 0, 2)
    assert admission.changes() == [LeaseTransition.GRANT, LeaseTransition.EXPIRE]


def test_nothing_starts_on_an_unknown_token(admission: Admission):
    assert admission.admit(3, token="nobody") is Refusal.UNKNOWN_TOKEN
    assert admission.core.renew("nobody", None, admission.now) is Refusal.UNKNOWN_TOKEN


def test_nothing_starts_after_its_deadline(admission: Admission):
    admission.now = 5.0
    assert admission.admit(1, deadline_at=5.0) is Refusal.EXPIRED


def test_a_running_task_is_named_once_when_its_deadline_passes(admission: Admission):
    record = admission.started(1, deadline_at=3.0)
    admission.started(2, deadline_at=9.0)
    assert admission.core.next_deadline() == 3.0
    assert admission.core.expire(3.0).tasks == [record]
    assert admission.core.expire(4.0).tasks == []
    assert admission.slots == (2, 0, 2), "it holds its slot until its code has stopped"


def test_a_task_that_ended_is_not_overdue(admission: Admission):
    admission.end(admission.started(1, deadline_at=3.0))
    assert admission.core.expire(5.0).tasks == []


# -- epochs -----------------------------------------------------------------------------------------------------------


def test_a_new_epoch_voids_the_leases_and_lets_tasks_go_on():
    admission = Admission(slots=3)
    lease = admission.granted(slots=2)
    record = admission.started(2, token=lease.token)
    admission.core.new_epoch(1001, admission.now)
    admission.core.check()
    assert admission.slots == (1, 0, 3)
    assert admission.admit(3, token=lease.token) is Refusal.LEASE_STALE
    admission.end(record)
    assert admission.slots == (0, 0, 3)
    assert admission.changes() == [LeaseTransition.GRANT, LeaseTransition.RENEW, LeaseTransition.DROP]


def test_an_epoch_never_goes_back(admission: Admission):
    with pytest.raises(ValueError, match="is not after 1000"):
        admission.core.new_epoch(1000, admission.now)
    assert admission.core.epoch == 1000


def test_in_doubt_nothing_is_granted_or_started_until_a_new_epoch():
    admission = Admission(slots=3)
    lease = admission.granted()
    record = admission.started(2)
    admission.core.doubt()
    assert admission.reserve(3) is Refusal.STALE
    assert admission.admit(4) is Refusal.STALE
    assert admission.admit(5, token=lease.token) is Refusal.STALE
    assert admission.core.told_load == Load(1, 2, 3) and not admission.core.has_room
    admission.end(record)
    admission.core.check()
    admission.core.new_epoch(1001, admission.now)
    assert admission.core.told_load == admission.core.load == Load(0, 0, 3)
    admission.granted(6)


def test_once_fenced_it_never_grants_or_starts_anything_again_and_keeps_its_epoch():
    admission = Admission(slots=3)
    lease = admission.granted()
    record = admission.started(2)
    admission.core.fence(admission.now)
    admission.core.check()
    assert admission.core.epoch == 1000 and admission.slots == (1, 0, 3)
    assert admission.reserve(3) is Refusal.STALE
    assert admission.admit(4, token=lease.token) is Refusal.STALE
    admission.end(record)
    assert admission.core.at_rest


def test_fences_grow_over_epochs(admission: Admission):
    before = admission.granted(1).fence
    admission.core.new_epoch(1001, admission.now)
    assert admission.granted(2).fence > before


# -- L11 --------------------------------------------------------------------------------------------------------------


def test_a_draining_core_grants_nothing_and_honours_what_it_granted():
    admission = Admission(slots=4)
    lease = admission.granted()
    admission.core.drain(30.0, admission.now)
    admission.core.check()
    assert admission.reserve(2) is Refusal.DRAINING
    assert admission.admit(3) is Refusal.DRAINING
    record = admission.started(4, token=lease.token)
    assert admission.core.load == Load(1, 0, 4, LoadFlag.DRAINING)
    assert not admission.core.at_rest
    admission.end(record)
    admission.core.release(admission.me(), None, lease.token, admission.now)
    assert admission.core.at_rest


def test_no_lease_outlives_the_grace_of_a_drain(admission: Admission):
    lease = admission.granted(ttl_s=100.0, claim_s=100.0)
    admission.core.drain(5.0, admission.now)
    assert admission.core.next_deadline() == 5.0
    admission.now = 4.0
    assert admission.core.renew(lease.token, None, admission.now) == 1.0
    assert admission.core.expire(5.0).leases == 1


def test_a_second_drain_may_only_shorten_the_grace(admission: Admission):
    lease = admission.granted(ttl_s=100.0, claim_s=100.0)
    admission.core.drain(5.0, admission.now)
    admission.core.drain(50.0, admission.now)
    assert admission.core.renew(lease.token, None, admission.now) == 5.0
    admission.core.drain(1.0, admission.now)
    assert lease.due_at == 1.0


# -- accounts ---------------------------------------------------------------------------------------------------------


def test_its_statistics_are_zero_at_rest_and_its_repr_tells_the_state():
    admission = Admission(keep_s=1.0)
    lease = admission.granted()
    record = admission.started(2, token=lease.token)
    assert repr(admission.core).startswith("<AdmissionCore epoch=1000 1 leases, SlotLimiter(total=2, running=1")
    admission.end(record)
    admission.core.release(admission.me(), None, lease.token, admission.now)
    for admission.now in (5.0, 10.0):
        admission.core.sweep(admission.now)
    assert admission.core.statistics() == dict.fromkeys(
        ("leases", "tasks", "jobs", "unstored", "senders", "reserves", "answers", "answer_bytes"), 0
    )


def test_check_notices_a_slot_that_nobody_holds(admission: Admission):
    admission.core._limiter.run_nowait("stray")
    with pytest.raises(AssertionError):
        admission.core.check()
