"""The client's side of a submitted task: its result, its state, and its feed (states, progress, items of a task that
yields), from the beginning even for late readers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, overload

from pydantic import ValidationError

from ...bus.port.bus import ConnectionEvent, Message, StorageUnavailable, Stream, StreamMessage
from ...runtime.tasks import TaskSet
from ...runtime.tracebacks import FRAMES_HIDDEN, frames_hidden
from ...schemas.errors.base import (
    DeadlineExceeded,
    Disconnected,
    GanglineError,
    InvalidRequest,
    MalformedMessage,
    ResultNotKept,
    StreamBroken,
)
from ...schemas.handles import NamedTask, R, Result, task_of
from ...schemas.messages.jobs import JobInfo, JobWhyReply
from ...schemas.names import JobFeed
from ...schemas.records.jobs import JobEvent, JobItem, JobProgress, JobState, ResultRecord
from ...schemas.text import count_of
from ...telemetry.logs import logger_for
from .queries import (
    LOOKS_S,
    JobQueries,
    failure_of,
    heard_within,
    owned,
    plain_value,
    value_of,
    wait_for_record,
)
from .result_waits import LOOK_S
from .storage import until_answered
from .stored import JobRef

REST_S: Final = 5.0
"""After the end of a job: how long to wait for earlier messages that have not arrived."""

GAP_S: Final = 10.0
"""How long to wait for an item that others have overtaken, while there is a dispatcher to store it."""
_EARLY_ITEMS: Final = 1024
"""How many items may overtake it."""
_MOST_AT_ONCE: Final = 64
"""Messages of the feed that are requested at once."""
_AHEAD: Final = 256
"""Messages that are read before their reader takes them."""

_log = logger_for("dispatcher")


@dataclass(frozen=True, slots=True)
class _Ended:
    record: ResultRecord | None
    error: BaseException | None
    last: int
    """Sequence of the newest message at that time."""


async def follow(
    queries: JobQueries,
    ref: JobRef,
    *kinds: JobFeed,
    gap: Callable[[ResultRecord | None], GanglineError | None] = lambda record: None,
) -> AsyncGenerator[StreamMessage | ResultRecord, None]:
    """Messages of these kinds, oldest first and then as they arrive; last, the record of the job's end.

    Args:
        gap: receives the record, or None before the end. Returns an error to raise if nothing more arrives for GAP_S;
            None: nothing is missing.

    Raises:
        UnknownJob: there is no such job.
        GanglineError: that of `gap`.
    """
    names = queries.streams.names
    jobs = await until_answered("opening the stream of jobs", queries.streams.jobs, _log)
    news: asyncio.Queue[StreamMessage | _Ended] = asyncio.Queue(_AHEAD)
    pattern = names.job(ref.id, kinds[0] if len(kinds) == 1 else "*")
    wanted = {names.job(ref.id, kind) for kind in kinds}

    signs = _Signs()

    async def wait() -> None:
        try:
            record = await wait_for_record(queries, ref)
            signs.news.set()
            newest = [await _last(jobs, subject) for subject in sorted(wanted)]
        except GanglineError as error:
            await news.put(_Ended(None, error, 0))
        else:
            last = max((message.sequence for message in newest if message is not None), default=0)
            await news.put(_Ended(record, None, last))

    async def read() -> None:
        try:
            await _read(jobs, pattern, signs, news.put)
        except GanglineError as error:
            await news.put(_Ended(None, error, 0))

    feed = await until_answered("subscribing to a job", lambda: queries.bus.subscribe(pattern, signs.hear), _log)
    forget = queries.bus.on_connection(signs.connection)
    tasks = TaskSet("job feed", _log)
    tasks.start(wait())
    tasks.start(read())
    seen, end = 0, None
    try:
        while True:
            missing = gap(None if end is None else end.record)
            if end is not None and missing is None and seen >= end.last:
                break
            try:
                async with asyncio.timeout(GAP_S if missing is not None else None if end is None else REST_S):
                    item = await news.get()
            except TimeoutError:
                waits = missing is not None and end is None and await queries.changes_hands(ref, GAP_S)
                if waits or not signs.readable:
                    continue
                if missing is not None:
                    raise missing from None
                break  # it was deleted or expired
            if isinstance(item, _Ended):
                if item.error is not None:
                    raise item.error
                end = item
                continue
            seen = item.sequence
            if item.subject in wanted:
                yield item
        assert end is not None and end.record is not None
        yield end.record
    finally:
        forget()
        await tasks.stop()
        await feed.unsubscribe()


class _Signs:
    """Signs that there is more to read."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.newest = b""
        """The last message that passed. It may be stored later or never."""
        self.readable = False
        """Storage has answered the last look."""

    def hear(self, message: Message) -> None:
        self.newest = message.data
        self.news.set()

    def connection(self, event: ConnectionEvent) -> None:
        if event is not ConnectionEvent.DISCONNECTED:
            self.news.set()


