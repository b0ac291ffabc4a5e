"""The seam to streams, their consumers, and large values: see `port`, which has all of this too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ...schemas.errors.base import Unavailable
from .key_value import Storage

if TYPE_CHECKING:
    from .types import Subscription


class Retention(StrEnum):
    LIMITS = "limits"
    """Messages stay until they are too old or deleted."""
    WORK_QUEUE = "workqueue"
    """Messages stay until they are acknowledged. The filters of its consumers may not overlap: the server refuses a
    second consumer of a subject, so having one is a lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSource:
    """Another stream, whose messages on `subjects` are stored in this one as well, on `to`. Both end in `>`. It is made
    with this one."""

    name: str
    settings: StreamSettings
    subjects: str
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """How a stream is made when it does not exist yet; one that exists is used if what matters is the same. Atomic
    batches are always allowed."""

    subjects: tuple[str, ...]
    retention: Retention = Retention.LIMITS
    storage: Storage = Storage.FILE
    replicas: int = 1
    max_age_s: float = 0.0
    """0: for ever."""
    max_bytes: int = -1
    keeps_old: bool = False
    """When it is full, new messages are refused. If not, the oldest go. (A server refuses schedules in one that keeps
    them.)"""
    schedules: bool = False
    """Takes `Nats-Schedule`. The server then takes `Nats-Rollup`, too, by which whoever may write there removes what
    others wrote; and one with sources takes no schedules."""
    expiring: bool = True
    """Takes `Nats-TTL`. If not, it means nothing on messages that come from a source."""
    sources: tuple[StreamSource, ...] = ()
    duplicates_s: float = 120.0
    """A message with a `Nats-Msg-Id` that was used within so long is acknowledged and dropped. A server that restarts
    knows only those of messages that are still stored: what was done and removed from a work queue is taken again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """A pull consumer whose messages are acknowledged one by one.

    It is made with the name and metadata given; see `Stream.consume`.
    """

    filter: str
    ack_wait_s: float = 30.0
    """What was not acknowledged for so long is delivered again."""
    max_pending: int = 10_000
    """Most messages that may be delivered and not acknowledged."""
    metadata: Mapping[str, str] | None = None
    inactive_s: float = 0.0
    """The server removes it when it was not used for so long; 0: never."""


class StreamMessage(NamedTuple):
    """One stored message. A tuple, since there are many of them."""

    subject: str
    data: bytes
    headers: Mapping[str, str] | None
    sequence: int
    at: float
    """Unix time, of the server's clock."""
    delivered: int = 1
    """How often this consumer delivered it, this one included."""
    ack: str = ""
    """Where to publish the acknowledgement; empty for what was not delivered by a consumer."""


class Published(NamedTuple):
    sequence: int
    duplicate: bool = False
    """It was there already: `sequence` is that of the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    messages: int
    bytes: int
    first_sequence: int
    last_sequence: int
    subjects: Mapping[str, int]
    """Messages of each subject that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerState:
    name: str
    filter: str
    pending: int
    """Messages that match and were not delivered yet."""
    unacknowledged: int
    metadata: Mapping[str, str]


class ConsumerLost(Unavailable):
    """The consumer does not exist any more: somebody deleted it, or took its place."""

    code = "consumer_lost"
    status = 409


class ConsumerTaken(Unavailable):
    """Another consumer of these subjects exists."""

    code = "consumer_taken"
    status = 409


StreamHandler = Callable[[StreamMessage], None]


