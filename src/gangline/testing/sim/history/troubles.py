"""What befell whom, and when: what may explain that a task was started again."""

from __future__ import annotations

from collections.abc import Callable, Iterable

SERVER = "server"
"""Of the server itself: it restarts, or JetStream has no leader."""
SILENCE = "silence"
"""A server of a cluster falls silent, or does not hear the others: messages are late, but nobody has lost anything."""
WEATHER = ""
"""Storms: they befall all messages."""


def pool_name(pool: str) -> str:
    """What troubles call it."""
    return f"pool {pool}"


class Troubles:
    """Of named processes, and of the server.

    Args:
        clock: seconds since the beginning of the run.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spans: dict[str, list[list[float]]] = {}
        """By name: from and until."""
        self._silent: set[str] = set()
        self.late = False
        """Messages may have been held so long that their deadlines mean nothing: a partition was healed lately."""
        self.calm = True
        """Nothing has gone wrong so far."""
        self.lossy = False
        """Messages may have got lost on connections that held, which no server does: a storm that drops them has begun.
        What is delivered again for that comes late."""
        self.doubling = False
        """Messages may have come twice, as no server sends them: a storm that duplicates them has begun."""

    def begin(self, name: str) -> Callable[[], None]:
        """Something befalls it. Returns what is to be called when that is over."""
        span = [self._clock(), float("inf")]
        self._spans.setdefault(name, []).append(span)

        def end() -> None:
            span[1] = self._clock()

        return end

    def hear(self, names: Iterable[str], heard: Iterable[str]) -> None:
        """Of these workers and pools those are in the ledger now. A worker that is not may be thought dead by anybody,
        a pool that is not may be unknown."""
        heard = set(heard)
        for name in names:
            if name not in heard and name not in self._silent:
                self._silent.add(name)
                self._spans.setdefault(name, []).append([self._clock(), float("inf")])
            elif name in heard and name in self._silent:
                self._silent.discard(name)
                self._spans[name][-1][1] = self._clock()

    def befell(self, name: str, since: float, slack_s: float = 0.0) -> bool:
        """Whether anything did since then, or until shortly before."""
        return any(until >= since - slack_s for _, until in self._spans.get(name, ()))

    def delayed(self, since: float) -> bool:
        """Whether a server did not answer, or did not let everything through, since then."""
        return self.befell(SERVER, since) or self.befell(SILENCE, since)

    def lasted(self, name: str, since: float, seconds: float) -> bool:
        """Whether one thing that befell it went on for so long, and was not over by then."""
        now = self._clock()
        return any(until >= since and min(until, now) - begun >= seconds for begun, until in self._spans.get(name, ()))

    def count(self, names: Iterable[str], since: float) -> int:
        """How often anything befell any of them since then."""
        return sum(1 for name in names for _, until in self._spans.get(name, ()) if until >= since)
