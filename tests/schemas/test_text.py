"""Words for people."""

from __future__ import annotations

from gangline.schemas.text import count_of


def test_one_is_one_and_all_else_is_many():
    assert [count_of(number, "slot") for number in (0, 1, 2)] == ["0 slots", "1 slot", "2 slots"]
