"""The results of a scenario: samples with median and worst, and every broken law."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gangline.testing.kit.tables import aligned


@dataclass(slots=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    samples: list[float] = field(default_factory=list)
    unit: str = "s"
    target: float | None = None
    """The worst sample must be below this."""
    note: str = ""
    broken: list[str] = field(default_factory=list)
    """Broken laws, each a sentence."""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def worst(self) -> float:
        return max(self.samples)

    @property
    def missed(self) -> bool:
        return self.target is not None and bool(self.samples) and self.worst >= self.target

    @property
    def verdict(self) -> str:
        if self.broken:
            return "BROKEN"
        if self.target is None or not self.samples:
            return ""
        return "MISSED" if self.missed else "met"

    def cells(self) -> list[str]:
        given = bool(self.samples)
        return [
            self.name,
            str(len(self.samples)) if given else "",
            _number(self.median, self.unit) if given else "",
            _number(self.worst, self.unit) if given else "",
            f"< {_number(self.target, self.unit)}" if self.target is not None else "",
            self.verdict,
            self.note,
        ]


Report = Callable[[str], None]
"""Called with each line of progress."""

HEAD = ["what", "n", "median", "worst", "target", "", "note"]


def table(rows: Sequence[Row]) -> str:
    """Aligned columns, one line per row, followed by the broken laws."""
    lines = [HEAD, *(row.cells() for row in rows)]
    return "\n".join([*aligned(lines), *(f"BROKEN {row.name}: {what}" for row in rows for what in row.broken)])


def _number(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value * 1000:.1f} ms" if value < 0.1 else f"{value:.2f} s"
    return f"{value:.1f} {unit}".rstrip() if value < 100 else f"{value:.0f} {unit}".rstrip()
