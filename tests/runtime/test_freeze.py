"""Gaps in which nothing ran."""

from __future__ import annotations

from gangline.runtime.failure_detector import FreezeDetector


def test_a_message_after_a_long_gap_is_noticed_once():
    detector = FreezeDetector(1.0, 100.0)
    assert not detector.frozen(101.0)
    assert detector.frozen(101.1)
    assert not detector.frozen(101.2)


def test_the_timer_notices_a_gap_too_and_keeps_it_short_otherwise():
    detector = FreezeDetector(1.0, 100.0)
    for at in (100.25, 100.5, 101.4):
        assert not detector.tick(at)
    assert detector.tick(103.0) and round(detector.gap_s, 6) == 1.6
    assert not detector.tick(103.25)


def test_a_stall_is_what_exceeds_the_timers_own_period():
    detector = FreezeDetector(1.0, 100.0)
    assert detector.stall_s(100.2) == 0.0
    assert round(detector.stall_s(100.85), 6) == 0.6
