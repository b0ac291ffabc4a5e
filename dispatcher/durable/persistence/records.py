"""The records that a queue stores: results, failed attempts, dead letters, schedules. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from ....bus.port.bus import StreamMessage
from ....schemas.errors.base import GanglineError, error_from_wire
from ....schemas.messages.submission import Submission
from ....schemas.names import Names
from ....schemas.records.jobs import DeadReason, FailedTry, JobFailure, JobState, ResultRecord, TaskDeadEvent, TryRecord
from ....schemas.text import parse_duration
from ....schemas.wire import codec, headers
from ....schemas.wire.codec import Format
from ...jobs.stored import BURIED, DUE_KEPT, SCHEDULED, header_of, origin_id, split_subject
from ...jobs.submitter import number
from ..core.effects import Persist, RecordKind
from ..messages.entry import QueuedMessage

MAX_FAILURE_BYTES: Final = 64 * 1024
"""A traceback longer than that loses its middle."""
_MESSAGE_CHARS: Final = 4000
_LEAST_CHARS: Final = 200
_TRY_CHARS: Final = 500
_TRIES_FROM: Final = 8192
"""If the error may take fewer bytes, there is no room for earlier attempts."""
MAX_HEADER_BYTES: Final = 65_535
"""JetStream's limit."""


def failure_of(error: GanglineError, limit: int = MAX_FAILURE_BYTES) -> JobFailure:
    """An error for a record, cut to a maximum size."""
    wire = error.to_wire()
    details: dict[str, Any] = json.loads(codec.to_json(wire.get("details") or {}))
    message = error.message[: max(_LEAST_CHARS, min(_MESSAGE_CHARS, limit))]
    traceback = details.get("traceback")
    if isinstance(traceback, str) and len(traceback) > limit // 2:
        half = limit // 4
        details["traceback"] = f"{traceback[:half]}\n... (cut) ...\n{traceback[-half:]}"
    if len(codec.to_json(details)) > limit:
        details = {}
    return JobFailure(code=error.code, message=message, details=details)


def cause_of(effect: Persist) -> GanglineError:
    """The error of a failure."""
    assert effect.error is not None, effect
    return effect.error


def reason_of(effect: Persist) -> DeadReason:
    """Why a dead task is dead."""
    assert effect.reason is not None, effect
    return effect.reason


def note_try(entry: QueuedMessage, effect: Persist, *, wall: float) -> None:
    """Add a failed attempt to the entry."""
    if effect.attempts and effect.error is not None and effect.error.may_have_started:
        entry.failed(effect.attempts, short_failure_of(effect.error), started_at=effect.started_at, ended_at=wall)


def short_failure_of(error: GanglineError) -> JobFailure:
    """An error for a job's history."""
    kind = error.details.get("type")
    details = {"type": kind[:_LEAST_CHARS]} if isinstance(kind, str) else {}
    return JobFailure(code=error.code, message=error.message[:_TRY_CHARS], details=details)


def result_of(entry: QueuedMessage, effect: Persist, *, wall: float, object: str | None = None) -> bytes:
    """The record of a job's end.

    Args:
        object: name of the body in the object store.
    """
    submission = entry.submission
    endpoint, method = target_of(entry)
    done = effect.state is JobState.DONE
    as_msgpack = done and entry.body is not None and entry.fmt is Format.MSGPACK
    record = ResultRecord(
        job=effect.job,
        endpoint=endpoint,
        method=method,
        state=effect.state,
        encoding="msgpack" if as_msgpack else "json",
        object=object,
        items=entry.items if done else None,
        reason=effect.reason,
        error=None if effect.error is None else failure_of(effect.error),
        attempts=effect.attempts,
        worker=entry.worker,
        fence=entry.fence,
        submitted_at=entry.message.at,
        started_at=effect.started_at,
        finished_at=wall,
        trace=submission.trace if submission is not None else None,
        tries=entry.tries,
        key=submission.key if submission is not None else None,
        schedule=submission.schedule if submission is not None else None,
    )
    if not done or object is not None or entry.body is None:
        return record.model_dump_json().encode()
    # The body is JSON already, or base64 of msgpack: no need to decode and encode it again.
    value = json.dumps(base64.b64encode(entry.body).decode()).encode() if as_msgpack else entry.body
    head = record.model_dump_json(exclude={"result"}).encode()
    return head[:-1] + b',"result":' + value + b"}"


def try_of(effect: Persist, tries: tuple[FailedTry, ...] = (), *, wall: float) -> bytes:
    """The record of a failed attempt, or of a cancelled job that cannot be ended at once."""
    cancelled = effect.kind is RecordKind.CANCELLATION
    record = TryRecord(
        job=effect.job,
        sequence=effect.seq,
        attempts=effect.attempts,
        not_before=wall if cancelled else effect.not_before,
        error=None if effect.error is None else failure_of(effect.error),
        cancelled=cancelled,
        tries=tries,
    )
    return record.model_dump_json().encode()


def target_of(entry: QueuedMessage) -> tuple[str, str]:
    """Endpoint and method, as far as the subject has them."""
    if entry.submission is not None:
        return entry.submission.endpoint, entry.submission.method
    return split_subject(".".join(entry.message.subject.split(".")[2:]), "")


# -- dead letters -----------------------------------------------------------------------------------------------------


