"""Tasks named by their functions instead of by text: `client.call(count, text="a b")`.

A declared function has its tasks in an attribute, by the name of their pool. That names the target, and tells type
checkers what the task takes and returns: the function's own parameters and result.
"""

from __future__ import annotations

import collections.abc
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar, cast

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from .errors.base import InvalidRequest, InvalidResult, InvalidSettings
from .names import check_name, split_target

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    Result = TypeVarWithDefault("Result", covariant=True, default=Any)
else:
    Result = TypeVar("Result", covariant=True)

TASKS_ATTRIBUTE: Final = "__gangline_tasks__"
"""Attribute of a task's function: its NamedTask by pool name."""

_EXACT: Final = frozenset({int, str, float, bool, bytes, dict, list})
_ITERATORS: Final = (
    *(collections.abc.AsyncIterator, collections.abc.AsyncGenerator, collections.abc.AsyncIterable),
    *(collections.abc.Iterator, collections.abc.Generator, collections.abc.Iterable),
)


class NamedTask(Protocol):
    """What a client needs of a declared task."""

    @property
    def name(self) -> str:
        """Its method."""
        ...

    @property
    def full_name(self) -> str:
        """`ENDPOINT.METHOD`."""
        ...

    @property
    def streams(self) -> bool:
        """Whether it yields items."""
        ...

    @property
    def twin(self) -> str | None:
        """Another method of the same pool that is this function, too."""
        ...

    def decode(self, value: Any) -> Any:
        """A result (or an item) from the wire, as the function's annotation says.

        Raises:
            InvalidResult: it does not fit the annotation.
        """
        ...


class NamedPool(Protocol):
    """A pool, as far as its name goes."""

    @property
    def name(self) -> str: ...


class ResultDecoder:
    """Turns wire values back into what the task returned: a model instead of a map, a date instead of text."""

    __slots__ = ("_adapter", "_exact", "_where")

    def __init__(self, annotation: Any, where: str) -> None:
        """
        Args:
            annotation: of the result (or of an item), resolved; `inspect.Parameter.empty`: there is none.
            where: the task's full name, for error texts.
        """
        self._where = where
        self._exact: type | None = None
        self._adapter: TypeAdapter[Any] | None = None
        if annotation in (inspect.Parameter.empty, Any, object):
            return
        if annotation is None or annotation is type(None):
            self._exact = type(None)
        elif isinstance(annotation, type) and annotation in _EXACT:
            self._exact = annotation
        self._adapter = TypeAdapter(annotation)

    def __call__(self, value: Any) -> Any:
        adapter = self._adapter
        if adapter is None or type(value) is self._exact:
            return value
        try:
            # Models are written by their field names, whatever their aliases.
            return adapter.validate_python(value, by_alias=True, by_name=True)
        except ValidationError as error:
            problem = error
        try:
            # Strict models take text for a date only from JSON.
            return adapter.validate_json(pydantic_core.to_json(value), by_alias=True, by_name=True)
        except (ValueError, TypeError):
            item = problem.errors(include_url=False, include_context=False)[0]
        place = ".".join(["result", *(str(part) for part in item["loc"])])
        raise InvalidResult(
            f"{self._where}: {place} is not what the function's annotation says: {item['msg']}; the worker may run "
            "another version of it (calls by name return the value as it was sent)",
            may_have_started=True,
            details={"type": type(value).__name__},
        )


def item_annotation(annotation: Any) -> Any:
    """`T` of `AsyncIterator[T]`, `Generator[T, ...]` and so on."""
    if typing.get_origin(annotation) in _ITERATORS and typing.get_args(annotation):
        return typing.get_args(annotation)[0]
    return inspect.Parameter.empty


# -- from a function to its task ---------------------------------------------------------------------------------------


def task_of(target: object, pools: Collection[str] = ()) -> NamedTask:
    """The task that a function is.

    Args:
        pools: where it is used: they decide between several pools of the function.

    Raises:
        InvalidRequest: it is not declared, or it belongs to several pools; nothing was sent.
    """
    tasks = _tasks_of(target)
    found = [tasks[pool] for pool in pools if pool in tasks] or list(tasks.values())
    if len(found) > 1 and not any(pool in tasks for pool in pools):
        first = found[0].full_name
        raise InvalidRequest(
            f"{_name(target)} is a task of several pools ({', '.join(tasks)}): say which one with "
            f"gangline.handle({_name(target)}, {first.partition('.')[0]!r}), or by name: {first!r}"
        )
    return _single(found[0], target)


def method_of(target: object) -> tuple[str, NamedTask]:
    """For a gang: the method to run on each rank, which may be of different pools.

    Raises:
        InvalidRequest: as `task_of`, or the pools of the function know it by different names.
    """
    tasks = _tasks_of(target)
    found = [_single(task, target) for task in tasks.values()]
    if len(found) == 1:
        return found[0].full_name, found[0]
    names = sorted({task.name for task in found})
    if len(names) > 1:
        raise InvalidRequest(f"{_name(target)} has several names ({', '.join(names)}): give one of them as text")
    return names[0], found[0]


