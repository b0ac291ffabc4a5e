"""Leases of one queue: had while they are wanted, shared with others, and given back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from gangline.dispatcher.durable.messages.entry import LeasedSlots
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.dispatcher.durable.queue.slot_lessor import SlotLessor
from gangline.schemas.records.workers import MethodInfo, TaskPolicy
from gangline.schemas.wire.frames import AnswerOp, Frame, Load, Reason, RequestOp
from gangline.telemetry.logs import logger_for

from ....support.dispatcher.fakes import FakeWorker, Rig


class LessorOverWorkers:
    """A feeder over scripted workers that count their slots."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.rig = Rig()
        self.changes = 0
        self.taken: dict[str, dict[str, int]] = {}
        """By worker: slots by token."""
        self.most: dict[str, int] = {}

    async def __aenter__(self) -> LessorOverWorkers:
        await self.rig.start()
        self.lessor = SlotLessor(
            "images",
            router=self.rig.router,
            settings=DispatcherSettings(node="", **self.settings),
            changed=self._changed,
            log=logger_for("test"),
        )
        return self

    def _changed(self, pool: str) -> None:
        assert pool == "images"
        self.changes += 1

    def honest(self, worker: FakeWorker, frame: Frame) -> Sequence[Frame] | None:
        """Grants what it has, and no more."""
        held = self.taken.setdefault(worker.name, {})
        answer: list[Frame] = []
        if frame[0] == RequestOp.RESERVE:
            if sum(held.values()) + frame[2] > worker.slots:
                answer = [(AnswerOp.REJECTED, frame[1], Reason.FULL)]
            else:
                granted = worker.grant(frame)
                held[granted[2]] = frame[2]
                answer = [granted]
        elif frame[0] == RequestOp.RELEASE:
            held.pop(frame[2], None)
        elif frame[0] == RequestOp.RENEW:
            answer = [(AnswerOp.RENEWED, frame[1], frame[3])]
        self.most[worker.name] = max(self.most.get(worker.name, 0), sum(held.values()))
        worker.load = Load(0, sum(held.values()), worker.slots, 0)
        if frame[0] == RequestOp.RELEASE and worker.replies:
            worker.answer()  # an invitation: there is room again
        return answer

    async def worker(self, name: str = "w1", **facts: Any) -> FakeWorker:
        return await self.rig.worker(name, self.honest, **facts)

    def take(self, slots: int = 1, method: str = "echo") -> LeasedSlots:
        lease = self.lessor.take(slots, method, None)
        assert lease is not None
        return lease

    async def has_in_all(self, slots: int) -> None:
        async with asyncio.timeout(30):
            while sum(self.lessor.free) < slots:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def has(self, *free: int) -> None:
        """Wait until leases have so many free slots."""
        async with asyncio.timeout(30):
            while sorted(self.lessor.free) != sorted(free):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def __aexit__(self, *_: object) -> None:
        await self.lessor.stop()
        await asyncio.sleep(0.1)
        assert all(not held for held in self.taken.values()), "all was given back"
        await self.rig.stop()


async def test_what_is_wanted_is_leased_and_what_is_idle_given_back() -> None:
    async with LessorOverWorkers() as over:
        await over.worker(slots=4)
        over.lessor.want(3, 1)
        await over.has_in_all(3)
        assert over.changes > 0 and over.lessor.leased == 3
        over.lessor.want(0, 0)
        await over.has()
        assert over.taken == {"w1": {}}


async def test_a_task_is_only_put_on_a_worker_that_has_it() -> None:
    async with LessorOverWorkers() as over:
        await over.worker("old", methods={"echo": MethodInfo()}, slots=1)
        over.lessor.want(1, 1)
        await over.has(1)
        await over.worker("new", methods={"echo": MethodInfo(), "fresh": MethodInfo()}, slots=1)
        await asyncio.sleep(1)
        assert over.lessor.take(1, "fresh", None) is None
        over.lessor.want(1, 1)
        async with asyncio.timeout(5):
            while (lease := over.lessor.take(1, "fresh", None)) is None:
                over.lessor.want(1, 1)
                await asyncio.sleep(0.05)
        assert lease.worker.id.worker == "new"
        over.lessor.give(lease, 1)


