"""Dead letters: tasks that will not be retried. They can be read, replayed or dropped."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from ...bus.port.bus import Conflict, NotPermitted, StreamMessage
from ...runtime.clock import Environment
from ...runtime.timers import exponential_s
from ...schemas.errors.base import InvalidRequest, JobError, UnknownJob
from ...schemas.messages.jobs import title_of
from ...schemas.messages.submission import OF_DEAD_LETTERS
from ...schemas.names import check_job, check_name
from ...schemas.records.jobs import FailedTry, JobFailure, JobState
from ...schemas.text import parse_duration
from ...schemas.wire import headers
from .queries import JobQueries, parse_result
from .storage import TaskStreams
from .stored import BURIED, JobRef, begins, decoded, header_of, is_number, job_of, messages_of, origin_of, split_subject

QUIET_S: Final = 5.0
"""A reader that gets no letter for this time stops waiting for more: they were deleted meanwhile."""

ENDING_LOOKS: Final = 20
ENDING_LOOK_S: Final = 1.0
"""How often a dispatcher is asked whether the end of a dead task is stored, and the timeout of each request."""

_DROPPED: Final = OF_DEAD_LETTERS | {headers.FIRST.lower(), headers.DELAY.lower()}
"""Headers of a letter that its replayed task does not get; it does not wait for its scheduled time again either."""


MOST_NAMED: Final = 100
"""The audit trail names so many letters of one action."""


def audited(which: Sequence[str | DeadLetter]) -> str:
    """As the audit trail names these: letters, and ids of jobs without one."""
    named = [one if isinstance(one, str) else one.audited for one in which[:MOST_NAMED]]
    return " ".join([*named, f"(+{len(which) - MOST_NAMED})"] if len(which) > MOST_NAMED else named)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One task that will not be retried."""

    job: str
    endpoint: str
    """As published; may be an invalid name."""
    method: str
    reason: str
    """See schemas.records.jobs.DeadReason."""
    attempts: int
    error: JobFailure | None
    """The last error; if the task raised, `details` has `type` and `traceback`."""
    dead_at: float
    """Unix time."""
    sequence: int
    """Its sequence in the dead-letter stream."""
    subject: str
    """Subject that the task was published to."""
    data: bytes
    """The body. A very large one is only read by `Client.dead_letter`."""
    headers: Mapping[str, str]
    tries: tuple[FailedTry, ...] = ()
    """The last ten failed attempts, oldest first; empty if unknown."""

    @property
    def target(self) -> str:
        return f"{self.endpoint}.{self.method}"

    @property
    def audited(self) -> str:
        """As the audit trail names it: an id that is only the sequence of a task says nothing alone."""
        return f"{self.target} {self.job}" if self.job.isdecimal() else self.job

    @property
    def trace(self) -> str | None:
        """`traceparent` of the publisher."""
        return header_of(self.headers, headers.TRACEPARENT)

    @property
    def schedule(self) -> str | None:
        """The schedule that it was a run of."""
        return header_of(self.headers, headers.SCHEDULE_JOB)

    @property
    def title(self) -> str:
        """As of JobInfo."""
        return title_of(self.job, self.schedule)

    @property
    def arguments(self) -> Any:
        """The decoded body; raw if it cannot be decoded."""
        return decoded(self.data, self.headers)

    @classmethod
    def parse(cls, message: StreamMessage, prefix: str) -> DeadLetter:
        """Never fails. `prefix`: of the task subjects."""
        fields = message.headers or {}
        subject = header_of(fields, headers.SUBJECT) or ""
        endpoint, method = split_subject(subject, prefix)
        return cls(
            job=header_of(fields, headers.JOB) or f"dead-{message.sequence}",
            endpoint=endpoint,
            method=method,
            reason=header_of(fields, headers.DEAD_REASON) or "",
            attempts=_number(header_of(fields, headers.ATTEMPTS)),
            error=_failure(header_of(fields, headers.DEAD_ERROR)),
            dead_at=_moment(header_of(fields, headers.DEAD_AT)) or message.at,
            sequence=message.sequence,
            subject=subject,
            data=message.data,
            headers=dict(fields),
            tries=_tries(header_of(fields, headers.DEAD_TRIES)),
        )


