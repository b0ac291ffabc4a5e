"""What can go wrong on the way through an in-memory hub, drawn from a seeded source of chance."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

SERVER = "server"
"""Sender of the server's own messages, that is of no-responders statuses."""

LOST: tuple[float, ...] = ()
"""The fate of a message that never arrives."""


def server_time() -> float:
    """Monotonic seconds of the server's own clock. A client's may be another: on a simulated loop each process has its
    own, and what the server does is done in contexts that belong to none."""
    return contextvars.Context().run(asyncio.get_running_loop().time)


class WriteOutcome(NamedTuple):
    """What happens to one JetStream operation."""

    request_s: float | None
    """Seconds until the server has it; None: it never arrives."""
    answer_s: float | None
    """Seconds until the caller has the answer after that; None: the answer is lost, though it was done."""


class Faults(Protocol):
    """Decides the fate of each message and of each storage operation."""

    def message(self, sender: str, receiver: str, subject: str, now: float) -> Sequence[float]:
        """Delays in seconds, one for each copy that arrives. Empty: lost."""
        ...

    def storage(self, client: str, now: float) -> WriteOutcome: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """How often what goes wrong. Probabilities are for each message; times are in seconds."""

    latency_s: float = 0.0005
    """Every message takes this, and up to half as much again."""
    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    """Held up for up to `delay_s`, and all behind it on the same link with it (as TCP does)."""
    delay_s: float = 0.5
    reorder: float = 0.0
    """Held up for up to `delay_s` while others overtake."""
    storage_drop: float = 0.0
    """An operation, or its answer, is lost; each with this probability."""


class Split:
    """Servers that do not hear each other, as those see it on whose side JetStream has no leader (`away`). The others
    are not held up, but hear nothing from there.

    As long as no server has noticed, what is meant for the other side is kept on the way; from then on it is lost, and
    a server says at once that nobody listens on its side.

    Args:
        away: by the name of a connection, whether it is on the side without the leader.
    """

    def __init__(self, away: Callable[[str], bool]) -> None:
        self.away = away
        self.noticed = False
        self._kept: list[Callable[[], None]] = []

    def cross(self, pass_on: Callable[[], None]) -> None:
        """Something is on its way to the other side."""
        if not self.noticed:
            self._kept.append(pass_on)

    def notice(self) -> None:
        """Servers have given up their connections to those on the other side."""
        self.noticed = True
        self._kept.clear()

    def end(self) -> None:
        """What was kept comes through now, in order."""
        kept, self._kept = self._kept, []
        for pass_on in kept:
            pass_on()


class RandomFaults:
    """Faults by chance. Messages on one link (sender to receiver) keep their order unless `reorder` was drawn.

    This is harsher than NATS, which neither duplicates nor reorders between two clients. What the server itself says
    comes down one connection, in order and once, here too: it may only be lost or late.

    Args:
        source: seeded; each decision draws from it, so the same run draws the same fates.
        rates: may be replaced at any time, for phases of calm and storm.
    """

    def __init__(self, source: random.Random, rates: FaultRates, on_fault: Callable[[str, str], None] | None = None):
        self.rates = rates
        self._draw = source.random
        self._on_fault = on_fault or _ignore
        self._clear_at: dict[tuple[str, str], float] = {}

    def __repr__(self) -> str:
        return f"RandomFaults({self.rates!r})"

    def message(self, sender: str, receiver: str, subject: str, now: float) -> Sequence[float]:
        rates, draw = self.rates, self._draw
        latency = rates.latency_s * (1 + draw() / 2)
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
        there, back = (rates.latency_s * (1 + draw() / 2) for _ in range(2))
        if chance < rates.storage_drop:
            self._on_fault("storage request lost", client)
            return WriteOutcome(None, None)
        if chance < 2 * rates.storage_drop:
            self._on_fault("storage answer lost", client)
            return WriteOutcome(there, None)
        return WriteOutcome(there, back)

    def _in_order(self, sender: str, receiver: str, now: float, latency: float) -> float:
        link = (sender, receiver)
        at = max(now + latency, self._clear_at.get(link, 0.0))
        self._clear_at[link] = at
        return at - now


def _ignore(_kind: str, _subject: str) -> None:
    """Nobody wants to know."""
