"""Asking a coordinator that may die with the question."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import Message, NoResponders
from gangline.bus.rpc.responder import listen
from gangline.dispatcher.gangs.coordinator_client import CoordinatorClient
from gangline.schemas.errors.base import NoCoordinator
from gangline.schemas.messages.gangs import GangReply, OwnedRequest
from gangline.schemas.names import GangOperation, Names
from gangline.schemas.records.gangs import GangState
from gangline.schemas.wire import headers

from ...waiting import loop_time

NAMES = Names()
OWNED = OwnedRequest(id="g", owner_token="t")
ENDED = GangReply(id="g", state=GangState.ENDED, step="ended", generation=1, size=1, ttl_s=15.0).model_dump_json()


class Leader:
    """Answers releases, but for the first few."""

    def __init__(self, unanswered: float) -> None:
        self.left = unanswered
        self.asked_at: list[float] = []

    async def serve(self, hub: MemoryServer, *, privately: bool = True) -> None:
        """
        Args:
            privately: as leaders of earlier versions do not.
        """
        bus = hub.connect("leader")

        def take(message: Message) -> None:
            self.asked_at.append(loop_time())
            self.left -= 1
            if self.left < 0:
                bus.publish(message.reply, ENDED.encode())

        subjects = NAMES.both(NAMES.gang(GangOperation.RELEASE))
        await listen(bus, subjects if privately else subjects[:1], take)
        if not privately:
            unknown = {headers.ERROR: "no such gang", headers.ERROR_CODE: "404"}
            await bus.subscribe(
                NAMES.gang(GangOperation.GET), lambda asked: bus.publish(asked.reply, b"", headers=unknown)
            )


async def test_a_release_whose_leader_died_with_it_is_sent_again_soon() -> None:
    hub = MemoryServer()
    leader = Leader(unanswered=1)
    await leader.serve(hub)
    began_at = loop_time()
    await CoordinatorClient(hub.connect("owner"), NAMES).release(OWNED, grace_s=600.0)
    assert len(leader.asked_at) == 2
    assert loop_time() - began_at < 1.5, "not the grace time"


async def test_a_release_that_nobody_ever_answers_is_given_up_after_the_grace_time_and_a_little() -> None:
    hub = MemoryServer()
    leader = Leader(unanswered=float("inf"))
    await leader.serve(hub)
    began_at = loop_time()
    await CoordinatorClient(hub.connect("owner"), NAMES).release(OWNED, grace_s=20.0)
    assert 30.0 <= loop_time() - began_at < 36.0
    assert len(leader.asked_at) <= 10, "less and less often"


@pytest.mark.parametrize("watched", [False, True])
async def test_a_coordinator_of_an_earlier_version_is_asked_where_it_listens(watched: bool) -> None:
    hub = MemoryServer()
    if watched:
        await hub.connect("watcher").subscribe("gangline.>", lambda _: None)
    leader = Leader(unanswered=0)
    await leader.serve(hub, privately=False)
    coordinator_client = CoordinatorClient(hub.connect("owner"), NAMES)
    assert (await coordinator_client.ask(GangOperation.RELEASE, OWNED, 1.0)).state is GangState.ENDED
    coordinator_client.release_unheard(OWNED)
    await asyncio.sleep(0.1)
    assert len(leader.asked_at) == 2


async def test_that_nobody_leads_is_known_soon_though_somebody_watches_and_a_new_leader_is_asked_privately() -> None:
    hub, seen = MemoryServer(), list[str]()
    await hub.connect("watcher").subscribe("gangline.>", lambda message: seen.append(message.subject))
    coordinator_client, loop = CoordinatorClient(hub.connect("owner"), NAMES), asyncio.get_running_loop()
    began_at = loop.time()
    with pytest.raises(NoCoordinator) as caught:
        await coordinator_client.ask(GangOperation.RELEASE, OWNED, 20.0)
    assert isinstance(caught.value.__cause__, NoResponders) and loop.time() - began_at < 1.0
    await Leader(unanswered=0).serve(hub)
    seen.clear()
    assert (await coordinator_client.ask(GangOperation.RELEASE, OWNED, 1.0)).state is GangState.ENDED
    assert not seen
