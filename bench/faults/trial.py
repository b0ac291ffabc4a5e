"""How a scenario is to be run: the benchmarks and the tests run the same ones, each in its own way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from bench.faults.crew import Launch, new_interpreter
from bench.faults.figures import Report


def silent(_: str) -> None:
    """Nobody reads the progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    repetitions: int = 1
    report: Report = silent
    launch: Launch = new_interpreter
    """How its processes are started."""
    url: str = ""
    """Of a nats-server that it may share with others, in a namespace of its own; else it starts one. Scenarios that
    kill servers start theirs in any case."""

    def fewer(self, divisor: int) -> Self:
        """For a scenario whose repetitions are long, or many in one."""
        return replace(self, repetitions=max(1, self.repetitions // divisor))
