"""The error tree.

::

    GanglineError
    ├── InvalidRequest                  the request itself is wrong; sending it again cannot help
    │   ├── MalformedMessage            not msgpack / JSON, or not the shape the wire asks for
    │   ├── InvalidName                 a pool, worker, endpoint or method name that cannot be a subject token
    │   ├── InvalidArguments            arguments do not fit the task's annotations
    │   ├── InvalidSettings             a setting is out of its bounds
    │   ├── UnknownMethod               the pool has no task of that name
    │   └── PayloadTooLarge             over the server's max_payload; nothing was sent
    ├── Unavailable                     nothing started; the same request may succeed later
    │   ├── NoWorkers                   no worker serves that pool
    │   ├── Saturated                   every worker stayed full for the attempts or the time allowed
    │   ├── QueueFull                   this router already queues `max_queued` requests for the pool
    │   ├── Draining                    the worker (or this router) is leaving
    │   ├── Disconnected                no connection to a nats-server right now
    │   ├── ServerUnreachable           could not connect at all
    │   ├── ServerUnsupported           the server is too old or lacks JetStream
    │   ├── WorkerIdTaken               another live worker has that id
    │   └── WorkerUnhealthy             a health check of the worker failed, so it has left
    ├── LeaseError                      the right to the slot is not there; nothing started
    │   ├── UnknownToken                never granted, already released, or already used up
    │   ├── LeaseExpired                the lease's time ran out
    │   ├── LeaseBusy                   all slots of a multi-use lease are in use
    │   ├── StaleEpoch                  the worker restarted (or was frozen) since
    │   ├── SelectionUsed               a selection dispatches once
    │   ├── SelectionClosed             dispatched after its `async with` block ended
    │   ├── WrongPool                   the selection belongs to another pool
    │   └── WrongClient                 the selection was made by another client
    ├── DeadlineExceeded                the caller's deadline passed
    ├── OutcomeUnknown                  the task may have run; it is not marked idempotent, so it was not retried
    │   ├── WorkerLost                  its worker vanished
    │   └── ResultLost                  it finished, but the answer was lost and is no longer kept
    ├── TaskError                       the task started and did not succeed
    │   ├── TaskFailed                  it raised; carries type, message and traceback
    │   ├── TaskCrashed                 its process died (signal, segfault, os._exit)
    │   ├── TaskCancelled               it was cancelled
    │   └── InvalidResult               its result fits no format of the wire
    ├── StreamBroken                    items of a streamed result were lost
    └── ClosedError                     you already closed this client, router or worker

A task that raises NonRetryable (of TaskFailed, as which it reaches callers) says that trying it again cannot help.

Every error says what to do next in its text, and carries `code` (stable, for machines), `status` (the number in
`Nats-Service-Error-Code`) and `may_have_started` (whether the task's side effects may exist).
"""

from __future__ import annotations

from typing import Any, ClassVar


class GanglineError(Exception):
    """Base of all errors of this package.

    Attributes:
        code: stable machine-readable name, the same on the wire.
        status: HTTP-like number, sent as `Nats-Service-Error-Code`.
        may_have_started: False means certainly nothing of the task ran.
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
        """The JSON body that travels beside `Nats-Service-Error`."""
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
    """The task raised. `details`: `type`, `message`, `traceback`, and `non_retryable` (true) if it said so."""

    code = "task_failed"

    @property
    def remote_type(self) -> str:
        """Name of the exception class raised by the task, for example `ValueError`."""
        return str(self.details.get("type", ""))

    @property
    def retryable(self) -> bool:
        """False: the task raised NonRetryable."""
        return not (self.details.get("non_retryable") is True or self.remote_type == "NonRetryable")

    @property
    def remote_traceback(self) -> str:
        """The worker's formatted traceback; empty when the worker was told not to send it."""
        return str(self.details.get("traceback", ""))


class NonRetryable(TaskFailed):
    """Raised by a task to say that running it again cannot help: a durable task is dead at once, whatever attempts it
    has left. Subclasses count as well. It reaches callers as TaskFailed, whose `details` then have `non_retryable`."""

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


def _by_code(root: type[GanglineError]) -> dict[str, type[GanglineError]]:
    # A class that has its parent's code is a detail of where it is raised: it arrives as the parent.
    found = {root.code: root} if "code" in vars(root) else {}
    for child in root.__subclasses__():
        found.update(_by_code(child))
    return found


_classes = _by_code(GanglineError)


def error_from_wire(code: str, message: str, details: dict[str, Any] | None, may_have_started: bool) -> GanglineError:
    """Rebuild an error that another process answered; an unknown code becomes the base class."""
    if code not in _classes:
        # Folders above this one add classes of their own when they are imported.
        _classes.update(_by_code(GanglineError))
    error = _classes.get(code, GanglineError)(message, details=details, may_have_started=may_have_started)
    if isinstance(error, TaskFailed) and error.remote_traceback:
        error.add_note(f"At the worker:\n{error.remote_traceback.rstrip()}")
    return error
