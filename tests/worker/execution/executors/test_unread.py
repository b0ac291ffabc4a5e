"""Streams whose reader vanishes give their slots back."""

from __future__ import annotations

import asyncio

from gangline.schemas.wire.frames import RequestOp, TaskFlag

from ....support.worker.rig import Rig, on_rig, task

STREAM = int(TaskFlag.STREAM)


@on_rig()
async def test_a_stream_whose_reader_vanished_ends_and_gives_its_slot_back(rig: Rig) -> None:
    rig.hand.send(task(1, "count", [100], flags=STREAM, meta={"window": 5}, deadline_ms=None))
    await asyncio.sleep(50)
    assert rig.worker.core.load.running == 1, "it waits for credit"
    await asyncio.sleep(15)
    assert rig.worker.core.load.running == 0
    assert rig.at_rest()


@on_rig()
async def test_a_reader_that_takes_its_time_and_asks_after_the_stream_keeps_it(rig: Rig) -> None:
    rig.hand.send(task(1, "count", [100], flags=STREAM, meta={"window": 5}, deadline_ms=None))
    for number in range(2, 12):
        await asyncio.sleep(16)
        rig.hand.send((RequestOp.CHECK, number, [1]))
    assert rig.worker.core.load.running == 1
    rig.hand.send((RequestOp.CANCEL, 1))
    await asyncio.sleep(1)
    assert rig.worker.core.load.running == 0


@on_rig()
async def test_a_lost_connection_is_not_the_readers_silence(rig: Rig) -> None:
    rig.hand.send(task(1, "count", [100], flags=STREAM, meta={"window": 5}, deadline_ms=None))
    await asyncio.sleep(1)
    rig.hub.disconnect(rig.worker.bus)
    await asyncio.sleep(200)
    rig.hub.reconnect(rig.worker.bus)
    await asyncio.sleep(30)
    assert rig.worker.core.load.running == 1
    rig.hand.send((RequestOp.CHECK, 2, [1]))
    await asyncio.sleep(50)
    assert rig.worker.core.load.running == 1


@on_rig()
async def test_a_task_that_does_not_stream_runs_on_whoever_asked_for_it(rig: Rig) -> None:
    rig.hand.send(task(1, "wait", ["", 300.0], deadline_ms=None))
    await asyncio.sleep(200)
    assert rig.worker.core.load.running == 1