class DeadLetters:
    """Reads, replays and drops dead letters. One per client."""

    def __init__(self, streams: TaskStreams, ambient: Environment, queries: JobQueries) -> None:
        self._streams = streams
        self._queries = queries
        self._names = streams.names
        self._ambient = ambient

    async def newest(
        self, endpoint: str | None = None, *, limit: int | None = 1000, bodies: bool = True
    ) -> list[DeadLetter]:
        """The newest letters, oldest first.

        Args:
            limit: None: all of them.
            bodies: False saves memory with many large letters.
        """
        if limit is not None and limit < 1:
            raise InvalidRequest(f"limit is {limit}: give at least 1")
        found: deque[DeadLetter] = deque(maxlen=limit)
        await self._read(endpoint, lambda letter: found.append(letter if bodies else replace(letter, data=b"")))
        return list(found)

    async def find(self, job: str) -> DeadLetter:
        """The newest letter of the job whose id or title this is, or whose id begins with it.

        Raises:
            UnknownJob: there is none.
            InvalidRequest: there are letters of several such jobs; the text names them.
        """
        check_job(job)
        newest: dict[str, DeadLetter] = {}
        exact: DeadLetter | None = None

        def take(letter: DeadLetter) -> None:
            nonlocal exact
            if job in (letter.job, letter.title):
                exact = letter
            elif begins(letter.job, job):  # perhaps one of many: its body is read again when it is the only one
                newest[letter.job] = replace(letter, data=b"")

        await self._read(None, take)
        if exact is not None:
            return await self._whole(exact)
        if not newest:
            raise UnknownJob(
                f"there is no dead letter of job {job!r}: 'gangline dead ls' lists them", details={"job": job}
            )
        if len(newest) > 1:
            some = ", ".join(sorted(newest)[:5])
            raise InvalidRequest(f"{job!r} is the beginning of several jobs with dead letters: {some}")
        return await self._now(*newest.values())

    async def _now(self, letter: str | DeadLetter) -> DeadLetter:
        """A letter as it is in the stream now; for a job id or its beginning, its newest."""
        if isinstance(letter, str):
            return await self.find(letter)
        message = await (await self._streams.dead(make=False)).get(letter.sequence)
        if message is None or DeadLetter.parse(message, self._names.tasks[:-1]).job != letter.job:
            raise UnknownJob(
                f"the dead letter of job {letter.job!r} is gone: it was replayed or dropped",
                details={"job": letter.job},
            )
        return await self._whole(DeadLetter.parse(message, self._names.tasks[:-1]))

    async def _whole(self, letter: DeadLetter) -> DeadLetter:
        """The letter with its body, if necessary from the object store."""
        stored = header_of(letter.headers, headers.DEAD_OBJECT)
        if stored is None or letter.data:
            return letter
        body = await (await self._streams.objects()).get(stored)
        return letter if body is None else replace(letter, data=body)

    async def replay(self, which: str | DeadLetter) -> JobRef:
        """Publish the task again as the same job. Its attempt numbers continue after the last, so that its fence grows.

        After a failure the letter still exists and can be replayed again: within two minutes that creates no second
        task.

        Raises:
            UnknownJob: there is no such letter.
            JobError: the job has ended otherwise meanwhile, or another client is replaying it.
            InvalidRequest: its subject is not a task subject.
        """
        letter = await self._now(which)
        job = letter.job
        prefix = self._names.tasks[:-1]
        if headers.DEAD_OBJECT in letter.headers and not letter.data:
            raise JobError(f"the body of job {job!r} is no longer kept: drop its dead letter", details={"job": job})
        if not letter.subject.startswith(prefix):
            raise InvalidRequest(
                f"job {job!r} was published to {letter.subject!r}, which is not a task subject ({prefix}...): "
                "publish it yourself, or drop it"
            )
        if await self._wait_for_its_end(letter):
            letter = await self._now(letter)  # another client may have been faster
        await self._forget_message(letter)
        await self._forget_result(letter)
        await (await self._streams.jobs()).purge(self._names.job(job))
        fields = self._fields_again(letter)
        stored = await (await self._streams.tasks()).publish(letter.subject, letter.data, headers=fields)
        await self._remove(letter)
        try:
            endpoint: str | None = check_name(letter.endpoint, "endpoint")
        except InvalidRequest:
            endpoint = None
        return JobRef(id=job, endpoint=endpoint, method=letter.method or None, sequence=stored.sequence, submitted=True)

    async def drop(self, which: str | DeadLetter) -> None:
        """Delete a letter; the job's result still says that it is dead.

        Raises:
            UnknownJob: there is no such letter.
        """
        await self._remove(await self.find(which) if isinstance(which, str) else which)

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _remove(self, letter: DeadLetter) -> None:
        await (await self._streams.dead()).delete(letter.sequence)
        stored = header_of(letter.headers, headers.DEAD_OBJECT)
        if stored is not None:
            await (await self._streams.objects()).delete(stored)

    def _pattern(self, endpoint: str | None) -> str:
        if endpoint is None:
            return self._names.all_dead
        return f"{self._names.dead(check_name(endpoint, 'endpoint'), '_').removesuffix('_')}>"

    async def _read(self, endpoint: str | None, take: Callable[[DeadLetter], object]) -> None:
        """All letters that exist now."""
        stream = await self._streams.dead(make=False)
        pattern = self._pattern(endpoint)
        state = await stream.state(pattern)
        expected = sum(state.subjects.values())
        if not expected:
            return
        news: asyncio.Queue[StreamMessage] = asyncio.Queue()
        try:
            reading = await stream.read(pattern, news.put_nowait)
        except NotPermitted:  # an observer, who may not create consumers
            async for message in messages_of(stream, pattern, state.first_sequence, state.last_sequence):
                take(DeadLetter.parse(message, self._names.tasks[:-1]))
            return
        try:
            for _ in range(expected):
                async with asyncio.timeout(QUIET_S):
                    message = await news.get()
                if message.sequence > state.last_sequence:
                    break
                take(DeadLetter.parse(message, self._names.tasks[:-1]))
        except TimeoutError:
            return
        finally:
            await reading.unsubscribe()

    async def _wait_for_its_end(self, letter: DeadLetter) -> bool:
        """Wait until no dispatcher has the message fetched: while it stores the end, it would take the replayed message
        for a duplicate. False: there was nothing to wait for.

        Raises:
            JobError: it takes too long.
        """
        buried = origin_of(BURIED, letter.headers)
        sequence = None if buried is None else buried.sequence
        try:
            ref = JobRef(id=letter.job, endpoint=check_name(letter.endpoint, "endpoint"), sequence=sequence)
        except InvalidRequest:
            return False  # no dispatcher has it
        for tries in range(ENDING_LOOKS if sequence is not None else 0):
            if not await self._queries.in_hand(ref, ENDING_LOOK_S):
                return tries > 0
            await asyncio.sleep(exponential_s(0.01, ENDING_LOOK_S, tries))
        if sequence is None:
            return False
        raise JobError(
            f"the end of job {letter.job!r} is still being stored: replay it again later", details={"job": letter.job}
        )

    async def _forget_message(self, letter: DeadLetter) -> None:
        """Delete the old message: the dispatcher may have been killed before it acknowledged that. Without a record, it
        would be taken for an unfinished task, and the replayed one for its duplicate."""
        buried = origin_of(BURIED, letter.headers)
        tasks = await self._streams.tasks()
        message = None if buried is None else await tasks.get(buried.sequence)
        if (
            message is not None
            and message.subject == letter.subject
            and job_of(message, self._names.tasks[:-1]) == letter.job
        ):
            await tasks.delete(message.sequence)

    async def _forget_result(self, letter: DeadLetter) -> None:
        """Delete the record of the dead job, so that it can get another one."""
        job = letter.job
        results, key = await self._streams.results(), self._names.result_key(job)
        entry = await results.get(key)
        if entry is None:
            return
        record = parse_result(job, entry.value)
        if record.state is not JobState.DEAD:
            raise JobError(f"job {job!r} is now {record.state.value}: drop its dead letter", details={"job": job})
        buried = origin_of(BURIED, letter.headers)
        again = buried is not None and 0 < buried.at_ms < round(record.submitted_at * 1000)
        if again or record.attempts > letter.attempts:
            # Another client was faster, and it is dead again: our message would be taken for a duplicate.
            raise JobError(f"job {job!r} was replayed and is dead again: replay it again", details={"job": job})
        try:
            await results.delete(key, revision=entry.revision)
        except Conflict as error:
            raise JobError(f"job {job!r} is being replayed by someone else", details={"job": job}) from error

    def _fields_again(self, letter: DeadLetter) -> dict[str, str]:
        dropped = {*_DROPPED, headers.JOB.lower()}
        deadline = header_of(letter.headers, headers.DEADLINE)
        if deadline is not None and self._passed(deadline):
            dropped.add(headers.DEADLINE.lower())
        return {
            **{
                name: value
                for name, value in letter.headers.items()
                if name.lower() not in dropped and not name.lower().startswith("nats-")
            },
            headers.JOB: letter.job,
            headers.MESSAGE_ID: f"replay-{letter.job}-{letter.sequence}",
        }

    def _passed(self, deadline: str) -> bool:
        """Whether it is a time in the past; a duration starts again."""
        try:
            parse_duration(deadline)
        except ValueError:
            moment = _moment(deadline)
            return moment is not None and moment <= self._ambient.wall()
        return False


def _number(text: str | None) -> int:
    return int(text) if text is not None and is_number(text) else 0


def _moment(text: str | None) -> float | None:
    try:
        return None if text is None else datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        return None


def _tries(text: str | None) -> tuple[FailedTry, ...]:
    try:
        return () if text is None else tuple(FailedTry.model_validate(each) for each in json.loads(text))
    except (ValueError, TypeError):  # anybody can write there
        return ()


def _failure(text: str | None) -> JobFailure | None:
    try:
        return None if text is None else JobFailure.model_validate(json.loads(text))
    except ValueError:
        return JobFailure(code="unknown", message=text or "")
