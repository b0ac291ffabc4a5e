"""What a queue knows about durations and about its own pace."""

from __future__ import annotations

import pytest

from gangline.runtime.timers import MOST_METHODS, Pace, UsualDurations


def test_equal_durations_are_usual_with_a_small_margin() -> None:
    usual = UsualDurations()
    for _ in range(40):
        usual.ended("work", 0.5)
    assert usual.usual_s("work") == pytest.approx(0.5 * 17 / 16)
    assert usual.usual_s("other") is None


def test_varying_durations_need_more_time_than_their_mean() -> None:
    usual = UsualDurations()
    for number in range(100):
        usual.ended("work", 0.1 if number % 4 else 0.9)
    assert 0.9 < (usual.usual_s("work") or 0.0) < 3.0


def test_an_execution_that_was_cut_short_raises_what_is_usual_and_never_lowers_it() -> None:
    usual = UsualDurations()
    usual.cut_short("work", 0.4)
    assert usual.usual_s("work") == pytest.approx(0.5)
    usual.cut_short("work", 0.1)
    assert usual.usual_s("work") == pytest.approx(0.5)


def test_a_request_whose_whole_time_is_too_short_may_wait_for_a_quarter_of_it() -> None:
    usual = UsualDurations()
    assert usual.needed_s("work", 1.0) == 0.0
    usual.cut_short("work", 1.6)
    assert usual.needed_s("work", 5.0) == pytest.approx(2.0)
    assert usual.needed_s("work", 1.0) == 0.75


def test_the_number_of_remembered_methods_is_bounded() -> None:
    usual = UsualDurations()
    for number in range(MOST_METHODS + 1):
        usual.ended(str(number), 1.0)
    assert usual.usual_s("0") is None and usual.usual_s(str(MOST_METHODS)) is not None
    assert repr(usual) == f"UsualDurations({MOST_METHODS} methods)"


def test_a_pace_counts_all_that_got_slots_in_bursts() -> None:
    pace, now = Pace(), 0.0
    assert pace.wait_s(now) is None
    pace.size = 100
    for _ in range(6):
        for _ in range(8):
            pace.took(now)
        now += 1.0
    assert pace.wait_s(now) == pytest.approx(100 / 8, rel=0.25)
    assert pace.in_vain_s(10.0, now) is None
    assert pace.in_vain_s(2.0, now) is not None


def test_a_pace_follows_workers_that_have_become_faster() -> None:
    pace, now = Pace(), 0.0
    pace.size = 100
    for gap_s in (1.0,) * 20 + (0.01,) * 300:
        pace.took(now)
        now += gap_s
    assert (pace.wait_s(now) or 0.0) < 10.0
