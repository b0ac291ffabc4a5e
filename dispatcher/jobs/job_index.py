"""Finds jobs in a stream by their ids, at any depth.

The server finds messages by sequence and by subject only, and the id of a job is in a header. So each message is read
once, and its sequence is remembered. A look-up reads what was stored since the last one, however many wait for it.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from typing import Final

from ...bus.port.bus import Stream, StreamMessage
from .stored import job_of

BLOCK: Final = 4096
"""Jobs that are sorted together."""
_PLACE_BITS: Final = 16
_HASHES: Final = (1 << 64 - _PLACE_BITS) - 1
_CHAINS: Final = 16
"""Requests at once."""
_ROUND: Final = 1024
"""Sequences that are read in one round."""


class JobIndex:
    """Sequences by job, in 16 bytes for each: 48 bits of the id's hash, its place in the block, and the sequence. Two
    ids may have the same hash: who finds a sequence reads the message."""

    def __init__(self) -> None:
        self._new: dict[str, list[int]] = {}
        self._new_count = 0
        self._blocks: list[tuple[array[int], array[int], int]] = []
        """Sorted keys (hash and place), the sequence at each place, and the highest of them."""

    def __len__(self) -> int:
        return self._new_count + sum(len(keys) for keys, _, _ in self._blocks)

    def add(self, job: str, sequence: int) -> None:
        self._new.setdefault(job, []).append(sequence)
        self._new_count += 1
        if self._new_count == BLOCK:
            pairs = [(hash(name) & _HASHES, each) for name, places in self._new.items() for each in places]
            keys = sorted(hashed << _PLACE_BITS | place for place, (hashed, _) in enumerate(pairs))
            sequences = array("Q", [each for _, each in pairs])
            self._blocks.append((array("Q", keys), sequences, max(sequences)))
            self._new, self._new_count = {}, 0

    def sequences(self, job: str) -> list[int]:
        """Where the job may be, the newest first."""
        found, first = list(self._new.get(job, ())), (hash(job) & _HASHES) << _PLACE_BITS
        end = first + (1 << _PLACE_BITS)
        for keys, sequences, _ in self._blocks:
            place = bisect_left(keys, first)
            while place < len(keys) and keys[place] < end:
                found.append(sequences[keys[place] & (1 << _PLACE_BITS) - 1])
                place += 1
        return sorted(found, reverse=True)

    def forget_to(self, sequence: int) -> None:
        """Drop the blocks that have nothing above this sequence."""
        self._blocks = [block for block in self._blocks if block[2] > sequence]

    def __repr__(self) -> str:
        return f"JobIndex({len(self)} jobs, {len(self._blocks)} blocks)"


class JobFinder:
    """Finds jobs among the messages of a pattern. One for each pattern, so that nothing is read twice."""

    def __init__(
        self,
        open_stream: Callable[[], Awaitable[Stream]],
        pattern: str,
        prefix: str,
        *,
        floor: Callable[[int], int] = lambda _last: 0,
    ) -> None:
        """
        Args:
            pattern: subjects of the messages; they begin with `prefix`, which endpoint and method follow.
            floor: from the last sequence in the stream, that up to which nothing is looked for.
        """
        self.index = JobIndex()
        self.read_to = 0
        """The messages up to this sequence are in the index."""
        self._open_stream = open_stream
        self._pattern = pattern
        self._prefix = prefix
        self._floor = floor
        self._first = 0
        """The first sequence in the stream, when that was asked last."""
        self._reading = asyncio.Lock()
        self._begun = self._done = 0
        """The number of the newest reading, and of the last one that came to the end."""

    async def find(
        self, job: str, accepts: Callable[[StreamMessage], bool] = lambda _message: True
    ) -> StreamMessage | None:
        """The newest message of the job that is accepted.

        Raises:
            StorageUnavailable, Disconnected, NotPermitted.
        """
        stream, tried = await self._open_stream(), set[int]()
        for last in (False, True):
            for sequence in self.index.sequences(job):
                if sequence in tried:
                    continue
                tried.add(sequence)
                message = await stream.get(sequence)
                if message is not None and self._is(message, job) and accepts(message):
                    return message
            if not last:
                await self.read()
        return None

    def _is(self, message: StreamMessage, job: str) -> bool:
        return message.subject.startswith(self._prefix) and job_of(message, self._prefix) == job

    async def read(self) -> None:
        """Read what is stored by now. Calls at the same time share the reading; when one is cancelled, the next goes on
        where it was.

        Raises:
            StorageUnavailable, Disconnected, NotPermitted.
        """
        wanted = self._begun + 1
        async with self._reading:
            if self._done >= wanted:
                return
            self._begun = number = self._begun + 1
            stream = await self._open_stream()
            state = await stream.state()
            while await self._read_round(stream, state.first_sequence, state.last_sequence):
                pass
            self._done = number

    async def read_some(self) -> bool:
        """Read a round of messages, for those who look up later. False: there are no more.

        Raises:
            StorageUnavailable, Disconnected, NotPermitted.
        """
        async with self._reading:
            stream = await self._open_stream()
            state = await stream.state()
            return await self._read_round(stream, state.first_sequence, state.last_sequence)

    async def _read_round(self, stream: Stream, first: int, last: int) -> bool:
        if last < self.read_to or first < self._first:  # it is another stream
            self.index, self.read_to = JobIndex(), 0
        self._first = first
        self.read_to = max(self.read_to, first - 1, self._floor(last))
        self.index.forget_to(max(first - 1, self._floor(last)))
        if self.read_to >= last:
            return False
        begin = await stream.next(self._pattern, self.read_to + 1)
        if begin is None or begin.sequence > last:
            self.read_to = last
            return False
        found = [(job_of(begin, self._prefix), begin.sequence)]

        async def read(place: int, end: int) -> None:
            while place <= end:
                message = await stream.next(self._pattern, place)
                if message is None or message.sequence > end:
                    return
                found.append((job_of(message, self._prefix), message.sequence))
                place = message.sequence + 1

        place, end = begin.sequence + 1, min(begin.sequence + _ROUND, last)
        step = max(1, -(-(end - place + 1) // _CHAINS))
        try:
            async with asyncio.TaskGroup() as group:
                for start in range(place, end + 1, step):
                    group.create_task(read(start, min(start + step - 1, end)))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # any one will do
        for job, sequence in found:
            self.index.add(job, sequence)
        self.read_to = end
        return end < last

    def __repr__(self) -> str:
        return f"JobFinder({self._pattern}, {self.index!r}, read to {self.read_to})"
