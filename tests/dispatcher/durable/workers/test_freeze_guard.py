"""What makes a dispatcher doubt what it believes, and how a queue becomes sure again."""

from __future__ import annotations

import asyncio

from gangline.bus.memory.server import MemoryServer
from gangline.dispatcher.durable.workers.failure_detector import DoubtMonitor
from gangline.dispatcher.transport.exchange import GAP_S
from gangline.testing.loop import VirtualLoop


async def test_a_freeze_is_noticed_on_entry_of_the_first_event_before_any_timer() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    guard = DoubtMonitor(MemoryServer().connect("d"), 1.0)
    doubts: list[float] = []
    guard.on_doubt(doubts.append)
    seen: list[int] = []

    async def main() -> None:
        guard.start()
        await asyncio.sleep(5)
        before = guard.term
        seen.append(before)

    node = loop.spawn("d", main())
    await node
    loop.freeze("d")
    await asyncio.sleep(3)
    loop.thaw("d")

    async def look() -> None:
        seen.append(guard.look())

    await loop.spawn("d", look())
    assert seen == [0, 1] and guard.freezes == 1 and 2.9 < doubts[0] < 3.3
    assert guard.unheard_s == doubts[0]
    await asyncio.sleep(5)
    assert guard.term == 1
    guard.stop()
    guard.stop()


async def test_a_gap_in_what_is_heard_begins_a_new_term_once_for_all_who_were_not_heard() -> None:
    guard = DoubtMonitor(MemoryServer().connect("d"), 1.0)
    guard.cut_off()  # not started: nothing is believed yet
    guard.start()
    guard.cut_off()
    guard.cut_off()
    assert guard.term == 1
    await asyncio.sleep(1.6)
    guard.cut_off()
    assert guard.term == 2 and guard.freezes == 0
    guard.stop()


async def test_slow_workers_make_queues_doubtful_less_often_than_others_can_take_them() -> None:
    guard = DoubtMonitor(MemoryServer().connect("d"), 1.0)
    guard.start()
    for _ in range(300):
        guard.cut_off()
        await asyncio.sleep(0.1)
    assert 30 / GAP_S <= guard.term <= 20
    guard.stop()


async def test_a_reconnection_begins_a_new_term_and_a_small_stall_does_not() -> None:
    hub = MemoryServer()
    bus = hub.connect("d")
    guard = DoubtMonitor(bus, 1.0)
    guard.start()
    await asyncio.sleep(1)
    hub.disconnect(bus)
    assert guard.term == 0
    await asyncio.sleep(1)
    hub.reconnect(bus)
    await asyncio.sleep(0)
    assert guard.term == 1 and guard.reconnected_at == asyncio.get_running_loop().time()
    assert guard.unheard_s == 1
    guard.stop()
    await bus.close()
