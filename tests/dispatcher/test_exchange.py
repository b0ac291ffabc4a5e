"""Asking after very many tasks at once."""

from __future__ import annotations

import asyncio

from gangline.dispatcher import exchange as exchange_module
from gangline.schemas.frames import Request

from .fakes import Rig, on_rig, silent


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
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)

    await run()
