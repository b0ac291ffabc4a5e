"""One execution in the current thread, from its first line to its last: what threads and child processes share."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from ....schemas.deadline import UNDER
from ...context.task_context import TaskContext
from ...pool.declared_task import BoundCall, Outcome, Shape
from .collected_stream import CollectedStream
from .execution import OnItem
from .stream_credit import StreamCredit

Ending = Outcome | BaseException
RunCoroutine = Callable[[Coroutine[Any, Any, Ending]], Ending]
"""Runs a coroutine to its end on an event loop of this thread."""


class BlockingStream:
    """The way out for items."""

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
    """Run the task's function, in a copy of the context variables that is its own.

    Args:
        call: what to run.
        context: becomes the current task's.
        stream: where items go; None collects them.
        limit_bytes: of what is collected.
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
