"""Tasks on the worker's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from typing import Any

from ...schemas.deadline import begin_under
from ...schemas.errors import GanglineError
from ..context import CURRENT
from ..tasks import Outcome, Shape
from .collect import Collected
from .run import Run

_TURN_ITEMS = 16
"""A generator that awaits nothing lets others have the loop after so many items."""


class LoopRun(Run):
    """One execution as an asyncio task.

    Cancelling raises CancelledError at the task's current await. A task that swallows it runs on, and its slot stays in
    use until it ends; what it returns then is its result.
    """

    __slots__ = ("_begun", "_room", "_room_freed", "_task")

    def start(self, window: int) -> None:  # type: ignore[override]
        self._begun = False
        self._room = window
        self._room_freed: asyncio.Future[None] | None = None
        self._task = self.loop.create_task(self._main(), name=self.call.task.full_name)

    def stop(self, reason: GanglineError) -> None:
        # Before its first step a cancelled asyncio task would end without a word; _main finds the reason instead.
        if self._begun:
            self._task.cancel()

    def credit(self, items: int) -> None:
        self._room += items
        if self._room > 0 and self._room_freed is not None and not self._room_freed.done():
            self._room_freed.set_result(None)

    async def _main(self) -> None:
        if self.reason is not None:
            self.finish(Outcome(error=self.reason))
            return
        self._begun = True
        CURRENT.set(self.context)
        begin_under(self.context.deadline)
        call = self.call
        task = call.task
        try:
            if task.shape is Shape.COROUTINE:
                outcome = Outcome(value=task.result.write(await task.function(*call.args, **call.kwargs)))
            elif task.shape is Shape.FUNCTION:
                outcome = Outcome(value=task.result.write(task.function(*call.args, **call.kwargs)))
            else:
                outcome = await self._stream(task.function(*call.args, **call.kwargs))
        except BaseException as error:
            # SystemExit and its like too: a task ends itself, never its worker.
            outcome = self.failed(error)
        self.finish(outcome)

    async def _stream(self, generator: Any) -> Outcome:
        if self.call.task.shape is Shape.GENERATOR:
            generator = _as_async(generator)
        write = self.call.task.result.write
        collected = Collected(self.where, self.settings.max_collected_bytes)
        sequence = 0
        try:
            async for item in generator:
                value = write(item)
                if self._on_item is None:
                    collected.add(value)
                else:
                    if self._room <= 0:
                        await self._wait_for_room()
                    self._room -= 1
                    self._on_item(sequence, value)
                sequence += 1
                if sequence % _TURN_ITEMS == 0:
                    await asyncio.sleep(0)
        finally:
            await generator.aclose()
        return Outcome(value=collected.items) if self._on_item is None else Outcome(items=sequence)

    async def _wait_for_room(self) -> None:
        while self._room <= 0:
            self._room_freed = self.loop.create_future()
            await self._room_freed
        self._room_freed = None


async def _as_async(generator: Generator[Any, Any, Any]) -> AsyncIterator[Any]:
    try:
        for item in generator:
            yield item
    finally:
        generator.close()
