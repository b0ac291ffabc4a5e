"""Collective calls of a gang's members: barrier, broadcast and all-gather of small values. Pure: no IO, no clock, no
await.

Laws:

1. Members make the same calls in the same order; the n-th of one is the n-th of all. If they differ, the call fails at
   all members, and the error says who called what.
2. A collective ends at any member only after every member has begun it. So when the hub has completed number n, every
   member has the results of n-1, and the hub only has to keep those of n.
3. A member whose task has ended begins no further collective: a call that the others have begun and it has not fails at
   all of them at once, and the error names it (LEFT). What all had begun before that still completes.
4. Messages may be lost, duplicated and reordered. A member that waits asks again (ASK); the hub answers with what is
   missing, or asks for what it lacks itself (WANT).
5. Of a long value, a member sends its share of the window at once and HOLDS the rest until the hub WANTs it. A long
   result follows the confirmations of its receivers, the workers: each has TAKEN what came before a MARK. Members of
   earlier versions know none of the three: they send, and get, everything at once.

Rank 0 is the hub: the others GIVE their values to it, and it sends the RESULT to all. A message is a msgpack array:

=======  =================================================  =================================================
GIVE     `[1, n, rank, kind, root, part, parts, bytes]`     to rank 0; a long value is cut into parts
ASK      `[2, n, rank, {rank: [parts]} | nil]`              to rank 0: these results are missing (nil: all)
WANT     `[3, n, [parts] | nil]`                            rank 0 to one, or (nil) to all: give again
RESULT   `[4, n, [[rank, part, parts, bytes], ...]]`        rank 0 to all, or to one who asked
FAIL     `[5, n, text]`                                     rank 0 to all: collective n cannot complete
LEFT     `[6, n, rank, how]`                                to or from rank 0: the task of this rank has ended, and had
                                                            begun n collectives
HOLDS    `[7, n, rank, bytes]`                              to rank 0: this much of the value is still to be wanted
MARK     `[8, n, number]`                                   rank 0 to all: confirm the RESULTs up to this one
TAKEN    `[9, n, receiver, number]`                         to rank 0: its answer; of number 0, that this receiver
                                                            confirms
=======  =================================================  =================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum, StrEnum
from typing import Any, Final, Literal, NamedTuple

from ...runtime.timers import Backoff
from ...schemas.errors.base import InvalidRequest, PayloadTooLarge
from .flow_core import ASK_FIRST_S, ASK_MAX_S, WINDOW_BYTES, FetchWindow, Part, SendWindow

HUB: Final = 0
MAX_VALUE_BYTES: Final = 4 * 1024 * 1024
"""Largest value of one member, as msgpack."""
MAX_TOTAL_BYTES: Final = 64 * 1024 * 1024
"""Maximum total of an all-gather; divided by the world size, it limits each value."""
SHORT_BYTES: Final = 32 * 1024
"""A result of at most this is sent without waiting for confirmations, and again to each who asks."""
_ASKED_RANKS: Final = 200
_ASKED_AT_ONCE: Final = 32
"""How many members the hub asks at a time."""


class PeerMessage(IntEnum):
    GIVE = 1
    ASK = 2
    WANT = 3
    RESULT = 4
    FAIL = 5
    LEFT = 6
    HOLDS = 7
    MARK = 8
    TAKEN = 9


class Collective(StrEnum):
    BARRIER = "barrier"
    BROADCAST = "broadcast"
    ALL_GATHER = "all_gather"


_KINDS: Final = {kind.value: kind for kind in Collective}


TO_HUBS_SESSION: Final = "left"
"""Where LEFT goes: to rank 0 if it is in a session of this run; nobody else need hear it."""


class Send(NamedTuple):
    """To be sent to one member, or (None) to all."""

    to: int | Literal["left"] | None
    message: tuple[Any, ...]


class Chunks:
    """A value that arrives in parts."""

    __slots__ = ("_have", "bytes", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        self.bytes = 0
        """How many have arrived."""
        self._have: dict[int, bytes] = {}

    @classmethod
    def of(cls, value: bytes, size: int, first: int | None = None) -> Chunks:
        """Cut a value into parts of at most `size` bytes, the first one of at most `first`."""
        first = size if first is None else max(1, min(first, size))
        cut = [value[:first]]
        if len(value) > first:
            cut += [value[start : start + size] for start in range(first, len(value), size)]
        made = cls(len(cut))
        made._have = dict(enumerate(cut))
        made.bytes = len(value)
        return made

    def add(self, part: int, count: int, data: bytes) -> bool:
        """False: it has arrived before, or does not match the others."""
        if count != self.count or not 0 <= part < count or part in self._have:
            return False
        self._have[part] = data
        self.bytes += len(data)
        return True

    @property
    def whole(self) -> bool:
        return len(self._have) == self.count

    @property
    def missing(self) -> list[int]:
        return [part for part in range(self.count) if part not in self._have]

    def some(self, parts: Iterable[int] | None = None) -> Iterator[tuple[int, int, bytes]]:
        """The requested parts (None: all) that have arrived: number, count, bytes."""
        for part in sorted(self._have) if parts is None else parts:
            if isinstance(part, int) and part in self._have:
                yield part, self.count, self._have[part]

    def join(self) -> bytes:
        return b"".join(self._have[part] for part in range(self.count))


class CollectiveRound:
    """One collective: whose values have arrived."""

    __slots__ = ("_whole", "kind", "number", "root", "values")

    def __init__(self, number: int, kind: Collective, root: int) -> None:
        self.number = number
        self.kind = kind
        self.root = root
        self.values: dict[int, Chunks] = {}
        self._whole = 0
        """How many of `values` are whole."""

    def add(self, rank: int, part: int, count: int, data: bytes) -> bool:
        """False: it has arrived before."""
        value = self.values.get(rank)
        if value is None:
            value = self.values[rank] = Chunks(count)
        added = value.add(part, count, data)
        if added and value.whole:
            self._whole += 1
        return added

    def complete(self, values: int) -> bool:
        """Whether so many values are whole."""
        return self._whole == values

    def has(self, rank: int) -> bool:
        parts = self.values.get(rank)
        return parts is not None and parts.whole

    def told(self, size: int) -> range:
        """The ranks whose values everybody gets."""
        return range(size) if self.kind is Collective.ALL_GATHER else range(self.root, self.root + 1)


class CollectivesCore:
    """One member's end of one session. Methods return what to send, in order."""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        part_bytes: int,
        window_bytes: int = WINDOW_BYTES,
        short_bytes: int = SHORT_BYTES,
    ) -> None:
        """`part_bytes`: how much of a value goes in one message."""
        assert 0 <= rank < size and part_bytes > 0
        self.rank = rank
        self.size = size
        self._failed: tuple[int, str] | None = None
        """The first collective that cannot complete, and why; for every member."""
        self._left: dict[int, tuple[int, str]] = {}
        """Members whose task has ended: how many collectives it had begun, and how it ended. The hub's own and those it
        was told of; at others only their own."""
        self._asked_last = 0
        """At the hub: the last member that it asked by itself."""
        self.malformed = 0
        """Messages that could not be read."""
        self._part_bytes = part_bytes
        self._window_bytes = window_bytes
        self._short_bytes = short_bytes
        self._mine: CollectiveRound | None = None
        """The newest collective begun here; `values` has the results that are known."""
        self._given: Chunks | None = None
        self._share_bytes = 0
        """How much of it may be sent at once."""
        self._done = True
        self._taken = True
        """Whether the result of `_mine` was asked for."""
        self._ask_at = 0.0
        self._asking = Backoff(ASK_FIRST_S, ASK_MAX_S)
        self._gathering: CollectiveRound | None = None
        """At the hub: the collective that not all have begun yet."""
        self._kept: CollectiveRound | None = None
        """At the hub: the newest that all have begun."""
        self._fetching = FetchWindow(window_bytes)
        """At the hub: what it fetches of `_gathering`."""
        self._sending: SendWindow | None = None
        """At the hub: what it sends of `_kept`, if that is long."""
        self._receivers: set[int] = set()
        """At the hub: those that confirm."""

    @property
    def failure(self) -> str | None:
        """Why the newest collective begun here, and so this session, cannot continue."""
        if self._failed is not None and self._failed[0] <= self.number:
            return self._failed[1]
        hub, mine = self._left.get(HUB), self._mine
        if hub is not None and mine is not None and not self._done and hub[0] < mine.number:
            return _without_calling(HUB, hub[1], mine)
        return None

    @property
    def number(self) -> int:
        """How many collectives were begun here."""
        return self._mine.number if self._mine is not None else 0

    @property
    def waiting(self) -> bool:
        """Whether a collective was begun here and has no result yet."""
        return not self._done

    @property
    def wake_at(self) -> float | None:
        """When to call `tick`."""
        asks_at = None if self._done or self.failure is not None else self._ask_at
        marks_at = None if self._sending is None else self._sending.wake_at
        return marks_at if asks_at is None else asks_at if marks_at is None else min(asks_at, marks_at)

    def limit(self, kind: Collective) -> int:
        """Largest value in bytes."""
        return min(MAX_VALUE_BYTES, MAX_TOTAL_BYTES // self.size) if kind is Collective.ALL_GATHER else MAX_VALUE_BYTES

    def begin(self, kind: Collective, root: int, value: bytes, now: float) -> list[Send]:
        """Call the next collective. If the previous result was not taken (its wait was cancelled), the same call
        resumes that one, with the value given then.

        Raises:
            InvalidRequest: no such root, or another call while a result was not taken.
            PayloadTooLarge: the value is over `limit`; nothing was begun.
        """
        if not 0 <= root < self.size:
            raise InvalidRequest(f"root is {root}: ranks of this gang go from 0 to {self.size - 1}")
        mine = self._mine
        if mine is not None and not self._taken:
            if (mine.kind, mine.root) != (kind, root):
                raise InvalidRequest(f"{_call(mine.kind, mine.root)} was cancelled: call that again first")
            return []
        if len(value) > self.limit(kind):
            raise PayloadTooLarge(
                f"the value is {len(value)} bytes, {kind}() among {self.size} takes at most {self.limit(kind)}: "
                "store it elsewhere and pass a reference",
                details={"size": len(value), "limit": self.limit(kind)},
            )
        self._mine = mine = CollectiveRound(self.number + 1, kind, root)
        alone = kind is Collective.BROADCAST
        self._share_bytes = self._window_bytes if alone else self._window_bytes // self.size
        self._given = given = Chunks.of(value, self._part_bytes, self._share_bytes)
        self._done = self._taken = False
        self._await(now)
        if self.rank != HUB:
            return self._offer()
        sends: list[Send] = []
        for part, count, data in given.some():
            sends += self._take(mine.number, HUB, kind, root, part, count, data, now)
        if mine.number == 1 and not self._done:
            sends.append(Send(None, (PeerMessage.WANT, 1, None)))  # values given before we subscribed were lost
        return sends

    def result(self) -> list[Chunks]:
        """The values that the newest collective collected here, by rank (one, unless it was an all-gather). Members on
        one worker need not all join them."""
        assert self._done and self._mine is not None
        self._taken = True
        return [self._mine.values[rank] for rank in self._mine.told(self.size)]

    def tick(self, now: float, *, at_once: bool = False) -> list[Send]:
        """Ask, if it is time (or `at_once`: messages are known to be lost)."""
        sends = self._mark_again(now)
        mine = self._mine
        if mine is None or self._done or self.failure is not None:
            return sends
        if now < self._ask_at and not at_once:
            return sends
        self._ask_at = now + self._asking.next_s()
        if self.rank == HUB:
            return sends + self._want_missing()
        missing: dict[int, list[int]] | None = None
        if mine.values:
            told = [rank for rank in mine.told(self.size) if not mine.has(rank)][:_ASKED_RANKS]
            missing = {rank: mine.values[rank].missing if rank in mine.values else [] for rank in told}
        return [Send(HUB, (PeerMessage.ASK, mine.number, self.rank, missing))]

    def receive(self, message: object, now: float) -> list[Send]:
        """A message arrived; one that cannot be read, or is outdated, changes nothing."""
        match message:
            case [PeerMessage.RESULT, int(n), list(items)]:
                self._told(n, items, now)
            case [PeerMessage.GIVE | PeerMessage.ASK | PeerMessage.HOLDS | PeerMessage.TAKEN, int(n), int(rank), *rest]:
                if self.rank == HUB and 0 <= rank < self.size:
                    return self._from_member(message[0], n, rank, rest, now)
            case [PeerMessage.WANT, int(n), _] if self.rank in self._left and n > self.number:
                return self._say_left()
            case [PeerMessage.LEFT, int(n), int(rank), str(how)]:
                if self.rank == HUB and 0 < rank < self.size:
                    return self._member_left(rank, n, how)
                if rank == HUB:
                    self._left[HUB] = (n, how)
            case [PeerMessage.WANT, int(n), list() | None as parts]:
                if not self._done and n == self.number and self.rank != HUB and self._given is not None:
                    self._await(now)
                    return self._offer() if parts is None else self._give(self._given.some(parts))
            case [PeerMessage.FAIL, int(n), str(text)]:
                self._failed = self._failed or (n, text)
            case _:
                self.malformed += 1
        return []

    def leave(self, how: str) -> list[Send]:
        """The task has ended (`how`: a verb): it begins no further collective."""
        if self.rank == HUB:
            return self._member_left(HUB, self.number, how)
        self._left[self.rank] = (self.number, how)
        return self._say_left()

    # -- at every member ------------------------------------------------------------------------------------------

    def _say_left(self) -> list[Send]:
        number, how = self._left[self.rank]
        return [Send(TO_HUBS_SESSION, (PeerMessage.LEFT, number, self.rank, how))]

    def _offer(self) -> list[Send]:
        """Give as much of the value as may be sent at once."""
        given, mine = self._given, self._mine
        assert given is not None and mine is not None
        parts = list(given.some())
        at_once, total = 1, len(parts[0][2])
        while at_once < len(parts) and total + len(parts[at_once][2]) <= self._share_bytes:
            total += len(parts[at_once][2])
            at_once += 1
        sends = self._give(parts[:at_once])
        if at_once < len(parts):
            held = sum(len(data) for _, _, data in parts[at_once:])
            sends.append(Send(HUB, (PeerMessage.HOLDS, mine.number, self.rank, held)))
        return sends

    def _await(self, now: float) -> None:
        """Something has happened: ask only if nothing does for a while."""
        self._asking.reset()
        self._ask_at = now + self._asking.next_s()

    def _give(self, parts: Iterable[tuple[int, int, bytes]]) -> list[Send]:
        mine = self._mine
        assert mine is not None
        return [
            Send(HUB, (PeerMessage.GIVE, mine.number, self.rank, mine.kind.value, mine.root, *part)) for part in parts
        ]

    def _told(self, n: int, items: list[Any], now: float) -> None:
        mine = self._mine
        if mine is None or self._done or n != mine.number:
            return
        told, more = mine.told(self.size), False
        for item in items:
            match item:
                case [int(rank), int(part), int(count), bytes(data)] if rank in told and 0 < count <= MAX_VALUE_BYTES:
                    more |= mine.add(rank, part, count, data)
                case _:
                    self.malformed += 1
        if more:
            self._await(now)
        self._done = mine.complete(len(told))

    # -- at the hub -----------------------------------------------------------------------------------------------

    def _from_member(self, message: object, n: int, rank: int, rest: list[Any], now: float) -> list[Send]:
        match [message, *rest]:
            case [PeerMessage.GIVE, str(kind), int(root), int(part), int(count), bytes(data)]:
                if kind in _KINDS and 0 < count <= MAX_VALUE_BYTES:
                    return self._take(n, rank, _KINDS[kind], root, part, count, data, now)
            case [PeerMessage.ASK, dict() | None as missing]:
                if rank != HUB:
                    return self._asked(n, rank, missing, now)
            case [PeerMessage.HOLDS, int(held)]:
                if 0 < held <= MAX_VALUE_BYTES:
                    return self._held(n, rank, held)
            case [PeerMessage.TAKEN, int(number)]:
                return self._confirmed(n, rank, number, now)
            case _:
                self.malformed += 1
        return []

    def _take(
        self, n: int, rank: int, kind: Collective, root: int, part: int, count: int, data: bytes, now: float
    ) -> list[Send]:
        completed = self._kept.number if self._kept is not None else 0
        if n != completed + 1 or self._failed is not None:
            return []  # outdated: nobody can be ahead by more than one (law 2)
        current = self._gathering
        if current is None:
            self._gathering = current = CollectiveRound(n, kind, root)
        elif (current.kind, current.root) != (kind, root):
            return self._fail(current, rank, kind, root)
        begun = current.values.get(rank)
        if begun is not None and begun.count != count and not begun.whole:
            del current.values[rank]  # its task was started once more, by a version that cuts in another way
            self._fetching.forget(rank)
        if current.add(rank, part, count, data):
            self._await(now)
        self._fetching.arrived(rank, part)
        if self._left:
            self._left.pop(rank, None)  # its task was started once more
            if (fail := self._fail_if_left()) is not None:
                return fail
        if not current.complete(self.size):
            return self._want(current.number, self._fetching.request())
        self._gathering, self._kept = None, current
        self._fetching = FetchWindow(self._window_bytes)
        mine = self._mine
        assert mine is not None and mine.number == n, "the hub itself has begun it: its value is there"
        mine.values = current.values
        self._done = True
        told = current.told(self.size)
        if sum(current.values[rank].bytes for rank in told) + _ITEM_BYTES * len(told) <= self._short_bytes:
            self._sending = None
            return self._results(current, None, None)
        sizes = {
            Part(rank, part): len(data) + _ITEM_BYTES for rank in told for part, _, data in current.values[rank].some()
        }
        self._sending = SendWindow(
            sizes, self._receivers, batch_bytes=self._part_bytes, window_bytes=self._window_bytes
        )
        return self._send_more(current, self._sending, now)

    def _fail(self, current: CollectiveRound, rank: int, kind: Collective, root: int) -> list[Send]:
        other = next(iter(current.values))
        return self._cannot_complete(
            current.number,
            f"collective {current.number}: rank {rank} called {_call(kind, root)}, "
            f"rank {other} called {_call(current.kind, current.root)}: all members must make the same calls",
        )

    def _cannot_complete(self, number: int, text: str) -> list[Send]:
        self._failed = (number, text)
        return [Send(None, (PeerMessage.FAIL, number, text))]

    def _member_left(self, rank: int, number: int, how: str) -> list[Send]:
        self._left[rank] = (number, how)
        return self._fail_if_left() or []

    def _fail_if_left(self) -> list[Send] | None:
        """Fail the collective that is being gathered, if a member has left without beginning it."""
        current = self._gathering
        if current is None or self._failed is not None:
            return None
        for rank, (number, how) in self._left.items():
            if number < current.number:
                return self._cannot_complete(current.number, _without_calling(rank, how, current))
        return None

    def _want_missing(self) -> list[Send]:
        """Ask some of those whose values have not arrived: they may have left, or what they sent was lost."""
        current = self._gathering
        if current is None:
            return []
        size, first = self.size, self._asked_last + 1
        missing = [rank % size for rank in range(first, first + size) if not current.has(rank % size)][:_ASKED_AT_ONCE]
        if missing:
            self._asked_last = missing[-1]
        sends: list[Send] = []
        for rank in missing:
            parts = current.values.get(rank)
            if parts is None:
                sends.append(Send(rank, (PeerMessage.WANT, current.number, None)))
            elif not self._fetching.has(rank):
                self._fetching.add(rank, parts.missing, self._part_bytes)
        lost = self._fetching.requested()
        return sends + self._want(current.number, lost) + self._want(current.number, self._fetching.request())

    def _held(self, n: int, rank: int, held: int) -> list[Send]:
        current = self._gathering
        value = None if current is None else current.values.get(rank)
        if current is None or n != current.number or value is None or value.whole or self._failed is not None:
            return []  # who waits asks
        missing = value.missing
        self._fetching.add(rank, missing, -(-held // len(missing)))
        return self._want(n, self._fetching.request())

    def _want(self, number: int, wanted: dict[int, list[int]]) -> list[Send]:
        return [Send(rank, (PeerMessage.WANT, number, parts)) for rank, parts in wanted.items()]

    def _asked(self, n: int, rank: int, missing: dict[Any, Any] | None, now: float) -> list[Send]:
        if self._failed is not None and n >= self._failed[0]:
            return [Send(rank, (PeerMessage.FAIL, n, self._failed[1]))]
        kept = self._kept
        completed = kept.number if kept is not None else 0
        if kept is not None and n == completed:
            if self._sending is None:
                return self._results(kept, rank, missing)
            self._sending.ask(_named_in(missing, kept, self.size))
            return self._send_more(kept, self._sending, now)
        if n != completed + 1:
            return []
        parts = self._gathering.values.get(rank) if self._gathering is not None else None
        if parts is None:
            return [Send(rank, (PeerMessage.WANT, n, None))]
        if parts.whole:
            return []
        lost = self._fetching.requested(rank)
        if not self._fetching.has(rank):
            self._fetching.add(rank, parts.missing, self._part_bytes)
        return self._want(n, lost) + self._want(n, self._fetching.request())

    def _send_more(self, done: CollectiveRound, sending: SendWindow, now: float) -> list[Send]:
        """What may be sent of a long result."""
        sends: list[Send] = []
        for batch in sending.send(now):
            items = [(rank, *item) for rank, part in batch.parts for item in done.values[rank].some((part,))]
            sends.append(Send(None, (PeerMessage.RESULT, done.number, items)))
            sends.append(Send(None, (PeerMessage.MARK, done.number, batch.number)))
        return sends

    def _confirmed(self, n: int, receiver: int, number: int, now: float) -> list[Send]:
        self._receivers.add(receiver)
        kept, sending = self._kept, self._sending
        if kept is None or sending is None:
            return []
        sending.confirmed(receiver, number if n == kept.number else 0, now)
        return self._send_more(kept, sending, now)

    def _mark_again(self, now: float) -> list[Send]:
        kept, sending = self._kept, self._sending
        if kept is None or sending is None or not sending.tick(now):
            return []
        self._receivers = set(sending.receivers)
        again = Send(None, (PeerMessage.MARK, kept.number, sending.last))
        return [*self._send_more(kept, sending, now), again]

    def _results(self, done: CollectiveRound, to: int | None, missing: dict[Any, Any] | None) -> list[Send]:
        """The results (or those that are missing), as many to a message as fit."""
        sends: list[Send] = []
        batch: list[tuple[int, int, int, bytes]] = []
        held = 0
        for rank in done.told(self.size):
            if missing is not None and rank not in missing:
                continue
            wanted = missing[rank] if missing is not None else None
            for part in done.values[rank].some(wanted if isinstance(wanted, list) and wanted else None):
                if batch and held + len(part[2]) > self._part_bytes:
                    sends.append(Send(to, (PeerMessage.RESULT, done.number, batch)))
                    batch, held = [], 0
                batch.append((rank, *part))
                held += len(part[2]) + _ITEM_BYTES
        sends.append(Send(to, (PeerMessage.RESULT, done.number, batch)))
        return sends


def _named_in(missing: dict[Any, Any] | None, done: CollectiveRound, size: int) -> Iterator[Part]:
    """The parts that an ASK names."""
    for rank in done.told(size):
        if missing is None or rank in missing:
            wanted = missing[rank] if missing is not None else None
            parts = wanted if isinstance(wanted, list) and wanted else range(done.values[rank].count)
            yield from (Part(rank, part) for part in parts if isinstance(part, int))


_ITEM_BYTES: Final = 24
"""Maximum overhead of an item of RESULT, in addition to its bytes."""


def _without_calling(rank: int, how: str, current: CollectiveRound) -> str:
    called = _call(current.kind, current.root)
    return f"rank {rank} {how} without calling {called}: all members must make the same calls"


def answer_of_receiver(message: object, receiver: int) -> list[Send]:
    """What a worker with members answers to a message to all, besides them. `receiver`: one of their ranks."""
    match message:
        case [PeerMessage.MARK, int(n), int(number)]:
            return [Send(HUB, (PeerMessage.TAKEN, n, receiver, number))]
        case [PeerMessage.WANT, int(), None]:
            return greeting(receiver)  # the hub has begun to listen
    return []


def greeting(receiver: int) -> list[Send]:
    """A worker has begun to listen: from now on it confirms."""
    return [Send(HUB, (PeerMessage.TAKEN, 0, receiver, 0))]


def answer_of_ended(message: object, rank: int, number: int, how: str) -> list[Send]:
    """What a member answers whose task of that run has ended, after `number` collectives, and which has no session (any
    more)."""
    match message:
        case [PeerMessage.WANT, int(n), _] if rank != HUB and n > number:
            return [Send(TO_HUBS_SESSION, (PeerMessage.LEFT, number, rank, how))]
        case [PeerMessage.GIVE | PeerMessage.ASK, int(n), int(who), *_] if rank == HUB and n > number and who > HUB:
            return [Send(who, (PeerMessage.LEFT, number, HUB, how))]
    return []


def _call(kind: Collective, root: int) -> str:
    return f"{kind}(root={root})" if kind is Collective.BROADCAST else f"{kind}()"
