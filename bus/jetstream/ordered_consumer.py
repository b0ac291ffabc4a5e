"""Push consumers that deliver in order: short-lived, checked for gaps, and recreated when they fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ...runtime.tasks import set_within
from ...runtime.timers import Backoff
from ...schemas.errors.base import ClosedError, Disconnected, GanglineError
from ..port.bus import ConnectionEvent, Message, NotPermitted, StorageUnavailable, StreamHandler, StreamMessage
from .api import ApiError
from .wire import SECOND_NS, delivered_message, delivery

if TYPE_CHECKING:
    from .api import Transport, TransportSubscription
    from .stream_admin import StreamOwner


_FIRST_RETRY_S: Final = 0.1
_MOST_RETRY_S: Final = 1.0


class Resubscriber:
    """The common part of watches and readers: start, end, and pauses between attempts.

    A subclass implements `_follow` and `_close`, and resolves `_ready` when it first delivers.
    """

    def __init__(self, bus: Transport, what: str, logged: dict[str, str]) -> None:
        """`what` and `logged` are for the log."""
        self._bus = bus
        self._what = what
        self._logged = logged
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._broken = asyncio.Event()
        """Set when it must be opened again."""
        self._backoff = Backoff(_FIRST_RETRY_S, _MOST_RETRY_S)
        self._task: asyncio.Task[None] | None = None

    async def _begin(self, what: str) -> None:
        """Return when it is ready; `what` completes "JetStream did not ... in time".

        Raises:
            GanglineError: it did not become ready; nothing is left running.
        """
        stop_listening = self._bus.on_connection(self._on_connection)
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(lambda _: stop_listening())
        try:
            async with asyncio.timeout(self._bus.api.timeout_s):
                await asyncio.shield(self._ready)
        except TimeoutError:
            self.stop()
            raise StorageUnavailable(f"JetStream did not {what} in time: try again", may_have_started=False) from None
        except BaseException:
            self.stop()
            raise

    async def unsubscribe(self) -> None:
        self.stop()

    def stop(self) -> None:
        """End delivery. Idempotent."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            self._broken.clear()
            try:
                if not self._bus.connected:
                    raise Disconnected("no connection to a nats-server right now: try again when it is back")
                if await self._follow():
                    continue
            except ClosedError:
                return
            except GanglineError as error:
                if not self._ready.done():
                    self._ready.set_exception(error)
                    return
                log.debug("%s waits: %s", self._what, error, extra=self._logged)
            finally:
                self._close()
            await self._pause()

    async def _follow(self) -> bool:
        """Open it, and return when it is broken; True: open it again at once."""
        raise NotImplementedError

    def _close(self) -> None:
        """Undo `_follow`, whatever it has done. Idempotent."""

    def _on_connection(self, event: ConnectionEvent) -> None:
        # A consumer may survive a short disconnection, but what it delivered meanwhile did not reach us.
        self._broken.set()

    async def _pause(self) -> None:
        """Wait for the connection to come back, but no longer than the backoff."""
        if not await set_within(self._broken, self._backoff.delay_s):
            self._backoff.failures += 1


log = logging.getLogger("gangline.bus")

_HEARTBEAT_S: Final = 1.0
_SILENCE_S: Final = 3.5
"""Three missed heartbeats."""
_FORGOTTEN_AFTER_S: Final = 30
"""The server removes a consumer whose connection has been gone for this long."""


