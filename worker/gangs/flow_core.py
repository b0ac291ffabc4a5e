"""Flow control of collective calls: what may be on the way to rank 0, and from it. Pure: no IO, no clock, no await.

Laws:

1. At most WINDOW_BYTES of a gang are on the way to the worker of rank 0, beyond what each member may send at once (its
   share of the same window), and at most WINDOW_BYTES of its results to any worker that confirms.
2. What is on the way is never sent again. It stops being on the way when it arrives, or when the receiver confirms
   something that was sent later: messages between two ends stay in order, so it was lost.
3. A receiver that confirms nothing for PATIENCE_S is not waited for until it confirms again. One of a version that
   never confirms is never waited for: it gets everything at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ...runtime.timers import Backoff

WINDOW_BYTES: Final = 1024 * 1024
"""Far less than a server keeps for a client (`max_pending`, 64 MiB), so that many gangs fit on one worker; enough for
10 MiB a second when a confirmation takes 0.1 s."""
PATIENCE_S: Final = 10.0
"""A server waits no longer for a client that takes nothing (`write_deadline`)."""
ASK_FIRST_S: Final = 0.2
"""Who waits this long asks; the interval doubles ..."""
ASK_MAX_S: Final = 2.0
"""... up to this, and starts again when something arrives."""


class Part(NamedTuple):
    rank: int
    part: int


class FetchWindow:
    """The parts of values that rank 0 fetches from the members."""

    __slots__ = ("_flying", "_flying_bytes", "_waiting", "_window_bytes")

    def __init__(self, window_bytes: int) -> None:
        self._window_bytes = window_bytes
        self._waiting: dict[Part, int] = {}
        self._flying: dict[Part, int] = {}
        """By part, how many bytes it has at most: those that are not requested yet, and those that are."""
        self._flying_bytes = 0

    def add(self, rank: int, parts: Iterable[int], part_bytes: int) -> None:
        """Fetch these too, in their turn."""
        for number in parts:
            part = Part(rank, number)
            if part not in self._flying:
                self._waiting[part] = part_bytes

    def arrived(self, rank: int, part: int) -> None:
        self._waiting.pop(Part(rank, part), None)
        self._flying_bytes -= self._flying.pop(Part(rank, part), 0)

    def forget(self, rank: int) -> None:
        for part in [part for part in (*self._flying, *self._waiting) if part.rank == rank]:
            self.arrived(*part)

    def request(self) -> dict[int, list[int]]:
        """What to request now, by rank."""
        wanted: dict[int, list[int]] = {}
        while self._waiting:
            part = next(iter(self._waiting))
            size = self._waiting[part]
            if self._flying and self._flying_bytes + size > self._window_bytes:
                break
            self._flying[part] = self._waiting.pop(part)
            self._flying_bytes += size
            wanted.setdefault(part.rank, []).append(part.part)
        return wanted

    def requested(self, rank: int | None = None) -> dict[int, list[int]]:
        """What was requested (of this rank) and has not arrived, by rank."""
        wanted: dict[int, list[int]] = {}
        for part in self._flying:
            if rank is None or part.rank == rank:
                wanted.setdefault(part.rank, []).append(part.part)
        return wanted

    def has(self, rank: int) -> bool:
        """Whether parts of this rank are to be fetched."""
        return any(part.rank == rank for part in (*self._flying, *self._waiting))

    def __repr__(self) -> str:
        return f"FetchWindow({len(self._waiting)} waiting, {self._flying_bytes} bytes on the way)"


class Batch(NamedTuple):
    """What goes in one message."""

    number: int
    """Counted from 1; a part that is sent again is in a later batch."""
    parts: list[Part]
    bytes: int


class SendWindow:
    """The parts of one result, on their way from rank 0 to all receivers."""

    __slots__ = (
        "_asking",
        "_confirmed",
        "_flying",
        "_flying_bytes",
        "_number",
        "_patient_until",
        "_queued",
        "_sent_in",
        "_sizes",
        "_window_bytes",
        "batch_bytes",
        "wake_at",
    )

    def __init__(
        self, sizes: dict[Part, int], receivers: Iterable[int], *, batch_bytes: int, window_bytes: int
    ) -> None:
        """`sizes`: the bytes of each part, in the order in which they are sent."""
        self._sizes = sizes
        self._window_bytes = window_bytes
        self.batch_bytes = batch_bytes
        self._queued: dict[Part, None] = dict.fromkeys(sizes)
        self._number = 0
        self._sent_in: dict[Part, int] = {}
        """The number of the last batch with this part."""
        self._confirmed: dict[int, int] = dict.fromkeys(receivers, 0)
        """By receiver, the last batch that it has confirmed."""
        self._flying: deque[Batch] = deque()
        """Those that not all receivers have confirmed, by number."""
        self._flying_bytes = 0
        self._asking = Backoff(ASK_FIRST_S, ASK_MAX_S)
        self.wake_at: float | None = None
        """When to call `tick`; None: all that was sent is confirmed."""
        self._patient_until = 0.0

    @property
    def last(self) -> int:
        """The number of the last batch."""
        return self._number

    @property
    def receivers(self) -> Iterable[int]:
        """Those that are waited for."""
        return self._confirmed

    def confirmed(self, receiver: int, number: int, now: float) -> None:
        """A receiver has taken all batches up to this one, or they were lost."""
        if number > self._number:
            return
        if receiver not in self._confirmed:
            number = max(number, self._settled)  # it cannot hold up what was sent while it was not waited for
        self._confirmed[receiver] = max(number, self._confirmed.get(receiver, 0))
        self._settle(now)

    def ask(self, parts: Iterable[Part]) -> None:
        """Somebody lacks these: send them to all once more, unless they are queued or on the way."""
        settled = self._settled
        for part in parts:
            if self._sent_in.get(part, settled + 1) <= settled:
                self._queued[part] = None

    def send(self, now: float) -> Iterator[Batch]:
        """What may be sent now."""
        while self._queued and (batch := self._next_batch()) is not None:
            self._number = batch.number
            for part in batch.parts:
                del self._queued[part]
                self._sent_in[part] = batch.number
            if self._confirmed:
                if not self._flying:
                    self._await(now)
                self._flying.append(batch)
                self._flying_bytes += batch.bytes
            yield batch

    def tick(self, now: float) -> bool:
        """Whether to ask again for confirmations; then also `send` what may be sent."""
        if self.wake_at is None or now < self.wake_at:
            return False
        if now >= self._patient_until:
            oldest = self._flying[0].number
            self._confirmed = {who: number for who, number in self._confirmed.items() if number >= oldest}
            self._settle(now)
        else:
            self.wake_at = now + self._asking.next_s()
        return True

    # -- inside ---------------------------------------------------------------------------------------------------

    @property
    def _settled(self) -> int:
        """The last batch that is not on the way any more, nor any before it."""
        return self._flying[0].number - 1 if self._flying else self._number

    def _next_batch(self) -> Batch | None:
        parts: list[Part] = []
        held = 0
        for part in self._queued:
            size = self._sizes[part]
            if parts and held + size > self.batch_bytes:
                break
            parts.append(part)
            held += size
        if self._flying and self._flying_bytes + held > self._window_bytes:
            return None
        return Batch(self._number + 1, parts, held)

    def _settle(self, now: float) -> None:
        settled = min(self._confirmed.values(), default=self._number)
        before = len(self._flying)
        while self._flying and self._flying[0].number <= settled:
            self._flying_bytes -= self._flying.popleft().bytes
        if not self._flying:
            self.wake_at = None
        elif len(self._flying) < before:
            self._await(now)

    def _await(self, now: float) -> None:
        self._asking.reset()
        self.wake_at = now + self._asking.next_s()
        self._patient_until = now + PATIENCE_S

    def __repr__(self) -> str:
        return f"SendWindow({len(self._queued)} queued, {self._flying_bytes} bytes on the way, {self._confirmed})"
