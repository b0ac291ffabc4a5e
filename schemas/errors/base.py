"""The error tree.

::

    GanglineError
    ├── InvalidRequest                  the request itself is wrong; sending it again does not help
    │   ├── MalformedMessage            not msgpack / JSON, or not of the required form
    │   ├── InvalidName                 a pool, worker, endpoint or method name that cannot be a subject token
    │   ├── InvalidArguments            arguments do not fit the task's annotations
    │   ├── InvalidSettings             a setting is out of its bounds
    │   ├── UnknownMethod               the pool has no task with that name
    │   ├── GangImpossible              the registered workers could never hold it; says what is missing
    │   ├── ShardConflict               a coordinator was started with pools of another shard
    │   ├── NotEntitled                 the tenant has no right to that, for example to that priority
    │   ├── InvalidSchedule             the server does not understand the schedule
    │   ├── InvalidRoute                the route is invalid; says which field and why
    │   └── PayloadTooLarge             larger than the server's max_payload; nothing was sent
    ├── Unavailable                     nothing started; the same request may succeed later
    │   ├── NoWorkers                   no worker serves that pool
    │   ├── Saturated                   every worker stayed full for all attempts, or for too long
    │   ├── QueueFull                   too many requests already wait, for the pool or lease, or for results
    │   ├── QuotaExceeded               the tenant uses as much as it may; says how much that is
    │   ├── Draining                    the worker (or this router) is shutting down
    │   ├── Disconnected                no connection to a nats-server right now
    │   ├── ServerUnreachable           could not connect at all
    │   ├── ServerUnsupported           the server is too old or lacks JetStream
    │   ├── NoCoordinator               no coordinator leads right now: ask again
    │   ├── NoGateway                   no gateway answers calls right now
    │   ├── NoDispatcher                no dispatcher owns the queue of that endpoint right now
    │   ├── WorkerIdTaken               another live worker has that id
    │   └── WorkerUnhealthy             a health check of the worker failed, so it shut down
    ├── LeaseError                      the slot is not held; nothing started
    │   ├── UnknownToken                never granted, already released, or already used up
    │   ├── LeaseExpired                the lease's time to live passed
    │   ├── LeaseBusy                   all slots of a multi-use lease are in use
    │   ├── StaleEpoch                  the worker restarted (or was frozen) since
    │   ├── SelectionUsed               a selection can be dispatched only once
    │   ├── SelectionClosed             dispatched after its `async with` block ended
    │   ├── WrongPool                   the selection belongs to another pool
    │   ├── WrongClient                 the selection was made by another client
    │   ├── UnknownGang                 never requested here, or ended too long ago
    │   ├── NotOwner                    the owner token is wrong
    │   ├── StaleGeneration             the gang was restarted since
    │   └── GangEnded                   it ended; carries the reason
    ├── DeadlineExceeded                the caller's deadline passed
    │   └── GangNotFormed               not formed by its deadline; says why
    ├── OutcomeUnknown                  the task may have run; it is not marked idempotent, so it was not retried
    │   ├── WorkerLost                  its worker was lost
    │   └── ResultLost                  it finished, but the answer was lost and is no longer kept
    ├── TaskError                       the task started and failed
    │   ├── TaskFailed                  it raised; carries type, message and traceback
    │   ├── TaskCrashed                 its process died (signal, segfault, os._exit)
    │   ├── TaskCancelled               it was cancelled
    │   ├── InvalidResult               its result cannot be serialized
    │   └── GangFailed                  a member failed; carries generation, rank and reason
    │       └── GangRestarted           the gang was torn down and forms again as the next generation
    ├── JobError
    │   ├── UnknownJob                  never submitted here, or ended so long ago that its result is no longer kept
    │   ├── JobDead                     it became a dead letter; has reason, attempts and the last error
    │   ├── JobCancelled                it was cancelled
    │   └── ResultNotKept               it was submitted with `result_ttl_s=0`
    ├── StreamBroken                    items of a streamed result were lost
    └── ClosedError                     you already closed this client, router or worker

A task raises DoNotRetry to say that another attempt cannot help. Callers get it as TaskFailed.

The text of every error says what to do next. Errors have `code` (stable, for programs), `status` (the number in
`Nats-Service-Error-Code`) and `may_have_started` (whether the task's side effects may exist).
"""

from __future__ import annotations

from typing import Any, ClassVar


