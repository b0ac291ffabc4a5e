"""`ExecutorRegistry`: runs each call in the executor that its task declares."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from ...schemas.errors.base import ClosedError, GanglineError, InvalidSettings
from ..context.lifespans import Lifespans
from ..context.task_context import TaskContext, attach
from ..pool.pool import BoundCall, DeclaredTask, ExecutorKind, Outcome, Pool, Shape
from .executors.eager_backport import Carriers
from .executors.eager_start import EagerStarter, EagerTasks
from .executors.execution import (
    DEFAULT_WINDOW,
    CoroutineExecution,
    ExecutionSite,
    ExecutorSettings,
    OnDone,
    OnItem,
    TaskExecution,
    failure_of,
)
from .executors.middleware import MiddlewareExecution
from .executors.processes.pool import ProcessExecution, ProcessPool
from .executors.threads import ThreadExecution, ThreadExecutor


class ExecutorRegistry:
    """Owned by one worker. Call `start()` before the first launch, and `stop()` when nothing is running."""

    def __init__(
        self,
        pool: Pool,
        *,
        settings: ExecutorSettings | None = None,
        on_models: Callable[[tuple[str, ...]], None] | None = None,
    ) -> None:
        """
        Args:
            pool: whose tasks run here.
            settings: see ExecutorSettings.
            on_models: called with the ids of all loaded models after each change.
        """
        self._pool = pool
        self._settings = settings or ExecutorSettings()
        self._on_models = on_models
        self.scope = Lifespans(pool, lambda _: self._models_changed(), limits=self._settings.limits)
        """Resources and models for the tasks."""
        self._threads = ThreadExecutor(f"gangline-{pool.name}")
        self._processes = ProcessPool(pool, self._settings, self._models_changed)
        self._models: tuple[str, ...] = ()
        self._middleware = tuple(pool.middlewares)
        self.plain: frozenset[DeclaredTask] = frozenset()
        """Tasks whose execution is nothing but their coroutine."""
        self._inline = False
        """Nothing runs in child processes, and coroutines run on the loop itself: on virtual time, which children and
        other loops do not have."""
        self.running = False
        self.starter: EagerStarter
        """Created by `start`."""
        self.launched = 0
        """Executions since the start, including those that InlineRunner starts itself."""

    async def start(self) -> None:
        """Resolve annotations, enter the lifespans, warm up children. Idempotent.

        Raises:
            InvalidSettings: a task cannot be served (see DeclaredTask.prepare).
            Exception: whatever a lifespan raised.
        """
        if self.running:
            return
        for task in self._pool.tasks.values():
            task.prepare()
        self._middleware = tuple(self._pool.middlewares)
        self._threads = ThreadExecutor(f"gangline-{self._pool.name}")
        self._processes = ProcessPool(self._pool, self._settings, self._models_changed)
        self.plain = frozenset(task for task in self._pool.tasks.values() if self._is_plain(task))
        await self.scope.open()
        try:
            self._check_resources()
            self._inline = getattr(asyncio.get_running_loop(), "is_virtual", False)
            if not self._inline:
                await self._processes.start()
        except BaseException:
            await self.scope.close()
            raise
        loop = asyncio.get_running_loop()
        self.starter = EagerTasks(loop) if sys.version_info >= (3, 12) else Carriers(loop)
        self._site = ExecutionSite(loop=loop, scope=self.scope, settings=self._settings, starter=self.starter)
        self.running = True

    async def stop(self) -> None:
        """Unload models, leave the lifespans, end threads and children. Idempotent; safe before start().

        Cancel running tasks and wait for their outcomes first. Threads whose code does not return are left behind; they
        do not keep the process alive.
        """
        if not self.running:
            return
        self.running = False
        self.starter.close()
        self._threads.close()
        try:
            await self._processes.stop()
        finally:
            await self.scope.close()

    @property
    def models(self) -> tuple[str, ...]:
        """Ids of the models loaded now, in this process or a child, sorted."""
        return self._models

    def launch(
        self,
        call: BoundCall,
        context: TaskContext,
        *,
        on_done: OnDone,
        on_item: OnItem | None = None,
        window: int = DEFAULT_WINDOW,
        on_abandoned: OnDone | None = None,
        wrapped: bool = True,
    ) -> TaskExecution:
        """Run a call. Callbacks are made on the loop, never before this returns.

        The call is stopped after the task's own `timeout_s`; `context.deadline` is moved there if that comes first. The
        owner watches the callers' deadlines, all in one place, and calls `cancel`.

        Args:
            call: from DeclaredTask.bind.
            context: made for this execution alone.
            on_done: called once, when the code has stopped and the slot can be freed.
            on_item: called with the number and value of each item of a stream. None: items are collected into a list.
            window: items that may be sent before the reader grants credit.
            on_abandoned: called when a thread was told to stop but still runs: its caller can be answered, while the
                slot stays in use until `on_done`.
            wrapped: run it inside the pool's middleware.

        Raises:
            ClosedError: not started, or stopped already.
        """
        if not self.running:
            raise ClosedError(f"the executors of pool {self._pool.name!r} are not running")
        attach(context, self.scope)
        task = call.task
        if not task.streams:
            on_item = None
        if self._middleware and wrapped:
            return self._wrap(call, context, on_done, on_item, window, on_abandoned)
        self.launched += 1
        run: CoroutineExecution | ThreadExecution | ProcessExecution
        if task.executor is ExecutorKind.ASYNC or (self._inline and task.shape.awaits):
            run = CoroutineExecution(call, context, self._site, on_done, on_item, on_abandoned)
            if call.timeout_s is not None:
                run.arm()
            run.start(window)
        elif task.executor is ExecutorKind.PROCESS and not self._inline:
            run = ProcessExecution(call, context, self._site, on_done, on_item, on_abandoned)
            run.arm()
            run.start(window, self._processes)
        else:
            run = ThreadExecution(call, context, self._site, on_done, on_item, on_abandoned)
            run.arm()
            run.start(window, self._threads)
        return run

    def _wrap(
        self,
        call: BoundCall,
        context: TaskContext,
        on_done: OnDone,
        on_item: OnItem | None,
        window: int,
        on_abandoned: OnDone | None,
    ) -> TaskExecution:
        def launch(on_done: OnDone, on_item: OnItem | None, on_abandoned: OnDone, window: int) -> TaskExecution:
            inner = self.launch(
                call,
                context,
                on_done=on_done,
                on_item=on_item,
                window=window,
                on_abandoned=on_abandoned,
                wrapped=False,
            )
            inner.inner = True
            return inner

        run = MiddlewareExecution(call, context, self._site, on_done, on_item, on_abandoned)
        run.arm()
        run.start(window, self._middleware, launch)
        return run

    # -- by hand: see worker.wire.frame_server -----------------------------------------------------------------------

    def failed(self, error: BaseException, reason: GanglineError | None, task: DeclaredTask) -> Outcome:
        """The outcome of a task that raised; `reason`: why it was told to stop, if it was."""
        return Outcome(error=failure_of(error, reason, task, with_traceback=self._settings.send_tracebacks))

    def _is_plain(self, task: DeclaredTask) -> bool:
        return (
            task.executor is ExecutorKind.ASYNC
            and task.shape is Shape.COROUTINE
            and task.timeout_s is None
            and not self._middleware
        )

    def statistics(self) -> dict[str, int]:
        """Counts: launched since the start; threads and children now, and how many of them are idle."""
        threads, processes = self._threads.statistics(), self._processes.statistics()
        return {
            "launched": self.launched,
            "threads": threads["threads"],
            "idle_threads": threads["idle"],
            "processes": processes["children"],
            "idle_processes": processes["idle"],
        }

    def _check_resources(self) -> None:
        """Check that every resource that a task's parameters need exists."""
        for task in self._pool.tasks.values():
            for parameter in task.signature.filled:
                try:
                    self.scope.resource(parameter.kind)
                except LookupError as error:
                    raise InvalidSettings(f"{task.full_name}: parameter {parameter.name!r}: {error}") from None

    def _models_changed(self) -> None:
        models = tuple(sorted({*self.scope.models.loaded, *self._processes.models}))
        if models != self._models:
            self._models = models
            if self._on_models is not None:
                self._on_models(models)

    def __repr__(self) -> str:
        return f"ExecutorRegistry({self._pool.name!r}, launched={self.launched}, running={self.running})"
