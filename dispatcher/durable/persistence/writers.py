"""A queue's writes: records to the results bucket, events and items to the jobs stream.

Writes end with a callback and have no task of their own. Each queue has its own writers, which store nothing while
ownership of the queue is in doubt.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from ....bus.port.bus import Conflict, KeyValue, KvWrite, Stream
from ....runtime.tasks import TaskSet
from ....schemas.errors.base import GanglineError, InvalidRequest, InvalidResult, Unavailable
from ....schemas.names import JobFeed as Feed
from ....schemas.names import Names
from ....schemas.records.jobs import JobEvent, JobItem
from ....schemas.wire import codec, headers
from ....schemas.wire.codec import Format
from ....telemetry.logs import Log
from ...jobs.storage import LOUD_AFTER, storage_backoff

_WRITES_AT_ONCE: Final = 512
_EVENTS_AT_ONCE: Final = 128
_OVERHEAD_BYTES: Final = 512

T = TypeVar("T")


class StorageWriter(Generic[T]):
    """Stores items in batches and in order, and repeats each until storage has accepted it."""

    what = ""
    """What it stores, for logs."""
    action = ""
    """Prefix of its log actions."""

    def __init__(self, *, sure: Callable[[], Awaitable[None]], log: Log) -> None:
        """`sure` waits until ownership is certain."""
        self._sure = sure
        self._log = log
        self._line: deque[T] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._work = TaskSet(f"write {self.action}", log)
        self.retried = 0

    def start(self) -> None:
        """Idempotent."""
        if not self._work:
            self._work.start(self._go_on())

    async def stop(self) -> None:
        """Stop writing, and drop pending items. Idempotent, safe before `start`."""
        await self._work.stop()
        self._line.clear()
        self._idle.set()

    async def settled(self) -> None:
        await self._idle.wait()

    @property
    def pending(self) -> int:
        """Items not stored yet."""
        return len(self._line)

    def _add(self, item: T) -> None:
        self._line.append(item)
        self._idle.clear()
        self._wake.set()

    def _next_batch(self) -> list[T]:
        """The oldest items; empty: call again."""
        raise NotImplementedError

    async def _store(self, batch: list[T]) -> Sequence[object]:
        """The outcome of each item; Unavailable: it is not stored."""
        raise NotImplementedError

    def _taken(self, item: T, answer: Any) -> None:
        """It is stored."""
        raise NotImplementedError

    async def _go_on(self) -> None:
        backoff = storage_backoff()
        while True:
            if not self._line:
                self._idle.set()
                self._wake.clear()
                await self._wake.wait()
            batch = self._next_batch()
            if not batch:
                continue
            try:
                await self._sure()
                answers = await self._store(batch)
            except Exception as error:
                if not isinstance(error, GanglineError):
                    self._log.exception("%s cannot be stored", self.what, extra={"action": f"{self.action}.bug"})
                answers = [_as_unavailable(error)] * len(batch)
            failed = self._settle(batch, answers)
            if failed is None:
                backoff.reset()
                continue
            delay_s = backoff.next_s()
            self.retried += 1
            say = self._log.warning if backoff.failures == LOUD_AFTER else self._log.debug
            say("%s cannot be stored: %s; trying again", self.what, failed, extra={"action": f"{self.action}.retry"})
            await asyncio.sleep(delay_s)

    def _settle(self, batch: list[T], answers: Sequence[object]) -> Unavailable | None:
        """Items that were not stored stay at the front, in order. Returns an error if there was one."""
        for _ in batch:
            self._line.popleft()
        failed: Unavailable | None = None
        again: list[T] = []
        taken: list[tuple[T, object]] = []
        for item, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Unavailable):
                failed = answer
                again.append(item)
            else:
                taken.append((item, answer))
        self._line.extendleft(reversed(again))
        for item, answer in taken:
            self._tell(item, answer)
        return failed

    def _tell(self, item: T, answer: object) -> None:
        """Whatever goes wrong with one item, the writer continues: all other items wait for it."""
        try:
            self._taken(item, answer)
        except Exception:
            self._log.exception("the callback of %s failed", self.what, extra={"action": f"{self.action}.bug"})

    def __repr__(self) -> str:
        return f"{type(self).__name__}(pending={len(self._line)}, retried={self.retried})"


def _as_unavailable(error: Exception) -> Unavailable:
    return error if isinstance(error, Unavailable) else Unavailable(str(error) or type(error).__name__)


@dataclass(slots=True)
class _Write:
    write: KvWrite
    done: Callable[[bool], None] | None


class KvWriteBatcher(StorageWriter[_Write]):
    """Writes to a bucket in the requested order, as far as storage preserves it; writes of one key are always in
    order."""

    what = "results"
    action = "results"

    def __init__(
        self, bucket: Callable[[], Awaitable[KeyValue]], *, sure: Callable[[], Awaitable[None]], log: Log
    ) -> None:
        """`bucket` opens the bucket."""
        super().__init__(sure=sure, log=log)
        self._bucket = bucket

    def create(self, key: str, value: bytes, *, ttl_s: float | None, done: Callable[[bool], None]) -> None:
        """Write a key that does not exist. `done(False)`: it existed, and is unchanged."""
        self._add(_Write(KvWrite(key=key, value=value, ttl_s=ttl_s, revision=0, resumes=False), done))

    def put(self, key: str, value: bytes, *, done: Callable[[bool], None] | None = None) -> None:
        self._add(_Write(KvWrite(key=key, value=value), done))

    def delete(self, key: str) -> None:
        self._add(_Write(KvWrite(key=key, value=None), None))

    def _next_batch(self) -> list[_Write]:
        """The next batch, with no key twice: the second write of a key must follow the first."""
        batch: list[_Write] = []
        keys: set[str] = set()
        for each in self._line:
            if each.write.key in keys or len(batch) == _WRITES_AT_ONCE:
                break
            keys.add(each.write.key)
            batch.append(each)
        return batch

    async def _store(self, batch: list[_Write]) -> Sequence[object]:
        bucket = await self._bucket()
        answers = await bucket.write([each.write for each in batch])
        return [
            False if isinstance(answer, Conflict) and each.write.revision == 0 else answer
            for each, answer in zip(batch, answers, strict=True)
        ]

    def _taken(self, item: _Write, answer: Any) -> None:
        if item.done is not None:
            item.done(answer is not False)


@dataclass(slots=True)
class _Copy:
    sequence: int
    done: Callable[[], None]


class DueCopyRemover(StorageWriter[_Copy]):
    """Removes due tasks from the stream of schedules once the stream of tasks has them.

    A task that came from a schedule is acknowledged only after that. A new leader of the stream of tasks may not know
    how far it has got with the schedules: it begins after the last one that it still has, or else with the first one
    there is. So what has left the stream of tasks must not be there any longer.
    """

    what = "the removal of due tasks"
    action = "due_copies"

    def __init__(
        self,
        schedules: Callable[[], Awaitable[Stream]],
        pattern: str,
        *,
        sure: Callable[[], Awaitable[None]],
        log: Log,
    ) -> None:
        """`pattern`: the subjects of this queue's due tasks."""
        super().__init__(sure=sure, log=log)
        self._schedules = schedules
        self._pattern = pattern

    def remove(self, sequence: int, done: Callable[[], None]) -> None:
        """Remove the one with this sequence, and earlier ones: they are taken in order."""
        self._add(_Copy(sequence, done))

    def _next_batch(self) -> list[_Copy]:
        return list(self._line)

    async def _store(self, batch: list[_Copy]) -> Sequence[object]:
        stream = await self._schedules()
        await stream.purge(self._pattern, before=max(copy.sequence for copy in batch) + 1)
        return [None] * len(batch)

    def _taken(self, item: _Copy, answer: Any) -> None:
        item.done()


