"""Random frames about a few jobs from several routers, with freezes and drains: the laws hold for durable jobs too."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from typing import Any

from gangline.schemas.wire.frames import AnswerOp, RequestOp, TaskFlag

from ...scale import repetitions
from ...support.rows import in_rows
from ...support.worker.rig import Hand, Rig, reserve, task

JOBS = ("a", "b", "c")
FINAL = (AnswerOp.OK, AnswerOp.ERROR, AnswerOp.REJECTED, AnswerOp.END)


class Storm:
    """Three hands that say what comes to their minds about three jobs."""

    def __init__(self, rig: Rig, hands: list[Hand], rng: random.Random) -> None:
        self.rig = rig
        self.hands = hands
        self.rng = rng
        self.ids = Counter[int]()
        self.attempts = Counter[str]()
        self.sent: list[tuple[int, int]] = []
        """Hand and id of each TASK, in order."""
        self.tokens: list[str] = []

    def new_id(self, hand: int) -> int:
        self.ids[hand] += 1
        return self.ids[hand]

    async def step(self) -> None:
        rng = self.rng
        hand = rng.randrange(len(self.hands))
        epoch = self.rig.worker.core.epoch - (rng.random() < 0.1)
        match rng.randrange(12):
            case 0 | 1 | 2 | 3:
                self.send(hand, self.start(hand), epoch)
            case 4 | 5:
                self.send(hand, self.attach(hand), epoch)
            case 6 if self.sent:
                where, what = rng.choice(self.sent)
                self.hands[where].send((int(RequestOp.CANCEL), what))
            case 7 if self.sent:
                ids = [what for where, what in self.sent[-20:] if where == hand]
                self.hands[hand].send((int(RequestOp.CHECK), self.new_id(hand), ids))
            case 8 if not self.rig.worker.core.draining:
                where = self.new_id(hand)
                answer = await self.hands[hand].ask(*reserve(where, slots=1, ttl_ms=1000))
                self.tokens += answer[2:3] if answer[0] == AnswerOp.GRANTED else []
            case 9 if rng.random() < 0.3:
                assert self.rig.worker._worker_server is not None
                self.rig.worker._worker_server.new_epoch("frozen")
            case 10 if self.sent:
                where, what = rng.choice(self.sent)
                operation = rng.choice((RequestOp.CREDIT, RequestOp.STORED))
                self.hands[where].send((int(operation), what, rng.randrange(3)))
            case _:
                await asyncio.sleep(rng.choice((0.0, 0.001, 0.1, 0.5)))
        self.rig.worker.core.check()

    def start(self, hand: int) -> tuple[Any, ...]:
        rng, job = self.rng, self.rng.choice(JOBS)
        if rng.random() < 0.6:
            self.attempts[job] += 1
        method, kwargs = rng.choice(
            [("wait", {"seconds": rng.random()}), ("fail", {}), ("count", {"n": rng.randrange(6)}), ("echo", {})]
        )
        return task(
            self.new_id(hand),
            method,
            kwargs=kwargs,
            deadline_ms=rng.choice((None, 300, 5000)),
            token=rng.choice([None, None, *self.tokens[-2:]]),
            flags=int(TaskFlag.STREAM) if rng.random() < 0.5 else 0,
            meta={"job": job, "attempt": max(1, self.attempts[job] - (rng.random() < 0.2)), "window": 2},
        )

    def attach(self, hand: int) -> tuple[Any, ...]:
        flags = int(TaskFlag.ATTACH | (TaskFlag.STREAM if self.rng.random() < 0.5 else 0))
        meta = {"job": self.rng.choice(JOBS), "items": self.rng.choice((None, 0, 1, 3))}
        return task(self.new_id(hand), "", deadline_ms=None, flags=flags, meta=meta)

    def send(self, hand: int, frame: tuple[Any, ...], epoch: int) -> None:
        self.hands[hand].send(frame, epoch=epoch)
        self.sent.append((hand, frame[1]))


def check_journal(journal: list[dict[str, Any]]) -> None:
    """No two executions of one job at once; none after one that ended well; attempts only grow."""
    running: dict[str, int] = {}
    attempts: dict[str, int] = defaultdict(int)
    used: dict[str, int] = {}
    for record in journal:
        assert record["running"] + record["reserved"] <= record["total"], f"L1: {record}"
        job = record.get("job")
        if record["event"] == "start":
            assert job not in running, f"started twice: {record}"
            assert record["attempt"] > attempts[job], record
            running[job] = attempts[job] = record["attempt"]
            used[record["id"]] = record["epoch"]
        elif record["event"] == "end":
            assert running.pop(job) == record["attempt"], record
    assert not running


@in_rows("seed", range(repetitions(2, whole=30)))
async def test_whatever_is_said_a_job_runs_once_at_a_time_and_each_request_is_answered_once(seed: int):
    rng = random.Random(seed)
    async with Rig(slots=3) as rig:
        hands = [rig.hand, await rig.new_hand("second"), await rig.new_hand("third")]
        storm = Storm(rig, hands, rng)
        for _ in range(rng.choice((30, 120))):
            await storm.step()
        before_the_drain = len(storm.sent)
        if rng.random() < 0.3:
            rig.worker.begin_drain(2.0)
            for _ in range(10):
                await storm.step()
        await asyncio.sleep(6)
        for hand in hands:  # readers take all that there is, so that no stream waits for ever
            ids = [what for where, what in storm.sent if hands[where] is hand]
            for _ in range(5):
                hand.send(*((int(RequestOp.CREDIT), what, 2) for what in ids))
                await asyncio.sleep(0.1)
            hand.send(*((int(RequestOp.CANCEL), what) for what in ids))
        await asyncio.sleep(3)
        check_journal(rig.journal)
        for number, (where, what) in enumerate(storm.sent):
            answers = {repr(frame) for frame in hands[where].answers_to(what) if frame[0] in FINAL}
            assert len(answers) == 1 or (not answers and number >= before_the_drain), (where, what, answers)
        core = rig.worker.core
        core.check()
        assert core.at_rest
        if not core.draining:  # one that has left sweeps no more
            await asyncio.sleep(70)
            assert core.statistics()["jobs"] == core.statistics()["answer_bytes"] == 0
