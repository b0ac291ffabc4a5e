"""Numbers that people read at a glance."""

from __future__ import annotations

import pytest

from gangline.cli.console.output import about, duration, slots_bar

from ..support.rows import case


def test_the_bar_shows_running_reserved_and_free():
    cases = [
        ((0, 0, 4), "···· 0+0/4"),
        ((2, 1, 4), "■■□· 2+1/4"),
        ((4, 0, 4), "■■■■ 4+0/4"),
        ((6, 0, 4), "■■■■■■ 6+0/4"),
        ((1, 1, 1000), "■□·········· 1+1/1000"),
        ((500, 500, 1000), "■■■■■■□□□□□□ 500+500/1000"),
    ]
    for load, bar in cases:
        with case(load, bar):
            assert slots_bar(*load) == bar


def test_a_paused_worker_has_no_bar():
    assert slots_bar(0, 0, 0).strip() == "0+0/0"


def test_times_to_come_have_two_units_at_most():
    cases = [
        (-1, "0 s"),
        (4.6, "5 s"),
        (200, "3 min 20 s"),
        (48_877, "13 h 34 min"),
        (90_000, "1 day 1 h"),
        (200_000, "2 days 7 h"),
    ]
    for seconds, text in cases:
        with case(seconds, text):
            assert about(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0 s"), (4.25, "4.2 s"), (200, "3 min 20 s"), (7200, "2:00:00"), (200_000, "2 days, 7:33:20")],
)
def test_durations_are_short_first(seconds, text):
    assert duration(seconds) == text
