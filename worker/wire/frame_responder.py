"""Answers to routers: outcomes of runs as frames."""

from __future__ import annotations

from typing import Any, Final

from ...schemas.errors.base import GanglineError, InvalidRequest, InvalidResult, TaskCancelled
from ...schemas.wire.frames import AnswerOp, Frame, encode_frame
from ..execution.runner import TaskRun
from ..ledger.core_driver import CoreDriver
from ..pool.declared_task import Outcome
from .answer_batcher import AnswerBatcher
from .error_frames import error_frame

_OK: Final = int(AnswerOp.OK)


class FrameResponder:
    """Whoever sent one envelope: where answers to its frames go."""

    __slots__ = ("_again", "_driver", "_answers", "_reply")
    job = None
    progress = None

    def __init__(self, reply: str, answer_batcher: AnswerBatcher, driver: CoreDriver) -> None:
        self._reply = reply
        self._answers = answer_batcher
        self._driver = driver
        self._again: set[int] | None = None
        """Ids whose answers were sent again."""

    def send_again(self, task_id: int, frame: bytes) -> None:
        """Send a kept answer, once for each envelope: a few bytes that name an id many times must not make us send a
        large answer as often."""
        if self._again is None:
            self._again = set()
        if task_id not in self._again:
            self._again.add(task_id)
            self.send(frame)

    def refused(self, slots: int) -> None:
        """It was told that so many slots are not free."""
        self._answers.refused(self._reply, slots)

    def send(self, frame: bytes) -> None:
        """Send an encoded frame. Without a reply subject it goes nowhere."""
        if self._reply:
            self._answers.put(self._reply, frame)

    def held(self, run: TaskRun) -> None:
        """Say that it waits for BEGIN."""
        self.send_frame((AnswerOp.HELD, run.record.id))

    def send_frame(self, frame: Frame) -> None:
        self.send(encode_frame(frame))

    def answer(self, run: TaskRun, outcome: Outcome) -> GanglineError | None:
        """Send the outcome of a run, and note it for whoever asks again."""
        record = run.record
        error = outcome.error
        try:
            frame = self.frame(run, outcome)
        except InvalidResult as unwritable:
            error = unwritable
            frame = error_frame(record.id, error, self._answers.largest_frame)
        self._driver.core.settle(record.sender, record.id, frame, self._driver.now())
        self.send(frame)
        return error

    def item(self, run: TaskRun, sequence: int, value: Any) -> None:
        """Send an item. One that cannot be sent ends the stream with InvalidResult."""
        try:
            frame = self.item_frame(run, sequence, value)
        except InvalidResult as error:
            run.answer(Outcome(error=error))
            run.cancel(TaskCancelled(error.message))
        else:
            self.send(frame)

    def item_frame(self, run: TaskRun, sequence: int, value: Any, spare: int = 0) -> bytes:
        """Write an item, to leave so many bytes of a message free.

        Raises:
            InvalidResult: it cannot be written, or is too large.
        """
        return self._fitting((AnswerOp.ITEM, run.record.id, sequence, value), f"item {sequence}", run, spare)

    def frame(self, run: TaskRun, outcome: Outcome, spare: int = 0) -> bytes:
        """Write the answer, to leave so many bytes of a message free.

        Raises:
            InvalidResult: the result cannot be written, or is too large.
        """
        task_id = run.record.id
        if outcome.error is not None:
            return error_frame(task_id, outcome.error, self._answers.largest_frame - spare)
        if outcome.items is not None:
            return encode_frame((AnswerOp.END, task_id, outcome.items))
        return self._fitting((_OK, task_id, outcome.value), "the result", run, spare)

    def _fitting(self, frame: Frame, what: str, run: TaskRun, spare: int) -> bytes:
        limit = self._answers.largest_frame - spare
        try:
            written = encode_frame(frame)
        except InvalidRequest as error:
            raise InvalidResult(f"{what} of {run.task.full_name} {error.message}") from error
        if len(written) > limit:
            raise too_large(what, run.task.full_name, len(written), limit)
        return written


def too_large(what: str, task: str, size: int, limit: int) -> InvalidResult:
    """The error for a result or an item over the server's limit."""
    return InvalidResult(
        f"{what} of {task} is {size} bytes and at most {limit} fit a message: stream it in parts, store it and return "
        "where, or raise the server's max_payload",
        details={"size": size, "limit": limit},
    )
