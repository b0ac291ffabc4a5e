"""Collects what the checks find. The laws themselves are checked beside this: `slots` (L1 to L5, L11), `ledger` (L6),
`outcomes` (each request ends once and is told the truth, and no "perhaps" where nobody received it) and `rest` (L12).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A law was broken."""

    law: str
    """`L1` ... `L12`; or `outcome` (a request told wrong, twice or nothing), `doubt` (its caller is told that it may
    have started, though nobody received it), `loss` (a worker that lives was taken for lost), `roll` (a roll took the
    last gang that served), `roll-out` (a task that ended well while its worker drained started again), `busy` (one
    request sent over and over), `hang`, `error` (an unexpected one)."""
    at_s: float
    """Virtual seconds since the beginning."""
    text: str
    tail: tuple[str, ...]
    """The events before it."""

    def __str__(self) -> str:
        return f"{self.law} at {self.at_s:.3f} s: {self.text}"


class Checker:
    """Where checks report to.

    Args:
        clock: seconds since the beginning of the run.
        trace: its tail goes into each violation.
        on_first: called at the first violation, so that the run can be ended.
    """

    def __init__(self, clock: Callable[[], float], trace: Trace, on_first: Callable[[], None]) -> None:
        self.clock = clock
        self.trace = trace
        self.violations: list[Violation] = []
        self.closed = False
        """The run is over: what dying processes still do does not count."""
        self._on_first = on_first

    def fail(self, law: str, text: str) -> None:
        """A law is broken. What follows from it is of no interest, so only the first few are kept."""
        if self.closed:
            return
        if len(self.violations) < 5:
            self.trace.note("LAW", f"{law} broken: {text}")
            tail = tuple(self.trace.tail()[-45:])
            self.violations.append(Violation(law=law, at_s=self.clock(), text=text, tail=tail))
        if len(self.violations) == 1:
            self._on_first()

    def require(self, truth: bool, law: str, text: str) -> None:
        if not truth:
            self.fail(law, text)
