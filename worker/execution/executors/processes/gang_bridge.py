"""Gang calls of tasks in child processes: the worker makes the call for the child and sends the answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from .....schemas.errors.base import GanglineError, error_from_wire
from .....telemetry.exceptions import error_text
from ....context.task_context import GangBinding, GangContext, GangInfo, TaskContext, gang_of, link
from .protocol import GangAnswer, GangCall

Ask = Callable[[int, str, Any, int], None]
"""Send a call to the worker: number, GangCall, value, root. Thread-safe."""


class GangBridge:
    """In the child: the calls in progress."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ask: Ask) -> None:
        self._loop = loop
        self._ask = ask
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    def attach(self, context: TaskContext) -> None:
        """Connect a starting task's gang to the worker."""
        gang = gang_of(context)
        if gang is not None:
            link(
                gang,
                GangBinding(loop=self._loop, talk=lambda _: _ChildTalk(self), fail=self._fail, latest=_latest),
                context,
            )

    def answered(self, answer: GangAnswer) -> None:
        """Called in the thread that listens to the worker."""
        self._loop.call_soon_threadsafe(self._settle, answer)

    async def call(self, what: GangCall, value: Any = None, root: int = 0) -> Any:
        number = next(self._numbers)
        waiting = self._waiting[number] = self._loop.create_future()
        try:
            self._ask(number, what.value, value, root)
            return await waiting
        finally:
            del self._waiting[number]

    def _fail(self, reason: str) -> None:
        self._ask(next(self._numbers), GangCall.FAIL.value, reason, 0)

    def _settle(self, answer: GangAnswer) -> None:
        waiting = self._waiting.get(answer.number)
        if waiting is None or waiting.done():
            return
        if answer.error is not None:
            waiting.set_exception(error_from_wire(*answer.error))
        else:
            waiting.set_result(answer.value)


class _ChildTalk:
    """The Collectives of a task in the child."""

    __slots__ = ("_gang",)

    def __init__(self, gang: GangBridge) -> None:
        self._gang = gang

    async def barrier(self) -> None:
        await self._gang.call(GangCall.BARRIER)

    async def broadcast(self, value: Any = None, root: int = 0) -> Any:
        return await self._gang.call(GangCall.BROADCAST, value, root)

    async def all_gather(self, value: Any) -> list[Any]:
        values = await self._gang.call(GangCall.ALL_GATHER, value)
        assert isinstance(values, list)
        return values


def _latest() -> GangInfo | None:
    raise LookupError("a task in a child process knows its gang only as it was when the task started")


async def answer_child(gang: GangContext | None, number: int, what: str, value: Any, root: int) -> GangAnswer:
    """In the worker: make the call of a child's task."""
    try:
        if gang is None:
            raise GanglineError("this task does not run in a gang")
        result: Any = None
        match GangCall(what):
            case GangCall.BARRIER:
                await gang.barrier()
            case GangCall.BROADCAST:
                result = await gang.broadcast(value, root)
            case GangCall.ALL_GATHER:
                result = await gang.all_gather(value)
            case GangCall.FAIL:
                gang.fail(str(value))
    except GanglineError as error:
        return GangAnswer(number=number, error=(error.code, error.message, error.details, error.may_have_started))
    except Exception as error:
        text = f"{type(error).__name__}: {error_text(error, 2_000)}"
        return GangAnswer(number=number, error=(GanglineError.code, text, None, False))
    return GangAnswer(number=number, value=result)
