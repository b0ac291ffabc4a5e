"""Executions within a pool's middleware, which runs on the worker's event loop whatever executor the task uses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Protocol

from ....runtime.hooks import name_of
from ....schemas.deadline import UNDER
from ....schemas.errors.base import DeadlineExceeded, GanglineError, TaskCancelled
from ....schemas.wire.plain_values import to_wire
from ....telemetry.logs import logger_for
from ...pool.pool import CallNext, Middleware, Outcome
from .execution import OnDone, OnItem, TaskExecution

CLEAN_UP_S: Final = 5.0
"""How long middleware may go on after its task was stopped. Then it is cancelled, and has this long once more."""

_log = logger_for("worker")


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
    _late: asyncio.TimerHandle | None = None
    """Fires when the middleware of a stopped execution has used up its time."""
    _insisted = False

    def start(self, window: int, around: Sequence[Middleware], launch: Launch) -> None:  # type: ignore[override]
        self._window = window
        self._around = around
        self._launch = launch
        self._task = self.loop.create_task(self._main(), name=self.where)

    def stop(self, reason: GanglineError) -> None:
        if self._late is None:
            self._late = self.loop.call_later(CLEAN_UP_S, self._too_late)
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

    def _too_late(self) -> None:
        """Its task has stopped, but the middleware has not: cancel it, and then leave it behind."""
        self._late = self.loop.call_later(CLEAN_UP_S, self._too_late)
        if self._inner is not None and not self._inner.done:
            return
        if not self._insisted:
            self._insisted = True
            self._task.cancel()
            return
        assert self.reason is not None
        _log.warning(
            "middleware %s of %s did not end within %g s after its task was stopped, and is no longer waited for",
            self._where_it_is(), self.where, 2 * CLEAN_UP_S,
            extra={"action": "hook.overdue", "id": self.context.id},
        )  # fmt: skip
        self.finish(Outcome(error=self.reason))

    def _where_it_is(self) -> str:
        """The innermost middleware that has begun."""
        codes = {getattr(function, "__code__", None): name_of(function) for function in self._around}
        found = name_of(self._around[0])
        waits_for: Any = self._task.get_coro()
        while (code := getattr(waits_for, "cr_code", None)) is not None:
            found, waits_for = codes.get(code, found), getattr(waits_for, "cr_await", None)
        return found

    def finish(self, outcome: Outcome) -> None:
        if self._late is not None:
            self._late.cancel()
        super().finish(outcome)

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
