"""The wire format of streams and consumers: names, configurations, acknowledgement subjects, stored messages."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from ...schemas.errors.base import InvalidName, InvalidSettings
from ..nats_client.protocol import decode_headers
from ..port.bus import ConsumerSettings, ConsumerState, Message, StreamMessage, StreamSettings

MAX_CONSUMERS: Final = 1_000_000
"""In the configuration of each stream that we make. Without a number (-1) a server has a limit of its own, 1000 from
version 2.15 on; and each queue of tasks is a consumer, and so is each watch of a bucket."""
UNLIMITED: Final = -1
"""For an account that may have fewer: its own limit holds."""
RESERVED: Final = (10002, 10023, 10028, 10047)
"""The server's numbers for a stream whose `max_bytes` it cannot reserve."""
OVERLAP: Final = 10065
"""The server's number for a stream with subjects of another."""
TOO_MANY_CONSUMERS: Final = 10026
"""The server's number for it."""

SECOND_NS: Final = 1_000_000_000
ACK_PREFIX: Final = "$JS.ACK."
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


def check_name(name: str, what: str) -> str:
    """Raises InvalidName if `name` cannot be that of a stream or a consumer."""
    if not _NAME.fullmatch(name):
        raise InvalidName(f"{what} {name[:80]!r} may only have letters, digits, '_' and '-'")
    return name


def stream_configuration(name: str, settings: StreamSettings) -> dict[str, Any]:
    """How a stream is made. (The server refuses schedules in a stream that discards new messages.)"""
    configuration: dict[str, Any] = {
        "name": name,
        "subjects": list(settings.subjects),
        "retention": str(settings.retention),
        "max_consumers": MAX_CONSUMERS,
        "max_msgs": -1,
        "max_bytes": settings.max_bytes,
        "max_age": int(settings.max_age_s * SECOND_NS),
        "max_msg_size": -1,
        "discard": "new" if settings.keeps_old else "old",
        "storage": str(settings.storage),
        "num_replicas": settings.replicas,
        "duplicate_window": int(_window_s(settings) * SECOND_NS),
        # An answer to DIRECT.GET is the stored message as it is, and goes to whatever subject the request names.
        "allow_direct": False,
        "allow_msg_ttl": settings.expiring,
        "allow_atomic": True,
        "allow_msg_schedules": settings.schedules,
        "allow_rollup_hdrs": settings.schedules,
    }
    if settings.sources:
        configuration["sources"] = [
            {"name": source.name, "subject_transforms": [{"src": source.subjects, "dest": source.to}]}
            for source in settings.sources
        ]
    return configuration


def _window_s(settings: StreamSettings) -> float:
    """The server wants it to be no longer than the messages live."""
    return min(settings.duplicates_s, settings.max_age_s) if settings.max_age_s else settings.duplicates_s


_FREE: Final = frozenset(
    (
        *("name", "description", "metadata", "placement", "storage", "num_replicas", "compression", "first_seq"),
        *("max_consumers", "consumer_limits", "max_bytes", "max_msg_size", "duplicate_window", "persist_mode"),
        *("deny_delete", "deny_purge", "allow_atomic", "allow_batched", "allow_msg_ttl"),
    )
)
"""What may differ in a stream that exists: operators tune it, or it takes nothing away. (What we need to be switched on
is looked at besides.)"""
_LIMITS: Final = frozenset(("max_age", "max_msgs"))
"""Likewise, where messages have an end anyway."""
_MENDED: Final = frozenset(
    ("allow_direct", "mirror_direct", "allow_rollup_hdrs", "subject_delete_marker_ttl", "discard")
)
"""What an update brings to where it belongs."""
_NEEDED: Final = ("allow_atomic", "allow_msg_ttl", "allow_msg_schedules")
_NONE: Final[frozenset[str]] = frozenset()
_NEVER_OFF: Final = frozenset(("allow_msg_schedules", "allow_rollup_hdrs"))
"""What no update switches off: schedules, and the rollup that comes with them."""
_MOVE: Final = "If it has tasks, move them (docs/how-to/run-in-production.md, 'Upgrade the streams'). "


