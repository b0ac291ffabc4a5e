"""What a member of a gang is sent again, by a call as by a stream: MemberTarget alone."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gangline.dispatcher.calls.call import Call, CallOptions
from gangline.dispatcher.gangs.members import MemberTarget, RankSlots
from gangline.dispatcher.leases.lease_slots import LeaseSlots
from gangline.dispatcher.routing.outcome import TryOutcome
from gangline.dispatcher.routing.pool_core import RoutedRequest
from gangline.schemas.errors.base import DeadlineExceeded, GanglineError, LeaseBusy, WorkerLost
from gangline.schemas.wire.frames import AnswerOp

from ...support.rows import in_rows

BUSY = [int(AnswerOp.ERROR), 1, LeaseBusy.code, "its slots are in use", None, False]


class Line:
    """A member with two slots, whose worker is there."""

    name = "rank 0 of gang g (p.w1)"
    methods: Any = None

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.slots = LeaseSlots(2, self.loop)
        self.seat = SimpleNamespace(token="t", epoch=3, slots=2)
        self.worker: Any = SimpleNamespace(id="p.w1", epoch=3, methods={})
        self.flights: dict[Any, None] = {}
        self.pauses = 0

    async def reach(self, deadline: float | None, target: str) -> Any:
        return self.worker

    def check(self) -> None:
        pass

    def idempotent(self, method: str) -> bool:
        return False

    async def pause(self, delay_s: float, deadline: float | None, target: str, why: GanglineError) -> None:
        self.pauses += 1
        if deadline is not None and self.loop.time() + delay_s >= deadline:
            raise DeadlineExceeded("too late", may_have_started=False) from why
        await asyncio.sleep(delay_s)


def target_on(line: Line, *, patient: bool = True, timeout_s: float | None = None, held: Any = None) -> MemberTarget:
    deadline = None if timeout_s is None else line.loop.time() + timeout_s
    order = Call(endpoint="p", method="m", args=(), kwargs={}, options=CallOptions(), deadline=deadline)
    return MemberTarget(line, order, line.loop, patient=patient, held=held)  # type: ignore[arg-type]


async def again(target: MemberTarget, fate: TryOutcome) -> None:
    """The try ends with that fate, and gets its place for another."""
    target.books.settle(target.routed_request)
    assert await target.place(fate) is target


async def test_a_refusal_since_its_slots_are_in_use_is_waited_out_if_the_caller_is_patient() -> None:
    line = Line()
    for patient, fate in ((True, TryOutcome.FULL), (False, None)):
        assert target_on(line, patient=patient).settle(BUSY) is fate
    target = target_on(line)
    await target.place(None)
    for attempt in (2, 3):
        await again(target, TryOutcome.FULL)
        assert (target.routed_request.attempts, line.slots.used) == (attempt, 1)
    assert line.pauses == 2


@in_rows("fate", [TryOutcome.UNHEARD, TryOutcome.GONE])
async def test_one_that_is_not_there_may_come_back_for_a_while(fate: TryOutcome) -> None:
    line = Line()
    target, began_at = target_on(line), line.loop.time()
    await target.place(None)
    with pytest.raises(WorkerLost, match="nothing started"):
        while True:
            await again(target, fate)
    assert 10 <= line.loop.time() - began_at < 11
    timed = target_on(line, timeout_s=2)
    await timed.place(None)
    with pytest.raises(DeadlineExceeded) as caught:
        while True:
            await again(timed, fate)
    assert isinstance(caught.value.__cause__, WorkerLost)
    assert line.slots.used == 0


@in_rows(
    "fate",
    [TryOutcome.UNHEARD, TryOutcome.GONE, TryOutcome.FULL, TryOutcome.LATE, TryOutcome.DRAINING, TryOutcome.LOST],
)
async def test_for_an_impatient_caller_only_what_never_arrived_is_sent_again(fate: TryOutcome) -> None:
    line = Line()
    target = target_on(line, patient=False)
    await target.place(None)
    for never in (TryOutcome.UNSEEN, TryOutcome.UNSENT):
        await again(target, never)
    with pytest.raises(GanglineError) as caught:
        await again(target, fate)
    assert caught.value.may_have_started == fate.may_have_started


async def test_an_older_idea_of_the_epoch_is_mended_by_the_answer_and_a_newer_epoch_is_the_end_of_it() -> None:
    line = Line()
    target = target_on(line)
    await target.place(None)
    await again(target, TryOutcome.STALE)
    line.worker.epoch = 4
    with pytest.raises(GanglineError, match="newer epoch"):
        await again(target, TryOutcome.STALE)


@in_rows("fate", TryOutcome)
async def test_on_slots_that_are_held_it_is_sent_once(fate: TryOutcome) -> None:
    line, routed_request = Line(), RoutedRequest(method="m")
    held = RankSlots(line.worker, "own", line.slots, routed_request)
    target = target_on(line, patient=False, held=held)
    await target.place(None)
    assert (target.token, target.routed_request, routed_request.attempts) == ("own", routed_request, 1)
    with pytest.raises(GanglineError):
        await target.place(fate)
    assert line.pauses == 0
