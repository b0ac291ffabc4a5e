"""The server side of in-memory consumers: pull consumers with acknowledgements, and push consumers without."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ..jetstream.wire import ACK_PREFIX, SECOND_NS
from ..port.bus import ConsumerSettings, Message, StreamMessage
from ..port.subjects import SubjectPattern
from .connection import Hub, MemoryConnection
from .faults import server_time


class ConsumedStore(Protocol):
    """What a consumer needs from its stream; implemented by StreamStore."""

    name: str
    messages: dict[int, StreamMessage]
    last_sequence: int
    context: Context

    def running(self) -> bool: ...

    def after(self, sequence: int, *patterns: SubjectPattern) -> Iterator[StreamMessage]: ...

    def newest(self, *patterns: SubjectPattern) -> list[int]: ...

    def acknowledged(self, sequence: int) -> None: ...

    def drop_consumer(self, name: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class DeliveryInbox:
    """Where a consumer delivers: a subject of the connection that requested it. Deliveries may be lost."""

    hub: Hub
    bus: MemoryConnection
    losses: int
    subject: str

    @property
    def gone(self) -> bool:
        """Whether that connection is gone."""
        bus = self.bus
        return bus.losses != self.losses or not bus.connected or self.hub.cuts_off(bus)

    @property
    def wanted(self) -> bool:
        """Whether the connection still subscribes to the subject."""
        return not self.gone and self.hub.hears(self.bus, self.subject)

    def send(self, message: StreamMessage, ack: str) -> None:
        """Send a stored message; `ack` is the subject for its acknowledgement."""
        self.hub.tell(self.bus, self.subject, Message(message.subject, message.data, ack, message.headers))

    def tell(self, status: str, description: str, headers: Mapping[str, str]) -> None:
        """Send a status."""
        everything = {"Status": status, "Description": description, **headers}
        self.hub.tell(self.bus, self.subject, Message(self.subject, b"", "", everything))


_HEARTBEAT: Final = ("100", "Idle Heartbeat")


def _ack(store: str, consumer: str, count: int, message: StreamMessage, ordinal: int, pending: int) -> str:
    at = int(message.at * SECOND_NS)
    return f"{ACK_PREFIX}{store}.{consumer}.{count}.{message.sequence}.{ordinal}.{at}.{pending}"


class PushConsumerStore:
    """A push consumer: delivers in order to one subject while it has a subscriber.

    Invariant: sequences in `_snapshot` are below `_next`, and are delivered first.
    """

    def __init__(
        self, store: ConsumedStore, name: str, fields: Mapping[str, Any], to: DeliveryInbox, created: str
    ) -> None:
        self.name = name
        self.fields = fields
        self.created = created
        self.settings: ConsumerSettings | None = None
        self._store = store
        self._to = to
        filters = fields.get("filter_subjects") or [fields["filter_subject"]]
        self._patterns = tuple(map(SubjectPattern, filters))
        self._snapshot: deque[int] = deque()
        self._next = int(fields.get("opt_start_seq", 1))
        if fields["deliver_policy"] == "last_per_subject":
            self._snapshot.extend(store.newest(*self._patterns))
            self._next = store.last_sequence + 1
        self._ordinal = 0
        self._delivered = 0
        self._sent_at = self._wanted_at = server_time()
        self._heartbeat_s = fields["idle_heartbeat"] / SECOND_NS
        self._inactive_s = fields["inactive_threshold"] / SECOND_NS
        self._timer: asyncio.TimerHandle | None = None
        self._await_beat()

    def info(self) -> dict[str, Any]:
        return {
            "delivered": {"consumer_seq": self._ordinal, "stream_seq": self._delivered},
            "num_ack_pending": 0,
            "num_pending": len(self._snapshot) + sum(1 for _ in self._store.after(self._next, *self._patterns)),
        }

    def signal(self) -> None:
        if not self._store.running() or not self._to.wanted:
            return
        while self._snapshot:
            message = self._store.messages.get(self._snapshot.popleft())
            if message is not None:
                self._send(message, len(self._snapshot))
        if self._next <= self._store.last_sequence:
            found = list(self._store.after(self._next, *self._patterns))
            self._next = self._store.last_sequence + 1
            for pending, message in zip(range(len(found) - 1, -1, -1), found, strict=True):
                self._send(message, pending)

    def _send(self, message: StreamMessage, pending: int) -> None:
        self._ordinal += 1
        self._delivered = message.sequence
        self._sent_at = server_time()
        if self.fields.get("headers_only"):
            message = message._replace(data=b"")
        self._to.send(message, _ack(self._store.name, self.name, 1, message, self._ordinal, pending))

    def forget(self, sequence: int) -> None:
        pass  # `signal` skips messages that are gone

    def _await_beat(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._heartbeat_s, self._beat, context=self._store.context)

    def _beat(self) -> None:
        now = server_time()
        if self._to.wanted:
            self._wanted_at = now
        elif now - self._wanted_at >= self._inactive_s and self._store.running():
            self._store.drop_consumer(self.name)
            return
        if self._store.running() and now - self._sent_at >= self._heartbeat_s / 2:
            last = {"Nats-Last-Consumer": str(self._ordinal), "Nats-Last-Stream": str(self._delivered)}
            self._to.tell(*_HEARTBEAT, last)
        self._await_beat()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class PullRequest:
    """One request for messages."""

    __slots__ = ("ends_at", "heartbeat_s", "left", "to")

    def __init__(self, to: DeliveryInbox, count: int, expires_s: float, heartbeat_s: float) -> None:
        self.to = to
        self.left = count
        self.ends_at = server_time() + expires_s
        self.heartbeat_s = heartbeat_s


@dataclass(slots=True)
class _Pending:
    count: int
    due_at: float


class ConsumerStore:
    """A pull consumer.

    Invariant: `_pending` is ordered by `due_at`; each sequence in `_due` is in `_pending` too.
    """

    def __init__(self, store: ConsumedStore, name: str, fields: Mapping[str, Any], created: str) -> None:
        self.name = name
        self.fields = fields
        self.created = created
        self.settings = ConsumerSettings(
            filter=fields["filter_subject"],
            ack_wait_s=fields["ack_wait"] / SECOND_NS,
            max_pending=fields["max_ack_pending"],
            metadata=fields.get("metadata"),
            inactive_s=fields.get("inactive_threshold", 0) / SECOND_NS,
        )
        self._delivered = 0
        """Sequence of the last message delivered for the first time."""
        self._store = store
        self._pattern = SubjectPattern(self.settings.filter)
        self._loop = asyncio.get_running_loop()
        self._next = 1
        self._pending: dict[int, _Pending] = {}
        self._due: dict[int, None] = {}
        """Sequences to deliver again, in this order."""
        self._ordinal = 0
        self._requests: deque[PullRequest] = deque()
        self._redelivery: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._used_at = server_time()
        self._idleness: asyncio.TimerHandle | None = None
        if self.settings.inactive_s:
            self._await_idleness(self.settings.inactive_s)

    def info(self) -> dict[str, Any]:
        return {
            "delivered": {"consumer_seq": self._ordinal, "stream_seq": self._delivered},
            "num_ack_pending": len(self._pending),
            "num_pending": sum(1 for _ in self._store.after(self._next, self._pattern)),
        }

    # -- asking and delivering ------------------------------------------------------------------------------------

    def ask(self, request: PullRequest) -> None:
        self._used_at = server_time()
        self._requests.append(request)
        if self._heartbeat is None:
            self._await_heartbeat(request.heartbeat_s)
        self.signal()

    def drop_requests(self) -> None:
        """Drop all requests without an answer."""
        self._requests.clear()

    def signal(self) -> None:
        """There may be something to deliver."""
        while self._requests and self._store.running():
            request = self._requests[0]
            if request.to.gone:
                self._requests.popleft()
                continue
            taken = self._take()
            if taken is None:
                return
            request.left -= 1
            self._requests.rotate(-1)  # requests take turns
            if request.left == 0:
                self._requests.remove(request)
            message, count = taken
            self._ordinal += 1
            # No client reads how many are pending, and counting them is slow.
            request.to.send(message, _ack(self._store.name, self.name, count, message, self._ordinal, 0))

    def _take(self) -> tuple[StreamMessage, int] | None:
        """The next message to deliver, redeliveries first, and its delivery count."""
        while self._due:
            sequence = next(iter(self._due))
            del self._due[sequence]
            pending = self._pending.pop(sequence, None)
            if pending is not None:
                return self._mark(self._store.messages[sequence], pending.count + 1)
        if len(self._pending) >= self.settings.max_pending:
            return None
        message = next(self._store.after(self._next, self._pattern), None)
        if message is None:
            self._next = self._store.last_sequence + 1
            return None
        self._next = message.sequence + 1
        self._delivered = message.sequence
        return self._mark(message, 1)

    def _mark(self, message: StreamMessage, count: int) -> tuple[StreamMessage, int]:
        self._pending[message.sequence] = _Pending(count, server_time() + self.settings.ack_wait_s)
        if self._redelivery is None:
            self._await_redelivery()
        return message, count

    # -- acknowledging --------------------------------------------------------------------------------------------

    def acknowledge(self, sequence: int) -> None:
        self._used_at = server_time()
        if self._pending.pop(sequence, None) is not None:
            self._store.acknowledged(sequence)
            self.signal()

    def refuse(self, sequence: int) -> None:
        """Deliver it again."""
        if sequence in self._pending:
            self._due.setdefault(sequence)
            self.signal()

    def forget(self, sequence: int) -> None:
        self._pending.pop(sequence, None)

    # -- time -----------------------------------------------------------------------------------------------------

    def _await_redelivery(self) -> None:
        self._redelivery = None
        waiting = next((one for number, one in self._pending.items() if number not in self._due), None)
        if waiting is not None:
            self._redelivery = self._loop.call_at(waiting.due_at, self._redeliver, context=self._store.context)

    def _redeliver(self) -> None:
        now = server_time()
        late = [number for number, one in self._pending.items() if one.due_at <= now]
        for number in sorted(late):
            self._due.setdefault(number)
        self._await_redelivery()
        self.signal()

    def _await_heartbeat(self, heartbeat_s: float) -> None:
        self._heartbeat = self._loop.call_later(heartbeat_s, self._beat, heartbeat_s, context=self._store.context)

    def _beat(self, heartbeat_s: float) -> None:
        self._heartbeat = None
        now = server_time()
        self._requests = deque(request for request in self._requests if not request.to.gone)
        over = [request for request in self._requests if request.ends_at <= now]
        for request in over:
            self._requests.remove(request)
            left = {"Nats-Pending-Messages": str(request.left), "Nats-Pending-Bytes": "0"}
            request.to.tell("408", "Request Timeout", left)
        if self._requests:
            self._used_at = now
            self._await_heartbeat(heartbeat_s)
            last = {"Nats-Last-Consumer": str(self._ordinal), "Nats-Last-Stream": str(self._next - 1)}
            for to in dict.fromkeys(request.to for request in self._requests):
                to.tell(*_HEARTBEAT, last)

    def _await_idleness(self, wait_s: float) -> None:
        self._idleness = self._loop.call_later(wait_s, self._check_idleness, context=self._store.context)

    def _check_idleness(self) -> None:
        left_s = self._used_at + self.settings.inactive_s - server_time()
        if left_s <= 0 and not self._requests and self._store.running():
            self._store.drop_consumer(self.name)
        else:
            self._await_idleness(max(left_s, 0.1))

    def end(self) -> None:
        for timer in (self._redelivery, self._heartbeat, self._idleness):
            if timer is not None:
                timer.cancel()
        requests, self._requests = self._requests, deque()
        for to in dict.fromkeys(request.to for request in requests):
            to.tell("409", "Consumer Deleted", {})