@dataclass(slots=True)
class _Telling:
    subject: str
    """Empty: it is just a mark."""
    data: bytes = b""
    id: str = ""
    done: Callable[[], None] | None = None


class JobEventPublisher(StorageWriter[_Telling]):
    """Publishes events and items of jobs in order, unless storage fails in between; items carry an index for that case,
    and none is stored twice."""

    what = "events of jobs"
    action = "job_feed"

    def __init__(
        self,
        jobs: Callable[[], Awaitable[Stream]],
        names: Names,
        *,
        limit_bytes: Callable[[], int],
        sure: Callable[[], Awaitable[None]],
        log: Log,
    ) -> None:
        """`limit_bytes`: the server's maximum message size."""
        super().__init__(sure=sure, log=log)
        self._jobs = jobs
        self._names = names
        self._limit_bytes = limit_bytes

    def tell(self, event: JobEvent) -> None:
        """Store a change of state."""
        subject = self._names.job(event.job, Feed.STATE)
        self._add(_Telling(subject, event.model_dump_json().encode()))

    def item(
        self, job: str, attempt: int, index: int, value: Any, fmt: Format, done: Callable[[], None], *, sequence: int
    ) -> InvalidResult | None:
        """Store one item, then call `done`. Returns an error if it can never be stored.

        Args:
            sequence: that of the job's message: a replayed dead letter has its old id, and yields again.
        """
        try:
            data = _item(job, attempt, index, value, fmt)
        except InvalidRequest as error:
            return InvalidResult(f"item {index} {error.message}", may_have_started=True)
        limit = self._limit_bytes() - _OVERHEAD_BYTES
        if len(data) > limit:
            return InvalidResult(
                f"item {index} makes a message of {len(data)} bytes, the limit is {limit}: yield smaller ones",
                may_have_started=True,
                details={"size": len(data), "limit": limit},
            )
        self._add(_Telling(self._names.job(job, Feed.ITEM), data, f"item-{job}-{sequence}-{attempt}-{index}", done))
        return None

    def when_stored(self, done: Callable[[], None]) -> None:
        """Call `done` when everything so far is stored."""
        self._add(_Telling("", done=done))

    def _next_batch(self) -> list[_Telling]:
        """Everything before the next mark; marks at the front are removed."""
        line = self._line
        while line and not line[0].subject:
            self._tell(line.popleft(), None)
        batch: list[_Telling] = []
        for telling in line:
            if not telling.subject or len(batch) == _EVENTS_AT_ONCE:
                break
            batch.append(telling)
        return batch

    async def _store(self, batch: list[_Telling]) -> Sequence[object]:
        stream = await self._jobs()
        answers = await asyncio.gather(*(self._publish(stream, telling) for telling in batch), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, Unavailable):
                if not isinstance(answer, Exception):
                    raise answer
                self._log.error("cannot store an event", exc_info=answer, extra={"action": "job_feed.bug"})
        return answers

    async def _publish(self, stream: Stream, telling: _Telling) -> None:
        given = {headers.MESSAGE_ID: telling.id} if telling.id else None
        await stream.publish(telling.subject, telling.data, headers=given)

    def _taken(self, item: _Telling, answer: Any) -> None:
        if item.done is not None:
            item.done()


def _item(job: str, attempt: int, index: int, value: Any, fmt: Format) -> bytes:
    if fmt is Format.MSGPACK:
        item = JobItem(job=job, attempt=attempt, index=index, value=codec.pack_text(value), encoding="msgpack")
        return item.model_dump_json().encode()
    return codec.to_json(JobItem(job=job, attempt=attempt, index=index, value=value))
