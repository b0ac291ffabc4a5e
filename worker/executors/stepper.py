"""First steps in place: a coroutine that never has to wait costs no asyncio task, and no turn of the loop.

Executions are stepped one after the other in the turn in which they were launched, all of them as the same asyncio
task, the *carrier*, which has started and waits for work. One that waits for something keeps the carrier: it is that
execution's own task from then on, to its end, and the next carrier takes over the rest. So each execution sees one
current task from its first step to its last, as `asyncio.timeout` and task groups need it, and no two that wait ever
share one.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from asyncio import _enter_task, _leave_task  # documented, for those who extend asyncio
from collections import deque
from collections.abc import Coroutine, Generator
from typing import Any, Final, Protocol


class Ending(Protocol):
    """An execution that waits for its end."""

    def ended(self, result: Any, error: BaseException | None) -> None:
        """What had to wait has come to its end: with a result, or with what it raised."""


class Steppable(Ending, Protocol):
    """An execution that wants to be stepped."""

    def begin(self, carrier: asyncio.Task[None]) -> Blocked | None:
        """Run up to the first wait; None: it has ended, and was reported. Never raises."""


class Blocked:
    """A coroutine that waits."""

    __slots__ = ("context", "coroutine", "execution", "name", "waits_for")

    def __init__(
        self,
        execution: Ending,
        name: str,
        coroutine: Coroutine[Any, Any, Any],
        context: contextvars.Context,
        waits_for: Any,
    ) -> None:
        self.execution = execution
        self.name = name
        self.coroutine = coroutine
        self.context = context
        self.waits_for = waits_for
        """What its first step yielded, for the event loop."""


_EMPTY: Final = contextvars.Context()
"""The carriers' own: what they carry brings its own along."""


class Carrier:
    """A task that waits for an execution to carry."""

    __slots__ = ("_idle", "_loop", "blocked", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.blocked: Blocked | None = None
        """What it carries."""
        self._loop = loop
        self._idle: asyncio.Future[None] | None = None
        main = self._main()
        # It is begun before its task: a task that is cancelled before its first step would end without a word, and
        # what it carries by then with it.
        main.send(None)
        self.task = loop.create_task(main, name="gangline idle", context=_EMPTY)

    @property
    def usable(self) -> bool:
        """Nobody has cancelled it."""
        return (self._idle is None or not self._idle.done()) and not self.task.cancelling()

    def carry(self, blocked: Blocked) -> None:
        """Be that execution's task from now on."""
        self.blocked = blocked
        self.task.set_name(blocked.name)
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def _main(self) -> None:
        cancelled: asyncio.CancelledError | None = None
        try:
            await _pause()
            if self.blocked is None:
                self._idle = self._loop.create_future()
                await self._idle
        except asyncio.CancelledError as error:
            # If it carries something already, that is whom it was meant for.
            cancelled = error
        if self.blocked is not None:
            result, failure = await _drive(self.blocked, cancelled)
            self.blocked.execution.ended(result, failure)


@types.coroutine
def _pause() -> Generator[None, None, None]:
    yield


@types.coroutine
def _drive(blocked: Blocked, error: BaseException | None) -> Generator[Any, Any, tuple[Any, BaseException | None]]:
    """Go on with a coroutine that was begun elsewhere, each step in its own context; returns its result, or what it
    raised. `error`: raise it at its wait."""
    coroutine, run, yielded = blocked.coroutine, blocked.context.run, blocked.waits_for
    while True:
        if error is None:
            try:
                yield yielded
            except GeneratorExit:
                run(coroutine.close)  # the loop was closed under us: there is nobody to report to
                raise
            except BaseException as thrown:
                error = thrown
        elif asyncio.isfuture(yielded):
            yielded._asyncio_future_blocking = False  # nobody waits for it any more
        try:
            if error is None:
                yielded = run(coroutine.send, None)
            else:
                reason, error = error, None
                yielded = run(coroutine.throw, reason)
        except StopIteration as end:
            return end.value, None
        except BaseException as raised:
            return None, raised


class Stepper:
    """Steps the executions of one worker. Everything on the event loop."""

    __slots__ = ("_carrier", "_loop", "_outer", "_ready", "_scheduled", "_stepping", "inside")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready: deque[Steppable] = deque()
        self._carrier: Carrier | None = None
        self._scheduled = False
        self._stepping = False
        self.inside: asyncio.Task[None] | None = None
        """The carrier's task, between `enter` and `leave`."""
        self._outer: asyncio.Task[Any] | None = None

    def add(self, execution: Steppable) -> None:
        """Step it in this turn, when whoever launches says so (`step`), and soon if nobody does."""
        self._ready.append(execution)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._soon)

    def step(self) -> None:
        """Step all that were added, up to their first wait."""
        ready = self._ready
        if not ready or self._stepping or self.inside is not None:
            return
        loop = self._loop
        outer = asyncio.current_task(loop)
        self._stepping = True
        if outer is not None:
            _leave_task(loop, outer)
        try:
            while ready:
                self._step_as(self._free_carrier(), ready)
        finally:
            if outer is not None:
                _enter_task(loop, outer)
            self._stepping = False

    # -- by hand: whoever steps coroutines itself -----------------------------------------------------------------

    def enter(self) -> asyncio.Task[None]:
        """What runs from here on runs as the task returned, until `leave`, or until `keep` gives that away. Again
        inside: another task if somebody has cancelled this one."""
        inside = self.inside
        if inside is not None:
            if not inside.cancelling():
                return inside
            _leave_task(self._loop, inside)
        else:
            self._outer = asyncio.current_task(self._loop)
            if self._outer is not None:
                _leave_task(self._loop, self._outer)
        inside = self.inside = self._free_carrier().task
        _enter_task(self._loop, inside)
        return inside

    def keep(self, blocked: Blocked) -> None:
        """What was stepped waits: the task is its own from now on."""
        assert self.inside is not None and self._carrier is not None, "entered first"
        carrier, self._carrier = self._carrier, None
        _leave_task(self._loop, self.inside)
        carrier.carry(blocked)
        inside = self.inside = self._free_carrier().task
        _enter_task(self._loop, inside)

    def leave(self) -> None:
        """End of `enter`. Idempotent."""
        if self.inside is not None:
            _leave_task(self._loop, self.inside)
            self.inside = None
            if self._outer is not None:
                _enter_task(self._loop, self._outer)
                self._outer = None

    def close(self) -> None:
        """Nothing more will be launched."""
        if self._carrier is not None:
            self._carrier.task.cancel()
            self._carrier = None

    def _soon(self) -> None:
        self._scheduled = False
        self.step()

    def _free_carrier(self) -> Carrier:
        carrier = self._carrier
        if carrier is None or not carrier.usable:
            carrier = self._carrier = Carrier(self._loop)
        return carrier

    def _step_as(self, carrier: Carrier, ready: deque[Steppable]) -> None:
        """Until one of them keeps the carrier, or none is left."""
        loop, task = self._loop, carrier.task
        _enter_task(loop, task)
        try:
            while ready:
                blocked = ready.popleft().begin(task)
                if blocked is not None:
                    self._carrier = None
                    carrier.carry(blocked)
                    return
                if not carrier.usable:
                    return  # somebody cancelled it: the next execution shall not suffer for that
        finally:
            _leave_task(loop, task)

    def __repr__(self) -> str:
        return f"<Stepper {len(self._ready)} to be stepped>"
