"""What happened in a run, in order: the tail is printed with a violation, the hash tells whether two runs are one."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

TAIL = 60
"""Events kept for people."""


class Trace:
    """A list of events, each a time, a place and a text.

    Args:
        clock: seconds since the beginning of the run.
        echo: called with each line as it happens; None: nothing is shown.
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
