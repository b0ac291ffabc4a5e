"""How a pull consumer asks, refuses and acknowledges, over a link that does as it is told. Virtual time."""

from __future__ import annotations

import asyncio

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import ConsumerLost, ConsumerState, StorageUnavailable, StreamMessage
from gangline.bus.streams.pull_consumer import SILENCE_S, ConsumerStatus, PullConsumer
from gangline.schemas.errors.base import Disconnected

STATE = ConsumerState(name="c", filter="x", pending=0, unacknowledged=0, metadata={})


class Link:
    """Notes what is sent; the test plays the server."""

    def __init__(self):
        self.owner = self.trouble = None
        self.asked, self.acks, self.refused, self.in_stream = [], [], [], []
        self.batches = self.delivered = self.ordinal = 0
        self.looks = self.removed = self.stopped = 0
        self.there = self.connected = True

    def _check(self):
        if not self.connected:
            raise Disconnected("no connection")

    def ask(self, count, generation):
        self._check()
        self.asked.append((count, generation))

    def acknowledge(self, batch, number):
        self._check()
        assert number == self.batches + 1 and list(batch.values()) == [f"ack.{sequence}" for sequence in batch]
        self.batches = number
        self.acks += batch

    def refuse(self, sequence):
        self._check()
        self.refused.append(sequence)

    async def look(self):
        self.looks += 1
        await asyncio.sleep(0.001)
        if self.trouble is not None:
            raise self.trouble
        return ConsumerStatus(state=STATE, delivered=self.delivered, ordinal=self.ordinal) if self.there else None

    async def stored(self, first, last):
        await asyncio.sleep(0.001)
        if self.trouble is not None:
            raise self.trouble
        return [number for number in self.in_stream if first <= number <= last]

    async def remove(self):
        self.removed += 1

    def stop(self):
        self.stopped += 1

    def outstanding(self):
        return sum(count for count, generation in self.asked if generation == self.owner.generation)


class ScriptedConsumer:
    def __init__(self, hub):
        self.hub = hub
        self.bus = hub.connect("test")
        self.got, self.lost, self.ended, self.confirmed = [], [], [], []
        self.link = Link()
        self.consumer = PullConsumer(
            self.bus,
            "c",
            lambda message: self.got.append(message.sequence),
            on_lost=lambda: self.lost.append(1),
            on_acknowledged=self.confirmed.append,
            remembered=10,
            on_end=self.ended.append,
        )
        self.link.owner = self.consumer
        self.consumer.attach(self.link)
        self.consumer.open(0, 0)

    async def turn(self):
        for _ in range(3):
            await asyncio.sleep(0)

    async def pull(self, count):
        self.consumer.pull(count)
        await self.turn()

    async def ack(self, *sequences):
        for sequence in sequences:
            self.consumer.ack(message(sequence))
        await self.turn()

    async def settling(self, sequence):
        """Acknowledged, and somebody waits until that is confirmed."""
        self.consumer.ack(message(sequence))
        settling = asyncio.ensure_future(self.consumer.settled())
        await self.turn()
        return settling

    async def refused(self):
        """What was refused once the consumer has looked around."""
        await asyncio.sleep(0.1)
        return self.link.refused

    def deliver(self, *sequences, skip=0):
        for sequence in sequences:
            self.lose(*[0] * skip)
            self.link.ordinal += 1
            self.link.delivered = max(self.link.delivered, sequence)
            self.consumer.on_message(message(sequence), self.link.ordinal)

    def lose(self, *sequences):
        """The server delivers these, but they do not arrive."""
        self.link.ordinal += len(sequences)
        self.link.delivered = max(self.link.delivered, *sequences, 0)

    def beat(self):
        self.consumer.on_heartbeat(self.link.ordinal, self.link.delivered)


def message(sequence, delivered=1):
    return StreamMessage(
        subject="x", data=b"", headers=None, sequence=sequence, at=0.0, delivered=delivered, ack=f"ack.{sequence}"
    )


@pytest.fixture
async def scripted():
    made = ScriptedConsumer(MemoryServer())
    yield made
    await made.consumer.close()
    await made.bus.close()


