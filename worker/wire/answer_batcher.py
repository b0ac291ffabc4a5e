"""Batches answers: all answers to one caller within one turn of the event loop share one message."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ...bus.port.bus import Bus
from ...schemas.errors.base import (
    ClosedError,
    Disconnected,
    GanglineError,
    InvalidRequest,
    InvalidResult,
    PayloadTooLarge,
    TaskCancelled,
)
from ...schemas.wire.codec import unpack
from ...schemas.wire.frames import ENVELOPE_BYTES, AnswerOp, Frame, Load, encode_frame, join_answer
from ...telemetry.logs import Log
from ..execution.runner import TaskRun
from ..ledger.core_driver import CoreDriver
from ..pool.pool import Outcome
from ..slots.limiter import CapacityWaiters
from ..slots.method_limits import MethodLimit

MAX_MESSAGE_CHARS: Final = 2000
"""An error's text is cut to this length if its frame does not fit into a message."""


def error_frame(task_id: int, error: GanglineError, limit: int) -> bytes:
    """An ERROR frame, shortened if necessary."""
    frame = _error(task_id, error, error.message, error.details or None)
    if len(frame) > limit:
        frame = _error(task_id, error, error.message[:MAX_MESSAGE_CHARS], None)
    return frame


def _error(task_id: int, error: GanglineError, message: str, details: dict[str, Any] | None) -> bytes:
    try:
        return encode_frame((AnswerOp.ERROR, task_id, error.code, message, details, error.may_have_started))
    except InvalidRequest:  # details of a user-defined error, or text that is not valid Unicode
        clean = message.encode("utf-8", "backslashreplace").decode()
        return encode_frame((AnswerOp.ERROR, task_id, error.code, clean, None, error.may_have_started))


class AnswerBatcher:
    """Collects frames by reply subject and publishes them at the end of the turn. There is no timer: a lone answer
    waits for nothing.

    While the connection is down, answers are kept up to `keep_bytes`; the oldest are dropped first. Nothing is lost:
    the caller asks (CHECK) and gets the kept answer, or is told that it is forgotten.
    """

    def __init__(self, bus: Bus, head: Callable[[], tuple[int, Load]], *, keep_bytes: int, log: Log) -> None:
        """`head` returns the epoch and the load when a message is sent."""
        self._bus = bus
        self._head = head
        self._keep_bytes = keep_bytes
        self._log = log
        self._pending: dict[str, list[bytes]] = {}
        """Frames of this turn by reply subject."""
        self._scheduled = False
        self._muted = False
        self._kept: deque[tuple[str, list[bytes], int]] = deque()
        """Unsent answers: reply subject, frames, their bytes."""
        self._kept_bytes = 0
        self.waiters = CapacityWaiters()
        """Routers that were refused and are to be invited."""
        self.messages = 0
        self.frames = 0
        self.dropped = 0

    @property
    def largest_frame(self) -> int:
        """Maximum size of one frame, alone in its message."""
        return self._bus.max_payload - ENVELOPE_BYTES

    @property
    def empty(self) -> bool:
        return not self._pending and not self._kept

    def put(self, reply: str, frame: bytes) -> None:
        """Send an encoded frame, at most `largest_frame` long, with the others of this turn. Without a reply subject it
        is dropped."""
        if self._muted or not reply:
            return
        frames = self._pending.get(reply)
        if frames is None:
            self._pending[reply] = [frame]
        else:
            frames.append(frame)
        if not self._scheduled:
            self._scheduled = True
            self._bus.at_turn_end(self.flush)

    def refused(self, reply: str, slots: int) -> None:
        """A request with this reply subject was refused for lack of slots: it is invited when they are free."""
        if not self._muted:
            self.waiters.refused(reply, slots, asyncio.get_running_loop().time())

    def invite(self) -> None:
        """Slots may be free: at the end of the turn, tell the routers that were refused."""
        if self.waiters and not self._scheduled:
            self._scheduled = True
            self._bus.at_turn_end(self.flush)

    def flush(self) -> None:
        """Publish what is pending now."""
        self._scheduled = False
        pending, self._pending = self._pending, {}
        if self.waiters:
            self._invite(pending)
        for reply, frames in pending.items():
            self._send(reply, frames)

    def resume(self) -> None:
        """The connection is back: publish what was kept."""
        kept, self._kept, self._kept_bytes = self._kept, deque(), 0
        for reply, frames, _ in kept:
            self._send(reply, frames)

    def mute(self) -> None:
        """Send nothing more, and keep nothing."""
        self._muted = True
        self._pending.clear()
        self.waiters.clear()
        self._kept.clear()
        self._kept_bytes = 0

    def statistics(self) -> dict[str, int]:
        """Messages and frames published, frames dropped while disconnected, bytes kept now."""
        return {
            "messages": self.messages,
            "frames": self.frames,
            "dropped": self.dropped,
            "kept_bytes": self._kept_bytes,
        }

    def __repr__(self) -> str:
        return f"AnswerBatcher({', '.join(f'{name}={number}' for name, number in self.statistics().items())})"

    def _invite(self, pending: dict[str, list[bytes]]) -> None:
        """Tell waiting routers the load in envelopes without frames. They are sent before the answers of this turn,
        which tell the same to the routers that had the slots until now."""
        epoch, load = self._head()
        if load.draining or load.free <= 0:
            return
        for reply in pending:
            self.waiters.told(reply, load.free)
        for reply in self.waiters.invite(load.free, asyncio.get_running_loop().time()):
            try:
                self._bus.publish(reply, join_answer(epoch, load, ()))
            except GanglineError as error:
                self._log.debug("invitation not sent: %s", error.message[:200], extra={"action": "invitation.lost"})
            else:
                self.messages += 1

    def _send(self, reply: str, frames: list[bytes]) -> None:
        epoch, load = self._head()
        room = self.largest_frame
        if sum(map(len, frames)) <= room:
            self._publish(reply, frames, epoch, load)
            return
        start, size = 0, 0
        for index, frame in enumerate(frames):
            if size + len(frame) > room and index > start:
                self._publish(reply, frames[start:index], epoch, load)
                start, size = index, 0
            size += len(frame)
        self._publish(reply, frames[start:], epoch, load)

    def _publish(self, reply: str, frames: list[bytes], epoch: int, load: Load) -> None:
        if self._kept:
            # The connection may already be back without our knowing. Items of a stream must keep their order.
            self._keep(reply, frames)
            return
        try:
            self._bus.publish(reply, join_answer(epoch, load, frames))
        except Disconnected:
            self._keep(reply, frames)
        except ClosedError:
            self.dropped += len(frames)
        except PayloadTooLarge as error:
            self._too_large(reply, frames, epoch, load, error)
        except GanglineError as error:
            # A reply subject that cannot be published to must not affect the others of this turn.
            self.dropped += len(frames)
            self._log.debug(
                "cannot answer to %r: %s", reply[:80], error.message[:200], extra={"action": "answers.refused"}
            )
        else:
            self.messages += 1
            self.frames += len(frames)

    def _too_large(self, reply: str, frames: list[bytes], epoch: int, load: Load, refused: PayloadTooLarge) -> None:
        """The size was checked when the frame was made, but the current server accepts less. Send an error instead of a
        result; in a stream, the reader detects the gap."""
        kind, number = unpack(frames[0])[:2]
        if len(frames) > 1 or kind != AnswerOp.OK:
            self.dropped += len(frames)
            return
        error = InvalidResult(f"the result cannot be sent to its caller: {refused.message}", details=refused.details)
        told = error_frame(number, error, self.largest_frame)
        if len(told) < len(frames[0]):
            self._publish(reply, [told], epoch, load)

    def _keep(self, reply: str, frames: list[bytes]) -> None:
        size = sum(map(len, frames))
        self._kept.append((reply, frames, size))
        self._kept_bytes += size
        while self._kept_bytes > self._keep_bytes:
            _, old, old_size = self._kept.popleft()
            self._kept_bytes -= old_size
            self.dropped += len(old)
            self._log.warning(
                "dropped %d answers that could not be sent", len(old), extra={"action": "answers.dropped"}
            )


