"""Faults of messages and storage in the in-memory server, drawn from a seeded random source."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

SERVER = "server"
"""Sender of the server's own messages, which are "no responders" statuses."""

LOST: tuple[float, ...] = ()
"""The fate of a message that never arrives."""


def server_time() -> float:
    """Monotonic seconds of the server's own clock. Clients may have other clocks: on a simulated loop each process has
    its own, and the server runs in contexts of no process."""
    return contextvars.Context().run(asyncio.get_running_loop().time)


class WriteOutcome(NamedTuple):
    """The fate of one JetStream operation."""

    request_s: float | None
    """Seconds until the server has it; None: it never arrives."""
    answer_s: float | None
    """Seconds after that until the caller has the answer; None: it was carried out, and the answer is lost."""


class Faults(Protocol):
    """Decides the fate of each message and of each storage operation."""

    def message(self, sender: str, receiver: str, subject: str, now: float) -> Sequence[float]:
        """Delays in seconds, one for each copy that arrives. Empty: lost."""
        ...

    def storage(self, client: str, now: float) -> WriteOutcome: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """How often each fault occurs. Probabilities are per message; times are in seconds."""

    latency_s: float = 0.0005
    """Every message takes this long, or up to 1.5 times as long."""
    distance_s: float = 0.0
    """Each connection is up to this far from the server, one way, and farther or nearer in each second."""
    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    """Delayed by up to `delay_s`, together with everything behind it on the same link (as with TCP)."""
    delay_s: float = 0.5
    reorder: float = 0.0
    """Delayed by up to `delay_s` while others overtake it."""
    storage_drop: float = 0.0
    """An operation is lost, or its answer; each with this probability."""


class Split:
    """A cluster split into two sides. One has JetStream's leader; the other one, `away`, has none.

    Until the servers notice the split, messages to the other side are kept on the way. After that they are lost, and a
    server reports at once that there are no responders on its side.

    Args:
        away: whether the connection of that name is on the side without the leader.
    """

    def __init__(self, away: Callable[[str], bool]) -> None:
        self.away = away
        self.noticed = False
        self._kept: list[Callable[[], None]] = []

    def cross(self, pass_on: Callable[[], None]) -> None:
        """Keep or lose something that is on its way to the other side."""
        if not self.noticed:
            self._kept.append(pass_on)

    def notice(self) -> None:
        """The servers have given up their connections to the other side."""
        self.noticed = True
        self._kept.clear()

    def end(self) -> None:
        """Deliver everything that was kept, in order."""
        kept, self._kept = self._kept, []
        for pass_on in kept:
            pass_on()


class RandomFaults:
    """Random faults. Messages on one link (sender to receiver) keep their order unless `reorder` was drawn.

    This is harsher than NATS, which neither duplicates nor reorders between two clients. Messages from the server
    itself are never duplicated or reordered here either: they can only be lost or late.

    Args:
        source: seeded; each decision draws from it, so a repeated run has the same faults.
        rates: may be replaced at any time, for calm and stormy phases.
    """

    def __init__(self, source: random.Random, rates: FaultRates, on_fault: Callable[[str, str], None] | None = None):
        self.rates = rates
        self._draw = source.random
        self._on_fault = on_fault or _ignore
        self._clear_at: dict[tuple[str, str], float] = {}
        self._distances: dict[str, tuple[int, float]] = {}
        """Of each connection: the second for which it was drawn, and seconds to the server."""

    def __repr__(self) -> str:
        return f"RandomFaults({self.rates!r})"

    def message(self, sender: str, receiver: str, subject: str, now: float) -> Sequence[float]:
        rates, draw = self.rates, self._draw
        latency = rates.latency_s * (1 + draw() / 2) + self._distance_s(sender, now) + self._distance_s(receiver, now)
        chance = draw()
        if chance < rates.drop:
            self._on_fault("drop", subject)
            return LOST
        chance -= rates.drop
        if sender == SERVER:
            return (self._in_order(sender, receiver, now, latency + (chance < rates.delay) * draw() * rates.delay_s),)
        if chance < rates.reorder:
            self._on_fault("reorder", subject)
            return (latency + draw() * rates.delay_s,)
        chance -= rates.reorder
        if chance < rates.duplicate:
            self._on_fault("duplicate", subject)
            return (self._in_order(sender, receiver, now, latency), latency + draw() * rates.delay_s)
        chance -= rates.duplicate
        if chance < rates.delay:
            self._on_fault("delay", subject)
            latency += draw() * rates.delay_s
        return (self._in_order(sender, receiver, now, latency),)

    def storage(self, client: str, now: float) -> WriteOutcome:
        rates, draw = self.rates, self._draw
        chance = draw()
        there, back = (rates.latency_s * (1 + draw() / 2) + self._distance_s(client, now) for _ in range(2))
        if chance < rates.storage_drop:
            self._on_fault("storage request lost", client)
            return WriteOutcome(None, None)
        if chance < 2 * rates.storage_drop:
            self._on_fault("storage answer lost", client)
            return WriteOutcome(there, None)
        return WriteOutcome(there, back)

    def _distance_s(self, name: str, now: float) -> float:
        farthest_s = self.rates.distance_s
        if not farthest_s or name == SERVER:
            return 0.0
        second, distance_s = self._distances.get(name, (-1, 0.0))
        if second != int(now):
            distance_s = self._draw() * farthest_s
            self._distances[name] = int(now), distance_s
        return distance_s

    def _in_order(self, sender: str, receiver: str, now: float, latency: float) -> float:
        link = (sender, receiver)
        at = max(now + latency, self._clear_at.get(link, 0.0))
        self._clear_at[link] = at
        return at - now


def _ignore(_kind: str, _subject: str) -> None:
    """Does nothing."""
