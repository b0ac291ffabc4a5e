"""What the stream of tasks shows of a job that no dispatcher knows: a schedule, or a task far down its queue."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...bus.port.bus import Stream, StreamMessage
from ...schemas.messages.jobs import JobInfo
from ...schemas.names import Names
from ...schemas.records.jobs import JobState
from ...schemas.wire import headers
from .submitter import moment_of

SCANNED: Final = 20_000
"""Most messages that are looked at for a job whose place in the stream is not known."""
CHAINS: Final = 16
"""Parts of the stream that are looked through side by side."""


class JobRef(NamedTuple):
    """A job, as far as its holder knows it."""

    id: str
    endpoint: str | None = None
    method: str | None = None
    sequence: int | None = None
    """Of its task in the stream; of the schedule's if it is `scheduled`."""
    scheduled: bool = False
    repeats: bool = False
    result_kept: bool = True
    events: bool = False
    """Each change of its state is told."""
    submitted: bool = False
    """We submitted it ourselves, so that it exists, or existed."""

    @property
    def target(self) -> str:
        return f"{self.endpoint}.{self.method}" if self.endpoint and self.method else "?"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search came to."""

    message: StreamMessage | None
    certain: bool = True
    """False: there are so many messages that not all were looked at."""


async def find(tasks: Stream, names: Names, ref: JobRef) -> SearchResult:
    """The job's task in the stream."""
    prefix = names.tasks[:-1]
    sequence = ref.sequence if not ref.scheduled else None
    if sequence is None and ref.id.isdecimal():
        sequence = int(ref.id)
    if sequence is not None:
        message = await tasks.get(sequence)
        return SearchResult(message if message is not None and _is_job(message, ref.id, prefix) else None)
    pattern = names.tasks if ref.endpoint is None else names.tasks_of(ref.endpoint)
    state = await tasks.state(pattern)
    count = sum(state.subjects.values())
    if not count:
        return SearchResult(None)
    search = _Search(tasks, pattern, ref.id, prefix)
    await search.run(state.first_sequence, state.last_sequence)
    return SearchResult(search.found, certain=search.found is not None or search.left > 0)


class _Search:
    """Looks through a stream, in parts side by side."""

    def __init__(self, tasks: Stream, pattern: str, job: str, prefix: str) -> None:
        self.found: StreamMessage | None = None
        self.left = SCANNED
        self._tasks = tasks
        self._pattern = pattern
        self._job = job
        self._prefix = prefix

    async def run(self, first: int, last: int) -> None:
        step = max(1, -(-(last - first + 1) // CHAINS))
        try:
            async with asyncio.TaskGroup() as group:
                for start in range(first, last + 1, step):
                    group.create_task(self._chain(start, min(start + step - 1, last)))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # one is as good as another

    async def _chain(self, place: int, end: int) -> None:
        while place <= end and self.left > 0 and self.found is None:
            self.left -= 1
            message = await self._tasks.next(self._pattern, place)
            if message is None or message.sequence > end:
                return
            if _is_job(message, self._job, self._prefix):
                self.found = message
            place = message.sequence + 1


def info_of_task(ref: JobRef, message: StreamMessage, names: Names) -> JobInfo:
    """What is known of a task that nobody has looked at."""
    endpoint, method = target_of(message, names)
    return JobInfo(
        job=ref.id,
        endpoint=endpoint,
        method=method,
        state=JobState.QUEUED,
        sequence=message.sequence,
        submitted_at=message.at,
    )


def info_of_schedule(ref: JobRef, message: StreamMessage, names: Names) -> JobInfo:
    """What is known of what the server keeps until its time."""
    fields = message.headers or {}
    when = fields.get(headers.SCHEDULE, "")
    target = fields.get(headers.SCHEDULE_TARGET, "").removeprefix(names.tasks[:-1])
    endpoint, _, method = target.partition(".")
    moment = moment_of(when)
    return JobInfo(
        job=ref.id,
        endpoint=endpoint,
        method=method,
        state=JobState.SCHEDULED,
        sequence=message.sequence,
        submitted_at=message.at,
        next_try_at=moment,
        reason="its time has not come" if moment is not None else f"runs again and again: {when}",
    )


def target_of(message: StreamMessage, names: Names) -> tuple[str, str]:
    """Endpoint and method of a task's subject."""
    endpoint, _, method = message.subject.removeprefix(names.tasks[:-1]).partition(".")
    return endpoint, method


def _is_job(message: StreamMessage, job: str, prefix: str) -> bool:
    return message.subject.startswith(prefix) and job_of(message) == job


def job_of(message: StreamMessage) -> str:
    """The id of the job whose task this is: its own, or else its sequence."""
    return header_of(message.headers or {}, headers.JOB) or str(message.sequence)


def header_of(fields: Mapping[str, str], name: str) -> str | None:
    """One header, however it is written."""
    value = fields.get(name)
    if value is not None:
        return value
    wanted = name.lower()
    return next((text for key, text in fields.items() if key.lower() == wanted), None)