async def test_the_next_lease_is_on_the_worker_that_was_asked_for_a_share_if_it_has_room_and_more_are_elsewhere() -> (
    None
):
    async with LessorOverWorkers() as over:
        methods = {"echo": MethodInfo(policy=TaskPolicy(max_running=1))}
        workers = [await over.worker(name, methods=methods, slots=1) for name in ("w1", "w2", "w3")]
        asked = ""
        for _ in range(8):
            over.lessor.want(1, 1)
            await over.has(1)
            lease = over.take()
            assert asked in ("", lease.name)
            asked = lease.name
            over.lessor.give(lease, 1)
            over.lessor.want(0, 0)
            await over.has()
        over.lessor.want(3, 1)
        await over.has(1, 1, 1)
        assert [len(worker.heard_of(RequestOp.RESERVE)) for worker in workers].count(1) == 2


async def test_a_lease_that_has_had_its_turn_is_asked_for_anew_while_tasks_wait() -> None:
    async with LessorOverWorkers(turn_s=1.0) as over:
        worker = await over.worker(slots=1)
        over.lessor.want(10, 1)
        await over.has(1)
        lease = over.take()
        await asyncio.sleep(1.5)
        assert len(worker.heard_of(RequestOp.RELEASE)) == 0, "its task still runs"
        over.lessor.give(lease, 1)
        await over.has(1)
        assert len(worker.heard_of(RequestOp.RELEASE)) == 1 and len(worker.heard_of(RequestOp.RESERVE)) >= 2


async def test_a_lease_on_a_worker_that_cannot_be_reached_is_no_credit_until_it_is_heard_again() -> None:
    async with LessorOverWorkers(turn_s=30.0) as over:
        for name in ("w1", "w2"):
            await over.worker(name, slots=2)
        over.lessor.want(4, 1)
        await over.has_in_all(4)
        view = over.rig.router.pools["images"].core.view
        before, hear = over.changes, view.heard
        view.heard = lambda worker, now: None if worker.id.worker == "w1" else hear(worker, now)
        view.unreachable(view.workers["w1"])
        assert sum(over.lessor.free) == 2
        await asyncio.sleep(0.2)
        assert over.changes > before, "the credit is told again"
        taken = [lease for _ in range(3) if (lease := over.lessor.take(1, "echo", None)) is not None]
        assert [lease.worker.id.worker for lease in taken] == ["w2", "w2"]
        before = over.changes
        hear(view.workers["w1"], asyncio.get_running_loop().time())
        await asyncio.sleep(0.2)
        assert over.changes > before and sum(over.lessor.free) == 2
        for lease in taken:
            over.lessor.give(lease, 1)


async def test_idle_slots_of_a_worker_that_has_no_others_go_back_at_once_and_else_are_kept_for_a_while() -> None:
    async with LessorOverWorkers(idle_s=10.0) as over:
        worker = await over.worker(slots=2)
        over.lessor.want(1, 1)
        await over.has(1)
        lease = over.take()
        over.lessor.give(lease, 1)
        await asyncio.sleep(3)
        assert over.lessor.free == (1,), "nobody else needs it"
        over.lessor.want(2, 1)
        await over.has(1, 1)
        over.lessor.want(0, 1)
        await asyncio.sleep(0.1)
        assert len(worker.heard_of(RequestOp.RELEASE)) >= 1, "somebody may be waiting for it"


async def test_leases_too_small_for_the_next_task_are_given_up_for_one_piece() -> None:
    async with LessorOverWorkers(lease_slots=1) as over:
        await over.worker(slots=2)
        over.lessor.want(2, 1)
        await over.has(1, 1)
        used = over.take(1, "resize")
        before = over.changes
        over.lessor.want(2, 2)
        assert over.lessor.free == () and over.changes > before
        await asyncio.sleep(0.5)
        assert over.lessor.free == ()  # one of its slots is in use
        over.lessor.give(used, 1)
        await over.has(2)