# -- asking -------------------------------------------------------------------------------------------------------


async def test_what_an_ended_request_left_is_asked_for_again(scripted):
    await scripted.pull(10)
    scripted.deliver(1, 2, 3)
    scripted.consumer.on_request_ended(7)
    await scripted.turn()
    assert scripted.link.asked == [(10, 0), (7, 0)]


async def test_silence_begins_a_new_generation_and_heartbeats_prevent_it(scripted):
    await scripted.pull(3)
    for _ in range(10):
        await asyncio.sleep(SILENCE_S - 1)
        scripted.beat()
    assert len(scripted.link.asked) == 1
    await asyncio.sleep(SILENCE_S + 0.5)
    assert [count for count, _ in scripted.link.asked] == [3, 3]
    assert scripted.link.asked[1][1] == scripted.consumer.generation > 0


async def test_nothing_asked_for_is_no_silence(scripted):
    await scripted.pull(1)
    scripted.deliver(1)
    await asyncio.sleep(60)
    assert scripted.link.looks == 0
    assert len(scripted.link.asked) == 1


# -- trouble ------------------------------------------------------------------------------------------------------


async def test_one_without_a_leader_is_not_lost_and_is_looked_at_with_growing_pauses(scripted):
    await scripted.pull(1)
    scripted.link.trouble = StorageUnavailable("no leader")
    scripted.consumer.on_trouble()
    await asyncio.sleep(10)
    assert scripted.lost == []
    assert 8 <= scripted.link.looks <= 16
    scripted.link.trouble = None
    await asyncio.sleep(1.5)
    assert [count for count, _ in scripted.link.asked] == [1, 1]


async def test_what_was_delivered_and_never_came_is_refused(scripted):
    await scripted.pull(10)
    scripted.deliver(3, 4)
    scripted.link.in_stream = [3, 4, 6, 8, 9]
    scripted.link.delivered = 8
    scripted.consumer.on_trouble()
    assert await scripted.refused() == [6, 8]
    # One came; the other is refused again when there is trouble again, but not for ever.
    scripted.deliver(6)
    for _ in range(10):
        scripted.consumer.on_trouble()
        await asyncio.sleep(2)
    assert set(scripted.link.refused[2:]) == {8}
    assert 3 <= len(scripted.link.refused[2:]) <= 5


async def test_a_gap_in_the_deliveries_is_filled_though_the_connection_held(scripted):
    await scripted.pull(10)
    scripted.deliver(1)
    scripted.link.in_stream = [1, 2, 3, 4]
    scripted.deliver(4, skip=2)
    assert await scripted.refused() == [2, 3]
    assert scripted.consumer.wanted == 8
    scripted.deliver(2, 3)
    assert scripted.got == [1, 4, 2, 3]


async def test_the_loss_of_the_last_delivery_is_noticed_at_a_heartbeat(scripted):
    await scripted.pull(3)
    scripted.link.in_stream = [1, 2, 5]
    scripted.deliver(1)
    scripted.lose(2, 5)
    scripted.beat()
    assert await scripted.refused() == [2, 5]
    assert [count for count, _ in scripted.link.asked] == [3, 2]  # the lost ones used up two of the three
    # One comes; the other is lost again, or its refusal was.
    scripted.deliver(2)
    scripted.beat()
    assert await scripted.refused() == [2, 5, 5]
    scripted.deliver(5)
    scripted.beat()
    assert await scripted.refused() == [2, 5, 5]
    assert scripted.got == [1, 2, 5]


async def test_a_gap_is_filled_when_storage_answers_again(scripted):
    await scripted.pull(10)
    scripted.link.in_stream = [1, 2]
    scripted.link.trouble = StorageUnavailable("no leader")
    scripted.deliver(2, skip=1)
    await asyncio.sleep(5)
    assert scripted.link.refused == []
    scripted.link.trouble = None
    await asyncio.sleep(2)
    assert scripted.link.refused == [1]


