"""Reading a stream in order: a short-lived push consumer that is watched for gaps, and made anew behind the last
message that came."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ...schemas.errors.base import ClosedError, Disconnected, GanglineError
from ..port.bus import Message, StreamHandler, StreamMessage
from .resubscriber import Resubscriber
from .wire import SECOND_NS, delivered_message

if TYPE_CHECKING:
    from ..nats_client.client import NatsSubscription
    from .stream_admin import StreamOwner

log = logging.getLogger("gangline.bus")

_HEARTBEAT_S: Final = 1.0
_SILENCE_S: Final = 3.5
"""Three heartbeats missed."""
_FORGOTTEN_AFTER_S: Final = 30
"""The server removes a consumer whose connection has gone for so long."""


class OrderedConsumer(Resubscriber):
    """Implements port.Subscription; see port.Stream.read.

    Invariant: every matching message from `start` on with a sequence below `_next` was handed over, and none besides.
    """

    def __init__(
        self,
        stream: StreamOwner,
        pattern: str,
        handler: StreamHandler,
        start: int,
        *,
        on_end: Callable[[OrderedConsumer], None],
    ) -> None:
        super().__init__(stream.bus)
        self._stream = stream
        self._on_end = on_end
        self._pattern = pattern
        self._handler = handler
        self._next = start
        self._stream_created = ""
        self._consumer = ""
        self._inbox = ""
        self._subscription: NatsSubscription | None = None
        self._delivered = 0
        """Consumer sequence of the last message; the next must be one more."""
        self._heard_at = 0.0
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"<OrderedConsumer of {self._pattern!r} in {self._stream.name!r}, next {self._next}>"

    async def start(self) -> None:
        """Return when the server delivers.

        Raises:
            StorageUnavailable, Disconnected, ApiError: it does not; nothing is left running.
        """
        await self._begin(f"start to deliver {self._pattern!r}")

    def stop(self) -> None:
        """End delivery. Idempotent."""
        super().stop()
        self._close()
        self._on_end(self)

    async def _run(self) -> None:
        while True:
            self._broken.clear()
            try:
                if not self._bus.connected:
                    raise Disconnected("no connection to a nats-server right now: try again when it is back")
                await self._open()
                if not self._ready.done():
                    self._ready.set_result(None)
                self._backoff.reset()
                await self._listen()
                continue
            except ClosedError:
                return
            except GanglineError as error:
                if not self._ready.done():
                    self._ready.set_exception(error)
                    return
                log.debug(
                    "a reader waits: %s", error, extra={"action": "bus.reader_waits", "stream": self._stream.name}
                )
            finally:
                self._close()
            await self._pause()

    async def _listen(self) -> None:
        """Return when delivery stopped or has a gap."""
        while True:
            try:
                async with asyncio.timeout_at(self._heard_at + _SILENCE_S):
                    await self._broken.wait()
                return
            except TimeoutError:
                if self._loop.time() >= self._heard_at + _SILENCE_S:
                    return

    # -- one consumer ---------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        await self._stream.upkeep.ensure(look=bool(self._stream_created))
        created = self._stream.upkeep.created
        if self._stream_created and created != self._stream_created:
            self._next = 1  # a new stream: its sequences begin again
        self._stream_created = created
        self._delivered = 0
        self._inbox = self._bus.new_inbox()
        # A subscription of its own: JetStream delivers with the subject of the stored message, not with ours.
        self._subscription = await self._bus.subscribe(self._inbox, self._receive)
        self._consumer = f"gangline-{self._bus.ambient.token()}"
        configuration: dict[str, Any] = {
            "name": self._consumer,
            "deliver_subject": self._inbox,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": max(self._next, 1),
            "filter_subject": self._pattern,
            "ack_policy": "none",
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "flow_control": True,
            "idle_heartbeat": int(_HEARTBEAT_S * SECOND_NS),
            "inactive_threshold": _FORGOTTEN_AFTER_S * SECOND_NS,
        }
        await self._bus.api.call(
            f"CONSUMER.CREATE.{self._stream.name}.{self._consumer}",
            {"stream_name": self._stream.name, "config": configuration, "action": "create"},
            what=f"read {self._stream.name}",
        )
        self._heard_at = self._loop.time()

    def _close(self) -> None:
        """Remove the consumer, without waiting. Idempotent."""
        if self._subscription is None:
            return
        self._subscription.stop()
        self._subscription = None
        if not self._bus.closed and self._bus.connected:
            subject = f"$JS.API.CONSUMER.DELETE.{self._stream.name}.{self._consumer}"
            self._bus.publish(subject, reply=f"{self._inbox}.gone")

    def _receive(self, message: Message) -> None:
        if self._subscription is None or self._broken.is_set():
            return
        self._heard_at = self._loop.time()
        if message.subject == self._inbox:
            self._take_status(message)
            return
        stored, delivered = delivered_message(message)
        if delivered != self._delivered + 1:
            self._broken.set()
            return
        self._delivered = delivered
        self._next = stored.sequence + 1
        self._call(stored)

    def _take_status(self, message: Message) -> None:
        headers = message.headers or {}
        if headers.get("Status") != "100":
            self._broken.set()
        elif message.reply:  # the server asks whether we keep up
            self._bus.publish(message.reply)
        else:
            stalled = headers.get("Nats-Consumer-Stalled")
            if stalled:
                self._bus.publish(stalled)
            if int(headers.get("Nats-Last-Consumer", self._delivered)) != self._delivered:
                self._broken.set()

    def _call(self, message: StreamMessage) -> None:
        try:
            self._handler(message)
        except Exception:
            log.exception(
                "the handler of a reader of %s failed on %s",
                self._stream.name,
                message.subject,
                extra={"action": "bus.handler_failed", "subject": message.subject},
            )
