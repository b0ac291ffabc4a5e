"""Eager start for Python 3.11, whose asyncio has no eager tasks. Delete this when 3.11 is no longer supported.

Executions are stepped one after another in the turn in which they are launched, all of them in one asyncio task: that
of a *carrier*, which has started and waits for work. An execution that has to wait keeps the carrier: the task is its
own until it ends, and the next carrier steps the rest. So each execution sees one current task from its first step to
its last, as `asyncio.timeout` and task groups need, and two waiting executions never share one.

Creating a task takes longer than most executions' steps, and each is more work for the garbage collector. So a task is
reused if nobody can tell: nobody has cancelled it, nobody else refers to it, and nothing was left on it. Otherwise it
ends with its execution, as a task of its own would.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from asyncio import _enter_task, _leave_task  # documented, for those who extend asyncio
from collections.abc import Callable, Generator
from functools import partial
from gc import get_referents
from sys import getrefcount
from typing import Any, Final
from weakref import getweakrefcount

from ....schemas.deadline import UNDER
from ...context.task_context import TaskContext
from .eager_start import EagerStarter, Function, WaitingExecution

IDLE: Final = "gangline idle"
"""Name of an idle carrier's task."""

Traces = tuple[int, int, int]
"""What refers to a task and what it refers to, counted in one of its own steps: references, weak references, and
referents, which include its done callbacks and attributes that were set on it."""


class Carrier:
    """One task, and the steps of what it carries.

    While idle, its task awaits the carrier itself in place of a future: asyncio passes the task's wake-up to
    `add_done_callback`, and calling that resumes the task in the same call. So an execution needs no turn of the loop
    to get from its first step onto its task.
    """

    __slots__ = (
        "_asyncio_future_blocking",
        "_cancelled",
        "_carriers",
        "_execution",
        "_loop",
        "name",
        "steps",
        "variables",
        "waits_for",
        "wake",
        "error",
        "spoiled",
        "task",
        "value",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, carriers: Carriers) -> None:
        self._asyncio_future_blocking = False
        """asyncio needs this of whatever a task awaits."""
        self._loop = loop
        self._carriers = carriers
        self._cancelled = False
        """Its task was cancelled while idle, and has not been resumed since."""
        self.name = IDLE
        """That of its task."""
        self.wake: Callable[[Carrier], object] | None = None
        """Resumes the task; None while it is not idle."""
        self._execution: WaitingExecution | None = None
        """The execution that it carries."""
        self.variables: contextvars.Context | None = None
        """Those of the execution."""
        self.waits_for: Any = None
        """What its first step yielded, for the event loop."""
        self.value: Any = None
        """The result of the last execution."""
        self.error: BaseException | None = None
        """The error that it raised."""
        self.spoiled = False
        """It was cancelled, or its steps have ended: start nothing more on it."""
        self.steps = self._stepping()
        self.steps.send(None)
        # A generator, not a coroutine that awaits it, which would be resumed with it at each step.
        rounds = self._rounds()
        # Started before its task: a task that is cancelled before its first step would end silently, together with the
        # execution that it carries by then.
        rounds.send(None)
        self.task = loop.create_task(rounds, name=IDLE, context=carriers.context)

    @property
    def usable(self) -> bool:
        """Neither known to be spoiled nor cancelled in a turn in which nobody could be told."""
        return not (self.spoiled or self.task.cancelling())

    def traces(self) -> Traces:
        task = self.task
        known = get_referents(task)
        if type(task) is not asyncio.Task:  # a task of another class has a __dict__
            known += [name for each in known if type(each) is dict for name in each]
        return getrefcount(task), getweakrefcount(task), len(known)

    # -- what is carried ------------------------------------------------------------------------------------------

    def carry(self, execution: WaitingExecution) -> None:
        """The started execution waits: be its task until it ends. Call this outside of any task."""
        self._execution = execution
        wake, self.wake = self.wake, None
        if wake is not None:
            wake(self)

    def rename(self, name: str) -> None:
        self.name = name
        self.task.set_name(name)

    @types.coroutine
    def _stepping(self) -> Generator[Any, Any, None]:
        """The steps of all executions as one generator: yields what they wait for, and the carrier itself when one
        ends. A coroutine that is stepped by hand ends with an exception, which takes longer than many tasks do."""
        job = yield
        while True:
            try:
                function, args, kwargs, context = job
                UNDER.set(context)
                coroutine = function(*args, **kwargs)
                self.value = yield from coroutine if type(coroutine) is _COROUTINE else coroutine.__await__()  # type: ignore[misc]
            except GeneratorExit:
                raise  # it is being closed
            except BaseException as error:
                # SystemExit and the like, too: a task ends itself, never its worker.
                self.error = error
            job = function = args = kwargs = context = coroutine = None
            job = yield self

    # -- for its task: what a future is to it ---------------------------------------------------------------------

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(self, wake: Callable[[Carrier], object], *, context: contextvars.Context) -> None:
        self.wake = wake

    def cancel(self, msg: object = None) -> bool:
        """The task was cancelled while it was idle, or carried only a first step."""
        if not self._cancelled:
            self._cancelled = self.spoiled = True
            self._carriers.lost(self)
            self._loop.call_soon(self._go)
        return True

    def result(self) -> None:
        if self._cancelled:
            self._cancelled = False
            raise asyncio.CancelledError

    def _go(self) -> None:
        wake, self.wake = self.wake, None
        if wake is not None:
            wake(self)

    # -- its life -------------------------------------------------------------------------------------------------

    @types.coroutine
    def _rounds(self) -> Generator[Any, Any, None]:
        thrown: BaseException | None = None
        """To be raised at the next wait."""
        try:
            yield
            if self._execution is None:
                self._carriers.begun(self.traces())
                self._asyncio_future_blocking = True
                yield self
        except asyncio.CancelledError as meant_for_what_it_carries:
            thrown = meant_for_what_it_carries
        steps = self.steps
        while (execution := self._execution) is not None:
            assert self.variables is not None
            run, waits_for = self.variables.run, self.waits_for
            if thrown is not None and asyncio.isfuture(waits_for):
                # It was cancelled before its task awaited this.
                if waits_for.cancel():
                    thrown = None  # `waits_for` raises it
                else:
                    waits_for._asyncio_future_blocking = False  # nobody is waiting for it
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
            self._execution = self.variables = self.waits_for = self.value = self.error = None
            execution.ended(value, failure)
            execution = waits_for = value = failure = None
            del run
            if not self._carriers.back(self):
                return
            try:
                self._asyncio_future_blocking = True
                yield self
            except asyncio.CancelledError as meant_for_what_it_carries:
                thrown = meant_for_what_it_carries


