"""A roll that stopped is tried again when the same declaration is written again, by whatever tool."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gangline.dispatcher.gangs.declarations import declare_one, parse_set
from gangline.schemas.names import Names
from gangline.schemas.records.gangs import SetState

from ...support.dispatcher.gang_rig import GangRig, on_gang_rig
from .test_gang_ready import PAIR, Starts, status_of, steady

SHAPE = {"gangs": 1, "gang": {**PAIR, "owner": "new"}, "roll_failures": 1}


async def by_apply(rig: GangRig) -> None:
    ledger = await rig.client.router.ledger()
    assert await declare_one(ledger, "llm", parse_set("llm", SHAPE)) == "retried"


async def by_python(rig: GangRig) -> None:
    await rig.client.set_gangset("llm", SHAPE)


async def by_scale(rig: GangRig) -> None:
    assert await rig.client.scale_gangset("llm", 1) == 1


async def by_hand(rig: GangRig) -> None:
    ledger = await rig.client.router.ledger()
    entry = await ledger.get(Names.gangset_key("llm"))
    assert entry is not None
    await ledger.put(entry.key, entry.value)


@pytest.mark.parametrize(
    "again", [by_apply, *(pytest.param(how, marks=pytest.mark.long) for how in (by_python, by_scale, by_hand))]
)
@on_gang_rig()
async def test_a_roll_that_stopped_is_tried_again(rig: GangRig, again: Callable[[GangRig], Awaitable[None]]) -> None:
    starts = await Starts().workers(rig, "w1", "w2", "w3", "w4")
    await rig.declare("llm", gangs=1, gang=PAIR)
    await steady(rig, "llm")
    starts.fails = set(range(1, 100))
    await rig.client.set_gangset("llm", SHAPE)
    await asyncio.sleep(20.0)
    status = await status_of(rig, "llm")
    assert status is not None and status.stopped
    starts.fails = set()  # the cause is mended
    await again(rig)
    await asyncio.sleep(10.0)
    status = await status_of(rig, "llm")
    assert status is not None
    assert (status.state, status.ready, status.old, status.stopped) == (SetState.STEADY, 1, 0, False)
    ledger = await rig.client.router.ledger()
    assert await declare_one(ledger, "llm", parse_set("llm", SHAPE)) == "unchanged"
