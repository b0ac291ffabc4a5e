"""How to run a scenario: benchmarks and tests run the same scenarios, each in its own way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from bench.faults.figures import Report
from gangline.cli.console.children import Launcher, launch


def silent(_: str) -> None:
    """Ignores the progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    repetitions: int = 1
    report: Report = silent
    launch: Launcher = launch
    """How its processes are started."""
    url: str = ""
    """URL of a nats-server that it may share with others, in its own namespace; None: it starts one. Scenarios that
    kill servers always start their own."""

    def fewer(self, divisor: int) -> Self:
        """Number of repetitions of a scenario whose repetitions are long, or consist of many."""
        return replace(self, repetitions=max(1, self.repetitions // divisor))