async def _read(jobs: Stream, pattern: str, signs: _Signs, found: Callable[[StreamMessage], Awaitable[None]]) -> None:
    """Report all stored messages and new ones. Without a consumer: whoever may create one chooses where JetStream
    delivers."""
    sequence, width = 0, 1
    looks: tuple[float, ...] = LOOKS_S[:1]
    while True:
        for pause_s in looks:
            await asyncio.sleep(pause_s)
            data = b""
            while messages := await _next(jobs, pattern, range(sequence + 1, sequence + 1 + width), signs):
                for message in messages:
                    await found(message)
                sequence, data = messages[-1].sequence, messages[-1].data
                # If messages of other jobs are in between, several requests have one answer.
                width = min(2 * width, _MOST_AT_ONCE) if len(messages) == width else len(messages)
            if data and data == signs.newest:
                break
        looks = LOOKS_S if await heard_within(signs.news, LOOK_S) else LOOKS_S[:1]


async def _next(jobs: Stream, pattern: str, starts: range, signs: _Signs) -> list[StreamMessage]:
    """The first message from each of these sequences on: all messages from the first on, without gaps."""
    signs.readable = False
    try:
        found = await asyncio.gather(*(jobs.next(pattern, start) for start in starts))
    except (Disconnected, StorageUnavailable):
        return []  # the reconnection, or the next look
    signs.readable = True
    # Nothing from one start on, and yet something from a later one: stored meanwhile, and more may lie before it.
    there = {
        message.sequence: message for message in itertools.takewhile(lambda each: each is not None, found) if message
    }
    return list(there.values())


async def _last(jobs: Stream, subject: str) -> StreamMessage | None:
    return await until_answered("reading a job's events", lambda: jobs.last(subject), _log)


async def events_of(queries: JobQueries, ref: JobRef) -> AsyncGenerator[JobEvent | JobProgress, None]:
    """See Job.events."""
    with FRAMES_HIDDEN:
        ref = await owned(queries, ref)
        async with contextlib.aclosing(follow(queries, ref, JobFeed.STATE, JobFeed.PROGRESS)) as feed:
            async for item in feed:
                if isinstance(item, ResultRecord):
                    yield _final(item)
                    return
                kind = JobEvent if item.subject.endswith(JobFeed.STATE) else JobProgress
                try:
                    event = kind.model_validate_json(item.data)
                    if isinstance(event, JobProgress) and event.packed is not None:
                        event = event.model_copy(update={"value": plain_value(event.packed, "msgpack"), "packed": None})
                except (ValidationError, MalformedMessage) as error:
                    _unreadable(item, error)
                    continue
                yield event
                if isinstance(event, JobEvent) and event.state.final:
                    return


def _final(record: ResultRecord) -> JobEvent:
    return JobEvent(
        job=record.job,
        state=record.state,
        attempt=record.attempts,
        worker=record.worker,
        at=record.finished_at,
        error=record.error,
        reason=None if record.reason is None else record.reason.value,
    )


async def items_of(queries: JobQueries, ref: JobRef, *, skip: bool) -> AsyncGenerator[Any, None]:
    """See Job.items."""
    with FRAMES_HIDDEN:
        ref = await owned(queries, ref)
        reader = _Items(ref.id, skip=skip)
        jobs = await until_answered("opening the stream of jobs", queries.streams.jobs, _log)
        newest = await _last(jobs, queries.streams.names.job(ref.id, JobFeed.ITEM))
        if newest is not None and (item := _item(newest)) is not None:
            reader.attempt = item.attempt
        async with contextlib.aclosing(follow(queries, ref, JobFeed.ITEM, gap=reader.gap)) as feed:
            async for message in feed:
                if isinstance(message, ResultRecord):
                    await reader.end(queries, message)
                    return
                item = _item(message)
                for each in () if item is None else reader.take(item):
                    yield plain_value(each.value, each.encoding)


