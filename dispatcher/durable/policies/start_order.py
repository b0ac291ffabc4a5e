"""Which task starts first, what limits the starts, and how many messages to prefetch for that decision.

A task's place is its *virtual time*: when it was published, minus `age_step_s` for each step of its priority; ties by
sequence. All tasks age equally, so waiting time need not be tracked: a task of priority 0 that has waited 20 s and a
new one of priority 2 are neighbours (with `age_step_s` 10), and stay so. Places never change, so heaps can hold them.

The bound of starvation: a task starts before every task of higher priority that is published more than (difference of
priorities) x `age_step_s` after it.

Laws of keys:

1. At most `limit` tasks of one key run or may start next; the latter are the waiting ones with the lowest places. The
   others of the key are not checked when a pool has free slots, however many there are.
2. The head of an ordered key is its started task, otherwise the one with the lowest sequence, whatever the priorities.
   Only the head may start. It stays the head through retries, until its end is stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor
from typing import Final

from ....runtime.timers import TimerQueue
from ....schemas.messages.submission import Submission

Place = tuple[float, int]
"""Virtual time, sequence. Lower goes first."""


def place_of(submission: Submission, seq: int, age_step_s: float) -> Place:
    """The task's place in its queue."""
    return (submission.published_at - submission.priority * age_step_s, seq)


class RankedSet(TimerQueue[int]):
    """Sequences by place. Adding, removing and reading the first (or, with `reverse`, the last) costs O(log n)."""

    __slots__ = ("_sign",)

    def __init__(self, *, reverse: bool = False) -> None:
        super().__init__()
        self._sign = -1 if reverse else 1

    def __contains__(self, seq: int) -> bool:
        return self._sign * seq in self._at

    def __iter__(self) -> Iterator[int]:
        """In no particular order."""
        return (self._sign * seq for seq in self._at)

    def add(self, place: Place) -> None:
        assert place[1] not in self, place
        self.set(self._sign * place[1], self._sign * place[0])

    def discard(self, seq: int) -> bool:
        """False: it was not in the set."""
        return self._at.pop(self._sign * seq, None) is not None

    @property
    def first(self) -> Place | None:
        """The lowest place (`reverse`: the highest); None if there is none."""
        if self.next_at is None:
            return None
        at, seq = self._heap[0]
        return (self._sign * at, self._sign * seq)


class ReadyQueue:
    """The tasks of one pool that may start as soon as slots are free, and the slots that each needs."""

    __slots__ = ("_by_cost", "_costs", "slots")

    def __init__(self) -> None:
        self._by_cost: dict[int, RankedSet] = {}
        self._costs: dict[int, int] = {}
        self.slots = 0
        """Sum of the slots of all tasks."""

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
        """The lowest place; if `slots` is given, of tasks that need at most that many. There are few different costs,
        so checking the first of each is cheap."""
        best: Place | None = None
        for cost, ranked in self._by_cost.items():
            if slots is None or cost <= slots:
                place = ranked.first
                if best is None or (place is not None and place < best):
                    best = place
        return best

    @property
    def smallest(self) -> int:
        """The fewest slots that one of them needs; 0: there is none."""
        return min(self._by_cost, default=0)

    def cost(self, seq: int) -> int:
        return self._costs[seq]


@dataclass(frozen=True, slots=True)
class StartChanges:
    """Tasks that may start now, and tasks that may no longer start."""

    promoted: tuple[int, ...] = ()
    demoted: tuple[int, ...] = ()


class _Cap:
    """One key."""

    __slots__ = ("candidates", "running", "waiting")

    def __init__(self) -> None:
        self.running: dict[int, None] = {}
        self.candidates = RankedSet(reverse=True)
        """Tasks that may start; `first` is the one to withdraw when a better one arrives."""
        self.waiting = RankedSet()

    def discard(self, seq: int) -> bool:
        return self.candidates.discard(seq) or self.waiting.discard(seq)

    @property
    def empty(self) -> bool:
        return not self.running and not self.candidates and not self.waiting

    def balance(self, limit: int) -> StartChanges:
        """Restore law 1."""
        promoted: list[int] = []
        demoted: list[int] = []
        while True:
            room = limit - len(self.running) - len(self.candidates)
            worst, best = self.candidates.first, self.waiting.first
            swap = room == 0 and worst is not None and best is not None and best < worst
            if worst is not None and (room < 0 or swap):
                self.candidates.discard(worst[1])
                self.waiting.add(worst)
                demoted.append(worst[1])
            elif best is not None and room > 0:
                self.waiting.discard(best[1])
                self.candidates.add(best)
                promoted.append(best[1])
            else:
                return StartChanges(tuple(promoted), tuple(demoted))


