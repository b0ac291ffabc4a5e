"""The demo's checker finds each kind of violation: a check that cannot fail proves nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gangline.cli.demo.checks import calls as checks
from gangline.cli.demo.checks.calls import AtRest, Done
from gangline.cli.demo.fixtures.corpus import Expected

EXPECTED = {"a.py": Expected(size=3, packed=2, sha256="aa"), "b.py": Expected(size=4, packed=2, sha256="bb")}
A = Done(path="a.py", way="call", worker="w1", seconds=0.1, size=3, packed=2, sha256="aa", together=1)
B = Done(path="b.py", way="call", worker="w2", seconds=0.1, size=4, packed=2, sha256="bb", together=4)


def record(event: str, running: int, reserved: int, **more: Any) -> dict[str, Any]:
    return {"event": event, "running": running, "reserved": reserved, "total": 2, **more}


def sound() -> list[dict[str, Any]]:
    """A worker's life: a task on a single-use token, an anonymous one, one on a held lease, a drain."""
    return [
        record("grant", 0, 1, token="t1"),
        record("use", 1, 0, token="t1"),
        record("start", 1, 0, id=1, sender="s", token="t1"),
        record("start", 2, 0, id=2, sender="s", token=None),
        record("reject", 2, 0, reason="full"),
        record("end", 1, 0, id=1, sender="s"),
        record("grant", 1, 1, token="t2"),
        record("start", 2, 0, id=3, sender="s", token="t2"),
        record("drain", 2, 0),
        record("end", 1, 0, id=2, sender="s"),
        record("end", 0, 1, id=3, sender="s"),
        record("release", 0, 0, token="t2"),
        record("leave", 0, 0),
    ]


def test_sound_facts_give_no_findings():
    assert checks.results_are_right(EXPECTED, [A, B], {"call": 2}) == []
    assert checks.bodies_agree([A, B], 4) == []
    assert checks.journals_add_up({"w1": sound()}) == []
    assert checks.balanced({"w1": sound()}, frozenset()) == []
    assert checks.never_over_capacity({"w1": sound()}, 2) == []
    assert checks.drained_well("w1", sound(), 0) == []


@pytest.mark.parametrize(
    ("done", "finding"),
    [
        ([A], "2 files went out by call, 1 came back"),
        ([A, B, B], "b.py came back 2 times by call"),
        ([A, replace(B, sha256="xx")], "b.py by call is wrong"),
        ([A, replace(B, packed=3)], "b.py by call is wrong"),
        ([A, replace(B, path="c.py")], "c.py was never asked for"),
        ([A, replace(B, way="lease")], "2 files went out by call, 1 came back"),
        ([], "2 files went out by call, 0 came back"),
    ],
)
def test_a_lost_doubled_wrong_or_invented_result_is_found(done, finding):
    found = checks.results_are_right(EXPECTED, done, {"call": 2})
    assert any(finding in text for text in found), found


def test_one_task_more_than_slots_is_found():
    records = sound()
    records.insert(4, record("start", 3, 0, id=9, sender="s"))
    assert any("3+0 of 2 slots" in text for text in checks.never_over_capacity({"w1": records}, 2))


def test_reservations_count_as_well():
    assert checks.never_over_capacity({"w1": [record("grant", 1, 2, token="t")]}, 2) == [
        "w1 line 1 (grant): 1+2 of 2 slots"
    ]


def test_negative_slots_and_a_wrong_total_are_found():
    assert checks.never_over_capacity({"w1": [record("end", -1, 0)]}, 2)
    assert checks.never_over_capacity({"w1": [record("start", 1, 0)]}, 4) == ["w1 line 1: 2 slots, not 4"]


def test_a_worker_that_recorded_nothing_is_found():
    assert checks.never_over_capacity({"w1": []}, 2) == ["w1 has an empty journal"]


def test_a_journal_that_hides_a_running_task_is_found():
    records = sound()
    records[3]["running"] = 1
    assert checks.journals_add_up({"w1": records}) == ["w1 line 4: 1 running, but its events make 2"]


