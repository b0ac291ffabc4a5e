"""First steps in place: a coroutine that never has to wait costs no asyncio task, and no turn of the loop.

Executions are stepped one after the other in the turn in which they were launched, all of them as the same asyncio
task, that of a *carrier*, which has started and waits for work. One that waits for something keeps the carrier: it is
that execution's own task from then on, to its end, and the next carrier takes over the rest. So each execution sees one
current task from its first step to its last, as `asyncio.timeout` and task groups need it, and no two that wait ever
share one at a time.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import _enter_task, _leave_task  # documented, for those who extend asyncio
from collections import deque
from typing import Any, Final, Protocol

from .carrier import IDLE, Carrier, Traces, WaitingExecution

MOST_IDLE: Final = 512
"""Carriers kept for executions to come; less than four kilobytes each."""


class Steppable(WaitingExecution, Protocol):
    """An execution that wants to be stepped."""

    @property
    def name(self) -> str:
        """For its task."""

    def begin(self, carrier: Carrier) -> bool:
        """Run up to the first wait; True: it has ended, and was reported. Never raises."""


class Stepper:
    """Steps the executions of one worker. Everything on the event loop."""

    __slots__ = (
        "_away",
        "_carrier",
        "_closed",
        "_idle",
        "_loop",
        "_outer",
        "_ready",
        "_scheduled",
        "_traces",
        "context",
        "inside",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready: deque[Steppable] = deque()
        self._scheduled = False
        self.context = contextvars.copy_context()
        """That of carriers."""
        self._traces: Traces | None = None
        """Of a task that nobody else knows."""
        self._idle: list[Carrier] = []
        self._closed = False
        self.inside: Carrier | None = None
        """Whose task is the current one, between `enter` and `leave` or `keep`."""
        self._away = False
        """Between `enter` and `leave`."""
        self._outer: asyncio.Task[Any] | None = None
        """What runs outside of those."""
        self._carrier: Carrier | None = Carrier(loop, self)
        """The next to carry something."""

    def add(self, execution: Steppable) -> None:
        """Step it in this turn, when whoever launches says so (`step`), and soon if nobody does."""
        self._ready.append(execution)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._soon)

    def step(self) -> None:
        """Step all that were added, up to their first wait."""
        ready = self._ready
        if not ready or self._away:
            return
        try:
            while ready:
                execution = ready.popleft()
                if not execution.begin(self.enter()):
                    self.keep(execution, execution.name)
        finally:
            self.leave()

    # -- by hand: whoever steps coroutines itself -----------------------------------------------------------------

    def enter(self) -> Carrier:
        """What runs from here on runs as this one's task, until `leave`, or until `keep` gives that away. Again inside:
        another one if somebody has cancelled this one."""
        inside = self.inside
        if inside is not None:
            if inside.usable:
                return inside
            _leave_task(self._loop, inside.task)
        elif not self._away:
            self._away = True
            self._outer = asyncio.current_task(self._loop)
            if self._outer is not None:
                _leave_task(self._loop, self._outer)
        carrier = self._carrier
        if carrier is None or not carrier.usable:
            if carrier is not None:
                carrier.task.cancel()
            carrier = self._carrier = self._idle.pop() if self._idle else Carrier(self._loop, self)
        self.inside = carrier
        _enter_task(self._loop, carrier.task)
        return carrier

    def keep(self, execution: WaitingExecution, name: str) -> None:
        """What was started waits: the task is its own from now on. For more to be started, `enter` again."""
        carrier = self.inside
        assert carrier is not None, "entered first"
        self._carrier = self.inside = None
        _leave_task(self._loop, carrier.task)
        carrier.carry(execution, name)

    def leave(self) -> None:
        """End of `enter`. Idempotent."""
        if self.inside is not None:
            _leave_task(self._loop, self.inside.task)
            self.inside = None
        if self._away:
            self._away = False
            if self._outer is not None:
                _enter_task(self._loop, self._outer)
                self._outer = None

    def close(self) -> None:
        """Nothing more will be launched."""
        self._closed = True
        unused, self._idle = self._idle, []
        if self._carrier is not None:
            unused.append(self._carrier)
            self._carrier = None
        for carrier in unused:
            carrier.task.cancel()

    # -- carriers -------------------------------------------------------------------------------------------------

    def begun(self, traces: Traces) -> None:
        if self._traces is None:
            self._traces = traces

    def back(self, carrier: Carrier) -> bool:
        idle = self._idle
        if self._closed or len(idle) >= MOST_IDLE or not carrier.usable or carrier.traces() != self._traces:
            return False
        carrier.task.set_name(IDLE)
        idle.append(carrier)
        return True

    def lost(self, carrier: Carrier) -> None:
        if carrier in self._idle:
            self._idle.remove(carrier)

    def _soon(self) -> None:
        self._scheduled = False
        self.step()

    def __repr__(self) -> str:
        return f"<Stepper {len(self._ready)} to be stepped, {len(self._idle)} idle carriers>"
