"""One execution in the current thread, from start to end: shared by threads and child processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from ....schemas.deadline import UNDER
from ....schemas.errors.base import GanglineError
from ...context.task_context import TaskContext
from ...pool.pool import BoundCall, Outcome, Shape
from .execution import CollectedStream, OnItem


class StreamCredit:
    """Taken by the producing thread, granted by the thread that receives the reader's messages."""

    def __init__(
        self, items: int, *, on_park: Callable[[], None] | None = None, on_unpark: Callable[[], None] | None = None
    ) -> None:
        """
        Args:
            items: the initial credit.
            on_park: called by the producer's thread before it blocks.
            on_unpark: called in the thread that ends the block, before the producer's thread continues.
        """
        self._changed = threading.Condition()
        self._items = items
        self._closed: GanglineError | None = None
        self._parked = False
        self._on_park = on_park
        self._on_unpark = on_unpark
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def take(self) -> None:
        """Take room for one item, blocking this thread until there is some.

        Raises:
            GanglineError: the reason that `close` was given.
        """
        with self._changed:
            if not self._take_nowait():
                self._parked = True
                if self._on_park is not None:
                    self._on_park()
                self._changed.wait_for(lambda: not self._parked)
                if not self._take_nowait():
                    raise AssertionError("unparked without room")

    async def take_async(self) -> None:
        """`take` for a coroutine, which leaves its loop running meanwhile."""
        while True:
            with self._changed:
                if self._take_nowait():
                    return
                loop = asyncio.get_running_loop()
                waiter = loop.create_future()
                self._waiter = (loop, waiter)
            await waiter

    def add(self, items: int) -> None:
        """Grant credit: the reader has taken this many items."""
        with self._changed:
            self._items += items
            if self._items > 0:
                self._wake()

    def close(self, reason: GanglineError) -> None:
        """Stop the stream: `take` raises the reason, also where it waits."""
        with self._changed:
            self._closed = self._closed or reason
            self._wake()

    def _take_nowait(self) -> bool:
        if self._closed is not None:
            raise self._closed
        if self._items <= 0:
            return False
        self._items -= 1
        return True

    def _wake(self) -> None:
        if self._parked:
            self._parked = False
            if self._on_unpark is not None:
                self._on_unpark()
            self._changed.notify_all()
        if self._waiter is not None:
            (loop, waiter), self._waiter = self._waiter, None
            loop.call_soon_threadsafe(_resolve, waiter)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


Ending = Outcome | BaseException
RunCoroutine = Callable[[Coroutine[Any, Any, Ending]], Ending]
"""Runs a coroutine to its end on an event loop of this thread."""


class BlockingStream:
    """Sends the items of a stream."""

    __slots__ = ("_on_item", "_room", "sent")

    def __init__(self, on_item: OnItem, room: StreamCredit) -> None:
        self._on_item = on_item
        self._room = room
        self.sent = 0

    def send(self, value: Any) -> None:
        self._room.take()
        self._pass(value)

    async def send_async(self, value: Any) -> None:
        await self._room.take_async()
        self._pass(value)

    def _pass(self, value: Any) -> None:
        self._on_item(self.sent, value)
        self.sent += 1


def run_here(
    call: BoundCall, context: TaskContext, stream: BlockingStream | None, limit_bytes: int, run_coroutine: RunCoroutine
) -> Outcome:
    """Run the task's function. The caller gives it a copy of the context variables of its own.

    Args:
        call: what to run.
        context: becomes the current task's.
        stream: where items go; None collects them.
        limit_bytes: maximum size of the collected items.
        run_coroutine: for tasks that need an event loop.

    Raises:
        BaseException: whatever the task raised.
    """
    UNDER.set(context)
    task = call.task
    match task.shape:
        case Shape.FUNCTION:
            return Outcome(value=task.result.write(task.function(*call.args, **call.kwargs)))
        case Shape.COROUTINE:
            return _run_guarded(_await(call), run_coroutine)
        case Shape.GENERATOR:
            return _drive(call, context, stream, limit_bytes)
        case Shape.ASYNC_GENERATOR:
            return _run_guarded(_drive_async(call, stream, limit_bytes), run_coroutine)


def _run_guarded(coroutine: Coroutine[Any, Any, Outcome], run_coroutine: RunCoroutine) -> Outcome:
    ending = run_coroutine(_guarded(coroutine))
    if isinstance(ending, BaseException):
        raise ending
    return ending


async def _guarded(coroutine: Coroutine[Any, Any, Outcome]) -> Ending:
    """SystemExit and KeyboardInterrupt would tear down an event loop that they pass through."""
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        return error


async def _await(call: BoundCall) -> Outcome:
    return Outcome(value=call.task.result.write(await call.task.function(*call.args, **call.kwargs)))


def _drive(call: BoundCall, context: TaskContext, stream: BlockingStream | None, limit_bytes: int) -> Outcome:
    task = call.task
    generator = task.function(*call.args, **call.kwargs)
    collected = CollectedStream(task.full_name, limit_bytes)
    send = collected.add if stream is None else stream.send
    try:
        for item in generator:
            context.check_cancelled()
            send(task.result.write(item))
    finally:
        generator.close()
    return Outcome(value=collected.items) if stream is None else Outcome(items=stream.sent)


async def _drive_async(call: BoundCall, stream: BlockingStream | None, limit_bytes: int) -> Outcome:
    task = call.task
    generator = task.function(*call.args, **call.kwargs)
    collected = CollectedStream(task.full_name, limit_bytes)
    try:
        async for item in generator:
            value = task.result.write(item)
            if stream is None:
                collected.add(value)
            else:
                await stream.send_async(value)
    finally:
        await generator.aclose()
    return Outcome(value=collected.items) if stream is None else Outcome(items=stream.sent)
