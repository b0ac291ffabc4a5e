"""Waits between tries."""

from __future__ import annotations

from gangline.runtime.timers import Backoff, exponential_s


def test_a_backoff_doubles_to_its_most_and_jitter_takes_off_up_to_half():
    backoff = Backoff(0.025, 0.5)
    assert [backoff.next_s() for _ in range(7)] == [0.025, 0.05, 0.1, 0.2, 0.4, 0.5, 0.5]
    assert backoff.next_s(1.0) == 0.25
    backoff.reset()
    assert (backoff.delay_s, backoff.failures) == (0.025, 0)
    assert backoff.next_s(1.0) == 0.0125
    for _ in range(5000):  # no overflow however long it goes on
        backoff.next_s(0.5)
    assert backoff.failures == 5001


def test_to_look_at_the_next_wait_counts_nothing():
    backoff = Backoff(1.0, 4.0)
    assert [backoff.delay_s, backoff.delay_s, backoff.next_s(), backoff.delay_s] == [1.0, 1.0, 1.0, 2.0]


def test_the_waits_are_those_of_doubling_step_by_step():
    wait_s = 0.07
    for failures in range(60):
        assert exponential_s(0.07, 1e6, failures) == wait_s
        wait_s = min(2 * wait_s, 1e6)
    assert exponential_s(0.0, 5.0, 1000) == 0.0
    assert exponential_s(7.0, 5.0, 0) == 5.0