_COROUTINE: Final = types.CoroutineType


MOST_IDLE: Final = 512
"""Maximum number of idle carriers kept, each of less than 4 KB."""


class Carriers(EagerStarter):
    """Starts the executions of one worker on carriers."""

    __slots__ = ("_away", "_carrier", "_closed", "_idle", "_inside", "_outer", "_traces", "context")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.context = contextvars.copy_context()
        """The context of carriers. Executions have their own."""
        self._traces: Traces | None = None
        """Those of a task to which nobody else refers."""
        self._idle: list[Carrier] = []
        self._closed = False
        self._inside: Carrier | None = None
        """The carrier whose task is the current one, until `leave` or `keep`."""
        self._away = False
        """Between the first start and `leave`."""
        self._outer: asyncio.Task[Any] | None = None
        """The current task outside of those."""
        self._carrier: Carrier | None = Carrier(loop, self)
        """The next carrier to use."""

    def start(
        self,
        variables: contextvars.Context,
        name: str,
        function: Function,
        args: list[Any],
        kwargs: dict[str, Any],
        context: TaskContext,
    ) -> asyncio.Task[None] | None:
        carrier = self._inside
        if carrier is None or carrier.spoiled:
            carrier = self._enter()
        if name is not carrier.name:
            carrier.rename(name)
        try:
            waits_for = variables.run(carrier.steps.send, (function, args, kwargs, context))
        except GeneratorExit as error:
            carrier.spoiled, self.error = True, error
            return None
        if waits_for is not carrier:
            carrier.variables, carrier.waits_for = variables, waits_for
            return carrier.task
        if carrier.wake is None:  # in its first turn, a cancellation does not reach `cancel`
            carrier.spoiled = bool(carrier.task.cancelling() or carrier.task._must_cancel)
        self.value, self.error = carrier.value, carrier.error
        carrier.value = carrier.error = None
        return None

    def tell(self, task: asyncio.Task[None], execution: WaitingExecution) -> None:
        carrier, self._carrier, self._inside = self._inside, None, None
        assert carrier is not None, "started first"
        _leave_task(self._loop, task)
        carrier.carry(execution)

    def step(self) -> None:
        if not self._away:
            super().step()

    def _enter(self) -> Carrier:
        """Make a carrier's task the current one, instead of that of a carrier that somebody has cancelled."""
        inside = self._inside
        if inside is not None:
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
        self._inside = carrier
        _enter_task(self._loop, carrier.task)
        return carrier

    def leave(self) -> None:
        if self._inside is not None:
            self._inside.rename(IDLE)
            _leave_task(self._loop, self._inside.task)
            self._inside = None
        if self._away:
            self._away = False
            if self._outer is not None:
                _enter_task(self._loop, self._outer)
                self._outer = None

    def close(self) -> None:
        self._closed = True
        unused, self._idle = self._idle, []
        if self._carrier is not None:
            unused.append(self._carrier)
            self._carrier = None
        for carrier in unused:
            carrier.task.cancel()

    # -- for carriers ---------------------------------------------------------------------------------------------

    def begun(self, traces: Traces) -> None:
        """The traces of a carrier that has carried nothing yet."""
        if self._traces is None:
            self._traces = traces

    def back(self, carrier: Carrier) -> bool:
        """Its execution has ended. Returns whether it may carry another."""
        idle = self._idle
        if self._closed or len(idle) >= MOST_IDLE or not carrier.usable or carrier.traces() != self._traces:
            return False
        carrier.rename(IDLE)
        idle.append(carrier)
        return True

    def lost(self, carrier: Carrier) -> None:
        """It was cancelled while it was idle."""
        if carrier in self._idle:
            self._idle.remove(carrier)
