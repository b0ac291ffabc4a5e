"""The reader of the ledger sees what it is there to see, and leaves out only what it may not have seen whole."""

from __future__ import annotations

import itertools

import pytest

from gangline.bus.port.bus import KvEntry, KvOperation
from gangline.schemas.messages.gangs import GangEvent, GangEventKind
from gangline.schemas.records.gangs import GangRecord, GangSpec, GangState, HeldSeat, LeaderRecord, MemberRecord, Seat
from gangline.schemas.records.workers import LeaseRecord, Registration
from gangline.testing.kit import ledger_audit
from gangline.testing.kit.ledger_audit import SLACK, SLACK_S, LedgerAudit
from gangline.testing.kit.records import NEVER

MANY = 60
assert MANY > 10 * SLACK


class Book:
    """Writes entries for an audit to read."""

    def __init__(self, *, lossy: bool = False) -> None:
        self.audit = LedgerAudit(lossy=lossy)
        self.revisions = itertools.count(1)
        self.events: list[GangEvent] = []

    def write(self, key: str, value: str = "", operation: KvOperation = KvOperation.PUT) -> None:
        entry = KvEntry(key=key, value=value.encode(), revision=next(self.revisions), operation=operation)
        self.audit._see(entry)

    def lose(self, revisions: int) -> None:
        for _ in range(revisions):
            next(self.revisions)

    def others(self, count: int = MANY) -> None:
        for _ in range(count):
            self.write("alive.train.w9", "{}")

    def registered(self, worker: str, slots: int) -> None:
        record = Registration(pool="train", worker=worker, epoch=1, instance="i", slots=slots)
        self.write(f"reg.train.{worker}", record.model_dump_json())

    def member(self, worker: str, generation: int = 1, *, gang: str = "g", token: str = "", slots: int = 1) -> None:
        seats = (HeldSeat(rank=0, token=token or f"t-{worker}", slots=slots),)
        record = MemberRecord(gang=gang, generation=generation, epoch=1, seats=seats)
        self.write(f"member.train.{worker}.{gang}", record.model_dump_json())

    def end(self, worker: str, gang: str = "g") -> None:
        self.write(f"member.train.{worker}.{gang}", operation=KvOperation.DELETE)

    def gang(self, state: GangState, *workers: str, generation: int = 1, gang: str = "g") -> None:
        spec = GangSpec.model_validate({"pool": "train", "size": 2})
        seats = tuple(
            Seat(rank=rank, pool="train", worker=worker, token=f"t-{worker}", epoch=1)
            for rank, worker in enumerate(workers)
        )
        record = GangRecord(id=gang, state=state, spec=spec, generation=generation, seats=seats)
        self.write(f"gang.{gang}", record.model_dump_json())
        kinds = {GangState.FORMED: GangEventKind.FORMED, GangState.TEARING_DOWN: GangEventKind.TORN_DOWN}
        if state in kinds:
            self.events.append(GangEvent(kind=kinds[state], gang=gang, generation=generation, size=2))

    def members(self, generation: int = 1, *, gang: str = "g") -> None:
        """Of both workers."""
        for worker in ("w1", "w2"):
            self.member(worker, generation, gang=gang)

    def form(self, generation: int = 1, gang: str = "g") -> None:
        self.members(generation, gang=gang)
        self.gang(GangState.FORMED, "w1", "w2", generation=generation, gang=gang)

    def close(self, generation: int = 1, gang: str = "g") -> None:
        self.gang(GangState.TEARING_DOWN, "w1", "w2", generation=generation, gang=gang)
        self.end("w1", gang)
        self.end("w2", gang)

    def whole(self) -> None:
        """Queued, formed, torn down, formed again, and over."""
        self.gang(GangState.QUEUED)
        self.form()
        self.close()
        self.form(2)
        self.close(2)
        self.gang(GangState.ENDED, generation=2)

    def leads(self, instance: str, term: int) -> None:
        self.write("leader", LeaderRecord(term=term, instance=instance).model_dump_json())

    def lease(self, token: str, expires_at: float) -> None:
        facts = {"pool": "train", "worker": "w1", "epoch": 3, "slots": 1, "fence": 1, "single_use": False}
        record = LeaseRecord.model_validate({**facts, "token": token, "granted_at": 0.0, "expires_at": expires_at})
        self.write(f"lease.train.w1.{token}", record.model_dump_json())


