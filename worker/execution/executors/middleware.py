"""Executions within a pool's middleware, which runs on the worker's event loop whatever executor the task uses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from ....schemas.deadline import UNDER
from ....schemas.errors.base import DeadlineExceeded, GanglineError, TaskCancelled
from ....schemas.wire.plain_values import to_wire
from ...pool.pool import CallNext, Middleware, Outcome
from .execution import OnDone, OnItem, TaskExecution


class Launch(Protocol):
    """Starts the task itself."""

    def __call__(self, on_done: OnDone, on_item: OnItem | None, on_abandoned: OnDone, window: int) -> TaskExecution: ...


class MiddlewareExecution(TaskExecution):
    """One execution together with its middleware: it ends, and frees its slot, when all of them have ended.

    Cancelling cancels the task; middleware sees the outcome, and may clean up. Before and after the task, it raises
    CancelledError in the middleware.
    """

    _begun = False
    _called = False
    _inner: TaskExecution | None = None
    _raised: GanglineError | None = None
    """What the task's own execution ended with."""
    _value: Any = None
    _items = 0

    def start(self, window: int, around: Sequence[Middleware], launch: Launch) -> None:  # type: ignore[override]
        self._window = window
        self._around = around
        self._launch = launch
        self._task = self.loop.create_task(self._main(), name=self.where)

    def stop(self, reason: GanglineError) -> None:
        if self._inner is not None and not self._inner.done:
            assert isinstance(reason, TaskCancelled | DeadlineExceeded)
            self._inner.cancel(reason)
        elif self._begun:  # otherwise _main finds the reason
            self._task.cancel()

    def insist(self) -> None:
        if self._inner is not None and not self._inner.done:
            self._inner.insist()
        else:
            super().insist()

    def credit(self, items: int) -> None:
        if self._inner is None:
            self._window += items
        else:
            self._inner.credit(items)

    async def _main(self) -> None:
        if self.reason is not None:
            self.finish(Outcome(error=self.reason))
            return
        self._begun = True
        UNDER.set(self.context)
        call_next: CallNext = self._run_task
        for function in reversed(self._around):
            call_next = partial(function, self.context, call_next)
        try:
            outcome = self._outcome(await call_next())
        except BaseException as error:
            outcome = Outcome(error=self._raised) if error is self._raised else self.failed(error)
        self.finish(outcome)

    def _outcome(self, value: Any) -> Outcome:
        task = self.call.task
        if self._on_item is not None:
            return Outcome(items=self._items)
        if self._called and value is self._value:
            return Outcome(value=value)
        # The middleware has replaced the task's result: the new one has to fit the annotation too.
        return Outcome(value=to_wire(value, self.where) if task.streams else task.result.write(value))

    async def _run_task(self) -> Any:
        """The innermost `call_next`."""
        if self._called:
            raise RuntimeError(f"call_next() was called twice in the middleware of {self.where}: a task runs once")
        self._called = True
        if self.reason is not None:
            raise self.reason
        ended: asyncio.Future[Outcome] = self.loop.create_future()
        self._inner = self._launch(ended.set_result, self._on_item, self._abandoned, self._window)
        cancelled: asyncio.CancelledError | None = None
        while not ended.done():
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError as error:
                # The middleware has cancelled it, for example by a timeout. It continues only when the task has
                # stopped.
                cancelled = error
                self._inner.cancel(TaskCancelled(f"{self.where} was cancelled by its pool's middleware"))
        outcome = ended.result()
        if cancelled is not None:
            raise cancelled
        if outcome.error is not None:
            self._raised = outcome.error
            raise outcome.error
        self._value, self._items = outcome.value, outcome.items or 0
        return outcome.value

    def _abandoned(self, outcome: Outcome) -> None:
        """A thread was told to stop but still runs."""
        if self.reason is not None and self._on_abandoned is not None and not self.done:
            self._on_abandoned(outcome)
