"""Groups of background tasks that end together, a wait of limited time, and what belongs to one event loop."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Coroutine, Iterator
from threading import get_ident
from typing import Any, Final, TypeVar

from ..schemas.errors.base import ClosedError, GanglineError, InvalidRequest
from ..telemetry.logs import Log

T = TypeVar("T")


class TaskSet:
    """Runs coroutines in the background until `cancel` or `stop`. One that raises does not affect the others.

    Where tasks end with the block that starts them, use asyncio.TaskGroup.

    Args:
        name: name of the tasks, for people.
        log: logs errors; without it the event loop reports them, as for any task.
    """

    __slots__ = ("_log", "_name", "_over", "_tasks")

    def __init__(self, name: str, log: Log | None = None) -> None:
        self._name = f"gangline {name}"
        self._log = log
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._over = False

    def __len__(self) -> int:
        """Number of unfinished tasks."""
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(self._tasks)

    def __repr__(self) -> str:
        return f"<{self._name} {len(self._tasks)}>"

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run it in the background. After `cancel` it is not started, and the returned future is cancelled."""
        loop = asyncio.get_running_loop()
        if self._over:
            work.close()
            never: asyncio.Future[T] = loop.create_future()
            never.cancel()
            return never
        task = loop.create_task(work, name=self._name)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if self._log is not None and not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("%s failed", self._name, exc_info=error, extra={"action": "background.failed"})

    def cancel(self) -> None:
        """Cancel all of them without waiting; nothing new is started. Idempotent."""
        self._over = True
        for task in list(self._tasks):
            task.cancel()

    async def rest(self, timeout_s: float | None = None) -> None:
        """Wait until all have ended, or for that long. One of them may wait for the others."""
        try:
            async with asyncio.timeout(timeout_s):
                while others := self._others():
                    await asyncio.wait(others)
        except TimeoutError:
            pass

    async def stop(self) -> None:
        """Cancel all of them and wait until they have ended; nothing new is started. Idempotent. One of them may stop
        the others."""
        self._over = True
        for task in self._others():
            task.cancel()
        await self.rest()

    def _others(self) -> list[asyncio.Task[Any]]:
        here = asyncio.current_task()
        return [task for task in self._tasks if task is not here]


async def set_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait until the event is set; False if it was not within that time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    except TimeoutError:
        return False


class LoopBound:
    """Base of what belongs to one event loop, and may be used neither elsewhere nor in a forked child.

    `asyncio.get_running_loop` would be a system call for each request, with Python 3.11.
    """

    loop: asyncio.AbstractEventLoop
    forked = False
    """Whether this is a child of the process in which it was made."""

    def bind_loop(self) -> None:
        """It belongs to the running loop from now on."""
        self.loop = asyncio.get_running_loop()
        self.loop_runs = self.loop.is_running
        self.thread = get_ident()
        _bound_here.add(self)

    def check_loop(self) -> None:
        """
        Raises:
            InvalidRequest: this is another event loop or thread.
            ClosedError: this process was forked from that of the client.
        """
        if get_ident() != self.thread or not self.loop_runs():
            raise self.elsewhere()

    def elsewhere(self) -> GanglineError:
        """Why it cannot be used here."""
        if self.forked:
            return ClosedError(
                "this process was forked after the client was connected: nothing was sent; connect again in the child"
            )
        return InvalidRequest(
            "this client belongs to another event loop: nothing was sent; use it in the loop and thread that connected "
            "it (asyncio.run_coroutine_threadsafe), connect another one here, or use connect_sync, which any thread "
            "may call"
        )

    def after_fork(self) -> None:
        """Called in the child, where loop and thread look the same."""
        self.forked = True
        self.thread = 0  # no thread has that number


_bound_here: Final[weakref.WeakSet[LoopBound]] = weakref.WeakSet()


def _after_fork() -> None:
    for bound in list(_bound_here):
        bound.after_fork()
    _bound_here.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
