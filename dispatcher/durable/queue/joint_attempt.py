"""One attempt of a durable task on all ranks of a gang: an execution on each rank, and one end for all.

Laws:

1. No execution begins before all have their slots (HELD, then BEGIN), so an attempt starts on all ranks or on none.
2. The attempt has ended when it has ended on every rank, so the next one never overlaps with it. When one rank fails,
   the others are told to stop.
3. It succeeds with the results of all ranks. It fails with the error of the rank that failed first. It may have started
   if BEGIN was sent and not every rank reports that nothing started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from ....schemas.errors.base import GanglineError, TaskCancelled, WorkerLost
from ....schemas.wire.frames import AnswerOp, Frame, RequestOp
from ...routing.outcome import TryOutcome, error_of_fate
from ...routing.worker_table import WorkerEntry
from ...transport.exchange import RequestExchange
from ..messages.entry import AttemptListener, JobAttempt, error_of_answer
from ..workers.failure_detector import WorkerFailureDetector

_ATTACH_AGAIN_S: Final = 0.1


class JointFlight(JobAttempt, AttemptListener):
    """One attempt, as its owner sees it. It is not sent itself, but listens to one attempt per rank."""

    __slots__ = ("_begun", "_ends", "_exchange", "_failed", "_find", "_frame_of", "_held", "_kept", "_names",
                 "_parts", "_results", "_started", "_timers", "_failure_detector", "_waiting")  # fmt: skip

    def __init__(
        self,
        exchange: RequestExchange,
        failure_detector: WorkerFailureDetector,
        names: Sequence[str],
        *,
        find: Callable[[str], WorkerEntry | None],
        frame_of: Callable[[JobAttempt, int], Frame],
        ends: Callable[[JointFlight, list[Any], GanglineError | None], None],
        worker: WorkerEntry,
        seq: int,
        attempt: int,
        attached: bool,
    ) -> None:
        """
        Args:
            names: the worker of each rank, as `<pool>.<worker>`; empty: unknown.
            find: finds the live worker with a name.
            frame_of: makes the frame for a rank, which attaches if the attempt is attached.
            ends: called once, with the results by rank, or the error.
            worker: that of the first known rank; for display.
        """
        super().__init__(exchange, worker, self, seq=seq, attempt=attempt, attached=attached)
        self._exchange = exchange
        self._failure_detector = failure_detector
        self._names = names
        self._find = find
        self._frame_of = frame_of
        self._ends = ends
        self._parts: dict[JobAttempt, int] = {}
        """Sent but not answered, with their ranks."""
        self._waiting = set(range(len(names)))
        """Ranks on which it has not ended."""
        self._kept: set[int] = set()
        """Ranks whose workers have forgotten the answer, and keep the end."""
        self._held: set[int] = set()
        self._begun = attached
        self._started = False
        """Whether a rank that has ended may have done some work."""
        self._results: dict[int, Any] = {}
        self._failed: GanglineError | None = None
        self._timers: set[asyncio.TimerHandle] = set()

    def launch(self) -> None:
        """Send it to all ranks. It may end at once."""
        for rank in range(len(self._names)):
            self._send(rank)

    def cancel(self) -> None:
        """Tell all ranks to stop; it ends when they have."""
        for part in list(self._parts):
            if part not in self._parts:
                continue  # the end of an earlier rank has recalled it already
            if self._exchange.recall(part):
                self._end(self._take(part), _not_sent())
            else:
                self._exchange.post(part.worker, (RequestOp.CANCEL, part.id))

    def let_go(self) -> None:
        """Ignore everything that follows. Unsent frames are not sent."""
        for timer in self._timers:
            timer.cancel()
        for part in list(self._parts):
            if not self._exchange.recall(part):
                self._exchange.forget(part)
            self._take(part)
        self._waiting.clear()

    # -- AttemptListener ------------------------------------------------------------------------------------------

    def landed(self, sent_attempt: JobAttempt, frame: Frame) -> None:
        if sent_attempt not in self._parts:
            return
        rank = self._take(sent_attempt)
        if sent_attempt.refused(frame):
            self._ask_again(rank)
            return
        error = error_of_answer(frame, self._names[rank])
        self._end(rank, error, frame[2] if frame[0] == AnswerOp.OK else None)

    def crashed(self, sent_attempt: JobAttempt, fate: TryOutcome) -> None:
        if sent_attempt not in self._parts:
            return
        rank = self._take(sent_attempt)
        if sent_attempt.asks_again(fate):
            if not sent_attempt.attached:
                self._kept.add(rank)
            self._ask_again(rank)
            return
        self._end(rank, error_of_fate(fate, self._names[rank], idempotent=True))

    def held(self, sent_attempt: JobAttempt) -> None:
        """Law 1."""
        if sent_attempt in self._parts and not self._begun and self._failed is None:
            self._held.add(self._parts[sent_attempt])
            if len(self._held | self._results.keys()) == len(self._names):
                self._begun = True
                for part in self._parts:
                    self._exchange.post(part.worker, (RequestOp.BEGIN, part.id))

    # -- inside ---------------------------------------------------------------------------------------------------

    def _send(self, rank: int) -> None:
        attached = self.attached or rank in self._kept
        worker = self._find(self._names[rank]) if self._names[rank] else None
        if worker is None:
            name = self._names[rank] or f"the worker of rank {rank}"
            self._end(rank, WorkerLost(f"{name} is gone, and may have run it", may_have_started=attached))
            return
        if self._failed is not None and not attached:
            self._end(rank, _not_sent())
            return
        exchange = self._exchange
        part = JobAttempt(exchange, worker, self, seq=self.seq, attempt=self.attempt, attached=attached)
        self._parts[part] = rank
        self._failure_detector.watch(worker)
        try:
            exchange.launch(part, self._frame_of(part, rank))
        except GanglineError as error:  # for example too large for a message: nothing was sent
            self._end(self._take(part), error)
            return
        if self._failed is not None and attached:
            exchange.post(worker, (RequestOp.CANCEL, part.id))

    def _ask_again(self, rank: int) -> None:
        def again() -> None:
            self._timers.discard(timer)
            self._send(rank)

        timer = self._exchange.loop.call_later(_ATTACH_AGAIN_S, again)
        self._timers.add(timer)

    def _take(self, part: JobAttempt) -> int:
        self._failure_detector.unwatch(part.worker)
        return self._parts.pop(part)

    def _end(self, rank: int, error: GanglineError | None, result: Any = None) -> None:
        """Laws 2 and 3."""
        self._waiting.discard(rank)
        if error is None:
            self._results[rank] = result
        else:
            self._started = self._started or error.may_have_started
            if self._failed is None:
                self._failed = error
                error.details = {**error.details, "rank": rank}
                self.cancel()
        if not self._waiting and len(self._results) == len(self._names):
            self._over([self._results[each] for each in range(len(self._names))], None)
        elif not self._waiting and self._failed is not None:
            self._failed.may_have_started = self._begun and (self._started or bool(self._results))
            self._over([], self._failed)

    def _over(self, results: list[Any], error: GanglineError | None) -> None:
        ends, self._ends = self._ends, _nothing
        ends(self, results, error)

    def __repr__(self) -> str:
        return f"JointFlight({self.id}, {len(self._waiting)} of {len(self._names)} ranks to end, begun={self._begun})"


def _not_sent() -> GanglineError:
    return TaskCancelled("it was cancelled before it was sent", may_have_started=False)


def _nothing(sent_attempt: JointFlight, results: list[Any], error: GanglineError | None) -> None:
    pass
