"""Who goes before whom.

A task's place is its *virtual time*: when it was published, less `age_step_s` for each step of its priority; ties by
sequence. Since waiting is worth the same to all, it need not be counted: a task of priority 0 that has waited 20 s and
one of priority 2 that has just been published are neighbours (with `age_step_s` 10), and stay so. Places never change,
so a heap keeps them.

The bound of starvation: a task goes before every task of higher priority that is published more than (difference of
priorities) x `age_step_s` after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from ....schemas.messages.submission import Submission

Place = tuple[float, int]
"""Virtual time, sequence. Lower goes first."""

_SLACK: Final = 64


def place_of(submission: Submission, seq: int, age_step_s: float) -> Place:
    """Where the task stands among the others of its queue."""
    return (submission.published_at - submission.priority * age_step_s, seq)


class RankedSet:
    """Sequences by place. Adding, removing and taking the first (or, `reverse`, the last) costs O(log n)."""

    __slots__ = ("_heap", "_members", "_sign")

    def __init__(self, *, reverse: bool = False) -> None:
        self._sign = -1 if reverse else 1
        self._heap: list[Place] = []  # may hold places of those that were removed since
        self._members: dict[int, Place] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, seq: int) -> bool:
        return seq in self._members

    def __iter__(self) -> Iterator[int]:
        """In no particular order."""
        return iter(self._members)

    def __repr__(self) -> str:
        return f"RankedSet({len(self._members)}, first={self.first})"

    def add(self, place: Place) -> None:
        assert place[1] not in self._members, place
        self._members[place[1]] = place
        heappush(self._heap, place if self._sign > 0 else (-place[0], -place[1]))
        if len(self._heap) > _SLACK + 4 * len(self._members):
            self._heap = [(self._sign * at, self._sign * seq) for at, seq in self._members.values()]
            heapify(self._heap)

    def discard(self, seq: int) -> bool:
        """False: it was not there."""
        return self._members.pop(seq, None) is not None

    @property
    def first(self) -> Place | None:
        """The place that goes first (`reverse`: last); None if there is none."""
        heap, members = self._heap, self._members
        while heap:
            place = heap[0] if self._sign > 0 else (-heap[0][0], -heap[0][1])
            if members.get(place[1]) == place:
                return place
            heappop(heap)
        return None


class ReadyQueue:
    """The tasks of one pool that may start as soon as there is room, with the slots that each takes."""

    __slots__ = ("_by_cost", "_costs", "slots")

    def __init__(self) -> None:
        self._by_cost: dict[int, RankedSet] = {}
        self._costs: dict[int, int] = {}
        self.slots = 0
        """That all of them together take."""

    def __len__(self) -> int:
        return len(self._costs)

    def __contains__(self, seq: int) -> bool:
        return seq in self._costs

    def __iter__(self) -> Iterator[int]:
        return iter(self._costs)

    def add(self, place: Place, cost: int) -> None:
        assert place[1] not in self._costs, place
        self._by_cost.setdefault(cost, RankedSet()).add(place)
        self._costs[place[1]] = cost
        self.slots += cost

    def discard(self, seq: int) -> None:
        cost = self._costs.pop(seq, None)
        if cost is not None:
            ranked = self._by_cost[cost]
            ranked.discard(seq)
            self.slots -= cost
            if not ranked:
                del self._by_cost[cost]

    def first(self, slots: int | None = None) -> Place | None:
        """Who goes first; of those that take no more than so many slots, if that is given. There are few different
        costs, so looking at the first of each is cheap."""
        best: Place | None = None
        for cost, ranked in self._by_cost.items():
            if slots is None or cost <= slots:
                place = ranked.first
                if best is None or (place is not None and place < best):
                    best = place
        return best

    @property
    def smallest(self) -> int:
        """Fewest slots that one of them takes; 0: there is none."""
        return min(self._by_cost, default=0)

    def cost(self, seq: int) -> int:
        return self._costs[seq]
