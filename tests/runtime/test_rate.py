"""The gate that keeps a rate."""

from __future__ import annotations

import random

import pytest

from gangline.runtime.rate import RateLimiter, burst_of


@pytest.mark.parametrize("burst", [1, 3])
def test_in_no_stretch_of_time_more_start_than_the_rate_and_the_burst_allow(burst):
    draw = random.Random(burst)
    gate, now, starts = RateLimiter(rate_per_s=4.0, burst=burst, now=0.0), 0.0, []
    while now < 200.0:
        if gate.ready(now):
            gate.take(now)
            starts.append(now)
        else:
            now = max(now, gate.next_at) if draw.random() < 0.7 else now + draw.random()
        if draw.random() < 0.1:
            now += draw.random() * 3
    assert starts[0] >= 0.25
    for first, begun in enumerate(starts):
        for last in range(first, min(first + 50, len(starts))):
            assert last - first + 1 <= burst + 4.0 * (starts[last] - begun) + 1e-6


def test_two_dispatchers_one_after_the_other_keep_the_rate():
    first = RateLimiter(rate_per_s=2.0, burst=3, now=0.0)
    starts = []
    for _ in range(3):
        first.take(10.0)
        starts.append(10.0)
    second, now = RateLimiter(rate_per_s=2.0, burst=3, now=10.0), 10.0
    while len(starts) < 8:
        now = max(now, second.next_at)
        second.take(now)
        starts.append(now)
    assert starts[3:] == [10.5, 11.0, 11.5, 12.0, 12.5]


def test_a_gate_says_how_many_may_start_soon():
    gate = RateLimiter(rate_per_s=10.0, burst=3, now=0.0)
    assert gate.allowed(0.0, 0.09) == 0
    assert gate.allowed(0.0, 0.25) == 2
    assert gate.allowed(100.0, 100.0) == 3
    assert gate.allowed(100.0, 100.25) == 5


def test_a_limiter_that_starts_full_allows_a_burst_at_once() -> None:
    gate = RateLimiter(rate_per_s=2.0, burst=3, now=10.0, full=True)
    assert gate.allowed(10.0, 10.0) == 3
    assert gate.more_at(10.0) is None, "the bucket is full"
    for _ in range(3):
        gate.take(10.0)
    assert not gate.ready(10.0)
    assert gate.more_at(10.0) == gate.next_at == 10.5
    assert gate.more_at(10.5) == 11.0


def test_a_rate_without_a_burst_allows_a_tenth_of_a_second_at_once() -> None:
    assert [burst_of(rate) for rate in (0.01, 1.0, 19.0, 20.0, 500.0)] == [1, 1, 1, 2, 50]
