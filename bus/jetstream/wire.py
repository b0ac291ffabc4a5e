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
"""In the configuration of each stream that we create. Without a number (-1) the server has a limit of its own, 1000
since version 2.15, and each task queue and each watch of a bucket is a consumer."""
UNLIMITED: Final = -1
"""For an account with a lower limit: that limit applies."""
RESERVED: Final = (10002, 10023, 10028, 10047)
"""The server's error numbers for a stream whose `max_bytes` it cannot reserve."""
OVERLAP: Final = 10065
"""The server's error number for a stream whose subjects overlap with another's."""
TOO_MANY_CONSUMERS: Final = 10026
"""The server's error number for too many consumers."""

SECOND_NS: Final = 1_000_000_000
ACK_PREFIX: Final = "$JS.ACK."
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")


def check_name(name: str, what: str) -> str:
    """Raises InvalidName if `name` is not valid for a stream or a consumer."""
    if not _NAME.fullmatch(name):
        raise InvalidName(f"{what} {name[:80]!r} may only have letters, digits, '_' and '-'")
    return name


def stream_configuration(name: str, settings: StreamSettings) -> dict[str, Any]:
    """The configuration of a new stream. (The server refuses schedules in a stream that discards new messages.)"""
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
        # DIRECT.GET would send a stored message unchanged to any subject that the request names.
        "allow_direct": False,
        "allow_msg_ttl": settings.expiring,
        # The server acknowledges the first message of a batch with an empty body, which is a valid request of its own
        # API, to whatever reply subject the sender gives.
        "allow_atomic": False,
        "allow_msg_schedules": settings.schedules,
        "allow_rollup_hdrs": settings.schedules,
    }
    if settings.sources:
        configuration["sources"] = [
            {
                "name": source.name,
                "subject_transforms": [{"src": source.subjects, "dest": source.to}],
                **({"opt_start_seq": source.start} if source.start else {}),
            }
            for source in settings.sources
        ]
    return configuration


def _window_s(settings: StreamSettings) -> float:
    """The server requires that it is no longer than messages are kept."""
    return min(settings.duplicates_s, settings.max_age_s) if settings.max_age_s else settings.duplicates_s


_FREE: Final = frozenset(
    (
        *("name", "description", "metadata", "placement", "storage", "num_replicas", "compression", "first_seq"),
        *("max_consumers", "consumer_limits", "max_bytes", "max_msg_size", "duplicate_window", "persist_mode"),
        *("deny_delete", "deny_purge", "allow_msg_ttl"),
    )
)
"""What may differ in an existing stream: operators tune it, or it does no harm. (The switches that we need are checked
as well.)"""
_LIMITS: Final = frozenset(("max_age", "max_msgs"))
"""What may differ, too, if messages expire anyway."""
_MENDED: Final = frozenset(
    (
        *("allow_direct", "mirror_direct", "allow_rollup_hdrs", "subject_delete_marker_ttl", "discard"),
        *("allow_atomic", "allow_batched"),
    )
)
"""What an update corrects."""
_NEEDED: Final = ("allow_atomic", "allow_msg_ttl", "allow_msg_schedules")
_NONE: Final[frozenset[str]] = frozenset()
_NEVER_OFF: Final = frozenset(("allow_msg_schedules", "allow_rollup_hdrs"))
"""What no update switches off: schedules, and the rollup that they imply."""
_MOVE: Final = "If it has tasks, move them (docs/how-to/run-in-production.md, 'Upgrade the streams'). "


def check_configuration(what: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the configuration of an existing stream with the one that we would create. Every difference counts unless
    known to be harmless: a stream with another subject, a source or `republish` passes stored data on to others.

    Args:
        what: its name in messages, as in "stream 'X'".

    Returns:
        The changes for an update; empty: it is as it should be.

    Raises:
        InvalidSettings: the stream must not be used.
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
            f"{_MOVE if kept else ''}Delete it (nats stream rm {name}) if you do not need it, or use another namespace"
        )
    return changes


def _normal(field: str, value: Any) -> Any:
    """Normalize: an omitted value equals an empty one."""
    if field in ("subjects", "sources"):
        return sorted((_source(_plain(each)) for each in value or ()), key=json.dumps)
    if field in ("max_msgs", "max_msgs_per_subject"):
        return -1 if value in (None, 0) else value
    return _plain(value) or None


def _source(value: Any) -> Any:
    """Where a source begins may differ: see StreamAdmin."""
    return {k: v for k, v in value.items() if k != "opt_start_seq"} if isinstance(value, dict) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in sorted(value.items()) if each}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def consumer_configuration(name: str, settings: ConsumerSettings) -> dict[str, Any]:
    """A durable consumer, since others end with the server; `inactive_s` still removes it."""
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
    """Parse a consumer's info, without the metadata that the server adds."""
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
    """What an acknowledgement subject says about a delivered message: its delivery count, its sequence in the stream,
    its consumer sequence, when it was stored (in ns), and how many more are pending.

    Nine parts, or at least eleven with domain and account before the stream:
    `$JS.ACK[.<domain>.<account>].<stream>.<consumer>.<delivered>.<sequence>.<consumer sequence>.<time>.<pending>`
    """
    parts = reply.split(".")
    first = 4 if len(parts) == 9 else 6
    return list(map(int, parts[first : first + 5]))


def delivered_message(message: Message, of: list[int] | None = None) -> tuple[StreamMessage, int]:
    """The delivered message and its consumer sequence. `of`: its `delivery`, if known."""
    delivered, sequence, ordinal, at, _ = of or delivery(message.reply)
    stored = StreamMessage(
        message.subject, message.data, message.headers, sequence, at / SECOND_NS, delivered, message.reply
    )
    return stored, ordinal


def ack_subject(stream: str, consumer: str, sequence: int, consumer_sequence: int) -> str:
    """Where to acknowledge or refuse a message that was delivered but never arrived."""
    return f"{ACK_PREFIX}{stream}.{consumer}.1.{sequence}.{consumer_sequence}.0.0"


def stored_message(message: Mapping[str, Any]) -> StreamMessage:
    """Parse the answer of STREAM.MSG.GET."""
    block = base64.b64decode(message.get("hdrs") or "")
    return StreamMessage(
        subject=str(message["subject"]),
        data=base64.b64decode(message.get("data") or ""),
        headers=decode_headers(block) if block else None,
        sequence=int(message["seq"]),
        at=unix_time(str(message["time"])),
    )


def unix_time(text: str) -> float:
    """Unix time of an RFC 3339 time with up to nine decimals."""
    return datetime.fromisoformat(text).timestamp()
