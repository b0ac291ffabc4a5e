"""Names of NATS headers that Gangline reads and writes."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Final

from .. import limits


@functools.lru_cache(maxsize=1000)  # names repeat
def _is_name(name: str) -> bool:
    return re.fullmatch(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+", name) is not None


def why_not_writable(name: str, value: str) -> str | None:
    """Why a header cannot be sent; None: it can. nats-server itself delivers nearly anything that a client sends."""
    if not _is_name(name):
        return f"header name {name!r} is not allowed: use letters, digits and '-'"
    if "\n" in value or "\r" in value:
        return f"header {name!r} has a line break in its value: encode it first"
    return None


TRACEPARENT: Final = "traceparent"

ERROR: Final = "Nats-Service-Error"
"""One line of text; if present, the body is an error (JSON or msgpack, see errors.to_wire)."""
ERROR_CODE: Final = "Nats-Service-Error-Code"
"""The error's `status`."""

ACCEPT: Final = "Accept"
"""On a durable task in JSON: with `application/msgpack` its result and its items are kept as msgpack if JSON would lose
something of them."""

TIMEOUT: Final = "Gangline-Timeout"
"""On a call: how long the caller waits, in seconds (a decimal number). It is sent on as the deadline."""
KEY: Final = "Gangline-Key"
"""On a call: session or shard key; the same key goes to the same worker while that worker lives."""
MODEL: Final = "Gangline-Model"
"""On a call: model id for multiplexed workers."""
IDEMPOTENT: Final = "Gangline-Idempotent"
"""On a call: with `true` the router may send it again when the outcome of an attempt is unknown. On a durable task:
`true` allows retries after a failure, `false` does not. It overrides the task's declaration; `Gangline-Max-Attempts`
overrides both."""
ARGUMENTS: Final = "Gangline-Arguments"
"""On a call: with `both`, the body is an array of the positional arguments and the object of keyword arguments."""
BOTH: Final = "both"
STREAM: Final = "Gangline-Stream"
"""On a call: `true` or a number. The task yields items; each answer has at most that many of them (`true`: 64), and the
subject for the next ones."""
WORKER: Final = "Gangline-Worker"
"""On an answer: `<pool>.<worker>` that ran it."""

REQUEST_INFO: Final = "Nats-Request-Info"
"""Set by the server, whatever the client wrote there, on requests that come from another account: JSON with its name as
`acc`; by JWT, an account's name is its public key."""


def account_of(given: Mapping[str, str] | None) -> str:
    """The account that a request came from; empty: the reader's own account."""
    text = None if given is None else given.get(REQUEST_INFO)
    if text is None:
        return ""
    return _known_account_in(text) if len(text) <= limits.MAX_REQUEST_INFO_CHARS else _account_in(text)


def _account_in(text: str) -> str:
    try:
        account = json.loads(text)["acc"]
    except (ValueError, TypeError, KeyError, RecursionError):  # written by a client of our own account
        return ""
    return account[: limits.MAX_NAME_CHARS] if isinstance(account, str) else ""


_known_account_in: Final = functools.lru_cache(maxsize=1024)(_account_in)


MESSAGE_ID: Final = "Nats-Msg-Id"
"""On a durable task: idempotency key. Within two minutes (the stream's window), a message with the same key is
dropped."""
SCHEDULE: Final = "Nats-Schedule"
"""Defined by the server: `@at <RFC 3339>`, `@every 5m`, or a six-field cron expression."""
SCHEDULE_TIME_ZONE: Final = "Nats-Schedule-Time-Zone"
"""Time zone of a cron expression; without, UTC."""
SCHEDULE_TARGET: Final = "Nats-Schedule-Target"
SCHEDULE_TTL: Final = "Nats-Schedule-TTL"
"""How long the message that a schedule publishes is kept."""
ROLLUP: Final = "Nats-Rollup"
"""`sub`: the message replaces all others of its subject."""
EXPECTED_SUBJECT_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
"""Store it only if this is the sequence of the newest message of its subject; 0: if there is none."""
SCHEDULER: Final = "Nats-Scheduler"
"""Set by the server on messages that a schedule published: the schedule's subject."""

