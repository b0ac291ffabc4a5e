"""The output of a run: a line per fault, and tables at the end."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gangline.testing.kit.records import SystemHistory
from gangline.testing.kit.tables import aligned

_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One fault."""

    kind: str
    text: str
    at_s: float
    """Seconds since the start of the run."""
    took_s: float
    recovery_s: float | None
    """From its end until every kind of request had succeeded again at every client; None: not in time."""
    slowest: str = ""
    """The kind that took longest."""

    def line(self) -> str:
        took = "NOT RECOVERED" if self.recovery_s is None else f"recovered in {self.recovery_s:5.1f} s"
        return f"{self.at_s:6.1f} s  {self.text} -> {took} ({self.slowest})"


def tables(played: Sequence[Played], history: SystemHistory, verdicts: Mapping[str, Sequence[str]]) -> str:
    parts = [_faults(played), _requests(_outcomes(history)), _verdicts(verdicts)]
    return "\n\n".join("\n".join(part) for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """The summary of one run, if there are many."""

    seed: int
    minutes: float
    played: Sequence[Played]
    outcomes: Mapping[str, Counter[str]]
    """Number of outcomes by kind of request."""
    verdicts: Mapping[str, Sequence[str]]
    failed: str = ""
    """Why the run did not finish."""

    @classmethod
    def of(
        cls,
        seed: int,
        minutes: float,
        played: Sequence[Played],
        history: SystemHistory,
        verdicts: Mapping[str, Sequence[str]],
    ) -> Seed:
        return cls(seed=seed, minutes=minutes, played=played, outcomes=_outcomes(history), verdicts=verdicts)

    @property
    def held(self) -> bool:
        """All laws."""
        return not self.failed and not any(self.verdicts.values())

    def line(self) -> list[str]:
        unrecovered = sum(each.recovery_s is None for each in self.played)
        times = [each.recovery_s for each in self.played if each.recovery_s is not None]
        broken = ", ".join(f"{law} {len(found)}" for law, found in self.verdicts.items() if found)
        return [
            str(self.seed),
            str(len(self.played)),
            *_times(times),
            str(unrecovered or ""),
            str(sum(counts.total() for counts in self.outcomes.values())),
            self.failed or (f"BROKEN {broken}" if broken else "holds"),
        ]


def summary(seeds: Sequence[Seed]) -> str:
    """Summary of many runs: a line for each, and over all of them faults and recovery by kind, requests, and laws."""
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    verdicts: dict[str, list[str]] = {}
    for seed in seeds:
        for kind, counts in seed.outcomes.items():
            outcomes[kind].update(counts)
        for law, found in seed.verdicts.items():
            verdicts.setdefault(law, []).extend(f"seed {seed.seed}: {text}" for text in found)
    lines = [["seed", "faults", "recovery: median", "worst", "not recovered", "requests", "verdict"]]
    held = sum(seed.held for seed in seeds)
    told = [f"{held} of {len(seeds)} seeds held all laws, {sum(seed.minutes for seed in seeds):g} minutes of faults"]
    parts = [
        aligned([*lines, *(seed.line() for seed in seeds)]),
        _faults([each for seed in seeds for each in seed.played]),
        _requests(outcomes),
        _verdicts(verdicts),
        told,
    ]
    return "\n\n".join("\n".join(part) for part in parts)


def _faults(played: Sequence[Played]) -> list[str]:
    by: dict[str, list[Played]] = defaultdict(list)
    for each in played:
        by[each.kind].append(each)
    lines = [["fault", "n", "recovery: median", "worst", "not recovered"]]
    for kind, group in sorted(by.items()):
        times = [each.recovery_s for each in group if each.recovery_s is not None]
        lines.append([kind, str(len(group)), *_times(times), str(len(group) - len(times) or "")])
    return aligned(lines)


def _times(times: Sequence[float]) -> tuple[str, str]:
    """Median and worst."""
    return (f"{statistics.median(times):.1f} s", f"{max(times):.1f} s") if times else ("-", "-")


def _outcomes(history: SystemHistory) -> dict[str, Counter[str]]:
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    for request in history.requests:
        told = "ok" if request.ok else request.code or "no answer"
        outcomes[request.kind][told] += 1
    return outcomes


def _requests(outcomes: Mapping[str, Counter[str]]) -> list[str]:
    lines = [["request", "n", "outcomes"]]
    for kind, counts in sorted(outcomes.items()):
        said = ", ".join(f"{code} {count}" for code, count in counts.most_common())
        lines.append([kind, str(counts.total()), said])
    return aligned(lines)


def _verdicts(verdicts: Mapping[str, Sequence[str]]) -> list[str]:
    lines = aligned([["law", "verdict"], *([law, _verdict(found)] for law, found in verdicts.items())])
    for law, found in verdicts.items():
        lines += [f"BROKEN {law}: {text}" for text in found[:_SHOWN]]
        if len(found) > _SHOWN:
            lines.append(f"BROKEN {law}: ... and {len(found) - _SHOWN} more")
    return lines


def _verdict(found: Sequence[str]) -> str:
    return f"BROKEN {len(found)} times" if found else "holds"
