"""Tasks in threads.

A thread cannot be stopped from outside. On cancellation the caller is answered at once (`on_abandoned`), but the slot
stays in use until the function returns: long functions should check `current_task().cancelled` regularly.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any

from ....schemas.errors.base import GanglineError
from ....telemetry.logs import logger_for
from ...pool.pool import Outcome
from .blocking_stream import BlockingStream, Ending, StreamCredit, run_here
from .execution import TaskExecution

_log = logger_for("worker")

Job = Callable[[], None]


class ThreadExecutor:
    """Threads kept for reuse: as many as tasks run at once, which the worker's slots limit.

    They are daemons, unlike those of ThreadPoolExecutor: code that does not return must not keep a worker from exiting.

    Threads call the event loop in groups: one wake-up for all calls that are made before the loop gets to them.

    A *leg* is the work of one thread from the start, or from the end of a block, to the next block or the end. The loop
    learns of legs through one call of `run_in_executor`, from the first that begins to the last that ends: a virtual
    loop lets no time pass meanwhile.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._idle = 0
        """`_total` less the jobs that run or wait for a thread to wake up."""
        self._total = 0
        self._closed = False
        self._calls: deque[tuple[contextvars.Context, Callable[..., None], tuple[Any, ...]]] = deque()
        self._woken = False
        """The loop has been woken, and has not begun to make the calls."""
        self._legs_lock = threading.Lock()
        self._legs = 0
        self._leg: Future[None]

    def run(self, job: Job) -> None:
        """Run it in an idle thread, or in a new one."""
        with self._changed:
            self._jobs.append(job)
            if self._idle:
                self._idle -= 1
                self._changed.notify()
                return
            self._total += 1
        threading.Thread(target=self._work, name=f"{self._name}-{next(self._numbers)}", daemon=True).start()

    def tell(
        self,
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
        callback: Callable[..., None],
        *args: Any,
    ) -> None:
        """Have the loop call this in `context`, in order. May be called from any thread.

        Raises:
            RuntimeError: the loop is closed.
        """
        self._calls.append((context, callback, args))
        if not self._woken:
            self._woken = True
            loop.call_soon_threadsafe(self._make_calls)

    def _make_calls(self) -> None:
        self._woken = False  # first: calls that are added from here on are either in time, or wake the loop again
        calls = self._calls
        for _ in range(len(calls)):
            context, callback, args = calls.popleft()
            try:
                context.run(callback, *args)
            except Exception:
                _log.exception("%s failed", callback, extra={"action": "thread.tell"})

    def begin_leg(self, loop: asyncio.AbstractEventLoop) -> None:
        """A thread begins to work. Call it on the loop."""
        with self._legs_lock:
            self._legs += 1
            if self._legs > 1:
                return
            leg = self._leg = Future()
        loop.run_in_executor(_Given(leg), _nothing)

    def end_leg(self) -> None:
        """It has ended, or waits for the reader of its stream. Call it in the thread, after `tell`."""
        with self._legs_lock:
            self._legs -= 1
            leg = None if self._legs else self._leg
        if leg is not None:
            leg.set_result(None)

    def close(self) -> None:
        """Idle threads end; busy ones end after their job."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def statistics(self) -> dict[str, int]:
        with self._changed:
            return {"threads": self._total, "idle": self._idle}

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._jobs and not self._closed:
                    self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    self._total -= 1
                    self._idle -= 1
                    return
                job = self._jobs.popleft()
            job()
            del job  # otherwise its arguments would live until the next job
            with self._changed:
                self._idle += 1

    def __repr__(self) -> str:
        return f"ThreadExecutor({self._name!r}, total={self._total}, idle={self._idle})"


class ThreadExecution(TaskExecution):
    """One execution in a thread. While its stream waits for the reader, it has no leg, so time passes."""

    __slots__ = ("_context_vars", "_inner", "_lock", "_loop_vars", "_room", "_stream", "_threads")

    def start(self, window: int, threads: ThreadExecutor) -> None:  # type: ignore[override]
        self._threads = threads
        self._lock = threading.Lock()
        self._inner: tuple[asyncio.AbstractEventLoop, asyncio.Task[Ending]] | None = None
        """The thread's own loop and task, if the function needs one. Guarded by `_lock`."""
        self._room = StreamCredit(window, on_park=threads.end_leg, on_unpark=self._begin_leg)
        self._stream = None if self._on_item is None else BlockingStream(self._pass_item, self._room)
        self._context_vars = contextvars.copy_context()
        self._loop_vars = contextvars.copy_context()
        self._begin_leg()
        threads.run(self._work)

    def stop(self, reason: GanglineError) -> None:
        self._room.close(reason)
        with self._lock:
            if self._inner is not None:
                loop, task = self._inner
                loop.call_soon_threadsafe(task.cancel)
        self.loop.call_soon(self._abandon, reason)

    def credit(self, items: int) -> None:
        self._room.add(items)

    def _abandon(self, reason: GanglineError) -> None:
        if not self.done and self._on_abandoned is not None:
            self._on_abandoned(Outcome(error=reason))

    def _item(self, sequence: int, value: Any) -> None:
        if self.reason is None and self._on_item is not None:
            self._on_item(sequence, value)

    def _begin_leg(self) -> None:
        self._threads.begin_leg(self.loop)

    # -- in the thread --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            outcome = self._context_vars.run(self._body)
        except BaseException as error:
            outcome = self.failed(error)
        try:
            self._threads.tell(self.loop, self._loop_vars, self.finish, outcome)
            self._threads.end_leg()
        except RuntimeError:
            pass  # The loop has closed: nobody is left to hear of it.

    def _body(self) -> Outcome:
        if self.reason is not None:
            return Outcome(error=self.reason)
        return run_here(self.call, self.context, self._stream, self.settings.max_collected_bytes, self._run_coroutine)

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, Ending]) -> Ending:
        with asyncio.Runner() as runner:
            return runner.run(self._hold(coroutine))

    async def _hold(self, coroutine: Coroutine[Any, Any, Ending]) -> Ending:
        task = asyncio.get_running_loop().create_task(coroutine)
        with self._lock:
            self._inner = (asyncio.get_running_loop(), task)
            if self.reason is not None:
                task.cancel()
        try:
            return await task
        finally:
            with self._lock:
                self._inner = None

    def _pass_item(self, sequence: int, value: Any) -> None:
        self._threads.tell(self.loop, self._loop_vars, self._item, sequence, value)


class _Given(Executor):
    """Gives `run_in_executor` a future that is resolved elsewhere."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._future


def _nothing() -> None: ...
