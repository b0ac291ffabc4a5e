"""The checks of the demo's second part find each kind of violation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gangline.bus.port.bus import KvEntry, KvOperation
from gangline.cli.demo.checks import calls as checks
from gangline.cli.demo.checks import gangs as gang_checks
from gangline.cli.demo.checks.gangs import CountedPart
from gangline.cli.demo.fixtures.gang_pool import ALL, Counted, added, tally_files
from gangline.schemas.messages.gangs import GangEvent, GangEventKind
from gangline.schemas.records.gangs import GangRecord, GangSpec, GangState, HeldSeat, MemberRecord, Seat
from gangline.schemas.records.workers import Record, Registration

# -- counts -----------------------------------------------------------------------------------------------------------


def counted(rank: int, own: int, *, total: int = 3, generation: int = 1) -> Counted:
    return Counted(rank=rank, generation=generation, own=own, tally={"def": 1, ALL: total}, pid=rank)


PARTS = [
    CountedPart(number=0, gang="g", ranks=[counted(0, 1), counted(1, 2)]),
    CountedPart(number=1, gang="g", ranks=[counted(0, 3, generation=2), counted(1, 0, generation=2)]),
]
EXPECTED = {"def": 2, ALL: 6}


def found_in(parts: Sequence[CountedPart]) -> list[str]:
    return gang_checks.counts_are_right(EXPECTED, parts, wanted=2, size=2)


def test_the_words_of_a_file_are_counted(tmp_path):
    (tmp_path / "a.py").write_text("def f(x): return x1 if x else 'für'  # 1 def")
    tally = tally_files([str(tmp_path / "a.py")])
    assert tally == {"def": 2, "return": 1, "if": 1, "else": 1, ALL: 10}
    assert added([tally, {"def": 1}]) == {**tally, "def": 3}


def test_right_counts_give_no_findings():
    assert found_in(PARTS) == []
    assert gang_checks.restarted(PARTS, generations=2) == []


@pytest.mark.parametrize(
    ("parts", "finding"),
    [
        (PARTS[:1], "part 1 was counted 0 times"),
        ([*PARTS, PARTS[1]], "part 1 was counted 2 times"),
        ([PARTS[0], replace(PARTS[1], ranks=PARTS[1].ranks[:1])], "part 1 was counted by the ranks [0]"),
        ([PARTS[0], replace(PARTS[1], ranks=PARTS[1].ranks[::-1])], "part 1 was counted by the ranks [1, 0]"),
        ([replace(PARTS[0], ranks=[counted(0, 1), counted(1, 2, total=4)]), PARTS[1]], "rank 1 gathered something"),
        ([replace(PARTS[0], ranks=[counted(0, 1), counted(1, 1)]), PARTS[1]], "the shares do not make up the sum"),
        ([replace(PARTS[0], ranks=[counted(0, 1), counted(1, 2, generation=2)]), PARTS[1]], "generations [1, 2]"),
        (
            [replace(PARTS[0], ranks=[counted(0, 1, total=4), counted(1, 3, total=4)]), PARTS[1]],
            f"{ALL!r}: 7 instead of 6",
        ),
    ],
)
def test_a_lost_doubled_mixed_or_wrong_count_is_found(parts, finding):
    assert any(finding in text for text in found_in(parts)), found_in(parts)


def test_a_gang_that_never_restarted_or_went_back_is_found():
    assert gang_checks.restarted(PARTS[:1], generations=2) == ["the parts were counted by the generations [1]"]
    assert gang_checks.restarted(PARTS[::-1], generations=2)


# -- the ledger -------------------------------------------------------------------------------------------------------


class History:
    """Writes a ledger's revisions as a coordinator would."""

    def __init__(self) -> None:
        self.entries: list[KvEntry] = []
        self.events: list[GangEvent] = []
        for worker in ("w1", "w2"):
            self.put(f"reg.p.{worker}", registration(worker, 2))

    def put(self, key: str, record: Record | None) -> None:
        value = b"" if record is None else record.model_dump_json().encode()
        operation = KvOperation.DELETE if record is None else KvOperation.PUT
        self.entries.append(KvEntry(key=key, value=value, revision=len(self.entries) + 1, operation=operation))

    def gang(self, gang: str, state: GangState, generation: int = 1) -> None:
        seats = () if state is GangState.QUEUED else (seat(0, "w1", generation), seat(1, "w2", generation))
        spec = GangSpec.model_validate({"pool": "p", "size": 2})
        self.put(f"gang.{gang}", GangRecord(id=gang, state=state, spec=spec, generation=generation, seats=seats))

    def member(self, gang: str, worker: str, generation: int = 1, *, token: str | None = None) -> None:
        rank = int(worker[1:]) - 1
        held = HeldSeat(rank=rank, token=token or seat(rank, worker, generation).token)
        self.put(f"member.p.{worker}.{gang}", MemberRecord(gang=gang, generation=generation, epoch=1, seats=(held,)))

    def form(self, gang: str = "a", generation: int = 1) -> None:
        self.member(gang, "w1", generation)
        self.member(gang, "w2", generation)
        self.gang(gang, GangState.FORMED, generation)
        self.tell(GangEventKind.FORMED, gang, generation)

    def close(self, gang: str = "a", generation: int = 1) -> None:
        self.gang(gang, GangState.TEARING_DOWN, generation)
        self.put(f"member.p.w1.{gang}", None)
        self.put(f"member.p.w2.{gang}", None)
        self.tell(GangEventKind.TORN_DOWN, gang, generation)

    def tell(self, kind: GangEventKind, gang: str, generation: int) -> None:
        self.events.append(GangEvent(kind=kind, gang=gang, generation=generation, size=2))

    def whole(self) -> History:
        """Queued, formed, torn down, formed again, and over."""
        self.gang("a", GangState.QUEUED)
        self.form()
        self.close()
        self.form(generation=2)
        self.close(generation=2)
        self.gang("a", GangState.ENDED, 2)
        return self


