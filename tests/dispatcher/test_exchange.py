"""What shares a message, what becomes of what leaves at once, and asking after very many tasks."""

from __future__ import annotations

import asyncio

from gangline.dispatcher import exchange as exchange_module
from gangline.schemas.errors import Disconnected
from gangline.schemas.frames import Request

from .fakes import Rig, on_rig, silent


async def give_up(calls: list[asyncio.Future[object]]) -> None:
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)


@on_rig()
async def test_many_requests_of_a_turn_leave_in_halves(rig: Rig) -> None:
    worker = await rig.worker(behave=silent, slots=100)
    before = worker.messages
    calls = [asyncio.ensure_future(rig.client.call("images.echo")) for _ in range(64)]
    await worker.hears(Request.TASK, 64)
    assert worker.messages - before == 3, "16, when that is all there is; 16 of 32; and the 32 that are half of 64"
    more = [asyncio.ensure_future(rig.client.call("images.echo")) for _ in range(15)]
    await worker.hears(Request.TASK, 64 + 15)
    assert worker.messages - before == 4, "so few share a message"
    await give_up(calls + more)


@on_rig()
async def test_what_leaves_at_once_is_not_lost_if_the_connection_is(rig: Rig) -> None:
    worker = await rig.worker(slots=100)
    await rig.client.call("images.echo")
    worker.behave = silent
    publish = rig.bus.publish

    def fails(*_: object, **__: object) -> None:
        rig.bus.publish = publish  # once, and before the router hears of it
        raise Disconnected("gone for a moment")

    rig.bus.publish = fails
    calls = [asyncio.ensure_future(rig.client.call("images.echo")) for _ in range(16)]
    await worker.hears(Request.TASK, 1 + 16)
    await give_up(calls)


async def test_more_tasks_than_one_message_may_ask_for_are_asked_for_in_turns(monkeypatch) -> None:
    monkeypatch.setattr(exchange_module, "MAX_CHECKED", 5)

    @on_rig()
    async def run(rig: Rig) -> None:
        worker = await rig.worker(behave=silent, slots=12)
        calls = [asyncio.ensure_future(rig.client.call("images.echo")) for _ in range(12)]
        tasks = [frame[1] for frame in await worker.hears(Request.TASK, 12)]
        await worker.hears(Request.CHECK, 3)
        asked = [frame[2] for frame in worker.heard_of(Request.CHECK)[:3]]
        assert [len(ids) for ids in asked] == [5, 5, 2]
        assert sorted(sum(asked, [])) == tasks, "each once before any is asked for again"
        await give_up(calls)

    await run()