class Consumer(Protocol):
    """A pull consumer of ours. Messages come to the handler it was opened with, on the loop, in order."""

    name: str

    def pull(self, count: int) -> None:
        """Ask for so many more messages; they come when there are some. What is asked for adds up. Asked for again by
        itself when a request expires, or when the connection or the server comes back; then what is outstanding is
        asked for again, never more than that. (Only when a server was silent for seconds, and then answers the old
        requests after all, more may come than was asked for. It counts against what is pulled next.)

        Never raises for a lost connection.
        """
        ...

    @property
    def wanted(self) -> int:
        """Messages asked for that have not come yet."""
        ...

    def ack(self, message: StreamMessage) -> None:
        """It is done with, and goes. Sent with the next flush; sent again after a reconnect until the server has
        confirmed it, or the consumer is lost. Should a server forget it and deliver the message again, that is
        acknowledged again and not handed over. Never raises for a lost connection."""
        ...

    async def settled(self) -> None:
        """Wait until all acknowledgements so far are confirmed.

        Raises:
            ConsumerLost.
        """
        ...

    async def state(self) -> ConsumerState:
        """As the server has it now.

        Raises:
            ConsumerLost: it is not there (and `on_lost` is called).
            StorageUnavailable, Disconnected.
        """
        ...

    async def close(self, *, delete: bool = False) -> None:
        """Stop delivery; `delete` removes it on the server, so that what is not acknowledged can be had by the next
        consumer at once. Waits up to two seconds until acknowledgements are confirmed. Idempotent.

        Raises:
            Disconnected, StorageUnavailable: with `delete`, it could not be removed; it was closed all the same.
        """
        ...


class Stream(Protocol):
    """A JetStream stream. Methods raise `Disconnected` and `StorageUnavailable` as KeyValue's do."""

    name: str

    async def publish(
        self, subject: str, data: bytes, *, headers: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> Published:
        """Store a message; returns when it is stored. Many at once share round trips.

        Raises:
            PayloadTooLarge: nothing was sent.
            InvalidName: the stream does not take this subject; nothing was sent.
            Refused: the server says why it will never take this (a schedule it does not understand, for example).
            StorageUnavailable: it may have been stored, if `may_have_started`; give it a `Nats-Msg-Id` and try again.
        """
        ...

    async def state(self, pattern: str | None = None) -> StreamState:
        """Counts; with those of each subject that matches."""
        ...

    async def get(self, sequence: int) -> StreamMessage | None:
        """The message of that sequence, from the leader."""
        ...

    async def next(self, pattern: str, sequence: int = 1) -> StreamMessage | None:
        """The first message from `sequence` on whose subject matches, from the leader."""
        ...

    async def last(self, subject: str) -> StreamMessage | None:
        """The newest message of a subject."""
        ...

    async def delete(self, sequence: int) -> bool:
        """Remove one message; False when it was not there."""
        ...

    async def purge(self, pattern: str, *, before: int | None = None) -> int:
        """Remove the messages of these subjects (`before`: only those of a lower sequence); how many they were."""
        ...

    async def read(self, pattern: str, handler: StreamHandler, *, start: int = 1) -> Subscription:
        """Call `handler` with every stored message that matches, from sequence `start` on, and with each new one as it
        comes; in order, none twice, none left out, also across reconnects. Leaves the messages where they are (not for
        work queues)."""
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
        """Make a pull consumer, or open the one that has that name and filter. (What that one delivered to somebody
        else, who did not acknowledge it, comes after the acknowledgement wait; delete it first to have it at once.)

        What a broken connection swallowed is delivered again soon after it is back, and then not in order.

        Args:
            on_lost: called once, on the loop, when the server says that the consumer is no more. Nothing is delivered
                after it, and acknowledgements go nowhere.

        Raises:
            ConsumerTaken: the stream is a work queue and another consumer has (some of) these subjects; or the one of
                that name has others.
        """
        ...

    async def consumers(self) -> list[ConsumerState]:
        """All consumers of the stream."""
        ...

    async def delete_consumer(self, name: str) -> bool:
        """Remove one; its unacknowledged messages can be had by the next at once. False: it was not there."""
        ...


class PublishRefused(Unavailable):
    """The server will never take this message; the text has its reason. Nothing was stored."""

    code = "refused"
    status = 400


class ObjectStore(Protocol):
    """Large values, in pieces. Compatible with `nats object`."""

    async def put(self, name: str, data: bytes, *, ttl_s: float | None = None) -> None:
        """Store; a value of that name is replaced."""
        ...

    async def get(self, name: str) -> bytes | None:
        """None: not there.

        Raises:
            StorageUnavailable: it cannot be read whole (digest or size differ).
        """
        ...

    async def delete(self, name: str) -> None: ...
