"""Messages in the stream of tasks that belong to no queue: their subjects have no endpoint.

Several dispatchers may find one at the same time. No lock is needed: the dead letter has an id, so it is stored once,
the record is created once, and removing a message twice is harmless.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ....bus.port.bus import Stream, StreamMessage
from ....runtime.tasks import TaskSet
from ....schemas.errors.base import GanglineError, InvalidName, MalformedMessage
from ....schemas.records.jobs import DeadReason
from ..core.effects import Persist, RecordKind
from ..messages.entry import QueuedMessage, job_of
from ..persistence.outcome_store import OutcomeStore
from ..workers.context import DispatcherContext

_PATIENCE_S: Final = 60.0


class StraySweeper:
    """One per dispatcher."""

    def __init__(self, context: DispatcherContext) -> None:
        self._names = context.names
        # It needs no queue, so its writes wait for no proof of ownership.
        self._outcomes = OutcomeStore(
            "",
            context.bus,
            context.names,
            context.streams,
            settings=context.settings,
            ambient=context.ambient,
            sure=_at_once,
            log=context.log,
        )
        self._result_ttl_s = context.settings.result_ttl_s
        self._log = context.log
        self._round = TaskSet("strays", context.log)
        self.buried = 0

    def start(self) -> None:
        self._outcomes.start()

    async def stop(self) -> None:
        """Idempotent."""
        await self._round.stop()
        await self._outcomes.stop()

    def found(self, stream: Stream, subjects: list[str]) -> None:
        """The stream has messages of these subjects, and no others of this kind. One round at a time."""
        if not self._round:
            self._round.start(self._look_at(stream, subjects))

    async def _look_at(self, stream: Stream, subjects: list[str]) -> None:
        for subject in subjects:
            try:
                await self._look(stream, subject)
            except (GanglineError, TimeoutError) as error:
                self._log.debug("stray %s: %r; trying again later", subject, error, extra={"action": "stray.later"})
            except Exception:
                self._log.exception("stray %s failed", subject, extra={"action": "stray.bug"})

    async def _look(self, stream: Stream, subject: str) -> None:
        sequence = 1
        while (message := await stream.next(subject, sequence)) is not None:
            sequence = message.sequence + 1
            await self._bury(stream, message)

    async def _bury(self, stream: Stream, message: StreamMessage) -> None:
        effect = Persist(
            seq=message.sequence,
            job=job_of(message, "") or str(message.sequence),
            kind=RecordKind.DEAD_LETTER,
            reason=DeadReason.MALFORMED,
            error=self._error(message),
            result_ttl_s=self._result_ttl_s,
        )
        buried = asyncio.Event()
        self._outcomes.persist("", QueuedMessage(message, None), effect, lambda _: buried.set())
        async with asyncio.timeout(_PATIENCE_S):  # the others must not wait for one that cannot be stored
            await buried.wait()
        await stream.delete(message.sequence)
        self.buried += 1

    def _error(self, message: StreamMessage) -> GanglineError:
        try:
            self._names.parse_task(message.subject)
        except InvalidName as error:
            return error
        return MalformedMessage(f"{message.subject} is not the subject of a task")

    def __repr__(self) -> str:
        return f"StraySweeper(buried={self.buried})"


async def _at_once() -> None:
    """There is nothing to verify."""
