"""Which task starts first, what limits the starts, and how many messages to prefetch for that decision.

A task's place is its *virtual time*: when it was published, minus `age_step_s` for each step of its priority; ties by
sequence. All tasks age equally, so waiting time need not be tracked: a task of priority 0 that has waited 20 s and a
new one of priority 2 are neighbours (with `age_step_s` 10), and stay so. A place does not change while its task waits
(unless its pool declares another priority, and then all places are computed again), so heaps can hold them.

The bound of starvation: a task starts before every task of its tenant of higher priority that is published more than
(difference of priorities) x `age_step_s` after it.

Places order the tasks of one tenant. Tenants take turns wherever their tasks compete: in the line of a pool by slots,
under a limit of a method by starts, both divided by their weights. Whatever the places: a tenant that submits many
tasks, or urgent ones, delays only its own.

Laws of keys:

1. At most `limit` tasks of one key run or may start next; the latter are the waiting ones with the lowest places, and
   if several tenants have tasks under the key, these take turns. The others of the key are not checked when a pool has
   free slots, however many there are.
2. The head of an ordered key is its started task, otherwise the one with the lowest sequence, whatever the priorities.
   Only the head may start. It stays the head through retries, until its end is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from ....runtime.rate import RateLimiter
from ....runtime.timers import TimerQueue
from ....schemas.messages.submission import Submission
from ...routing.wait_queue import TenantTurns

Place = tuple[float, int]
"""Virtual time, sequence. Lower goes first."""


def place_of(submission: Submission, seq: int, age_step_s: float, declared: int | None = None) -> Place:
    """The task's place in its queue.

    Args:
        declared: the priority that the task declares, for submissions without one.
    """
    priority = declared if submission.priority is None else submission.priority
    return (submission.published_at - (priority or 0) * age_step_s, seq)


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
    """The tasks of one pool that may start as soon as slots are free, and the slots that each needs. Tenants take
    turns; the tasks of one tenant are in the order of their places."""

    __slots__ = ("_costs", "_lines", "slots", "turns")

    def __init__(self, turns: TenantTurns | None = None) -> None:
        """
        Args:
            turns: whose turn it is, if other queues share it.
        """
        self._lines: dict[str, dict[int, RankedSet]] = {}
        """By tenant and cost."""
        self._costs: dict[int, int] = {}
        self.turns = turns or TenantTurns()
        self.slots = 0
        """Sum of the slots of all tasks."""

    def __len__(self) -> int:
        return len(self._costs)

    def __contains__(self, seq: int) -> bool:
        return seq in self._costs

    def __iter__(self) -> Iterator[int]:
        return iter(self._costs)

    def add(self, place: Place, cost: int, tenant: str = "") -> None:
        assert place[1] not in self._costs, place
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = {}
            self.turns.enter(tenant)
        ranked = line.get(cost)
        if ranked is None:
            ranked = line[cost] = RankedSet()
        ranked.add(place)
        self._costs[place[1]] = cost
        self.slots += cost

    def discard(self, seq: int, tenant: str = "") -> None:
        cost = self._costs.pop(seq, None)
        if cost is not None:
            line = self._lines[tenant]
            ranked = line[cost]
            ranked.discard(seq)
            self.slots -= cost
            if not ranked:
                del line[cost]
                if not line:
                    del self._lines[tenant]
                    self.turns.leave(tenant)

    def first(self, slots: int | None = None) -> Place | None:
        """The one whose turn it is; if `slots` is given, of tasks that need at most that many. There are few tenants
        and different costs, so checking the first of each is cheap."""
        if len(self._lines) == 1:
            (line,) = self._lines.values()
            return _first_of(line, slots)
        best: tuple[float, Place] | None = None
        for tenant, line in self._lines.items():
            place = _first_of(line, slots)
            if place is not None and (best is None or (self.turns.served(tenant), place) < best):
                best = (self.turns.served(tenant), place)
        return None if best is None else best[1]

    @property
    def smallest(self) -> int:
        """The fewest slots that one of them needs; 0: there is none."""
        return min((min(line) for line in self._lines.values()), default=0)

    def cost(self, seq: int) -> int:
        return self._costs[seq]


def _first_of(line: dict[int, RankedSet], slots: int | None) -> Place | None:
    """The lowest place, of tasks that need at most that many slots."""
    best: Place | None = None
    for cost, ranked in line.items():
        if slots is None or cost <= slots:
            place = ranked.first
            if best is None or (place is not None and place < best):
                best = place
    return best


@dataclass(frozen=True, slots=True)
class StartChanges:
    """Tasks that may start now, and tasks that may no longer start."""

    promoted: tuple[int, ...] = ()
    demoted: tuple[int, ...] = ()


class _Share:
    """The tasks of one tenant under one key."""

    __slots__ = ("candidates", "waiting")

    def __init__(self) -> None:
        self.candidates = RankedSet(reverse=True)
        """Tasks that may start; `first` is the one to withdraw when a better one arrives."""
        self.waiting = RankedSet()


class _Cap:
    """One key."""

    __slots__ = ("_turns", "count", "running", "shares")

    def __init__(self, weight_of: Callable[[str], float] | None) -> None:
        self.running: dict[int, None] = {}
        self.shares: dict[str, _Share] = {}
        """By tenant."""
        self.count = 0
        """Number of candidates."""
        self._turns = TenantTurns(weight_of)

    def add(self, place: Place, tenant: str) -> None:
        share = self.shares.get(tenant)
        if share is None:
            share = self.shares[tenant] = _Share()
            self._turns.enter(tenant)
        share.waiting.add(place)

    def discard(self, seq: int) -> bool:
        for tenant, share in self.shares.items():
            candidate = share.candidates.discard(seq)
            if candidate or share.waiting.discard(seq):
                self.count -= candidate
                if not share.candidates and not share.waiting:
                    del self.shares[tenant]
                    self._turns.leave(tenant)
                return True
        return False

    def take(self, seq: int) -> bool:
        """A task starts. False: it was no candidate."""
        for tenant, share in self.shares.items():
            if seq in share.candidates:
                self._turns.take(tenant, 1)
                return True
        return False

    def may_start(self, seq: int) -> bool:
        return any(seq in share.candidates for share in self.shares.values())

    def waits(self, seq: int) -> bool:
        return any(seq in share.waiting for share in self.shares.values())

    @property
    def candidates(self) -> tuple[int, ...]:
        return tuple(seq for share in self.shares.values() for seq in share.candidates)

    @property
    def waiting(self) -> bool:
        """Whether it holds tasks back."""
        return any(share.waiting for share in self.shares.values())

    @property
    def empty(self) -> bool:
        return not self.running and not self.shares

    def balance(self, most: int) -> StartChanges:
        """Restore law 1, with at most this many candidates."""
        promoted: list[int] = []
        demoted: list[int] = []
        while self.count > max(most, 0):
            demoted.append(self._demote(self._last()))
        while self.count < most and (tenant := self._next()) is not None:
            promoted.append(self._promote(tenant))
        while self.count and self.count == most and (swap := self.unordered()) is not None:
            demoted.append(self._demote(swap[0]))
            promoted.append(self._promote(swap[1]))
        return StartChanges(tuple(promoted), tuple(demoted))

    def unordered(self) -> tuple[str, str] | None:
        """The tenants (or tenant) of a candidate and of a waiting task that should change places, if there are any."""
        for tenant, share in self.shares.items():
            worst, best = share.candidates.first, share.waiting.first
            if worst is not None and best is not None and best < worst:
                return (tenant, tenant)
        if len(self.shares) > 1 and self.count and (up := self._next()) is not None:
            down = self._last()
            if self._turn(up, 0) < self._turn(down, -1):
                return (down, up)
        return None

    def _turn(self, tenant: str, more: int) -> float:
        """What the tenant will have got when its candidates, and so many more, have started."""
        return self._turns.served(tenant, len(self.shares[tenant].candidates) + more)

    def _next(self) -> str | None:
        """The tenant whose task is promoted next."""
        found: tuple[float, Place, str] | None = None
        for tenant, share in self.shares.items():
            place = share.waiting.first
            if place is not None and (found is None or (self._turn(tenant, 0), place) < found[:2]):
                found = (self._turn(tenant, 0), place, tenant)
        return None if found is None else found[2]

    def _last(self) -> str:
        """The tenant whose candidate is withdrawn next."""
        found: tuple[float, Place, str] | None = None
        for tenant, share in self.shares.items():
            place = share.candidates.first
            if place is not None and (found is None or (self._turn(tenant, -1), place) > found[:2]):
                found = (self._turn(tenant, -1), place, tenant)
        assert found is not None, "there is no candidate"
        return found[2]

    def _promote(self, tenant: str) -> int:
        share = self.shares[tenant]
        self.count += 1
        return _move_first(share.waiting, share.candidates)

    def _demote(self, tenant: str) -> int:
        share = self.shares[tenant]
        self.count -= 1
        return _move_first(share.candidates, share.waiting)


def _move_first(source: RankedSet, target: RankedSet) -> int:
    place = source.first
    assert place is not None, "there is none to move"
    source.discard(place[1])
    target.add(place)
    return place[1]


_UNLIMITED: Final = 1 << 62


class KeyConcurrency:
    """All keys, with one limit for each of them: how many tasks run at once, and how many start per second."""

    def __init__(
        self,
        limit: int | None,
        rate: RateLimiter | None = None,
        *,
        weight_of: Callable[[str], float] | None = None,
    ) -> None:
        """
        Args:
            limit: maximum number of tasks of one key that run at once; None: any number.
            rate: limits the starts of all keys together, so there should be only one. Keep `now` up to date.
            weight_of: the weight of a tenant; None: 1 for all.
        """
        self._weight_of = weight_of
        self.limit = limit
        self.rate = rate
        self.now = float("-inf")
        """The time, for `rate`."""
        self._keys: dict[str, _Cap] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: str, place: Place, tenant: str = "") -> StartChanges:
        """Add a startable task; it is `promoted` if it may start."""
        cap = self._cap(key)
        cap.add(place, tenant)
        return cap.balance(self._most(cap))

    def discard(self, key: str, seq: int) -> StartChanges:
        """Remove a startable task."""
        cap = self._keys.get(key)
        return self._balance(key, cap) if cap is not None and cap.discard(seq) else StartChanges()

    def start(self, key: str, seq: int) -> StartChanges:
        """A task runs now, whether or not it was allowed to start."""
        cap = self._cap(key)
        cap.running[seq] = None
        if cap.take(seq) and self.rate is not None:
            self.rate.take(self.now)
        cap.discard(seq)
        return cap.balance(self._most(cap))

    def stop(self, key: str, seq: int) -> StartChanges:
        """A task no longer runs."""
        cap = self._keys[key]
        del cap.running[seq]
        return self._balance(key, cap)

    def refresh(self, now: float) -> list[StartChanges]:
        """Time has passed: the rate may allow more."""
        self.now = now
        return [cap.balance(self._most(cap)) for cap in self._keys.values()] if self.rate is not None else []

    def wakes_at(self) -> float | None:
        """When the rate allows more than now; None: nothing waits for it."""
        if self.rate is None or not any(cap.waiting and self._room(cap) for cap in self._keys.values()):
            return None
        return self.rate.more_at(self.now)

    def running(self, key: str) -> tuple[int, ...]:
        """Sequences of its tasks that run."""
        cap = self._keys.get(key)
        return () if cap is None else tuple(cap.running)

    def ahead(self, key: str) -> tuple[int, ...]:
        """Sequences of its tasks that run or may be started."""
        cap = self._keys.get(key)
        return () if cap is None else (*cap.running, *cap.candidates)

    def waiting(self, key: str) -> tuple[int, ...]:
        """Sequences of its tasks that it holds back."""
        cap = self._keys.get(key)
        return () if cap is None else tuple(seq for share in cap.shares.values() for seq in share.waiting)

    def may_start(self, key: str, seq: int) -> bool:
        cap = self._keys.get(key)
        return cap is not None and cap.may_start(seq)

    def waits(self, key: str, seq: int) -> bool:
        """Whether it holds the task back."""
        cap = self._keys.get(key)
        return cap is not None and cap.waits(seq)

    def full(self, key: str) -> bool:
        """Whether so many tasks run or may start that no other may, whatever the rate."""
        cap = self._keys.get(key)
        return cap is not None and self._room(cap) <= 0

    def _cap(self, key: str) -> _Cap:
        cap = self._keys.get(key)
        if cap is None:
            cap = self._keys[key] = _Cap(self._weight_of)
        return cap

    def _room(self, cap: _Cap) -> int:
        limit = _UNLIMITED if self.limit is None else self.limit
        return limit - len(cap.running) - cap.count

    def _most(self, cap: _Cap) -> int:
        most = _UNLIMITED if self.limit is None else self.limit - len(cap.running)
        return most if self.rate is None else min(most, self.rate.allowed(self.now, self.now))

    def _balance(self, key: str, cap: _Cap) -> StartChanges:
        if cap.empty:
            del self._keys[key]
            return StartChanges()
        return cap.balance(self._most(cap))

    def check(self) -> None:
        """Assert law 1; for tests."""
        for key, cap in self._keys.items():
            assert not cap.empty, f"key {key!r} is remembered for nothing"
            waiting = [seq for share in cap.shares.values() for seq in share.waiting]
            assert cap.count == len(cap.candidates), f"key {key!r} has miscounted its candidates"
            assert not set(cap.candidates) & set(waiting), f"key {key!r} has one twice"
            assert not {*cap.candidates, *waiting} & set(cap.running), f"key {key!r} has one twice"
            room = self._most(cap) - cap.count
            assert room >= 0 or not cap.count, f"key {key!r} has too many candidates"
            assert room <= 0 or not waiting, f"key {key!r} keeps one back for nothing"
            assert cap.unordered() is None, f"key {key!r} prefers the wrong one"


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


_BATCH: Final = 16
"""Request more when a 16th of the window is free: a request per message would cost more than the messages."""
AT_ONCE: Final = 128
"""Normal maximum in flight. The next come as soon as these are processed; workers' answers, and so the next starts,
wait behind no more than these."""


class PrefetchWindow:
    """How many messages to request, so that enough are known to apply priorities, keys and limits, but not too many;
    counts fetched ones and those in flight. The limit on bytes can be exceeded by messages in flight, if these are
    suddenly larger than earlier ones."""

    __slots__ = ("_bytes", "_mean", "asked", "bytes", "count", "full", "held")

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
        self.full = False
        """Whether nothing is requested until some of its messages have gone, as of the last `ask`."""

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
        free = min(self.count - self.held, int((self._bytes - self.bytes) / mean)) if self.held else fit
        batch = fit // _BATCH
        self.full = free < max(1, batch)
        if most is not None:
            free, batch = min(free, most), min(batch, most // 2)
        room = free - self.asked
        if room < max(1, batch):
            return 0
        self.asked += room
        return room
