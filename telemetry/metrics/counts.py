"""Plain counters, always updated, and read only when metrics are collected.

Counting in a dictionary costs 0.1 us, with or without an exporter, and is correct no matter when a provider is set (an
OpenTelemetry up-down counter that missed the `+1` would go negative). When an owner is garbage-collected, its numbers
are added to a total, so that counters never decrease.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable, Set
from typing import Final

Key = tuple[str, ...]

OTHER: Final = "_other"
"""Replaces names of which there are too many to count each separately."""
MOST_NAMES: Final = 1000
"""At least this many names are counted separately."""


class Tally:
    """One number that is updated so often that looking it up each time would cost more than counting."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def __repr__(self) -> str:
        return f"Tally({self.count})"


_NONE: Final = Tally()


class Numbers(defaultdict[Key, int]):
    """The numbers of one owner. Read them with `now`, which includes tallies."""

    def __init__(self) -> None:
        super().__init__(int)
        self._tallies: dict[Key, Tally] = {}

    def tally(self, key: Key) -> Tally:
        """A counter for the key; what it counts is added to the key's number."""
        return self._tallies.setdefault(key, Tally())

    def forget(self, names: Set[str], *, keep: bool) -> None:
        """Forget names that are no longer in use. Callers can invent names; if there are too many, the numbers of
        these are added to OTHER (`keep`, for a counter), or dropped if they are 0 (for a gauge)."""
        if len(self) + len(self._tallies) <= MOST_NAMES:
            return
        for key in [key for key in (*self, *self._tallies) if not names.isdisjoint(key)]:
            if not keep and self.get(key, 0) + self._tallies.get(key, _NONE).count != 0:
                continue
            number = self.pop(key, 0) + self._tallies.pop(key, _NONE).count
            if keep and number:
                self[tuple(OTHER if label in names else label for label in key)] += number

    def now(self) -> list[tuple[Key, int]]:
        """Keys and numbers; a key may occur twice, so add them up. May be called from any thread."""
        # list() of a dictionary with tuple keys runs no Python code, so it is atomic beside a writing thread.
        return list(self.items()) + [(key, tally.count) for key, tally in list(self._tallies.items())]

    def sum(self) -> int:
        """The sum over all keys."""
        return sum(number for _, number in self.now())


class Counts:
    """All owners' numbers of one kind, for example `requests` by (endpoint, pool)."""

    def __init__(self, *, keep: bool) -> None:
        """
        Args:
            keep: True for counters, whose numbers outlive their owner; False for gauges, which vanish with it.
        """
        self._keep = keep
        self._lock = threading.Lock()
        self._living: dict[int, Numbers] = {}
        self._orphans: deque[Numbers] = deque()
        """Numbers of garbage-collected owners. The collector may run at any moment in any thread, even one that holds
        the lock, so they are folded by the next call that takes the lock."""
        self._retired = Numbers()

    def of(self, owner: object) -> Numbers:
        """New numbers that belong to `owner`; written by one thread only."""
        numbers = Numbers()
        with self._lock:
            self._fold()
            self._living[id(numbers)] = numbers
        weakref.finalize(owner, self._orphans.append, numbers).atexit = False
        return numbers

    def total(self) -> Iterable[tuple[Key, int]]:
        """The sum over all owners. May be called from any thread."""
        with self._lock:
            self._fold()
            parts = [self._retired, *self._living.values()]
            summed: defaultdict[Key, int] = defaultdict(int)
            for part in parts:
                for key, number in part.now():
                    summed[key] += number
        return summed.items()

    def _fold(self) -> None:
        """Remove owners that no longer exist. Call it with the lock held."""
        while self._orphans:
            numbers = self._orphans.popleft()
            self._living.pop(id(numbers), None)
            if self._keep:
                for key, number in numbers.now():
                    self._retired[key] += number
