"""Pools and declared tasks, calls bound to them, and outcomes of executions."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar, overload

from ...schemas.errors.base import DeadlineExceeded, GanglineError, InvalidSettings, TaskCancelled, UnknownMethod
from ...schemas.limits import MAX_DEADLINE_S, MAX_SLOTS
from ...schemas.names import check_name
from ...schemas.records.workers import MethodInfo
from ..context.lifespans import Lifespan, Loader, Unloader
from ..context.task_context import GangContext, TaskContext
from .health import HealthCheck
from .signature import ResultEncoder, Signature, filling

CallNext = Callable[[], Awaitable[Any]]
"""What a middleware awaits to continue: the next middleware, and finally the task. Returns the result as the caller
gets it (plain values: a model is a dict; None for a stream). Raises what the caller gets: TaskFailed, TaskCrashed,
TaskCancelled, DeadlineExceeded or InvalidResult. Call it only once: a task runs once for each slot that it was given.
"""

Middleware = Callable[[TaskContext, CallNext], Awaitable[Any]]
"""An async function, or an object that can be called like one."""


def check_middleware(function: Middleware, pool: str) -> None:
    """
    Raises:
        InvalidSettings: its result cannot be awaited.
    """
    if not (inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)):
        raise InvalidSettings(
            f"pool {pool!r}: middleware is an 'async def' that takes the task's context and call_next, not {function!r}"
        )


class ExecutorKind(StrEnum):
    """Where a task's code runs."""

    ASYNC = "async"
    """On the worker's event loop. The default for `async def`. A plain `def` here blocks the loop while it runs."""
    THREAD = "thread"
    """In a thread of its own while it runs. The default for `def`. An `async def` gets its own loop there."""
    PROCESS = "process"
    """In a child process, which is killed on cancellation. For code that is CPU-bound, or that may crash or hang."""


class Shape(StrEnum):
    """What calling the function returns."""

    FUNCTION = "function"
    COROUTINE = "coroutine"
    GENERATOR = "generator"
    ASYNC_GENERATOR = "async generator"

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Shape:
        if inspect.isasyncgenfunction(function):
            return cls.ASYNC_GENERATOR
        if inspect.iscoroutinefunction(function):
            return cls.COROUTINE
        if inspect.isgeneratorfunction(function):
            return cls.GENERATOR
        return cls.FUNCTION

    @property
    def streams(self) -> bool:
        return self in (Shape.GENERATOR, Shape.ASYNC_GENERATOR)

    @property
    def awaits(self) -> bool:
        """Whether it needs an event loop."""
        return self in (Shape.COROUTINE, Shape.ASYNC_GENERATOR)


class Outcome(NamedTuple):  # a tuple, since one is made for each task, and a frozen dataclass takes five times as long
    """How an execution ended; exactly one for every launched execution."""

    value: Any = None
    """The result as plain wire values: null, booleans, numbers, text, bytes, lists, maps."""
    error: GanglineError | None = None
    """TaskFailed, TaskCrashed, TaskCancelled, DeadlineExceeded or InvalidResult; then `value` is meaningless."""
    items: int | None = None
    """How many items were sent through `on_item`; None if the result was not streamed."""


CancelReason = TaskCancelled | DeadlineExceeded


class Execution(Protocol):
    """One launched call. Only used on the event loop."""

    def cancel(self, reason: CancelReason) -> None:
        """Stop it; the outcome still comes through `on_done`. Only the first reason counts. No-op when done."""
        ...

    def insist(self) -> None:
        """It was cancelled but still runs: cancel it again. Code in threads cannot be forced to stop."""
        ...

    def credit(self, items: int) -> None:
        """The reader of a stream has room for this many more items. Ignored without a stream."""
        ...


class BoundCall:
    """A task with arguments that fit it."""

    __slots__ = ("args", "json", "kwargs", "raw_args", "raw_kwargs", "task")

    def __init__(
        self,
        task: DeclaredTask,
        args: list[Any],
        kwargs: dict[str, Any],
        raw_args: list[Any] | None,
        raw_kwargs: dict[str, Any] | None,
        json: bool,
    ) -> None:
        self.task = task
        self.args = args
        """Converted. Parameters that were not given use the function's own defaults."""
        self.kwargs = kwargs
        self.raw_args = raw_args
        """As they came from the wire: a child process binds them again, so that nothing has to be pickled."""
        self.raw_kwargs = raw_kwargs
        self.json = json

    def __repr__(self) -> str:
        return f"BoundCall({self.task.full_name}, {len(self.args)} args, {sorted(self.kwargs)})"


