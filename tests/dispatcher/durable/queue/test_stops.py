"""A dispatcher may be stopped at any moment, also while it takes a queue: nothing of it goes on afterwards."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gangline.schemas.errors.base import ClosedError

from ....scale import repetitions
from ....stepped import NEVER, SteppedLoop
from ....support.durable.site import DispatcherNode, Site


class Story:
    """A dispatcher takes a queue with one task and no worker; at the given step it is stopped."""

    def __init__(self) -> None:
        self.loop = SteppedLoop()
        self.begins = 0
        self.ends = 0
        self.left: list[str] = []

    async def tell(self, at: int) -> None:
        async with Site() as site:
            await site.submit("square", {"x": 2})
            node = site.dispatcher()
            stopping: list[asyncio.Task[None]] = []
            self.loop.arm(at, lambda: stopping.append(self.loop.spawn(node.name, node.dispatcher.stop(), name="stop")))
            self.begins = self.loop.scheduled
            if at == NEVER:
                await site.taken()
                self.ends = self.loop.scheduled
                return
            await site.eventually(lambda: bool(stopping))
            await stopping[0]
            main, node.task = node.task, None
            assert main is not None
            with contextlib.suppress(ClosedError):  # "stopped while it started"
                await main
            self.left = self._left_by(node)

    def _left_by(self, node: DispatcherNode) -> list[str]:
        tasks = asyncio.all_tasks(self.loop)
        return sorted(task.get_name() for task in tasks if getattr(task, "node", None) == node.name and not task.done())

    def run(self, at: int) -> None:
        try:
            self.loop.run_until_complete(self.loop.create_task(self.tell(at), name="story"))
        finally:
            self.loop.close()


@pytest.fixture(scope="session")
def steps() -> int:
    """From the start of a dispatcher until it has the queue."""
    story = Story()
    story.run(NEVER)
    return story.ends - story.begins


OFFSETS = 4


@pytest.mark.parametrize("offset", range(OFFSETS))
def test_a_dispatcher_that_is_stopped_at_any_step_leaves_nothing_behind(steps: int, offset: int) -> None:
    left = {}
    for at in range(1 + offset, steps, OFFSETS * repetitions(6, whole=4)):
        story = Story()
        story.run(at)
        if story.left:
            left[at] = story.left
    assert left == {}
