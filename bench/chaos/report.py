"""What a run prints: a line for each fault, and tables at the end."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.chaos.records import History

_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One fault that was played."""

    kind: str
    text: str
    at_s: float
    """Since the beginning of the run."""
    took_s: float
    recovery_s: float | None
    """From its end until every kind of request had succeeded again at every client; None: not in the time allowed."""
    slowest: str = ""
    """Which kind that was."""

    def line(self) -> str:
        took = "NOT RECOVERED" if self.recovery_s is None else f"recovered in {self.recovery_s:5.1f} s"
        return f"{self.at_s:6.1f} s  {self.text} -> {took} ({self.slowest})"


def tables(played: Sequence[Played], history: History, verdicts: Mapping[str, Sequence[str]]) -> str:
    parts = [_faults(played), _requests(history), _verdicts(verdicts)]
    return "\n\n".join("\n".join(part) for part in parts)


def _faults(played: Sequence[Played]) -> list[str]:
    by: dict[str, list[Played]] = defaultdict(list)
    for each in played:
        by[each.kind].append(each)
    lines = [["fault", "n", "recovery: median", "worst", "not recovered"]]
    for kind, group in sorted(by.items()):
        times = [each.recovery_s for each in group if each.recovery_s is not None]
        middle = f"{statistics.median(times):.1f} s" if times else "-"
        worst = f"{max(times):.1f} s" if times else "-"
        lines.append([kind, str(len(group)), middle, worst, str(len(group) - len(times) or "")])
    return _aligned(lines)


def _requests(history: History) -> list[str]:
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    for request in history.requests:
        told = "ok" if request.ok else request.code or "no answer"
        outcomes[request.kind][told] += 1
    lines = [["request", "n", "outcomes"]]
    for kind, counts in sorted(outcomes.items()):
        said = ", ".join(f"{code} {count}" for code, count in counts.most_common())
        lines.append([kind, str(counts.total()), said])
    return _aligned(lines)


def _verdicts(verdicts: Mapping[str, Sequence[str]]) -> list[str]:
    lines = _aligned([["law", "verdict"], *([law, _verdict(found)] for law, found in verdicts.items())])
    for law, found in verdicts.items():
        lines += [f"BROKEN {law}: {text}" for text in found[:_SHOWN]]
        if len(found) > _SHOWN:
            lines.append(f"BROKEN {law}: ... and {len(found) - _SHOWN} more")
    return lines


def _verdict(found: Sequence[str]) -> str:
    return f"BROKEN {len(found)} times" if found else "holds"


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