async def test_a_message_that_comes_again_tells_that_some_were_lost_but_not_which(scripted):
    await scripted.pull(10)
    scripted.link.in_stream = [1, 2, 3, 4]
    scripted.deliver(2, skip=1)
    assert await scripted.refused() == [1]
    scripted.lose(3)
    scripted.deliver(1)  # the server has delivered more, as its number shows
    assert await scripted.refused() == [1]
    scripted.deliver(4)
    assert await scripted.refused() == [1, 3]


async def test_what_a_new_generation_has_been_told_is_no_gap(scripted):
    await scripted.pull(10)
    scripted.lose(1)
    scripted.link.in_stream = [1]
    scripted.consumer.on_trouble()
    await asyncio.sleep(0.1)
    scripted.deliver(1)
    scripted.beat()
    assert await scripted.refused() == [1]


# -- acknowledging ------------------------------------------------------------------------------------------------


async def test_acknowledgements_of_one_turn_are_a_batch_that_is_sent_again_until_it_is_confirmed(scripted):
    await scripted.ack(1, 2)
    await scripted.ack(3)
    assert (scripted.link.acks, scripted.link.batches) == ([1, 2, 3], 2)
    scripted.consumer.on_acknowledged(1)
    assert scripted.confirmed == [[1, 2]]
    await asyncio.sleep(2.6)
    assert (scripted.link.acks, scripted.link.batches) == ([1, 2, 3, 3], 3)
    scripted.consumer.on_acknowledged(2)
    assert scripted.confirmed == [[1, 2]], "that batch was given up"
    scripted.consumer.on_acknowledged(3)
    assert scripted.confirmed == [[1, 2], [3]]
    await asyncio.sleep(60)
    assert scripted.link.acks == [1, 2, 3, 3]


async def test_what_was_confirmed_lately_is_acknowledged_again_after_trouble(scripted):
    """Of a batch on its way while the leader changes the last may arrive, and not those before it."""
    await scripted.ack(1, 2)
    scripted.consumer.on_acknowledged(1)
    await scripted.ack(3)
    scripted.consumer.on_trouble()
    await asyncio.sleep(0.1)
    assert scripted.link.acks == [1, 2, 3, 1, 2, 3]
    scripted.consumer.on_acknowledged(3)
    assert scripted.confirmed == [[1, 2], [3]], "told of each once"
    await scripted.consumer.settled()


async def test_acknowledgements_made_without_a_connection_are_sent_after_it(scripted):
    scripted.hub.disconnect(scripted.bus)
    scripted.link.connected = False
    await scripted.ack(1)
    assert scripted.link.acks == []
    scripted.link.connected = True
    scripted.hub.reconnect(scripted.bus)
    await asyncio.sleep(0.01)
    assert scripted.link.acks == [1]


async def test_an_acknowledged_message_that_comes_again_is_acknowledged_again_and_not_handed_over(scripted):
    await scripted.pull(4)
    scripted.deliver(1, 2)
    await scripted.ack(1)
    scripted.consumer.on_acknowledged(1)
    await scripted.ack(2)
    scripted.deliver(1, 2)
    await scripted.turn()
    assert scripted.got == [1, 2]
    assert scripted.link.acks == [1, 2, 1, 2]
    assert scripted.consumer.wanted == 2
    assert scripted.link.outstanding() - 4 == 2


async def test_settled_fails_when_the_consumer_is_lost(scripted):
    settling = await scripted.settling(1)
    scripted.link.there = False
    scripted.consumer.on_trouble()
    with pytest.raises(ConsumerLost):
        await settling
    with pytest.raises(ConsumerLost):
        await scripted.consumer.settled()


# -- closing ------------------------------------------------------------------------------------------------------


async def test_closing_waits_for_acknowledgements_but_not_for_long(scripted):
    scripted.consumer.ack(message(1))
    begin = asyncio.get_running_loop().time()
    await scripted.consumer.close(delete=True)
    assert 1.9 < asyncio.get_running_loop().time() - begin < 2.5
    assert scripted.link.removed == 1
    await scripted.consumer.close(delete=True)
    assert scripted.link.removed == 1
    scripted.deliver(1)
    assert scripted.got == []
