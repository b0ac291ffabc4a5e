"""The JetStream transport of a pull consumer; streams.pull_consumer makes the decisions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..port.bus import ConsumerSettings, ConsumerTaken, Message, StreamHandler, StreamMessage
from ..streams.ack_batcher import Batch
from ..streams.pull_consumer import EXPIRES_S, HEARTBEAT_S, ConsumerStatus, PullConsumer
from .api import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND, ApiError
from .stream_admin import StreamOwner
from .wire import ACK_PREFIX, SECOND_NS, ack_subject, consumer_configuration, consumer_state, delivered_message

if TYPE_CHECKING:
    from .api import Transport, TransportSubscription

CONSUMER_EXISTS: Final = (10148, 10105, 10013)
_TAKEN: Final = (10099, 10100)
"""A work queue already has a consumer for these subjects."""
_PATIENCE_S: Final = 2.0
_TIMED_OUT: Final = "408"
_HEARTBEAT: Final = "100"


class ConsumedStream(StreamOwner, Protocol):
    """The stream of a consumer."""

    async def next(self, pattern: str, sequence: int = 1) -> StreamMessage | None: ...

    async def delete_consumer(self, name: str) -> bool: ...


async def open_consumer(
    stream: ConsumedStream,
    name: str,
    settings: ConsumerSettings,
    handler: StreamHandler,
    *,
    on_lost: Callable[[], None] | None,
    on_acknowledged: Callable[[list[int]], None] | None,
    on_end: Callable[[PullConsumer], None],
) -> PullConsumer:
    """Create the consumer, or open the existing one with this name and filter.

    Raises:
        ConsumerTaken, StorageUnavailable, Disconnected.
    """
    consumer = PullConsumer(
        stream.bus,
        name,
        handler,
        on_lost=on_lost,
        on_acknowledged=on_acknowledged,
        remembered=2 * settings.max_pending,
        on_end=on_end,
    )
    link = JetStreamPullTransport(stream, name, settings.filter, consumer)
    consumer.attach(link)
    try:
        info = await _create(stream, name, settings)
        await link.open(str(info.get("created", "")))
    except BaseException:
        consumer.abandon()
        raise
    consumer.open(*_delivered(info))
    return consumer


async def _create(stream: ConsumedStream, name: str, settings: ConsumerSettings) -> dict[str, Any]:
    body = {
        "stream_name": stream.name,
        "config": consumer_configuration(name, settings),
        "action": "create",
    }
    try:
        return await stream.upkeep.ask(
            f"CONSUMER.CREATE.{stream.name}.{name}", body, what=f"make the consumer {name} of {stream.name}"
        )
    except ApiError as error:
        if error.number in _TAKEN:
            raise ConsumerTaken(
                f"another consumer of {stream.name} overlaps {settings.filter!r}: remove it first "
                f"(Stream.delete_consumer), or wait until it is gone",
                details={"stream": stream.name, "filter": settings.filter},
            ) from error
        if error.number not in CONSUMER_EXISTS:
            raise
    info = await stream.upkeep.ask(f"CONSUMER.INFO.{stream.name}.{name}", what=f"look at the consumer {name}")
    if consumer_state(info).filter != settings.filter:
        raise ConsumerTaken(
            f"consumer {name!r} of {stream.name} exists with the filter {consumer_state(info).filter!r}, not "
            f"{settings.filter!r}: remove it first, or choose another name",
            details={"stream": stream.name, "filter": settings.filter},
        )
    return info


def _delivered(info: dict[str, Any]) -> tuple[int, int]:
    """Stream and consumer sequence of the last delivery."""
    last = info.get("delivered") or {}
    return int(last.get("stream_seq", 0)), int(last.get("consumer_seq", 0))


class JetStreamPullTransport:
    """Implements pull_consumer.PullTransport.

    One wildcard subscription receives everything: deliveries have the stored message's subject and an acknowledgement
    subject to reply to; statuses come to `<inbox>.<generation>`, confirmations to `<inbox>.a<number>`.
    """

    def __init__(self, stream: ConsumedStream, name: str, pattern: str, owner: PullConsumer) -> None:
        self._stream = stream
        self._bus: Transport = stream.bus
        self._name = name
        self._pattern = pattern
        self._owner = owner
        self._inbox = self._bus.new_inbox()
        self._skip = len(self._inbox) + 1
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream.name}.{name}"
        self._created = ""
        self._delivered = 0
        """Consumer sequence of the newest known delivery; the server accepts no refusal of a later one."""
        self._subscription: TransportSubscription | None = None

    async def open(self, created: str) -> None:
        """Subscribe; `created` tells our consumer from another of the same name."""
        self._created = created
        self._subscription = await self._bus.subscribe(f"{self._inbox}.*", self._receive)

    def stop(self) -> None:
        if self._subscription is not None:
            self._subscription.stop()

    # -- sending --------------------------------------------------------------------------------------------------

    def ask(self, count: int, generation: int) -> None:
        request = {
            "batch": count,
            "expires": int(EXPIRES_S * SECOND_NS),
            "idle_heartbeat": int(HEARTBEAT_S * SECOND_NS),
        }
        self._bus.publish(self._next, json.dumps(request).encode(), reply=f"{self._inbox}.{generation}")

    def acknowledge(self, batch: Batch, number: int) -> None:
        *before, last = batch.values()
        if before:
            self._bus.publish_each(before, "+ACK")
        self._bus.publish_known(last, b"+ACK", f"{self._inbox}.a{number}")

    def refuse(self, sequence: int) -> None:
        subject = ack_subject(self._stream.name, self._name, sequence, self._delivered)
        self._bus.publish_known(subject, b"-NAK", "")

    # -- receiving ------------------------------------------------------------------------------------------------

    def _receive(self, message: Message) -> None:
        if message.reply.startswith(ACK_PREFIX):
            stored, ordinal = delivered_message(message)
            self._delivered = ordinal
            self._owner.on_message(stored, ordinal)
            return
        tail = message.subject[self._skip :]
        headers = message.headers
        if tail.startswith("a"):
            if headers is None:
                self._owner.on_acknowledged(int(tail[1:]))
            else:  # 503: nobody accepts acknowledgements of this consumer
                self._owner.on_trouble()
            return
        if headers is None or tail != str(self._owner.generation):
            return
        status = headers.get("Status")
        left = headers.get("Nats-Pending-Messages")
        if status == _HEARTBEAT:
            ordinal = int(headers.get("Nats-Last-Consumer", 0))
            self._delivered = max(self._delivered, ordinal)
            self._owner.on_heartbeat(ordinal, int(headers.get("Nats-Last-Stream", 0)))
        elif status == _TIMED_OUT and left is not None:
            self._owner.on_request_ended(int(left))
        else:
            self._owner.on_trouble()

    # -- asking about it ------------------------------------------------------------------------------------------

    async def look(self) -> ConsumerStatus | None:
        try:
            info = await self._bus.api.call(
                f"CONSUMER.INFO.{self._stream.name}.{self._name}",
                what=f"look at the consumer {self._name}",
                timeout_s=min(_PATIENCE_S, self._bus.api.timeout_s),
            )
        except ApiError as error:
            if error.number in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
                return None
            raise
        if self._created and info.get("created") != self._created:
            return None
        delivered, self._delivered = _delivered(info)
        return ConsumerStatus(state=consumer_state(info), delivered=delivered, ordinal=self._delivered)

    async def stored(self, first: int, last: int) -> list[int]:
        found: list[int] = []
        while first <= last:
            message = await self._stream.next(self._pattern, first)
            if message is None or message.sequence > last:
                break
            found.append(message.sequence)
            first = message.sequence + 1
        return found

    async def remove(self) -> None:
        await self._stream.delete_consumer(self._name)
