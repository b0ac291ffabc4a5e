"""Who is invited when there is room again."""

from __future__ import annotations

from gangline.schemas.wire import frames
from gangline.schemas.wire.frames import AnswerOp, Load
from gangline.worker.slots.limiter import MOST_WAITERS, WAITER_S, CapacityWaiters

from ...support.worker.rig import Hand, Rig, on_rig, reserve, task


def test_who_was_told_otherwise_or_gave_up_long_ago_is_not_invited() -> None:
    waiters = CapacityWaiters()
    waiters.refused("told", 1, 0.0)
    waiters.refused("", 1, 0.0)
    waiters.refused("gone", 1, 0.0)
    waiters.refused("more", 3, 0.0)
    waiters.told("told", 1)
    waiters.told("more", 2)
    assert len(waiters) == 2
    assert waiters.invite(5, WAITER_S) == [] and len(waiters) == 0


def test_they_are_bounded() -> None:
    waiters = CapacityWaiters()
    for number in range(MOST_WAITERS + 5):
        waiters.refused(f"r{number}", 1, 0.0)
    assert len(waiters) == MOST_WAITERS


@on_rig()
async def test_a_refused_router_is_invited_before_the_one_that_had_the_slot_hears_of_it(rig: Rig, other: Hand):
    rig.worker.resize(1)
    rig.hand.send(task(1, "wait"))
    assert await other.ask(*task(1)) == [AnswerOp.REJECTED, 1, "full"]
    arrivals: list[str] = []
    for name, hand in (("holder", rig.hand), ("other", other)):
        await hand.bus.subscribe(hand.reply, lambda _, name=name: arrivals.append(name))
    rig.gates.open.set()
    assert await rig.hand.answer(1)
    await rig.hand.quiet()
    assert arrivals == ["other", "holder"]
    assert other.envelopes[-1] == frames.AnswerEnvelope(rig.worker.core.epoch, Load(0, 0, 1), [])
    messages = len(other.messages)
    await rig.hand.ask(*task(2))
    await other.quiet(1)
    assert len(other.messages) == messages, "once"


@on_rig(slots=2)
async def test_a_reserve_that_was_refused_is_invited_when_a_lease_expires_or_is_released(rig: Rig, other: Hand):
    token = await rig.hand.grant(1, slots=1)
    await rig.hand.grant(2, slots=1, claim_ms=1500)
    assert await other.ask(*reserve(1, slots=2)) == [AnswerOp.REJECTED, 1, "full"]
    rig.hand.send((4, None, token))
    await other.quiet(0.1)
    assert len(other.envelopes) == 1, "one slot is not enough"
    await other.ask(*reserve(2, slots=2))
    await other.quiet(2)
    assert other.envelopes[-1].frames == [] and other.envelopes[-1].load.free == 2


@on_rig()
async def test_a_draining_worker_invites_nobody(rig: Rig, other: Hand):
    rig.worker.resize(1)
    rig.hand.send(task(1, "wait"))
    assert await other.ask(*task(1)) == [AnswerOp.REJECTED, 1, "full"]
    rig.worker.begin_drain(5)
    rig.gates.open.set()
    await other.quiet(1)
    assert len(other.envelopes) == 1
