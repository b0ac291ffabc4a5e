"""What every error means for a durable task, and when it is tried again."""

from __future__ import annotations

import inspect

from gangline.dispatcher.durable.policies.retry_policy import (
    NotStarted,
    Permanent,
    Retry,
    backoff_s,
    classify,
    refused_s,
)
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.schemas.errors import base as errors
from gangline.schemas.errors.base import GanglineError
from gangline.schemas.messages.submission import Submission
from gangline.schemas.records.jobs import DeadReason
from gangline.schemas.records.routes import QueueRules

PERMANENT = {
    "InvalidRequest": DeadReason.MALFORMED,
    "MalformedMessage": DeadReason.MALFORMED,
    "InvalidName": DeadReason.MALFORMED,
    "InvalidSettings": DeadReason.MALFORMED,
    "NotEntitled": DeadReason.MALFORMED,
    "InvalidArguments": DeadReason.INVALID_ARGUMENTS,
    "PayloadTooLarge": DeadReason.INVALID_ARGUMENTS,
    "UnknownMethod": DeadReason.UNKNOWN_METHOD,
    "InvalidResult": DeadReason.INVALID_RESULT,
    "InvalidSchedule": DeadReason.MALFORMED,
    "InvalidRoute": DeadReason.MALFORMED,
    "DoNotRetry": DeadReason.FAILED,
    "GangImpossible": DeadReason.MALFORMED,
    "ShardConflict": DeadReason.MALFORMED,
}
RETRIED = {
    "TaskFailed": DeadReason.FAILED,
    "TaskError": DeadReason.FAILED,
    "TaskCancelled": DeadReason.FAILED,
    "TaskCrashed": DeadReason.CRASHED,
    "WorkerLost": DeadReason.CRASHED,
    "ResultLost": DeadReason.CRASHED,
    "OutcomeUnknown": DeadReason.CRASHED,
    "StreamBroken": DeadReason.FAILED,
    "GanglineError": DeadReason.FAILED,
    "JobError": DeadReason.FAILED,
    "UnknownJob": DeadReason.FAILED,
    "JobDead": DeadReason.FAILED,
    "JobCancelled": DeadReason.FAILED,
    "ResultNotKept": DeadReason.FAILED,
    "GangFailed": DeadReason.FAILED,
    "GangRestarted": DeadReason.FAILED,
}
# fmt: off
NOT_STARTED = {
    "Unavailable", "NoWorkers", "Saturated", "QueueFull", "QuotaExceeded", "Draining", "Disconnected",
    "ServerUnreachable", "ServerUnsupported", "WorkerIdTaken", "WorkerUnhealthy", "LeaseError", "UnknownToken",
    "LeaseExpired", "LeaseBusy", "StaleEpoch", "SelectionUsed", "SelectionClosed", "WrongPool", "WrongClient",
    "ClosedError", "NoDispatcher", "NoGateway", "DeadlineExceeded", "NoCoordinator", "UnknownGang", "NotOwner",
    "StaleGeneration", "GangEnded", "GangNotFormed",
}
# fmt: on
CLASSES = {name: each for name, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, GanglineError)}


def test_every_error_of_the_wire_has_a_verdict():
    assert set(CLASSES) == set(PERMANENT) | set(RETRIED) | NOT_STARTED


def test_errors_have_the_verdict_of_the_table():
    for name, kind in CLASSES.items():
        match classify(kind("x")):
            case Permanent(reason):
                assert PERMANENT[name] is reason, name
            case Retry(reason, at_once):
                assert RETRIED[name] is reason, name
                assert at_once is (name == "WorkerLost"), name
            case NotStarted():
                assert name in NOT_STARTED, name


def test_what_may_have_started_counts_as_a_try():
    for name in NOT_STARTED:
        verdict = classify(CLASSES[name]("x", may_have_started=True))
        late = issubclass(CLASSES[name], errors.DeadlineExceeded)
        assert verdict == Retry(DeadReason.TIMED_OUT if late else DeadReason.FAILED), name


def test_what_says_that_nothing_started_does_not_count_as_a_try():
    for kind in (errors.WorkerLost, errors.ResultLost, errors.TaskCancelled, errors.TaskFailed, errors.StreamBroken):
        assert classify(kind("x", may_have_started=False)) == NotStarted(), kind


def test_a_task_that_says_so_is_not_tried_again():
    for details in ({"non_retryable": True, "type": "CardDeclined"}, {"type": "NonRetryable"}, {"type": "DoNotRetry"}):
        assert classify(errors.TaskFailed("x", details=details)) == Permanent(DeadReason.FAILED), details
    again = errors.TaskFailed("x", details={"non_retryable": False, "type": "DoNotRetryish"})
    assert classify(again) == Retry(DeadReason.FAILED)


def test_what_is_permanent_or_unknown_is_so_whether_or_not_it_started():
    for kind in (errors.GanglineError, errors.InvalidArguments, errors.UnknownMethod):
        assert classify(kind("x", may_have_started=False)) == classify(kind("x", may_have_started=True)), kind


def test_the_backoff_never_overflows_and_a_long_first_wait_is_kept():
    settings, task = DispatcherSettings(node="n"), Submission(endpoint="e", method="m", job="j")
    assert backoff_s(task, QueueRules(), settings, attempts=10_000, draw=0.0) == settings.backoff_max_s
    assert backoff_s(task._replace(backoff_s=900.0), QueueRules(), settings, attempts=5, draw=0.0) == 900.0
    assert (refused_s(1), refused_s(10_000)) == (0.0, 0.5)
