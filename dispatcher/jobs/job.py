"""A durable task that was submitted, from its producer's side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from ...schemas.errors.base import DeadlineExceeded, InvalidRequest
from ...schemas.errors.tasks import ResultNotKept
from ...schemas.messages.jobs import JobInfo, JobWhyReply
from ...schemas.names import check_name
from ...schemas.records.jobs import JobEvent, JobProgress
from .events import events_of, items_of
from .queries import JobQueries, value_of, wait_for_record
from .stored import JobRef

ASK_TIMEOUT_S = 5.0
"""How long a dispatcher is given to answer."""


class Job:
    """Made by `Client.submit`, or by `Client.job` from its id. Nothing of it needs to be closed; it may be dropped at
    any time, and looked up again by its id from anywhere."""

    def __init__(self, queries: JobQueries, ref: JobRef) -> None:
        check_name(ref.id, "job")
        if ref.endpoint is not None:
            check_name(ref.endpoint, "endpoint")
        self._queries = queries
        self._ref = ref

    @property
    def id(self) -> str:
        return self._ref.id

    @property
    def endpoint(self) -> str | None:
        """None: it was looked up without."""
        return self._ref.endpoint

    @property
    def method(self) -> str | None:
        """None: it was looked up by its id."""
        return self._ref.method

    @property
    def repeats(self) -> bool:
        """It is a schedule (`cron`): each of its runs is a job of its own."""
        return self._ref.repeats

    async def result(self, timeout_s: float | None = None) -> Any:
        """What the task returned; waits for its end, also over lost connections.

        Args:
            timeout_s: give up waiting after so long; the job goes on. None: never.

        Cancelling stops the wait, not the job.

        Raises:
            JobDead: it is a dead letter; `reason`, and the last error as `__cause__`.
            JobCancelled: it was cancelled.
            ResultNotKept: it was submitted with `result_ttl_s=0`.
            UnknownJob: there is no such job, or it ended so long ago that its result is no longer kept.
            DeadlineExceeded: it did not end in time; it continues.
            InvalidRequest: it is a schedule.
        """
        self._check_kept("result")
        try:
            async with asyncio.timeout(timeout_s):
                record = await wait_for_record(self._queries, self._ref)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"job {self.id!r} did not end within {timeout_s:g} s; it continues",
                may_have_started=True,
                details={"job": self.id},
            ) from error
        return await value_of(self._queries.streams, record)

    async def status(self) -> JobInfo:
        """The current state of the job: from its result, its dispatcher, or the stream.

        Raises:
            UnknownJob: there is no such job.
        """
        return await self._queries.status(self._ref, ASK_TIMEOUT_S)

    async def cancel(self) -> bool:
        """Cancel the job (or schedule). Returns False if it had already ended.

        Raises:
            UnknownJob: there is no such job.
        """
        return await self._queries.cancel(self._ref, ASK_TIMEOUT_S)

    async def why(self) -> JobWhyReply:
        """Explain what the job is waiting for.

        Raises:
            UnknownJob: there is no such job.
        """
        return await self._queries.why(self._ref, ASK_TIMEOUT_S)

    def events(self) -> AsyncGenerator[JobEvent | JobProgress, None]:
        """Events of the job from the beginning until its end: `async for event in job.events()`.

        Yields a JobEvent for each change of state if it was submitted with `events=True`, and always one for its end; a
        JobProgress for each `current_task().progress(...)`. Events are kept for an hour, so they can be read late.

        Raises:
            UnknownJob: there is no such job.
            ResultNotKept: it was submitted with `result_ttl_s=0` and without events, so its end is not visible.
        """
        if not self._ref.events:
            self._check_kept("events")
        return events_of(self._queries, self._ref)

    def items(self, *, skip: bool = False) -> AsyncGenerator[Any, None]:
        """The items of a task that yields, from the first, as they arrive: `async for item in job.items()`.

        If an attempt fails, the next one yields from the beginning. A new reader gets only the newest attempt; if you
        have already read some items:

        Args:
            skip: True: each attempt yields the same items, so skip those already read. False: raise StreamBroken, since
                the items already read are void.

        Raises:
            StreamBroken: an attempt started over (`details["attempt"]`), or items are no longer kept.
            JobDead, JobCancelled: after the items of the last attempt.
            InvalidRequest: the task does not yield.
            UnknownJob, ResultNotKept: as `events`.
        """
        self._check_kept("items")
        return items_of(self._queries, self._ref, skip=skip)

    def _check_kept(self, what: str) -> None:
        if self._ref.repeats:
            raise InvalidRequest(
                f"job {self.id!r} is a schedule, it has no {what}: each of its runs is a job of its own"
            )
        if not self._ref.result_kept:
            raise ResultNotKept(
                f"job {self.id!r} was submitted with result_ttl_s=0: its result is not kept", details={"job": self.id}
            )

    def __repr__(self) -> str:
        return f"Job({self.id}, {self._ref.target})"
