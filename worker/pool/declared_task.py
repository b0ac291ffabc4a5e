"""A declared task, a call bound to it, and how an execution ends: the words between the service and the executors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...schemas.errors.base import DeadlineExceeded, GanglineError, TaskCancelled
from ...schemas.records.workers import MethodInfo
from .resources import filling
from .result_encoding import ResultEncoder
from .signature import Signature

if TYPE_CHECKING:
    from .pool import Pool


class ExecutorKind(StrEnum):
    """Where a task's code runs."""

    ASYNC = "async"
    """On the worker's event loop. The default of `async def`. A plain `def` here blocks the loop while it runs."""
    THREAD = "thread"
    """In a thread of its own while it runs. The default of `def`. An `async def` here gets its own loop there."""
    PROCESS = "process"
    """In a child process, which is killed at cancellation. For code that is CPU-bound, or that may crash or hang."""


class Shape(StrEnum):
    """What calling the function gives."""

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
    """How an execution ended; exactly one for every execution that was launched."""

    value: Any = None
    """The result as plain wire values: null, booleans, numbers, text, bytes, lists, maps."""
    error: GanglineError | None = None
    """TaskFailed, TaskCrashed, TaskCancelled, DeadlineExceeded or InvalidResult; `value` means nothing then."""
    items: int | None = None
    """How many items went out through `on_item`; None when the result was not streamed."""


CancelReason = TaskCancelled | DeadlineExceeded


class Execution(Protocol):
    """One launched call. Only used on the event loop."""

    def cancel(self, reason: CancelReason) -> None:
        """Stop it; the outcome still comes through `on_done`. Only the first reason counts; harmless when done."""
        ...

    def insist(self) -> None:
        """It was cancelled and runs on: cancel it again. Code in threads cannot be made to stop."""
        ...

    def credit(self, items: int) -> None:
        """The reader of a stream has room for so many more items. Ignored by what does not stream."""
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
        """Converted; parameters that were not given are left to the function's own defaults."""
        self.kwargs = kwargs
        self.raw_args = raw_args
        """As they came from the wire: a child process binds them again, so that nothing has to be pickled."""
        self.raw_kwargs = raw_kwargs
        self.json = json

    def __repr__(self) -> str:
        return f"BoundCall({self.task.full_name}, {len(self.args)} args, {sorted(self.kwargs)})"


class DeclaredTask:
    """What `@pool.task` made of a function. Made by Pool only; immutable once prepared."""

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
        """Longest execution, in seconds; the caller's deadline may be shorter. None: no bound of its own."""
        self.description = description
        self._fills = False
        """`function` fills in resources."""
        self.shape = Shape.of(function)
        self.streams = self.shape.streams
        self.signature = Signature(function, self.full_name, namespace)
        self.result = ResultEncoder(self.signature, self.full_name, streams=self.streams)

    def prepare(self) -> None:
        """Resolve what could not be resolved at declaration (annotations that name classes defined further down).

        Raises:
            InvalidSettings: an annotation cannot be resolved, or has no conversion.
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
            json: they came as JSON, so that text given for bytes is base64 (standard or url-safe alphabet).

        Raises:
            InvalidArguments: names each wrong parameter, what it expects and what was given.
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
