"""Which dispatcher owns which queue: when to take one, and from whom. Pure: no IO, no clock, no randomness.

The server has the lock: a dispatcher owns a queue while its consumer of the queue's subjects exists, and the server
refuses a second one. The core decides when to try.

Laws:

1. A queue is taken only if nobody owns it or its owner is dead by law 2, and only while we are connected.
2. An owner is dead if nobody listened to two pings in a row, both sent when we had been connected for a while; or if it
   has not answered for `frozen_after_s` during which we could have received its answer.
3. A consumer is deleted by its name, so that a queue that has changed hands meanwhile is not taken from its new owner.
4. No queue has two steps in progress: after Take nothing more is done about it until `took`, `not_taken` or `gone`.
5. A consumer without our metadata is foreign, and is left alone.
6. The dispatcher with the most queues gives some up while another has fewer by two or more; those with fewer take
   queues faster.
7. An owner trusts its ownership for `TRUST_S` from before it requested the newest proof, less the margin for clocks. A
   dispatcher that takes a queue from an owner that never gave it up waits for `TRUST_S`, counted from when no further
   proof is possible, before it asks which tasks run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ....runtime.timers import margin_s

TRUST_S: Final = 1.0
"""The same in all dispatchers, since each relies on the others' trust."""
RENEW_AFTER_S: Final = 0.3
"""A proof of this age is renewed when there is work."""
CONNECTED_FOR_S: Final = 1.0
"""After a reconnect others may come back later than we do: until then, nobody's absence counts."""
UNHEARD_PINGS: Final = 2
HERE_FOR_S: Final = 2.5
"""How long a dispatcher's report of its number of queues counts."""
MOST_SPREAD_S: Final = 0.4
"""The longest wait in favour of others."""
SETTLE_S: Final = 2.0
"""Pause after giving up queues, so that others can take them and report that."""
MOST_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A consumer of the task stream, as the server lists it."""

    consumer: str
    endpoint: str
    """Empty: it is foreign, with tasks of more than one endpoint."""
    dispatcher: str
    """The owner's id; empty: it is foreign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Delete these consumers, then create ours. Answer with `took` or `not_taken`."""

    endpoint: str
    over: tuple[str, ...]
    died: bool
    """Its last owner never gave it up, and may still trust its ownership: law 7."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PingPeer:
    """Ask whether it is alive. Answer with `alive` or `silent`, or not at all."""

    dispatcher: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Hand over this many queues, idle ones if possible. Answer with `gone` for each."""

    count: int


Effect = Take | PingPeer | GiveUp


class Trust:
    """How long ownership of one queue is trusted: law 7."""

    __slots__ = ("_asked_at",)

    def __init__(self) -> None:
        self._asked_at = float("inf")

    def proven(self, asked_at: float) -> None:
        """Storage has confirmed a request made at this time."""
        self._asked_at = asked_at

    @property
    def begun(self) -> bool:
        return self._asked_at < float("inf")

    def holds(self, now: float) -> bool:
        return now - self._asked_at < TRUST_S - margin_s(TRUST_S)

    def fades(self, now: float) -> bool:
        """Whether it should be renewed."""
        return now - self._asked_at >= RENEW_AFTER_S


class _Peer:
    """Another dispatcher that has queues."""

    __slots__ = ("heard_at", "pinged_at", "unheard")

    def __init__(self, now: float) -> None:
        self.heard_at = now
        self.pinged_at = float("-inf")
        self.unheard = 0


