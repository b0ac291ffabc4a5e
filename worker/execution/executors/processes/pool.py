"""Tasks in child processes: for code that keeps a CPU busy, hangs, or may crash its process.

Each child runs one task at a time and is reused. Cancellation and deadlines kill it and all processes that it started.
The worker survives if a task kills its child.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any

from .....runtime.tasks import TaskSet
from .....schemas.errors.base import GanglineError, InvalidSettings, TaskCrashed
from .....telemetry.logs import logger_for
from ....context.task_context import TaskContext, gang_of, progress_of
from ....pool.pool import DeclaredTask, ExecutorKind, Outcome, Pool
from ..execution import ExecutorSettings, TaskExecution, failure_from_child
from .child_handle import ChildHandle
from .gang_bridge import answer_child
from .protocol import Close, GrantCredit, Open, StartTask

_log = logger_for("worker.processes")

_CONTEXT_FIELDS = ("id", "pool", "worker", "method", "token", "epoch", "fence", "attempt", "key", "model_id", "trace",
                   "shadow", "labels", "job", "endpoint")  # fmt: skip

_CLOSE_S = 5.0
"""How long children may take to leave their lifespans when the worker stops."""


class ProcessPool:
    """The child processes of one worker."""

    def __init__(self, pool: Pool, settings: ExecutorSettings, on_models: Callable[[], None]) -> None:
        self._tasks = [task for task in pool.tasks.values() if task.executor is ExecutorKind.PROCESS]
        self._pool = pool
        self._settings = settings
        self._on_models = on_models
        self._most_idle = pool.slots if settings.idle_processes is None else settings.idle_processes
        self._children: set[ChildHandle] = set()
        self._idle: list[ChildHandle] = []
        """Ready for a task, the most recently used last. That one is used first: its memory is warm."""
        self._starting = TaskSet("start of a child process")
        self._open: Open | None = None

    async def start(self) -> None:
        """Start the first children, so that import errors show now.

        Raises:
            InvalidSettings: children cannot import a task.
            GanglineError: a child could not start.
        """
        if not self._tasks:
            return
        limits = self._settings.limits
        self._open = Open(
            pool=self._pool.name,
            functions=tuple(dict.fromkeys(address_of(task) for task in self._tasks)),
            max_collected_bytes=self._settings.max_collected_bytes,
            log_level=logging.getLogger().getEffectiveLevel(),
            limits=(limits.lifespan_start_s, limits.model_load_s, limits.hook_stop_s),
        )
        try:
            for child in await asyncio.gather(*(self._spawn() for _ in range(self._settings.warm_processes))):
                self.give_back(child)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close idle children; kill busy ones, and those that do not exit in time."""
        await self._starting.stop()
        self._idle.clear()
        children = list(self._children)
        for child in children:
            if child.busy:  # its owner has given up waiting for the task
                child.kill()
            else:
                child.doomed = True
                child.send(Close())
        if not children:
            return
        _, late = await asyncio.wait([asyncio.ensure_future(child.ended()) for child in children], timeout=_CLOSE_S)
        for child in self._children.copy():
            child.kill()
        if late:
            await asyncio.wait(late, timeout=_CLOSE_S)

    def begin(self, run: ProcessExecution) -> None:
        """Give the run a child: an idle one (with its model loaded, if possible), or a new one once it has started."""
        idle = self._idle
        if idle:
            model_id = run.context.model_id
            fitting = next((child for child in reversed(idle) if model_id in child.models), None) if model_id else None
            child = fitting or idle[-1]
            idle.remove(child)
            run.assign(child)
            return
        self._starting.start(self._begin_in_new(run))

    def give_back(self, child: ChildHandle) -> None:
        """Take back a child that has nothing to do."""
        if child.doomed:
            return
        if len(self._idle) < self._most_idle:
            self._idle.append(child)
        else:
            child.doomed = True
            child.send(Close())

    @property
    def models(self) -> set[str]:
        return {model_id for child in self._children for model_id in child.models}

    def statistics(self) -> dict[str, int]:
        return {"children": len(self._children), "idle": len(self._idle), "starting": len(self._starting)}

    async def _begin_in_new(self, run: ProcessExecution) -> None:
        try:
            child = await self._spawn()
        except asyncio.CancelledError:
            run.no_child(GanglineError("the worker stopped"))
            raise
        except (GanglineError, OSError) as error:
            _log.error("a child process could not start", exc_info=error, extra={"action": "child_not_started"})
            run.no_child(error)
            return
        if run.reason is not None:
            self.give_back(child)
        else:
            run.assign(child)

    async def _spawn(self) -> ChildHandle:
        assert self._open is not None
        child = ChildHandle(self._open, on_exit=self._gone, on_models=self._on_models)
        self._children.add(child)
        try:
            await child.start(self._settings.process_start_s)
        except BaseException:
            if not child.pid:
                self._children.discard(child)
            raise
        return child

    def _gone(self, child: ChildHandle) -> None:
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)
            _log.warning("an idle child process exited unexpectedly", extra={"action": "child_lost", "pid": child.pid})
        self._on_models()

    def __repr__(self) -> str:
        return f"ProcessPool({self._pool.name!r}, {self.statistics()})"