class KeyConcurrency:
    """All keys, with one limit for each of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._keys: dict[str, _Cap] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: str, place: Place) -> StartChanges:
        """Add a startable task; it is `promoted` if it may start."""
        cap = self._keys.setdefault(key, _Cap())
        cap.waiting.add(place)
        return cap.balance(self.limit)

    def discard(self, key: str, seq: int) -> StartChanges:
        """Remove a startable task."""
        cap = self._keys.get(key)
        return self._balance(key, cap) if cap is not None and cap.discard(seq) else StartChanges()

    def start(self, key: str, seq: int) -> StartChanges:
        """A task runs now, whether or not it was allowed to start."""
        cap = self._keys.setdefault(key, _Cap())
        cap.running[seq] = None
        cap.discard(seq)
        return cap.balance(self.limit)

    def stop(self, key: str, seq: int) -> StartChanges:
        """A task no longer runs."""
        cap = self._keys[key]
        del cap.running[seq]
        return self._balance(key, cap)

    def running(self, key: str) -> tuple[int, ...]:
        """Sequences of its tasks that run."""
        cap = self._keys.get(key)
        return () if cap is None else tuple(cap.running)

    def ahead(self, key: str) -> tuple[int, ...]:
        """Sequences of its tasks that run or may be started."""
        cap = self._keys.get(key)
        return () if cap is None else (*cap.running, *cap.candidates)

    def may_start(self, key: str, seq: int) -> bool:
        cap = self._keys.get(key)
        return cap is not None and seq in cap.candidates

    def _balance(self, key: str, cap: _Cap) -> StartChanges:
        if cap.empty:
            del self._keys[key]
            return StartChanges()
        return cap.balance(self.limit)

    def check(self) -> None:
        """Assert law 1; for tests."""
        for key, cap in self._keys.items():
            assert not cap.empty, f"key {key!r} is remembered for nothing"
            assert not set(cap.candidates) & set(cap.waiting), f"key {key!r} has one twice"
            assert not {*cap.candidates, *cap.waiting} & set(cap.running), f"key {key!r} has one twice"
            room = self.limit - len(cap.running) - len(cap.candidates)
            assert room >= 0 or not cap.candidates, f"key {key!r} has too many candidates"
            assert room <= 0 or not cap.waiting, f"key {key!r} keeps one back for nothing"
            worst, best = cap.candidates.first, cap.waiting.first
            assert worst is None or best is None or worst < best, f"key {key!r} prefers the wrong one"


class _Lane:
    """One ordered key."""

    __slots__ = ("members", "started")

    def __init__(self) -> None:
        self.members = RankedSet()
        self.started: dict[int, None] = {}

    @property
    def head(self) -> int | None:
        if self.started:
            return min(self.started)
        first = self.members.first
        return None if first is None else first[1]


class OrderedKeys:
    """The tasks of ordered keys, from their arrival until their end is stored."""

    def __init__(self) -> None:
        self._ordered_keys: dict[str, _Lane] = {}

    def __len__(self) -> int:
        return len(self._ordered_keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ordered_keys)

    def members(self, key: str) -> tuple[int, ...]:
        return tuple(sorted(self._ordered_keys[key].members)) if key in self._ordered_keys else ()

    def join(self, key: str, seq: int) -> int | None:
        """Add a task. Returns the head that it replaces; None if the head is unchanged."""
        lane = self._ordered_keys.setdefault(key, _Lane())
        before = lane.head
        lane.members.add((0.0, seq))
        return None if before is None or lane.head == before else before

    def start(self, key: str, seq: int) -> int | None:
        """A task was started. Returns the head that it replaces; None if the head is unchanged."""
        lane = self._ordered_keys[key]
        before = lane.head
        lane.started[seq] = None
        return None if lane.head == before else before

    def unstart(self, key: str, seq: int) -> int | None:
        """A task was not started after all. Returns the new head if it has changed."""
        lane = self._ordered_keys[key]
        before = lane.head
        lane.started.pop(seq, None)
        return None if lane.head == before else lane.head

    def leave(self, key: str, seq: int) -> int | None:
        """A task has ended. Returns the new head if it has changed."""
        lane = self._ordered_keys[key]
        before = lane.head
        lane.members.discard(seq)
        lane.started.pop(seq, None)
        if not lane.members:
            del self._ordered_keys[key]
            return None
        return None if lane.head == before else lane.head

    def head(self, key: str) -> int | None:
        lane = self._ordered_keys.get(key)
        return None if lane is None else lane.head

    def check(self) -> None:
        """Assert law 2's bookkeeping; for tests."""
        for key, lane in self._ordered_keys.items():
            assert lane.members, f"lane {key!r} is remembered for nothing"
            assert set(lane.started) <= set(lane.members), f"lane {key!r} has started what it does not have"


