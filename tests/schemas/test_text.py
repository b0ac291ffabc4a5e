"""Words for people."""

from __future__ import annotations

from gangline.schemas.text import count_of, known_names


def test_one_is_one_and_all_else_is_many():
    assert [count_of(number, "slot") for number in (0, 1, 2)] == ["0 slots", "1 slot", "2 slots"]


def test_the_nearest_name_is_named_first_if_one_is_near():
    assert known_names("coutn", ["count", "shout"]) == "did you mean 'count'? It has: count, shout"
    assert known_names("nope", ["count", "shout"]) == "it has: count, shout"
    assert known_names("x" * 10_000, []) == "it has: none"
