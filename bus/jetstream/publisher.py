"""Publishes to a stream: many acknowledgements can be pending, with a single timer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...schemas.errors.base import ClosedError, GanglineError, InvalidName, MalformedMessage, Unavailable
from ...schemas.wire.codec import from_json
from ...schemas.wire.headers import sent_again
from ..port.bus import Message, NoResponders, Publication, Published, PublishRefused, RequestTimeout, StorageUnavailable
from ..port.subjects import SubjectPattern
from .api import ApiError, parse_answer

if TYPE_CHECKING:
    from .api import Transport
    from .stream_admin import StreamAdmin

_TICK_S: Final = 0.25
"""Precision of timeouts."""
_SILENCE_S: Final = 1.0
"""After this long without an answer, check whether the stream still exists: another subscriber on the subject prevents
a "no responders"."""
_NO_LEADER_S: Final = 1.0
"""How long to retry a stream without a leader; a step-down takes at most half of that."""
_RETRY_S: Final = 0.05
_PIPELINE: Final = 256
"""After this many messages in one turn, wait until the connection takes more."""


class _StreamMade(Exception):
    """The stream did not exist; it has been created and lacks the message."""


class Publisher:
    """Publications to one stream.

    Each is a request. The connection's counter identifies the answers, and one timer for all handles timeouts.
    """

    def __init__(
        self, bus: Transport, name: str, upkeep: StreamAdmin, subjects: tuple[str, ...], *, keeps_old: bool = False
    ) -> None:
        self._bus = bus
        self._name = name
        self._upkeep = upkeep
        self._keeps_old = keeps_old
        self._shortage = bus.api.shortage
        self._loop = asyncio.get_running_loop()
        self._patterns = [SubjectPattern(text) for text in subjects]
        self._under: tuple[str, ...] = tuple(text[:-1] for text in subjects if text.endswith(".>") and "*" not in text)
        self._flights: dict[asyncio.Future[Message], tuple[float, float]] = {}
        """When each was sent, and its deadline; oldest first."""
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None

    async def publish(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None, timeout_s: float | None
    ) -> Published:
        """See port.Stream.publish."""
        self._check_subject(subject)
        start = self._loop.time()
        deadline = start + self._patience_s(timeout_s)
        earlier = False
        """The server knows an earlier attempt with this id, which may still be stored."""
        while True:
            if not self._upkeep.exists and not self._upkeep.only_read:
                await self._upkeep.ensure()
            try:
                return self._published(await self._send(subject, data, headers, deadline))
            except NoResponders as error:
                if self._upkeep.only_read and not earlier:
                    # The first message makes it. Who may not publish has been told so, without waiting for one who may.
                    await self._upkeep.ensure(look=True)
                    continue
                await self._without_leader(start, deadline, error, earlier)
            except _StreamMade:
                headers = sent_again(headers or {})
                continue
            except ApiError as error:
                earlier = earlier or error.busy
                if not error.busy:
                    self._note(error)
                    raise self._judged(error, earlier) from error
                headers = sent_again(headers or {})
                if self._loop.time() + _RETRY_S > deadline:
                    raise self._in_doubt(subject) from error
                await asyncio.sleep(_RETRY_S)

    async def publish_many(
        self, messages: Sequence[Publication], timeout_s: float | None
    ) -> list[Published | GanglineError]:
        """See port.Stream.publish_many."""
        if not self._upkeep.exists:
            await self._upkeep.ensure()
        found: list[Published | GanglineError] = []
        under_way: list[tuple[str, asyncio.Future[Message]] | GanglineError] = []
        try:
            for number, (subject, data, headers) in enumerate(messages, 1):
                try:
                    if number % _PIPELINE == 0:
                        await self._bus.writable()
                    self._check_subject(subject)
                    deadline = self._loop.time() + self._patience_s(timeout_s)
                    under_way.append(self._start(subject, data, headers, deadline))
                except GanglineError as error:
                    under_way.append(error)
            for flight, message in zip(under_way, messages, strict=True):
                found.append(flight if isinstance(flight, GanglineError) else await self._outcome(flight[1], message))
            return found
        finally:
            for flight in under_way:
                if not isinstance(flight, GanglineError):
                    self._end(*flight)

    async def _outcome(self, future: asyncio.Future[Message], message: Publication) -> Published | GanglineError:
        try:
            return self._published(await future)
        except (NoResponders, _StreamMade) as error:
            return self._leaderless(may_have_started=isinstance(error, _StreamMade))
        except RequestTimeout:
            return self._in_doubt(message.subject)
        except ApiError as error:
            self._note(error)
            return self._in_doubt(message.subject) if error.busy else self._judged(error, False)
        except GanglineError as error:
            return error

    def _check_subject(self, subject: str) -> None:
        if not subject.startswith(self._under or "\0") and not any(one.matches(subject) for one in self._patterns):
            raise InvalidName(f"stream {self._name!r} does not take {subject!r}: see its subjects")

    def _patience_s(self, timeout_s: float | None) -> float:
        return self._bus.api.timeout_s if timeout_s is None else timeout_s

    async def _send(self, subject: str, data: bytes, headers: Mapping[str, str] | None, deadline: float) -> Message:
        reply, future = self._start(subject, data, headers, deadline)
        try:
            return await future
        except RequestTimeout as error:
            raise self._in_doubt(subject) from error
        finally:
            self._end(reply, future)

    def _start(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None, deadline: float
    ) -> tuple[str, asyncio.Future[Message]]:
        reply, future = self._bus.start_request(subject, data, headers=headers)
        self._flights[future] = (self._loop.time(), deadline)
        if self._timer is None:
            self._timer = self._loop.call_later(_TICK_S, self._tick)
        return reply, future

    def _end(self, reply: str, future: asyncio.Future[Message]) -> None:
        del self._flights[future]
        self._bus.forget_request(reply)

    def _in_doubt(self, subject: str) -> StorageUnavailable:
        return StorageUnavailable(
            f"stream {self._name!r} did not acknowledge a message to {subject!r} in time: it may have been stored; "
            f"give it a Nats-Msg-Id and try again"
        )

    def _published(self, answer: Message) -> Published:
        body = _plain(answer.data) or parse_answer(answer, f"store a message in {self._name}")
        if body.get("stream") != self._name:
            raise StorageUnavailable(
                f"stream {body.get('stream')!r} took a message for {self._name!r}: they have subjects in common"
            )
        if self._shortage.refusals:
            self._shortage.stored(self._upkeep.label)
        return Published(sequence=int(body["seq"]), duplicate=bool(body.get("duplicate")))

    def _note(self, error: ApiError) -> None:
        """Remember that there is no room. A full queue refuses what is new, which is as it should be."""
        if error.full and not (self._keeps_old and error.at_limit):
            self._shortage.refused(self._upkeep.label, error)

    @staticmethod
    def _judged(error: ApiError, earlier: bool) -> Unavailable:
        """The server's error as an error that says whether to try again."""
        status = error.details.get("status")
        if error.temporary or not isinstance(status, int) or not 400 <= status < 500:
            return StorageUnavailable(error.message, details=error.details, may_have_started=earlier)
        return PublishRefused(error.message, details=error.details)

    async def _without_leader(self, start: float, deadline: float, error: NoResponders, earlier: bool) -> None:
        now = self._loop.time()
        if now - start >= _NO_LEADER_S or now + _RETRY_S > deadline:
            raise self._leaderless(may_have_started=earlier) from error
        if not await self._upkeep.restore(min(_SILENCE_S, deadline - now)):
            await asyncio.sleep(_RETRY_S)

    def _leaderless(self, *, may_have_started: bool) -> StorageUnavailable:
        return StorageUnavailable(
            f"stream {self._name!r} has no leader right now: try again", may_have_started=may_have_started
        )

    # -- time -----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._timer = None
        if not self._flights:
            return
        now = self._loop.time()
        for future, (_, deadline) in self._flights.items():
            if deadline <= now and not future.done():
                future.set_exception(RequestTimeout("no acknowledgement in time"))
        oldest, _ = next(iter(self._flights.values()))
        if now - oldest >= _SILENCE_S and self._looking is None and self._bus.connected:
            self._looking = self._loop.create_task(self._look(now))
        self._timer = self._loop.call_later(_TICK_S, self._tick)

    async def _look(self, before: float) -> None:
        try:
            if await self._upkeep.restore(_SILENCE_S):
                for future, (sent_at, _) in self._flights.items():
                    if sent_at <= before and not future.done():
                        future.set_exception(_StreamMade())
        except (Unavailable, ClosedError):
            pass  # the waiting publishers get an error of their own
        finally:
            self._looking = None

    def stop(self) -> None:
        """The bus is closing."""
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()


def _plain(data: bytes) -> dict[str, Any] | None:
    """A plain acknowledgement; None: parse it fully."""
    if not data.startswith(b'{"stream":'):
        return None
    try:
        found = from_json(data)
    except MalformedMessage:
        return None
    return found if isinstance(found, dict) and "error" not in found else None
