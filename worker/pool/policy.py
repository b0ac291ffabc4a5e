"""What the author of a task declares about its executions: limits, retries, a schedule."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Final

from ...schemas.errors.base import DoNotRetry, InvalidSchedule, InvalidSettings
from ...schemas.limits import MAX_ATTEMPTS, MAX_BACKOFF_S, MAX_DEADLINE_S, MAX_RESULT_TTL_S, MAX_SLOTS
from ...schemas.records.workers import MAX_PRIORITY, TaskPolicy
from ...schemas.schedules import check_schedule
from ...schemas.text import plain

Failures = type[BaseException] | str | Collection[type[BaseException] | str]
"""Exception classes, or their names: `ValueError` or `httpx.HTTPStatusError`. Subclasses count as well."""

RATE_MAX: Final = 1_000_000.0


def declared_policy(
    where: str,
    *,
    timeout_s: float | None = None,
    max_attempts: int | None = None,
    backoff_s: float | None = None,
    retry_on: Failures | None = None,
    no_retry_on: Failures | None = None,
    priority: int | None = None,
    result_ttl_s: float | None = None,
    max_running: int | None = None,
    per_key: int | None = None,
    rate_per_s: float | None = None,
    cron: str | None = None,
    time_zone: str | None = None,
) -> TaskPolicy:
    """
    Args:
        where: the task's full name, for errors.

    Raises:
        InvalidSettings: names the argument and its bounds.
    """
    for name, number, low, high in (
        ("max_attempts", max_attempts, 1, MAX_ATTEMPTS),
        ("priority", priority, -MAX_PRIORITY, MAX_PRIORITY),
        ("max_running", max_running, 1, MAX_SLOTS),
        ("per_key", per_key, 1, MAX_SLOTS),
    ):
        if number is not None and (type(number) is not int or not low <= number <= high):
            raise InvalidSettings(f"{where}: {name} must be a whole number from {low} to {high}, not {number!r}")
    for name, value, most, zero in (
        ("timeout_s", timeout_s, MAX_DEADLINE_S, False),
        ("backoff_s", backoff_s, MAX_BACKOFF_S, True),
        ("result_ttl_s", result_ttl_s, MAX_RESULT_TTL_S, True),
        ("rate_per_s", rate_per_s, RATE_MAX, False),
    ):
        if value is not None and not (_is_number(value) and (value >= 0 if zero else value > 0) and value <= most):
            above = "from 0" if zero else "above 0"
            raise InvalidSettings(f"{where}: {name} must be {above} and at most {plain(most)}, not {value!r}")
    if cron is None and time_zone is not None:
        raise InvalidSettings(f"{where}: time_zone is {time_zone!r}, but there is no cron: give both, or neither")
    if cron is not None:
        if not isinstance(cron, str):
            raise InvalidSettings(f"{where}: cron is a schedule such as '0 3 * * *', not {cron!r}")
        try:
            cron = check_schedule(cron, time_zone or "")
        except InvalidSchedule as error:
            raise InvalidSettings(f"{where}: cron: {error.message}") from error
        if cron.startswith("@at"):
            raise InvalidSettings(f"{where}: cron: {cron!r} happens once: submit the task with at= instead")
    return TaskPolicy(
        timeout_s=timeout_s,
        max_attempts=max_attempts,
        backoff_s=backoff_s,
        retry_on=None if retry_on is None else _names(retry_on, f"{where}: retry_on"),
        no_retry_on=() if no_retry_on is None else _names(no_retry_on, f"{where}: no_retry_on"),
        priority=priority,
        result_ttl_s=result_ttl_s,
        max_running=max_running,
        per_key=per_key,
        rate_per_s=rate_per_s,
        cron=cron,
        time_zone=time_zone,
    )


def may_retry(error: BaseException, policy: TaskPolicy) -> bool:
    """Whether another attempt may help after the task raised this."""
    if isinstance(error, DoNotRetry):
        return False
    if policy.retry_on is None and not policy.no_retry_on:
        return True
    names = {name for kind in type(error).__mro__ for name in (kind.__qualname__, _full_name(kind))}
    if not names.isdisjoint(policy.no_retry_on):
        return False
    return policy.retry_on is None or not names.isdisjoint(policy.retry_on)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _full_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _names(given: Failures, what: str) -> tuple[str, ...]:
    several: Collection[Any] = (given,) if isinstance(given, str | type) else given
    if not isinstance(several, Collection):
        raise InvalidSettings(f"{what} takes exception classes or their names, not {given!r}")
    found: list[str] = []
    for each in several:
        if isinstance(each, type) and issubclass(each, BaseException):
            found.append(_full_name(each))
        elif isinstance(each, str) and each and all(part.isidentifier() for part in each.split(".")):
            found.append(each)
        else:
            raise InvalidSettings(f"{what} takes exception classes or their names, not {each!r}")
    return tuple(found)
