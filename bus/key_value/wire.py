"""A key-value bucket as a stream: names, headers, markers, configuration and revisions."""

from __future__ import annotations

import base64
import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ...schemas.errors.base import InvalidName, InvalidSettings
from ...schemas.names import takes_batches
from ..jetstream.api import Transport
from ..jetstream.wire import MAX_CONSUMERS
from ..nats_client.protocol import decode_headers
from ..port.bus import BucketSettings, KvEntry, KvOperation, KvWrite

_BEGIN: Final = 1_577_836_800
"""2020-01-01 in Unix time. Microseconds since then stay below 2**53, and thus exact in JSON, until 2305."""
_MICROSECONDS: Final = 1_000_000
_SLACK: Final = 60 * _MICROSECONDS
"""Room for writes of others after the last one that we saw."""


def made_at(revision: int) -> float:
    """Unix time at which the bucket with this revision was created, plus one microsecond for each write."""
    return _BEGIN + revision / _MICROSECONDS


def first_revision(wall: float, seen: int = 0) -> int:
    """The first revision of a bucket created now, chosen so that revisions never repeat.

    A bucket in memory is lost with its server and created again, and a stream counts from 1 by default. But revisions
    serve as fencing tokens, and writes are conditional on them. So a bucket starts at the current time in microseconds
    since 2020: the previous bucket had less than one write per microsecond, so its revisions were lower. Only if the
    creator's clock is behind a revision that it remembers does it count from there. (If it always did, several restarts
    in a row would lead so far ahead of the time that a process without memory would start below.)

    Args:
        wall: Unix time.
        seen: the highest remembered revision of an earlier bucket of this name; 0: none.
    """
    now = int((wall - _BEGIN) * _MICROSECONDS)
    if now > seen:
        return now
    return seen + _SLACK if seen else 1


_SECOND_NS: Final = 1_000_000_000
MARKER_TTL_S: Final = 10
"""How long the marker of a deleted key is kept, for watchers that are a little behind."""
WRITE_ID: Final = "Gangline-Write"
"""Names one conditional write, so that its writer recognises it after a timeout."""
MESSAGE_ID: Final = "Nats-Msg-Id"
"""Names one unconditional write: if sent twice, it is stored once."""

_OPERATION: Final = "KV-Operation"
_BUCKET: Final = re.compile(r"[A-Za-z0-9_-]+")
_KEY: Final = re.compile(r"[-/_=.a-zA-Z0-9]+")
_PATTERN: Final = re.compile(r"[-/_=.a-zA-Z0-9*>]+")


def check_bucket(name: str) -> str:
    """Raises InvalidName if `name` cannot be a bucket's."""
    if not _BUCKET.fullmatch(name):
        raise InvalidName(f"bucket {name!r} may only have letters, digits, '_' and '-'")
    return name


def check_key(key: str) -> str:
    """Raises InvalidName if `key` cannot be a key."""
    if not _KEY.fullmatch(key) or key[0] == "." or key[-1] == "." or ".." in key:
        raise InvalidName(f"key {key[:80]!r} may only have letters, digits, and -/_=. (no empty parts between dots)")
    return key


def check_pattern(pattern: str) -> str:
    """Raises InvalidName if `pattern` cannot match keys."""
    parts = pattern.split(".")
    wrong = [p for p in parts if not p or (("*" in p or ">" in p) and len(p) > 1)]
    if not _PATTERN.fullmatch(pattern) or wrong or ">" in parts[:-1]:
        raise InvalidName(f"pattern {pattern[:80]!r} is not a key in which whole parts are '*', or the last is '>'")
    return pattern


def stream_configuration(bucket: str, settings: BucketSettings) -> dict[str, Any]:
    """What `nats kv add` would create, plus expiring keys and, for the ledger, atomic batches."""
    return {
        "name": f"KV_{bucket}",
        "subjects": [f"$KV.{bucket}.>"],
        "retention": "limits",
        "max_consumers": MAX_CONSUMERS,
        "max_msgs": -1,
        "max_bytes": settings.max_bytes,
        "max_age": 0,
        "max_msgs_per_subject": 1,
        "max_msg_size": -1,
        "discard": "new",
        "storage": str(settings.storage),
        "num_replicas": settings.replicas,
        "duplicate_window": 120 * _SECOND_NS,
        "allow_direct": False,
        # It would let anyone who may write one key remove all. Markers of expired keys (`subject_delete_marker_ttl`)
        # require it, so there are none: a watch detects expiry by itself.
        "allow_rollup_hdrs": False,
        "deny_delete": True,
        "allow_msg_ttl": True,
        "allow_atomic": takes_batches(bucket),
    }


def write_headers(write: KvWrite) -> dict[str, str]:
    """Headers of one write, without its conditions."""
    headers: dict[str, str] = {}
    if write.value is None:
        # PURGE rather than DEL: a marker that expires without leaving another marker.
        headers[_OPERATION] = "PURGE"
        headers["Nats-TTL"] = f"{MARKER_TTL_S}s"
    elif write.ttl_s is not None:
        headers["Nats-TTL"] = ttl_header(write.ttl_s)
    return headers


def ttl_header(ttl_s: float) -> str:
    """In whole seconds, rounded up, at least one.

    Raises:
        InvalidSettings: it is not a positive number.
    """
    if not 0 < ttl_s < math.inf:
        raise InvalidSettings(f"ttl_s is {ttl_s!r}: give seconds above 0, or None for a permanent key")
    return f"{math.ceil(ttl_s)}s"


def is_marker(headers: Mapping[str, str] | None) -> bool:
    """Whether this revision says that the key is gone: deleted, purged or expired."""
    if not headers:
        return False
    return "Nats-Marker-Reason" in headers or headers.get(_OPERATION) in ("DEL", "PURGE")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """The newest message of a key's subject, marker or not."""

    key: str
    value: bytes
    revision: int
    headers: Mapping[str, str]
    at: float = 0.0
    """Unix time of the write by the server's clock, if known."""

    @property
    def ttl_s(self) -> float | None:
        """How long after the write it expires; None: never."""
        text = self.headers.get("Nats-TTL", "")
        return float(text[:-1]) if text.endswith("s") and text[:-1].isdecimal() else None

    @property
    def marker(self) -> bool:
        return is_marker(self.headers)

    def entry(self) -> KvEntry:
        return KvEntry(
            key=self.key,
            value=b"" if self.marker else self.value,
            revision=self.revision,
            operation=KvOperation.DELETE if self.marker else KvOperation.PUT,
        )


def stored_from_api(prefix: str, message: Mapping[str, Any]) -> StoredEntry:
    """Parse the answer of STREAM.MSG.GET."""
    block = base64.b64decode(message.get("hdrs") or "")
    return StoredEntry(
        key=str(message["subject"])[len(prefix) :],
        value=base64.b64decode(message.get("data") or ""),
        revision=int(message["seq"]),
        headers=decode_headers(block) if block else {},
    )


class BucketOwner(Protocol):
    """Implemented by NatsKeyValue; see there."""

    name: str
    label: str
    bus: Transport
    stream: str
    prefix: str
    unsure_batches: deque[str]

    @property
    def made(self) -> bool: ...

    @property
    def only_read(self) -> bool: ...

    async def ensure(self, *, look: bool = False) -> bool: ...

    async def restore(self, timeout_s: float) -> bool: ...

    async def inspect(self) -> None: ...

    def check(self, found: Mapping[str, Any]) -> None: ...

    async def stored(self, key: str) -> StoredEntry | None: ...

    async def read(self, query: Mapping[str, Any]) -> StoredEntry | None: ...
