"""Limits and order of keys."""

from __future__ import annotations

from gangline.dispatcher.durable.policies.key_limits import KeyConcurrency, OrderedKeys


def test_a_better_one_takes_the_place_of_the_worst_candidate():
    caps = KeyConcurrency(2)
    for seq in (1, 2):
        assert caps.add("k", (float(seq), seq)).promoted == (seq,)
    shift = caps.add("k", (0.5, 3))
    assert (shift.promoted, shift.demoted) == ((3,), (2,))
    assert caps.add("k", (9.0, 4)).promoted == ()
    assert caps.start("k", 1).promoted == ()
    assert caps.stop("k", 1).promoted == (2,)
    caps.check()


def test_what_runs_beyond_the_limit_leaves_no_candidates():
    caps = KeyConcurrency(1)
    caps.add("k", (1.0, 1))
    assert caps.start("k", 7).demoted == (1,)
    assert caps.start("k", 8).promoted == ()
    assert caps.stop("k", 7).promoted == ()
    assert caps.stop("k", 8).promoted == (1,)
    assert caps.discard("k", 1).promoted == ()
    assert len(caps) == 0


def test_the_head_of_a_lane_is_the_started_one_or_else_the_oldest():
    lanes = OrderedKeys()
    assert lanes.join("k", 5) is None
    assert lanes.join("k", 3) == 5
    assert lanes.start("k", 5) == 3
    assert lanes.join("k", 1) is None
    assert lanes.head("k") == 5
    assert lanes.unstart("k", 5) == 1
    assert lanes.start("k", 1) is None
    assert lanes.leave("k", 1) == 3
    assert lanes.leave("k", 5) is None
    assert lanes.leave("k", 3) is None
    assert len(lanes) == 0
