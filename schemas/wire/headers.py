"""Names of NATS headers that Gangline reads and writes."""

from __future__ import annotations

import functools
import re
from typing import Final


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
TRACESTATE: Final = "tracestate"

ERROR: Final = "Nats-Service-Error"
"""One line of text; its presence says that the body is an error (JSON or msgpack, see errors.to_wire)."""
ERROR_CODE: Final = "Nats-Service-Error-Code"
"""The error's `status`."""

TIMEOUT: Final = "Gangline-Timeout"
"""On a call: seconds (a decimal number) that the caller will wait. Travels as the deadline."""
KEY: Final = "Gangline-Key"
"""On a call: session or shard key; the same key goes to the same worker while it lives."""
MODEL: Final = "Gangline-Model"
"""On a call: model id for multiplexed workers."""
IDEMPOTENT: Final = "Gangline-Idempotent"
"""On a call: `true` lets the router send it again when the outcome of a try is unknown. On a durable task: `true` has
it tried again when it fails, `false` not; in place of what the task declares. `Gangline-Max-Attempts` goes before
both."""
WORKER: Final = "Gangline-Worker"
"""On an answer: `<pool>.<worker>` that ran it."""

MESSAGE_ID: Final = "Nats-Msg-Id"
"""On a durable task: idempotency key. The same again within the stream's window (two minutes) is the same task."""
SCHEDULE: Final = "Nats-Schedule"
"""The server's own: `@at <RFC 3339>`, `@every 5m`, or six fields of cron."""
SCHEDULE_TARGET: Final = "Nats-Schedule-Target"
SCHEDULER: Final = "Nats-Scheduler"
"""The server's own, on what a schedule published: the schedule's subject."""

JOB: Final = "Gangline-Job"
"""On a durable task: its id. Without one, the sequence in the stream, which the publish ack tells, is the id."""
PRIORITY: Final = "Gangline-Priority"
"""Higher goes first; 0 is usual."""
ORDERED: Final = "Gangline-Ordered"
"""`true`: one at a time and in the order of publication among those of the same `Gangline-Key`."""
DEADLINE: Final = "Gangline-Deadline"
"""How long after its publication (`90`, `5m`), or until when (RFC 3339), it may run. Then: dead letter, `expired`."""
DELAY: Final = "Gangline-Delay"
"""Not before so long after its publication."""
CRON: Final = "Gangline-Cron"
"""Again and again: as `Nats-Schedule`, for those who would rather not choose a subject for the schedule."""
MAX_ATTEMPTS: Final = "Gangline-Max-Attempts"
BACKOFF: Final = "Gangline-Backoff"
"""Wait before the second try; doubles with each."""
RESULT_TTL: Final = "Gangline-Result-TTL"
"""How long the result is kept; `0`: not at all."""
EVENTS: Final = "Gangline-Events"
"""`true`: tell each change of the job's state on `<ns>.job.<job>.state`."""
POOL: Final = "Gangline-Pool"
"""The pool to use, whatever the endpoint's route says."""

DEAD_REASON: Final = "Gangline-Dead-Reason"
"""On a dead letter: see jobs.DeadReason."""
DEAD_ERROR: Final = "Gangline-Dead-Error"
"""... the last error as JSON on one line: code, message, and of a task that raised, type and traceback."""
DEAD_TRIES: Final = "Gangline-Dead-Tries"
"""... the last ten tries that failed, as JSON on one line: a list of attempt, worker, started_at, ended_at, error."""
DEAD_AT: Final = "Gangline-Dead-At"
"""... when, RFC 3339."""
DEAD_OBJECT: Final = "Gangline-Dead-Object"
"""... where the body is, in the object store: it was so large that it did not fit beside these headers."""
ATTEMPTS: Final = "Gangline-Attempts"
"""... how often it was started. On a task that is submitted anew as the same job: its attempts are counted on from
there."""
SUBJECT: Final = "Gangline-Subject"
"""... the subject that it was published to."""
