"""The demo's own checks find each kind of violation: a check that cannot fail proves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gangline.cli.demo import checks
from gangline.cli.demo.checks import CountedPart, Done
from gangline.cli.demo.pools import ALL, Counted, Squeezed, added, tally_files
from gangline.schemas.messages.gangs import GangEvent, GangEventKind

SMALL = Squeezed(size=3, packed=2, sha256="aa", pid=1)
LARGE = Squeezed(size=4, packed=2, sha256="bb", pid=1)
EXPECTED = {"a.py": SMALL, "b.py": LARGE}
A = Done(path="a.py", way="call", worker="w1", seconds=0.1, answer=SMALL)
B = Done(path="b.py", way="call", worker="w2", seconds=0.1, answer=LARGE)


def test_right_results_give_no_findings():
    assert checks.results_are_right(EXPECTED, [A, B], {"call": 2}) == []


@pytest.mark.parametrize(
    ("done", "finding"),
    [
        ([A], "2 files were sent by call, 1 came back"),
        ([A, B, B], "b.py came back 2 times by call"),
        ([A, replace(B, answer=replace(LARGE, sha256="xx"))], "b.py by call is wrong"),
        ([A, replace(B, answer=replace(LARGE, packed=3))], "b.py by call is wrong"),
        ([A, replace(B, path="c.py")], "c.py was never requested"),
        ([A, replace(B, way="lease")], "2 files were sent by call, 1 came back"),
        ([], "2 files were sent by call, 0 came back"),
    ],
)
def test_a_lost_doubled_wrong_or_invented_result_is_found(done, finding):
    found = checks.results_are_right(EXPECTED, done, {"call": 2})
    assert any(finding in text for text in found), found


def counted(rank: int, own: int, *, total: int = 3, generation: int = 1) -> Counted:
    return Counted(rank=rank, generation=generation, own=own, tally={"def": 1, ALL: total}, pid=rank)


PARTS = [
    CountedPart(number=0, ranks=[counted(0, 1), counted(1, 2)]),
    CountedPart(number=1, ranks=[counted(0, 3, generation=2), counted(1, 0, generation=2)]),
]
TALLY = {"def": 2, ALL: 6}


def found_in(parts: Sequence[CountedPart]) -> list[str]:
    return checks.counts_are_right(TALLY, parts, wanted=2, size=2)


def test_the_words_of_a_file_are_counted(tmp_path):
    (tmp_path / "a.py").write_text("def f(x): return x1 if x else 'für'  # 1 def")
    tally = tally_files([str(tmp_path / "a.py")])
    assert tally == {"def": 2, "return": 1, "if": 1, "else": 1, ALL: 10}
    assert added([tally, {"def": 1}]) == {**tally, "def": 3}


@pytest.mark.parametrize(
    ("parts", "finding"),
    [
        (PARTS[:1], "part 1 was counted 0 times"),
        ([*PARTS, PARTS[1]], "part 1 was counted 2 times"),
        ([PARTS[0], replace(PARTS[1], ranks=PARTS[1].ranks[:1])], "part 1 was counted by the ranks [0]"),
        ([PARTS[0], replace(PARTS[1], ranks=PARTS[1].ranks[::-1])], "part 1 was counted by the ranks [1, 0]"),
        ([replace(PARTS[0], ranks=[counted(0, 1), counted(1, 2, total=4)]), PARTS[1]], "rank 1 gathered other"),
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
    assert checks.restarted(PARTS[:1], generations=2) == ["the parts were counted by the generations [1]"]
    assert checks.restarted(PARTS[::-1], generations=2)


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
    found = checks.noticed(torn, generation=1, ranks=frozenset({1}), after_s=after_s)
    assert any(finding in text for text in found), found


def test_dead_letters_must_be_exactly_those_expected():
    assert checks.buried({"1": "failed"}, {"1": "failed"}) == []
    assert checks.buried({"1": "failed"}, {}) == ["job 1 is no dead letter"]
    assert checks.buried({}, {"2": "expired"}) == ["job 2 is a dead letter: expired"]
    assert checks.buried({"1": "failed"}, {"1": "malformed"}) == ["job 1 is dead because malformed, not failed"]
