"""When the core gets the events of its queue."""

from __future__ import annotations

import asyncio

from gangline.dispatcher.durable.core import events as on
from gangline.dispatcher.durable.queue.queue_runner import QueueRunner

from ....support.durable.site import Site


async def _runner(site: Site) -> tuple[QueueRunner, list[tuple[on.AnyEvent, ...]]]:
    """An idle queue with a worker, and the events that its core gets from now on, as it gets them."""
    site.worker()
    site.dispatcher()
    node = await site.taken()
    await asyncio.sleep(5.0)
    runner, told = node.dispatcher.queues[site.pool], list[tuple[on.AnyEvent, ...]]()
    runner.tell(on.Tick)  # after so long without work, ownership is proven again first
    await asyncio.sleep(0.1)
    handle = runner.core.handle

    def record(*events: on.AnyEvent):
        told.append(events)
        return handle(*events)

    runner.core.handle = record
    return runner, told


async def test_a_doubt_comes_before_what_arrived_earlier_in_its_turn() -> None:
    async with Site() as site:
        runner, told = await _runner(site)
        runner.tell_soon(on.AttemptEnded, seq=1001, attempt=1)
        runner._context.guard.cut_off()
        assert [[type(event) for event in events] for events in told] == [[on.OwnershipDoubted, on.AttemptEnded]]
        await asyncio.sleep(1.0)
        assert type(told[-1][-1]) is on.OwnershipConfirmed
