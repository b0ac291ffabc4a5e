"""Tasks that belong to no queue: their subjects have no endpoint, or one that is refused; or somebody has removed the
stream that they were in, and a dispatcher still has what it had read.

Several dispatchers may find one at the same time. No lock is needed: the dead letter has an id, so it is stored once,
the record is created once, and removing a message twice is harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final

from ....bus.port.bus import Stream, StreamMessage, StreamState
from ....runtime.tasks import TaskSet
from ....schemas.errors.base import GanglineError, InvalidName, MalformedMessage, OutcomeUnknown, Unavailable
from ....schemas.records.jobs import DeadReason
from ....schemas.text import count_of
from ...jobs.storage import until_taken
from ..core.effects import Persist, RecordKind
from ..messages.entry import QueuedMessage, job_of, read_message
from ..persistence.outcome_store import OutcomeStore
from ..workers.context import DispatcherContext
from .queue_runner import QueueRunner

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
        self._streams = context.streams
        self._removed = TaskSet("removed tasks", context.log)
        self.buried = 0

    def start(self) -> None:
        self._outcomes.start()

    async def stop(self) -> None:
        """Idempotent."""
        await self._round.stop()
        await self._removed.stop()
        await self._outcomes.stop()

    def found(self, stream: Stream, subjects: list[str], refused: Mapping[str, GanglineError]) -> None:
        """The stream has messages of these subjects, and no others of this kind. One round at a time.

        Args:
            refused: subjects of endpoints that get no queue, and why. Those that are not in it any longer are left to
                their queue.
        """
        if not self._round:
            self._round.start(self._look_at(stream, subjects, refused))

    def lost(self, queue: QueueRunner, *, unread: int) -> None:
        """A queue was lost: if that is because its stream was removed, bury what it had read.

        Args:
            unread: tasks in the stream that it had not read.
        """
        self._removed.start(self._look_for_removed(queue, unread))

    async def _look_for_removed(self, queue: QueueRunner, unread: int) -> None:
        async def look() -> StreamState:
            return await (await self._streams.tasks()).state()

        state = await until_taken("looking at the stream of tasks", look, self._log)
        if not queue.is_of_removed(state):
            return
        name, endpoint = self._names.tasks_stream, queue.endpoint
        read = queue.entries.values() if queue.was_certain else ()
        self._log.error(
            "the stream %s was removed with the queue %s: %s that this dispatcher had read become dead letters "
            "('gangline dead replay' submits them again), %s are lost. To empty a queue, pause it "
            "('gangline route set %s --pause') and cancel its jobs",
            name,
            endpoint,
            count_of(len(read), "task"),
            count_of(unread + len(queue.entries) - len(read), "other"),
            endpoint,
            extra={"action": "queue.removed", "endpoint": endpoint, "tasks": len(read), "lost": unread},
        )
        for entry in read:
            attempts = max(entry.attempt, entry.noted)
            text = f"somebody removed the stream {name} that it was in"
            running = entry.started and entry.attempt > entry.noted
            error = OutcomeUnknown(f"{text} while it ran") if running else Unavailable(text)
            with contextlib.suppress(TimeoutError):
                await self._store(entry, self._effect_of(entry, DeadReason.REMOVED, error, attempts))

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
        entry = QueuedMessage(message, None if isinstance(read, GanglineError) else read[0])
        await self._store(entry, self._effect_of(entry, reason, error))
        await stream.delete(message.sequence)

    def _effect_of(self, entry: QueuedMessage, reason: DeadReason, error: GanglineError, attempts: int = 0) -> Persist:
        submission, message = entry.submission, entry.message
        job = job_of(message, "") or str(message.sequence) if submission is None else submission.job
        ttl_s = None if submission is None else submission.result_ttl_s
        return Persist(
            seq=message.sequence,
            job=job,
            kind=RecordKind.DEAD_LETTER,
            attempts=attempts,
            reason=reason,
            error=error,
            result_ttl_s=self._result_ttl_s if ttl_s is None else ttl_s,
        )

    async def _store(self, entry: QueuedMessage, effect: Persist) -> None:
        buried = asyncio.Event()
        self._outcomes.persist("", entry, effect, lambda _: buried.set())
        async with asyncio.timeout(_PATIENCE_S):  # the others must not wait for one that cannot be stored
            await buried.wait()
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
