"""The worker's core: one test for each promise, in words. The state machine beside this one looks for the rest."""

from __future__ import annotations

import pytest

from gangline.runtime.timers import NEVER
from gangline.schemas.wire.frames import Load, TaskState
from gangline.worker.slots.admission_core import AdmissionCore, CoreSettings
from gangline.worker.slots.lease_table import GrantedLease, Refusal, TaskRecord


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

    @property
    def slots(self) -> tuple[int, int, int]:
        load = self.core.load
        return load.running, load.reserved, load.total


@pytest.fixture
def admission() -> Admission:
    return Admission()


def test_a_paused_worker_is_full_and_not_too_small(admission: Admission):
    admission.core.resize(0)
    assert admission.reserve(1, slots=2) is Refusal.FULL
    assert admission.admit(2) is Refusal.FULL


def test_a_lease_is_honoured_after_a_resize_below_it(admission: Admission):
    lease = admission.granted(slots=2)
    admission.core.resize(1)
    admission.started(5, token=lease.token)
    admission.started(6, token=lease.token)


def test_a_refusal_is_repeated_too_even_when_there_is_room_now():
    admission = Admission(slots=1)
    lease = admission.granted(1)
    assert admission.reserve(2) is Refusal.FULL
    admission.core.release(admission.me(), None, lease.token, admission.now)
    assert admission.reserve(2) is Refusal.FULL, "the caller was told so and may have gone elsewhere"
    assert not admission.core.release(admission.me(), 2, None, admission.now)
    assert admission.reserve(2) is Refusal.FULL
    assert isinstance(admission.reserve(3), GrantedLease)


def test_a_repeated_request_whose_lease_has_ended_gets_nothing_new(admission: Admission):
    lease = admission.granted(1)
    admission.core.release(admission.me(), None, lease.token, admission.now)
    assert admission.reserve(1) is Refusal.EXPIRED
    admission.granted(2)
    admission.now = 2.0
    assert admission.reserve(2) is Refusal.EXPIRED


def test_a_release_by_request_id_ends_the_lease(admission: Admission):
    admission.granted(1)
    assert admission.core.release(admission.me(), 1, None, admission.now)
    assert not admission.core.release(admission.me(), 1, None, admission.now)
    assert admission.slots == (0, 0, 2)


def test_senders_cannot_release_each_others_requests(admission: Admission):
    admission.granted(1)
    assert not admission.core.release(admission.me("other"), 1, None, admission.now)
    assert admission.slots == (0, 1, 2)


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