def name_of(target: object) -> str:
    """`ENDPOINT.METHOD`, from text or from a function.

    Raises:
        InvalidRequest: as `task_of`.
    """
    return target if isinstance(target, str) else task_of(target).full_name


def decoded(task: NamedTask, value: Any) -> Any:
    """The result of a call: of a task that yields, the list of its items."""
    if task.streams and isinstance(value, list):
        items: list[Any] = value
        return [task.decode(item) for item in items]
    return task.decode(value)


def _tasks_of(target: object) -> Mapping[str, NamedTask]:
    tasks: Mapping[str, NamedTask] | None = getattr(target, TASKS_ATTRIBUTE, None)
    if not tasks:
        raise InvalidRequest(
            f"{_name(target)} is not a task: give a function that is declared with @pool.task, or 'ENDPOINT.METHOD'"
        )
    return tasks


def _single(task: NamedTask, target: object) -> NamedTask:
    if task.twin is not None:
        raise InvalidRequest(
            f"{_name(target)} is two tasks of one pool: name the one you mean, {task.full_name!r} or "
            f"{task.full_name.partition('.')[0]}.{task.twin}"
        )
    return task


def _name(target: object) -> str:
    return getattr(target, "__name__", None) or f"{target!r:.60}"


# -- other ways to name a task -----------------------------------------------------------------------------------------


def handle(function: F, endpoint: str | NamedPool, /) -> F:
    """A task's function as a target at this endpoint, typed like the function.

    For a function that belongs to several pools, and for an endpoint that does not have its pool's name (one that is
    routed to the pool, or a standing set):

    ```python
    await client.call(gangline.handle(thumbnail, "thumbs"), path="a.png")
    ```

    Args:
        function: a function that is declared with `@pool.task`.
        endpoint: a pool, the name of an endpoint, or `ENDPOINT.METHOD` if the method has another name there.

    Raises:
        InvalidName: the endpoint is not a valid name.
        InvalidRequest: the function is not declared, or its pools know it by different names.
    """
    name = endpoint if isinstance(endpoint, str) else endpoint.name
    tasks = _tasks_of(function)
    if "." in name:
        name, method = split_target(name)
        found = [tasks[name]] if name in tasks else list(tasks.values())
    elif name in tasks:
        found, method = [tasks[name]], _single(tasks[name], function).name
    else:
        check_name(name, "endpoint")
        full, task = method_of(function)
        found, method = [task], full.rpartition(".")[2]
    return cast("F", _Handle(function, found[0], name, method))


class _Handle:
    """See `handle`. It can be called like the function itself."""

    def __init__(self, function: Callable[..., Any], task: NamedTask, endpoint: str, method: str) -> None:
        self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", method)
        self.__doc__ = function.__doc__
        setattr(self, TASKS_ATTRIBUTE, {endpoint: _TaskElsewhere(task, endpoint, method)})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    def __repr__(self) -> str:
        return f"handle({self.__name__}, {name_of(self)!r})"


class _TaskElsewhere:
    """A declared task under another name."""

    twin = None

    def __init__(self, task: NamedTask, endpoint: str, method: str) -> None:
        self.name = method
        self.full_name = f"{endpoint}.{method}"
        self.streams = task.streams
        self.decode = task.decode


def remote(target: str, /) -> Callable[[F], F]:
    """Declare the signature of a task whose code is elsewhere, so that calls of it are checked and typed:

    ```python
    @gangline.remote("words.count")
    async def count(text: str) -> int:
        raise NotImplementedError

    await client.call(count, text="a b")
    ```

    The body never runs. A task that yields is a plain `def` that returns an `AsyncIterator`. `gangline stubs POOL`
    writes a module of these.

    Args:
        target: `ENDPOINT.METHOD`.

    Raises:
        InvalidName: the target is not of this form.
    """
    endpoint, _ = split_target(target)

    def declare(function: F) -> F:
        if not inspect.isfunction(function):
            raise InvalidSettings(f"{target}: only a function can be declared as a remote task, not {function!r}")
        setattr(function, TASKS_ATTRIBUTE, {endpoint: _RemoteTask(target, function)})
        return function

    return declare


class _RemoteTask:
    """See `remote`."""

    twin = None

    def __init__(self, target: str, function: Callable[..., Any]) -> None:
        self.name = target.partition(".")[2]
        self.full_name = target
        self._function = function
        self._decoder: ResultDecoder | None = None

    @property
    def streams(self) -> bool:
        return item_annotation(self._returns) is not inspect.Parameter.empty

    def decode(self, value: Any) -> Any:
        decoder = self._decoder
        if decoder is None:
            returns = self._returns
            annotation = item_annotation(returns) if self.streams else returns
            decoder = self._decoder = ResultDecoder(annotation, self.full_name)
        return decoder(value)

    @property
    def _returns(self) -> Any:
        try:
            hints = typing.get_type_hints(self._function, include_extras=True)
        except NameError as error:
            raise InvalidSettings(f"{self.full_name}: an annotation cannot be resolved: {error}") from error
        return hints.get("return", inspect.Parameter.empty)