class DeclaredTask:
    """A task declared with `@pool.task`. Created only by Pool; immutable once prepared."""

    __slots__ = (
        "_fills",
        "description",
        "executor",
        "full_name",
        "function",
        "idempotent",
        "name",
        "pool",
        "result",
        "shape",
        "signature",
        "slots",
        "streams",
        "timeout_s",
    )

    def __init__(
        self,
        pool: Pool,
        function: Callable[..., Any],
        *,
        name: str,
        slots: int,
        executor: ExecutorKind,
        idempotent: bool,
        timeout_s: float | None,
        description: str,
        namespace: dict[str, Any] | None = None,
    ) -> None:
        self.pool = pool
        self.function = function
        self.name = name
        self.full_name = f"{pool.name}.{name}"
        self.slots = slots
        """Slot cost of one execution."""
        self.executor = executor
        self.idempotent = idempotent
        self.timeout_s = timeout_s
        """Maximum duration of an execution, in seconds; the caller's deadline may be shorter. None: no limit of its
        own."""
        self.description = description
        self._fills = False
        """Whether `function` already fills in resources."""
        self.shape = Shape.of(function)
        self.streams = self.shape.streams
        self.signature = Signature(function, self.full_name, namespace)
        self.result = ResultEncoder(self.signature, self.full_name, streams=self.streams)

    def prepare(self) -> None:
        """Resolve what could not be resolved at declaration (annotations that name classes defined further down).

        Raises:
            InvalidSettings: an annotation cannot be resolved or converted.
        """
        self.signature.resolve()
        self.result.resolve()
        if self.signature.filled and not self._fills:
            self._fills = True
            self.function = filling(self.function, self.signature.filled)

    def bind(self, args: list[Any] | None, kwargs: dict[str, Any] | None, *, json: bool = False) -> BoundCall:
        """Check and convert arguments.

        Args:
            args: positional arguments from the wire.
            kwargs: keyword arguments from the wire.
            json: they came as JSON, so text for bytes is base64 (standard or URL-safe).

        Raises:
            InvalidArguments: names each wrong parameter, what it expects and the given value.
        """
        bound_args, bound_kwargs = self.signature.bind(args, kwargs, json)
        return BoundCall(self, bound_args, bound_kwargs, args, kwargs, json)

    def info(self) -> MethodInfo:
        """What routers need to know."""
        return MethodInfo(
            slots=self.slots, idempotent=self.idempotent, streams=self.streams, description=self.description
        )

    def __repr__(self) -> str:
        return f"DeclaredTask({self.full_name!r}, {self.shape}, executor={self.executor}, slots={self.slots})"


F = TypeVar("F", bound=Callable[..., Any])

L = TypeVar("L", bound=Lifespan)
M = TypeVar("M", bound=Middleware)

GangHook = Callable[[GangContext], Any]

TASKS_ATTRIBUTE = "__gangline_tasks__"
"""Attribute of a task's function: its DeclaredTask by pool name. Child processes find the task by it."""