def check_configuration(what: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the configuration of a stream that exists with the one that we would make. Everything counts that is not
    known to be harmless: a stream with a subject more, a source or `republish` gives what is stored to somebody else.

    Args:
        what: for people, as in "stream 'X'".

    Returns:
        Changes that bring it to where it belongs, by an update; empty: it is as it should be.

    Raises:
        InvalidSettings: it must not be used.
    """
    name = wanted["name"]
    for switch in _NEEDED:
        if wanted.get(switch) and not found.get(switch):
            raise InvalidSettings(
                f"{what} exists without {switch}: switch it on (nats stream edit {name}), or use another namespace"
            )
    changes: dict[str, Any] = {}
    wrong: list[str] = []
    kept = _NEVER_OFF if found.get("allow_msg_schedules") and not wanted.get("allow_msg_schedules") else _NONE
    limits = _LIMITS if wanted.get("max_age") else _NONE
    if wanted.get("max_msgs_per_subject") == 1 and found.get("max_msgs_per_subject", 0) > 0:
        limits |= {"max_msgs_per_subject"}  # a bucket with a history
    for field in sorted({*wanted, *found} - _FREE - kept - limits):
        ours, theirs = _normal(field, wanted.get(field)), _normal(field, found.get(field))
        if ours == theirs:
            continue
        if field in _MENDED:
            changes[field] = wanted.get(field, False if isinstance(theirs, bool) else 0)
        else:
            wrong.append(f"{field} {json.dumps(theirs)}, not {json.dumps(ours)}")
    if wrong:
        raise InvalidSettings(
            f"{what} exists with {'; '.join(wrong)[:800]}: another version made it, or somebody else. "
            f"{_MOVE if kept else ''}Delete it (nats stream rm {name}) if it may go, or use another namespace"
        )
    return changes


def _normal(field: str, value: Any) -> Any:
    """Without the difference between what is left out and what says nothing."""
    if field in ("subjects", "sources"):
        return sorted((_plain(each) for each in value or ()), key=json.dumps)
    if field in ("max_msgs", "max_msgs_per_subject"):
        return -1 if value in (None, 0) else value
    return _plain(value) or None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in sorted(value.items()) if each}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def consumer_configuration(name: str, settings: ConsumerSettings) -> dict[str, Any]:
    """A durable one, since others end with the server; `inactive_s` still removes it."""
    configuration: dict[str, Any] = {
        "durable_name": name,
        "name": name,
        "filter_subject": settings.filter,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": int(settings.ack_wait_s * SECOND_NS),
        "max_deliver": -1,
        "max_ack_pending": settings.max_pending,
        "replay_policy": "instant",
        "num_replicas": 0,
        "metadata": dict(settings.metadata or {}),
    }
    if settings.inactive_s:
        configuration["inactive_threshold"] = int(settings.inactive_s * SECOND_NS)
    return configuration


def consumer_state(info: Mapping[str, Any]) -> ConsumerState:
    """From a consumer's info, without the metadata that the server adds."""
    configuration = info.get("config") or {}
    metadata = configuration.get("metadata") or {}
    return ConsumerState(
        name=str(info["name"]),
        filter=str(configuration.get("filter_subject", "")),
        pending=int(info.get("num_pending", 0)),
        unacknowledged=int(info.get("num_ack_pending", 0)),
        metadata={key: value for key, value in metadata.items() if not key.startswith("_nats.")},
    )


def delivery(reply: str) -> list[int]:
    """What an acknowledgement subject tells of a delivered message: how often it was delivered, its sequence in the
    stream, which of the consumer's deliveries it is, when it was stored (in ns), and how many more wait.

    Nine parts, or at least eleven with domain and account before the stream:
    `$JS.ACK[.<domain>.<account>].<stream>.<consumer>.<delivered>.<sequence>.<consumer sequence>.<time>.<pending>`
    """
    parts = reply.split(".")
    first = 4 if len(parts) == 9 else 6
    return list(map(int, parts[first : first + 5]))


def delivered_message(message: Message, of: list[int] | None = None) -> tuple[StreamMessage, int]:
    """What a consumer delivered, and which of its deliveries it is. `of`: its `delivery`, if that is known."""
    delivered, sequence, ordinal, at, _ = of or delivery(message.reply)
    stored = StreamMessage(
        message.subject, message.data, message.headers, sequence, at / SECOND_NS, delivered, message.reply
    )
    return stored, ordinal


def ack_subject(stream: str, consumer: str, sequence: int, consumer_sequence: int) -> str:
    """Where to acknowledge, or refuse, a message that was delivered and never came."""
    return f"{ACK_PREFIX}{stream}.{consumer}.1.{sequence}.{consumer_sequence}.0.0"


def stored_message(message: Mapping[str, Any]) -> StreamMessage:
    """From the answer of STREAM.MSG.GET."""
    block = base64.b64decode(message.get("hdrs") or "")
    return StreamMessage(
        subject=str(message["subject"]),
        data=base64.b64decode(message.get("data") or ""),
        headers=decode_headers(block) if block else None,
        sequence=int(message["seq"]),
        at=unix_time(str(message["time"])),
    )


def unix_time(text: str) -> float:
    """Of an RFC 3339 time with up to nine decimals."""
    return datetime.fromisoformat(text).timestamp()
