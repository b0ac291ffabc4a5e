"""Messages in the stream of tasks that belong to no queue: their subjects have no endpoint, or one that is refused.

Several dispatchers may find one at the same time. No lock is needed: the dead letter has an id, so it is stored once,
the record is created once, and removing a message twice is harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from ....bus.port.bus import Stream, StreamMessage
from ....runtime.tasks import TaskSet
from ....schemas.errors.base import GanglineError, InvalidName, MalformedMessage
from ....schemas.records.jobs import DeadReason
from ..core.effects import Persist, RecordKind
from ..messages.entry import QueuedMessage, job_of, read_message
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

    def found(self, stream: Stream, subjects: list[str], refused: Mapping[str, GanglineError]) -> None:
        """The stream has messages of these subjects, and no others of this kind. One round at a time.

        Args:
            refused: subjects of endpoints that get no queue, and why. Those that are not in it any longer are left to
                their queue.
        """
        if not self._round:
            self._round.start(self._look_at(stream, subjects, refused))

    async def _look_at(self, stream: Stream, subjects: list[str], refused: Mapping[str, GanglineError]) -> None:
        for subject in (*subjects, *refused):
            try:
                await self._look(stream, subject, None if subject in subjects else refused)
            except (GanglineError, TimeoutError) as error:
                self._log.debug("stray %s: %r; trying again later", subject, error, extra={"action": "stray.later"})
            except Exception:
                self._log.exception("stray %s failed", subject, extra={"action": "stray.bug"})

    async def _look(self, stream: Stream, subject: str, refused: Mapping[str, GanglineError] | None) -> None:
        """`refused`: where to look whether it still is; None: it has no endpoint."""
        sequence = 1
        while (message := await stream.next(subject, sequence)) is not None:
            sequence = message.sequence + 1
            if refused is None:
                await self._bury(stream, message, DeadReason.MALFORMED, self._error(message))
            elif (error := refused.get(subject)) is not None:
                await self._bury(stream, message, DeadReason.REFUSED, error)
            else:
                return

    async def _bury(self, stream: Stream, message: StreamMessage, reason: DeadReason, error: GanglineError) -> None:
        read = read_message(self._names, message)
        submission = None if isinstance(read, GanglineError) else read[0]
        job = job_of(message, "") or str(message.sequence) if submission is None else submission.job
        ttl_s = None if submission is None else submission.result_ttl_s
        effect = Persist(
            seq=message.sequence,
            job=job,
            kind=RecordKind.DEAD_LETTER,
            reason=reason,
            error=error,
            result_ttl_s=self._result_ttl_s if ttl_s is None else ttl_s,
        )
        buried = asyncio.Event()
        self._outcomes.persist("", QueuedMessage(message, submission), effect, lambda _: buried.set())
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