class PushConsumer:
    """One push consumer: delivers in order and without gaps. `open` once, then `close`.

    It never recovers by itself: a gap, silence or its removal at the server ends it.
    """

    def __init__(
        self,
        bus: Transport,
        stream: str,
        take: Callable[[Message, list[int]], None],
        on_broken: Callable[[], None],
        on_idle: Callable[[], None] | None = None,
    ) -> None:
        """
        Args:
            take: called with each message and its `delivery`.
            on_broken: called once when nothing more will come.
            on_idle: called from time to time when everything has been delivered.
        """
        self._bus = bus
        self._stream = stream
        self._take = take
        self._on_broken = on_broken
        self._on_idle = on_idle
        self._name = f"gangline-{bus.ambient.token()}"
        self._inbox = bus.new_inbox()
        self._subscription: TransportSubscription | None = None
        self._asked = False
        """Whether the consumer may exist at the server."""
        self._delivered = 0
        """Consumer sequence of the last message; the next must be one more."""
        self._over = False
        self._heard_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, what: str, **configuration: object) -> int:
        """Create it; returns how many messages are pending.

        Raises:
            StorageUnavailable, Disconnected, ApiError.
        """
        # A separate subscription: JetStream delivers with the subject of the stored message, not with ours.
        self._subscription = await self._bus.subscribe(self._inbox, self._receive)
        fixed = {
            "name": self._name,
            "deliver_subject": self._inbox,
            "ack_policy": "none",
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "idle_heartbeat": int(_HEARTBEAT_S * SECOND_NS),
            "inactive_threshold": _FORGOTTEN_AFTER_S * SECOND_NS,
        }
        self._asked = True
        try:
            made = await self._bus.api.call(
                f"CONSUMER.CREATE.{self._stream}.{self._name}",
                {"stream_name": self._stream, "config": {**fixed, **configuration}, "action": "create"},
                what=what,
            )
        except (ApiError, NotPermitted):
            self._asked = False
            raise
        self._heard_at = self._loop.time()
        self._timer = self._loop.call_later(_SILENCE_S, self._listen_for_silence)
        return int(made.get("num_pending", 0))

    def close(self) -> None:
        """Remove it without waiting. Idempotent."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._subscription is not None:
            self._subscription.stop()
        if self._asked and not self._bus.closed and self._bus.connected:
            self._bus.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._name}", reply=f"{self._inbox}.gone")
        self._asked = False

    def _receive(self, message: Message) -> None:
        if self._over:
            return
        self._heard_at = self._loop.time()
        if message.subject == self._inbox:
            self._take_status(message)
            return
        of = delivery(message.reply)
        if of[2] != self._delivered + 1:
            self._break()
            return
        self._delivered = of[2]
        self._take(message, of)

    def _take_status(self, message: Message) -> None:
        headers = message.headers or {}
        if headers.get("Status") != "100":
            self._break()
        elif message.reply:  # the server asks whether we keep up
            self._bus.publish(message.reply)
        else:
            stalled = headers.get("Nats-Consumer-Stalled")
            if stalled:
                self._bus.publish(stalled)
            if int(headers.get("Nats-Last-Consumer", self._delivered)) != self._delivered:
                self._break()
            elif self._on_idle is not None:
                self._on_idle()

    def _break(self) -> None:
        if not self._over:
            self._over = True
            self._on_broken()

    def _listen_for_silence(self) -> None:
        silent_s = self._loop.time() - self._heard_at
        if silent_s >= _SILENCE_S:
            self._break()
        else:
            self._timer = self._loop.call_later(_SILENCE_S - silent_s, self._listen_for_silence)


class OrderedConsumer(Resubscriber):
    """Implements port.Subscription; see port.Stream.read.

    Invariant: every matching message from `start` on with a sequence below `_next` was delivered, and no other.
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
        super().__init__(stream.bus, "a reader", {"action": "bus.reader_waits", "stream": stream.name})
        self._stream = stream
        self._on_end = on_end
        self._pattern = pattern
        self._handler = handler
        self._next = start
        self._stream_created = ""
        self._push: PushConsumer | None = None

    def __repr__(self) -> str:
        return f"<OrderedConsumer of {self._pattern!r} in {self._stream.name!r}, next {self._next}>"

    async def start(self) -> None:
        """Return when the server starts to deliver.

        Raises:
            StorageUnavailable, Disconnected, ApiError: it did not; nothing is left running.
        """
        await self._begin(f"start to deliver {self._pattern!r}")

    def stop(self) -> None:
        """End delivery. Idempotent."""
        super().stop()
        self._close()
        self._on_end(self)

    async def _follow(self) -> bool:
        await self._open()
        if not self._ready.done():
            self._ready.set_result(None)
        self._backoff.reset()
        await self._broken.wait()
        return True

    async def _open(self) -> None:
        await self._stream.upkeep.ensure(look=bool(self._stream_created))
        created = self._stream.upkeep.created
        if self._stream_created and created != self._stream_created:
            self._next = 1  # a new stream: its sequences start again
        self._stream_created = created
        self._push = PushConsumer(self._bus, self._stream.name, self._take, self._broken.set)
        await self._push.open(
            f"read {self._stream.name}",
            deliver_policy="by_start_sequence",
            opt_start_seq=max(self._next, 1),
            filter_subject=self._pattern,
            flow_control=True,
        )

    def _close(self) -> None:
        if self._push is not None:
            self._push.close()
            self._push = None

    def _take(self, message: Message, of: list[int]) -> None:
        if self._broken.is_set():
            return
        stored, _ = delivered_message(message, of)
        self._next = stored.sequence + 1
        self._call(stored)

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
