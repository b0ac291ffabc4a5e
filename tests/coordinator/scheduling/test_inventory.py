from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.coordinator.scheduling.inventory import BucketedOrder

from ...scale import repetitions


def test_the_highest_come_first_and_equals_in_the_order_they_came():
    ranked: BucketedOrder[str] = BucketedOrder()
    for key, level in [("a", 1), ("b", 3), ("c", 3), ("d", 0)]:
        ranked.set(key, level)
    assert list(ranked.descending(1)) == ["b", "c", "a"]
    assert list(ranked.ascending(1)) == ["a", "b", "c"]
    assert ranked.top == 3


@settings(max_examples=repetitions(25, whole=100))
@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 4)))), st.integers(0, 5))
def test_it_is_a_sorted_dictionary(steps, floor):
    ranked: BucketedOrder[int] = BucketedOrder()
    plain: dict[int, int] = {}
    for key, level in steps:
        if level is None:
            ranked.discard(key)
            plain.pop(key, None)
        else:
            ranked.set(key, level)
            plain[key] = level
    there = {key: level for key, level in plain.items() if level >= floor}
    assert {key: ranked.get(key) for key in ranked.descending(floor)} == there
    assert [ranked.get(key) for key in ranked.descending(floor)] == sorted(there.values(), reverse=True)
    assert [ranked.get(key) for key in ranked.ascending(floor)] == sorted(there.values())
    assert (len(ranked), ranked.top) == (len(plain), max(plain.values(), default=0))
