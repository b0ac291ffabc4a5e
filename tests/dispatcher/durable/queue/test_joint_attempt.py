"""One try on all ranks of a gang, over scripted workers: it starts on all or on none, and ends when all have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gangline.dispatcher.durable.messages.entry import JobAttempt
from gangline.dispatcher.durable.queue.joint_attempt import JointFlight
from gangline.dispatcher.routing.outcome import TryOutcome
from gangline.dispatcher.routing.worker_table import WorkerEntry
from gangline.schemas.errors.base import GanglineError, TaskCancelled, WorkerLost
from gangline.schemas.wire.frames import AnswerOp, Frame, Reason, RequestOp, TaskFlag

from ....support.dispatcher.fakes import FakeWorker, Rig, silent, turns


class Watched:
    """Counts, in place of the vigil."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self, worker: WorkerEntry) -> None:
        self.count += 1

    def unwatch(self, worker: WorkerEntry) -> None:
        self.count -= 1


class ScriptedRanks:
    """Three workers that do as they are told, and a try on them."""

    def __init__(self, rig: Rig, workers: list[FakeWorker]) -> None:
        self.rig = rig
        self.workers = workers
        self.watched = Watched()
        self.ended: list[tuple[list[Any], GanglineError | None]] = []

    def find(self, name: str) -> WorkerEntry | None:
        return self.rig.router.pools["images"].core.view.workers.get(name.partition(".")[2])

    def fly(self, *names: str, attached: bool = False) -> JointFlight:
        def frame_of(sent_attempt: JobAttempt, rank: int) -> Frame:
            flags = int(TaskFlag.ATTACH) if sent_attempt.attached else 0
            meta = {"job": "j", "rank": rank, "hold": True}
            return (RequestOp.TASK, sent_attempt.id, "echo", None, None, None, None, None, flags, meta)

        worker = self.find(next(filter(None, names)))
        assert worker is not None
        sent_attempt = JointFlight(
            self.rig.router.exchange,
            self.watched,  # type: ignore[arg-type]
            names,
            find=self.find,
            frame_of=frame_of,
            ends=lambda _, results, error: self.ended.append((results, error)),
            worker=worker,
            seq=1,
            attempt=1,
            attached=attached,
        )
        sent_attempt.launch()
        return sent_attempt

    async def answer(self, number: int, operation: AnswerOp, *rest: Any) -> None:
        """The worker answers the newest task that it has."""
        worker = self.workers[number]
        (*_, task) = await worker.hears(RequestOp.TASK)
        worker.answer((operation, task[1], *rest))
        await turns()

    def heard(self, operation: RequestOp) -> list[int]:
        return [len(worker.heard_of(operation)) for worker in self.workers]


NAMES = ("images.w0", "images.w1", "images.w2")


@asynccontextmanager
async def scripted_ranks() -> AsyncIterator[ScriptedRanks]:
    rig = Rig()
    await rig.start()
    try:
        workers = [await rig.worker(f"w{number}", silent) for number in range(3)]
        await rig.router.pool("images")
        yield ScriptedRanks(rig, workers)
    finally:
        await rig.stop()


async def test_a_rank_that_takes_none_ends_it_before_anything_has_started() -> None:
    async with scripted_ranks() as ranks:
        ranks.fly(*NAMES)
        await ranks.answer(0, AnswerOp.HELD)
        await ranks.answer(1, AnswerOp.REJECTED, Reason.DRAINING)
        await ranks.answer(2, AnswerOp.HELD)
        assert ranks.heard(RequestOp.CANCEL) == [1, 0, 1] and ranks.heard(RequestOp.BEGIN) == [0, 0, 0]
        for number in (0, 2):
            await ranks.answer(number, AnswerOp.ERROR, TaskCancelled.code, "told to stop", None, False)
        ((results, error),) = ranks.ended
        assert results == [] and error is not None and error.code == "draining"
        assert error.may_have_started is False and error.details["rank"] == 1


async def test_cancelled_before_it_was_sent_it_ends_at_once_and_later_when_all_have() -> None:
    async with scripted_ranks() as ranks:
        ranks.fly(*NAMES).cancel()
        ((_, error),) = ranks.ended
        assert isinstance(error, TaskCancelled) and error.may_have_started is False and ranks.watched.count == 0
        ranks.ended.clear()
        sent_attempt = ranks.fly(*NAMES)
        await turns()
        sent_attempt.cancel()
        await turns()
        assert ranks.heard(RequestOp.CANCEL) == [1, 1, 1] and ranks.ended == []
        for number in range(3):
            await ranks.answer(number, AnswerOp.ERROR, TaskCancelled.code, "told to stop", None, False)
        assert len(ranks.ended) == 1


@pytest.mark.parametrize("acks", [True, False])
async def test_a_rank_whose_answer_is_forgotten_is_asked_for_the_end_that_its_worker_keeps(acks: bool) -> None:
    async with scripted_ranks() as ranks:
        worker = ranks.find("images.w1")
        assert worker is not None
        worker.acks = acks
        ranks.fly(*NAMES)
        for number in range(3):
            await ranks.answer(number, AnswerOp.HELD)
        for number in (0, 2):
            await ranks.answer(number, AnswerOp.OK, f"r{number}")
        exchange = ranks.rig.router.exchange
        (part,) = exchange.flights.values()
        exchange.lose(part, TryOutcome.FORGOTTEN)
        if not acks:
            assert [error.code for _, error in ranks.ended if error] == ["result_lost"]
            return
        assert ranks.ended == []
        *_, attach = await ranks.workers[1].hears(RequestOp.TASK, 2)
        assert attach[8] == TaskFlag.ATTACH and attach[9]["rank"] == 1
        await ranks.answer(1, AnswerOp.OK, "r1")
        assert ranks.ended == [(["r0", "r1", "r2"], None)] and ranks.watched.count == 0


async def test_one_that_is_attached_to_asks_again_and_a_rank_that_nobody_knows_is_lost() -> None:
    async with scripted_ranks() as ranks:
        ranks.fly(*NAMES, attached=True)
        await ranks.answer(0, AnswerOp.REJECTED, Reason.FULL)
        await asyncio.sleep(0.2)
        assert ranks.heard(RequestOp.TASK) == [2, 1, 1]
        for number in range(3):
            await ranks.answer(number, AnswerOp.OK, number)
        assert ranks.ended == [([0, 1, 2], None)]
        ranks.ended.clear()
        ranks.fly("", "images.w1", "", attached=True)
        await turns()
        assert ranks.heard(RequestOp.CANCEL) == [0, 1, 0]
        await ranks.answer(1, AnswerOp.ERROR, TaskCancelled.code, "told to stop", None, True)
        ((_, error),) = ranks.ended
        assert isinstance(error, WorkerLost) and error.may_have_started is True


async def test_a_worker_that_is_gone_before_it_was_sent_starts_nothing() -> None:
    async with scripted_ranks() as ranks:
        ranks.fly("images.w0", "images.w9", "images.w2")
        await turns()
        ((_, error),) = ranks.ended
        assert isinstance(error, WorkerLost) and error.may_have_started is False
        assert ranks.heard(RequestOp.TASK) == [0, 0, 0] and ranks.watched.count == 0
