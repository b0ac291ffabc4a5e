"""Waiting for the end of jobs, and what it then was."""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Final

from ...bus.port.bus import ConnectionEvent, KvEntry, StorageUnavailable
from ...schemas.errors.base import Disconnected, GanglineError, MalformedMessage, error_from_wire
from ...schemas.errors.tasks import JobCancelled, JobDead, ResultNotKept, UnknownJob
from ...schemas.records.jobs import JobFailure, JobState, ResultRecord
from ...schemas.wire import codec
from ...schemas.wire.codec import Format
from ...telemetry.logs import logger_for
from .queries import JobQueries
from .retry_budget import until_answered
from .storage import TaskStreams
from .stored import JobRef

LOOK_S: Final = 10.0
"""How often a waiting reader looks by itself, in case the news of a result was lost."""
STATUS_S: Final = 5.0
"""How long dispatchers are given to say whether a job exists."""
_log = logger_for("dispatcher")

_AGAIN_S: Final = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""News of a result may be quicker than its storage: looks that follow it."""


async def wait_for_record(queries: JobQueries, ref: JobRef) -> ResultRecord:
    """The record of how the job ended, as soon as there is one. Goes on over lost connections.

    Raises:
        UnknownJob: there is no such job.
    """
    results = await until_answered("opening the bucket of results", queries.streams.results, _log)
    news, names = asyncio.Event(), queries.streams.names

    def on_write(entry: KvEntry) -> None:
        # A write that passes may be one that the server refuses, since another was first: only a sign to look.
        news.set()

    def on_connection(event: ConnectionEvent) -> None:
        if event is not ConnectionEvent.DISCONNECTED:
            news.set()

    key = names.result_key(ref.id)
    feed = await until_answered("watching a result", lambda: results.observe(key, on_write), _log)
    forget = queries.bus.on_connection(on_connection)
    try:
        doubts = 0 if ref.submitted else 1
        looks: tuple[float, ...] = _AGAIN_S[:1]
        while True:
            for pause_s in looks:
                await asyncio.sleep(pause_s)
                if (record := await _look(queries, ref.id)) is not None:
                    return record
            doubts = await _still_there(queries, ref, doubts)
            heard = await _heard(news, LOOK_S)
            looks = _AGAIN_S if heard else _AGAIN_S[:1]
            doubts += not heard
    finally:
        forget()
        await feed.unsubscribe()


async def _heard(news: asyncio.Event, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await news.wait()
    except TimeoutError:
        return False
    news.clear()
    return True


async def _look(queries: JobQueries, job: str) -> ResultRecord | None:
    try:
        return await queries.record(job)
    except (Disconnected, StorageUnavailable):
        return None  # the reconnection, or the next look


async def _still_there(queries: JobQueries, ref: JobRef, doubts: int) -> int:
    """Nothing was heard for long, or we never knew whether the job exists: then somebody has to know it. Twice in a
    row, for what was submitted here: it may be on its way from the stream to a dispatcher.

    Raises:
        UnknownJob: nobody does.
    """
    if not doubts:
        return 0
    try:
        await queries.status(ref, STATUS_S)
    except UnknownJob as error:
        if error.details.get("certain") and (doubts > 1 or not ref.submitted):
            raise
        return doubts
    except GanglineError:
        return doubts  # nobody could be asked
    return 0


async def value_of(streams: TaskStreams, record: ResultRecord) -> Any:
    """The result of a job that ended well.

    Raises:
        JobDead, JobCancelled: it did not; the last error is the cause.
        ResultNotKept: its large result is no longer there.
        MalformedMessage: the record cannot be read.
    """
    if record.state is not JobState.DONE:
        raise failure_of(record) from _cause(record.error)
    fmt = Format.MSGPACK if record.encoding == "msgpack" else Format.JSON
    if record.object is not None:
        name = record.object

        async def read() -> bytes | None:
            return await (await streams.objects()).get(name)

        body = await until_answered("reading a large result", read, _log)
        if body is None:
            raise ResultNotKept(
                f"the result of job {record.job!r} was in the object store under {record.object!r} and is gone",
                details={"job": record.job},
            )
        return codec.decode(body, fmt)
    return plain_value(record.result, record.encoding)


def plain_value(value: Any, encoding: str) -> Any:
    """A value as records and items carry it.

    Raises:
        MalformedMessage: not base64 of msgpack where it should be.
    """
    if encoding != "msgpack":
        return value
    try:
        body = base64.b64decode(str(value).translate(_ANY_ALPHABET), validate=True)
    except ValueError as error:
        raise MalformedMessage(f"not base64: {error}") from error
    return codec.decode(body, Format.MSGPACK)


_ANY_ALPHABET: Final = str.maketrans("-_", "+/")


def failure_of(record: ResultRecord) -> JobDead | JobCancelled:
    """Why there is no result."""
    job, target = record.job, f"{record.endpoint}.{record.method}"
    if record.state is JobState.CANCELLED:
        return JobCancelled(f"job {job!r} ({target}) was cancelled", details={"job": job, "attempts": record.attempts})
    reason = "" if record.reason is None else record.reason.value
    times = f"{record.attempts} attempt{'' if record.attempts == 1 else 's'}"
    last = f": {record.error.message}" if record.error is not None else ""
    return JobDead(
        f"job {job!r} ({target}) is a dead letter, {reason or 'for some reason'} after {times}{last}",
        details={
            "job": job,
            "reason": reason,
            "attempts": record.attempts,
            "error": None if record.error is None else record.error.model_dump(mode="json"),
        },
        may_have_started=record.attempts > 0,
    )


def _cause(error: JobFailure | None) -> GanglineError | None:
    return None if error is None else error_from_wire(error.code, error.message, error.details, True)
