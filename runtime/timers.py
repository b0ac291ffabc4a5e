"""Timer queues, backoff, the margin for times that another machine measures, and how long tasks take and wait. The
owner of a queue sets one timer of the event loop for its `next_at`. Pure: the caller draws the randomness.

`UsualDurations` and `Pace` keep a queue useful while more is wanted than can be done. A queue in order of arrival
collapses then: each request waits nearly until its deadline, starts with too little time, and is cancelled. A queue
that refuses the requests that can hardly end in time goes on at full rate, and one that refuses at once what waits in
vain tells its callers early.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Final, Generic, Protocol, TypeVar

_SLACK: Final = 64
"""Maximum number of outdated entries that are tolerated."""

MOST_METHODS: Final = 1000
"""Methods of one queue whose durations are remembered; the one learned first makes room for another."""

_MEAN_GAIN: Final = 1 / 8
_DEVIATION_GAIN: Final = 1 / 4
_DEVIATIONS: Final = 4.0
_GROWTH: Final = 1.25
_UNFIT_PART: Final = 0.75
_MARGIN: Final = 1 / 16
_WINDOW_S: Final = 1.0
_WINDOW_TAKEN: Final = 16

K = TypeVar("K", bound=tuple[Any, ...] | int)


class TimerQueue(Generic[K]):
    """Keys with one time each; setting a key again moves it. Among keys with the same time the smallest is first, so
    the order is deterministic. A heap with lazy deletion: moving and cancelling need no search.
    """

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[K, float] = {}
        self._heap: list[tuple[float, K]] = []  # may hold entries that were moved or cancelled since

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self._at)} entries, next at {self.next_at}>"

    def __contains__(self, key: K) -> bool:
        return key in self._at

    def __iter__(self) -> Iterator[K]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)

    def at(self, key: K) -> float | None:
        return self._at.get(key)

    def set(self, key: K, at: float) -> None:
        self._at[key] = at
        heappush(self._heap, (at, key))
        if len(self._heap) > _SLACK + 4 * len(self._at):
            self._heap = [(when, each) for each, when in self._at.items()]
            heapify(self._heap)

    def cancel(self, key: K) -> None:
        """Idempotent."""
        self._at.pop(key, None)

    def clear(self) -> None:
        self._at.clear()
        self._heap.clear()

    @property
    def next_at(self) -> float | None:
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[K]:
        """Remove and yield the keys that are due, earliest first, including those that become due meanwhile."""
        while True:
            at = self.next_at
            if at is None or at > now:
                return
            _, key = heappop(self._heap)
            del self._at[key]
            yield key


NEVER = float("inf")
"""A `due_at` that never comes: the item is finished, or has no deadline."""


class Due(Protocol):
    """An item. `due_at` may change at any time; `queued_at` belongs to the heap."""

    due_at: float
    """When it is due, in seconds of the loop's clock. NEVER removes it."""
    queued_at: float
    """The time under which the heap has it; NEVER while it is in no heap."""


D = TypeVar("D", bound=Due)


