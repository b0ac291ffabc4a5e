"""Percentiles and tables."""

from __future__ import annotations

from gangline.testing.kit.tables import aligned, percentile

from ...support.rows import case


def test_percentiles_are_by_nearest_rank():
    for share, value in [(0.5, 50.0), (0.9, 90.0), (0.99, 99.0), (1.0, 100.0), (0.001, 1.0), (0.0, 1.0)]:
        with case(share, value):
            assert percentile([float(n) for n in range(1, 101)], share) == value


def test_the_percentile_of_nothing_is_zero_and_of_one_value_that_value():
    assert percentile([], 0.5) == 0.0
    assert percentile([7.0], 0.99) == 7.0


def test_cells_stand_in_columns():
    assert aligned([["what", "n"], ["a", "10"], ["long name", ""]]) == ["what       n", "a          10", "long name"]