class Pool:
    """A declaration: importing it starts nothing and needs no server.

    ::

        pool = Pool("images", slots=4)

        @pool.task
        async def thumbnail(path: str, width: int = 128) -> bytes: ...
    """

    def __init__(
        self,
        name: str,
        *,
        slots: int = 1,
        labels: Mapping[str, str] | None = None,
        max_models: int = 0,
        executor: ExecutorKind | str | None = None,
    ) -> None:
        """
        Args:
            name: what callers write before the dot; letters, digits, `_` and `-`.
            slots: how many tasks (of slot cost 1) one worker runs at once.
            labels: labels of the workers, for routing.
            max_models: maximum number of models that one worker keeps loaded; 0: the pool is not multiplexed.
            executor: `async`, `thread` or `process`, for tasks that do not name one. None: `async def` on the event
                loop, `def` in threads.

        Raises:
            InvalidName: the name cannot be part of a subject.
            InvalidSettings: another setting is out of bounds.
        """
        self.name = check_name(name, "pool")
        self.slots = _whole(slots, "slots", 1, MAX_SLOTS)
        self.labels = _labels(labels or {})
        self.max_models = _whole(max_models, "max_models", 0, MAX_SLOTS)
        self.executor = None if executor is None else _kind(executor, f"pool {name!r}")
        self.loader: Loader | None = None
        self.unloader: Unloader | None = None
        self.lifespans: list[Lifespan] = []
        self.middlewares: list[Middleware] = []
        self.health_checks: list[HealthCheck] = []
        self.gang_starts: list[GangHook] = []
        self.gang_stops: list[GangHook] = []
        self._tasks: dict[str, DeclaredTask] = {}

    @property
    def tasks(self) -> Mapping[str, DeclaredTask]:
        """By method name, in declaration order."""
        return MappingProxyType(self._tasks)

    def find(self, method: str) -> DeclaredTask:
        """Raises UnknownMethod, which lists the known methods."""
        task = self._tasks.get(method)
        if task is None:
            known = ", ".join(self._tasks) or "none"
            raise UnknownMethod(f"pool {self.name!r} has no task {method[:80]!r}; it has: {known}")
        return task

    @overload
    def task(self, function: F, /) -> F: ...

    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        slots: int = 1,
        executor: ExecutorKind | str | None = None,
        idempotent: bool = False,
        timeout_s: float | None = None,
        description: str | None = None,
    ) -> Callable[[F], F]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        slots: int = 1,
        executor: ExecutorKind | str | None = None,
        idempotent: bool = False,
        timeout_s: float | None = None,
        description: str | None = None,
    ) -> Any:
        """Declare a function as a task and return it unchanged. With or without parentheses.

        Args:
            function: `def`, `async def`, or a generator of either kind, which streams what it yields.
            name: what callers write after the dot. None: the function's own name.
            slots: slot cost of one execution.
            executor: `async` (event loop), `thread` or `process`; see Pool.
            idempotent: running it twice does no harm, so it may be sent again if the outcome of an attempt is unknown.
            timeout_s: maximum duration in seconds; then it is stopped, as at a caller's deadline.
            description: shown to operators. None: the docstring's first paragraph.

        Raises:
            InvalidName: the name cannot be part of a subject.
            InvalidSettings: the name is taken, a setting is out of bounds, the signature or an annotation is not
                supported, or the executor cannot run this function.
        """

        def declare(function: F) -> F:
            self._declare(
                function,
                name=name,
                slots=slots,
                executor=executor,
                idempotent=idempotent,
                timeout_s=timeout_s,
                description=description,
                namespace=namespace,
            )
            return function

        # Local names where the task is declared, for annotations that name classes of an enclosing function.
        caller = sys._getframe(1)
        namespace = None if caller.f_locals is caller.f_globals else dict(caller.f_locals)
        return declare if function is None else declare(function)

    def _declare(
        self,
        function: Callable[..., Any],
        *,
        name: str | None,
        slots: int,
        executor: ExecutorKind | str | None,
        idempotent: bool,
        timeout_s: float | None,
        description: str | None,
        namespace: dict[str, Any] | None,
    ) -> None:
        if not inspect.isfunction(function):
            raise InvalidSettings(f"pool {self.name!r}: a task is a function, not {function!r}")
        name = check_name(function.__name__ if name is None else name, "method")
        where = f"{self.name}.{name}"
        if name in self._tasks:
            raise InvalidSettings(f"{where} is declared twice: give one of them another name=")
        if _whole(slots, f"{where}: slots", 1, MAX_SLOTS) > self.slots:
            raise InvalidSettings(f"{where} costs {slots} slots, but a worker of this pool has only {self.slots}")
        if timeout_s is not None and not 0 < timeout_s <= MAX_DEADLINE_S:
            raise InvalidSettings(
                f"{where}: timeout_s must be above 0 and at most {MAX_DEADLINE_S:.0f}, not {timeout_s}"
            )
        awaits = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        default = self.executor or (ExecutorKind.ASYNC if awaits else ExecutorKind.THREAD)
        kind = default if executor is None else _kind(executor, where)
        if kind is ExecutorKind.PROCESS and "<" in function.__qualname__:
            raise InvalidSettings(
                f"{where}: a child process cannot import {function.__qualname__}: define it at a module's top level"
            )
        if description is None:
            description = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
        task = DeclaredTask(
            self,
            function,
            name=name,
            slots=slots,
            executor=kind,
            idempotent=idempotent,
            timeout_s=timeout_s,
            description=description,
            namespace=namespace,
        )
        self._tasks[name] = task
        function.__dict__.setdefault(TASKS_ATTRIBUTE, {})[self.name] = task

    def lifespan(self, function: L) -> L:
        """Declare a resource that each worker opens before its first task and closes after its last.

        An async (or plain) generator function that yields one value, or a function that returns a context manager.
        Tasks get the value with `current_task().resource(ItsType)`, or as a parameter (see gangline.Resource). Each
        child process of the process executor opens its own.
        """
        self.lifespans.append(function)
        return function

    def middleware(self, function: M) -> M:
        """Declare what runs around each execution of this pool's tasks: an async function that takes the task's context
        and `call_next`. It awaits `call_next()` to run the task, and returns the result.

        ::

            @pool.middleware
            async def timed(context: gangline.TaskContext, call_next: gangline.CallNext) -> object:
                began = time.monotonic()
                try:
                    return await call_next()
                finally:
                    log.info("%s took %.3f s", context.method, time.monotonic() - began)

        Several nest in declaration order, the first one outermost. They run on the worker's event loop, wherever the
        task runs, on the task's slots and within its time. Context variables that they set are visible to the task (not
        in child processes). If one raises, the execution ends with that error. What it returns is checked like the
        task's own result. Without `call_next()` the task does not run. See CallNext for its result and errors.
        Cancelling the execution cancels the task, and middleware sees that as TaskCancelled or DeadlineExceeded;
        middleware that awaits something else gets CancelledError.

        Raises:
            InvalidSettings: it is not such a function.
        """
        check_middleware(function, self.name)
        self.middlewares.append(function)
        return function

    @overload
    def health_check(self, function: F, /) -> F: ...

    @overload
    def health_check(
        self, *, period_s: float = ..., timeout_s: float = ..., failures: int = ...
    ) -> Callable[[F], F]: ...

    def health_check(
        self,
        function: Callable[..., Any] | None = None,
        *,
        period_s: float = 10.0,
        timeout_s: float = 5.0,
        failures: int = 3,
    ) -> Any:
        """Declare how a worker detects that it can no longer serve: a function without parameters, `async` or plain
        (which runs in a thread). It fails if it raises, returns False or does not return in time.

        ::

            @pool.health_check(period_s=5, failures=2)
            async def gpu_answers() -> None:
                await ping_gpu()

        It is called periodically while the worker serves, beside its tasks. A worker that has failed reports its gang
        members as failed, so that those gangs restart elsewhere. Then it drains and ends with WorkerUnhealthy, which
        says why (`gangline worker`: exit code 1), so that its supervisor starts another.

        It is also called for each member of a gang, after the `gang_start` functions: the member starts, and takes
        tasks, only when it has passed. If it fails `failures` times in a row, the member has failed at its start, and
        the worker leaves as above.

        Args:
            period_s: time between two checks, and before the first.
            timeout_s: a check that takes longer has failed and is cancelled. A thread runs on, and no other is started
                before it ends.
            failures: the worker has failed after this many failed checks in a row.

        Raises:
            InvalidSettings: a value is out of bounds.
        """

        def declare(check: F) -> F:
            declared = HealthCheck(function=check, period_s=period_s, timeout_s=timeout_s, failures=failures)
            declared.validate(self.name)
            self.health_checks.append(declared)
            return check

        return declare if function is None else declare(function)

    def gang_start(self, function: F) -> F:
        """Declare what each member of a gang does before its first task: a function that takes a GangContext, `async`
        or plain (which runs in a thread).

        The member's tasks wait for it. If it raises, the member has failed at its start, and the gang with it. It is
        cancelled when the gang is torn down.
        """
        self.gang_starts.append(function)
        return function

    def gang_stop(self, function: F) -> F:
        """Declare what each member of a gang does after its last task, if its `gang_start` functions began. Errors are
        logged. Only then are the member's slots free and may its gang restart."""
        self.gang_stops.append(function)
        return function

    def model_loader(self, function: F) -> F:
        """Declare how a model is loaded: a function that takes the model id and returns the model, `async` or plain.

        Raises:
            InvalidSettings: the pool keeps no models, or has a loader already.
        """
        if not self.max_models:
            raise InvalidSettings(f"pool {self.name!r} keeps no models: give it max_models=")
        if self.loader is not None:
            raise InvalidSettings(f"pool {self.name!r} has a model loader already")
        self.loader = function
        return function

    def model_unloader(self, function: F) -> F:
        """Declare a function that is called with the id and the model on eviction and at the end, `async` or plain.

        Raises:
            InvalidSettings: the pool has an unloader already.
        """
        if self.unloader is not None:
            raise InvalidSettings(f"pool {self.name!r} has a model unloader already")
        self.unloader = function
        return function

    def __repr__(self) -> str:
        return f"Pool({self.name!r}, slots={self.slots}, tasks={list(self._tasks)})"


def _whole(value: int, what: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise InvalidSettings(f"{what} must be a whole number from {least} to {most}, not {value!r}")
    return value


def _kind(value: ExecutorKind | str, where: str) -> ExecutorKind:
    try:
        return ExecutorKind(value)
    except ValueError:
        known = ", ".join(kind.value for kind in ExecutorKind)
        raise InvalidSettings(f"{where}: executor {value!r} is not known: use one of {known}") from None


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    given: Mapping[Any, Any] = labels
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidSettings(f"labels are text to text, not {key!r}: {value!r}")
    return dict(labels)
