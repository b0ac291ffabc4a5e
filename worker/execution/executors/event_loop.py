"""Tasks on the worker's own event loop."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Generator
from typing import Any

from ....schemas.errors.base import GanglineError
from ...pool.declared_task import Outcome, Shape
from .carrier import Carrier
from .collected_stream import CollectedStream
from .execution import TaskExecution

_TURN_ITEMS = 16
"""A generator that awaits nothing lets others have the loop after so many items."""


class CoroutineExecution(TaskExecution):
    """One execution on the event loop; see stepper for how it is stepped.

    Cancelling raises CancelledError at the task's current await. A task that swallows it runs on, and its slot stays in
    use until it ends; what it returns then is its result.
    """

    _carrier: asyncio.Task[None] | None = None
    """The asyncio task that it runs as, once it has begun."""
    _room_freed: asyncio.Future[None] | None = None

    def start(self, window: int) -> None:  # type: ignore[override]
        self._room = window
        self._variables = contextvars.copy_context()
        self._site.stepper.add(self)

    def stop(self, reason: GanglineError) -> None:
        if self._carrier is not None:  # else `begin` finds the reason
            self._carrier.cancel()

    def credit(self, items: int) -> None:
        self._room += items
        if self._room > 0 and self._room_freed is not None and not self._room_freed.done():
            self._room_freed.set_result(None)

    # -- for the stepper ------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.where

    def begin(self, carrier: Carrier) -> bool:
        if self.reason is not None:
            self.finish(Outcome(error=self.reason))
            return True
        self._carrier = carrier.task
        call = self.call
        if call.task.shape is Shape.COROUTINE:
            over = carrier.start(self._variables, call.task.function, call.args, call.kwargs, self.context)
        else:
            over = carrier.start(self._variables, self._collected, [], {}, self.context)
        if over:
            value, error = carrier.value, carrier.error
            carrier.value = carrier.error = None
            self.ended(value, error)
        return over

    def ended(self, result: Any, error: BaseException | None) -> None:
        self._carrier = None
        self.finish(self._outcome(result) if error is None else self.failed(error))

    def _outcome(self, result: Any) -> Outcome:
        if type(result) is Outcome:
            return result
        try:
            return Outcome(self.call.task.result.write(result))
        except BaseException as error:
            return self.failed(error)

    # -- what is no coroutine function ----------------------------------------------------------------------------

    async def _collected(self) -> Outcome:
        call = self.call
        task = call.task
        if task.shape is Shape.FUNCTION:
            return Outcome(value=task.result.write(task.function(*call.args, **call.kwargs)))
        return await self._stream(task.function(*call.args, **call.kwargs))

    async def _stream(self, generator: Any) -> Outcome:
        if self.call.task.shape is Shape.GENERATOR:
            generator = _as_async(generator)
        write = self.call.task.result.write
        collected = CollectedStream(self.where, self.settings.max_collected_bytes)
        sequence, closed = 0, False
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
        except GeneratorExit:
            closed = True  # the loop was closed under us: nothing can be awaited, and the generator has heard of it
            raise
        finally:
            if not closed:
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
