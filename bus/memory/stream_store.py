"""The server side of an in-memory stream: messages, conditions, limits, duplicates, expiry, batches, schedules."""

from __future__ import annotations

import asyncio
import heapq
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from ...schemas.errors.base import InvalidSchedule
from ...schemas.schedules import CronSchedule, parse_schedule
from ..jetstream.wire import SECOND_NS
from ..port.bus import ConsumerSettings, StreamMessage
from ..port.subjects import SubjectPattern
from .faults import server_time

_SCHEDULE: Final = "Nats-Schedule"
_TARGET: Final = "Nats-Schedule-Target"
_TTL: Final = "Nats-TTL"
_ROLLUP: Final = "Nats-Rollup"
_SOURCE: Final = "Nats-Stream-Source"
_MESSAGE_ID: Final = "Nats-Msg-Id"
EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
EXPECTED_OF: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
_BATCH: Final = "Nats-Batch-Id"
_BATCH_SEQUENCE: Final = "Nats-Batch-Sequence"
_BATCH_COMMIT: Final = "Nats-Batch-Commit"
_HOLD_OFF_S: Final = 0.25
_MAX_BATCH: Final = 1000
_BATCH_LASTS_S: Final = 10.0

Publication = tuple[str, bytes, dict[str, str]]
"""Subject, data and headers."""


class JetStreamRefusal(Exception):
    """An error that JetStream answers with."""

    def __init__(self, number: int, text: str, *, status: int = 400) -> None:
        super().__init__(text)
        self.error = {"code": status, "err_code": number, "description": text}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfiguration:
    """A source stream: its messages on `subjects`, from sequence `start` on, are also stored here, on `to`."""

    name: str
    subjects: SubjectPattern
    to: str
    start: int

    def subject(self, subject: str) -> str:
        """The subject here for a subject there."""
        return self.to[:-1] + subject[len(self.subjects.text) - 1 :]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfiguration:
    """The parts of a stream's configuration that the in-memory server supports."""

    fields: Mapping[str, Any]
    """As received."""
    patterns: tuple[SubjectPattern, ...]
    work_queue: bool
    in_memory: bool
    keeps_old: bool
    max_bytes: int
    max_age_s: float
    per_subject: int
    """Maximum number of messages per subject; 0: unlimited."""
    expiring: bool
    atomic: bool
    rollup: bool
    schedules: bool
    duplicates_s: float
    sources: tuple[SourceConfiguration, ...]

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> StreamConfiguration:
        sources = []
        for each in fields.get("sources") or ():
            (transform,) = each["subject_transforms"]
            pattern = SubjectPattern(transform["src"])
            start = int(each.get("opt_start_seq", 0))
            sources.append(SourceConfiguration(name=each["name"], subjects=pattern, to=transform["dest"], start=start))
        return cls(
            fields=fields,
            patterns=tuple(map(SubjectPattern, fields["subjects"])),
            work_queue=fields.get("retention") == "workqueue",
            in_memory=fields.get("storage") == "memory",
            keeps_old=fields.get("discard") == "new",
            max_bytes=int(fields.get("max_bytes", -1)),
            max_age_s=fields.get("max_age", 0) / SECOND_NS,
            per_subject=max(int(fields.get("max_msgs_per_subject", 0)), 0),
            expiring=bool(fields.get("allow_msg_ttl")),
            atomic=bool(fields.get("allow_atomic")),
            rollup=bool(fields.get("allow_rollup_hdrs")),
            schedules=bool(fields.get("allow_msg_schedules")),
            duplicates_s=fields.get("duplicate_window", 0) / SECOND_NS,
            sources=tuple(sources),
        )


class StreamConsumer(Protocol):
    """What a stream needs from its consumers."""

    name: str

    @property
    def settings(self) -> ConsumerSettings | None:
        """The settings of a pull consumer; None for a push consumer."""
        ...

    def signal(self) -> None:
        """There may be something to deliver."""
        ...

    def forget(self, sequence: int) -> None:
        """The message was removed."""
        ...

    def end(self) -> None:
        """The consumer was deleted."""
        ...


