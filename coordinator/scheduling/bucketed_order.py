"""Keys ordered by a whole number that changes often."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class BucketedOrder(Generic[K]):
    """Each key has one level. Setting and removing cost the number of distinct levels (slots of a worker: few), not
    the number of keys. Among equals, the one that came to its level first comes first: deterministic.

    Iterators are lazy: do not change the set while one is in use.
    """

    __slots__ = ("_keys", "_level", "_levels")

    def __init__(self) -> None:
        self._level: dict[K, int] = {}
        self._keys: dict[int, dict[K, None]] = {}
        self._levels: list[int] = []  # sorted; exactly the keys of _keys, none of which is empty

    def __len__(self) -> int:
        return len(self._level)

    def __contains__(self, key: K) -> bool:
        return key in self._level

    def __repr__(self) -> str:
        return f"<BucketedOrder {len(self._level)} keys on {len(self._levels)} levels>"

    def get(self, key: K) -> int:
        """The key's level; 0 if it is not there."""
        return self._level.get(key, 0)

    @property
    def top(self) -> int:
        """The highest level; 0 if empty."""
        return self._levels[-1] if self._levels else 0

    def set(self, key: K, level: int) -> None:
        before = self._level.get(key)
        if before == level:
            return
        if before is not None:
            self._leave(key, before)
        self._level[key] = level
        keys = self._keys.get(level)
        if keys is None:
            keys = self._keys[level] = {}
            insort(self._levels, level)
        keys[key] = None

    def discard(self, key: K) -> None:
        before = self._level.pop(key, None)
        if before is not None:
            self._leave(key, before)

    def best(self, floor: int) -> K | None:
        """The first of `descending`."""
        if not self._levels or self._levels[-1] < floor:
            return None
        return next(iter(self._keys[self._levels[-1]]))

    def descending(self, floor: int) -> Iterator[K]:
        """Highest first, down to and including `floor`."""
        for level in reversed(self._levels):
            if level < floor:
                return
            yield from self._keys[level]

    def ascending(self, floor: int) -> Iterator[K]:
        """Lowest first, from `floor` on."""
        for level in self._levels[bisect_left(self._levels, floor) :]:
            yield from self._keys[level]

    def _leave(self, key: K, level: int) -> None:
        keys = self._keys[level]
        del keys[key]
        if not keys:
            del self._keys[level]
            del self._levels[bisect_left(self._levels, level)]
