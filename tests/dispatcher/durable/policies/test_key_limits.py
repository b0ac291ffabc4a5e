"""Limits and order of keys."""

from __future__ import annotations

from gangline.dispatcher.durable.policies.start_order import KeyConcurrency, OrderedKeys


def test_a_better_one_takes_the_place_of_the_worst_candidate():
    concurrency = KeyConcurrency(2)
    for seq in (1, 2):
        assert concurrency.add("k", (float(seq), seq)).promoted == (seq,)
    shift = concurrency.add("k", (0.5, 3))
    assert (shift.promoted, shift.demoted) == ((3,), (2,))
    assert concurrency.add("k", (9.0, 4)).promoted == ()
    assert concurrency.start("k", 1).promoted == ()
    assert concurrency.stop("k", 1).promoted == (2,)
    concurrency.check()


def test_what_runs_beyond_the_limit_leaves_no_candidates():
    concurrency = KeyConcurrency(1)
    concurrency.add("k", (1.0, 1))
    assert concurrency.start("k", 7).demoted == (1,)
    assert concurrency.start("k", 8).promoted == ()
    assert concurrency.stop("k", 7).promoted == ()
    assert concurrency.stop("k", 8).promoted == (1,)
    assert concurrency.discard("k", 1).promoted == ()
    assert len(concurrency) == 0


def test_the_head_of_a_lane_is_the_started_one_or_else_the_oldest():
    ordered_keys = OrderedKeys()
    assert ordered_keys.join("k", 5) is None
    assert ordered_keys.join("k", 3) == 5
    assert ordered_keys.start("k", 5) == 3
    assert ordered_keys.join("k", 1) is None
    assert ordered_keys.head("k") == 5
    assert ordered_keys.unstart("k", 5) == 1
    assert ordered_keys.start("k", 1) is None
    assert ordered_keys.leave("k", 1) == 3
    assert ordered_keys.leave("k", 5) is None
    assert ordered_keys.leave("k", 3) is None
    assert len(ordered_keys) == 0
