"""The server's side of an in-memory stream: messages, limits, duplicates, expiry, schedules."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Iterator, Mapping
from contextvars import Context
from datetime import UTC, datetime
from typing import Final

from ..port.bus import (
    ConsumerSettings,
    ConsumerTaken,
    Published,
    PublishRefused,
    Retention,
    StorageUnavailable,
    StreamMessage,
    StreamSettings,
    StreamSource,
)
from ..port.subjects import SubjectPattern, overlap
from .consumer_store import ConsumerStore
from .faults import server_time
from .schedules import CronSchedule, parse_go_duration, parse_schedule

_SCHEDULE: Final = "Nats-Schedule"
_TARGET: Final = "Nats-Schedule-Target"
_TTL: Final = "Nats-TTL"
_ROLLUP: Final = "Nats-Rollup"
_SOURCE: Final = "Nats-Stream-Source"
_HOLD_OFF_S: Final = 0.25


class StreamStore:
    """One stream.

    Args:
        context: in which timers run (the server's own).
        wall: the server's clock.
        on_stored: told of each new message.
        running: whether storage works right now; nothing is delivered and no schedule is due while it does not.
    """

    def __init__(
        self,
        name: str,
        settings: StreamSettings,
        *,
        context: Context,
        wall: Callable[[], float],
        on_stored: Callable[[StreamStore, StreamMessage], None],
        running: Callable[[], bool],
    ) -> None:
        self.name = name
        self.settings = settings
        self.messages: dict[int, StreamMessage] = {}
        """In the order of their sequences."""
        self.last_sequence = 0
        self.bytes = 0
        self._last_at = 0.0
        """When the last message was stored."""
        self.consumers: dict[str, ConsumerStore] = {}
        self._patterns = [SubjectPattern(text) for text in settings.subjects]
        self._context = context
        self._wall = wall
        self._on_stored = on_stored
        self.running = running
        self._by_subject: dict[str, dict[int, None]] = {}
        self._ids: dict[str, tuple[int, float]] = {}
        """Sequence and time of each `Nats-Msg-Id`, the oldest first."""
        self._expiries: list[tuple[float, int]] = []
        self._expiry: asyncio.TimerHandle | None = None
        self._schedules: dict[int, asyncio.TimerHandle] = {}

    def __repr__(self) -> str:
        return f"<StreamStore {self.name} messages={len(self.messages)} consumers={len(self.consumers)}>"

    # -- reading --------------------------------------------------------------------------------------------------

    @property
    def first_sequence(self) -> int:
        return next(iter(self.messages), self.last_sequence + 1)

    def takes(self, subject: str) -> bool:
        return any(pattern.matches(subject) for pattern in self._patterns)

    def counts(self, pattern: SubjectPattern) -> dict[str, int]:
        return {subject: len(found) for subject, found in self._by_subject.items() if pattern.matches(subject)}

    def after(self, sequence: int, pattern: SubjectPattern) -> Iterator[StreamMessage]:
        """Messages from `sequence` on that match, as they are now."""
        for number in range(max(sequence, self.first_sequence), self.last_sequence + 1):
            message = self.messages.get(number)
            if message is not None and pattern.matches(message.subject):
                yield message

    def last(self, subject: str) -> StreamMessage | None:
        found = self._by_subject.get(subject)
        return self.messages[next(reversed(found))] if found else None

    # -- writing --------------------------------------------------------------------------------------------------

    def publish(self, subject: str, data: bytes, headers: Mapping[str, str] | None) -> Published:
        """Store a message.

        Raises:
            Refused: headers that the server does not take.
        """
        headers = dict(headers) if headers else {}
        if headers.get(_ROLLUP) and not self.settings.schedules:
            raise _refused("rollup not permitted", 10111)
        schedule = self._schedule_of(headers)
        ttl_s = _ttl_of(headers)
        if ttl_s is not None and not self.settings.expiring:
            raise _refused("per-message TTL is disabled", 10166)
        known = self._known(headers.get("Nats-Msg-Id", ""))
        if known:
            return Published(sequence=known, duplicate=True)
        settings = self.settings
        if settings.keeps_old and 0 <= settings.max_bytes < self.bytes + len(subject) + len(data):
            raise StorageUnavailable(f"the stream {self.name} is full: try again", may_have_started=False)
        if schedule is not None:
            self.purge(SubjectPattern(subject))  # one schedule for each subject
            headers[_ROLLUP] = "sub"
        message = self._store(subject, data, headers, ttl_s)
        if schedule is not None:
            self._arm(message.sequence, schedule, self._wall(), server_time())
        return Published(sequence=message.sequence)

    def _store(self, subject: str, data: bytes, headers: dict[str, str], ttl_s: float | None) -> StreamMessage:
        now = server_time()
        self.last_sequence += 1
        message = StreamMessage(
            subject=subject, data=data, headers=headers or None, sequence=self.last_sequence, at=self._wall()
        )
        self._last_at = message.at
        self.messages[message.sequence] = message
        self._by_subject.setdefault(subject, {})[message.sequence] = None
        self.bytes += _size(message)
        name = headers.get("Nats-Msg-Id", "")
        if name:
            self._ids[name] = (message.sequence, now)
        if ttl_s is not None:
            self._expire_at(now + ttl_s, message.sequence)
        if self.settings.max_age_s:
            self._expire_at(now + self.settings.max_age_s, message.sequence)
        while self.settings.max_bytes >= 0 and self.bytes > self.settings.max_bytes and len(self.messages) > 1:
            self.remove(self.first_sequence)
        self._on_stored(self, message)
        for consumer in list(self.consumers.values()):
            consumer.signal()
        return message

    def take_from(self, name: str, message: StreamMessage) -> None:
        """Another stream has stored a message: so do we, if that is our source."""
        for source in self.settings.sources:
            if source.name == name and SubjectPattern(source.subjects).matches(message.subject):
                headers = {**(message.headers or {}), _SOURCE: f"{name} {message.sequence}"}
                subject = source.to[:-1] + message.subject[len(source.subjects) - 1 :]
                self._store(subject, message.data, headers, None)

    def resume_source(self, source: StreamSource, origin: StreamStore) -> None:
        """Take what the source has stored since, as a new leader does that remembers nothing.

        It continues after the last message from there that this stream still has. If there is none, it begins at the
        configured start, and without one at the time of its own last message, whatever it has missed before.
        """
        taken = next(self._taken_from(source.name), 0)
        since = 0.0 if taken or source.start or self.first_sequence == 1 else self._last_at
        for message in list(origin.after(taken + 1 if taken else source.start, SubjectPattern(source.subjects))):
            if message.at >= since:
                self.take_from(source.name, message)

    def _taken_from(self, name: str) -> Iterator[int]:
        """Sequences of a source's messages that are still here, from the last one."""
        for message in reversed(self.messages.values()):
            origin, _, sequence = (message.headers or {}).get(_SOURCE, "").partition(" ")
            if origin == name:
                yield int(sequence)

    def _known(self, name: str) -> int:
        """The sequence of the message that had this id, within the window; 0: none."""
        before = server_time() - self.settings.duplicates_s
        while self._ids:
            oldest = next(iter(self._ids))
            if self._ids[oldest][1] > before:
                break
            del self._ids[oldest]
        return self._ids[name][0] if name in self._ids else 0

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

    # -- expiry ---------------------------------------------------------------------------------------------------

    def _expire_at(self, when: float, sequence: int) -> None:
        heapq.heappush(self._expiries, (when, sequence))
        if self._expiry is None or self._expiries[0][0] < self._expiry.when():
            self._await_expiry()

    def _await_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = None
        if self._expiries:
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_at(self._expiries[0][0], self._expire, context=self._context)

    def _expire(self) -> None:
        now = server_time()
        while self._expiries and self._expiries[0][0] <= now:
            self.remove(heapq.heappop(self._expiries)[1])
        self._await_expiry()

    # -- schedules ------------------------------------------------------------------------------------------------

    def _schedule_of(self, headers: Mapping[str, str]) -> CronSchedule | None:
        text = headers.get(_SCHEDULE)
        if not text:
            return None
        if not self.settings.schedules:
            raise _refused("message schedules is disabled", 10188)
        try:
            schedule = parse_schedule(text, headers.get("Nats-Schedule-Time-Zone", ""))
        except ValueError as error:
            raise _refused(f"message schedules pattern is invalid: {error}", 10189) from None
        target = headers.get(_TARGET, "")
        if not target or not self.takes(target):
            raise _refused("message schedules target is invalid", 10190)
        return schedule

    def _arm(self, sequence: int, schedule: CronSchedule, wall: float, at: float) -> None:
        """`wall` and `at` are the same moment, by the clock and by the loop: a clock that stands still or jumps must
        not change how far apart two firings are."""
        when = schedule.next(wall)
        if when is None:
            return
        self._schedules[sequence] = asyncio.get_running_loop().call_at(
            at + (when - wall), self._fire, sequence, schedule, when, context=self._context
        )

    def _fire(self, sequence: int, schedule: CronSchedule, wall: float) -> None:
        loop = asyncio.get_running_loop()
        if not self.running():
            self._schedules[sequence] = loop.call_later(
                _HOLD_OFF_S, self._fire, sequence, schedule, wall, context=self._context
            )
            return
        message = self.messages[sequence]
        stored = dict(message.headers or {})
        headers = {
            name: value
            for name, value in stored.items()
            if not name.startswith(_SCHEDULE) and name not in (_ROLLUP, "Nats-Msg-Id", _TTL)
        }
        following = schedule.next(wall)
        headers["Nats-Scheduler"] = message.subject
        if schedule.once or following is None:
            headers["Nats-Schedule-Next"] = "purge"
            self.remove(sequence)
        else:
            headers["Nats-Schedule-Next"] = datetime.fromtimestamp(following, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            self._arm(sequence, schedule, wall, self._schedules[sequence].when())
        ttl = stored.get("Nats-Schedule-TTL")
        if ttl:
            headers[_TTL] = ttl
        self._store(stored[_TARGET], message.data, headers, _ttl_of(headers))

    # -- consumers ------------------------------------------------------------------------------------------------

    def consume(self, name: str, settings: ConsumerSettings) -> ConsumerStore:
        """The consumer of that name, or a new one.

        Raises:
            ConsumerTaken: another one has these subjects, or the one of that name has others.
        """
        found = self.consumers.get(name)
        if found is not None:
            if found.settings.filter != settings.filter:
                raise ConsumerTaken(
                    f"consumer {name!r} of {self.name} exists with the filter {found.settings.filter!r}, not "
                    f"{settings.filter!r}: remove it first, or choose another name"
                )
            return found
        if self.settings.retention is Retention.WORK_QUEUE:
            for other in self.consumers.values():
                if overlap(other.settings.filter, settings.filter):
                    raise ConsumerTaken(
                        f"another consumer of {self.name} overlaps {settings.filter!r}: remove it first "
                        f"(Stream.delete_consumer), or wait until it is gone",
                        details={"stream": self.name, "filter": settings.filter},
                    )
        made = ConsumerStore(self, name, settings, self._context)
        self.consumers[name] = made
        return made

    def drop_consumer(self, name: str) -> bool:
        found = self.consumers.pop(name, None)
        if found is None:
            return False
        found.end()
        return True

    def acknowledged(self, sequence: int) -> None:
        """A consumer is done with it."""
        if self.settings.retention is Retention.WORK_QUEUE:
            self.remove(sequence)

    def resume(self) -> None:
        """Storage is back."""
        for consumer in list(self.consumers.values()):
            consumer.signal()

    def discard(self) -> None:
        """The stream is gone: nothing is due any more."""
        for consumer in list(self.consumers.values()):
            consumer.end()
        self.consumers.clear()
        for timer in self._schedules.values():
            timer.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        self.messages.clear()
        self._by_subject.clear()


def _size(message: StreamMessage) -> int:
    """As a file store counts, about: record header, subject, headers, body."""
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
        raise _refused("invalid per-message TTL", 10165)
    return float(math.floor(ttl_s))


def _refused(text: str, number: int) -> PublishRefused:
    return PublishRefused(
        f"JetStream refused to store a message: {text} (error {number})", details={"err_code": number}
    )