def test_a_task_that_starts_twice_on_one_single_use_token_does_not_add_up():
    records = sound()
    records.insert(3, record("start", 1, 0, id=9, sender="s", token="t1"))
    assert checks.journals_add_up({"w1": records}) == ["w1 line 4: 1 running, but its events make 2"]


def test_tasks_that_met_too_many_of_their_kind_are_found():
    assert checks.bodies_agree([A, replace(B, together=5)], 4) == ["b.py: 5 tasks at once on w2"]
    assert checks.bodies_agree([replace(A, together=0)], 4)


@pytest.mark.parametrize(
    ("drop", "finding"),
    [
        (5, "task s/1 never ended"),
        (1, "lease t1 never ended"),
        (11, "lease t2 never ended"),
        (0, "lease t1 ended without beginning"),
        (2, "task s/1 ended without beginning"),
    ],
)
def test_a_missing_half_is_found(drop, finding):
    records = sound()
    del records[drop]
    assert any(finding in text for text in checks.balanced({"w1": records}, frozenset()))


@pytest.mark.parametrize(
    ("double", "finding"),
    [(2, "task s/1 began 2 times"), (5, "task s/1 ended 2 times"), (1, "lease t1 ended 2 times")],
)
def test_a_doubled_half_is_found(double, finding):
    records = sound()
    records.insert(double, records[double])
    assert any(finding in text for text in checks.balanced({"w1": records}, frozenset()))


def test_a_killed_worker_may_leave_tasks_open_but_may_not_run_one_twice():
    records = sound()[:4]
    assert checks.balanced({"w1": records}, frozenset({"w1"})) == []
    assert checks.balanced({"w1": [*records, records[2]]}, frozenset({"w1"})) == ["w1: task s/1 began 2 times"]
    assert checks.interrupted(records) == 2


@pytest.mark.parametrize(
    ("records", "code", "finding"),
    [
        ([r for r in sound() if r["event"] != "drain"], 0, "never began to drain"),
        ([*sound()[:9], record("grant", 1, 1, token="t9"), *sound()[9:]], 0, "granted t9 while draining"),
        (sound()[:-1], 0, "last record is 'release'"),
        ([*sound()[:-1], record("leave", 1, 0)], 0, "left with 1 running"),
        (sound(), 1, "exit code 1"),
        (sound(), None, "exit code None"),
    ],
)
def test_a_bad_drain_is_found(records, code, finding):
    assert any(finding in text for text in checks.drained_well("w1", records, code))


REST = AtRest(limiters={"w1": (0, 0)}, heartbeats={"w1": (0, 0)}, ledger=(), gauges={"reserved_slots": 0.0})


def test_rest_is_when_all_is_zero():
    assert checks.all_zero(REST) == []


@pytest.mark.parametrize(
    ("rest", "finding"),
    [
        (replace(REST, limiters={"w1": (0, 1)}), "w1's limiter shows 0+1"),
        (replace(REST, heartbeats={"w1": (2, 0)}), "w1's heartbeat shows 2+0"),
        (replace(REST, heartbeats={}), "by its heartbeat or by its limiter only"),
        (replace(REST, limiters={}), "no worker is left to ask"),
        (replace(REST, ledger=("t1",)), "the ledger still holds t1"),
        (replace(REST, gauges={"queue_size": 1.0}), "the gauge queue_size shows 1"),
        (replace(REST, gauges={}), "no gauge could be read"),
    ],
)
def test_anything_left_over_is_found(rest, finding):
    assert any(finding in text for text in checks.all_zero(rest))


@pytest.mark.parametrize(
    ("share", "value"), [(0.5, 50.0), (0.9, 90.0), (0.99, 99.0), (1.0, 100.0), (0.001, 1.0), (0.0, 1.0)]
)
def test_percentiles_are_by_nearest_rank(share, value):
    assert checks.percentile([float(n) for n in range(1, 101)], share) == value


def test_the_percentile_of_nothing_is_zero_and_of_one_value_that_value():
    assert checks.percentile([], 0.5) == 0.0
    assert checks.percentile([7.0], 0.99) == 7.0


def test_work_is_counted_by_worker_and_way():
    assert checks.per_worker([A, A, replace(A, way="lease"), B]) == {"w1": {"call": 2, "lease": 1}, "w2": {"call": 1}}
