"""The lease table, by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gangline.worker.slots.lease_table import GrantedLease, LeaseTable, LeaseTransition, Refusal
from gangline.worker.slots.limiter import SlotLimiter


class Leases:
    def __init__(self, slots: int = 4, *, keep: int = 100, keep_s: float = 60.0) -> None:
        self.limiter = SlotLimiter(slots)
        self.table = LeaseTable(self.limiter, keep=keep, keep_s=keep_s)

    def grant(self, token: str = "t", *, slots: int = 1, single_use: bool = False, now: float = 0.0) -> GrantedLease:
        lease = GrantedLease(
            token, slots=slots, ttl_s=10.0, claim_s=2.0, single_use=single_use, owner="", fence=1, now=now
        )
        assert self.table.grant(lease)
        return lease

    def changes(self) -> list[LeaseTransition]:
        taken, self.table.changes = self.table.changes, []
        self.table.check()
        self.limiter.check()
        return [change for change, _ in taken]


@pytest.fixture
def leases() -> Iterator[Leases]:
    leases = Leases()
    yield leases


def test_uses_of_one_moment_are_one_use(leases: Leases):
    lease = leases.grant(slots=3)
    for task in ("a", "b", "c"):
        assert leases.table.use(lease, task, 1, 11.0, 1.0) is None
    assert leases.changes() == [LeaseTransition.GRANT, LeaseTransition.RENEW]
    leases.table.give_back(lease, "a")
    assert leases.table.use(lease, "d", 1, 12.0, 2.0) is None
    assert leases.changes() == [LeaseTransition.RENEW]
    assert leases.table.next_at() <= 12.0
    assert leases.table.expire(11.9) == 0
    assert leases.table.expire(12.0) == 1


def test_a_single_use_lease_ends_with_its_first_task_and_frees_what_that_does_not_need(leases: Leases):
    lease = leases.grant(slots=3, single_use=True)
    assert leases.table.use(lease, "task", 1, 99.0, 1.0) is None
    assert (leases.limiter.running, leases.limiter.reserved, leases.limiter.free) == (1, 0, 3)
    assert leases.table.find("t", 1.0) is Refusal.LEASE_USED
    assert leases.changes() == [LeaseTransition.GRANT, LeaseTransition.USE]


def test_each_end_is_told_to_later_users():
    leases = Leases(slots=9)
    for token, change in (
        ("r", LeaseTransition.RELEASE),
        ("d", LeaseTransition.DROP),
        ("e", LeaseTransition.EXPIRE),
        ("u", LeaseTransition.USE),
    ):
        leases.table.end(leases.grant(token), change, 0.0)
    found = {token: leases.table.find(token, 0.0) for token in "rdeux"}
    assert found == {
        "r": Refusal.LEASE_USED,
        "d": Refusal.LEASE_STALE,
        "e": Refusal.LEASE_EXPIRED,
        "u": Refusal.LEASE_USED,
        "x": Refusal.UNKNOWN_TOKEN,
    }


def test_ended_tokens_are_forgotten_by_age_and_by_count():
    leases = Leases(slots=9, keep=2, keep_s=5.0)
    for number in range(4):
        leases.table.end(leases.grant(f"t{number}"), LeaseTransition.RELEASE, float(number))
    assert leases.table.find("t1", 3.0) is Refusal.UNKNOWN_TOKEN
    assert leases.table.find("t2", 3.0) is Refusal.LEASE_USED
    leases.table.expire(100.0)
    assert leases.table.find("t3", 100.0) is Refusal.UNKNOWN_TOKEN


def test_a_token_is_never_granted_twice(leases: Leases):
    lease = leases.grant()
    with pytest.raises(ValueError, match="never reused"):
        leases.grant()
    leases.table.end(lease, LeaseTransition.RELEASE, 0.0)
    with pytest.raises(ValueError, match="never reused"):
        leases.grant()
