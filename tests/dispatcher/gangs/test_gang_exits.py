"""How the block of a gang may be left: whatever happens meanwhile, the body's own error comes out, and the slots come
back."""

from __future__ import annotations

import asyncio

import pytest

from ...support.dispatcher.gang_rig import GangRig, on_gang_rig, until
from ...waiting import loop_time


class BodyError(Exception):
    """Of the user."""


def _cancel_after(turns: int, task: asyncio.Task[None]) -> None:
    if turns:
        asyncio.get_running_loop().call_soon(_cancel_after, turns - 1, task)
    else:
        task.cancel()


@on_gang_rig("w1", "w2")
async def test_a_cancellation_at_any_moment_of_the_release_does_not_replace_the_error(rig: GangRig) -> None:
    async def leave(turns: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        async with rig.client.gang(pool="train", size=2, ttl_s=3.0):
            asyncio.get_running_loop().call_soon(_cancel_after, turns, task)
            raise BodyError

    for turns in range(40):
        with pytest.raises(BodyError):
            await asyncio.ensure_future(leave(turns))
        await until(lambda: rig.free("w1") == rig.free("w2") == 2)


@on_gang_rig("w1", "w2")
async def test_a_coordinator_that_is_gone_does_not_hold_the_error_back(rig: GangRig) -> None:
    with pytest.raises(BodyError):
        async with rig.client.gang(pool="train", size=2, ttl_s=3.0):
            rig.cut("coordinator")
            left_at = loop_time()
            raise BodyError
    assert loop_time() == left_at


@on_gang_rig("w1", "w2")
async def test_a_client_that_is_closed_right_after_an_error_gives_the_gang_back(rig: GangRig) -> None:
    with pytest.raises(BodyError):
        async with rig.client.gang(pool="train", size=2, ttl_s=30.0):
            raise BodyError
    left_at = loop_time()
    await rig.client.close()
    await until(lambda: rig.free("w1") == rig.free("w2") == 2)
    assert loop_time() - left_at < 3.0, "given back, not left to its time to live"