class OwnershipCore:
    """Decides for one dispatcher."""

    def __init__(self, dispatcher: str, *, ping_s: float, frozen_after_s: float, spread_s: float) -> None:
        """
        Args:
            dispatcher: our id.
            ping_s: interval between pings of one dispatcher.
            frozen_after_s: silence after which an owner is dead.
            spread_s: extra wait for each queue that we have more than others.
        """
        self.dispatcher = dispatcher
        self.mine: dict[str, str] = {}
        """Endpoint -> our consumer."""
        self._ping_s = ping_s
        self._frozen_after_s = frozen_after_s
        self._spread_s = spread_s
        self._connected_at: float | None = None
        self._endpoints: frozenset[str] = frozenset()
        self._holdings: dict[str, Holding] = {}
        """Consumers of others, by endpoint."""
        self._had: dict[str, str] = {}
        """By endpoint: another owner that was seen and never gave up the queue."""
        self._foreign: set[str] = set()
        self._peers: dict[str, _Peer] = {}
        self._taking: set[str] = set()
        self._wanted_at: dict[str, float] = {}
        """When to take a free queue; drawn once for each, not at every tick."""
        self._listed = False
        self._others: dict[str, tuple[int, float]] = {}
        """How many queues others have, and when they reported it."""
        self._gave_at = float("-inf")

    @property
    def foreign(self) -> frozenset[str]:
        """Consumers in our way that we must not delete."""
        return frozenset(self._foreign)

    @property
    def peers(self) -> int:
        return len(self._peers)

    @property
    def held(self) -> frozenset[str]:
        """Endpoints whose queues somebody has, as far as we know."""
        return frozenset((*self.mine, *self._holdings))

    @property
    def next_at(self) -> float | None:
        """When the next queue is to be taken; ticks come as well."""
        return min(self._wanted_at.values(), default=None)

    # -- what happens ---------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Connected; nothing is known yet."""
        self._connected_at = self._gave_at = now

    def found(self, endpoints: frozenset[str]) -> None:
        """These endpoints exist."""
        self._endpoints = endpoints

    def listed(self, held: Iterable[Holding], now: float) -> None:
        """These are all consumers."""
        self._listed = True
        holdings: dict[str, Holding] = {}
        self._foreign.clear()
        for holding in held:
            if not holding.endpoint or not holding.dispatcher:
                self._foreign.add(holding.consumer)
            if holding.endpoint and self.mine.get(holding.endpoint) != holding.consumer:
                holdings[holding.endpoint] = holding
        self._holdings = holdings
        self._had.update((endpoint, holding.dispatcher) for endpoint, holding in holdings.items())
        others = {holding.dispatcher for holding in holdings.values()} - {"", self.dispatcher}
        self._peers = {name: self._peers.get(name) or _Peer(now) for name in sorted(others)}

    def alive(self, dispatcher: str, now: float) -> None:
        """A dispatcher has answered or sent something else."""
        if (peer := self._peers.get(dispatcher)) is not None:
            peer.heard_at, peer.unheard = now, 0

    def silent(self, dispatcher: str, now: float) -> None:
        """The server says that nobody listened to a ping."""
        if (peer := self._peers.get(dispatcher)) is not None and self._settled(now):
            peer.unheard += 1

    def told(self, dispatcher: str, has: int | None, now: float) -> None:
        """A dispatcher has reported its number of queues; None: it is leaving."""
        self._others.pop(dispatcher, None)
        if has is not None:
            self._others[dispatcher] = (has, now)

    def handed_over(self, dispatcher: str, endpoints: Iterable[str]) -> None:
        """A dispatcher has just given up these queues."""
        for endpoint in endpoints:
            self._holdings.pop(endpoint, None)
            if self._had.get(endpoint) == dispatcher:
                del self._had[endpoint]

    def connection_changed(self, connected: bool, now: float) -> None:
        self._connected_at = now if connected else None
        self._listed = False
        for peer in self._peers.values():
            peer.heard_at, peer.unheard = now, 0

    def stalled(self, seconds: float) -> None:
        """This process was frozen for this long, and received nothing."""
        for peer in self._peers.values():
            peer.heard_at += seconds
            peer.unheard = 0

    def took(self, endpoint: str, consumer: str) -> None:
        """The queue is ours."""
        self._taking.discard(endpoint)
        self._holdings.pop(endpoint, None)
        self._had.pop(endpoint, None)
        self.mine[endpoint] = consumer

    def not_taken(self, endpoint: str) -> None:
        """Another dispatcher was faster, or the server did not answer."""
        self._taking.discard(endpoint)
        self._listed = False  # who has it now?

    def gone(self, endpoint: str) -> None:
        """The queue is no longer ours."""
        self.mine.pop(endpoint, None)
        self._listed = False

    @property
    def must_list(self) -> bool:
        """Whether consumers must be listed before the next tick, since what is known of them may be wrong."""
        return not self._listed

    def tick(self, now: float, draw: float) -> list[Effect]:
        """Decide. Returns what to do, in order.

        Args:
            draw: random, from [0, 1).
        """
        if self._connected_at is None or not self._listed:
            self._wanted_at.clear()
            return []
        effects: list[Effect] = []
        for name, peer in self._peers.items():
            if now - peer.pinged_at >= self._ping_s:
                peer.pinged_at = now
                effects.append(PingPeer(dispatcher=name))
        wanted = {endpoint for endpoint in self._free(now) if endpoint not in self._taking}
        for endpoint in list(self._wanted_at):
            if endpoint not in wanted:
                del self._wanted_at[endpoint]
        # However many queues we have, those of a dead owner must not wait long.
        ahead = len(self.mine) + len(self._taking) - min(self._counts(now), default=0)
        for endpoint in sorted(wanted):
            wait_s = min(MOST_SPREAD_S, self._spread_s * (max(0, ahead) + draw))
            due_at = self._wanted_at.setdefault(endpoint, now + wait_s)
            if due_at <= now:
                del self._wanted_at[endpoint]
                self._taking.add(endpoint)
                holding = self._holdings.get(endpoint)
                over, died = (holding.consumer,) if holding else (), endpoint in self._had
                effects.append(Take(endpoint=endpoint, over=over, died=died))
            ahead += 1
        if not wanted:
            effects += self._share(now)
        return effects

    # -- inside ---------------------------------------------------------------------------------------------------

    def _settled(self, now: float) -> bool:
        return self._connected_at is not None and now - self._connected_at >= CONNECTED_FOR_S

    def _counts(self, now: float) -> list[int]:
        """How many queues each of the others has."""
        return [has for has, at in self._others.values() if now - at < HERE_FOR_S]

    def _share(self, now: float) -> list[Effect]:
        """Law 6."""
        counts = self._counts(now)
        mine = len(self.mine)
        if self._taking or not counts or now - self._gave_at < SETTLE_S:
            return []
        if mine < max(counts) or mine - min(counts) < 2:
            return []
        self._gave_at = now
        return [GiveUp(count=min(MOST_AT_ONCE, (mine - min(counts)) // 2))]

    def _free(self, now: float) -> Iterable[str]:
        """Queues without a live owner."""
        for endpoint in self._endpoints:
            if endpoint in self.mine:
                continue
            holding = self._holdings.get(endpoint)
            if holding is None or self._is_dead(holding.dispatcher, now):
                yield endpoint

    def _is_dead(self, dispatcher: str, now: float) -> bool:
        if dispatcher == self.dispatcher:
            return True  # ours, created by a request whose answer was lost
        peer = self._peers.get(dispatcher)
        if peer is None or not self._settled(now):
            return False
        return peer.unheard >= UNHEARD_PINGS or now - peer.heard_at >= self._frozen_after_s

    def __repr__(self) -> str:
        return f"OwnershipCore(mine={len(self.mine)}, peers={len(self._peers)}, taking={sorted(self._taking)})"