class _Items:
    """Puts items in order: each index once, without gaps."""

    def __init__(self, job: str, *, skip: bool) -> None:
        self.attempt = 0
        self._job = job
        self._skip = skip
        self._next = 0
        self._given = 0
        self._early: dict[int, JobItem] = {}
        """Items that arrived before an earlier one: storage failed for that one, and stored it later."""

    def take(self, item: JobItem) -> list[JobItem]:
        """The items that can be yielded now.

        Raises:
            StreamBroken: one is missing, or a new attempt started over.
        """
        if item.attempt < self.attempt:
            return []
        if item.attempt > self.attempt:
            self.attempt, self._next = item.attempt, 0
            self._early.clear()
            if self._given and not self._skip:
                raise StreamBroken(
                    f"job {self._job!r} failed and starts over (attempt {item.attempt}): "
                    f"{count_of(self._given, 'item')} so far must be discarded; read items() again, or "
                    "items(skip=True) if each attempt yields the same",
                    details={"job": self._job, "attempt": item.attempt, "items": self._given},
                )
        if item.index >= self._next:  # otherwise it is a duplicate
            self._early[item.index] = item
        found: list[JobItem] = []
        while (following := self._early.pop(self._next, None)) is not None:
            self._next += 1
            if following.index >= self._given:
                self._given += 1
                found.append(following)
        if len(self._early) > _EARLY_ITEMS:
            raise self._missing(min(self._early))
        return found

    def gap(self, record: ResultRecord | None) -> StreamBroken | None:
        """What is missing, if something later has arrived: an item, or the end with the number of items."""
        if record is not None and record.state is JobState.DONE and self._next < (record.items or 0):
            return self._missing(record.items or 0)
        return self._missing(min(self._early)) if self._early and record is None else None

    async def end(self, queries: JobQueries, record: ResultRecord) -> None:
        """Raises the job's error, or InvalidRequest if it yields no items."""
        if record.state is not JobState.DONE:
            await value_of(queries.streams, record)
            raise failure_of(record)
        if record.items is None:
            raise InvalidRequest(f"job {self._job!r} yields no items: use result() for its result")

    def _missing(self, index: int) -> StreamBroken:
        return StreamBroken(
            f"items {self._next} to {index - 1} of job {self._job!r} no longer exist: items are kept for limited time",
            details={"job": self._job, "next": self._next},
        )


def _item(message: StreamMessage) -> JobItem | None:
    try:
        return JobItem.model_validate_json(message.data)
    except ValidationError as error:
        _unreadable(message, error)
        return None


def _unreadable(message: StreamMessage, error: Exception) -> None:
    extra = {"action": "job.unreadable", "subject": message.subject, "sequence": message.sequence}
    _log.warning("unreadable message on %s: %s", message.subject, error, extra=extra)


ASK_TIMEOUT_S = 5.0
"""How long a dispatcher or a worker has to answer, without `options(timeout_s=...)`."""


_LOOK_UP_S: Final = 1.0
"""A limit below this may be over before a first answer can come."""


