"""The one seam to NATS: everything that the rest of the package may use of a bus.

There are connections to two kinds of servers, which pass the same conformance suite: `nats_bus` (whose `nats_client`
alone imports `nats`) and `memory` (for tests, the simulator and users' own tests). Buckets, streams and object stores
are the same code on both.

Publishing is synchronous: it writes into the connection's buffer and returns, so that the hot path needs no task and no
await. Publishers that may be faster than the socket must await `writable()` from time to time. Handlers are plain
functions, called on the event loop in order of arrival; they must not block or raise (an error is logged with the
subject, and nothing else is lost).

Buckets are in `key_value`, streams in `stream`; this module exports all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, Protocol

from ...schemas.errors.base import GanglineError, Unavailable
from .key_value import (
    MEBIBYTE,
    BucketSettings,
    KeyValue,
    KvEntry,
    KvHandler,
    KvOperation,
    KvWrite,
    Storage,
    bytes_from,
)
from .stream import (
    Consumer,
    ConsumerLost,
    ConsumerSettings,
    ConsumerState,
    ConsumerTaken,
    ObjectStore,
    Publication,
    Published,
    PublishRefused,
    Retention,
    Stream,
    StreamHandler,
    StreamMessage,
    StreamSettings,
    StreamSource,
    StreamState,
)
from .subjects import SubjectSubscription

__all__ = [
    "HIGH_WATER_BYTES",
    "MEBIBYTE",
    "bytes_from",
    "Answered",
    "BucketSettings",
    "Bus",
    "Conflict",
    "ConnectionEvent",
    "Consumer",
    "ConsumerLost",
    "ConsumerSettings",
    "ConsumerState",
    "ConsumerTaken",
    "Handler",
    "KeyValue",
    "KvEntry",
    "KvHandler",
    "KvOperation",
    "KvWrite",
    "Message",
    "NoResponders",
    "NotPermitted",
    "ObjectStore",
    "Publication",
    "Published",
    "PublishRefused",
    "RequestTimeout",
    "Retention",
    "Storage",
    "StorageUnavailable",
    "Stream",
    "StreamHandler",
    "StreamMessage",
    "StreamSettings",
    "StreamSource",
    "StreamState",
]


HIGH_WATER_BYTES: Final = 2 * MEBIBYTE
"""So much may be buffered before a publisher waits, unless it says otherwise."""


class NoResponders(Unavailable):
    """The subject has no subscriber, which the server reports at once. No process received the request."""

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
    """JetStream did not accept the operation (no leader, stream missing, timeout). It may have been written."""

    code = "storage_unavailable"
    may_have_started = True


class NotPermitted(Unavailable):
    """The server forbids this user to publish or subscribe there. It will not succeed until the user's permissions are
    changed, which the connection finds out: it tries again from time to time. `details["subject"]` is the subject."""

    code = "not_permitted"
    status = 403


class Message:
    """A received message. `headers` is None if there are none."""

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
    """Publishing raises Disconnected until RECONNECTED. Messages in flight in either direction may be lost."""
    RECONNECTED = "reconnected"
    """Subscriptions are live again. State known only from watching must be read again. Also sent without
    DISCONNECTED, when the server had refused a subscription and permits it again."""
    CLOSED = "closed"
    """Closed for good: by us, or by an unrecoverable error."""


class Bus(Protocol):
    """A connection to NATS."""

    name: str
    """Shown in the server's connection list."""
    inbox: str
    """This connection's own prefix for reply subjects, without a trailing dot; not guessable."""

    @property
    def connected(self) -> bool: ...

    @property
    def max_payload(self) -> int:
        """Maximum size of body plus headers that the server accepts, in bytes."""
        ...

    def publish(
        self, subject: str, data: bytes = b"", *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send without waiting.

        Raises:
            Disconnected: nothing was sent, or will be after a reconnect.
            PayloadTooLarge: over `max_payload`; checked before sending, since the server would close the connection.
            NotPermitted: the server refused an earlier message to this subject. The first one is lost silently, and
                so is one every few seconds, with which it is tried again.
            ClosedError: the bus was closed.
        """
        ...

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, at the end of this turn of the event loop, just before the messages of the turn are
        sent. For batching: messages that it publishes are not delayed by another turn. It must not raise."""
        ...

    def prompt(self, publish: Callable[[], None]) -> None:
        """Call `publish` now, and send its messages at once rather than at the end of this turn. For callers that know
        that this turn publishes nothing else."""
        ...

    def push(self) -> None:
        """Send the messages published so far now, not at the end of this turn of the event loop. For callers that will
        publish more in this turn while the receiver can already work on this part. No-op while disconnected."""
        ...

    async def writable(self, below_bytes: int = HIGH_WATER_BYTES) -> None:
        """Wait until less than `below_bytes` are buffered."""
        ...

    async def request(
        self, subject: str, data: bytes = b"", *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Message:
        """Publish and wait for one answer. Cancelling forgets the answer; the request may still have arrived.

        Raises:
            NoResponders: at once, if nobody listens.
            RequestTimeout: after `timeout_s`.
            Disconnected: no connection, or it was lost while waiting (the request may have arrived).
            NotPermitted: the server forbids this user to publish there.
        """
        ...

    def ask(self, subject: str, data: bytes = b"", *, timeout_s: float, then: Answered) -> None:
        """`request` without a task or a future, for callers with many requests. `then` is called once, on the loop,
        after this returns: with the answer, or with the error that `request` would raise."""
        ...

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> SubjectSubscription:
        """Deliver matching messages to `handler`; with `queue`, each message to one member of the queue group.

        A `503` no-responders status to a published message with a `reply` arrives as a Message with the header
        `Status: 503` and no data.

        Raises:
            NotPermitted: the server refused an earlier subscription to this subject a few seconds ago. The first
                refusal is raised by `flush`.

        A refused subscription is made again from time to time until it is ended. When it succeeds, listeners of the
        connection get RECONNECTED.
        """
        ...

    async def flush(self) -> None:
        """Wait until the server has seen everything published and subscribed so far (at most 5 s).

        Raises:
            NotPermitted: the server forbids this user a subscription made since the last flush.
            Disconnected: the connection was lost.
        """
        ...

    async def ping(self) -> None:
        """Make a round trip to the server (at most 5 s). Messages that it sent before, such as "no responders", have
        then arrived.

        Raises:
            Disconnected: the connection was lost.
        """
        ...

    def on_connection(self, listener: Callable[[ConnectionEvent], None]) -> Callable[[], None]:
        """Call `listener` on the loop at every change; returns a function that removes it."""
        ...

    def impairments(self) -> list[str]:
        """What the server allowed this user before and forbids now, and what it had no room for a moment ago, one text
        each: the process is not ready. Only reads, so any thread may call it."""
        ...

    @property
    def server_version(self) -> str:
        """Of the server that it is connected to."""
        ...

    @property
    def server_place(self) -> str:
        """Which server it is connected to, for people: `server 'n1' of JetStream domain 'hub'`."""
        ...

    async def bucket(self, name: str, settings: BucketSettings, *, make: bool = True) -> KeyValue:
        """Open a bucket, creating it if necessary (with expiring keys and, if it is the ledger, atomic batches).

        Args:
            make: False creates nothing, sends nothing and never raises: for callers that only read. A missing bucket
                looks empty until the first write creates it.

        Raises:
            ServerUnsupported: no JetStream, or a server older than 2.12; the text has its version.
        """
        ...

    async def stream(self, name: str, settings: StreamSettings, *, make: bool = True) -> Stream:
        """Open a stream, creating it if necessary.

        Args:
            make: False creates nothing and sends nothing: for callers that only read. A missing stream looks empty
                until the first message published to it creates it.

        Raises:
            ServerUnsupported: as `bucket`.
            InvalidSettings: it exists with other subjects or another retention.
        """
        ...

    async def object_store(self, name: str, settings: BucketSettings) -> ObjectStore:
        """Open an object store, creating it if necessary."""
        ...

    async def close(self) -> None:
        """Send buffered messages and close. Idempotent; pending requests raise ClosedError."""
        ...
