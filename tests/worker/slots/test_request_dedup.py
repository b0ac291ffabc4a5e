"""What a worker remembers of its senders."""

from __future__ import annotations

from gangline.worker.slots.lease_table import (
    WITHDRAWN,
    GrantedLease,
    LeaseTable,
    LeaseTransition,
    Refusal,
    RequestDedup,
)
from gangline.worker.slots.limiter import SlotLimiter


def memory(keep: int = 100, keep_bytes: int = 1000, keep_s: float = 10.0) -> RequestDedup:
    return RequestDedup(keep=keep, keep_bytes=keep_bytes, keep_s=keep_s)


def test_too_many_bytes_push_out_the_oldest():
    mind = memory(keep_bytes=10)
    sender = mind.sender("r1", 0.0)
    mind.note_done(sender, 1, b"12345", 0.0)
    mind.note_done(sender, 2, b"12345", 0.0)
    mind.note_done(sender, 3, b"1", 0.0)
    assert list(sender.done) == [2, 3]
    assert mind.statistics()["answer_bytes"] == 6
    mind.check()


def test_an_answer_over_all_bounds_is_forgotten_but_not_its_id():
    mind = memory(keep_bytes=10)
    sender = mind.sender("r1", 0.0)
    mind.note_done(sender, 1, b"x" * 11, 0.0)
    assert sender.done == {}
    assert sender.floor == 1


def test_silent_senders_are_forgotten_late_and_those_with_traces_never():
    mind = memory(keep_s=10.0)
    mind.sender("gone", 0.0)
    kept = mind.sender("kept", 0.0)
    mind.note_done(kept, 1, WITHDRAWN, 95.0)
    mind.sweep(99.0)
    assert list(mind.senders) == ["gone", "kept"]
    mind.sweep(100.0)
    assert list(mind.senders) == ["kept"]
    mind.sweep(105.0)
    assert mind.senders == {}


def test_a_reserve_is_forgotten_by_age_but_not_while_its_lease_lives():
    mind = memory()
    sender = mind.sender("r1", 0.0)
    table = LeaseTable(SlotLimiter(1), keep=10, keep_s=1.0)
    lease = GrantedLease("t", slots=1, ttl_s=99.0, claim_s=99.0, single_use=False, owner="", fence=1, now=0.0)
    table.grant(lease)
    mind.note_reserve(sender, 1, lease, 0.0)
    mind.note_reserve(sender, 2, Refusal.FULL, 0.0)
    mind.sweep(50.0)
    assert sender.reserves == {1: lease}
    table.end(lease, LeaseTransition.RELEASE, 51.0)
    mind.sweep(61.0)
    assert sender.reserves == {}
    mind.check()


def test_too_many_reserves_push_out_the_oldest_that_is_over():
    mind = memory(keep=2)
    sender = mind.sender("r1", 0.0)
    for rid in ("a", "b", "c"):
        mind.note_reserve(sender, rid, Refusal.FULL, 0.0)
    assert list(sender.reserves) == ["b", "c"]
    mind.check()


def test_more_silent_senders_than_answers_are_forgotten_as_soon_as_answers():
    mind = memory(keep=3)
    for number in range(4):
        mind.sender(f"r{number}", 0.0)
    mind.sweep(9.9)
    assert len(mind.senders) == 4
    mind.sweep(10.0)
    assert not mind.senders
    assert mind.sender("r0", 11.0).doubtful
    mind.sweep(100.0)
    assert len(mind.senders) == 1, "few are remembered for long"
