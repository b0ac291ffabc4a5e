"""Every way of asking, cancelled in every turn of the loop (the quick suite: in every 13th): a real worker and the
router are at rest afterwards."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from gangline.dispatcher.client.client import Client
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ...scale import repetitions
from ...support.dispatcher.fakes import Rig, turns
from ...support.rows import in_rows

MOST_TURNS = 200
STRIDE = repetitions(13, whole=3)


def _pool() -> Pool:
    pool = Pool("images", slots=2)

    @pool.task
    async def work() -> str:
        for _ in range(3):
            await asyncio.sleep(0)
        return "done"

    @pool.task
    async def items(count: int) -> AsyncIterator[int]:
        for number in range(count):
            await asyncio.sleep(0)
            yield number

    return pool


POOL = _pool()


async def call(client: Client) -> None:
    assert await client.call("images.work") == "done"


async def call_with_deadline(client: Client) -> None:
    assert await client.options(timeout_s=10).call("images.work") == "done"


async def choose_and_dispatch(client: Client) -> None:
    async with client.choose_worker("images") as selection:
        assert await client.dispatch(selection, "work") == "done"


async def choose_and_leave(client: Client) -> None:
    async with client.choose_worker("images", slots=2):
        await asyncio.sleep(0)


async def lease_and_call(client: Client) -> None:
    async with client.lease("images", slots=2) as lease:
        assert await asyncio.gather(*(lease.call("work") for _ in range(4))) == ["done"] * 4


async def sync_lease(client: Client) -> None:
    async with client.lease("images", ledger="sync") as lease:
        assert await lease.call("work") == "done"


async def stream(client: Client) -> None:
    async with contextlib.aclosing(client.stream("images.items", 5)) as read:
        assert [item async for item in read] == [0, 1, 2, 3, 4]


async def wait_in_line(client: Client) -> None:
    async with asyncio.TaskGroup() as group, client.lease("images", slots=2):
        group.create_task(call(client))
        group.create_task(choose_and_dispatch(client))
        await turns(10)


SCENARIOS = [
    call, call_with_deadline, choose_and_dispatch, choose_and_leave, lease_and_call, sync_lease, stream, wait_in_line,
]  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: str(scenario.__name__))
@in_rows("opened", [True, False])
async def test_cancelled_in_any_turn_nothing_is_left(
    scenario: Callable[[Client], Awaitable[None]], opened: bool
) -> None:
    finished = False
    for turn in range(0, MOST_TURNS, STRIDE):
        finished = await cancelled_after(scenario, turn, opened)
        if finished:
            break
    assert finished, f"not done after {MOST_TURNS} turns: the test does not reach its end"


async def cancelled_after(scenario: Callable[[Client], Any], turn: int, opened: bool) -> bool:
    """Run, cancel after so many turns of the loop, and look at what is left. True when it was done before."""
    rig = Rig()
    await rig.start()
    settings = WorkerSettings(id="w1")
    async with Worker(POOL, bus=rig.hub.connect("worker"), names=rig.names, settings=settings) as worker:
        if opened:
            await rig.router.pool("images")
        task = asyncio.ensure_future(scenario(rig.client))
        await turns(turn)
        finished = task.done()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await asyncio.sleep(3)
        load = worker.statistics().load
        assert load[:2] == (0, 0), f"after {turn} turns: {load}"
        assert await rig.client.leases() == [], turn
        assert await asyncio.gather(*(rig.client.call("images.work") for _ in range(4))) == ["done"] * 4
        await turns()
        rig.balanced()
        assert rig.router.statistics()["in_flight"] == 0, turn
    await rig.stop()
    return finished
