"""The reader of the ledger leaves out what it may not have seen whole, and nothing else."""

from __future__ import annotations

import pytest

from bench.chaos.ledger import LossyAudit
from bench.faults import audit as audits
from gangline.bus.port import KvEntry, KvOperation
from gangline.schemas.gangs import GangRecord, GangSpec, GangState, HeldSeat, MemberRecord, Seat


class Book:
    def __init__(self) -> None:
        self.audit = LossyAudit()
        self.revision = 0

    def write(self, key: str, value: str = "{}") -> None:
        self.revision += 1
        entry = KvEntry(key=key, value=value.encode(), revision=self.revision, operation=KvOperation.PUT)
        self.audit._see(entry)

    def lose(self, revisions: int) -> None:
        self.revision += revisions

    def others(self, count: int = 60) -> None:
        for _ in range(count):
            self.write("alive.train.w1")

    def member(self, gang: str, worker: str) -> None:
        seats = (HeldSeat(rank=0, token=worker),)
        self.write(
            f"member.train.{worker}.{gang}",
            MemberRecord(gang=gang, generation=1, epoch=1, seats=seats).model_dump_json(),
        )

    def formed(self, gang: str, *workers: str) -> None:
        seats = tuple(
            Seat(rank=rank, pool="train", worker=worker, token=worker, epoch=1) for rank, worker in enumerate(workers)
        )
        spec = GangSpec.model_validate({"pool": "train", "size": 2})
        record = GangRecord(id=gang, state=GangState.FORMED, spec=spec, generation=1, seats=seats)
        self.write(f"gang.{gang}", record.model_dump_json())


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Book:
    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            self.now += audits.SLACK_S
            return self.now

    monkeypatch.setattr(audits, "time", Clock())
    return Book()


def test_a_gang_that_is_granted_in_part_is_found(book: Book) -> None:
    book.others()
    book.member("g", "w1")
    book.formed("g", "w1", "w2")
    assert (len(book.audit.broken), book.audit.judged) == (1, 1)


def test_a_gang_whose_records_may_have_been_missed_is_left_out(book: Book) -> None:
    book.others()
    book.member("g", "w1")
    book.lose(1)
    book.formed("g", "w1", "w2")
    assert (book.audit.broken, book.audit.gaps, book.audit.left_out) == ([], 1, 1)


def test_a_gang_that_comes_after_a_gap_is_judged(book: Book) -> None:
    book.others()
    book.lose(3)
    book.others()
    book.member("g", "w1")
    book.formed("g", "w1", "w2")
    assert (len(book.audit.broken), book.audit.judged) == (1, 1)
