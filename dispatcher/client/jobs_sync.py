"""Durable tasks for code without an event loop: the same names, plain functions."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from ...runtime.loop_thread import LoopThread, iterate
from ...schemas.messages.jobs import JobInfo, QueueStats, WhyReply
from ...schemas.records.jobs import JobEvent, JobProgress
from ..jobs.dead_letters import DeadLetter
from ..jobs.job import Job
from .client import Client


class SyncJob:
    """See jobs.Job; the same attributes and methods."""

    def __init__(self, thread: LoopThread, job: Job) -> None:
        self._thread = thread
        self._job = job

    @property
    def id(self) -> str:
        return self._job.id

    @property
    def endpoint(self) -> str | None:
        """None: it was looked up without."""
        return self._job.endpoint

    @property
    def method(self) -> str | None:
        """None: it was looked up by its id."""
        return self._job.method

    @property
    def repeats(self) -> bool:
        """It is a schedule (`cron`): each of its runs is a job of its own."""
        return self._job.repeats

    def result(self, timeout_s: float | None = None) -> Any:
        """See Job.result."""
        return self._thread.run(self._job.result(timeout_s))

    def status(self) -> JobInfo:
        """See Job.status."""
        return self._thread.run(self._job.status())

    def cancel(self) -> bool:
        """See Job.cancel."""
        return self._thread.run(self._job.cancel())

    def why(self) -> WhyReply:
        """See Job.why."""
        return self._thread.run(self._job.why())

    def events(self) -> Generator[JobEvent | JobProgress, None, None]:
        """See Job.events. Blocks between events."""
        return iterate(self._thread, self._job.events())

    def items(self, *, skip: bool = False) -> Generator[Any, None, None]:
        """See Job.items. Blocks between items."""
        return iterate(self._thread, self._job.items(skip=skip))

    def __repr__(self) -> str:
        return f"Sync{self._job!r}"


class SyncDurableTasks:
    """See jobs_client.DurableTasks."""

    _thread: LoopThread
    _client: Client

    def submit(self, target: str, /, *args: Any, **kwargs: Any) -> SyncJob:
        """See Client.submit."""
        return SyncJob(self._thread, self._thread.run(self._client.submit(target, *args, **kwargs)))

    def submit_many(self, target: str, arguments: Sequence[Mapping[str, Any]], /) -> list[SyncJob]:
        """See Client.submit_many."""
        jobs = self._thread.run(self._client.submit_many(target, arguments))
        return [SyncJob(self._thread, job) for job in jobs]

    def job(self, id: str, /, endpoint: str | None = None) -> SyncJob:
        """See Client.job."""
        return SyncJob(self._thread, self._client.job(id, endpoint))

    def queues(self) -> list[QueueStats]:
        """See Client.queues."""
        return self._thread.run(self._client.queues())

    def dead_letters(
        self, endpoint: str | None = None, *, limit: int | None = 1000, bodies: bool = True
    ) -> list[DeadLetter]:
        """See Client.dead_letters."""
        return self._thread.run(self._client.dead_letters(endpoint, limit=limit, bodies=bodies))

    def dead_letter(self, job: str) -> DeadLetter:
        """See Client.dead_letter."""
        return self._thread.run(self._client.dead_letter(job))

    def replay(self, job: str | DeadLetter) -> SyncJob:
        """See Client.replay."""
        return SyncJob(self._thread, self._thread.run(self._client.replay(job)))

    def drop(self, job: str | DeadLetter) -> None:
        """See Client.drop."""
        self._thread.run(self._client.drop(job))