def registration(worker: str, slots: int) -> Registration:
    return Registration(pool="p", worker=worker, epoch=1, instance="i", slots=slots)


def seat(rank: int, worker: str, generation: int) -> Seat:
    return Seat(rank=rank, pool="p", worker=worker, token=f"{worker}-{generation}", epoch=1)


def test_a_sound_history_gives_no_findings():
    history = History().whole()
    assert gang_checks.atomic(history.entries) == []
    assert gang_checks.within_slots(history.entries) == []
    assert gang_checks.fated(history.entries, history.events) == []


def test_generations_may_follow_each_other_without_a_write_in_between():
    history = History()
    history.form()
    history.close()
    history.form(generation=2)
    assert gang_checks.atomic(history.entries) == []


def test_a_gang_formed_without_one_of_its_members_is_found():
    history = History()
    history.member("a", "w1")
    history.gang("a", GangState.FORMED)
    assert gang_checks.atomic(history.entries) == ["revision 4: gang a is formed with 1 of 2 members of its own"]


@pytest.mark.parametrize(("generation", "token"), [(2, None), (1, "another")])
def test_a_member_of_another_generation_or_token_is_found(generation, token):
    history = History()
    history.member("a", "w1", generation, token=token)
    history.member("a", "w2")
    history.gang("a", GangState.FORMED)
    assert any("revision 5: gang a is formed with" in text for text in gang_checks.atomic(history.entries))


def test_members_that_were_not_granted_in_one_batch_are_found():
    history = History()
    history.member("a", "w1")
    history.gang("b", GangState.QUEUED)
    history.member("a", "w2")
    history.gang("a", GangState.FORMED)
    (finding,) = gang_checks.atomic(history.entries)
    assert finding == "revision 4: gang a is granted in part, and gang.b was written"


def test_what_others_write_may_lie_between_the_messages_of_a_batch():
    history = History()
    history.member("a", "w1")
    history.put("reg.p.w1", registration("w1", 2))
    history.member("a", "w2")
    history.put("leader", None)
    history.gang("a", GangState.FORMED)
    history.gang("a", GangState.TEARING_DOWN)
    history.put("member.p.w1.a", None)
    history.put("reg.p.w1", registration("w1", 2))
    history.put("member.p.w2.a", None)
    assert gang_checks.atomic(history.entries) == []


def test_members_that_are_never_followed_by_their_gang_are_found():
    history = History()
    history.member("a", "w1")
    assert gang_checks.atomic(history.entries) == ["gang a is granted in part, at the end"]


def test_a_member_that_goes_while_its_gang_stands_is_found():
    history = History()
    history.form()
    history.put("member.p.w1.a", None)
    assert gang_checks.atomic(history.entries) == ["gang a is granted in part, at the end"]
    history.gang("b", GangState.QUEUED)
    (finding,) = gang_checks.atomic(history.entries)
    assert finding == "revision 7: gang a is granted in part, and gang.b was written"


def test_a_teardown_that_leaves_a_member_is_found():
    history = History()
    history.form()
    history.gang("a", GangState.TEARING_DOWN)
    history.put("member.p.w1.a", None)
    left = ["gang a is tearing_down, and has members on p.w2"]
    assert gang_checks.atomic(history.entries) == left
    history.gang("b", GangState.QUEUED)
    history.put("member.p.w2.a", None)
    assert gang_checks.atomic(history.entries)[:1] == left


def test_a_gang_that_ended_with_members_is_found():
    history = History()
    history.form()
    history.gang("a", GangState.ENDED)
    assert gang_checks.atomic(history.entries) == ["gang a is ended, and has members on p.w1, p.w2"]


def test_more_members_than_slots_are_found():
    history = History()
    history.put("reg.p.w1", registration("w1", 1))
    history.form("a")
    assert gang_checks.within_slots(history.entries) == []
    history.form("b")
    assert "revision 7: gangs hold 2 of the 1 slots of p.w1" in gang_checks.within_slots(history.entries)


