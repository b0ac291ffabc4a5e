"""Places, and what keeps them in order."""

from __future__ import annotations

import random

import pytest

from gangline.dispatcher.durable.policies.start_order import RankedSet, ReadyQueue, place_of
from gangline.schemas.messages.submission import Submission


def submission(**fields) -> Submission:
    return Submission(endpoint="e", method="m", job="j", **fields)


def test_a_step_of_priority_is_worth_so_many_seconds_of_waiting():
    old = place_of(submission(published_at=100.0), 1, 10.0)
    just_before = place_of(submission(published_at=119.0, priority=2), 2, 10.0)
    just_after = place_of(submission(published_at=121.0, priority=2), 3, 10.0)
    assert just_before < old < just_after


@pytest.mark.parametrize("reverse", [False, True])
def test_ranked_gives_the_first_after_any_additions_and_removals(reverse):
    draw = random.Random(1)
    ranked, model = RankedSet(reverse=reverse), {}
    for step in range(5000):
        if draw.random() < 0.5 or not model:
            place = (float(draw.randrange(50)), step)
            ranked.add(place)
            model[step] = place
        else:
            seq = draw.choice(list(model))
            assert ranked.discard(seq)
            assert not ranked.discard(seq)
            del model[seq]
        expected = (max if reverse else min)(model.values(), default=None)
        assert ranked.first == expected
        assert len(ranked) == len(model)
    assert len(ranked._heap) <= 64 + 4 * len(model) + 1


def test_a_line_counts_the_slots_of_those_in_it():
    line = ReadyQueue()
    line.add((1.0, 1), 2)
    line.add((0.0, 2), 3)
    assert (line.first(), line.first(2), line.first(1)) == ((0.0, 2), (1.0, 1), None)
    assert (line.slots, line.cost(1), len(line), line.smallest) == (5, 2, 2, 2)
    line.discard(2)
    line.discard(2)
    assert (line.first(), line.slots, len(line)) == ((1.0, 1), 2, 1)
