"""What went wrong with whom, and when: what may explain that a task was started again."""

from __future__ import annotations

from collections.abc import Callable, Iterable

SERVER = "server"
"""Of the server itself: it restarts, or JetStream has no leader."""
SILENCE = "silence"
"""A server of a cluster stops answering, or does not receive from the others: messages are late, but nothing is lost.
"""
WEATHER = ""
"""Storms: they affect all messages."""


def pool_name(pool: str) -> str:
    """The names of troubles."""
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
        """Messages may have been held for so long that their deadlines mean nothing: a partition was healed recently.
        """
        self.calm = True
        """Nothing has gone wrong so far."""
        self.lossy = False
        """Messages may have been lost on connections that held, which no server does: a storm that drops them has
        begun. Whatever is redelivered because of that comes late."""
        self.doubling = False
        """Messages may have come twice, although no server sends them twice: a storm that duplicates them has begun."""

    def begin(self, name: str) -> Callable[[], None]:
        """Trouble begins for it. Returns a function to call when the trouble is over."""
        span = [self._clock(), float("inf")]
        self._spans.setdefault(name, []).append(span)

        def end() -> None:
            span[1] = self._clock()

        return end

    def hear(self, names: Iterable[str], heard: Iterable[str]) -> None:
        """These workers and pools are in the ledger now. A worker that is not may be taken for dead by anybody, and a
        pool that is not may be unknown."""
        heard = set(heard)
        for name in names:
            if name not in heard and name not in self._silent:
                self._silent.add(name)
                self._spans.setdefault(name, []).append([self._clock(), float("inf")])
            elif name in heard and name in self._silent:
                self._silent.discard(name)
                self._spans[name][-1][1] = self._clock()

    def befell(self, name: str, since: float, slack_s: float = 0.0) -> bool:
        """Whether it had any trouble since then, or until shortly before."""
        return any(until >= since - slack_s for _, until in self._spans.get(name, ()))

    def delayed(self, since: float) -> bool:
        """Whether a server did not answer, or did not pass everything on, since then."""
        return self.befell(SERVER, since) or self.befell(SILENCE, since)

    def lasted(self, name: str, since: float, seconds: float) -> bool:
        """Whether it had one trouble that lasted for this long and was not over by then."""
        now = self._clock()
        return any(until >= since and min(until, now) - begun >= seconds for begun, until in self._spans.get(name, ()))

    def count(self, names: Iterable[str], since: float) -> int:
        """How many troubles any of them had since then."""
        return sum(1 for name in names for _, until in self._spans.get(name, ()) if until >= since)
