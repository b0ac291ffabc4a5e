"""Slots set aside for the gang at the head of the queue, as they become free, so that it does not starve under load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .limiter import SlotLimiter
from .timers import NEVER


@dataclass(slots=True, eq=False)
class SlotReservation:
    """What one gang has set aside."""

    wanted: int = 0
    has: int = 0
    until: float = NEVER


class SlotReservations:
    """All keeps of one worker. Free slots go to them first, to the oldest before the others.

    Invariant: a keep has what it wants, or no slot is free.
    """

    __slots__ = ("_limiter", "_paused", "by_gang")

    def __init__(self, limiter: SlotLimiter) -> None:
        self._limiter = limiter
        self._paused = False
        """Slots move from a keep to a hold: nobody may take them in between."""
        self.by_gang: dict[str, SlotReservation] = {}
        """Oldest first."""

    def __bool__(self) -> bool:
        return bool(self.by_gang)

    def __len__(self) -> int:
        return len(self.by_gang)

    @property
    def slots(self) -> int:
        """Set aside now, for all."""
        return sum(keep.has for keep in self.by_gang.values())

    def has(self, gang: str) -> int:
        """Set aside now for this gang."""
        keep = self.by_gang.get(gang)
        return keep.has if keep is not None else 0

    def ask(self, gang: str, slots: int, keep_s: float, now: float) -> int:
        """Set aside up to `slots` until `keep_s` from now; replaces what was asked before. Returns how many it has."""
        self.lapse(now)
        if slots == 0:
            self._give_back(gang)
            return 0
        keep = self.by_gang.setdefault(gang, SlotReservation())
        self._limiter.on_free = self._top_up
        keep.wanted, keep.until = slots, now + keep_s
        surplus = keep.has - slots
        if surplus > 0:
            rest = object()
            keep.has -= self._limiter.move(keep, rest, surplus)
            self._limiter.release(rest)
        self._top_up()
        return keep.has

    @contextmanager
    def spent(self, gang: str) -> Iterator[None]:
        """End this gang's keep; inside, its slots can be taken by whoever is in there, and by nobody else."""
        self._paused = True
        try:
            self._give_back(gang)
            yield
        finally:
            self._paused = False
            self._top_up()

    def lapse(self, now: float) -> None:
        """Give back what nobody asked for again in time."""
        for gang in [gang for gang, keep in self.by_gang.items() if keep.until <= now]:
            self._give_back(gang)

    def clear(self) -> None:
        """Give all back."""
        self._paused = True
        for gang in list(self.by_gang):
            self._give_back(gang)
        self._paused = False

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        for keep in self.by_gang.values():
            assert 0 <= keep.has <= keep.wanted, keep
            assert self._limiter.held(keep)[0] == keep.has, keep
            assert keep.has == keep.wanted or self._limiter.free == 0, "free slots were not set aside"

    def _give_back(self, gang: str) -> None:
        keep = self.by_gang.pop(gang, None)
        if not self.by_gang:
            self._limiter.on_free = None  # every task would ask in vain
        if keep is not None:
            self._limiter.release(keep)

    def _top_up(self) -> None:
        if self._paused:
            return
        for keep in self.by_gang.values():
            slots = min(keep.wanted - keep.has, self._limiter.free)
            if slots > 0:
                fresh = object()
                self._limiter.reserve_nowait(fresh, slots)
                keep.has += self._limiter.move(fresh, keep)