class DeadlineHeap(Generic[D]):
    """A heap with lazy moves: an item that is due later than queued (the common case: a renewal) is not touched until
    then, and a finished one is dropped when it comes up, or when such items are more than half of the heap. An item
    that finishes before the next check (most tasks end in the turn in which they arrived) never enters the heap.
    """

    __slots__ = ("_count", "_heap", "_new")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, D]] = []
        self._new: list[D] = []
        """Pushed since the last check."""
        self._count = 0
        """Breaks ties, so that items themselves are never compared."""

    def __len__(self) -> int:
        """Entries, dead ones included."""
        return len(self._heap) + len(self._new)

    def push(self, item: D) -> None:
        """Queue `item`, or move it to an earlier `due_at`. Ignores an item without a deadline."""
        due_at, queued_at = item.due_at, item.queued_at
        if due_at < queued_at:
            item.queued_at = due_at
            if queued_at == NEVER:
                self._new.append(item)
            else:
                self._queue(item)

    def pop_due(self, now: float) -> list[D]:
        """Remove and return all items with `due_at <= now`, earliest first."""
        if self._new:
            self._settle()
        due: list[D] = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            at, _, item = heappop(heap)
            if at != item.queued_at:
                continue  # it was queued again for an earlier time and came up then
            item.queued_at = NEVER
            if item.due_at <= now:
                due.append(item)
            else:
                self.push(item)
        return due

    def next_at(self, living: int | None = None) -> float | None:
        """When to check next; may be too early, never too late. None: nothing is queued. `living`: as in `compact`."""
        if self._new:
            self._settle()
        if living is not None and len(self._heap) > 2 * living + _SLACK:
            self.compact(living)
        heap = self._heap
        while heap and (heap[0][0] != heap[0][2].queued_at or heap[0][2].due_at == NEVER):
            at, _, item = heappop(heap)
            if at == item.queued_at:
                item.queued_at = NEVER
        return heap[0][0] if heap else None

    def compact(self, living: int) -> None:
        """Drop dead entries if there are many more entries than `living` items."""
        if self._new:
            self._settle()
        if len(self._heap) <= 2 * living + _SLACK:
            return
        keep: list[tuple[float, int, D]] = []
        for entry in self._heap:
            item = entry[2]
            if entry[0] == item.queued_at:
                if item.due_at == NEVER:
                    item.queued_at = NEVER
                else:
                    keep.append(entry)
        heapify(keep)
        self._heap = keep

    def _settle(self) -> None:
        new, self._new = self._new, []
        for item in new:
            if item.due_at == NEVER:
                item.queued_at = NEVER
            else:
                self._queue(item)

    def _queue(self, item: D) -> None:
        self._count += 1
        heappush(self._heap, (item.queued_at, self._count, item))


_MOST_DOUBLINGS: Final = 40
"""By then every wait is at its maximum."""


def exponential_s(first_s: float, most_s: float, failures: int) -> float:
    """The wait after a failure that follows this many others: `first_s`, doubled by each, up to `most_s`."""
    return min(most_s, first_s * 2.0 ** min(failures, _MOST_DOUBLINGS))


class Backoff:
    """`first_s`, doubling to `most_s` with each failure. Reset by a success."""

    __slots__ = ("_first_s", "_most_s", "failures")

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self.failures = 0

    @property
    def delay_s(self) -> float:
        """What `next_s` gives, without jitter."""
        return exponential_s(self._first_s, self._most_s, self.failures)

    def next_s(self, draw: float = 0.0) -> float:
        """How long to wait now, in seconds; counts one more failure. Jitter takes off up to half: `draw` is a random
        number in [0, 1)."""
        delay_s = self.delay_s
        self.failures += 1
        return delay_s * (1.0 - draw / 2)

    def reset(self) -> None:
        self.failures = 0

    def __repr__(self) -> str:
        return f"Backoff({self._first_s:g}, {self._most_s:g}, failures={self.failures})"


CLOCKS_DIFFER: Final = 0.2
"""The largest difference between the rates of two machines' clocks, as a fraction of the faster one. A clock that is
being corrected may be off by a twelfth (chrony's `maxslewrate`), and the other one may be off in the other
direction."""


def margin_s(ttl_s: float) -> float:
    """How much earlier than its time to live a holder stops trusting a lease. It covers a holder's clock that is
    slower than the grantor's, and the time to notice; at most a quarter of the time to live."""
    return min(ttl_s / 4, 0.05 + ttl_s * CLOCKS_DIFFER)


class IdLease:
    """Until when a worker's id is certainly its own. `generation` grows each time that becomes so again."""

    __slots__ = ("generation", "since", "until")

    def __init__(self) -> None:
        self.until = float("-inf")
        self.generation = 0
        self.since = float("-inf")
        """Start of the generation."""

    def __repr__(self) -> str:
        return f"IdLease(until={self.until:g}, generation={self.generation})"

    def holds(self, now: float) -> bool:
        return now < self.until

    def extend(self, now: float, until: float) -> None:
        """The ledger has confirmed it."""
        if now >= self.until:
            self.generation += 1
            self.since = now
        self.until = max(self.until, until)

    def lapse(self) -> None:
        """It has become uncertain."""
        self.until = float("-inf")