class StreamWatch(Protocol):
    """Observes a stream's messages."""

    def stored(self, store: StreamStore, message: StreamMessage) -> None: ...

    def expired(self, store: StreamStore, message: StreamMessage) -> None: ...

    def running(self) -> bool:
        """Whether storage works. While it does not, nothing is delivered and no schedule fires."""
        ...

    def still(self) -> bool:
        """Whether expiry is paused."""
        ...


@dataclass(slots=True)
class _OpenBatch:
    began_at: float
    messages: list[Publication] = field(default_factory=list[Publication])


class StreamStore:
    """One stream.

    Args:
        context: the context for timers (the server's own).
        wall: the server's clock.
    """

    def __init__(
        self, configuration: StreamConfiguration, watch: StreamWatch, *, context: Context, wall: Callable[[], float]
    ) -> None:
        self.name = str(configuration.fields["name"])
        self.configuration = configuration
        self.created = utc_text(wall())
        self.messages: dict[int, StreamMessage] = {}
        """By sequence, in ascending order."""
        self.last_sequence = max(int(configuration.fields.get("first_seq", 0)), 1) - 1
        self.bytes = 0
        self._last_at = 0.0
        """Unix time of the last message."""
        self.consumers: dict[str, StreamConsumer] = {}
        self._watch = watch
        self.running = watch.running
        self.context = context
        self._wall = wall
        self._by_subject: dict[str, dict[int, None]] = {}
        self._ids: dict[str, tuple[int, float]] = {}
        """Sequence and time of each `Nats-Msg-Id`, oldest first."""
        self._batches: dict[str, _OpenBatch] = {}
        self._expiries: list[tuple[float, int]] = []
        self._expiry: asyncio.Handle | None = None
        """Without `when`, if uvloop was told of a time that had passed."""
        self._expiry_at = float("inf")
        self._schedules: dict[int, asyncio.Handle] = {}

    def __repr__(self) -> str:
        return f"<StreamStore {self.name} messages={len(self.messages)} consumers={len(self.consumers)}>"

    # -- reading --------------------------------------------------------------------------------------------------

    @property
    def first_sequence(self) -> int:
        return next(iter(self.messages), self.last_sequence + 1)

    def takes(self, subject: str) -> bool:
        return any(pattern.matches(subject) for pattern in self.configuration.patterns)

    def counts(self, pattern: SubjectPattern) -> dict[str, int]:
        return {subject: len(found) for subject, found in self._by_subject.items() if pattern.matches(subject)}

    def after(self, sequence: int, *patterns: SubjectPattern) -> Iterator[StreamMessage]:
        """Stored messages from `sequence` on that match one of the patterns."""
        for number in range(max(sequence, self.first_sequence), self.last_sequence + 1):
            message = self.messages.get(number)
            if message is not None and any(pattern.matches(message.subject) for pattern in patterns):
                yield message

    def last(self, pattern: str) -> StreamMessage | None:
        found = self._by_subject.get(pattern)  # a pattern is no subject
        if found:
            return self.messages[next(reversed(found))]
        newest = self.newest(SubjectPattern(pattern)) if pattern.endswith(".>") else []
        return self.messages[newest[-1]] if newest else None

    def newest(self, *patterns: SubjectPattern) -> list[int]:
        """Sequences of the last message of each subject that matches."""
        return sorted(
            next(reversed(found))
            for subject, found in self._by_subject.items()
            if any(pattern.matches(subject) for pattern in patterns)
        )

    # -- writing --------------------------------------------------------------------------------------------------

    def publish(self, subject: str, data: bytes, headers: Mapping[str, str] | None) -> tuple[int, bool]:
        """Store a message; returns its sequence, and whether it is a duplicate.

        Raises:
            JetStreamRefusal: a condition is not met, the stream is full, or a header is invalid.
        """
        headers = dict(headers) if headers else {}
        known = self._known(headers[_MESSAGE_ID]) if _MESSAGE_ID in headers else 0
        if known:
            return known, True
        message = subject, data, headers
        self._check(message)
        return self._take(message).sequence, False

    def batch(self, subject: str, data: bytes, headers: Mapping[str, str]) -> list[Publication]:
        """Take one message of an atomic batch. The last one stores and returns all of them; before that, returns none.

        Raises:
            JetStreamRefusal: as `publish`; nothing is stored.
        """
        if not self.configuration.atomic:
            raise JetStreamRefusal(10174, "atomic publish is disabled")
        now, name, number = server_time(), headers[_BATCH], int(headers[_BATCH_SEQUENCE])
        for old in [each for each, batch in self._batches.items() if now - batch.began_at > _BATCH_LASTS_S]:
            del self._batches[old]
        batch = _OpenBatch(now) if number == 1 else self._batches.pop(name, None)
        if batch is None or number != len(batch.messages) + 1 or number > _MAX_BATCH:
            raise JetStreamRefusal(10176, "atomic publish batch is incomplete")
        batch.messages.append((subject, data, dict(headers)))
        if _BATCH_COMMIT not in headers:
            self._batches[name] = batch
            return []
        for message in batch.messages:
            self._check(message)
        for message in batch.messages:
            self._take(message)
        return batch.messages

    def _check(self, message: Publication) -> None:
        subject, data, headers = message
        configuration = self.configuration
        expected = headers.get(EXPECTED)
        if expected is not None:
            last = self.last(headers.get(EXPECTED_OF, subject))
            sequence = 0 if last is None else last.sequence
            if int(expected) != sequence:
                raise JetStreamRefusal(10071, f"wrong last sequence: {sequence}")
        if _ROLLUP in headers and not configuration.rollup:
            raise JetStreamRefusal(10111, "rollup not permitted")
        self._schedule_of(headers)
        if _ttl_of(headers) is not None and not configuration.expiring:
            raise JetStreamRefusal(10166, "per-message TTL is disabled")
        if configuration.keeps_old and 0 <= configuration.max_bytes < self.bytes + len(subject) + len(data):
            raise JetStreamRefusal(10077, "maximum bytes exceeded", status=503)

    def _take(self, publication: Publication) -> StreamMessage:
        subject, data, headers = publication
        schedule = self._schedule_of(headers)
        if schedule is not None:
            headers[_ROLLUP] = "sub"  # each subject has at most one schedule
        if _ROLLUP in headers:
            self.purge(SubjectPattern(subject if headers[_ROLLUP] == "sub" else ">"))
        message = self._store(subject, data, headers, _ttl_of(headers))
        if schedule is not None:
            self._arm(message.sequence, schedule, self._wall(), server_time())
        return message

    def _store(self, subject: str, data: bytes, headers: dict[str, str], ttl_s: float | None) -> StreamMessage:
        now, configuration = server_time(), self.configuration
        self.last_sequence += 1
        message = StreamMessage(
            subject=subject, data=data, headers=headers or None, sequence=self.last_sequence, at=self._wall()
        )
        self._last_at = message.at
        self.messages[message.sequence] = message
        same = self._by_subject.setdefault(subject, {})
        same[message.sequence] = None
        self.bytes += _size(message)
        name = headers.get(_MESSAGE_ID)
        if name:
            self._ids[name] = (message.sequence, now)
        if ttl_s is not None:
            self._expire_at(now + ttl_s, message.sequence)
        if configuration.max_age_s:
            self._expire_at(now + configuration.max_age_s, message.sequence)
        if configuration.per_subject and len(same) > configuration.per_subject:
            self.remove(next(iter(same)))
        while configuration.max_bytes >= 0 and self.bytes > configuration.max_bytes and len(self.messages) > 1:
            self.remove(self.first_sequence)
        self._watch.stored(self, message)
        for consumer in list(self.consumers.values()):
            consumer.signal()
        return message

    def take_from(self, name: str, message: StreamMessage) -> None:
        """Store a message of another stream, if that is a source of this one."""
        for source in self.configuration.sources:
            if source.name == name and source.subjects.matches(message.subject):
                headers = {**(message.headers or {}), _SOURCE: f"{name} {message.sequence}"}
                self._store(source.subject(message.subject), message.data, headers, None)

    def resume_source(self, source: SourceConfiguration, origin: StreamStore) -> None:
        """Take what the source has stored since, like a new leader without memory.

        It continues after the last message of the source that this stream still has. If there is none, it begins at the
        configured start. Without that, it begins at the time of its own last message, and loses what came before.
        """
        taken = next(self._taken_from(source.name), 0)
        since = 0.0 if taken or source.start or self.first_sequence == 1 else self._last_at
        for message in list(origin.after(taken + 1 if taken else source.start, source.subjects)):
            if message.at >= since:
                self.take_from(source.name, message)

    def _taken_from(self, name: str) -> Iterator[int]:
        """Sequences of a source's messages that are still stored here, newest first."""
        for message in reversed(self.messages.values()):
            origin, _, sequence = (message.headers or {}).get(_SOURCE, "").partition(" ")
            if origin == name:
                yield int(sequence)

    def _known(self, name: str) -> int:
        """The sequence of the message with this id within the duplicate window; 0: there is none."""
        before = server_time() - self.configuration.duplicates_s
        while self._ids:
            oldest = next(iter(self._ids))
            if self._ids[oldest][1] > before:
                break
            del self._ids[oldest]
        return self._ids[name][0] if name in self._ids else 0

    def forget_removed(self) -> None:
        """The server restarts: it reads the ids from the messages that are stored."""
        self._ids = {name: known for name, known in self._ids.items() if known[0] in self.messages}

    def remove(self, sequence: int) -> bool:
        message = self.messages.pop(sequence, None)
        if message is None:
            return False
        self.bytes -= _size(message)
        found = self._by_subject[message.subject]
        del found[sequence]
        if not found:
            del self._by_subject[message.subject]
        timer = self._schedules.pop(sequence, None)
        if timer is not None:
            timer.cancel()
        for consumer in self.consumers.values():
            consumer.forget(sequence)
        return True

    def purge(self, pattern: SubjectPattern, before: int | None = None) -> int:
        gone = [
            number
            for subject, found in self._by_subject.items()
            if pattern.matches(subject)
            for number in found
            if before is None or number < before
        ]
        for number in gone:
            self.remove(number)
        return len(gone)

    def skip_to(self, sequence: int) -> None:
        """Give the next message at least this sequence."""
        self.last_sequence = max(self.last_sequence, sequence - 1)

    # -- expiry ---------------------------------------------------------------------------------------------------

    def _expire_at(self, when: float, sequence: int) -> None:
        heapq.heappush(self._expiries, (when, sequence))
        if self._expiries[0][0] < self._expiry_at:
            self._await_expiry()

    def _await_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry, self._expiry_at = None, float("inf")
        while self._expiries and self._expiries[0][1] not in self.messages:
            heapq.heappop(self._expiries)
        if self._expiries:
            self._expiry_at = self._expiries[0][0]
            self._expiry = asyncio.get_running_loop().call_at(self._expiry_at, self.expire, context=self.context)

    def expire(self) -> None:
        """Remove expired messages. While expiry is paused, this does nothing: call it again afterwards."""
        if self._watch.still():
            return
        now = server_time()
        while self._expiries and self._expiries[0][0] <= now:
            sequence = heapq.heappop(self._expiries)[1]
            message = self.messages.get(sequence)
            if message is not None:
                self.remove(sequence)
                self._watch.expired(self, message)
        self._await_expiry()

    # -- schedules ------------------------------------------------------------------------------------------------

    def _schedule_of(self, headers: Mapping[str, str]) -> CronSchedule | None:
        text = headers.get(_SCHEDULE)
        if not text:
            return None
        if not self.configuration.schedules:
            raise JetStreamRefusal(10188, "message schedules is disabled")
        try:
            schedule = parse_schedule(text, headers.get("Nats-Schedule-Time-Zone", ""))
        except InvalidSchedule as error:
            raise JetStreamRefusal(10189, f"message schedules pattern is invalid: {error.message}") from None
        target = headers.get(_TARGET, "")
        if not target or not self.takes(target):
            raise JetStreamRefusal(10190, "message schedules target is invalid")
        return schedule

    def _arm(self, sequence: int, schedule: CronSchedule, wall: float, at: float) -> None:
        """Set the timer. `wall` and `at` are the same moment on the clock and on the loop: a clock that stops or jumps
        must not change the interval between two firings."""
        when = schedule.next(wall)
        if when is None:
            return
        due = at + (when - wall)
        self._schedules[sequence] = asyncio.get_running_loop().call_at(
            due, self._fire, sequence, schedule, when, due, context=self.context
        )

    def _fire(self, sequence: int, schedule: CronSchedule, wall: float, at: float) -> None:
        loop = asyncio.get_running_loop()
        if not self.running():
            again = loop.time() + _HOLD_OFF_S
            self._schedules[sequence] = loop.call_at(
                again, self._fire, sequence, schedule, wall, again, context=self.context
            )
            return
        message = self.messages[sequence]
        stored = dict(message.headers or {})
        headers = {
            name: value
            for name, value in stored.items()
            if not name.startswith((_SCHEDULE, "Nats-Expected-")) and name not in (_ROLLUP, _MESSAGE_ID, _TTL)
        }
        following = schedule.next(wall)
        headers["Nats-Scheduler"] = message.subject
        if schedule.once or following is None:
            headers["Nats-Schedule-Next"] = "purge"
            self.remove(sequence)
        else:
            headers["Nats-Schedule-Next"] = datetime.fromtimestamp(following, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            self._arm(sequence, schedule, wall, at)
        ttl = stored.get("Nats-Schedule-TTL")
        if ttl:
            headers[_TTL] = ttl
        self._store(stored[_TARGET], message.data, headers, _ttl_of(headers))

    # -- consumers ------------------------------------------------------------------------------------------------

    def pull_consumers(self) -> list[ConsumerSettings]:
        return [each.settings for each in self.consumers.values() if each.settings is not None]

    def drop_consumer(self, name: str) -> bool:
        found = self.consumers.pop(name, None)
        if found is None:
            return False
        found.end()
        return True

    def acknowledged(self, sequence: int) -> None:
        """A consumer has acknowledged the message."""
        if self.configuration.work_queue:
            self.remove(sequence)

    def resume(self) -> None:
        """Storage works again: deliver."""
        for consumer in list(self.consumers.values()):
            consumer.signal()

    def discard(self) -> None:
        """The stream is deleted: stop its timers and consumers."""
        for name in list(self.consumers):
            self.drop_consumer(name)
        for timer in self._schedules.values():
            timer.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        self.messages.clear()
        self._by_subject.clear()


def utc_text(wall: float) -> str:
    """A Unix time as the server writes it."""
    return f"{datetime.fromtimestamp(wall, UTC).replace(tzinfo=None).isoformat()}Z"


def _size(message: StreamMessage) -> int:
    """About what a file store counts: record header, subject, headers, body."""
    headers = sum(len(name) + len(value) + 4 for name, value in (message.headers or {}).items())
    return 22 + 8 + len(message.subject) + headers + len(message.data)


def _ttl_of(headers: Mapping[str, str]) -> float | None:
    text = headers.get(_TTL)
    if text is None or text == "never":
        return None
    try:
        ttl_s = float(text) if text.isdecimal() else parse_go_duration(text)
    except ValueError:
        ttl_s = 0.0
    if ttl_s < 1:
        raise JetStreamRefusal(10165, "invalid per-message TTL")
    return float(math.floor(ttl_s))


_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(h|ms|us|µs|ns|m|s)")
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def parse_go_duration(text: str) -> float:
    """Seconds of a duration as Go writes it, such as `1h30m` or `500ms`.

    Raises:
        ValueError: it is none.
    """
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text[:40]!r} is not a duration: write 10s, 5m or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
