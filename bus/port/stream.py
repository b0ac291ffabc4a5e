"""The seam to streams, their consumers, and large values; port.bus exports all of this, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ...schemas.errors.base import GanglineError, Unavailable
from .key_value import Storage

if TYPE_CHECKING:
    from .subjects import Subscription


class Retention(StrEnum):
    LIMITS = "limits"
    """Messages are kept until they are too old or deleted."""
    WORK_QUEUE = "workqueue"
    """Messages are kept until they are acknowledged. The filters of its consumers must not overlap: the server refuses
    a second consumer of a subject, so a consumer is also a lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSource:
    """Another stream, whose messages on `subjects` are also stored in this one, on `to`. Both end in `>`. It is created
    with this one."""

    name: str
    settings: StreamSettings
    subjects: str
    to: str
    start: int = 0
    """The first sequence to take if the server cannot tell how far it has got: before version 2.15 it looks for the
    last message that it took, and finds none once they are removed. 0: it then skips what was stored before its own
    last message, which loses messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """How to create a stream if it does not exist. An existing one is used if all settings that matter are the same.
    Atomic batches are refused."""

    subjects: tuple[str, ...]
    retention: Retention = Retention.LIMITS
    storage: Storage = Storage.FILE
    replicas: int = 1
    max_age_s: float = 0.0
    """0: unlimited."""
    max_bytes: int = -1
    """Reserved on the server. -1: no limit, which also applies if the server cannot reserve so much."""
    share: float = 0.0
    """Limits it to about this part of what the server can still reserve where it would have no limit. 0: no limit."""
    keeps_old: bool = False
    """When it is full, refuse new messages; otherwise the oldest are dropped. (A server refuses schedules in a stream
    that keeps the oldest.)"""
    schedules: bool = False
    """Accepts `Nats-Schedule`. Then the server also accepts `Nats-Rollup`, with which any writer can remove others'
    messages. A stream with sources cannot have schedules."""
    expiring: bool = True
    """Accepts `Nats-TTL`. If not, it has no effect on messages from a source."""
    sources: tuple[StreamSource, ...] = ()
    duplicates_s: float = 120.0
    """A message whose `Nats-Msg-Id` was used within this time is acknowledged and dropped. A restarted server only
    knows the ids of stored messages: it accepts a message again that was removed from a work queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """A pull consumer whose messages are acknowledged one by one.

    It is created with the given name and metadata; see `Stream.consume`.
    """

    filter: str
    ack_wait_s: float = 30.0
    """A message not acknowledged for this long is delivered again."""
    max_pending: int = 10_000
    """Maximum number of delivered, unacknowledged messages."""
    metadata: Mapping[str, str] | None = None
    inactive_s: float = 0.0
    """The server removes it when unused for this long; 0: never."""


class StreamMessage(NamedTuple):
    """One stored message. A tuple, since there are many."""

    subject: str
    data: bytes
    headers: Mapping[str, str] | None
    sequence: int
    at: float
    """Unix time by the server's clock."""
    delivered: int = 1
    """How often this consumer delivered it, including this delivery."""
    ack: str = ""
    """Where to publish the acknowledgement; empty if it was not delivered by a consumer."""


class Publication(NamedTuple):
    """A message to store."""

    subject: str
    data: bytes
    headers: Mapping[str, str] | None = None


class Published(NamedTuple):
    sequence: int
    duplicate: bool = False
    """It was stored before: `sequence` is that of the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    messages: int
    bytes: int
    first_sequence: int
    last_sequence: int
    subjects: Mapping[str, int]
    """Number of messages of each requested subject."""
    max_bytes: int = -1
    """Its limit; -1: none."""
    created: str = ""
    """When the stream was created, in RFC 3339: tells a new stream from an earlier one of the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerState:
    name: str
    filter: str
    pending: int
    """Matching messages that were not delivered yet."""
    unacknowledged: int
    metadata: Mapping[str, str]


class ConsumerLost(Unavailable):
    """The consumer no longer exists: it was deleted or replaced."""

    code = "consumer_lost"
    status = 409


class ConsumerTaken(Unavailable):
    """Another consumer of these subjects exists."""

    code = "consumer_taken"
    status = 409


StreamHandler = Callable[[StreamMessage], None]


