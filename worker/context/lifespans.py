"""What one worker process holds for all its tasks: the resources of its lifespans, and its models."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .model_cache import Loader, ModelCache, Unloader
from .task_context import wait_in_thread

if TYPE_CHECKING:
    from .task_context import TaskContext

R = TypeVar("R")
Lifespan = Callable[
    [],
    AsyncIterator[Any]
    | Iterator[Any]
    | contextlib.AbstractAsyncContextManager[Any]
    | contextlib.AbstractContextManager[Any],
]
"""An (async) generator function that yields once, or a function that gives an (async) context manager."""


class PoolResources(Protocol):
    """What a pool declares of what its tasks share."""

    @property
    def name(self) -> str: ...

    @property
    def lifespans(self) -> Sequence[Lifespan]: ...

    @property
    def loader(self) -> Loader | None: ...

    @property
    def unloader(self) -> Unloader | None: ...

    @property
    def max_models(self) -> int: ...


class Lifespans:
    """Opened before the first task, closed after the last. Child processes have their own."""

    def __init__(self, pool: PoolResources, on_models: Callable[[tuple[str, ...]], None] | None = None) -> None:
        self._pool = pool
        self._stack = contextlib.AsyncExitStack()
        self._resources: list[Any] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.models = ModelCache(pool.loader, pool.unloader, pool.max_models, on_models)

    async def open(self) -> None:
        """Enter the lifespans in the order of their declaration. One that raises closes those before it."""
        self._loop = asyncio.get_running_loop()
        try:
            for lifespan in self._pool.lifespans:
                self._resources.append(await self._stack.enter_async_context(_manager(lifespan)))
        except BaseException:
            await self._stack.aclose()
            raise

    async def close(self) -> None:
        """Unload the models and leave the lifespans, last one first."""
        await self.models.close()
        self._resources.clear()
        await self._stack.aclose()

    def resource(self, kind: type[R]) -> R:
        for value in self._resources:
            if isinstance(value, kind):
                return value
        held = ", ".join(type(value).__name__ for value in self._resources) or "nothing"
        raise LookupError(f"no @pool.lifespan of {self._pool.name!r} yields a {kind.__name__}; they yield: {held}")

    def model_blocking(self, context: TaskContext) -> Any:
        assert self._loop is not None
        if not self._loop.is_running():  # a child process runs plain functions between turns of its loop
            return self._loop.run_until_complete(self.models.use(context))
        try:
            if asyncio.get_running_loop() is self._loop:
                raise RuntimeError("model_blocking() would block the event loop: use 'await current_task().model()'")
        except RuntimeError as error:
            if "block" in str(error):
                raise
        return wait_in_thread(context, asyncio.run_coroutine_threadsafe(self.models.use(context), self._loop))


@contextlib.asynccontextmanager
async def _manager(lifespan: Lifespan) -> AsyncIterator[Any]:
    if inspect.isasyncgenfunction(lifespan):
        entered: Any = contextlib.asynccontextmanager(lifespan)()
    elif inspect.isgeneratorfunction(lifespan):
        entered = contextlib.contextmanager(lifespan)()
    else:
        entered = lifespan()
    if hasattr(entered, "__aenter__"):
        async with entered as value:
            yield value
    else:
        with entered as value:
            yield value
