"""What one worker process shares among its tasks: the resources of its lifespans, and its models."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ...runtime.hooks import HookOverdue, call, name_of, stop, within
from ...runtime.tasks import TaskSet
from ...schemas.errors.base import GanglineError
from ...telemetry.logs import logger_for
from .task_context import has_ended, wait_in_thread

if TYPE_CHECKING:
    from .task_context import TaskContext


Loader = Callable[[str], Any | Awaitable[Any]]
Unloader = Callable[[str, Any], Awaitable[None] | None]

_log = logger_for(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookLimits:
    """How long the hooks of a worker may take, each of them, in seconds."""

    lifespan_start_s: float = 600.0
    """A lifespan until it yields."""
    model_load_s: float = 600.0
    """A model loader, for one model."""
    hook_stop_s: float = 30.0
    """A model unloader for one model, and a lifespan from its yield to its end."""


_LIMITS: Final = HookLimits()
_ABSENT: Final = object()


class _Entry:
    """One model, loading or loaded. In `_entries` from the start of its load until it is chosen for eviction."""

    __slots__ = ("id", "load", "users")

    def __init__(self, model_id: str, load: asyncio.Task[Any]) -> None:
        self.id = model_id
        self.load = load
        """The load, shared by all tasks that want this model."""
        self.users = 0
        """Tasks that use it or wait for its load. At 0 it may be evicted."""


class ModelCache:
    """The models that one worker (or one child process) has loaded: at most `max_models`; the least recently used is
    evicted.

    A model in use is never evicted. If all are in use, tasks that need room wait in order of arrival. Later tasks never
    overtake them: otherwise a busy model could starve the others.
    """

    def __init__(
        self,
        loader: Loader | None,
        unloader: Unloader | None,
        max_models: int,
        on_change: Callable[[tuple[str, ...]], None] | None = None,
        *,
        limits: HookLimits = _LIMITS,
    ) -> None:
        """
        Args:
            loader: takes a model id and returns the model; may be `async`. A plain function runs in a thread.
            unloader: takes the id and the model to evict; `async` or plain, too.
            max_models: maximum number of models loaded or loading at once.
            on_change: called with the ids of all loaded models after each change.
            limits: how long loader and unloader may take.
        """
        self._limits = limits
        self._loader = loader
        self._unloader = unloader
        self._max_models = max_models
        self.on_change = on_change
        self._entries: dict[str, _Entry] = {}
        """Least recently used first; never more than `max_models`."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        """Tasks that need room, in order of arrival. The first one is woken when a model becomes idle."""
        self._unloading = 0
        """Models that are being unloaded; they still take up room."""
        self.pinned: dict[TaskContext, _Entry] = {}
        """By running task that has requested a model; read-only."""
        self._reported: tuple[str, ...] = ()
        self._cleanups = TaskSet("unloading of models")

    @property
    def loaded(self) -> tuple[str, ...]:
        """Ids of the models that are ready, least recently used first."""
        return tuple(entry.id for entry in self._entries.values() if _is_loaded(entry))

    async def use(self, context: TaskContext) -> Any:
        """The model that `context` names, kept until `done_with(context)`; see TaskContext.model."""
        if self._loader is None:
            raise LookupError(f"pool {context.pool!r} has no models: declare a loader with @pool.model_loader")
        if not context.model_id:
            raise LookupError("the caller named no model: call with client.options(model=...)")
        entry = self.pinned.get(context)
        if entry is None:
            entry = await self._pin(context.model_id)
            if has_ended(context):  # requested by code that the task left running
                self._unpin(entry)
                raise LookupError("the task has ended: nothing would release the model")
            self.pinned[context] = entry
        try:
            return await asyncio.shield(entry.load)
        except asyncio.CancelledError:
            if entry.load.cancelled():
                raise RuntimeError("the worker stopped while the model was loading") from None
            raise

    def done_with(self, context: TaskContext) -> None:
        """The task ended: its model may be evicted now. Does nothing if it used none."""
        entry = self.pinned.pop(context, None)
        if entry is not None:
            self._unpin(entry)

    async def close(self) -> None:
        """Cancel loads and unload everything."""
        await stop(entry.load for entry in self._entries.values())
        await self._cleanups.rest()
        entries, self._entries = self._entries, {}
        await asyncio.gather(*(self._unload(entry) for entry in entries.values() if _is_loaded(entry)))
        self._report()

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _pin(self, model_id: str) -> _Entry:
        if self._waiters or (model_id not in self._entries and not self._has_room()):
            await self._wait_for_room(model_id)
        entry = self._entries.pop(model_id, None)
        if entry is None:
            load = asyncio.get_running_loop().create_task(self._load(model_id), name=f"load model {model_id}")
            load.add_done_callback(lambda _: self._loaded(entry))
            entry = _Entry(model_id, load)
        self._entries[model_id] = entry  # now the most recently used
        entry.users += 1
        self._wake()
        return entry

    def _has_room(self) -> bool:
        """Whether one more may be loaded, after evicting the least recently used if necessary."""
        if len(self._entries) + self._unloading < self._max_models:
            return True
        if len(self._entries) < self._max_models:
            return False  # room is being made
        idle = next((entry for entry in self._entries.values() if not entry.users and entry.load.done()), None)
        if idle is None:
            return False
        del self._entries[idle.id]
        if not _is_loaded(idle) or self._unloader is None:
            self._report()
            return True
        self._unloading += 1
        self._cleanups.start(self._make_room(idle))
        return False

    async def _make_room(self, entry: _Entry) -> None:
        self._report()
        await self._unload(entry)
        self._unloading -= 1
        self._wake()

    async def _wait_for_room(self, model_id: str) -> None:
        """Returns when this waiter is the first and its model is loaded or has room."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            while True:
                if self._waiters[0] is waiter and (model_id in self._entries or self._has_room()):
                    return
                await waiter
                waiter = self._renew(waiter)
        finally:
            self._waiters.remove(waiter)
            if not waiter.done():
                waiter.cancel()
            # Cancelled or served: let the next waiter check.
            self._wake()

    def _renew(self, waiter: asyncio.Future[None]) -> asyncio.Future[None]:
        """A waiter that was woken keeps its place in the queue."""
        fresh: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[self._waiters.index(waiter)] = fresh
        return fresh

    def _wake(self) -> None:
        if self._waiters and not self._waiters[0].done():
            self._waiters[0].set_result(None)

    def _unpin(self, entry: _Entry) -> None:
        entry.users -= 1
        if not entry.users:
            self._wake()

    async def _load(self, model_id: str) -> Any:
        assert self._loader is not None
        what = f"model loader {name_of(self._loader)} for model {model_id!r}"
        return await within(
            self._limits.model_load_s, call(self._loader, model_id), what=what, log=_log, model=model_id
        )

    def _loaded(self, entry: _Entry | None) -> None:
        assert entry is not None
        if not entry.load.cancelled() and entry.load.exception() is None:
            self._report()
        elif self._entries.get(entry.id) is entry:
            del self._entries[entry.id]  # the next request tries again
        self._wake()  # if no task wants it any longer, it may be evicted now

    async def _unload(self, entry: _Entry) -> None:
        if self._unloader is None:
            return
        try:
            what = f"model unloader {name_of(self._unloader)} for model {entry.id!r}"
            work = call(self._unloader, entry.id, entry.load.result())
            await within(self._limits.hook_stop_s, work, what=what, log=_log, model=entry.id)
        except HookOverdue:
            pass  # was logged; from here on its room is free
        except Exception:
            _log.exception("unloading a model failed", extra={"action": "model_unload_failed", "model": entry.id})

    def _report(self) -> None:
        loaded = self.loaded
        if loaded != self._reported:
            self._reported = loaded
            if self.on_change is not None:
                self.on_change(loaded)

    def __repr__(self) -> str:
        return f"ModelCache(loaded={list(self.loaded)}, waiting={len(self._waiters)}, max_models={self._max_models})"


