"""How often a task is tried, how long each try may run, and how long to wait between. Of what the task, the endpoint's
route and the dispatcher's settings say, the first that says something counts."""

from __future__ import annotations

from typing import Final, TypeVar

from ....runtime.backoff import exponential_s
from ....schemas.messages.submission import Submission
from ....schemas.records.routes import QueueRules
from .settings import DispatcherSettings

REFUSED_FIRST_S: Final = 0.025
REFUSED_MOST_S: Final = 0.5

T = TypeVar("T")


def _first(default: T, task: T | None, route: T | None) -> T:
    if task is not None:
        return task
    return default if route is None else route


def max_attempts(task: Submission, rules: QueueRules, settings: DispatcherSettings, *, once: bool = False) -> int:
    """The number of the last; those before it was a dead letter are not counted.

    Args:
        once: the task is not declared idempotent. Where neither it nor the route says how often, it is started once.
    """
    if task.idempotent is not None:
        once = not task.idempotent
    return task.attempts + _first(1 if once else settings.max_attempts, task.max_attempts, rules.max_attempts)


def timeout_s(task: Submission, rules: QueueRules) -> float | None:
    """None: a try may run as long as it likes."""
    return task.timeout_s if task.timeout_s is not None else rules.timeout_s


def result_ttl_s(task: Submission, rules: QueueRules, settings: DispatcherSettings) -> float:
    return _first(settings.result_ttl_s, task.result_ttl_s, rules.result_ttl_s)


def backoff_s(
    task: Submission, rules: QueueRules, settings: DispatcherSettings, *, attempts: int, draw: float
) -> float:
    """Seconds between the failure of that attempt and the next: doubles each time, up to a most; of which jitter takes
    off up to half, so that what failed together does not come back together."""
    first = _first(settings.backoff_s, task.backoff_s, rules.backoff_s)
    most = _first(settings.backoff_max_s, None, rules.backoff_max_s)
    # A task that asks for a longer first wait than the most is given it.
    return exponential_s(first, max(first, most), attempts - task.attempts - 1) * (1.0 - draw / 2)


def refused_s(refusals: int) -> float:
    """Seconds until a task that could not be started is offered again: at once the first time."""
    return 0.0 if refusals <= 1 else exponential_s(REFUSED_FIRST_S, REFUSED_MOST_S, refusals - 2)