def dead_headers(entry: QueuedMessage, effect: Persist, *, wall: float, limit: int) -> dict[str, str]:
    """Headers of the dead letter: those of the message, and why it is dead.

    Args:
        limit: maximum size of the error in bytes.
    """
    failure = failure_of(cause_of(effect), limit)
    ours = {
        headers.MESSAGE_ID: origin_id(BURIED, entry.message),
        headers.JOB: effect.job,
        headers.SUBJECT: entry.message.subject,
        headers.DEAD_REASON: reason_of(effect).value,
        headers.DEAD_ERROR: json.dumps(failure.model_dump(mode="json")),
        headers.DEAD_AT: moment(wall),
        headers.ATTEMPTS: str(effect.attempts),
    }
    if entry.tries and limit >= _TRIES_FROM:
        ours[headers.DEAD_TRIES] = json.dumps([each.model_dump(mode="json") for each in entry.tries])
    given = {**sendable(entry.message.headers), **ours}
    if limit == 0:
        # The task's own headers fill the limit: drop the largest, and keep the reason.
        while size_of_headers(given) > MAX_HEADER_BYTES and len(given) > len(ours):
            del given[max((name for name in given if name not in ours), key=lambda name: len(given[name].encode()))]
    return given


def broken_result(entry: QueuedMessage, effect: Persist, error: Exception, *, wall: float) -> ResultRecord:
    """The end of a job whose own end cannot be stored."""
    endpoint, method = target_of(entry)
    return ResultRecord(
        job=effect.job,
        endpoint=endpoint,
        method=method,
        state=JobState.DEAD,
        reason=effect.reason or DeadReason.INVALID_RESULT,
        error=JobFailure(code="internal", message=ascii(error)[:_TRY_CHARS]),
        attempts=effect.attempts,
        submitted_at=entry.message.at,
        finished_at=wall,
    )


def broken_headers(entry: QueuedMessage, record: ResultRecord) -> dict[str, str]:
    """Headers of its dead letter: none of the message's own."""
    assert record.reason is not None and record.error is not None, record
    given = {
        headers.MESSAGE_ID: origin_id(BURIED, entry.message),
        headers.JOB: record.job,
        headers.SUBJECT: entry.message.subject,
        headers.DEAD_REASON: record.reason.value,
        headers.DEAD_ERROR: json.dumps(record.error.model_dump(mode="json")),
        headers.DEAD_AT: moment(record.finished_at),
        headers.ATTEMPTS: str(record.attempts),
    }
    return sendable(given) | {headers.MESSAGE_ID: given[headers.MESSAGE_ID]}


def as_told(effect: Persist, given: Mapping[str, str]) -> Persist:
    """The same end, with the reason of its dead letter, which has these headers."""
    try:
        reason = DeadReason(given[headers.DEAD_REASON])
        failure = JobFailure.model_validate_json(given[headers.DEAD_ERROR])
        attempts = int(given[headers.ATTEMPTS])
    except (KeyError, ValueError):
        return effect  # anybody can write there
    error = error_from_wire(failure.code, failure.message, failure.details, may_have_started=attempts > 0)
    return replace(effect, reason=reason, error=error, attempts=attempts)


def size_of_headers(given: Mapping[str, str]) -> int:
    """Their size in a message."""
    return 12 + sum(len(name.encode()) + len(value.encode()) + 4 for name, value in given.items())


def dead_event(entry: QueuedMessage, effect: Persist, *, wall: float) -> bytes:
    """The event of a dead letter."""
    endpoint, method = target_of(entry)
    told = TaskDeadEvent(
        job=effect.job,
        endpoint=endpoint,
        method=method,
        reason=reason_of(effect),
        attempts=effect.attempts,
        error=failure_of(cause_of(effect), 4096),
        sequence=entry.seq,
        at=wall,
        trace=entry.submission.trace if entry.submission is not None else None,
    )
    return told.model_dump_json().encode()


# -- schedules --------------------------------------------------------------------------------------------------------


def schedule_of(
    names: Names, message: StreamMessage, submission: Submission, *, wall: float
) -> tuple[str, dict[str, str]]:
    """Subject and headers of the schedule that holds a message until its time. If it is published twice because an
    answer was lost, a cancelled one does not become active again."""
    dropped = {name.lower() for name in (headers.DELAY, headers.CRON, headers.JOB, headers.TIME_ZONE, headers.PAUSED)}
    given = {
        name: value
        for name, value in sendable(message.headers).items()
        if name.lower() not in dropped and (submission.cron is not None or name.lower() != headers.DEADLINE.lower())
    }
    given[headers.SCHEDULE_TARGET] = names.due_of(message.subject)
    given[headers.SCHEDULE_TTL] = DUE_KEPT
    given[headers.MESSAGE_ID] = origin_id(SCHEDULED, message)
    if submission.cron is not None:
        given[headers.SCHEDULE] = submission.cron
        given[headers.SCHEDULE_JOB] = submission.job
        if submission.time_zone:
            given[headers.SCHEDULE_TIME_ZONE] = submission.time_zone
    else:
        assert submission.not_before is not None
        given[headers.SCHEDULE] = f"@at {moment(submission.not_before)}"
        given[headers.JOB] = submission.job
        if submission.deadline_at is not None:
            # A duration stays a duration, since a replayed task starts it again; it counts from when the schedule
            # publishes: at its time, or now if storage did not take it before.
            left_s = max(0.0, submission.deadline_at - max(submission.not_before, wall))
            given[headers.DEADLINE] = number(left_s) if _is_duration(message) else moment(submission.deadline_at)
    return names.schedule(submission.job), given


def _is_duration(message: StreamMessage) -> bool:
    try:
        parse_duration(header_of(message.headers or {}, headers.DEADLINE) or "")
    except ValueError:
        return False
    return True


def sendable(given: Mapping[str, str] | None) -> dict[str, str]:
    """Headers of a message, without those of the server and those that cannot be sent."""
    return {
        name: value
        for name, value in (given or {}).items()
        if not name.lower().startswith("nats-") and headers.why_not_writable(name, value) is None
    }


def moment(wall: float) -> str:
    """RFC 3339, to the millisecond."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
