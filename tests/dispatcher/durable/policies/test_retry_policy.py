"""How often, how long, and when again."""

from __future__ import annotations

from gangline.dispatcher.durable.policies.retry_policy import (
    backoff_s,
    max_attempts,
    refused_s,
    result_ttl_s,
    timeout_s,
)
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.schemas.messages.submission import Submission
from gangline.schemas.records.routes import QueueRules
from gangline.schemas.records.workers import TaskPolicy

SETTINGS = DispatcherSettings(node="n")


def submission(**fields) -> Submission:
    return Submission(endpoint="e", method="m", job="j", **fields)


def test_the_task_goes_before_the_route_and_the_route_before_the_settings():
    rules = QueueRules(max_attempts=4, timeout_s=4.0, result_ttl_s=4.0)
    own = submission(max_attempts=2, timeout_s=2.0, result_ttl_s=0.0)
    assert (max_attempts(own, rules, SETTINGS), timeout_s(own, rules), result_ttl_s(own, rules, SETTINGS)) == (2, 2, 0)
    plain = submission()
    assert (max_attempts(plain, rules, SETTINGS), timeout_s(plain, rules)) == (4, 4.0)
    none = QueueRules()
    assert (max_attempts(plain, none, SETTINGS), timeout_s(plain, none)) == (SETTINGS.max_attempts, None)
    assert result_ttl_s(plain, none, SETTINGS) == SETTINGS.result_ttl_s


def test_what_is_not_idempotent_is_started_once_unless_somebody_says_otherwise():
    none, rules = QueueRules(), QueueRules(max_attempts=4)
    plain = submission()
    assert max_attempts(plain, none, SETTINGS, once=True) == 1
    assert max_attempts(plain, rules, SETTINGS, once=True) == 4
    assert max_attempts(submission(max_attempts=2), rules, SETTINGS, once=True) == 2
    assert max_attempts(submission(idempotent=True), none, SETTINGS, once=True) == SETTINGS.max_attempts
    assert max_attempts(submission(idempotent=False), none, SETTINGS) == 1
    assert max_attempts(submission(attempts=3), none, SETTINGS, once=True) == 4, "replayed: once more"


def test_what_the_task_declares_goes_after_submission_and_route_and_before_the_settings():
    declared = TaskPolicy(max_attempts=7, backoff_s=7.0, result_ttl_s=7.0)
    rules, own = QueueRules(max_attempts=4, backoff_s=4.0, result_ttl_s=4.0), submission(max_attempts=2, backoff_s=2.0)

    def decided(task: Submission, route: QueueRules) -> tuple[int, float, float]:
        return (
            max_attempts(task, route, SETTINGS, once=True, declared=declared),
            backoff_s(task, route, SETTINGS, attempts=1, draw=0.0, declared=declared),
            result_ttl_s(task, route, SETTINGS, declared=declared),
        )

    assert decided(submission(), QueueRules()) == (7, 7.0, 7.0)
    assert decided(submission(), rules) == (4, 4.0, 4.0)
    assert decided(own, rules) == (2, 2.0, 4.0)


def test_the_backoff_never_overflows_and_a_long_first_wait_is_kept():
    assert backoff_s(submission(), QueueRules(), SETTINGS, attempts=10_000, draw=0.0) == SETTINGS.backoff_max_s
    assert backoff_s(submission(backoff_s=900.0), QueueRules(), SETTINGS, attempts=5, draw=0.0) == 900.0
    assert refused_s(1) == 0.0
    assert refused_s(10_000) == 0.5
