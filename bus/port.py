"""The one seam to NATS: what the rest of the package may ask of a bus, and nothing more.

Two implementations pass the same conformance suite: `jetstream` (the only module family that imports `nats`) and
`memory` (for tests, the simulator and users' own tests).

Publishing is synchronous: it writes into the connection's buffer and returns, so that the hot path needs no task and no
await. Whoever may produce faster than the socket takes must await `writable()` now and then. Handlers are plain
functions, called on the event loop in the order of arrival; they must not block and must not raise (a handler that
raises is logged, with the subject, and nothing else is lost).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

from ..schemas.errors import GanglineError, InvalidSettings, Unavailable


class NoResponders(Unavailable):
    """The server knows that nobody listens on that subject. Known at once; the request reached nobody."""

    code = "no_responders"


class RequestTimeout(Unavailable):
    """No answer in time. The request may have been received."""

    code = "request_timeout"
    status = 504
    may_have_started = True


class Conflict(Unavailable):
    """A conditional write lost: the key is not at the expected revision. Nothing was written."""

    code = "conflict"
    status = 409


class StorageUnavailable(Unavailable):
    """JetStream did not take the operation (no leader, stream missing, time-out). It may have been written."""

    code = "storage_unavailable"
    may_have_started = True


class NotPermitted(Unavailable):
    """The server forbids this user to publish or to subscribe there. It will not succeed before the user's permissions
    are changed. `details["subject"]` says where."""

    code = "not_permitted"
    status = 403


class Message:
    """One received message. `headers` is None when there are none."""

    __slots__ = ("data", "headers", "reply", "subject")

    def __init__(self, subject: str, data: bytes, reply: str = "", headers: Mapping[str, str] | None = None) -> None:
        self.subject = subject
        self.data = data
        self.reply = reply
        self.headers = headers

    def __repr__(self) -> str:
        return f"Message({self.subject!r}, {len(self.data)} bytes, reply={self.reply!r})"


Handler = Callable[[Message], None]
Answered = Callable[[Message | GanglineError], None]


class ConnectionEvent(StrEnum):
    """What happened to the connection; see Bus.on_connection."""

    DISCONNECTED = "disconnected"
    """Publishing raises Disconnected until RECONNECTED. What was in flight either way may be lost."""
    RECONNECTED = "reconnected"
    """Subscriptions are live again. Whatever was only known from watching must be pulled again."""
    CLOSED = "closed"
    """For good: closed by us, or by an error that cannot be survived."""


@runtime_checkable
class Subscription(Protocol):
    """A live subscription. Survives reconnects."""

    async def unsubscribe(self) -> None:
        """Stop delivery at once. Idempotent."""
        ...


class KvOperation(StrEnum):
    PUT = "put"
    DELETE = "delete"
    """Deleted by somebody, or expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEntry:
    """One revision of one key."""

    key: str
    value: bytes
    revision: int
    """The stream's sequence: grows over the whole bucket."""
    operation: KvOperation = KvOperation.PUT


@dataclass(frozen=True, slots=True, kw_only=True)
class KvWrite:
    """One write of a group or of an atomic batch."""

    key: str
    value: bytes | None
    """None deletes."""
    ttl_s: float | None = None
    """Expires so long after the write; rounded up to whole seconds. None: permanent."""
    revision: int | None = None
    """Write only if the key is at this revision; 0: only if it does not exist (an expired or deleted key does not
    exist). None: unconditionally."""
    condition_key: str | None = None
    """`revision` is that of this other key instead (atomic batches only)."""