def fate(history: History) -> list[str]:
    return gang_checks.fated(history.entries, history.events)


def test_a_gang_that_is_not_over_at_the_end_is_found():
    history = History()
    history.form()
    assert fate(history) == [
        "gang a: generation 1 was formed and never torn down",
        "gang a is formed at the end",
    ]


def test_a_generation_before_the_end_of_the_last_is_found():
    history = History()
    history.form()
    history.form(generation=2)
    assert "gang a: generation 2 came before the end of the last" in fate(history)


def test_a_generation_that_is_left_out_or_comes_back_is_found():
    history = History()
    history.form()
    history.close()
    history.form(generation=3)
    assert "gang a: generation 3 after 1" in fate(history)
    history = History().whole()
    history.form()
    assert "gang a: generation 1 after 2" in fate(history)
    assert "gang a: generation 1 was formed 2 times" in fate(history)


def test_two_teardowns_of_one_generation_are_found():
    history = History()
    history.form()
    history.close()
    history.close()
    assert "gang a: generation 1 was torn down 2 times" in fate(history)


@pytest.mark.parametrize(("dropped", "what"), [(0, "formed"), (1, "torn down")])
def test_an_event_without_a_record_and_a_record_without_an_event_are_found(dropped, what):
    history = History().whole()
    del history.events[dropped]
    assert fate(history) == [f"gang a: generation 1 was {what}, but by the ledger or by an event only"]
    history = History().whole()
    history.tell(GangEventKind.FORMED, "b", 1)
    assert fate(history) == ["gang b: generation 1 was formed, but by the ledger or by an event only"]


def test_two_that_did_not_take_turns_are_found():
    history = History()
    history.form("a")
    history.form("b")
    history.close("a")
    assert gang_checks.in_turn(history.entries, "a", "b") == ["gang b was formed before a had ended"]
    assert gang_checks.in_turn(history.entries, "a", "c") == ["gang c was never formed"]
    assert gang_checks.in_turn(history.entries, "b", "a")
    history = History()
    history.form("a")
    history.close("a")
    history.form("b")
    assert gang_checks.in_turn(history.entries, "a", "b") == []


# -- the workers ------------------------------------------------------------------------------------------------------


def record(event: str, **more: Any) -> dict[str, Any]:
    return {"event": event, "running": 0, "reserved": 0, "total": 2, **more}


JOURNAL = [
    record("grant", token="t1", gang="a"),
    record("form", gang="a", generation=1),
    record("start", id=1, sender="s", token="t1"),
    record("teardown", gang="a", generation=1),
    record("end", id=1, sender="s"),
    record("grant", token="t2", gang="a"),
    record("form", gang="a", generation=2),
    record("start", id=2, sender="s", token="t2"),
]


def test_a_restart_on_fresh_tokens_gives_no_findings():
    assert gang_checks.dead_stay_dead({"w1": JOURNAL}) == []


def test_a_task_that_starts_on_a_dead_seat_is_found():
    records = [*JOURNAL, record("start", id=3, sender="s", token="t1")]
    (finding,) = gang_checks.dead_stay_dead({"w1": records})
    assert finding.startswith("w1 line 9: a task started on a seat of a generation that was torn down")


def test_a_generation_that_is_formed_after_its_teardown_is_found():
    records = [*JOURNAL[:4], record("form", gang="a", generation=1)]
    assert gang_checks.dead_stay_dead({"w1": records}) == ["w1 line 5: generation 1 of a after its teardown"]


TORN = GangEvent(kind=GangEventKind.TORN_DOWN, gang="a", generation=1, size=2, rank=1)


@pytest.mark.parametrize(
    ("torn", "after_s", "finding"),
    [
        (None, 0.1, "no teardown event arrived"),
        (TORN.model_copy(update={"generation": 2}), 0.1, "generation 2 was torn down, not 1"),
        (TORN.model_copy(update={"rank": 0}), 0.1, "rank 0 was reported lost, but [1] were killed"),
        (TORN.model_copy(update={"rank": None}), 0.1, "rank None was reported lost"),
        (TORN, -0.5, "the event came 0.5 s before the kill"),
    ],
)
def test_a_kill_that_nobody_noticed_or_not_for_what_it_was_is_found(torn, after_s, finding):
    found = gang_checks.noticed(torn, generation=1, ranks=frozenset({1}), after_s=after_s)
    assert any(finding in text for text in found), found


def test_a_kill_that_was_noticed_gives_no_findings():
    assert gang_checks.noticed(TORN, generation=1, ranks=frozenset({1}), after_s=0.3) == []


def test_a_total_that_changes_is_allowed_where_it_is_said_so():
    records = [{**record("resize"), "total": 1}, record("leave")]
    assert checks.never_over_capacity({"w1": records}, None) == []
    over = [{**record("resize"), "total": 1, "reserved": 2}]
    assert checks.never_over_capacity({"w1": over}, None) == ["w1 line 1 (resize): 0+2 of 1 slots"]
