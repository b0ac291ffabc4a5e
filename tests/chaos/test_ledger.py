"""The reader of the ledger leaves out what it may not have seen whole, and nothing else."""

from __future__ import annotations

import pytest

from bench.chaos import ledger as ledgers
from bench.chaos.ledger import LossyAudit
from bench.chaos.records import NEVER
from bench.faults import audit as audits
from gangline.bus.port.bus import KvEntry, KvOperation
from gangline.schemas.records.gangs import GangRecord, GangSpec, GangState, HeldSeat, LeaderRecord, MemberRecord, Seat
from gangline.schemas.records.workers import LeaseRecord


class Book:
    def __init__(self) -> None:
        self.audit = LossyAudit()
        self.revision = 0

    def write(self, key: str, value: str = "{}", operation: KvOperation = KvOperation.PUT) -> None:
        self.revision += 1
        entry = KvEntry(key=key, value=value.encode(), revision=self.revision, operation=operation)
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

    def leads(self, instance: str, term: int) -> None:
        self.write("leader", LeaderRecord(term=term, instance=instance).model_dump_json())

    def gang(self, gang: str, state: GangState, generation: int) -> None:
        spec = GangSpec.model_validate({"pool": "train", "size": 2})
        record = GangRecord(id=gang, state=state, spec=spec, generation=generation)
        self.write(f"gang.{gang}", record.model_dump_json())

    def lease(self, token: str, expires_at: float) -> None:
        facts = {"pool": "train", "worker": "w1", "epoch": 3, "slots": 1, "fence": 1, "single_use": False}
        record = LeaseRecord.model_validate({**facts, "token": token, "granted_at": 0.0, "expires_at": expires_at})
        self.write(f"lease.train.w1.{token}", record.model_dump_json())

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

        def time(self) -> float:
            return self.now

    clock = Clock()
    for module in (audits, ledgers):
        monkeypatch.setattr(module, "time", clock)
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


def test_one_leader_after_the_other_is_no_breach(book: Book) -> None:
    book.leads("k1", 5)
    book.leads("k2", 6)
    book.leads("k1", 7)
    assert book.audit.deposed == []


@pytest.mark.parametrize("second", [("k2", 5), ("k2", 4), ("k1", 4)])
def test_two_that_lead_in_a_term_or_out_of_order_are_found(book: Book, second: tuple[str, int]) -> None:
    book.leads("k1", 5)
    book.leads(*second)
    assert len(book.audit.deposed) == 1


def test_a_gang_that_goes_on_in_the_next_generation_is_no_breach(book: Book) -> None:
    for generation in (1, 2):
        for state in (GangState.QUEUED, GangState.FORMED, GangState.RETIRING, GangState.TEARING_DOWN):
            book.gang("g", state, generation)
    book.gang("g", GangState.ENDED, 2)
    assert book.audit.deposed == []


@pytest.mark.parametrize("state", [GangState.QUEUED, GangState.FORMED, GangState.RETIRING])
@pytest.mark.parametrize("generation", [1, 2])
def test_a_word_on_a_generation_that_was_over_is_found(book: Book, state: GangState, generation: int) -> None:
    book.gang("g", GangState.TEARING_DOWN, 2)
    book.gang("g", state, generation)
    assert len(book.audit.deposed) == 1


def test_tokens_are_noted_from_their_grant_to_their_end(book: Book) -> None:
    book.lease("T", 50.0)
    book.lease("T", 90.0)
    book.lease("U", 50.0)
    book.write("lease.train.w1.T", "", KvOperation.DELETE)
    shown, other = book.audit.shown["T"], book.audit.shown["U"]
    assert (shown.worker, shown.epoch, other.gone) == ("w1", 3, NEVER)
    assert (shown.due, other.due) == (90.0, 50.0)
    assert shown.seen < other.seen < shown.gone < NEVER


def test_nothing_is_known_of_the_time_of_a_gap(book: Book) -> None:
    book.others(2)
    assert book.audit.blind == []
    book.lose(1)
    book.others(1)
    ((since, until),) = book.audit.blind
    assert since < until