class GanglineError(Exception):
    """Base class of all errors of this package.

    Attributes:
        code: stable machine-readable name, the same on the wire.
        status: HTTP-like number, sent as `Nats-Service-Error-Code`.
        may_have_started: False: certainly no part of the task ran.
        details: further facts (ids, sizes, traceback), JSON-compatible.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    may_have_started: bool = False

    def __init__(
        self,
        message: str = "",
        *,
        details: dict[str, Any] | None = None,
        may_have_started: bool | None = None,
    ) -> None:
        super().__init__(message or type(self).__name__)
        self.message = message or type(self).__name__
        self.details: dict[str, Any] = details or {}
        if may_have_started is not None:
            self.may_have_started = may_have_started

    def to_wire(self) -> dict[str, Any]:
        """The JSON body of an answer with `Nats-Service-Error`."""
        body: dict[str, Any] = {
            "code": self.code,
            "message": self.message,
            "may_have_started": self.may_have_started,
        }
        if self.details:
            body["details"] = self.details
        return body


class InvalidRequest(GanglineError):
    code = "invalid_request"
    status = 400


class MalformedMessage(InvalidRequest):
    code = "malformed_message"


class InvalidName(InvalidRequest):
    code = "invalid_name"


class InvalidArguments(InvalidRequest):
    code = "invalid_arguments"
    status = 422


class InvalidSettings(InvalidRequest):
    code = "invalid_settings"


class NotEntitled(InvalidRequest):
    """`details`: `tenant`, `quota`, and `limit`, what the tenant may ask for at most."""

    code = "not_entitled"
    status = 403


class UnknownMethod(InvalidRequest):
    code = "unknown_method"
    status = 404


class PayloadTooLarge(InvalidRequest):
    code = "payload_too_large"
    status = 413


class Unavailable(GanglineError):
    code = "unavailable"
    status = 503


class NoWorkers(Unavailable):
    code = "no_workers"


class Saturated(Unavailable):
    code = "saturated"
    status = 429


class QueueFull(Unavailable):
    code = "queue_full"
    status = 429


class QuotaExceeded(Unavailable):
    """`details`: `tenant`, `quota`, `limit`, `used`."""

    code = "quota_exceeded"
    status = 429


class Draining(Unavailable):
    code = "draining"


class Disconnected(Unavailable):
    code = "disconnected"


class ServerUnreachable(Unavailable):
    code = "server_unreachable"


class ServerUnsupported(Unavailable):
    code = "server_unsupported"


class WorkerIdTaken(Unavailable):
    code = "worker_id_taken"
    status = 409


class WorkerUnhealthy(Unavailable):
    code = "worker_unhealthy"


class LeaseError(GanglineError):
    code = "lease_error"
    status = 409


class UnknownToken(LeaseError):
    code = "unknown_token"
    status = 404


class LeaseExpired(LeaseError):
    code = "lease_expired"
    status = 410


class LeaseBusy(LeaseError):
    code = "lease_busy"
    status = 429


class StaleEpoch(LeaseError):
    code = "stale_epoch"


class SelectionUsed(LeaseError):
    code = "selection_used"


class SelectionClosed(LeaseError):
    code = "selection_closed"


class WrongPool(LeaseError):
    code = "wrong_pool"


class WrongClient(LeaseError):
    code = "wrong_client"


class DeadlineExceeded(GanglineError):
    code = "deadline_exceeded"
    status = 504


class OutcomeUnknown(GanglineError):
    code = "outcome_unknown"
    status = 502
    may_have_started = True


class WorkerLost(OutcomeUnknown):
    code = "worker_lost"


class ResultLost(OutcomeUnknown):
    code = "result_lost"


class TaskError(GanglineError):
    code = "task_error"
    status = 500
    may_have_started = True


class TaskFailed(TaskError):
    """The task raised an exception. `details`: `type`, `message`, `traceback`, and `non_retryable` (true) if it
    raised DoNotRetry, or an exception after which its declaration (`retry_on`, `no_retry_on`) allows no retry."""

    code = "task_failed"

    @property
    def remote_type(self) -> str:
        """Name of the exception class that the task raised, for example `ValueError`."""
        return str(self.details.get("type", ""))

    @property
    def retryable(self) -> bool:
        """False: the task raised DoNotRetry, or an exception after which its declaration allows no retry."""
        # NonRetryable: the earlier name, which workers of earlier versions send.
        return not (self.details.get("non_retryable") is True or self.remote_type in ("DoNotRetry", "NonRetryable"))

    @property
    def remote_traceback(self) -> str:
        """The traceback as the worker formatted it; empty if the worker is configured not to send it."""
        return str(self.details.get("traceback", ""))


class DoNotRetry(TaskFailed):
    """A task raises it to say that another attempt cannot help: a durable task becomes a dead letter at once,
    even if it has attempts left. Subclasses count as well. Callers get it as TaskFailed, with `non_retryable` in
    `details`."""

    @property
    def retryable(self) -> bool:
        return False


class TaskCrashed(TaskError):
    code = "task_crashed"


class TaskCancelled(TaskError):
    code = "task_cancelled"
    status = 499


class InvalidResult(TaskError):
    code = "invalid_result"


class StreamBroken(GanglineError):
    code = "stream_broken"
    status = 502
    may_have_started = True


class ClosedError(GanglineError):
    code = "closed"
    status = 503


class GangImpossible(InvalidRequest):
    """`details["lacks"]`: a list of what is missing, each a sentence."""

    code = "gang_impossible"
    status = 422


class ShardConflict(InvalidSettings):
    code = "shard_conflict"
    status = 409


class NoCoordinator(Unavailable):
    code = "no_coordinator"


class UnknownGang(LeaseError):
    code = "unknown_gang"
    status = 404


class NotOwner(LeaseError):
    code = "not_owner"
    status = 403


class StaleGeneration(LeaseError):
    """`details["generation"]`: the current one."""

    code = "stale_generation"


class GangEnded(LeaseError):
    """`details`: `reason`, `generation`, `rank` (None if no member failed)."""

    code = "gang_ended"
    status = 410


class GangNotFormed(DeadlineExceeded):
    """`details["lacks"]`: a list of what was missing at the deadline, each a sentence."""

    code = "gang_not_formed"


class GangFailed(TaskError):
    """`details`: `generation`, `rank` (None if no member failed), `reason`. At an owner, `__cause__` is the member's
    own error, if it sent one."""

    code = "gang_failed"

    results: dict[int, Any]
    """At an owner: the results, by rank, of members that had finished."""

    def __init__(
        self, message: str = "", *, details: dict[str, Any] | None = None, may_have_started: bool | None = None
    ) -> None:
        super().__init__(message, details=details, may_have_started=may_have_started)
        self.results = {}

    @property
    def generation(self) -> int:
        return int(self.details.get("generation", 0))

    @property
    def rank(self) -> int | None:
        rank = self.details.get("rank")
        return rank if isinstance(rank, int) else None

    @property
    def reason(self) -> str:
        return str(self.details.get("reason", ""))


class GangRestarted(GangFailed):
    """The gang continues as its next generation; what was running in this one is lost."""

    code = "gang_restarted"


class InvalidSchedule(InvalidRequest):
    code = "invalid_schedule"


class InvalidRoute(InvalidRequest):
    """`details["field"]` names the invalid field."""

    code = "invalid_route"
    status = 422


class NoGateway(Unavailable):
    code = "no_gateway"


class NoDispatcher(Unavailable):
    code = "no_dispatcher"


class JobError(GanglineError):
    """Base class of errors about one job; its id is `details["job"]`."""

    code = "job_error"
    status = 409


class UnknownJob(JobError):
    code = "unknown_job"
    status = 404


class JobDead(JobError):
    """`details`: `job`, `reason` (see jobs.DeadReason), `attempts`, `error` (code, message, details of the last)."""

    code = "job_dead"
    status = 500
    may_have_started = True

    @property
    def reason(self) -> str:
        return str(self.details.get("reason", ""))


class JobCancelled(JobError):
    code = "job_cancelled"
    status = 499
    may_have_started = True


class ResultNotKept(JobError):
    code = "result_not_kept"


def _by_code(root: type[GanglineError]) -> dict[str, type[GanglineError]]:
    # A class with its parent's code exists only locally; on the wire it becomes the parent.
    found = {root.code: root} if "code" in vars(root) else {}
    for child in root.__subclasses__():
        found.update(_by_code(child))
    return found


_classes = _by_code(GanglineError)


def _show_public_name(root: type[GanglineError]) -> None:
    # Tracebacks name the module to import from.
    root.__module__ = f"{__name__.partition('.')[0]}.errors"
    for child in root.__subclasses__():
        _show_public_name(child)


_show_public_name(GanglineError)


def error_from_wire(code: str, message: str, details: dict[str, Any] | None, may_have_started: bool) -> GanglineError:
    """Rebuild an error from another process's answer; an unknown code becomes the base class."""
    if code not in _classes:
        # Packages above this one add their own classes when they are imported.
        _classes.update(_by_code(GanglineError))
    error = _classes.get(code, GanglineError)(message, details=details, may_have_started=may_have_started)
    if isinstance(error, TaskFailed) and error.remote_traceback:
        error.add_note(f"At the worker:\n{error.remote_traceback.rstrip()}")
    return error
