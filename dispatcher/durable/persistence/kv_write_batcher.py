"""Writes to the bucket of results: many in one go, each asked for until storage has taken it.

No write has a task of its own: whoever wants one is called back. Each queue has its own, whose writes are not begun
while it is in doubt whether the queue is still ours.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from ....bus.port.bus import Conflict, KeyValue, KvWrite
from ....schemas.errors.base import GanglineError, Unavailable
from ....telemetry.logs import Log
from ...jobs.storage import LOUD_AFTER, storage_backoff

_AT_ONCE: Final = 512


@dataclass(slots=True)
class _Job:
    write: KvWrite
    done: Callable[[bool], None] | None


class KvWriteBatcher:
    """Writes in the order asked for, as far as storage keeps it; a key's own writes always in order."""

    def __init__(
        self,
        bucket: Callable[[], Awaitable[KeyValue]],
        *,
        sure: Callable[[], Awaitable[None]],
        log: Log,
    ) -> None:
        """
        Args:
            bucket: opens the bucket.
            sure: waits until it is certain that what we write is ours to write.
        """
        self._bucket = bucket
        self._sure = sure
        self._log = log
        self._jobs: deque[_Job] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.written = 0
        self.retried = 0

    def start(self) -> None:
        """Idempotent."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write_on(), name="gangline-scribe")

    async def stop(self) -> None:
        """Write nothing more; what is not written yet is dropped. Idempotent, safe before `start`."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._jobs.clear()
        self._idle.set()

    def create(self, key: str, value: bytes, *, ttl_s: float | None, done: Callable[[bool], None]) -> None:
        """Write a key that does not exist. `done(True)`: written; `done(False)`: it was there, and stays as it was."""
        self._add(_Job(KvWrite(key=key, value=value, ttl_s=ttl_s, revision=0), done))

    def put(self, key: str, value: bytes, *, done: Callable[[bool], None] | None = None) -> None:
        """Write a key, whatever it was."""
        self._add(_Job(KvWrite(key=key, value=value), done))

    def delete(self, key: str) -> None:
        """Delete a key."""
        self._add(_Job(KvWrite(key=key, value=None), None))

    async def settled(self) -> None:
        """Wait until everything so far is written."""
        await self._idle.wait()

    @property
    def pending(self) -> int:
        """Writes that storage has not taken yet."""
        return len(self._jobs)

    def _add(self, job: _Job) -> None:
        self._jobs.append(job)
        self._idle.clear()
        self._wake.set()

    async def _write_on(self) -> None:
        backoff = storage_backoff()
        while True:
            if not self._jobs:
                self._idle.set()
                self._wake.clear()
                await self._wake.wait()
            batch = self._next_batch()
            try:
                await self._sure()
                bucket = await self._bucket()
                answers: list[int | Unavailable] = list(await bucket.write([job.write for job in batch]))
            except GanglineError as error:
                answers = [_as_unavailable(error)] * len(batch)
            except Exception as error:
                self._log.exception("a write failed", extra={"action": "results.bug"})
                answers = [_as_unavailable(error)] * len(batch)
            failed = self._judge(batch, answers)
            if failed is None:
                backoff.reset()
                continue
            delay_s = backoff.next_s()
            self.retried += 1
            say = self._log.warning if backoff.failures == LOUD_AFTER else self._log.debug
            say("results cannot be written: %s; trying on", failed, extra={"action": "results.retry"})
            await asyncio.sleep(delay_s)

    def _next_batch(self) -> list[_Job]:
        """The oldest, no key twice: of two writes of one key the second must come after the first."""
        batch: list[_Job] = []
        keys: set[str] = set()
        for job in self._jobs:
            if job.write.key in keys or len(batch) == _AT_ONCE:
                break
            keys.add(job.write.key)
            batch.append(job)
        return batch

    def _judge(self, batch: list[_Job], answers: list[int | Unavailable]) -> Unavailable | None:
        """Settle what was taken; what was not stays in front, in order. Returns an error if there was one."""
        again: list[_Job] = []
        failed: Unavailable | None = None
        for _ in batch:
            self._jobs.popleft()
        settled: list[tuple[_Job, bool]] = []
        for job, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Conflict) and job.write.revision == 0:
                settled.append((job, False))
            elif isinstance(answer, Unavailable):
                failed = answer
                again.append(job)
            else:
                self.written += 1
                settled.append((job, True))
        self._jobs.extendleft(reversed(again))
        for job, written in settled:
            if job.done is not None:
                job.done(written)
        return failed

    def __repr__(self) -> str:
        return f"KvWriteBatcher(pending={len(self._jobs)}, written={self.written}, retried={self.retried})"


def _as_unavailable(error: Exception) -> Unavailable:
    return error if isinstance(error, Unavailable) else Unavailable(str(error) or type(error).__name__)