SOURCE: Final = "Nats-Stream-Source"
"""Set by the server on messages that a stream has taken from another one: `<stream> <sequence> ...`."""


def copied_from(given: Mapping[str, str] | None, stream: str) -> int | None:
    """The sequence that a message had in that stream; None: it was not copied from there."""
    if given is None or SOURCE not in given:
        return None
    source, _, rest = given[SOURCE].partition(" ")
    sequence = rest.partition(" ")[0]
    return int(sequence) if source == stream and sequence.isdecimal() else None


JOB: Final = "Gangline-Job"
"""On a durable task: its id. Default: its sequence in the stream, which the publish ack returns."""
FIRST: Final = "Gangline-First"
"""On a durable task: `true` says that no message with this job's id was sent before, so that dispatchers need not look
for its result. A message that is sent again must not have it."""
PRIORITY: Final = "Gangline-Priority"
"""Higher goes first; default 0."""
ORDERED: Final = "Gangline-Ordered"
"""`true`: tasks with the same `Gangline-Key` run one at a time, in order of publication."""
DEADLINE: Final = "Gangline-Deadline"
"""Until when it may run: a duration after its publication (`90`, `5m`), or a time (RFC 3339). After that it becomes
a dead letter, `expired`."""
DELAY: Final = "Gangline-Delay"
"""Earliest start: a duration after its publication, or a time."""
CRON: Final = "Gangline-Cron"
"""Recurring: as `Nats-Schedule`, or five fields of cron, but without having to choose a subject for the schedule."""
TIME_ZONE: Final = "Gangline-Time-Zone"
"""Time zone of `Gangline-Cron`, such as `Europe/Berlin`; without, UTC."""
SCHEDULE_NAME: Final = "Gangline-Schedule-Name"
"""On a recurring task: what people call its schedule."""
SCHEDULE_JOB: Final = "Gangline-Schedule"
"""On a schedule, and on each of its runs: the id of the schedule. Set by the dispatcher."""
PAUSED: Final = "Gangline-Paused"
"""On a schedule that an operator has paused: since when, RFC 3339. It has `Gangline-Cron`, and no `Nats-Schedule`."""
MAX_ATTEMPTS: Final = "Gangline-Max-Attempts"
BACKOFF: Final = "Gangline-Backoff"
"""Delay before the second attempt; doubles with each further one."""
RESULT_TTL: Final = "Gangline-Result-TTL"
"""How long the result is kept; `0`: it is not stored."""
EVENTS: Final = "Gangline-Events"
"""`true`: publish each change of the job's state on `<ns>.job.<job>.state`."""
POOL: Final = "Gangline-Pool"
"""Use this pool of the endpoint's route, whatever the weights."""

DEAD_REASON: Final = "Gangline-Dead-Reason"
"""On a dead letter: see jobs.DeadReason."""
DEAD_ERROR: Final = "Gangline-Dead-Error"
"""On a dead letter: the last error as JSON on one line: code, message, and, if the task raised, type and traceback."""
DEAD_TRIES: Final = "Gangline-Dead-Tries"
"""On a dead letter: the last ten failed attempts as JSON on one line: a list of attempt, worker, started_at,
ended_at, error."""
DEAD_AT: Final = "Gangline-Dead-At"
"""On a dead letter: when it died, RFC 3339."""
DEAD_OBJECT: Final = "Gangline-Dead-Object"
"""On a dead letter: the object that holds the body, if it did not fit beside these headers."""
ATTEMPTS: Final = "Gangline-Attempts"
"""On a dead letter: the number of attempts. On a task that is submitted again as the same job: its attempt numbers
continue from there."""
SUBJECT: Final = "Gangline-Subject"
"""On a dead letter: its original subject."""


def sent_again(fields: Mapping[str, str]) -> dict[str, str]:
    """The headers of a message that may have been stored before."""
    return {name: text for name, text in fields.items() if name != FIRST}
