"""Errors of durable tasks and routes, in addition to those of schemas.errors.

::

    InvalidRequest
    ├── InvalidSchedule     the server does not understand the schedule
    └── InvalidRoute        the route is invalid; says which field and why
    Unavailable
    └── NoDispatcher        no dispatcher owns the queue of that endpoint right now
    JobError
    ├── UnknownJob          never submitted here, or ended so long ago that its result is no longer kept
    ├── JobDead             it became a dead letter; has reason, attempts and the last error
    ├── JobCancelled        it was cancelled
    └── ResultNotKept       it was submitted with `result_ttl_s=0`
"""

from __future__ import annotations

from .base import GanglineError, InvalidRequest, Unavailable


class InvalidSchedule(InvalidRequest):
    code = "invalid_schedule"


class InvalidRoute(InvalidRequest):
    """`details["field"]` names the invalid field."""

    code = "invalid_route"
    status = 422


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
