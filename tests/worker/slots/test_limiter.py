"""The slot limiter, by itself."""

from __future__ import annotations

import pytest

from gangline.worker.slots.limiter import LimiterError, SlotLimiter

from ...support.rows import in_rows


def test_finishing_twice_raises_instead_of_freeing_a_slot_of_somebody_else():
    limiter = SlotLimiter(2)
    limiter.run_nowait("a")
    limiter.run_nowait("b")
    limiter.finish("a")
    with pytest.raises(LimiterError, match="finished twice"):
        limiter.finish("a")
    assert limiter.running == 1


def test_a_borrower_cannot_acquire_twice():
    limiter = SlotLimiter(9)
    limiter.reserve_nowait("lease")
    limiter.run_nowait("task")
    with pytest.raises(LimiterError, match="already holds"):
        limiter.reserve_nowait("lease")
    with pytest.raises(LimiterError, match="already runs"):
        limiter.run_nowait("task")
    with pytest.raises(LimiterError, match="already runs"):
        limiter.start("lease", "task")
    limiter.check()


def test_resizing_down_takes_nothing_away_and_grants_nothing_until_all_fits_and_up_grants_at_once():
    limiter = SlotLimiter(4)
    for task in "abcd":
        limiter.run_nowait(task)
    limiter.resize(2)
    assert limiter.running == 4
    assert limiter.free == 0
    for task, free in (("a", 0), ("b", 0), ("c", 1)):
        limiter.finish(task)
        assert limiter.free == free
    assert limiter.run_nowait("e")
    assert not limiter.run_nowait("f")
    limiter.resize(3)
    assert limiter.run_nowait("f")
    limiter.check()


@in_rows("slots", [0, -1])
def test_nobody_acquires_fewer_than_one_slot(slots):
    limiter = SlotLimiter(4)
    with pytest.raises(ValueError, match="at least 1"):
        limiter.reserve_nowait("lease", slots)
    with pytest.raises(ValueError, match="at least 1"):
        limiter.run_nowait("task", slots)


@in_rows("total", [-1, 1_000_001])
def test_a_total_out_of_bounds_is_refused(total):
    with pytest.raises(ValueError, match="total must be"):
        SlotLimiter(total)
    limiter = SlotLimiter(1)
    with pytest.raises(ValueError, match="total must be"):
        limiter.resize(total)
    assert limiter.total == 1