class Storage(StrEnum):
    MEMORY = "memory"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    """How a bucket is made when it does not exist yet. An existing bucket is used as it is.

    Raises:
        InvalidSettings: a value is out of its bounds.
    """

    storage: Storage = Storage.MEMORY
    """Memory is fast, and workers rebuild what a restarted server forgot. A cluster is better served by file."""
    replicas: int = 1
    """Servers of a cluster that keep a copy, 1 to 5. With 3 any one of them may die; one server alone can keep 1."""
    max_bytes: int = -1
    """Most bytes that the bucket may hold; -1: as many as the server allows."""

    def __post_init__(self) -> None:
        if not 1 <= self.replicas <= 5:
            raise InvalidSettings(f"replicas is {self.replicas}: JetStream keeps 1 to 5, and 3 suits most clusters")
        if self.max_bytes != -1 and self.max_bytes < 1:
            raise InvalidSettings(f"max_bytes is {self.max_bytes}: give at least 1, or -1 for no bound")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> BucketSettings:
        """What `GANGLINE_STORAGE` (`memory` or `file`) and `GANGLINE_REPLICAS` say; the defaults where they are unset.

        Raises:
            InvalidSettings: names the variable and what it may be.
        """
        environ = os.environ if environ is None else environ
        storage = environ.get("GANGLINE_STORAGE") or Storage.MEMORY
        replicas = environ.get("GANGLINE_REPLICAS") or "1"
        if storage not in tuple(Storage):
            raise InvalidSettings(f"GANGLINE_STORAGE is {storage!r}: use 'memory' or 'file'")
        if not replicas.isdecimal():
            raise InvalidSettings(f"GANGLINE_REPLICAS is {replicas!r}: use a number from 1 to 5")
        return cls(storage=Storage(storage), replicas=int(replicas))


KvHandler = Callable[[KvEntry], None]


class KeyValue(Protocol):
    """A JetStream KV bucket. Keys are `[-/_=.a-zA-Z0-9]+`; patterns have `*` and `>` as subjects do.

    Every method raises `Disconnected` without a connection and `StorageUnavailable` when JetStream does not answer
    within `timeout_s` of the bus (default 5 s) or has no leader. A bucket that vanished (a memory stream after a
    server restart) is made again by the next write; readers see it empty.
    """

    name: str

    async def get(self, key: str) -> KvEntry | None:
        """The newest revision, read from the stream's leader. None: never written, deleted or expired."""
        ...

    async def entries(self, pattern: str, *more: str) -> list[KvEntry]:
        """A snapshot of all living keys that match any of the patterns, each at its newest revision.

        It may come from a copy that lags behind, as a whole: it lacks nothing that is older than the newest that it
        shows. Ask for a key that was just written as well to know how new it is.
        """
        ...

    async def put(self, key: str, value: bytes, *, ttl_s: float | None = None, revision: int | None = None) -> int:
        """Write and return the new revision; `ttl_s` and `revision` as in KvWrite.

        Raises:
            Conflict: `revision` given and not met. After a time-out, a caller's own write is recognised.
        """
        ...

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        """Delete; a key that does not exist is not an error."""
        ...

    async def write(self, writes: Sequence[KvWrite]) -> list[int | Unavailable]:
        """Many writes in flight together, each on its own: a revision or an error for each, in order. (A delete gives
        the revision of its marker.) Never raises for a single one."""
        ...

    async def commit(self, writes: Sequence[KvWrite]) -> int:
        """Atomic batch: all or none, at most 1000. Returns the revision of the last.

        Raises:
            Conflict: some condition was not met; nothing was written. Transient conflicts are retried inside.
        """
        ...

    async def watch(self, pattern: str, handler: KvHandler) -> Subscription:
        """Call `handler` with the newest revision of every matching key, then with each change, expiry included.

        Resumes by itself after reconnects and lost buckets; then entries may come again, and keys that went meanwhile
        come as DELETE. Returns after the first snapshot was handled.
        """
        ...

    async def observe(self, pattern: str, handler: KvHandler) -> Subscription:
        """A live feed of writes as they pass, with no history and no guarantee: sees writes that storage refused or
        has not taken yet (revision 0), sees no expiry, misses what passes while disconnected. Cheap, and it goes on
        while JetStream has no leader: made for heartbeats, together with `entries`."""
        ...


class Retention(StrEnum):
    LIMITS = "limits"
    """Messages stay until they are too old or deleted."""
    WORK_QUEUE = "workqueue"
    """Messages stay until they are acknowledged. The filters of its consumers may not overlap: the server refuses a
    second consumer of a subject, so having one is a lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """How a stream is made when it does not exist yet; one that exists is used as it is, if it has the subjects.

    Atomic batches, expiring messages and schedules (with `Nats-Schedule` headers) are always allowed.
    """

    subjects: tuple[str, ...]
    retention: Retention = Retention.LIMITS
    storage: Storage = Storage.FILE
    replicas: int = 1
    max_age_s: float = 0.0
    """0: for ever."""
    max_bytes: int = -1
    duplicates_s: float = 120.0
    """A message with a `Nats-Msg-Id` that was used within so long is acknowledged and dropped."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
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


