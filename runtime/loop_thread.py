"""An event loop in its own thread, for code without one."""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import contextvars
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from ..schemas.errors.base import ClosedError, InvalidSettings
from .tracebacks import FRAMES_HIDDEN, hide_frames

T = TypeVar("T")

_CLEAN_UP_S = 2.0
"""How long an interrupted call may clean up."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where there is one; None: asyncio's own."""
    if sys.platform == "win32":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class _ThreadCall(Generic[T]):
    """A coroutine that the loop runs while a thread waits for it.

    A lock is all that wakes the thread: a concurrent Future takes about as long as the rest of an empty call.
    """

    __slots__ = ("_context", "_coroutine", "_loop", "_task", "ended")

    def __init__(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._coroutine = coroutine
        # The caller's context, so that deadline and trace of a surrounding task are inherited.
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[T]
        """Exists once it has begun."""
        self.ended = threading.Lock()
        """Released when it has ended."""
        self.ended.acquire()

    def begin(self) -> None:
        """Called on the loop."""
        self._task = self._loop.create_task(self._coroutine, context=self._context)
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        """Called on the loop, after `begin`."""
        self._task.cancel()

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # if the thread was interrupted, nobody else looks at it
        self.ended.release()

    @property
    def done(self) -> bool:
        """Whether it has ended. For any thread."""
        return hasattr(self, "_task") and self._task.done()

    def wait(self) -> T:
        """Called by the thread: its result.

        Raises:
            concurrent.futures.CancelledError: it was cancelled by itself.
        """
        self.ended.acquire()
        if self._task.cancelled():
            raise concurrent.futures.CancelledError
        return self._task.result()


_GREEN: Final = {"gevent": "monkey.patch_all()", "eventlet": "monkey_patch()"}


def _check_threads() -> None:
    """
    Raises:
        InvalidSettings: threads were replaced by greenlets, which all run in one thread. The event loop would block it,
            and the caller would wait for ever.
    """
    for name in ("start_new_thread", "start_joinable_thread"):  # the latter since Python 3.13
        origin = getattr(getattr(_thread, name, None), "__module__", None) or ""
        library = origin.partition(".")[0]
        if library in _GREEN:
            raise InvalidSettings(
                f"connect_sync needs real threads, and {library} has replaced them ({_GREEN[library]}): every call "
                "would wait for ever. Use a server with real threads (gunicorn -k gthread), or call from a process "
                "that is not patched"
            )


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        """
        Raises:
            InvalidSettings: there are no real threads.
        """
        _check_threads()
        self._process = os.getpid()
        self._loop = (loop_factory() or asyncio.new_event_loop)()
        self._thread = threading.Thread(target=self._main, name="gangline-client", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run to the end and return the result. An interrupt (Ctrl-C) cancels the coroutine and waits for its clean-up,
        so that slots are released.

        Raises:
            ClosedError: the loop was stopped, or it belongs to the process that this one was forked from.
            RuntimeError: called on the loop's own thread.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a SyncClient cannot be used inside its own event loop: use Client there")
        if not self._thread.is_alive() or self._loop.is_closed():
            coroutine.close()
            if self._process != os.getpid():
                raise ClosedError("this client was made before a fork: connect in the child process")
            raise ClosedError("this client was closed")
        call = _ThreadCall(self._loop, coroutine)
        self._loop.call_soon_threadsafe(call.begin)
        try:
            return call.wait()
        except BaseException as error:
            if not call.done:
                self._loop.call_soon_threadsafe(call.cancel)
                call.ended.acquire(timeout=_CLEAN_UP_S)
            hide_frames(error)
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call a plain function on the loop. Raises as `run`."""

        async def on_loop() -> T:
            return function()

        return self.run(on_loop())

    def stop(self) -> None:
        """Stop the loop and join its thread. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join()


Target = TypeVar("Target", covariant=True)


class SyncProxy(Generic[Target]):
    """Plain functions in front of an object that belongs to the loop of a thread."""

    def __init__(self, thread: LoopThread, target: Target) -> None:
        self._thread = thread
        self._target = target

    def __repr__(self) -> str:
        return f"Sync{self._target!r}"


class Closable(Protocol):
    """An object that is started and closed on its loop."""

    def start(self) -> Coroutine[Any, Any, Any]: ...

    def close(self) -> Coroutine[Any, Any, None]: ...


R = TypeVar("R", bound=Closable)


class OwningProxy(SyncProxy[R]):
    """A proxy that starts and stops its own thread."""

    def __init__(self, open_client: Callable[[], Coroutine[Any, Any, R]]) -> None:
        """`open_client` runs on the proxy's own loop."""
        self._thread = LoopThread()
        try:
            self._target = self._thread.run(open_client())
        except BaseException as error:
            self._thread.stop()
            hide_frames(error)
            raise

    def _with(self, target: R) -> Self:
        """A proxy of another target on the same thread."""
        proxy = type(self).__new__(type(self))
        SyncProxy.__init__(proxy, self._thread, target)
        return proxy

    def start(self) -> Self:
        """Does nothing: it started when it was created."""
        self._thread.run(self._target.start())
        return self

    def close(self) -> None:
        """Close the target and end the thread. Idempotent."""
        try:
            self._thread.run(self._target.close())
        except ClosedError:
            return
        self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SyncContext(Generic[T]):
    """An async context manager, entered and left from plain code."""

    def __init__(self, thread: LoopThread, manager: Any) -> None:
        self._thread = thread
        self._manager = manager

    def _entered(self, entered: Any) -> T:
        """The value for `with`, from that of `async with`."""
        found: T = entered
        return found

    def __enter__(self) -> T:
        try:
            return self._entered(self._thread.run(self._manager.__aenter__()))
        except BaseException as error:
            # Interrupted (Ctrl-C) just when it had succeeded: nobody else would release the slots.
            self._thread.run(self._manager.__aexit__(None, None, None))
            hide_frames(error)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._manager.__aexit__(kind, error, trace))


def iterate(thread: LoopThread, items: AsyncGenerator[Any, None]) -> Generator[Any, None, None]:
    """Yield the items one by one; closing this closes the source."""
    with FRAMES_HIDDEN:
        try:
            while True:
                try:
                    item = thread.run(_next(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            thread.run(_close(items))


async def _next(items: AsyncGenerator[Any, None]) -> Any:
    return await items.__anext__()


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()
