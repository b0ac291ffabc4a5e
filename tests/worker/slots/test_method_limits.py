"""Limits as one worker keeps them: which units are in use, and what may start."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.runtime.rate import burst_of
from gangline.runtime.timers import IdLease
from gangline.schemas.records.workers import TaskPolicy
from gangline.worker.slots.method_limits import MethodLimit, Starts
from gangline.worker.slots.share_core import ShareCore


def test_a_unit_of_a_rate_is_in_use_for_an_interval_after_each_start() -> None:
    starts = Starts(20.0)
    assert (starts.units, starts.interval_s, starts.idle_at()) == (2, 0.1, None)
    starts.use(1, 5.0)
    starts.use(1, 5.06)
    assert not starts.allows(5.09) and starts.idle_at() == pytest.approx(5.1)
    assert starts.allows(5.1) and starts.in_use(5.1) == 1


@settings(max_examples=20)
@given(st.floats(0.01, 500), st.lists(st.floats(0, 0.5), max_size=200))
def test_in_any_time_no_more_start_than_the_burst_and_the_rate_allow(rate: float, gaps: list[float]) -> None:
    starts, now, times = Starts(rate), 100.0, list[float]()
    for gap in gaps:
        now += gap
        if starts.allows(now):
            starts.use(1, now)
            times.append(now)
    for first, earlier in enumerate(times):
        for last in range(first, len(times)):
            assert last - first + 1 <= burst_of(rate) + rate * (times[last] - earlier) + 1e-3


def test_nobody_asks_for_units_of_the_rate_without_room_to_run() -> None:
    limit = MethodLimit(TaskPolicy(max_running=1, rate_per_s=5.0))
    assert limit.starts is not None and limit.allows(None, 1.0)
    lease = IdLease()
    limit.starts.share = ShareCore("w", "i", lease, limit=1, declared_at=0.0, interval_s=0.2)
    record = object()
    limit.running[record] = None
    assert not limit.allows(None, 1.0) and not limit.starts.share.polls(1.0)
    limit.end(record)
    assert not limit.allows(None, 1.0) and limit.starts.share.polls(1.0)
    limit.check()
