"""Figures as text: percentiles, and tables of aligned columns."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed (nearest rank)."""
    if not sorted_values:
        return 0.0
    rank = max(1, -(-len(sorted_values) * round(share * 1000) // 1000))
    return sorted_values[min(rank, len(sorted_values)) - 1]


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Each line with its cells in columns, the first of them the head."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
