"""`Executors`: runs bound calls, each where its task wants to run."""

from __future__ import annotations

from collections.abc import Callable

from ...schemas.errors import ClosedError
from ..context import TaskContext
from ..pool import Pool
from ..scope import Scope
from ..tasks import BoundCall, Execution, ExecutorKind
from .loop import LoopRun
from .run import DEFAULT_WINDOW, ExecutorSettings, OnDone, OnItem
from .threads import ThreadRun, Threads


class Executors:
    """Owned by one worker. `start()` before the first launch; `stop()` when nothing runs any more."""

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
            on_models: told the ids of all loaded models after each change.
        """
        self._pool = pool
        self._settings = settings or ExecutorSettings()
        self._scope = Scope(pool, on_models)
        self._threads = Threads(f"gangline-{pool.name}")
        self._running = False
        self._launched = 0

    async def start(self) -> None:
        """Resolve annotations, enter the lifespans, warm up children. Idempotent.

        Raises:
            InvalidSettings: a task that cannot be served (see DeclaredTask.prepare).
            Exception: whatever a lifespan raised.
        """
        if self._running:
            return
        for task in self._pool.tasks.values():
            task.prepare()
        await self._scope.open()
        self._running = True

    async def stop(self) -> None:
        """Unload models, leave the lifespans, end threads and children. Idempotent; safe before start().

        Nothing may run any more: cancel what does and wait for its outcome first. Threads whose code does not return
        are left behind; they do not keep the process from ending.
        """
        if not self._running:
            return
        self._running = False
        self._threads.close()
        await self._scope.close()

    @property
    def models(self) -> tuple[str, ...]:
        """Ids of the models loaded now."""
        return self._scope.models.loaded

    def launch(
        self,
        call: BoundCall,
        context: TaskContext,
        *,
        on_done: OnDone,
        on_item: OnItem | None = None,
        window: int = DEFAULT_WINDOW,
        on_abandoned: OnDone | None = None,
    ) -> Execution:
        """Run it. All callbacks come on the loop, and never before this returns.

        The execution is stopped at the caller's deadline (`context.deadline`) or the task's `timeout_s`, whichever
        comes first; `context.deadline` is then the earlier one.

        Args:
            call: from DeclaredTask.bind.
            context: made for this execution alone.
            on_done: called once, when the code has stopped: the end of the slot's use.
            on_item: called with number and value of each item of a stream. None: items are collected into a list.
            window: items that may go out before any credit.
            on_abandoned: called when a thread was told to stop and has not yet: its caller can be answered, while the
                slot stays in use until `on_done`.

        Raises:
            ClosedError: not started, or stopped already.
        """
        if not self._running:
            raise ClosedError(f"the executors of pool {self._pool.name!r} do not run")
        self._launched += 1
        context._attach(self._scope)
        if not call.task.streams:
            on_item = None
        callbacks = {"on_done": on_done, "on_item": on_item, "on_abandoned": on_abandoned}
        run: LoopRun | ThreadRun
        if call.task.executor is ExecutorKind.ASYNC:
            run = LoopRun(call, context, self._scope, self._settings, **callbacks)
            run.start(window)
        else:
            run = ThreadRun(call, context, self._scope, self._settings, **callbacks)
            run.start(window, self._threads)
        run.arm()
        return run

    def __repr__(self) -> str:
        return f"Executors({self._pool.name!r}, launched={self._launched}, running={self._running})"
