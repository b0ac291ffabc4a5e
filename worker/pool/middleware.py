"""Middleware: what runs around each execution of a pool's tasks; see `Pool.middleware`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from ...schemas.errors.base import InvalidSettings
from ..context.task_context import TaskContext

CallNext = Callable[[], Awaitable[Any]]
"""What a middleware awaits to go on: the next middleware, and at last the task. Gives the result as it goes to the
caller (plain values: a model is a dict; None for a stream). Raises what the caller gets: TaskFailed, TaskCrashed,
TaskCancelled, DeadlineExceeded or InvalidResult. Only once: a task runs once for each slot that it was given."""

Middleware = Callable[[TaskContext, CallNext], Awaitable[Any]]
"""An async function, or an object that can be called like one."""


def check_middleware(function: Middleware, pool: str) -> None:
    """
    Raises:
        InvalidSettings: it gives nothing to await.
    """
    if not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)):
        raise InvalidSettings(
            f"pool {pool!r}: middleware is an 'async def' that takes the task's context and call_next, not {function!r}"
        )