_HAIR = 1e-9
"""A timer that fires at the computed time must not be a rounding error too early."""


class RateLimiter:
    """Limits starts per second with the generic cell rate algorithm (ITU-T I.371), a leaky bucket without a timer.

    It starts empty: the first start comes after a whole interval. Another dispatcher that started tasks before, under
    the same limit, has used at most the full bucket since, so both together never exceed the limit.
    """

    __slots__ = ("_interval_s", "_tat", "burst", "rate_per_s")

    def __init__(self, *, rate_per_s: float, burst: int, now: float) -> None:
        """
        Args:
            rate_per_s: starts a second in the long run. Above 0.
            burst: starts at once after a pause; at least 1.
            now: the start time.
        """
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._interval_s = 1.0 / rate_per_s
        self._tat = now + burst * self._interval_s
        """Theoretical arrival time: when the bucket is full again if nothing more starts."""

    def __repr__(self) -> str:
        return f"RateLimiter({self.rate_per_s:g}/s, burst={self.burst})"

    @property
    def next_at(self) -> float:
        """When the next start is (or was) allowed."""
        return self._tat - (self.burst - 1) * self._interval_s

    def ready(self, now: float) -> bool:
        return now >= self.next_at - _HAIR

    def take(self, now: float) -> None:
        """Something starts."""
        assert self.ready(now), "started too early"
        self._tat = max(self._tat, now) + self._interval_s

    def allowed(self, now: float, until: float) -> int:
        """How many starts are allowed from `now` to `until`, if each comes as early as possible."""
        first = max(self.next_at, now - (self.burst - 1) * self._interval_s)
        return 0 if until < first - _HAIR else 1 + floor((until - first + _HAIR) * self.rate_per_s)


_BATCH: Final = 16
"""Request more when a 16th of the window is free: a request per message would cost more than the messages."""
AT_ONCE: Final = 128
"""Normal maximum in flight. The next come as soon as these are processed; workers' answers, and so the next starts,
wait behind no more than these."""


class PrefetchWindow:
    """How many messages to request, so that enough are known to apply priorities, keys and limits, but not too many;
    counts fetched ones and those in flight. The limit on bytes can be exceeded by messages in flight, if these are
    suddenly larger than earlier ones."""

    __slots__ = ("_bytes", "_mean", "asked", "bytes", "count", "held")

    def __init__(self, *, count: int, bytes_: int) -> None:
        self.count = count
        self._bytes = bytes_
        self._mean = 1024.0
        self.held = 0
        """Fetched messages."""
        self.bytes = 0
        """Their bytes."""
        self.asked = 0
        """Requested messages that have not arrived."""

    def __repr__(self) -> str:
        return f"PrefetchWindow({self.held} of {self.count}, {self.bytes} bytes, {self.asked} asked for)"

    def delivered(self) -> None:
        """A message arrived, known or not."""
        self.asked = max(0, self.asked - 1)

    def add(self, size: int) -> None:
        """Keep a new message."""
        self.held += 1
        self.bytes += size
        self._mean += (size - self._mean) / min(self.held, 64)

    def remove(self, size: int) -> None:
        self.held -= 1
        self.bytes -= size

    def ask(self, most: int | None = None) -> int:
        """How many to request now, with at most `most` in flight; they count as requested. 0: none."""
        mean = max(1.0, self._mean)
        fit = max(1, min(self.count, int(self._bytes / mean)))
        free = min(self.count - self.held, int((self._bytes - self.bytes) / mean))
        if not self.held:
            free = fit
        batch = fit // _BATCH
        if most is not None:
            free, batch = min(free, most), min(batch, most // 2)
        room = free - self.asked
        if room < max(1, batch):
            return 0
        self.asked += room
        return room