class Consumer(Protocol):
    """Our pull consumer. Messages come to the handler that it was opened with, on the loop, in order."""

    name: str

    def pull(self, count: int) -> None:
        """Request `count` more messages; they come when available. Requests add up. When one expires, or the connection
        or the server comes back, the outstanding messages are requested again automatically, never more. (Only if a
        server was silent for seconds and then answers the old requests after all, more may come than was requested; the
        surplus is deducted from the next pull.)

        Never raises for a lost connection.
        """
        ...

    @property
    def wanted(self) -> int:
        """Requested messages that have not come yet."""
        ...

    def ack(self, message: StreamMessage) -> None:
        """Acknowledge a message, which is then removed. Sent at the end of the turn, and again after a reconnect until
        the server has confirmed it or the consumer is lost. If a server forgets it and delivers the message again, that
        is acknowledged again and not passed on. Never raises for a lost connection."""
        ...

    async def settled(self) -> None:
        """Wait until all acknowledgements so far are confirmed.

        Raises:
            ConsumerLost.
        """
        ...

    async def state(self) -> ConsumerState:
        """The consumer's current state on the server.

        Raises:
            ConsumerLost: it does not exist (and `on_lost` is called).
            StorageUnavailable, Disconnected.
        """
        ...

    async def close(self, *, delete: bool = False) -> None:
        """Stop delivery; `delete` removes it on the server, so that the next consumer gets unacknowledged messages at
        once. Waits up to two seconds until acknowledgements are confirmed. Idempotent.

        Raises:
            Disconnected, StorageUnavailable: with `delete`, it could not be removed; it is closed all the same.
        """
        ...


class Stream(Protocol):
    """A JetStream stream. Methods raise `Disconnected` and `StorageUnavailable` as KeyValue's do."""

    name: str

    async def publish(
        self, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> Published:
        """Store a message; returns when it is stored. Concurrent calls share round trips.

        Raises:
            PayloadTooLarge: nothing was sent.
            InvalidName: the stream does not have this subject; nothing was sent.
            PublishRefused: the server will never accept this (for example an invalid schedule); the text says why.
            StorageUnavailable: it may have been stored, if `may_have_started`; give it a `Nats-Msg-Id` and try again.
        """
        ...

    async def publish_many(
        self, messages: Sequence[Publication], *, timeout_s: float | None = None
    ) -> list[Published | GanglineError]:
        """Store messages that are sent in one turn, in order; each is stored on its own. Returns what `publish` would
        return or raise for each. What `publish` repeats by itself, such as a message to a stream that has no leader, is
        sent only once here: its error says to try again."""
        ...

    async def state(self, pattern: str | None = None) -> StreamState:
        """Counts, including those of each subject that matches `pattern`."""
        ...

    async def get(self, sequence: int) -> StreamMessage | None:
        """The message with this sequence, from the leader."""
        ...

    async def next(self, pattern: str, sequence: int = 1) -> StreamMessage | None:
        """The first message from `sequence` on whose subject matches, from the leader."""
        ...

    async def last(self, pattern: str) -> StreamMessage | None:
        """The newest message of a subject, or of those that a pattern ending in `.>` matches."""
        ...

    async def delete(self, sequence: int) -> bool:
        """Remove one message; False if it did not exist."""
        ...

    async def purge(self, pattern: str, *, before: int | None = None) -> int:
        """Remove the messages of these subjects (`before`: only those with a lower sequence); returns their number."""
        ...

    async def read(self, pattern: str, handler: StreamHandler, *, start: int = 1) -> Subscription:
        """Call `handler` with every matching stored message from sequence `start` on, and with each new one; in order
        and exactly once, also across reconnects. Does not remove messages. Not for work queues."""
        ...

    async def consume(
        self,
        name: str,
        settings: ConsumerSettings,
        handler: StreamHandler,
        *,
        on_lost: Callable[[], None] | None = None,
        on_acknowledged: Callable[[list[int]], None] | None = None,
    ) -> Consumer:
        """Create a pull consumer, or open the existing one with this name and filter. (Messages that it delivered to a
        former user and that were not acknowledged come after the acknowledgement wait; delete it first to get them at
        once.)

        Messages lost with a broken connection are delivered again soon after the reconnect, but not in order.

        Args:
            on_lost: called once, on the loop, when the server says that the consumer no longer exists. After that
                nothing is delivered, and acknowledgements have no effect.

        Raises:
            ConsumerTaken: the stream is a work queue and another consumer has (some of) these subjects, or the consumer
                with this name has another filter.
        """
        ...

    async def consumers(self) -> list[ConsumerState]:
        """All consumers of the stream."""
        ...

    async def delete_consumer(self, name: str) -> bool:
        """Remove a consumer; the next one gets its unacknowledged messages at once. False: it did not exist."""
        ...


class PublishRefused(Unavailable):
    """The server will never accept this message; the text says why. Nothing was stored."""

    code = "refused"
    status = 400


class ObjectStore(Protocol):
    """Large values, stored in chunks. Compatible with `nats object`."""

    async def put(self, name: str, data: bytes, *, ttl_s: float | None = None) -> None:
        """Store a value; replaces one with the same name."""
        ...

    async def get(self, name: str) -> bytes | None:
        """None: there is no such value.

        Raises:
            StorageUnavailable: it cannot be read completely (digest or size differ).
        """
        ...

    async def delete(self, name: str) -> None: ...
