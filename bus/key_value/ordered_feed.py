"""One short-lived push consumer on a bucket: the newest message of each key, then every change, without gaps.

A feed never repairs itself: on a gap, on silence, or when its consumer goes it says BROKEN once and is done. Whoever
uses it opens another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from ..jetstream.api import STREAM_NOT_FOUND, ApiError
from ..port.bus import Message
from .wire import StoredEntry

if TYPE_CHECKING:
    from ..nats_client.client import NatsSubscription
    from .wire import BucketOwner

_SECOND_NS: Final = 1_000_000_000
_HEARTBEAT_S: Final = 1.0
_SILENCE_S: Final = 3.5
"""Three heartbeats missed."""
_FORGOTTEN_AFTER_S: Final = 30
"""The server removes a consumer whose connection has gone for so long."""


class OrderedMessage(Enum):
    CAUGHT_UP = "caught up"
    """All that was there when the feed opened has been delivered."""
    BROKEN = "broken"
    """Nothing more will come."""


FeedHandler = Callable[[StoredEntry | OrderedMessage], None]


class OrderedFeed:
    """See the module's text. `open` once, then `close`."""

    def __init__(self, bucket: BucketOwner, patterns: tuple[str, ...], handler: FeedHandler) -> None:
        self._bucket = bucket
        self._bus = bucket.bus
        self._subjects = [bucket.prefix + text for text in patterns]
        self._handler = handler
        self._consumer = ""
        self._inbox = bucket.bus.new_inbox()
        self._subscription: NatsSubscription | None = None
        self._delivered = 0
        """Consumer sequence of the last message; the next must be one more."""
        self._pending: int | None = None
        """How many messages were waiting when the consumer was made; None until its answer came."""
        self._caught_up = False
        self._over = False
        self._last_heard = 0.0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    async def open(self) -> bool:
        """Make the consumer; False when the bucket does not exist.

        Raises:
            StorageUnavailable, Disconnected.
        """
        # A subscription of its own: JetStream delivers with the subject of the stored message, not with ours.
        self._subscription = await self._bus.subscribe(self._inbox, self._receive)
        self._consumer = f"gangline-{self._bus.ambient.token()}"
        configuration: dict[str, Any] = {
            "name": self._consumer,
            "deliver_subject": self._inbox,
            "deliver_policy": "last_per_subject",
            "filter_subjects": self._subjects,
            "ack_policy": "none",
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "idle_heartbeat": int(_HEARTBEAT_S * _SECOND_NS),
            "inactive_threshold": _FORGOTTEN_AFTER_S * _SECOND_NS,
        }
        stream = self._bucket.stream
        try:
            made = await self._bus.api.call(
                f"CONSUMER.CREATE.{stream}.{self._consumer}",
                {"stream_name": stream, "config": configuration, "action": "create"},
                what=f"follow {self._bucket.name}",
            )
        except ApiError as error:
            if error.number == STREAM_NOT_FOUND:
                return False
            raise
        self._pending = int(made.get("num_pending", 0))
        self._last_heard = self._loop.time()
        self._timer = self._loop.call_later(_SILENCE_S, self._listen_for_silence)
        self._check_caught_up()
        return True

    def close(self) -> None:
        """Remove the consumer, without waiting. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        if self._subscription is not None:
            self._subscription.stop()
        if self._pending is not None and not self._bus.closed and self._bus.connected:
            subject = f"$JS.API.CONSUMER.DELETE.{self._bucket.stream}.{self._consumer}"
            self._bus.publish(subject, reply=f"{self._inbox}.gone")
        self._pending = None
        self._over = True

    def _receive(self, message: Message) -> None:
        if self._over:
            return
        self._last_heard = self._loop.time()
        if message.headers is not None and "Status" in message.headers:
            self._heartbeat(message)
            return
        sequence, delivered, pending = _position(message.reply)
        if delivered != self._delivered + 1:
            self._break()
            return
        self._delivered = delivered
        self._handler(
            StoredEntry(
                key=message.subject[len(self._bucket.prefix) :],
                value=message.data,
                revision=sequence,
                headers=message.headers or {},
            )
        )
        if pending == 0:
            self._reach_end()
        else:
            self._check_caught_up()

    def _heartbeat(self, message: Message) -> None:
        headers = message.headers or {}
        if headers.get("Status") != "100":
            self._break()
            return
        if int(headers.get("Nats-Last-Consumer", self._delivered)) != self._delivered:
            self._break()
            return
        # An idle consumer has nothing more to give: what was pending has been overwritten or has expired meanwhile.
        self._reach_end()

    def _check_caught_up(self) -> None:
        if self._pending is not None and self._delivered >= self._pending:
            self._reach_end()

    def _reach_end(self) -> None:
        if not self._caught_up and self._pending is not None:
            self._caught_up = True
            self._handler(OrderedMessage.CAUGHT_UP)

    def _break(self) -> None:
        if not self._over:
            self._over = True
            self._handler(OrderedMessage.BROKEN)

    def _listen_for_silence(self) -> None:
        silent_s = self._loop.time() - self._last_heard
        if silent_s >= _SILENCE_S:
            self._break()
            return
        self._timer = self._loop.call_later(_SILENCE_S - silent_s, self._listen_for_silence)


def _position(reply: str) -> tuple[int, int, int]:
    """Stream sequence, consumer sequence and pending count of a delivered message, from its reply subject.

    Nine parts, or at least eleven with domain and account before the stream.
    """
    parts = reply.split(".")
    first = 5 if len(parts) == 9 else 7
    return int(parts[first]), int(parts[first + 1]), int(parts[first + 3])
