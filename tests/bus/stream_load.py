"""A work queue under load, of which every message must be done exactly once, whatever happens to the server."""

from __future__ import annotations

import asyncio

from gangline.bus.port import ConsumerSettings, Published, Stream, StreamMessage
from gangline.schemas.errors import Unavailable

from .conftest import collect

LONG_S = 300.0
"""An acknowledgement wait that no test lives to see."""


async def publish_until_stored(stream: Stream, subject: str, number: int) -> Published:
    """As a careful client does: with an id, again and again."""
    async with asyncio.timeout(90):
        while True:
            try:
                return await stream.publish(
                    subject, b"%d" % number, headers={"Nats-Msg-Id": f"m{number}"}, timeout_s=2.0
                )
            except Unavailable:
                await asyncio.sleep(0.02)


class Load:
    """`number` messages, published ten at a time over `source` and worked off from `stream`, fifty ahead."""

    def __init__(self, stream: Stream, source: Stream, subject: str, number: int) -> None:
        self.done = collect()
        self.lost = collect()
        self._stream = stream
        self._source = source
        self._subject = subject
        self._number = number
        self._seen: set[bytes] = set()
        self._again: list[bytes] = []
        self._publishing: asyncio.Future[list[None]]

    async def start(self) -> None:
        settings = ConsumerSettings(filter=self._subject, ack_wait_s=LONG_S)
        self._consumer = await self._stream.consume("c", settings, self._work, on_lost=lambda: self.lost(1))
        self._consumer.pull(50)
        self._publishing = asyncio.gather(*(self._publish(share) for share in range(10)))

    async def finish(self) -> None:
        """Wait for the end, and judge it."""
        await self._publishing
        while len(self._seen) < self._number:
            await self.done.count(len(self.done.items) + 1)
        await self._consumer.settled()
        assert self._seen == {b"%d" % index for index in range(self._number)}
        assert self._again == []
        assert self.lost.items == []

    async def _publish(self, share: int) -> None:
        for index in range(share, self._number, 10):
            await publish_until_stored(self._source, self._subject.replace(">", "x"), index)

    def _work(self, message: StreamMessage) -> None:
        if message.data in self._seen:
            self._again.append(message.data)
        self._seen.add(message.data)
        self._consumer.ack(message)
        self.done(message)
        self._consumer.pull(1)
