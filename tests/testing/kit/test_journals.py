"""The checks of journals find each kind of violation: a check that cannot fail proves nothing."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.testing.kit.journals import dead_stay_dead, drained_well, interrupted, slots_kept


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


def test_a_sound_journal_gives_no_findings():
    assert slots_kept({"w1": sound()}, slots=2) == []
    assert drained_well("w1", sound(), 0) == []


def test_one_task_more_than_slots_is_found():
    records = sound()
    records.insert(4, record("start", 3, 0, id=9, sender="s"))
    assert any("3+0 of 2 slots" in text for text in slots_kept({"w1": records}, slots=2))


def test_negative_slots_and_a_wrong_total_are_found():
    assert "-1+0 of 2 slots" in slots_kept({"w1": [record("end", -1, 0, id=1)]}, slots=2)[0]
    assert slots_kept({"w1": [record("resize", 0, 0)]}, slots=4) == ["w1 line 1: 2 slots, not 4"]


def test_a_worker_that_recorded_nothing_is_found():
    assert slots_kept({"w1": []}, slots=2) == ["w1 has an empty journal"]


def test_a_journal_that_hides_a_running_task_is_found():
    records = sound()
    records[3]["running"] = 1
    assert slots_kept({"w1": records}) == ["w1 line 4: 1 running, but its events make 2"]


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
    assert any(finding in text for text in slots_kept({"w1": records}))


@pytest.mark.parametrize(
    ("double", "finding"), [(2, "task s/1 began 2 times"), (5, "task s/1 ended 2 times"), (1, "lease t1 ended 2 times")]
)
def test_a_doubled_half_is_found(double, finding):
    records = sound()
    records.insert(double, records[double])
    assert any(finding in text for text in slots_kept({"w1": records}))


def test_a_killed_worker_may_leave_tasks_open_but_may_not_run_one_twice():
    records = sound()[:4]
    assert slots_kept({"w1": records}, {"w1"}) == []
    assert "w1: task s/1 began 2 times" in slots_kept({"w1": [*records, records[2]]}, {"w1"})
    assert interrupted(records) == {"s/1", "s/2"}


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
    assert any(finding in text for text in drained_well("w1", records, code))


def seat(event: str, **more: Any) -> dict[str, Any]:
    return record(event, 0, 0, **more)


JOURNAL = [
    seat("grant", token="t1", gang="a"),
    seat("form", gang="a", generation=1),
    seat("start", id=1, sender="s", token="t1"),
    seat("teardown", gang="a", generation=1),
    seat("end", id=1, sender="s"),
    seat("grant", token="t2", gang="a"),
    seat("form", gang="a", generation=2),
    seat("start", id=2, sender="s", token="t2"),
]


def test_a_restart_on_fresh_tokens_gives_no_findings():
    assert dead_stay_dead({"w1": JOURNAL}) == []


def test_a_task_that_starts_on_a_dead_seat_is_found():
    records = [*JOURNAL, seat("start", id=3, sender="s", token="t1")]
    (finding,) = dead_stay_dead({"w1": records})
    assert finding.startswith("w1 line 9: a task started on a seat of a generation that was torn down")


def test_a_generation_that_is_formed_after_its_teardown_is_found():
    records = [*JOURNAL[:4], seat("form", gang="a", generation=1)]
    assert dead_stay_dead({"w1": records}) == ["w1 line 5: generation 1 of a after its teardown"]


def test_a_total_that_changes_is_allowed_where_it_is_said_so():
    records = [{**seat("resize"), "total": 1}, seat("leave")]
    assert slots_kept({"w1": records}, slots=None) == []
    over = [{**seat("resize"), "total": 1, "reserved": 2}]
    assert slots_kept({"w1": over}, slots=None) == ["w1 line 1 (resize): 0+2 of 1 slots"]
