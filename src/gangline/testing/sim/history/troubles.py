"""Which faults affected what, and when: they may explain that a task was started again."""

from __future__ import annotations

from collections.abc import Callable, Iterable

SERVER = "server"
"""The server itself: it restarts, or JetStream has no leader."""
SILENCE = "silence"
"""A server of a cluster stops answering, or does not receive from the others: messages are late, but nothing is lost.
"""
WEATHER = ""
"""Storms: they affect all messages."""


def pool_name(pool: str) -> str:
    """The name of a pool's troubles."""
    return f"pool {pool}"


class Troubles:
    """The troubles of processes, pools and the server, by name.

    Args:
        clock: seconds since the beginning of the run.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spans: dict[str, list[list[float]]] = {}
        """By name: start and end of each."""
        self._silent: set[str] = set()
        self.late = False
        """Messages may have been delayed beyond their deadlines, because a partition was healed recently."""
        self.calm = True
        """There was no fault so far."""
        self.lossy = False
        """A storm that drops messages has begun: they may be lost on live connections, unlike with real servers, and
        redeliveries are late."""
        self.forgetful = False
        """The server restarted, and has forgotten the ids of messages that were removed: what a client sends again may
        be stored again. If no result is kept, nobody can tell."""
        self.doubling = False
        """A storm that duplicates messages has begun: they may arrive twice, unlike with real servers."""

    def begin(self, name: str) -> Callable[[], None]:
        """Begin a trouble; returns a function that ends it."""
        span = [self._clock(), float("inf")]
        self._spans.setdefault(name, []).append(span)

        def end() -> None:
            span[1] = self._clock()

        return end

    def hear(self, names: Iterable[str], heard: Iterable[str]) -> None:
        """Record which of these workers and pools are in the ledger now. Others may take a missing worker for dead, and
        may not know a missing pool."""
        heard = set(heard)
        for name in names:
            if name not in heard and name not in self._silent:
                self._silent.add(name)
                self._spans.setdefault(name, []).append([self._clock(), float("inf")])
            elif name in heard and name in self._silent:
                self._silent.discard(name)
                self._spans[name][-1][1] = self._clock()

    def affected(self, name: str, since: float) -> bool:
        """Whether it had any trouble since then."""
        return any(until >= since for _, until in self._spans.get(name, ()))

    def delayed(self, since: float) -> bool:
        """Whether a server did not answer, or did not forward everything, since then."""
        return self.affected(SERVER, since) or self.affected(SILENCE, since)

    def lasted(self, name: str, since: float, seconds: float) -> bool:
        """Whether it had a trouble of at least this length that was not over before then."""
        now = self._clock()
        return any(until >= since and min(until, now) - begun >= seconds for begun, until in self._spans.get(name, ()))

    def count(self, names: Iterable[str], since: float) -> int:
        """Number of troubles of all of these since then."""
        return sum(1 for name in names for _, until in self._spans.get(name, ()) if until >= since)
