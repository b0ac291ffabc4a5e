"""The figures as a text table."""

from __future__ import annotations

from collections.abc import Iterator

from .figures import FIGURES, Measured
from .run import Results


def rows(results: Results) -> Iterator[tuple[str, str, str, str, str]]:
    """Name, median, worst to best, target, and whether it is met; figures that were not measured are left out."""
    found = {item.figure.name: item for item in results.figures}
    for figure in FIGURES:
        item = found.get(figure.name)
        if item is not None:
            yield figure.name, shown(item.value), _span(item), figure.shown_target, "yes" if item.met else "NO"


def shown(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def _span(item: Measured) -> str:
    return "" if len(item.rounds) == 1 else f"{shown(item.worst)} to {shown(item.best)}"
