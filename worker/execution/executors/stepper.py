"""First steps in place: a coroutine that never has to wait costs no asyncio task, and no turn of the loop.

Executions are stepped one after the other in the turn in which they were launched, all of them as the same asyncio
task, that of a *carrier*, which has started and waits for work. One that waits for something keeps the carrier: it is
that execution's own task from then on, to its end, and the next carrier takes over the rest. So each execution sees one
current task from its first step to its last, as `asyncio.timeout` and task groups need it, and no two that wait ever
share one at a time.

Making a task takes longer than most steps of an execution do, and the garbage collector has to look at each. So a task
is used again, if nobody can tell: if nobody has cancelled it, nobody else knows it, and nothing was left on it. Else it
ends with its execution, as that one's own task would have.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from asyncio import _enter_task, _leave_task  # documented, for those who extend asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from gc import get_referents
from sys import getrefcount
from typing import Any, Final, Protocol
from weakref import getweakrefcount

from ....schemas.deadline import UNDER
from ...context.task_context import TaskContext

IDLE: Final = "gangline idle"
"""Name of the task of a carrier that carries nothing."""

Function = Callable[..., Coroutine[Any, Any, Any]]


class WaitingExecution(Protocol):
    """An execution that waits for its end."""

    def ended(self, result: Any, error: BaseException | None) -> None:
        """What had to wait has come to its end: with a result, or with what it raised."""


Traces = tuple[int, int, int]
"""Who knows a task, and whom it knows, as counted in one of its own steps: references, weak references, and referents,
among which are callbacks for its end, and attributes that somebody gave it."""


class Home(Protocol):
    """Where a carrier goes when it has nothing to carry."""

    context: contextvars.Context
    """In which carriers run. What they carry has its own."""

    def begun(self, traces: Traces) -> None:
        """A carrier that has carried nothing yet has these."""

    def back(self, carrier: Carrier) -> bool:
        """It has carried something to its end; whether it may carry again."""

    def lost(self, carrier: Carrier) -> None:
        """Somebody has cancelled it while it carried nothing."""


class Carrier:
    """One task, and the steps of what it carries.

    Without anything to carry, the carrier itself is what its task waits for, in place of a future: asyncio hands the
    task's wake-up over to `add_done_callback`, and calling that makes the task go on in the same call. So an execution
    needs no turn of the loop to get from its first step onto its task.
    """

    __slots__ = (
        "_asyncio_future_blocking",
        "_cancelled",
        "_execution",
        "_home",
        "_loop",
        "_steps",
        "_variables",
        "_waits_for",
        "_wake",
        "error",
        "spoiled",
        "task",
        "value",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, home: Home) -> None:
        self._asyncio_future_blocking = False
        """What asyncio asks of what a task waits for."""
        self._loop = loop
        self._home = home
        self._cancelled = False
        """Its task was cancelled while it carried nothing, and has not heard of it yet."""
        self._wake: Callable[[Carrier], object] | None = None
        """Makes the task go on; None while it does not rest."""
        self._execution: WaitingExecution | None = None
        """What it carries."""
        self._variables: contextvars.Context | None = None
        """The execution's own."""
        self._waits_for: Any = None
        """What its first step yielded, for the event loop."""
        self.value: Any = None
        """What the last execution came to."""
        self.error: BaseException | None = None
        """What it raised."""
        self.spoiled = False
        """It was cancelled, or its steps have ended: nothing more shall be started on it."""
        self._steps = self._stepping()
        self._steps.send(None)
        main = self._main()
        # It is begun before its task: a task that is cancelled before its first step would end without a word, and
        # what it carries by then with it.
        main.send(None)
        self.task = loop.create_task(main, name=IDLE, context=home.context)

    @property
    def usable(self) -> bool:
        """Not spoiled, as far as is known, and not cancelled either in a turn in which nobody could be told."""
        return not (self.spoiled or self.task.cancelling())

    def traces(self) -> Traces:
        task = self.task
        known = get_referents(task)
        if type(task) is not asyncio.Task:  # one of a class of its own has attributes anyhow
            known += [name for each in known if type(each) is dict for name in each]
        return getrefcount(task), getweakrefcount(task), len(known)

    # -- what is carried ------------------------------------------------------------------------------------------

    def start(
        self,
        variables: contextvars.Context,
        function: Function,
        args: list[Any],
        kwargs: dict[str, Any],
        context: TaskContext,
    ) -> bool:
        """Run up to the first wait, or to the end: True, and `value` and `error` say how it ended, until the next
        start. The task is to be the current one."""
        try:
            waits_for = variables.run(self._steps.send, (function, args, kwargs, context))
        except GeneratorExit as error:
            self.spoiled, self.error = True, error
            return True
        if waits_for is self:
            if self._wake is None:  # in its first turn, when a cancellation does not come by `cancel`
                self.spoiled = bool(self.task.cancelling() or self.task._must_cancel)
            return True
        self._variables, self._waits_for = variables, waits_for
        return False

    def carry(self, execution: WaitingExecution, name: str) -> None:
        """What was started waits: be its task to its end. To be called outside of any task."""
        self._execution = execution
        self.task.set_name(name)
        wake, self._wake = self._wake, None
        if wake is not None:
            wake(self)

    @types.coroutine
    def _stepping(self) -> Generator[Any, Any, None]:
        """All executions' steps, as one generator: yields what they wait for, and the carrier itself at an end. A
        coroutine that is stepped by hand ends with an exception, which takes longer than many a task."""
        job = yield
        while True:
            self.value = self.error = None
            try:
                function, args, kwargs, context = job
                UNDER.set(context)
                coroutine = function(*args, **kwargs)
                self.value = yield from coroutine if type(coroutine) is _COROUTINE else coroutine.__await__()  # type: ignore[misc]
            except GeneratorExit:
                raise  # it is told to end
            except BaseException as error:
                # SystemExit and its like too: a task ends itself, never its worker.
                self.error = error
            job = function = args = kwargs = context = coroutine = None
            job = yield self

    # -- for its task: what a future is to it ---------------------------------------------------------------------

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(self, wake: Callable[[Carrier], object], *, context: contextvars.Context) -> None:
        self._wake = wake

    def cancel(self, msg: object = None) -> bool:
        """The task was cancelled while it carried nothing, or only a first step."""
        if not self._cancelled:
            self._cancelled = self.spoiled = True
            self._home.lost(self)
            self._loop.call_soon(self._go)
        return True

    def result(self) -> None:
        if self._cancelled:
            self._cancelled = False
            raise asyncio.CancelledError

    def _go(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None:
            wake(self)

    # -- its life -------------------------------------------------------------------------------------------------

    async def _main(self) -> None:
        await self._rounds()

    @types.coroutine
    def _rounds(self) -> Generator[Any, Any, None]:
        thrown: BaseException | None = None
        """What is to be raised at the next wait."""
        try:
            yield
            if self._execution is None:
                self._home.begun(self.traces())
                self._asyncio_future_blocking = True
                yield self
        except asyncio.CancelledError as meant_for_what_it_carries:
            thrown = meant_for_what_it_carries
        steps = self._steps
        while (execution := self._execution) is not None:
            assert self._variables is not None
            run, waits_for = self._variables.run, self._waits_for
            if thrown is not None and asyncio.isfuture(waits_for):
                # It was cancelled before its task waited for that.
                if waits_for.cancel():
                    thrown = None  # this brings it
                else:
                    waits_for._asyncio_future_blocking = False  # nobody waits for it any more
            while waits_for is not self:
                if thrown is None:
                    try:
                        yield waits_for
                    except GeneratorExit:
                        run(steps.close)  # the loop was closed under us: there is nobody to report to
                        raise
                    except BaseException as error:
                        thrown = error
                try:
                    if thrown is None:
                        waits_for = run(steps.send, None)
                    else:
                        throw, thrown = partial(steps.throw, thrown), None
                        waits_for = run(throw)
                        del throw
                except GeneratorExit as error:
                    self.spoiled, self.error = True, error
                    break
            value, failure = self.value, self.error
            self._execution = self._variables = self._waits_for = self.value = self.error = None
            execution.ended(value, failure)
            execution = waits_for = value = failure = None
            del run
            if not self._home.back(self):
                return
            try:
                self._asyncio_future_blocking = True
                yield self
            except asyncio.CancelledError as meant_for_what_it_carries:
                thrown = meant_for_what_it_carries


_COROUTINE: Final = types.CoroutineType


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
