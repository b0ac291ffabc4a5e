"""Pools and declared tasks, calls bound to them, and outcomes of executions."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeVar, overload

from ...runtime.hooks import check_hook, name_of
from ...schemas.errors.base import (
    DeadlineExceeded,
    GanglineError,
    InvalidArguments,
    InvalidSettings,
    TaskCancelled,
    UnknownMethod,
)
from ...schemas.handles import TASKS_ATTRIBUTE, ResultDecoder
from ...schemas.limits import MAX_SLOTS
from ...schemas.names import check_name
from ...schemas.records.workers import MethodInfo, TaskPolicy
from ...schemas.text import known_names
from ..context.lifespans import Lifespan, Loader, Unloader
from ..context.task_context import GangContext, TaskContext
from .health import HealthCheck
from .json_schema import MethodSchema, method_schema
from .policy import Failures, declared_policy
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
    check_hook(function, f"pool {pool!r}: middleware", "context", "call_next")


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

    __slots__ = ("args", "json", "kwargs", "raw_args", "raw_kwargs", "task", "timeout_s")

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
        self.timeout_s = task.policy.timeout_s
        """Maximum duration, in seconds; a submission may replace the task's."""

    def __repr__(self) -> str:
        return f"BoundCall({self.task.full_name}, {len(self.args)} args, {sorted(self.kwargs)})"


