"""The reader of the ledger sees what it is there to see."""

from __future__ import annotations

import itertools

import pytest

from bench.faults import audit as audits
from bench.faults.audit import SLACK, SLACK_S, Audit
from gangline.bus.port.bus import KvEntry, KvOperation
from gangline.schemas.records.gangs import GangRecord, GangSpec, GangState, HeldSeat, MemberRecord, Seat

MANY = 10 * SLACK


class Clock:
    """Goes on by one revision's time with each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += SLACK_S / 10
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(audits, "time", made)
    return made


class Book:
    """Writes entries for an audit to read."""

    def __init__(self) -> None:
        self.audit = Audit()
        self.revisions = itertools.count(1)

    def write(self, key: str, value: bytes = b"", operation: KvOperation = KvOperation.PUT) -> None:
        self.audit._see(KvEntry(key=key, value=value, revision=next(self.revisions), operation=operation))

    def member(self, worker: str, generation: int = 1) -> None:
        record = MemberRecord(gang="g", generation=generation, epoch=1, seats=(HeldSeat(rank=0, token=f"t-{worker}"),))
        self.write(f"member.train.{worker}.g", record.model_dump_json().encode())

    def end(self, worker: str) -> None:
        self.write(f"member.train.{worker}.g", operation=KvOperation.DELETE)

    def gang(self, state: GangState, *workers: str, generation: int = 1) -> None:
        spec = GangSpec.model_validate({"pool": "train", "size": 2})
        seats = tuple(
            Seat(rank=rank, pool="train", worker=worker, token=f"t-{worker}", epoch=1)
            for rank, worker in enumerate(workers)
        )
        record = GangRecord(id="g", state=state, spec=spec, generation=generation, seats=seats)
        self.write("gang.g", record.model_dump_json().encode())

    def others(self, count: int) -> None:
        for _ in range(count):
            self.write("alive.train.w9", b"{}")


def test_a_gang_that_is_granted_and_ended_as_a_whole_is_right() -> None:
    book = Book()
    book.gang(GangState.QUEUED)
    book.member("w1")
    book.others(1)
    book.member("w2")
    book.gang(GangState.FORMED, "w1", "w2")
    book.gang(GangState.TEARING_DOWN, "w1", "w2")
    book.end("w1")
    book.end("w2")
    book.gang(GangState.ENDED)
    book.others(MANY)
    assert book.audit.broken == [] and book.audit.left() == []
    assert book.audit.formed == {"g": {1}} and book.audit.missed == 0


@pytest.mark.parametrize("generation", [1, 2])
def test_a_partial_grant_is_seen(generation: int) -> None:
    book = Book()
    book.member("w1", generation)
    if generation == 2:
        book.member("w2", 1)  # left over from the generation before
    book.gang(GangState.FORMED, "w1", "w2", generation=generation)
    assert len(book.audit.broken) == 1 and "L7" in book.audit.broken[0]


def test_members_without_a_grant_are_seen() -> None:
    book = Book()
    book.gang(GangState.QUEUED)
    book.member("w1")
    book.others(MANY)
    assert len(book.audit.broken) == 1 and "was not granted" in book.audit.broken[0]


def test_a_member_too_many_is_seen() -> None:
    book = Book()
    book.member("w1")
    book.member("w2")
    book.gang(GangState.FORMED, "w1")
    assert len(book.audit.broken) == 1


def test_a_partial_end_is_seen() -> None:
    book = Book()
    book.member("w1")
    book.member("w2")
    book.gang(GangState.FORMED, "w1", "w2")
    book.gang(GangState.TEARING_DOWN, "w1", "w2")
    book.end("w1")
    book.others(MANY)
    assert len(book.audit.broken) == 1 and "w2" in book.audit.broken[0]
    book.gang(GangState.ENDED)
    assert len(book.audit.broken) == 2 and book.audit.left() == ["g"]


def test_a_gap_in_the_revisions_is_counted() -> None:
    book = Book()
    book.others(1)
    next(book.revisions)
    book.others(1)
    assert (book.audit.revisions, book.audit.missed) == (2, 1)