_OK: Final = int(AnswerOp.OK)


class FrameResponder:
    """The sender of one envelope: receives the answers to its frames."""

    __slots__ = ("_again", "_answers", "_driver", "_reply", "send")
    job = None
    progress = None

    def __init__(self, reply: str, answer_batcher: AnswerBatcher, driver: CoreDriver) -> None:
        self._reply = reply
        self._answers = answer_batcher
        self.send: Callable[[bytes], None] = partial(answer_batcher.put, reply)
        """Send an encoded frame; see AnswerBatcher.put."""
        self._driver = driver
        self._again: set[int] | None = None
        """Ids whose answers have been sent again."""

    def send_again(self, task_id: int, frame: bytes) -> None:
        """Send a kept answer, once per envelope: a small envelope that names an id many times must not make us send a
        large answer as often."""
        if self._again is None:
            self._again = set()
        if task_id not in self._again:
            self._again.add(task_id)
            self.send(frame)

    def refused(self, slots: int) -> None:
        """The sender was told that `slots` are not free."""
        self._answers.refused(self._reply, slots)

    def limited(self, limit: MethodLimit) -> None:
        """The sender was told that a declared limit is reached: it is invited when one of those executions ends."""
        limit.refused(self._reply)

    def held(self, run: TaskRun) -> None:
        """Say that the run waits for BEGIN."""
        self.send_frame((AnswerOp.HELD, run.record.id))

    def send_frame(self, frame: Frame) -> None:
        self.send(encode_frame(frame))

    def answer(self, run: TaskRun, outcome: Outcome) -> GanglineError | None:
        """Send the outcome of a run, and keep it for repeated requests."""
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
        """Encode an item that leaves `spare` bytes of a message free.

        Raises:
            InvalidResult: it cannot be serialized, or is too large.
        """
        return self._fitting((AnswerOp.ITEM, run.record.id, sequence, value), f"item {sequence}", run, spare)

    def frame(self, run: TaskRun, outcome: Outcome, spare: int = 0) -> bytes:
        """Encode the answer so that it leaves `spare` bytes of a message free.

        Raises:
            InvalidResult: the result cannot be serialized, or is too large.
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
        f"{what} of {task} is {size} bytes, a message takes at most {limit}: stream it in parts, store it and return "
        "where, or raise the server's max_payload",
        details={"size": size, "limit": limit},
    )
