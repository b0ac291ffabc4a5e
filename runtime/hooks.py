"""How the functions that users declare beside their tasks are checked, called and stopped.

All of them have a limit. Code that has used it up is cancelled, and once more if it goes on; then it is left behind: a
WARNING names it, and nothing waits for it any longer.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor, Future
from typing import Any, Final, TypeVar

from ..schemas.errors.base import InvalidSettings
from ..schemas.text import plain
from ..telemetry.logs import Log

T = TypeVar("T")

CANCEL_S: Final = 0.5
"""How long cancelled code may take to clean up before it is cancelled again."""
_AGAIN_S: Final = 0.05
"""How long it may take after that."""


class HookOverdue(TimeoutError):
    """A hook has used up its time."""


class DaemonThreads(Executor):
    """A new thread for each call, which does not keep the process alive. For `loop.run_in_executor`: the loop's own
    executor has few threads, and the end of the program waits for them."""

    def __init__(self, name: str) -> None:
        self._name = f"gangline-{name}"

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        threading.Thread(target=_run, args=(future, fn, args, kwargs), name=self._name, daemon=True).start()
        return future


def _run(future: Future[T], fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


_threads: Final = DaemonThreads("hook")


def name_of(function: object) -> str:
    """As in its definition."""
    return str(getattr(function, "__qualname__", None) or repr(function)).rpartition("<locals>.")[2]


def check_hook(function: Any, where: str, *parameters: str, generator: bool = False) -> None:
    """Check that a function can be called with these arguments, at its declaration.

    Args:
        function: any object, as the user gave it.
        where: what it is, for the error.
        parameters: the names of its arguments, for the error.
        generator: it may be a generator function.

    Raises:
        InvalidSettings: it cannot be called so, or it is a generator function, whose call would run nothing.
    """
    takes = f"takes {' and '.join(parameters)}" if parameters else "takes no arguments"
    if not callable(function) or isinstance(function, type):
        raise InvalidSettings(f"{where} is a function that {takes}, not {function!r}")
    name = name_of(function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some builtins have none
    try:
        signature.bind(*parameters)
    except TypeError as error:
        raise InvalidSettings(f"{where} {takes}, but {name}{signature} cannot be called so: {error}") from None
    if not generator and (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        raise InvalidSettings(f"{where} is a function that returns, but {name} yields: calling it would run nothing")


async def call(function: Callable[..., Any], *args: Any) -> Any:
    """Call a hook: `async` on the loop, plain in a thread. A thread cannot be stopped: if this is cancelled, it waits
    until the thread returns; cancelled again, it leaves the thread behind."""
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    running = asyncio.get_running_loop().run_in_executor(_threads, function, *args)
    running.add_done_callback(look_at)
    try:
        result = await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
    return await result if inspect.isawaitable(result) else result


async def within(
    limit_s: float,
    work: Coroutine[Any, Any, T],
    *,
    what: str,
    log: Log,
    context: contextvars.Context | None = None,
    **facts: object,
) -> T:
    """The result of `work`, which gets a task of its own and `limit_s` seconds.

    Args:
        what: names it in the log and in the error.
        context: runs it; None: a copy of the current one.
        facts: fields for the log.

    Raises:
        HookOverdue: it did not end in time. It was cancelled, or left behind.
    """
    task = asyncio.get_running_loop().create_task(work, name=f"gangline {what}", context=context)
    try:
        await asyncio.wait((task,), timeout=limit_s)
        if task.done():
            return task.result()
        text = f"{what} did not end within {plain(round(limit_s, 1))} s: it was cancelled, and is no longer waited for"
        await stop([task])
        log.warning("%s", text, extra={"action": "hook.overdue", **facts})
        raise HookOverdue(text)
    except asyncio.CancelledError:
        await stop([task])
        raise


async def stop(tasks: Iterable[asyncio.Task[Any]], within_s: float = CANCEL_S) -> set[asyncio.Task[Any]]:
    """Cancel hooks, and again after `within_s`. Returns those that still run: they are left behind."""
    running = {task for task in tasks if not task.done()}
    for wait_s in (within_s, _AGAIN_S):
        for task in running:
            task.add_done_callback(look_at)
            task.cancel()
        if running:
            _, running = await asyncio.wait(running, timeout=wait_s)
    return running


def look_at(done: asyncio.Future[Any]) -> None:
    """A done callback that retrieves the exception, so that asyncio does not complain if nobody else does."""
    if not done.cancelled():
        done.exception()
