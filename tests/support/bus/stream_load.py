"""A work queue under load: every message must be processed exactly once, whatever happens to the server."""

from __future__ import annotations

import asyncio

from gangline.bus.port.bus import ConsumerSettings, Published, Stream, StreamMessage
from gangline.schemas.errors.base import Unavailable

from ...bus.conftest import collect
from ...waiting import PATIENCE_S, until

LONG_S = 300.0
"""An acknowledgement timeout longer than any test."""


async def publish_until_stored(
    stream: Stream, subject: str, number: int, in_doubt: set[bytes] | None = None
) -> Published:
    """Publish with an id, and retry until it succeeds. `in_doubt` gets the body if a failed try may have stored it."""
    body = b"%d" % number
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await stream.publish(subject, body, headers={"Nats-Msg-Id": f"m{number}"}, timeout_s=2.0)
            except Unavailable as error:
                if in_doubt is not None and error.may_have_started:
                    in_doubt.add(body)
                await asyncio.sleep(0.02)


class Load:
    """`number` messages, published ten at a time over `source` and consumed from `stream`, fifty ahead.

    A restarted server knows only the ids of messages that are still stored. So with `restarts`, a message that was
    already processed may be stored again, under another sequence, if its publication was in doubt.
    """

    def __init__(self, stream: Stream, source: Stream, subject: str, number: int, *, restarts: bool = False) -> None:
        self.done = collect()
        self.lost = collect()
        self._stream = stream
        self._source = source
        self._subject = subject
        self._number = number
        self._restarts = restarts
        self._in_doubt: set[bytes] = set()
        self._seen: set[bytes] = set()
        self._sequences: set[int] = set()
        self._again: list[StreamMessage] = []
        self._publishing: asyncio.Future[list[None]]

    async def start(self) -> None:
        settings = ConsumerSettings(filter=self._subject, ack_wait_s=LONG_S)
        self._consumer = await self._stream.consume("c", settings, self._work, on_lost=lambda: self.lost(1))
        self._consumer.pull(50)
        self._publishing = asyncio.gather(*(self._publish(share) for share in range(10)))

    async def finish(self) -> None:
        """Wait for the end, and check the result."""
        await self._publishing
        while len(self._seen) < self._number:
            await self.done.count(len(self.done.items) + 1)
        await self._consumer.settled()
        await until(self._empty)
        assert self._seen == {b"%d" % index for index in range(self._number)}
        assert self._again == []
        assert self.lost.items == []

    async def _empty(self) -> bool:
        try:
            return (await self._stream.state()).messages == 0
        except Unavailable:
            return False  # the server is not back yet, or the cluster is electing a leader

    async def _publish(self, share: int) -> None:
        for index in range(share, self._number, 10):
            await publish_until_stored(self._source, self._subject.replace(">", "x"), index, self._in_doubt)

    def _work(self, message: StreamMessage) -> None:
        stored_again = self._restarts and message.data in self._in_doubt
        if message.sequence in self._sequences or (message.data in self._seen and not stored_again):
            self._again.append(message)
        self._seen.add(message.data)
        self._sequences.add(message.sequence)
        self._consumer.ack(message)
        self.done(message)
        self._consumer.pull(1)
