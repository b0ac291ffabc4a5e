"""How long a queue is believed to be ours, and what proves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import BucketSettings, ConsumerLost, ConsumerState, KeyValue, StorageUnavailable
from gangline.dispatcher.durable.ownership.ownership_core import TRUST_S
from gangline.dispatcher.durable.ownership.verifier import OwnershipProof, OwnershipVerifier
from gangline.dispatcher.durable.workers.failure_detector import DoubtMonitor
from gangline.runtime.clock import Environment
from gangline.schemas.records.jobs import TurnRecord
from gangline.telemetry.logs import logger_for

KEY = "turn.images"
AS_BEFORE = ConsumerState(name="q", filter="f", pending=0, unacknowledged=0, metadata={})


class Holder:
    """A dispatcher that has the queue, or believes so."""

    def __init__(self, hub: MemoryServer, name: str) -> None:
        self.bus = hub.connect(name)
        self.guard = DoubtMonitor(self.bus, 1.0)
        self.guard.start()
        self.told: list[str] = []
        self.answers: list[ConsumerState | Exception] = []
        """What the server says of the consumer, the next first; then that it is as it was."""
        self.asked = 0
        self.turn = OwnershipProof(self.bucket, KEY, dispatcher=name, ambient=Environment(), log=logger_for("test"))
        self.verifier = OwnershipVerifier(
            self.guard,
            self.turn,
            self.state,
            doubted=lambda: self.told.append("doubted"),
            sure=lambda: self.told.append("sure"),
            lost=lambda: self.told.append("lost"),
            log=logger_for("test"),
        )

    async def bucket(self) -> KeyValue:
        return await self.bus.bucket("results", BucketSettings())

    async def state(self) -> ConsumerState:
        """As a server that is cut off would say."""
        self.asked += 1
        await asyncio.sleep(0.1)
        answer = self.answers.pop(0) if self.answers else AS_BEFORE
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def reconnect(self, hub: MemoryServer) -> None:
        hub.disconnect(self.bus)
        hub.reconnect(self.bus)
        await asyncio.sleep(0)

    async def stop(self) -> None:
        await self.verifier.stop()
        self.guard.stop()
        await self.bus.close()


@pytest.fixture
async def hub() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
async def holder(hub: MemoryServer) -> AsyncIterator[Holder]:
    made = Holder(hub, "d1")
    await made.turn.take()
    yield made
    await made.stop()


def revision(hub: MemoryServer) -> int:
    return hub.peek("results")[0].revision


async def busy(holder: Holder, for_s: float) -> None:
    """Something happens all the time."""
    until = asyncio.get_running_loop().time() + for_s
    while asyncio.get_running_loop().time() < until:
        holder.verifier.look()
        await asyncio.sleep(0.01)


async def test_a_queue_with_something_to_do_is_proven_a_few_times_a_second_and_never_in_doubt(
    hub: MemoryServer, holder: Holder
) -> None:
    before = revision(hub)
    await busy(holder, 10.0)
    assert holder.told == [] and 25 <= revision(hub) - before <= 34


async def test_a_quiet_queue_writes_nothing_and_is_proven_anew_before_it_does_anything(
    hub: MemoryServer, holder: Holder
) -> None:
    before = revision(hub)
    await asyncio.sleep(60)
    assert revision(hub) == before and holder.told == []
    holder.verifier.look()
    assert holder.told == ["doubted"] and not holder.verifier.certain
    await holder.verifier.wait()
    assert holder.told == ["doubted", "sure"] and revision(hub) == before + 1


async def test_who_is_not_heard_stops_believing_before_a_successor_may_ask_what_runs(
    hub: MemoryServer, holder: Holder
) -> None:
    await busy(holder, 1.0)
    loop = asyncio.get_running_loop()
    successor = Holder(hub, "d2")
    hub.mute(holder.bus, loses=True)
    await successor.turn.take()
    noted_at = loop.time()
    await busy(holder, successor.turn.others_trust_s)
    assert holder.told == ["doubted"] and loop.time() - noted_at == pytest.approx(TRUST_S, abs=0.02)
    hub.unmute(holder.bus)
    await asyncio.sleep(5)
    assert holder.told == ["doubted", "lost"], "whatever the consumer looks like"
    await successor.verifier.wait()
    assert successor.verifier.certain
    await successor.stop()


async def test_a_proof_that_came_too_late_is_none(hub: MemoryServer, holder: Holder) -> None:
    hub.partition(holder.bus)
    await busy(holder, 0.9)
    assert holder.told == ["doubted"]
    hub.heal(holder.bus)
    await busy(holder, 5.0)
    assert holder.told == ["doubted", "sure"]


async def test_an_own_write_whose_answer_was_lost_proves_nothing_wrong(hub: MemoryServer, holder: Holder) -> None:
    bucket = await holder.bucket()
    await bucket.put(KEY, TurnRecord(dispatcher="d1", at=1.0).model_dump_json().encode())
    await busy(holder, 1.0)
    assert holder.told == []


async def test_a_bucket_that_was_lost_is_written_anew(hub: MemoryServer, holder: Holder) -> None:
    await (await holder.bucket()).delete(KEY)
    await busy(holder, 1.0)
    assert holder.told == [] and len(hub.peek("results")) == 1


async def test_what_nobody_can_read_is_another_ones(hub: MemoryServer, holder: Holder) -> None:
    await (await holder.bucket()).put(KEY, b"{")
    with pytest.raises(ConsumerLost):
        await holder.turn.prove()


async def test_nothing_is_proven_before_the_turn_was_taken(hub: MemoryServer) -> None:
    made = Holder(hub, "d2")
    hub.disconnect(made.bus)
    hub.reconnect(made.bus)
    await asyncio.sleep(1)
    assert made.told == ["doubted", "sure"] and hub.peek("results") == []
    await made.stop()


async def test_a_doubt_ends_with_the_servers_word_however_long_storage_takes(hub: MemoryServer, holder: Holder) -> None:
    holder.answers = [StorageUnavailable("no leader"), StorageUnavailable("no leader")]
    await holder.reconnect(hub)
    assert holder.told == ["doubted"] and not holder.verifier.certain
    await holder.verifier.wait()
    assert holder.told == ["doubted", "sure"] and holder.asked == 3


async def test_an_answer_from_before_a_second_doubt_does_not_count(hub: MemoryServer, holder: Holder) -> None:
    for _ in range(2):
        await holder.reconnect(hub)
        await asyncio.sleep(0.05)
    await holder.verifier.wait()
    assert holder.told == ["doubted", "sure"] and holder.asked == 2


async def test_a_lost_consumer_is_said_once_and_nobody_becomes_sure(hub: MemoryServer, holder: Holder) -> None:
    holder.answers = [ConsumerLost("gone")]
    await holder.reconnect(hub)
    await asyncio.sleep(1)
    assert holder.told == ["doubted", "lost"] and not holder.verifier.certain
