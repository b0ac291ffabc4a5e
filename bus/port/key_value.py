"""The seam to key-value buckets; port.bus exports all of this, too."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from ...schemas.errors.base import InvalidSettings, Unavailable

if TYPE_CHECKING:
    from .subjects import Subscription


MEBIBYTE: Final = 1024 * 1024


class KvOperation(StrEnum):
    PUT = "put"
    DELETE = "delete"
    """Deleted or expired."""


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
    """Time to live after the write, rounded up to whole seconds. None: permanent."""
    revision: int | None = None
    """Write only if the key is at this revision; 0: only if it does not exist (an expired or deleted key does not
    exist). None: unconditionally."""
    revives: bool = True
    """Whether `revision` 0 accepts a key that was deleted. False: a deletion is respected for as long as the bucket
    remembers it (10 s)."""
    resumes: bool = True
    """Whether the write may replace an earlier one of this connection whose outcome stayed unknown, as if that had been
    acknowledged. False: what that has stored counts like everybody's."""
    condition_key: str | None = None
    """`revision` applies to this other key instead (atomic batches only)."""


class Storage(StrEnum):
    MEMORY = "memory"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    """How to create a bucket if it does not exist. An existing bucket is used as it is.

    Raises:
        InvalidSettings: a value is out of bounds.
    """

    storage: Storage = Storage.MEMORY
    """Memory is fast, and workers restore what a restarted server has lost. Use file storage in a cluster."""
    replicas: int = 1
    """Number of servers in a cluster that keep a copy, 1 to 5. With 3, any one of them may fail; a single server needs
    1."""
    max_bytes: int = 256 * MEBIBYTE
    """Maximum size of the bucket in bytes, reserved on the server; when it is full, writes of new keys are refused. -1:
    as much as the server allows, which also applies if the server cannot reserve that much."""
    share: float = 0.0
    """Part of what the server can still reserve that is its limit where it would have none; 0: it has none."""

    def __post_init__(self) -> None:
        if not 1 <= self.replicas <= 5:
            raise InvalidSettings(f"replicas is {self.replicas}: JetStream keeps 1 to 5, and 3 suits most clusters")
        if self.max_bytes != -1 and self.max_bytes < 1:
            raise InvalidSettings(f"max_bytes is {self.max_bytes}: give at least 1, or -1 for no limit")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> BucketSettings:
        """The values of `GANGLINE_STORAGE` (`memory` or `file`), `GANGLINE_REPLICAS` and `GANGLINE_MAX_BYTES`; defaults
        for those that are unset.

        Raises:
            InvalidSettings: names the variable and its allowed values.
        """
        environ = os.environ if environ is None else environ
        most = bytes_from(environ)
        storage = environ.get("GANGLINE_STORAGE") or Storage.MEMORY
        replicas = environ.get("GANGLINE_REPLICAS") or "1"
        if storage not in tuple(Storage):
            raise InvalidSettings(f"GANGLINE_STORAGE is {storage!r}: use 'memory' or 'file'")
        if not replicas.isdecimal():
            raise InvalidSettings(f"GANGLINE_REPLICAS is {replicas!r}: use a number from 1 to 5")
        found = cls(storage=Storage(storage), replicas=int(replicas))
        return found if most is None else replace(found, max_bytes=most)


def bytes_from(environ: Mapping[str, str]) -> int | None:
    """The value of `GANGLINE_MAX_BYTES`: the limit of each stream and bucket, -1 for none or a share of what the server
    has; None: it is unset.

    Raises:
        InvalidSettings: it is not a number.
    """
    text = environ.get("GANGLINE_MAX_BYTES")
    if not text:
        return None
    if not text.removeprefix("-").isdecimal():
        raise InvalidSettings(f"GANGLINE_MAX_BYTES is {text!r}: use a number of bytes, or -1 for no limit")
    return int(text)


KvHandler = Callable[[KvEntry], None]


class KeyValue(Protocol):
    """A JetStream KV bucket. Keys are `[-/_=.a-zA-Z0-9]+`; patterns have `*` and `>` as subjects do.

    Every method raises `Disconnected` without a connection and `StorageUnavailable` if JetStream does not answer within
    `timeout_s` of the bus (default 5 s) or has no leader. A bucket that vanished (a memory stream after a server
    restart) is recreated by the next write; readers see it empty.
    """

    name: str

    @property
    def created(self) -> str:
        """When the bucket was created, in RFC 3339, as of the last look at it: tells two of the same name apart. Empty:
        not known."""
        ...

    async def get(self, key: str) -> KvEntry | None:
        """The newest revision, read from the stream's leader. None: never written, deleted or expired."""
        ...

    async def entries(self, pattern: str, *more: str) -> list[KvEntry]:
        """All keys that match any of the patterns, each at its newest revision when it was read.

        Nothing is missing that was there when the list began and still is. What is written meanwhile may be in it or
        not, in any order: who needs it watches, or lists again. It may come from a lagging replica; to know how new it
        is, include a key that was just written.
        """
        ...

    async def newest(self, pattern: str, *, limit: int, before: int | None = None) -> list[KvEntry]:
        """The keys that were written last and match the pattern, read from the stream's leader: at most `limit`, the
        newest first.

        Args:
            before: only revisions below this one, to go on from an earlier answer.
        """
        ...

    async def written(self, after: int, *, most: int) -> tuple[int, set[str] | None]:
        """The bucket's last revision, and the keys that were written, deleted or expired between a revision and that
        one, without their values: one request and a stream of small messages, which may be far less than a `get` of
        each key.

        Args:
            most: None instead of the keys if the last revision is higher than `after` by more than this.

        Returns:
            None instead of the keys also if they cannot be told: the bucket is another one, or a replica lags.
        """
        ...

    async def put(self, key: str, value: bytes, *, ttl_s: float | None = None, revision: int | None = None) -> int:
        """Write and return the new revision; `ttl_s` and `revision` as in KvWrite.

        Raises:
            Conflict: `revision` was given and not met. After a timeout, a caller's own write is recognised.
        """
        ...

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        """Delete; it is not an error if the key does not exist."""
        ...

    async def write(self, writes: Sequence[KvWrite]) -> list[int | Unavailable]:
        """Many independent writes in flight together: returns a revision or an error for each, in order. (A delete
        returns the revision of its marker.) Never raises for a single one."""
        ...

    async def commit(self, writes: Sequence[KvWrite]) -> int:
        """Atomic batch: all writes or none, at most 1000. Returns the revision of the last. Only the ledger takes them.

        Raises:
            Conflict: a condition was not met; nothing was written. Transient conflicts are retried internally.
        """
        ...

    async def watch(self, pattern: str, handler: KvHandler) -> Subscription:
        """Call `handler` with the newest revision of every matching key, then with each change, expiry included.

        Resumes by itself after reconnects and lost buckets; then entries may be repeated, and keys that disappeared
        meanwhile come as DELETE. Returns when the first snapshot has been handled. Creates the bucket, unless it was
        opened to be only read; then what others write there is seen within a second or two.
        """
        ...

    async def observe(self, pattern: str, handler: KvHandler) -> Subscription:
        """A live feed of writes as they pass, without history or guarantees: it includes writes that storage refuses or
        has not stored yet (revision 0), does not show expiry, and misses writes while disconnected. Cheap, and works
        while JetStream has no leader: for heartbeats, together with `entries`."""
        ...