class Refused(Unavailable):
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


class Bus(Protocol):
    """A connection to NATS."""

    name: str
    """Shown in the server's connection list."""
    inbox: str
    """This connection's own prefix for reply subjects, without a trailing dot; unguessable."""

    @property
    def connected(self) -> bool: ...

    @property
    def max_payload(self) -> int:
        """Largest body plus headers that the server takes, in bytes."""
        ...

    def publish(
        self, subject: str, data: bytes = b"", *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send without waiting.

        Raises:
            Disconnected: nothing was sent, nor will be after a reconnect.
            PayloadTooLarge: over `max_payload`; checked before sending, since the server would close the connection.
            NotPermitted: the server refused an earlier message to this subject. The first one is lost without an error.
            ClosedError: the bus was closed.
        """
        ...

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, at the end of this turn of the event loop, just before what the turn has published
        leaves. For those who collect: what they publish then is not held up by another turn. It must not raise."""
        ...

    def prompt(self, publish: Callable[[], None]) -> None:
        """Call `publish` now, and let what it publishes leave at once rather than at the end of this turn. For those
        who know that this turn has nothing to add."""
        ...

    def push(self) -> None:
        """Let what was published so far leave now, not at the end of this turn of the event loop. For those who have
        more to publish in it, when whoever gets this part can work on it meanwhile. No-op while disconnected."""
        ...

    async def writable(self) -> None:
        """Wait until the write buffer is below its high-water mark (default 2 MiB); returns at once when it is."""
        ...

    async def request(
        self, subject: str, data: bytes = b"", *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Message:
        """Publish and wait for one answer. Cancelling forgets the answer; the request may still have arrived.

        Raises:
            NoResponders: at once, when nobody listens.
            RequestTimeout: after `timeout_s`.
            Disconnected: no connection, or it was lost while waiting (the request may have arrived).
            NotPermitted: the server forbids this user to publish there.
        """
        ...

    def ask(self, subject: str, data: bytes = b"", *, timeout_s: float, then: Answered) -> None:
        """`request` without a task or a future, for those who ask many. `then` is called once, on the loop, after this
        has returned: with the answer, or with the error that `request` would raise."""
        ...

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> Subscription:
        """Deliver matching messages to `handler`; with `queue`, each message to one member of the queue group.

        A `503` no-responders status to a published message with a `reply` arrives as a Message with the header
        `Status: 503` and no data.

        Raises:
            NotPermitted: the server refused an earlier subscription to this subject. The first time `flush` says so.
        """
        ...

    async def flush(self) -> None:
        """Wait until the server has seen all that was published and subscribed so far (at most 5 s).

        Raises:
            NotPermitted: the server forbids this user a subscription made since the last flush.
            Disconnected: the connection was lost.
        """
        ...

    def on_connection(self, listener: Callable[[ConnectionEvent], None]) -> Callable[[], None]:
        """Call `listener` on the loop at every change; returns a function that stops that."""
        ...

    async def bucket(self, name: str, settings: BucketSettings, *, make: bool = True) -> KeyValue:
        """Open a bucket, making it if need be (with atomic batches and expiring keys).

        Args:
            make: False makes nothing, asks nothing and never raises: for those who only read. Where there is no bucket
                they see it empty, until the first write makes it.

        Raises:
            ServerUnsupported: no JetStream, or a server older than 2.12, with its version in the text.
        """
        ...

    async def stream(self, name: str, settings: StreamSettings) -> Stream:
        """Open a stream, making it if need be.

        Raises:
            ServerUnsupported: as `bucket`.
            InvalidSettings: it exists with other subjects, or another retention.
        """
        ...

    async def object_store(self, name: str, settings: BucketSettings) -> ObjectStore:
        """Open an object store, making it if need be."""
        ...

    async def close(self) -> None:
        """Send what is buffered and close. Idempotent; pending requests raise ClosedError."""
        ...
