"""Resources of a worker's lifespans as parameters of tasks."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from ...schemas.errors.base import InvalidSettings
from ..context.task_context import current_task


class Resource:
    """Marks a parameter that callers do not give: the worker fills in what a `@pool.lifespan` function yielded.

    ::

        @pool.task
        async def store(name: str, db: Annotated[Database, gangline.Resource]) -> None: ...

    Callers of the task call `store(name)`. Code that calls the function itself, as tests do, gives both.
    """


class ResolvedResources(NamedTuple):
    """A parameter that the worker fills in."""

    name: str
    kind: type[Any]
    place: int | None
    """Among those that may be given by place; None: by name only."""


def resource_kind(annotation: Any, where: str) -> type[Any] | None:
    """The type of resource that an annotation asks for; None: it is an ordinary parameter.

    Raises:
        InvalidSettings: the annotation is marked, and names no class.
    """
    if typing.get_origin(annotation) is not typing.Annotated:
        return None
    kind, *marks = typing.get_args(annotation)
    if not any(mark is Resource or isinstance(mark, Resource) for mark in marks):
        return None
    if not isinstance(kind, type):
        raise InvalidSettings(f"{where}: a resource is asked for by its class, not by {kind}")
    return kind


def filling(function: Callable[..., Any], parameters: tuple[ResolvedResources, ...]) -> Callable[..., Any]:
    """The function without these parameters; they are filled in when it is called in a task."""

    @functools.wraps(function)
    def filled(*args: Any, **kwargs: Any) -> Any:
        context = current_task()
        places = list(args)
        for name, kind, place in parameters:
            if place is not None and place <= len(places):
                places.insert(place, context.resource(kind))
            else:
                kwargs[name] = context.resource(kind)
        return function(*places, **kwargs)

    return filled