class Job(Generic[Result]):
    """A handle to a job, from `Client.submit`, or from `Client.job` with its id. It needs no close: you can drop it at
    any time, and look the job up again by its id from anywhere.

    `Job[int]` is the job of a task that returns a number.
    """

    def __init__(self, queries: JobQueries, ref: JobRef, task: NamedTask | None = None) -> None:
        """`ref`: with valid names. `task`: decodes results and items; None: they are plain values."""
        self._queries = queries
        self._ref = ref
        self._task = task

    @property
    def id(self) -> str:
        return self._ref.id

    @property
    def endpoint(self) -> str | None:
        """None: it was looked up without one."""
        return self._ref.endpoint

    @property
    def method(self) -> str | None:
        """None: it was looked up by its id."""
        return self._ref.method

    @property
    def repeats(self) -> bool:
        """Whether it is a recurring schedule (`cron`); each run is a job of its own."""
        return self._ref.repeats

    @property
    def created(self) -> bool | None:
        """Whether its submission made it. False: its `idempotency_key` stands for a job that was submitted before, with
        whatever arguments; `status` tells whether that has ended or was cancelled. True also if that cannot be told,
        since an earlier attempt of this submission was not answered. None: it was looked up."""
        return self._ref.created

    @overload
    def of(  # a task that yields: it has no result, but items
        self, task: Callable[..., AsyncIterator[Any] | Iterator[Any]], /
    ) -> Job[None]: ...

    @overload
    def of(self, task: Callable[..., Coroutine[Any, Any, R]], /) -> Job[R]: ...

    @overload
    def of(self, task: Callable[..., R], /) -> Job[R]: ...

    def of(self, task: Any, /) -> Job[Any]:
        """The same job, as one of this task: `client.job(id).of(count)` is a `Job[int]`, and its result is what the
        function's annotation says. Sends nothing.

        Args:
            task: the function of the task, as for Client.call.

        Raises:
            InvalidRequest: the function is not a task, or of several pools.
        """
        return Job(self._queries, self._ref, task_of(task, (self.endpoint or "",)))

    @frames_hidden
    async def result(self, timeout_s: float | None = None) -> Result:
        """The task's result; None if it yields: `items()` has what it yielded. Waits for its end, also across lost
        connections.

        Args:
            timeout_s: how long to wait; the job continues. None: no limit. 0: do not wait, only look whether it has
                ended.

        Cancelling stops the wait, not the job.

        Raises:
            JobDead: it is a dead letter; `reason`, and the last error as `__cause__`.
            JobCancelled: it was cancelled.
            ResultNotKept: it was submitted with `result_ttl_s=0`.
            UnknownJob: there is no such job, or its result has expired.
            DeadlineExceeded: it did not end in time; it continues.
            InvalidRequest: it is a schedule.
        """
        self._check_kept("result")
        try:
            async with asyncio.timeout(timeout_s):
                record = await wait_for_record(self._queries, self._ref)
        except TimeoutError as error:
            ended = await self._record_now() if timeout_s is not None and timeout_s < _LOOK_UP_S else None
            if ended is None:
                within = f"did not end within {timeout_s:g} s" if timeout_s else "has not ended yet"
                raise DeadlineExceeded(
                    f"job {self.id!r} {within}; it continues", may_have_started=True, details={"job": self.id}
                ) from error
            record = ended
        value: Any = await value_of(self._queries.streams, record)
        if self._task is not None and not self._task.streams:
            value = self._task.decode(value)
        found: Result = value
        return found

    async def _record_now(self) -> ResultRecord | None:
        """The record of its end, if it has ended: looked up once, for a caller whose limit was too short for that.

        Raises:
            UnknownJob: there is no such job.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_TIMEOUT_S):
                if (await self._queries.status(self._ref, ASK_TIMEOUT_S)).state.final:
                    return await wait_for_record(self._queries, self._ref)
        return None

    @frames_hidden
    async def status(self) -> JobInfo:
        """The current state of the job: from its result, its dispatcher, or the stream. For JSON, take its
        `model_dump(mode="json")`.

        Raises:
            UnknownJob: there is no such job.
        """
        return await self._queries.status(self._ref, ASK_TIMEOUT_S)

    @frames_hidden
    async def cancel(self, *, reason: str = "") -> bool:
        """Cancel the job (or schedule). Returns False if it had already ended. With a `reason`, this is recorded in the
        audit trail: only operators can do that.

        Raises:
            UnknownJob: there is no such job.
        """
        async with self._queries.noted("cancel", self._ref.id, reason) if reason else contextlib.nullcontext():
            return await self._queries.cancel(self._ref, ASK_TIMEOUT_S)

    @frames_hidden
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
        items = items_of(self._queries, self._ref, skip=skip)
        return items if self._task is None else _decoded(items, self._task)

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


async def _decoded(items: AsyncGenerator[Any, None], task: NamedTask) -> AsyncGenerator[Any, None]:
    with FRAMES_HIDDEN:
        async with contextlib.aclosing(items):
            async for item in items:
                yield task.decode(item)