def _is_loaded(entry: _Entry) -> bool:
    return entry.load.done() and not entry.load.cancelled() and entry.load.exception() is None


R = TypeVar("R")
Lifespan = Callable[
    [],
    AsyncIterator[Any]
    | Iterator[Any]
    | contextlib.AbstractAsyncContextManager[Any]
    | contextlib.AbstractContextManager[Any],
]
"""An (async) generator function that yields once, or a function that returns an (async) context manager."""


class PoolResources(Protocol):
    """What a pool declares for its tasks to share."""

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

    def __init__(
        self,
        pool: PoolResources,
        on_models: Callable[[tuple[str, ...]], None] | None = None,
        *,
        limits: HookLimits = _LIMITS,
    ) -> None:
        self._pool = pool
        self._limits = limits
        self._open: list[tuple[str, contextlib.AbstractAsyncContextManager[Any]]] = []
        """With what they are called in the log, in the order in which they were opened."""
        self._resources: list[Any] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.models = ModelCache(pool.loader, pool.unloader, pool.max_models, on_models, limits=limits)

    async def open(self) -> None:
        """Enter the lifespans in declaration order. If one raises, those before it are closed.

        Raises:
            GanglineError: one did not open in time.
            Exception: whatever it raised.
        """
        self._loop = asyncio.get_running_loop()
        try:
            for lifespan in self._pool.lifespans:
                await self._enter(lifespan)
        except BaseException:
            await self._close_open()
            raise

    async def _enter(self, lifespan: Lifespan) -> None:
        what, manager = f"lifespan {name_of(lifespan)} of pool {self._pool.name!r}", _manager(lifespan)
        context = contextvars.copy_context()
        work, limit_s = _entered(manager), self._limits.lifespan_start_s
        try:
            self._resources.append(await within(limit_s, work, what=what, log=_log, context=context))
        except HookOverdue as error:
            text = f"{error}: the worker cannot start. If it needs that long, raise lifespan_start_s"
            raise GanglineError(text) from None
        self._open.append((what, manager))
        for variable, value in context.items():  # those that it has set are for the tasks, too
            if variable.get(_ABSENT) is not value:
                variable.set(value)

    async def _close_open(self) -> None:
        """Leave the lifespans, last one first. One that raises or does not end does not keep the others from it."""
        failure: BaseException | None = None
        while self._open:
            what, manager = self._open.pop()
            try:
                work = _left(manager)
                await within(self._limits.hook_stop_s, work, what=f"the end of {what}", log=_log)
            except HookOverdue:
                pass  # was logged
            except Exception as error:
                _log.error("the end of %s failed", what, exc_info=error, extra={"action": "lifespan.failed"})
                failure = failure or error
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Unload the models and leave the lifespans, last one first."""
        await self.models.close()
        self._resources.clear()
        await self._close_open()

    def resource(self, kind: type[R]) -> R:
        for value in self._resources:
            if isinstance(value, kind):
                return value
        held = ", ".join(type(value).__name__ for value in self._resources) or "nothing"
        raise LookupError(f"no @pool.lifespan of {self._pool.name!r} yields a {kind.__name__}; they yield: {held}")

    async def model(self, context: TaskContext) -> Any:
        return await self.models.use(context)

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


async def _entered(manager: contextlib.AbstractAsyncContextManager[Any]) -> Any:
    return await manager.__aenter__()


async def _left(manager: contextlib.AbstractAsyncContextManager[Any]) -> None:
    await manager.__aexit__(None, None, None)


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