class ProcessExecution(TaskExecution):
    """One execution in a child."""

    __slots__ = ("_child", "_gang_calls", "_outcome", "_processes", "_window")

    def start(self, window: int, processes: ProcessPool) -> None:  # type: ignore[override]
        self._processes = processes
        self._window = window
        self._child: ChildHandle | None = None
        self._gang_calls = TaskSet("gang call of a child")
        self._outcome: Outcome | None = None
        """The outcome, if the task ended while its child was being killed."""
        self.loop.call_soon(self._begin)

    def stop(self, reason: GanglineError) -> None:
        if self._child is not None:
            self._child.kill()
        else:
            self.loop.call_soon(self.finish, Outcome(error=reason))

    def credit(self, items: int) -> None:
        if self.done:
            return  # the child may already run another task
        if self._child is not None:
            self._child.send(GrantCredit(items))
        else:
            self._window += items

    def assign(self, child: ChildHandle) -> None:
        """Run in that child."""
        self._child = child
        call = self.call
        child.run(
            self,
            StartTask(
                method=call.task.name,
                args=call.raw_args,
                kwargs=call.raw_kwargs,
                json=call.json,
                context=_fields_of(self.context),
                remaining_s=self.context.remaining_s(),
                streams=self._on_item is not None,
                window=self._window,
            ),
        )

    def no_child(self, error: Exception) -> None:
        """No child could be started for it; none of its code has run."""
        text = f"{self.where} did not start: {error}"
        self.finish(Outcome(error=self.reason or TaskCrashed(text, may_have_started=False)))

    def child_item(self, sequence: int, value: Any) -> None:
        if self.reason is None and self._on_item is not None:
            self._on_item(sequence, value)

    def child_progress(self, value: Any) -> None:
        progress = progress_of(self.context)
        if progress is not None:
            progress.report(value)

    def child_gang(self, number: int, what: str, value: Any, root: int) -> None:
        self._gang_calls.start(self._call_gang(number, what, value, root))

    async def _call_gang(self, number: int, what: str, value: Any, root: int) -> None:
        answer = await answer_child(gang_of(self.context), number, what, value, root)
        if self._child is not None and not self.done:
            self._child.send(answer)

    def finish(self, outcome: Outcome) -> None:
        self._gang_calls.cancel()
        super().finish(outcome)

    def child_done(self, outcome: Outcome) -> None:
        child = self._child
        assert child is not None
        if outcome.error is not None:
            told = failure_from_child(outcome.error, with_traceback=self.settings.send_tracebacks)
            outcome = outcome._replace(error=told)
        if child.doomed:
            # Killed a moment too late: the slot is freed when the process is gone.
            self._outcome = outcome
            child.keep(self)
            return
        self._processes.give_back(child)
        self.finish(outcome)

    def child_died(self, crash: TaskCrashed) -> None:
        if self._outcome is not None:
            self.finish(self._outcome)
        elif self.reason is not None:
            self.finish(Outcome(error=self.reason))
        else:
            self.finish(Outcome(error=TaskCrashed(f"{self.where}: {crash.message}", details=crash.details)))

    def _begin(self) -> None:
        if self.reason is None:
            self._processes.begin(self)


def address_of(task: DeclaredTask) -> tuple[str, str]:
    """Module and qualified name by which a child imports the function.

    Raises:
        InvalidSettings: it is in the script that was started, which has no name to import.
    """
    module = task.function.__module__
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is None:
            raise InvalidSettings(
                f"{task.full_name} runs in child processes, which cannot import it from the script that was started: "
                "move the pool to a module, and start 'gangline worker MODULE:POOL'"
            )
        module = spec.name
    return module, task.function.__qualname__


def _fields_of(context: TaskContext) -> dict[str, Any]:
    return {**{name: getattr(context, name) for name in _CONTEXT_FIELDS}, "gang": gang_of(context)}
