"""Asking a coordinator that may die with the question."""

from __future__ import annotations

import asyncio

from gangline.bus.memory.server import MemoryHub
from gangline.bus.port.bus import Message
from gangline.bus.rpc.listening import listen
from gangline.dispatcher.gangs.coordinator_client import GangDesk
from gangline.schemas.messages.gangs import GangReply, OwnedRequest
from gangline.schemas.names import GangOperation, Names
from gangline.schemas.records.gangs import GangState

NAMES = Names()
OWNED = OwnedRequest(id="g", owner_token="t")
ENDED = GangReply(id="g", state=GangState.ENDED, step="ended", generation=1, size=1, ttl_s=15.0).model_dump_json()


class Leader:
    """Answers releases, but for the first few."""

    def __init__(self, unanswered: float) -> None:
        self.left = unanswered
        self.asked_at: list[float] = []

    async def serve(self, hub: MemoryHub) -> None:
        bus = hub.connect("leader")

        def take(message: Message) -> None:
            self.asked_at.append(asyncio.get_running_loop().time())
            self.left -= 1
            if self.left < 0:
                bus.publish(message.reply, ENDED.encode())

        await listen(bus, NAMES.both(NAMES.gang(GangOperation.RELEASE)), take)


async def test_a_release_whose_leader_died_with_it_is_sent_again_soon() -> None:
    hub = MemoryHub()
    leader = Leader(unanswered=1)
    await leader.serve(hub)
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    await GangDesk(hub.connect("owner"), NAMES).release(OWNED, grace_s=600.0)
    assert len(leader.asked_at) == 2
    assert loop.time() - began_at < 1.5, "not the grace time"


async def test_a_release_that_nobody_ever_answers_is_given_up_after_the_grace_time_and_a_little() -> None:
    hub = MemoryHub()
    leader = Leader(unanswered=float("inf"))
    await leader.serve(hub)
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    await GangDesk(hub.connect("owner"), NAMES).release(OWNED, grace_s=20.0)
    assert 30.0 <= loop.time() - began_at < 36.0
    assert len(leader.asked_at) <= 10, "less and less often"
