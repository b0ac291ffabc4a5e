"""Writes of single keys: conditions, timeouts, vanished buckets.

A write is sent again after a second of silence, since the leader that got it may be gone. It is stored only once: an
unconditional one because the server knows its `Nats-Msg-Id`, a conditional one because its condition is met only once.
A conditional write has a name in a header of ours (not in `Nats-Msg-Id`: a cluster also remembers that of a failed
write). If its outcome stays unknown (timeout, lost connection, cancelled caller), the name is kept, and on a later
Conflict the stored value's name shows whether our own write caused it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ...schemas.errors.base import Disconnected, Unavailable
from ..jetstream.api import ID_IN_PROCESS, WRONG_LAST_SEQUENCE, ApiError, parse_answer
from ..port.bus import Conflict, KvWrite, Message, NoResponders, RequestTimeout, StorageUnavailable
from .wire import MESSAGE_ID, WRITE_ID, StoredEntry, write_headers

if TYPE_CHECKING:
    from .wire import BucketOwner

log = logging.getLogger("gangline.bus")

SILENCE_S: Final = 1.0
"""If an acknowledgement takes longer, check whether the bucket still exists (observers of its subjects prevent a "no
responders") and send again."""
NO_LEADER_S: Final = 1.0
"""How long to retry a bucket without a leader before the caller gets an error; a step-down takes at most half of
that."""
_RETRY_S: Final = 0.05
_CONFLICT_TRIES: Final = 8
_MAX_UNSURE_KEYS: Final = 1024
_PIPELINE: Final = 256
"""Writes between two checks of the buffer."""


class KvWriter:
    """Writes of one bucket."""

    def __init__(self, bucket: BucketOwner) -> None:
        self._bucket = bucket
        self._bus = bucket.bus
        self._id = bucket.bus.ambient.token()
        self._count = 0
        self._unsure: OrderedDict[str, set[str]] = OrderedDict()
        """Names of conditional writes with unknown outcomes, by key. Limited in number."""

    def new_id(self) -> str:
        """A name for one write, unique over all writers."""
        self._count += 1
        return f"{self._id}.{self._count}"

    def is_own(self, stored: StoredEntry | None) -> bool:
        """Whether this revision is from a write of ours with an unknown outcome."""
        if stored is None:
            return False
        return stored.headers.get(WRITE_ID, "") in self._unsure.get(stored.key, ())

    def unsure(self, key: str, write_id: str) -> None:
        """Remember a write whose outcome is unknown."""
        names = self._unsure.setdefault(key, set())
        names.add(write_id)
        self._unsure.move_to_end(key)
        if len(self._unsure) > _MAX_UNSURE_KEYS:
            self._unsure.popitem(last=False)

    # -- one ------------------------------------------------------------------------------------------------------

    async def store(self, write: KvWrite) -> int:
        """Write one key; the new revision.

        Raises:
            Conflict, StorageUnavailable, Disconnected.
        """
        write_id = self.new_id()
        known = False
        try:
            revision = await self._store(write, write_id)
            known = True
            return revision
        except Unavailable as error:
            known = not error.may_have_started
            raise
        finally:
            if write.revision is not None and not known:
                self.unsure(write.key, write_id)

    async def _store(self, write: KvWrite, write_id: str) -> int:
        expected = write.revision
        for _ in range(_CONFLICT_TRIES):
            headers = _headers(write, write_id, expected)
            try:
                return await WriteInFlight(self._bucket, write, headers).acknowledged()
            except ApiError as error:
                if error.number != WRONG_LAST_SEQUENCE:
                    raise
            stored = await self._bucket.stored(write.key)
            if stored is not None and stored.headers.get(WRITE_ID) == write_id:
                return stored.revision
            if stored is not None and self.is_own(stored):
                if _same(stored, write):
                    self._unsure.pop(write.key, None)
                    return stored.revision
                if write.resumes:
                    expected = stored.revision  # our own lost write: continue from it
                    continue
            expected = self._expected_after(write, stored)
        raise Conflict(f"key {write.key!r} keeps changing: read it again", details={"key": write.key})

    @staticmethod
    def _expected_after(write: KvWrite, stored: StoredEntry | None) -> int:
        """The revision to expect instead of 0 if there is a marker.

        Raises:
            Conflict: the condition is really not met.
        """
        if write.revision == 0 and is_absent(write, stored):
            return 0 if stored is None else stored.revision
        raise conflict(write, stored)

    # -- many -----------------------------------------------------------------------------------------------------

    async def store_many(self, writes: Sequence[KvWrite]) -> list[int | Unavailable]:
        """Write all together; those that fail at first are written again with `store`."""
        if not writes:
            return []
        results: list[int | Unavailable | None] = [None] * len(writes)
        try:
            await self._bucket.ensure()
            under_way = await self._start_all(writes)
        except Unavailable as error:
            return [error] * len(writes)
        late = await self._collect(writes, under_way, results)
        last = {write.key: index for index, write in enumerate(writes)}
        again = [self._settle(writes[index], error, newest=last[writes[index].key] == index) for index, error in late]
        for (index, _), result in zip(late, await asyncio.gather(*again), strict=True):
            results[index] = result
        return [result for result in results if result is not None]

    async def _start_all(self, writes: Sequence[KvWrite]) -> list[tuple[str, asyncio.Future[Message], str]]:
        under_way = []
        try:
            for number, write in enumerate(writes, 1):
                # Unconditional writes have no name: the server would have to remember very many.
                write_id = "" if write.revision is None else self.new_id()
                headers = _headers(write, write_id, write.revision)
                subject = self._bucket.prefix + write.key
                reply, future = self._bus.start_request(subject, write.value or b"", headers=headers)
                under_way.append((reply, future, write_id))
                if number % _PIPELINE == 0:
                    await self._bus.writable()
        except BaseException:
            for (reply, _, write_id), write in zip(under_way, writes, strict=False):
                self._bus.forget_request(reply)
                if write_id:
                    self.unsure(write.key, write_id)
            raise
        return under_way

    async def _collect(
        self,
        writes: Sequence[KvWrite],
        under_way: list[tuple[str, asyncio.Future[Message], str]],
        results: list[int | Unavailable | None],
    ) -> list[tuple[int, Unavailable]]:
        """Fill `results`; return the indexes that need another attempt, each with its error."""
        late: list[tuple[int, Unavailable]] = []
        try:
            patience_s = min(SILENCE_S, self._bus.api.timeout_s)
            await asyncio.wait({future for _, future, _ in under_way}, timeout=patience_s)
        finally:
            for index, (reply, future, write_id) in enumerate(under_way):
                self._bus.forget_request(reply)
                try:
                    if not future.done():
                        raise RequestTimeout("no acknowledgement yet")
                    results[index] = revision_of(future.result(), writes[index].key)
                except Unavailable as error:
                    if write_id and error.may_have_started:
                        self.unsure(writes[index].key, write_id)
                    late.append((index, error))
        return late

    async def _settle(self, write: KvWrite, error: Unavailable, *, newest: bool) -> int | Unavailable:
        """Second attempt of one write. An unconditional write that may already be stored is simply repeated, unless a
        newer one of the same key was sent with it."""
        refused = isinstance(error, ApiError) and error.number == WRONG_LAST_SEQUENCE
        lasting = isinstance(error, ApiError) and not refused and not error.temporary and not error.busy
        if refused and not newest:
            return Conflict(f"key {write.key!r} was not at revision {write.revision}: read it again")
        if lasting or not newest or (isinstance(error, Disconnected) and not self._bus.connected):
            return error
        try:
            return await self.store(write)
        except Unavailable as again:
            return again


class WriteInFlight:
    """One write in flight: sent again after silence or "no responders", until acknowledged."""

    def __init__(self, bucket: BucketOwner, write: KvWrite, headers: dict[str, str]) -> None:
        self._bucket = bucket
        self._bus = bucket.bus
        self._key = write.key
        self._data = write.value or b""
        self._headers = headers
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + bucket.bus.api.timeout_s
        self._leaderless_since: float | None = None
        self._busy_since: float | None = None
        self._under_way: dict[asyncio.Future[Message], str] = {}
        """Reply subjects of unanswered requests."""

    async def acknowledged(self) -> int:
        """The revision.

        Raises:
            ApiError: it was refused; the number says why.
            StorageUnavailable: no leader for a second, or no acknowledgement in time.
            Disconnected.
        """
        await self._bucket.ensure()
        shortage = self._bus.api.shortage
        try:
            while True:
                reply, future = self._bus.start_request(
                    self._bucket.prefix + self._key, self._data, headers=self._headers
                )
                self._under_way[future] = reply
                left = self._deadline - self._loop.time()
                done, _ = await asyncio.wait(
                    self._under_way, timeout=min(SILENCE_S, max(left, 0)), return_when=asyncio.FIRST_COMPLETED
                )
                for answered in [each for each in self._under_way if each in done]:
                    self._bus.forget_request(self._under_way.pop(answered))
                    try:
                        revision = revision_of(answered.result(), self._key)
                        if shortage.refusals:
                            shortage.stored(self._bucket.label)
                        return revision
                    except NoResponders:
                        await self._without_leader()
                    except ApiError as error:
                        shortage.refused(self._bucket.label, error)
                        if not error.busy and not error.temporary:
                            raise
                        await self._while_busy(error)
                if not done:
                    await self._after_silence()
        finally:
            for reply in self._under_way.values():
                self._bus.forget_request(reply)

    async def _without_leader(self) -> None:
        now = self._loop.time()
        if self._leaderless_since is None:
            self._leaderless_since = now
        if now - self._leaderless_since > NO_LEADER_S or now > self._deadline:
            raise StorageUnavailable(
                f"the bucket {self._bucket.name!r} has no leader right now: try again",
                may_have_started=bool(self._under_way),
            )
        if not await self._bucket.restore(SILENCE_S):
            await asyncio.sleep(_RETRY_S)

    async def _while_busy(self, error: ApiError) -> None:
        now = self._loop.time()
        if now >= self._deadline:
            raise error
        self._busy_since = self._busy_since or now
        if error.number == ID_IN_PROCESS and now - self._busy_since > SILENCE_S:
            # A cluster may remember the id of a failed write for minutes: continue under another.
            self._headers[MESSAGE_ID] += "+"
            self._busy_since = now
        await asyncio.sleep(_RETRY_S)

    async def _after_silence(self) -> None:
        if self._loop.time() >= self._deadline:
            raise StorageUnavailable(
                f"JetStream did not acknowledge the write of {self._key!r} within {self._bus.api.timeout_s:g} s: "
                f"it may have been written"
            )
        await self._bucket.restore(min(SILENCE_S, max(self._deadline - self._loop.time(), 0)))


def _headers(write: KvWrite, write_id: str, expected: int | None) -> dict[str, str]:
    headers = write_headers(write)
    if write_id:
        headers[MESSAGE_ID if write.revision is None else WRITE_ID] = write_id
    if expected is not None:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
    return headers


def revision_of(answer: Message, key: str) -> int:
    """The sequence in a publish acknowledgement. Raises ApiError."""
    return int(parse_answer(answer, f"write {key}")["seq"])


def is_absent(write: KvWrite, stored: StoredEntry | None) -> bool:
    """Whether the key does not exist as far as this write is concerned."""
    return stored is None or (stored.marker and write.revives)


def conflict(write: KvWrite, stored: StoredEntry | None) -> Conflict:
    """The error for a condition that is not met."""
    actual = 0 if stored is None or is_absent(write, stored) else stored.revision
    return Conflict(
        f"key {write.condition_key or write.key!r} is at revision {actual}, not {write.revision}: read it again",
        details={"key": write.condition_key or write.key, "revision": actual, "expected": write.revision},
    )


def _same(stored: StoredEntry, write: KvWrite) -> bool:
    return stored.marker if write.value is None else not stored.marker and stored.value == write.value
