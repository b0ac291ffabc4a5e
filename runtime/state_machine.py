"""Common parts of state tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Protocol, TypeVar

S = TypeVar("S", bound=StrEnum)


class IllegalMove(Exception):
    """A defect of ours: the table does not have this move."""


class Stepping(Protocol[S]):
    """An object with a step, which only its table changes."""

    step: S


def diagram(first: S, edges: Iterable[tuple[str, str, str]], last: S) -> str:
    """A mermaid state diagram, for the documentation. `edges`: from, to, and the name of the move, if any."""
    lines = ["stateDiagram-v2", f"    [*] --> {first.value}"]
    lines += [f"    {before} --> {after}{f': {what}' if what else ''}" for before, after, what in edges]
    lines.append(f"    {last.value} --> [*]")
    return "\n".join(lines) + "\n"
