"""The trace of a run, and the violations that the checks find.

The end of the trace is printed with a violation; its hash shows whether two runs were the same. The laws themselves are
checked elsewhere: in `calls` by `slots` (L1 to L5, L11), `ledger` (L6) and `outcomes` (each request ends once, with the
truth, and without doubt if nobody received it), in `gangs` and `durable`, and at rest in `play` (L12).
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

TAIL = 60
"""Number of events kept for people to read."""


class Trace:
    """A list of events, each with a time, a place and a text.

    Args:
        clock: seconds since the beginning of the run.
        echo: called with each line as it happens; None: not called.
    """

    def __init__(self, clock: Callable[[], float], echo: Callable[[str], None] | None = None) -> None:
        self._clock = clock
        self._echo = echo
        self._hash = hashlib.sha256()
        self._tail: deque[str] = deque(maxlen=TAIL)
        self.events = 0

    def note(self, where: str, text: str) -> None:
        """Record something for people and for the hash."""
        line = f"{self._clock():10.6f} {where:<6} {text}"
        self.events += 1
        self._hash.update(line.encode())
        self._tail.append(line)
        if self._echo is not None:
            self._echo(line)

    def count(self, where: str, data: bytes) -> None:
        """Record something for the hash only."""
        self._hash.update(where.encode())
        self._hash.update(data)

    def tail(self) -> list[str]:
        return list(self._tail)

    def digest(self) -> str:
        return self._hash.hexdigest()[:16]

    def __repr__(self) -> str:
        return f"<Trace {self.events} events {self.digest()}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A law was broken."""

    law: str
    """`L1` ... `L12`; or `outcome` (a request with a wrong outcome, two, or none), `doubt` (its caller is told that it
    may have started, although nobody received it), `loss` (a live worker was taken for lost), `roll` (a roll retired
    the last gang that served), `roll-out` (a task that succeeded while its worker drained started again), `busy` (one
    request sent very often), `board` (people are shown something else than the ledger and the books of workers say),
    `hang`, `error` (an unexpected one)."""
    at_s: float
    """Virtual seconds since the beginning."""
    text: str
    tail: tuple[str, ...]
    """The events before it."""

    def __str__(self) -> str:
        return f"{self.law} at {self.at_s:.3f} s: {self.text}"


class Checker:
    """Collects violations.

    Args:
        clock: seconds since the beginning of the run.
        trace: its end is added to each violation.
        on_first: called at the first violation, to end the run.
    """

    def __init__(self, clock: Callable[[], float], trace: Trace, on_first: Callable[[], None]) -> None:
        self.clock = clock
        self.trace = trace
        self.violations: list[Violation] = []
        self.closed = False
        """The run is over: ignore what dying processes do."""
        self._on_first = on_first

    def fail(self, law: str, text: str) -> None:
        """Report a broken law. Only the first few are kept, since others may be consequences."""
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
