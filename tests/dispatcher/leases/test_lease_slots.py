"""The slots of one lease, by themselves: what happens in one turn of the event loop."""

from __future__ import annotations

import asyncio

import pytest

from gangline.dispatcher.leases.lease_slots import LeaseSlots
from gangline.dispatcher.routing.pool_core import RoutedRequest
from gangline.schemas.errors.base import GanglineError

from ...support.dispatcher.fakes import turns

LATE = GanglineError("late")


def routed_request() -> RoutedRequest:
    made = RoutedRequest(method="echo")
    made.cost = 1
    return made


async def test_whoever_gave_up_just_before_its_turn_came_gives_back_nothing() -> None:
    slots = LeaseSlots(1, asyncio.get_running_loop())
    user = routed_request()
    assert slots.take_nowait(user)
    waiter = asyncio.ensure_future(slots.take(routed_request(), None, LATE))
    await turns()
    waiter.cancel()
    slots.give(user)  # comes to the waiter before it has noticed that it was cancelled
    await asyncio.wait({waiter})
    assert waiter.cancelled() and slots.used == 0
    assert slots.take_nowait(user) and not slots.take_nowait(routed_request())


async def test_a_deadline_in_the_turn_in_which_a_slot_comes_back_gives_back_nothing() -> None:
    loop = asyncio.get_running_loop()
    slots = LeaseSlots(1, loop)
    user = routed_request()
    assert slots.take_nowait(user)
    deadline = loop.time() + 1
    waiter = asyncio.ensure_future(slots.take(routed_request(), deadline, LATE))
    await turns()
    loop.call_at(deadline, slots.give, user)  # the timer of the deadline was set before: it fires first
    with pytest.raises(GanglineError, match="late"):
        await waiter
    assert (slots.used, slots.waiting) == (0, 0)