class UsualDurations:
    """By method: the mean duration plus four times its mean deviation, as TCP estimates when an answer is late
    (RFC 6298). Old durations fade: each new one takes an eighth of the weight."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}
        """Mean and mean deviation, in seconds."""

    def __repr__(self) -> str:
        return f"UsualDurations({len(self._known)} methods)"

    def ended(self, method: str, seconds: float) -> None:
        """An execution has ended by itself after this time."""
        known = self._known.get(method)
        if known is None:
            if len(self._known) >= MOST_METHODS:
                del self._known[next(iter(self._known))]
            self._known[method] = seconds, seconds / 8
            return
        mean, deviation = known
        off = seconds - mean
        self._known[method] = mean + _MEAN_GAIN * off, deviation + _DEVIATION_GAIN * (abs(off) - deviation)

    def cut_short(self, method: str, seconds: float) -> None:
        """An execution was cancelled after this time, because it had no more: it would have taken longer."""
        usual_s = self.usual_s(method)
        if usual_s is None or usual_s < seconds * _GROWTH:
            self._known.pop(method, None)
            self.ended(method, seconds * _GROWTH / (1 + _DEVIATIONS / 8))

    def usual_s(self, method: str) -> float | None:
        """In which time nearly every execution ends; None: not known yet."""
        known = self._known.get(method)
        return None if known is None else known[0] + max(_DEVIATIONS * known[1], _MARGIN * known[0])

    def shortage(self, method: str, left_s: float) -> str:
        """Text: how much time is left, and how much the task usually needs."""
        usual_s = self.usual_s(method)
        return f"{max(0.0, left_s):.3g} s are left, and {method} usually takes up to {usual_s or 0.0:.3g} s"

    def needed_s(self, method: str, whole_s: float) -> float:
        """How much time must be left when a request starts that had `whole_s` from its beginning.

        If even that is less than the task usually needs, its caller knows better (this one is quick, or has to be tried
        anyway): then it may wait for a quarter of its time.
        """
        usual_s = self.usual_s(method)
        if usual_s is None:
            return 0.0
        return usual_s if usual_s <= whole_s else _UNFIT_PART * whole_s


class Pace:
    """How many requests wait in one line, and how fast they get slots, counted over the last second or more, and over
    at least the last 16 of them."""

    __slots__ = ("_before", "_before_since", "_since", "_taken", "size")

    def __init__(self) -> None:
        self.size = 0
        """Requests that wait."""
        self._before_since: float | None = None
        self._before = 0
        """Taken in the window before."""
        self._since: float | None = None
        self._taken = 0
        """Taken in the current window."""

    def took(self, now: float) -> None:
        """A request gets its slots."""
        if self._since is None:
            self._since = now
        elif self._taken >= _WINDOW_TAKEN and now - self._since >= _WINDOW_S:
            self._before, self._before_since = self._taken, self._since
            self._taken, self._since = 0, now
        self._taken += 1

    def in_vain_s(self, left_s: float, now: float) -> float | None:
        """How long one more request would wait, if that is more than twice as long as it can; None: it is not, or is
        not known yet. Twice, because the pace may change, and nobody is to be refused who could have been served."""
        wait_s = self.wait_s(now)
        return wait_s if wait_s is not None and wait_s > 2 * left_s else None

    def wait_s(self, now: float) -> float | None:
        """How long one more request would wait at this pace; None: too few have got their slots yet."""
        taken = self._before + self._taken
        since = self._since if self._before_since is None else self._before_since
        if taken < _WINDOW_TAKEN or since is None:
            return None
        return self.size * max(0.0, now - since) / taken
