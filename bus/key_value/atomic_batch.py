"""Atomic batches (nats-server 2.12): all writes or none, in one round trip.

All messages but the last are published; the last is a request that commits. Its acknowledgement is the commit point.
Every stored message keeps its `Nats-Batch-Id`, so that after a timeout we can check whether the batch was committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ...runtime.timers import Backoff
from ...schemas.errors.base import InvalidRequest, Unavailable
from ..jetstream.api import TOO_MANY_BATCHES, TRANSIENT_CONFLICT, WRONG_LAST_SEQUENCE, ApiError
from ..port.bus import Conflict, KvWrite, NoResponders, RequestTimeout, StorageUnavailable
from .wire import StoredEntry, write_headers
from .writer import NO_LEADER_S, conflict, is_absent, revision_of

if TYPE_CHECKING:
    from .wire import BucketOwner

MAX_WRITES: Final = 1000
_BATCH_ID: Final = "Nats-Batch-Id"
_SILENCE_S: Final = 2.0
"""A commit that takes longer is sent again under another id; its conditions prevent a second write."""
_RETRY_S: Final = 0.01
_MOST_RETRY_S: Final = 0.2


class AtomicBatch:
    """One commit, with its retries."""

    def __init__(self, bucket: BucketOwner, writes: Sequence[KvWrite]) -> None:
        if not 1 <= len(writes) <= MAX_WRITES:
            raise InvalidRequest(f"{len(writes)} writes in one atomic batch: give 1 to {MAX_WRITES}")
        for write in writes:
            if write.condition_key is not None and write.revision is None:
                raise InvalidRequest(f"the write of {write.key!r} has a condition_key but no revision: give both")
        self._bucket = bucket
        self._bus = bucket.bus
        self._writes = writes
        self._expected = [write.revision for write in writes]
        """Revision that each write is conditioned on; differs from the caller's 0 where there is a marker."""
        self._tried: set[str] = set()
        """Batch ids whose outcome is unknown."""

    async def commit(self) -> int:
        """The revision of the last write.

        Raises:
            Conflict: a condition is not met; nothing was written.
            StorageUnavailable: no leader, or the outcome is unknown.
            Disconnected.
        """
        loop = asyncio.get_running_loop()
        start = loop.time()
        deadline = start + self._bus.api.timeout_s
        backoff = Backoff(_RETRY_S, _MOST_RETRY_S)
        await self._bucket.ensure()
        shortage = self._bus.api.shortage
        while True:
            timeout_s = min(_SILENCE_S, max(deadline - loop.time(), 0.0))
            try:
                revision = await self._try(self._bus.ambient.token(), timeout_s)
                if shortage.refusals:
                    shortage.stored(self._bucket.label)
                return revision
            except ApiError as error:
                last: Unavailable = error
                shortage.refused(self._bucket.label, error)
                if error.number == WRONG_LAST_SEQUENCE:
                    committed = await self._after_conflict()
                    if committed is not None:
                        return committed
                elif error.number not in (TRANSIENT_CONFLICT, TOO_MANY_BATCHES) and not error.temporary:
                    raise
            except NoResponders:
                last = self._no_leader()
                remade = await self._bucket.restore(_SILENCE_S)
                if not remade and loop.time() - start > NO_LEADER_S:
                    raise last from None
            except RequestTimeout:
                last = StorageUnavailable("JetStream did not acknowledge an atomic batch: it may have been written")
                committed = await self._after_silence()
                if committed is not None:
                    return committed
            if loop.time() + backoff.delay_s > deadline:
                raise last
            await asyncio.sleep(backoff.next_s() * (0.5 + self._bus.ambient.random.random()))

    def _no_leader(self) -> StorageUnavailable:
        return StorageUnavailable(
            f"the bucket {self._bucket.name!r} has no leader right now: try again", may_have_started=bool(self._tried)
        )

    async def _try(self, batch_id: str, timeout_s: float) -> int:
        prefix = self._bucket.prefix
        known = False
        reply = ""
        try:
            for number, write in enumerate(self._writes[:-1], 1):
                self._bus.publish(prefix + write.key, write.value or b"", headers=self._headers(batch_id, number))
            headers = self._headers(batch_id, len(self._writes))
            headers["Nats-Batch-Commit"] = "1"
            last = self._writes[-1]
            reply, future = self._bus.start_request(prefix + last.key, last.value or b"", headers=headers)
            revision = revision_of(await self._bus.finish_request(reply, future, timeout_s), last.key)
            known = True
            return revision
        except Unavailable as error:
            known = not error.may_have_started
            raise
        finally:
            if reply and not known:
                self._tried.add(batch_id)
                self._bucket.unsure_batches.append(batch_id)

    async def _after_silence(self) -> int | None:
        """The revision, if our batch was stored and only its acknowledgement was lost."""
        await self._bucket.restore(_SILENCE_S)
        try:
            async with asyncio.timeout(_SILENCE_S):
                return self._committed(await self._bucket.stored(self._writes[-1].key))
        except (TimeoutError, StorageUnavailable):
            return None

    def _headers(self, batch_id: str, number: int) -> dict[str, str]:
        write = self._writes[number - 1]
        headers = write_headers(write)
        headers[_BATCH_ID] = batch_id
        headers["Nats-Batch-Sequence"] = str(number)
        expected = self._expected[number - 1]
        if expected is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
            if write.condition_key is not None:
                headers["Nats-Expected-Last-Subject-Sequence-Subject"] = self._bucket.prefix + write.condition_key
        return headers

    async def _after_conflict(self) -> int | None:
        """Find the cause: our own earlier commit (returns its revision), a marker where nothing should be (None: try
        again), or a condition that is really not met.

        Raises:
            Conflict: the condition is really not met.
        """
        last = await self._bucket.stored(self._writes[-1].key)
        committed = self._committed(last)
        if committed is not None:
            return committed
        changed = False
        for index, write in enumerate(self._writes):
            if write.revision is None:
                continue
            stored = await self._bucket.stored(write.condition_key or write.key)
            actual = 0 if stored is None else stored.revision
            if write.revision == 0 and is_absent(write, stored):
                changed = changed or self._expected[index] != actual
                self._expected[index] = actual
            elif actual != write.revision or (stored is not None and stored.marker):
                raise conflict(write, stored)
        if not changed:
            # Every condition is met now. We cannot tell what happened; let the caller read.
            raise Conflict("a condition of the atomic batch was not met a moment ago: read the keys again")
        return None

    def _committed(self, last: StoredEntry | None) -> int | None:
        """The revision of our last write if it was stored by one of our batches with an unknown outcome."""
        if last is None:
            return None
        batch_id = last.headers.get(_BATCH_ID, "")
        if batch_id in self._tried:
            return last.revision
        if batch_id in self._bucket.unsure_batches and self._is_mine(last):
            return last.revision
        return None

    def _is_mine(self, last: StoredEntry) -> bool:
        """Whether this is an earlier `commit` of the same content whose outcome its caller never learnt."""
        wanted = self._writes[-1]
        same = last.marker if wanted.value is None else last.value == wanted.value
        return same and last.headers.get("Nats-Batch-Sequence") == str(len(self._writes))
