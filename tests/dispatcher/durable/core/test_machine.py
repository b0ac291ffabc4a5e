"""Random histories of a queue: answers that overtake each other, takeovers with half of the writes lost, workers that
die, limits that change, doubts.

The laws are asserted by the world and the oracle at every effect, the core's own invariants after every event. When a
history ends everything heals, and every job must have ended once.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ....scale import repetitions
from ....support.durable.walk import walk

TENANTS = ("", "lab", "shop")


@settings(max_examples=repetitions(5, whole=50), suppress_health_check=list(HealthCheck))
@given(draw=st.randoms(use_true_random=False), tenants=st.sampled_from([("",), TENANTS]))
def test_the_laws_hold_in_histories_that_hypothesis_draws(draw: random.Random, tenants: tuple[str, ...]) -> None:
    """It makes those that break a law shorter."""
    walk(draw, steps=40, tenants=tenants)


@pytest.mark.parametrize("block", range(repetitions(1, whole=10)))
def test_the_laws_hold_in_random_histories(block):
    for seed in range(10 * block, 10 * (block + 1)):
        walk(seed)


@pytest.mark.parametrize("block", range(repetitions(1, whole=10)))
def test_the_laws_hold_in_random_histories_of_several_tenants(block):
    for seed in range(6 * block, 6 * (block + 1)):
        walk(seed, tenants=TENANTS)
