"""What is told of jobs: states and streamed items, stored in the stream of jobs in order, each until it is taken."""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from ....bus.port.bus import Stream
from ....schemas.errors.base import GanglineError, InvalidRequest, InvalidResult, Unavailable
from ....schemas.names import JobFeed as Feed
from ....schemas.names import Names
from ....schemas.records.jobs import JobEvent, JobItem
from ....schemas.wire import codec, headers
from ....schemas.wire.codec import Format
from ....telemetry.logs import Log
from ...jobs.storage import LOUD_AFTER, storage_backoff

_AT_ONCE: Final = 128
_OVERHEAD_BYTES: Final = 512


@dataclass(slots=True)
class _Telling:
    subject: str
    """Empty: only a mark in the line."""
    data: bytes = b""
    id: str = ""
    done: Callable[[], None] | None = None


class JobEventPublisher:
    """One of each queue. What it was asked to store is stored in that order, unless storage fails in between; items
    have their index for that case, and none is stored twice."""

    def __init__(
        self,
        jobs: Callable[[], Awaitable[Stream]],
        names: Names,
        *,
        limit_bytes: Callable[[], int],
        sure: Callable[[], Awaitable[None]],
        log: Log,
    ) -> None:
        """
        Args:
            jobs: opens the stream.
            limit_bytes: the largest message that the server takes.
            sure: waits until it is certain that the queue is ours.
        """
        self._jobs = jobs
        self._names = names
        self._limit_bytes = limit_bytes
        self._sure = sure
        self._log = log
        self._line: deque[_Telling] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Idempotent."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._go_on(), name="gangline-job-feed")

    async def stop(self) -> None:
        """Store nothing more. Idempotent, safe before `start`."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._line.clear()

    def tell(self, event: JobEvent) -> None:
        """Store a change of state."""
        subject = self._names.job(event.job, Feed.STATE)
        self._add(_Telling(subject, event.model_dump_json().encode()))

    def item(
        self, job: str, attempt: int, index: int, value: Any, fmt: Format, done: Callable[[], None], *, sequence: int
    ) -> InvalidResult | None:
        """Store one item; `done` when it is. Returns an error if it can never be.

        Args:
            sequence: of the job's message: a dead letter that is sent anew has its old id, and yields anew.
        """
        try:
            data = _item(job, attempt, index, value, fmt)
        except InvalidRequest as error:
            return InvalidResult(f"item {index} {error.message}", may_have_started=True)
        limit = self._limit_bytes() - _OVERHEAD_BYTES
        if len(data) > limit:
            return InvalidResult(
                f"item {index} makes a message of {len(data)} bytes and at most {limit} fit: yield smaller ones",
                may_have_started=True,
                details={"size": len(data), "limit": limit},
            )
        self._add(_Telling(self._names.job(job, Feed.ITEM), data, f"item-{job}-{sequence}-{attempt}-{index}", done))
        return None

    def when_stored(self, done: Callable[[], None]) -> None:
        """Call `done` when all that was told so far is stored."""
        self._add(_Telling("", done=done))

    @property
    def pending(self) -> int:
        """Messages that storage has not taken yet."""
        return len(self._line)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _add(self, telling: _Telling) -> None:
        self._line.append(telling)
        self._wake.set()

    async def _go_on(self) -> None:
        backoff = storage_backoff()
        while True:
            if not self._line:
                self._wake.clear()
                await self._wake.wait()
            batch = self._next_batch()
            if not batch:
                mark = self._line.popleft()
                if mark.done is not None:
                    mark.done()
                continue
            failed = await self._store(batch)
            if failed is None:
                backoff.reset()
                continue
            delay_s = backoff.next_s()
            say = self._log.warning if backoff.failures == LOUD_AFTER else self._log.debug
            say("events of jobs cannot be stored: %s; trying on", failed, extra={"action": "job_feed.retry"})
            await asyncio.sleep(delay_s)

    def _next_batch(self) -> list[_Telling]:
        """What stands before the next mark."""
        batch: list[_Telling] = []
        for telling in self._line:
            if not telling.subject or len(batch) == _AT_ONCE:
                break
            batch.append(telling)
        return batch

    async def _store(self, batch: list[_Telling]) -> GanglineError | None:
        """Store what can be; the rest stays in front. Returns an error if there was one."""
        try:
            await self._sure()
            stream = await self._jobs()
        except GanglineError as error:
            return error
        answers = await asyncio.gather(*(self._publish(stream, telling) for telling in batch), return_exceptions=True)
        again: list[_Telling] = []
        failed: GanglineError | None = None
        for telling, answer in zip(batch, answers, strict=True):
            self._line.popleft()
            if isinstance(answer, Unavailable):
                again.append(telling)
                failed = answer
            elif isinstance(answer, Exception):
                self._log.error("an event cannot be stored", exc_info=answer, extra={"action": "job_feed.bug"})
            elif isinstance(answer, BaseException):
                raise answer
        self._line.extendleft(reversed(again))
        kept = set(map(id, again))
        for telling in batch:
            if id(telling) not in kept and telling.done is not None:
                telling.done()
        return failed

    async def _publish(self, stream: Stream, telling: _Telling) -> None:
        given = {headers.MESSAGE_ID: telling.id} if telling.id else None
        await stream.publish(telling.subject, telling.data, headers=given)

    def __repr__(self) -> str:
        return f"JobEventPublisher(pending={len(self._line)})"


def _item(job: str, attempt: int, index: int, value: Any, fmt: Format) -> bytes:
    if fmt is Format.MSGPACK:
        body = base64.b64encode(codec.pack(value)).decode()
        item = JobItem(job=job, attempt=attempt, index=index, value=body, encoding="msgpack")
        return item.model_dump_json().encode()
    return codec.to_json(JobItem(job=job, attempt=attempt, index=index, value=value))
