"""What a task declares about its executions."""

from __future__ import annotations

from typing import Any

import pytest

import gangline
from gangline.schemas.errors.base import DoNotRetry, InvalidSettings
from gangline.schemas.records.workers import MethodInfo, TaskPolicy
from gangline.worker.pool.policy import may_retry
from gangline.worker.pool.pool import Pool

from ...support.rows import in_rows


class Flaky(ConnectionError):
    """A user's own."""


def declared(**policy: Any) -> TaskPolicy:
    pool = Pool("p", slots=4)

    @pool.task(**policy)
    async def work() -> None: ...

    return pool.find("work").policy


def test_a_declaration_is_in_the_registration_and_is_read_back():
    pool = Pool("p")

    @pool.task(max_attempts=3, backoff_s=2, timeout_s=30, retry_on=(OSError, "Flaky"), no_retry_on=KeyError, per_key=1)
    async def work() -> None: ...

    info = pool.find("work").info()
    assert info.policy == TaskPolicy(
        max_attempts=3, backoff_s=2, timeout_s=30, retry_on=("OSError", "Flaky"), no_retry_on=("KeyError",), per_key=1
    )
    assert MethodInfo.model_validate_json(info.model_dump_json()) == info
    assert MethodInfo.model_validate({"slots": 1}).policy is None, "a worker of an earlier version"


@in_rows(
    "given, told",
    [
        ({"max_attempts": 0}, "p.work: max_attempts must be a whole number from 1 to 10000, not 0"),
        ({"max_attempts": 1.5}, "max_attempts must be a whole number"),
        ({"timeout_s": "5"}, "timeout_s must be above 0 and at most 2592000, not '5'"),
        ({"timeout_s": 0}, "timeout_s must be above 0"),
        ({"backoff_s": -1}, "backoff_s must be from 0 and at most 86400, not -1"),
        ({"rate_per_s": float("inf")}, "rate_per_s must be above 0"),
        ({"max_running": True}, "max_running must be a whole number"),
        ({"cron": "now and then"}, "p.work: cron: "),
        ({"cron": "@at 2030-01-01T00:00:00Z"}, "submit the task with at= instead"),
        ({"time_zone": "Europe/Berlin"}, "time_zone is 'Europe/Berlin', but there is no cron"),
        ({"retry_on": 5}, "retry_on takes exception classes or their names, not 5"),
        ({"no_retry_on": [int]}, "no_retry_on takes exception classes or their names, not <class 'int'>"),
        ({"retry_on": "not a name"}, "retry_on takes exception classes or their names"),
    ],
)
def test_a_wrong_declaration_says_what_is_wrong_with_it(given, told):
    with pytest.raises(InvalidSettings, match=told.replace("(", r"\(")):
        declared(**given)


def test_a_task_with_a_schedule_needs_no_arguments():
    pool = Pool("p")

    @pool.task(cron="0 3 * * *", time_zone="Europe/Berlin")
    async def nightly(day: str) -> None: ...

    assert pool.find("nightly").policy.cron == "0 0 3 * * *"
    with pytest.raises(InvalidSettings, match=r"p.nightly has cron=.*give each parameter a default.*day"):
        pool.find("nightly").prepare()


def test_the_most_specific_rule_decides_whether_a_failure_may_be_retried():
    anything, nothing = declared(), declared(retry_on=())
    assert may_retry(ValueError(), anything)
    assert not may_retry(ValueError(), nothing)
    assert not may_retry(DoNotRetry("no"), declared(retry_on=Exception))
    network = declared(retry_on=OSError, no_retry_on=(PermissionError, FileNotFoundError))
    assert may_retry(ConnectionResetError(), network), "a subclass"
    assert may_retry(Flaky(), network)
    assert not may_retry(PermissionError(), network), "what must not be retried goes first"
    assert not may_retry(ValueError(), network)


@in_rows("name", ["Flaky", f"{__name__}.Flaky", "ConnectionError", "OSError"])
def test_an_exception_can_be_named_by_its_name_or_with_its_module(name):
    assert may_retry(Flaky(), declared(retry_on=name))
    assert not may_retry(ValueError(), declared(retry_on=name))


def test_the_earlier_name_of_do_not_retry_still_works():
    with pytest.warns(DeprecationWarning, match="gangline.NonRetryable is now DoNotRetry"):
        assert gangline.NonRetryable is gangline.DoNotRetry  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match="gangline.errors.NonRetryable is now DoNotRetry"):
        assert gangline.errors.NonRetryable is gangline.DoNotRetry  # type: ignore[attr-defined]