class Clock:
    """Goes on by one revision's time with each look."""

    def __init__(self, step_s: float) -> None:
        self.now = 0.0
        self.step_s = step_s

    def monotonic(self) -> float:
        self.now += self.step_s
        return self.now

    def time(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(SLACK_S / 10)
    monkeypatch.setattr(ledger_audit, "time", made)
    return made


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
def lossy(clock: Clock) -> Book:
    clock.step_s = SLACK_S
    return Book(lossy=True)


def test_a_gang_that_is_granted_and_ended_as_a_whole_is_right(book: Book) -> None:
    book.gang(GangState.QUEUED)
    book.member("w1")
    book.others(1)
    book.member("w2")
    book.gang(GangState.FORMED, "w1", "w2")
    book.gang(GangState.TEARING_DOWN, "w1", "w2")
    book.end("w1")
    book.end("w2")
    book.gang(GangState.ENDED)
    book.others()
    assert book.audit.broken == [] and book.audit.left() == []
    assert book.audit.formed == {"g": {1}} and book.audit.missed == 0


@pytest.mark.parametrize("generation", [1, 2])
def test_a_partial_grant_is_seen(book: Book, generation: int) -> None:
    book.member("w1", generation)
    if generation == 2:
        book.member("w2", 1)  # left over from the generation before
    book.gang(GangState.FORMED, "w1", "w2", generation=generation)
    assert len(book.audit.broken) == 1 and "L7" in book.audit.broken[0]


def test_members_without_a_grant_are_seen(book: Book) -> None:
    book.gang(GangState.QUEUED)
    book.member("w1")
    book.others()
    assert len(book.audit.broken) == 1 and "was not granted" in book.audit.broken[0]


def test_a_member_too_many_is_seen(book: Book) -> None:
    book.members()
    book.gang(GangState.FORMED, "w1")
    assert len(book.audit.broken) == 1


def test_a_partial_end_is_seen(book: Book) -> None:
    book.form()
    book.gang(GangState.TEARING_DOWN, "w1", "w2")
    book.end("w1")
    book.others()
    assert len(book.audit.broken) == 1 and "w2" in book.audit.broken[0]
    book.gang(GangState.ENDED)
    assert len(book.audit.broken) == 2 and book.audit.left() == ["g"]


def test_a_gap_in_the_revisions_is_counted(book: Book) -> None:
    book.others(1)
    book.lose(1)
    book.others(1)
    assert (book.audit.revisions, book.audit.missed) == (2, 1)


def test_a_gang_that_is_granted_in_part_is_found(lossy: Book) -> None:
    lossy.others()
    lossy.member("w1")
    lossy.gang(GangState.FORMED, "w1", "w2")
    assert (len(lossy.audit.broken), lossy.audit.judged) == (1, 1)


def test_a_gang_whose_records_may_have_been_missed_is_left_out(lossy: Book) -> None:
    lossy.others()
    lossy.member("w1")
    lossy.lose(1)
    lossy.gang(GangState.FORMED, "w1", "w2")
    assert (lossy.audit.broken, lossy.audit.gaps, lossy.audit.left_out) == ([], 1, 1)


def test_a_gang_that_comes_after_a_gap_is_judged(lossy: Book) -> None:
    lossy.others()
    lossy.lose(3)
    lossy.others()
    lossy.member("w1")
    lossy.gang(GangState.FORMED, "w1", "w2")
    assert (len(lossy.audit.broken), lossy.audit.judged) == (1, 1)


def test_one_leader_after_the_other_is_no_breach(lossy: Book) -> None:
    lossy.leads("k1", 5)
    lossy.leads("k2", 6)
    lossy.leads("k1", 7)
    assert lossy.audit.deposed == []


@pytest.mark.parametrize("second", [("k2", 5), ("k2", 4), ("k1", 4)])
def test_two_that_lead_in_a_term_or_out_of_order_are_found(lossy: Book, second: tuple[str, int]) -> None:
    lossy.leads("k1", 5)
    lossy.leads(*second)
    assert len(lossy.audit.deposed) == 1


def test_a_gang_that_goes_on_in_the_next_generation_is_no_breach(lossy: Book) -> None:
    for generation in (1, 2):
        for state in (GangState.QUEUED, GangState.FORMED, GangState.RETIRING, GangState.TEARING_DOWN):
            lossy.gang(state, generation=generation)
    lossy.gang(GangState.ENDED, generation=2)
    assert lossy.audit.deposed == []


@pytest.mark.parametrize("state", [GangState.QUEUED, GangState.FORMED, GangState.RETIRING])
@pytest.mark.parametrize("generation", [1, 2])
def test_a_word_on_a_generation_that_was_over_is_found(lossy: Book, state: GangState, generation: int) -> None:
    lossy.gang(GangState.TEARING_DOWN, generation=2)
    lossy.gang(state, generation=generation)
    assert len(lossy.audit.deposed) == 1


def test_tokens_are_noted_from_their_grant_to_their_end(lossy: Book) -> None:
    lossy.lease("T", 50.0)
    lossy.lease("T", 90.0)
    lossy.lease("U", 50.0)
    lossy.write("lease.train.w1.T", "", KvOperation.DELETE)
    shown, other = lossy.audit.shown["~T"], lossy.audit.shown["~U"]
    assert (shown.worker, shown.epoch, other.gone) == ("w1", 3, NEVER)
    assert (shown.due, other.due) == (90.0, 50.0)
    assert shown.seen < other.seen < shown.gone < NEVER


def test_nothing_is_known_of_the_time_of_a_gap(lossy: Book) -> None:
    lossy.others(2)
    assert lossy.audit.blind == []
    lossy.lose(1)
    lossy.others(1)
    ((since, until),) = lossy.audit.blind
    assert since < until


def test_a_whole_history_is_right(book: Book) -> None:
    book.whole()
    book.others()
    assert (book.audit.broken, book.audit.deposed, book.audit.announced(book.events)) == ([], [], [])


@pytest.mark.parametrize(("generation", "token"), [(2, ""), (1, "another")])
def test_a_member_of_another_generation_or_token_is_found(book: Book, generation: int, token: str) -> None:
    book.member("w1", generation, token=token)
    book.member("w2")
    book.gang(GangState.FORMED, "w1", "w2")
    assert len(book.audit.broken) == 1 and "is formed with" in book.audit.broken[0]


def test_gangs_with_more_slots_than_a_worker_has_are_found(book: Book) -> None:
    book.registered("w1", 2)
    book.member("w1", slots=2)
    book.gang(GangState.FORMED, "w1")
    assert book.audit.broken == []
    book.member("w1", gang="h")
    assert book.audit.broken == ["L1 at revision 4: h is one of gangs with 3 of the 2 slots of train.w1"]


@pytest.mark.parametrize(
    ("forget", "finding"),
    [(0, "generation 1 was formed, but by the ledger or by an event only"), (3, "2 was torn down, but by the ledger")],
)
def test_a_change_that_was_not_announced_is_found(book: Book, forget: int, finding: str) -> None:
    book.whole()
    del book.events[forget]
    assert finding in book.audit.announced(book.events)[0]


def test_an_announced_change_that_never_was_is_found(book: Book) -> None:
    book.whole()
    book.events.append(GangEvent(kind=GangEventKind.FORMED, gang="g", generation=3, size=2))
    assert book.audit.announced(book.events) == [
        "gang g: generation 3 was formed, but by the ledger or by an event only"
    ]


def test_a_generation_that_was_formed_twice_is_found(book: Book) -> None:
    book.form()
    book.gang(GangState.FORMED, "w1", "w2")
    book.close()
    book.gang(GangState.ENDED)
    assert book.audit.announced(book.events) == ["gang g: generation 1 was formed 2 times"]


def test_a_gang_that_never_ended_is_found(book: Book) -> None:
    book.form()
    assert book.audit.announced(book.events) == [
        "gang g: generation 1 was formed and never torn down",
        "gang g still has members at the end",
        "gang g is formed at the end",
    ]


def test_two_teardowns_of_one_generation_are_found(book: Book) -> None:
    book.form()
    book.close()
    book.close()
    book.gang(GangState.ENDED)
    assert book.audit.announced(book.events) == ["gang g: generation 1 was torn down 2 times"]


def test_members_that_were_not_granted_in_one_batch_are_found(book: Book) -> None:
    book.member("w1")
    book.gang(GangState.QUEUED, gang="h")
    book.member("w2")
    book.gang(GangState.FORMED, "w1", "w2")
    assert book.audit.broken == ["L7 at revision 2: g is granted in part, and gang.h was written"]


def test_a_member_that_goes_while_its_gang_stands_is_found(book: Book) -> None:
    book.form()
    book.end("w1")
    assert book.audit.broken == ["L7 at revision 4: g is formed, and its member on train.w1 has gone"]


def test_a_gang_that_ended_with_members_is_found(book: Book) -> None:
    book.form()
    book.gang(GangState.ENDED)
    assert len(book.audit.broken) == 1 and "is ended and has members" in book.audit.broken[0]


@pytest.mark.parametrize("generation", [2, 3])
def test_a_generation_that_came_before_the_end_of_the_last_is_found(book: Book, generation: int) -> None:
    book.form()
    if generation == 3:
        book.close()
    book.form(generation)
    assert len(book.audit.deposed) == 1 and f"is formed in generation {generation}" in book.audit.deposed[0]


def test_gangs_that_took_turns_are_in_order(book: Book) -> None:
    steps = [("a", GangState.FORMED), ("a", GangState.TEARING_DOWN), ("b", GangState.FORMED)]
    assert book.audit.in_turn(steps)[0] == "gang a was never formed"
    book.form(gang="a")
    book.close(gang="a")
    book.form(gang="b")
    assert book.audit.in_turn(steps) == []
    assert book.audit.in_turn(steps[::-1]) == ["a was formed too early"]