class DeclaredTask:
    """A task declared with `@pool.task`. Created only by Pool; immutable once prepared."""

    __slots__ = (
        "_decoder",
        "_fills",
        "_info",
        "_schema",
        "description",
        "executor",
        "full_name",
        "function",
        "idempotent",
        "name",
        "policy",
        "pool",
        "result",
        "shape",
        "signature",
        "slots",
        "streams",
        "twin",
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
        policy: TaskPolicy,
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
        self.policy = policy
        self.description = description
        self.twin: str | None = None
        """Another method of the pool that is the same function, so that the function does not name either."""
        self._decoder: ResultDecoder | None = None
        self._schema: MethodSchema | None = None
        self._info: MethodInfo | None = None
        self._fills = False
        """Whether `function` already fills in resources."""
        self.shape = Shape.of(function)
        self.streams = self.shape.streams
        self.signature = Signature(function, self.full_name, namespace)
        self.result = ResultEncoder(self.signature, self.full_name, streams=self.streams)

    def prepare(self) -> None:
        """Resolve what could not be resolved at declaration (annotations that name classes defined further down).

        Raises:
            InvalidSettings: an annotation cannot be resolved or converted, or the task has a schedule and parameters
                without a default.
        """
        self.signature.resolve()
        self.result.resolve()
        if self.policy.cron is not None:
            try:
                self.signature.bind(None, None, False)
            except InvalidArguments as error:
                raise InvalidSettings(
                    f"{self.full_name} has cron=, and is submitted without arguments: give each parameter a default "
                    f"({error.message})"
                ) from None
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

    def decode(self, value: Any) -> Any:
        """A result (or an item) from the wire as the annotation says, for clients that name the task by its function.

        Raises:
            InvalidResult: it does not fit the annotation.
            InvalidSettings: the annotation cannot be resolved.
        """
        decoder = self._decoder
        if decoder is None:
            self.result.resolve()
            decoder = self._decoder = ResultDecoder(self.result.annotation, self.full_name)
        return decoder(value)

    @property
    def schema(self) -> MethodSchema | None:
        """The JSON Schema of its parameters and result; None: it is too large. Valid once prepared."""
        if self._schema is None:
            self._schema = method_schema(self.signature, self.result.adapter, streams=self.streams)
        return self._schema

    @property
    def timeout_s(self) -> float | None:
        """Maximum duration of an execution, in seconds; the caller's deadline may be shorter. None: no limit of its
        own."""
        return self.policy.timeout_s

    def overdue(self, how: str, limit: str) -> str:
        """What a caller is told when its time is over: that it was stopped (`how`), or that it runs on after its
        `limit`."""
        if self.executor is ExecutorKind.THREAD and not self.shape.awaits:
            return (
                f"{self.full_name} runs on after {limit}: a thread cannot be stopped, and keeps its slots until the "
                "function returns"
            )
        return f"{self.full_name} was stopped {how} {limit}"

    def info(self) -> MethodInfo:
        """What routers and dispatchers need to know. Valid once prepared."""
        if self._info is None:
            self._info = MethodInfo(
                slots=self.slots,
                idempotent=self.idempotent,
                streams=self.streams,
                description=self.description,
                schema_hash="" if self.schema is None else self.schema.hash,
                policy=None if self.policy == _NO_POLICY else self.policy,
            )
        return self._info

    def __repr__(self) -> str:
        return f"DeclaredTask({self.full_name!r}, {self.shape}, executor={self.executor}, slots={self.slots})"


_NO_POLICY: Final = TaskPolicy()

F = TypeVar("F", bound=Callable[..., Any])

L = TypeVar("L", bound=Lifespan)
M = TypeVar("M", bound=Middleware)

GangHook = Callable[[GangContext], Any]


class Pool:
    """A declaration: importing it starts nothing and needs no server.

    ```python
    pool = Pool("images", slots=4)

    @pool.task
    async def thumbnail(path: str, width: int = 128) -> bytes: ...
    ```
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

    def functions(self) -> Iterator[tuple[str, Callable[..., Any]]]:
        """What was declared, with the names for the log."""
        for task in self._tasks.values():
            yield task.full_name, task.function
        hooks = (*self.lifespans, *self.middlewares, *self.gang_starts, *self.gang_stops, self.loader, self.unloader)
        for hook in (*hooks, *(check.function for check in self.health_checks)):
            if hook is not None:
                yield f"{name_of(hook)} of pool {self.name}", hook

    def find(self, method: str) -> DeclaredTask:
        """Raises UnknownMethod, which lists the known methods."""
        task = self._tasks.get(method)
        if task is None:
            known = known_names(method, self._tasks)
            raise UnknownMethod(f"pool {self.name!r} has no task {method[:80]!r}; {known}")
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
        description: str | None = None,
    ) -> Callable[[F], F]: ...

    def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declare a function as a task and return it unchanged. With or without parentheses.

        Args:
            function: `def`, `async def`, or a generator of either kind, which streams what it yields.
            name: what callers write after the dot. None: the function's own name.
            slots: slot cost of one execution.
            executor: `async` (event loop), `thread` or `process`; see Pool.
            idempotent: running it twice does no harm, so it may be sent again if the outcome of an attempt is unknown.
            timeout_s: maximum duration of one execution, in seconds; then it is stopped, as at a caller's deadline. A
                caller's deadline may be shorter; `options(timeout_s=)` of a submission replaces it.
            max_attempts: maximum number of attempts of a submitted task. None: 1 unless it is idempotent, otherwise
                the dispatcher's setting (5).
            backoff_s: wait before the second attempt of a submitted task, in seconds; doubles with each further one.
                None: the dispatcher's setting (1 s).
            retry_on: exception classes, or their names: a submitted task is tried again only after these. None: after
                any exception. Timeouts, crashes and lost workers are always followed by another attempt if any is
                left.
            no_retry_on: likewise, but there is no further attempt after these. They go before `retry_on`. A task can
                also raise gangline.DoNotRetry.
            priority: priority of submitted tasks; higher ones start first. None: 0.
            result_ttl_s: how long results of submitted tasks are kept, in seconds; 0: not at all. None: the
                dispatcher's setting (an hour).
            max_running: maximum number of executions at once over all workers of the pool: calls, tasks on leases and
                submitted tasks together. Gang members are exempt.
            per_key: maximum number of executions of one key (`options(key=)`) at once. Each worker keeps it for all
                that it runs; for submitted tasks, dispatchers keep it over all workers. It does not hold over all
                workers for calls and tasks on leases: counting each key would cost a write to the ledger for each
                call. Gang members are exempt.
            rate_per_s: maximum number of starts per second over all workers of the pool, of the same executions as
                `max_running`. In any t seconds, at most `rate_per_s * t` start, and a tenth of a second's worth more,
                or one.
            cron: schedule on which dispatchers submit the task, without arguments: a cron expression of five fields,
                or of six with the seconds first, or `@every 5m`, `@hourly`, `@daily`.
            time_zone: time zone of `cron`, such as `Europe/Berlin`. None: UTC.
            description: shown to operators. None: the docstring's first paragraph.

        Raises:
            InvalidName: the name cannot be part of a subject.
            InvalidSettings: the name is taken, a setting is out of bounds, the signature or an annotation is not
                supported, or the executor cannot run this function; `cron` is not a schedule.
        """

        def declare(function: F) -> F:
            self._declare(function, namespace, **options)
            return function

        for option in options:
            if option not in _TASK_OPTIONS:
                raise TypeError(f"Pool.task() got an unexpected keyword argument {option!r}")
        # Local names where the task is declared, for annotations that name classes of an enclosing function.
        caller = sys._getframe(1)
        namespace = None if caller.f_locals is caller.f_globals else dict(caller.f_locals)
        return declare if function is None else declare(function)

    def _declare(
        self,
        function: Callable[..., Any],
        namespace: dict[str, Any] | None,
        *,
        name: str | None = None,
        slots: int = 1,
        executor: ExecutorKind | str | None = None,
        idempotent: bool = False,
        description: str | None = None,
        **policy: Any,
    ) -> None:
        if not inspect.isfunction(function):
            raise InvalidSettings(f"pool {self.name!r}: a task is a function, not {function!r}")
        name = check_name(function.__name__ if name is None else name, "method")
        wrapped = inspect.unwrap(function)
        if Shape.of(function) is Shape.FUNCTION and Shape.of(wrapped).awaits:
            raise InvalidSettings(
                f"{self.name}.{name} is a plain function around the async function {name_of(wrapped)}, and would "
                "return what nobody awaits: make the decorator's function an 'async def' that awaits it (if it runs "
                "the coroutine itself, delete its __wrapped__)"
            )
        where = f"{self.name}.{name}"
        if name in self._tasks:
            raise InvalidSettings(f"{where} is declared twice: give one of them another name=")
        if _whole(slots, f"{where}: slots", 1, MAX_SLOTS) > self.slots:
            raise InvalidSettings(f"{where} costs {slots} slots, but a worker of this pool has only {self.slots}")
        declared = declared_policy(where, **policy)
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
            policy=declared,
            description=description,
            namespace=namespace,
        )
        self._tasks[name] = task
        mine: dict[str, DeclaredTask] = function.__dict__.setdefault(TASKS_ATTRIBUTE, {})
        before = mine.get(self.name)
        if before is not None and before.pool is self:
            task.twin = before.name
        mine[self.name] = task

    def lifespan(self, function: L) -> L:
        """Declare a resource that each worker opens before its first task and closes after its last.

        An async (or plain) generator function that yields one value, or a function that returns a context manager.
        Tasks get the value with `current_task().resource(ItsType)`, or as a parameter (see gangline.Resource). Each
        child process of the process executor opens its own.

        It has `lifespan_start_s` (see WorkerSettings) until it yields; then the worker does not start. After its yield
        it has `hook_stop_s`; then it is cancelled, and the worker leaves without it.

        Raises:
            InvalidSettings: it is not such a function.
        """
        where = f"pool {self.name!r}: a lifespan"
        check_hook(function, where, generator=True)
        if inspect.iscoroutinefunction(function):
            raise InvalidSettings(
                f"{where} yields its resource once, or returns a context manager, but {name_of(function)} is an "
                "'async def' without a yield"
            )
        self.lifespans.append(function)
        return function

    def middleware(self, function: M) -> M:
        """Declare what runs around each execution of this pool's tasks: an async function that takes the task's context
        and `call_next`. It awaits `call_next()` to run the task, and returns the result.

        ```python
        @pool.middleware
        async def timed(context: gangline.TaskContext, call_next: gangline.CallNext) -> object:
            began = time.monotonic()
            try:
                return await call_next()
            finally:
                log.info("%s took %.3f s", context.method, time.monotonic() - began)
        ```

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

        ```python
        @pool.health_check(period_s=5, failures=2)
        async def gpu_answers() -> None:
            await ping_gpu()
        ```

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
        cancelled when the gang's `start_timeout_s` is over, and when the gang is torn down. If it does not stop within
        `grace_s` then, it is left behind, and the member's slots are free.

        Raises:
            InvalidSettings: it is not such a function.
        """
        check_hook(function, f"pool {self.name!r}: a gang_start function", "gang")
        self.gang_starts.append(function)
        return function

    def gang_stop(self, function: F) -> F:
        """Declare what each member of a gang does after its last task, if its `gang_start` functions began. Errors are
        logged. Only then are the member's slots free and may its gang restart.

        All members of a worker run theirs side by side; those of one member run in declaration order. Together they
        have the gang's `grace_s`, and at least a second; then what runs is cancelled, and left behind if it goes on.

        Raises:
            InvalidSettings: it is not such a function.
        """
        check_hook(function, f"pool {self.name!r}: a gang_stop function", "gang")
        self.gang_stops.append(function)
        return function

    def model_loader(self, function: F) -> F:
        """Declare how a model is loaded: a function that takes the model id and returns the model, `async` or plain.

        It has `model_load_s` (see WorkerSettings) for each model; then it is cancelled, and the tasks that wait fail.

        Raises:
            InvalidSettings: it is not such a function, the pool keeps no models, or has a loader already.
        """
        check_hook(function, f"pool {self.name!r}: a model loader", "model_id")
        if not self.max_models:
            raise InvalidSettings(f"pool {self.name!r} keeps no models: give it max_models=")
        if self.loader is not None:
            raise InvalidSettings(f"pool {self.name!r} has a model loader already")
        self.loader = function
        return function

    def model_unloader(self, function: F) -> F:
        """Declare a function that is called with the id and the model on eviction and at the end, `async` or plain.

        It has `hook_stop_s` (see WorkerSettings) for each model; then its room is used without it.

        Raises:
            InvalidSettings: it is not such a function, or the pool has an unloader already.
        """
        check_hook(function, f"pool {self.name!r}: a model unloader", "model_id", "model")
        if self.unloader is not None:
            raise InvalidSettings(f"pool {self.name!r} has a model unloader already")
        self.unloader = function
        return function

    def __repr__(self) -> str:
        return f"Pool({self.name!r}, slots={self.slots}, tasks={list(self._tasks)})"


_TASK_OPTIONS: Final = frozenset(
    (*inspect.signature(Pool._declare).parameters, *inspect.signature(declared_policy).parameters)
) - {"self", "function", "namespace", "policy", "where"}


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
