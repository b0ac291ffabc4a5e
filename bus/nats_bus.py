"""The bus on a real nats-server: `connect` and what it returns."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ..runtime.clock import Environment
from ..runtime.tasks import LoopBound, TaskSet, set_within
from ..schemas.errors.base import ClosedError, Disconnected, GanglineError, InvalidName, PayloadTooLarge
from .jetstream.api import JetStreamApi
from .key_value.bucket import NatsKeyValue
from .nats_client.client import BufferedNatsClient, NatsSubscription
from .nats_client.connect import ConnectFailure, cause_of, explain, open_client
from .nats_client.protocol import MAX_SUBJECT_BYTES, encode_headers, publication, publications
from .nats_client.refusals_core import RefusalTable, Right, SubjectRefusal
from .nats_client.request_reply import ReplyMultiplexer
from .port.bus import (
    HIGH_WATER_BYTES,
    Answered,
    BucketSettings,
    ConnectionEvent,
    Handler,
    Message,
    NotPermitted,
    ObjectStore,
    RequestTimeout,
    Stream,
    StreamSettings,
)
from .settings.connection import ConnectionSettings
from .storage import OpenedStorage

log = logging.getLogger("gangline.bus")

_FLUSH_TIMEOUT_S: Final = 5.0
_AGAIN_S: Final = 0.05
_SAY_AGAIN_S: Final = 60.0
_MAX_CHECKED_SUBJECTS: Final = 4096
_MAX_PUBLISHED_BYTES: Final = MAX_SUBJECT_BYTES // 2
"""Half for the subject, half for the reply subject."""
_MAX_SIBLING_CHARS: Final = _MAX_PUBLISHED_BYTES // 4
"""No character takes more than four bytes."""
_PLAIN_SUBJECT: Final = re.compile(r"[-$\w]++(\.[-$\w]++)*+", re.ASCII)
"""Quick check for valid subjects without wildcards."""
_BAD_SUBJECT: Final = re.compile(r"[\s\x00-\x1f\x7f]|^\.|\.$|\.\.")
_WILDCARD: Final = re.compile(r"(^|\.)[*>](\.|$)")
_MISPLACED: Final = re.compile(r"(^|\.)>\.")
_VIOLATION: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"', re.IGNORECASE)


async def connect(
    settings: ConnectionSettings | None = None, *, name: str = "", ambient: Environment | None = None
) -> NatsBus:
    """Connect to the first server that accepts us.

    Args:
        settings: how to connect; `ConnectionSettings()` means the default address without an identity.
        name: shown in the server's connection list.
        ambient: source of the inbox's name.

    Raises:
        ServerUnreachable: no server answered within `settings.connect_timeout_s`, or the identity was refused; the text
        has the tried addresses and the cause.
        InvalidSettings: a credentials, nkey or TLS file cannot be used.
        NotPermitted: this user may not subscribe to its own inbox.

    Cancelling closes the connection.
    """
    settings = settings or ConnectionSettings()
    bus = NatsBus(settings, name=name or settings.name, ambient=ambient or Environment())
    await bus._open()
    return bus


class NatsBus(LoopBound):
    """A connection to NATS; implements port.Bus. Created by `connect`."""

    def __init__(self, settings: ConnectionSettings, *, name: str, ambient: Environment) -> None:
        self.name = name
        self.settings = settings
        self.ambient = ambient
        self.inbox = f"{settings.inbox_prefix}.{ambient.token()}"
        self.bind_loop()
        # A different level from `<inbox>.*`, to which callers subscribe.
        self._replies = ReplyMultiplexer(f"{self.inbox}.r", self.loop, ambient.token)
        self._checked: dict[str, int] = {}
        """Subjects that may be published to, and all but their last parts, so that each is checked only once. Limited
        in number. With the number of pings sent before."""
        self._listeners: dict[object, Callable[[ConnectionEvent], None]] = {}
        self._opened = OpenedStorage(self)
        self._closed = False
        self._refusals = RefusalTable()
        self._untold: set[str] = set()
        """Subscriptions that were refused at first, and not reported by `flush` yet."""
        self._was_open = False
        """It was connected once."""
        self._failing: ConnectFailure | None = None
        """Why the last attempt to reconnect failed."""
        self._said_at: dict[ConnectFailure, float] = {}
        """Loop time of the last warning. Of several servers, each may fail for another cause."""
        self._attempts = TaskSet("attempts at what was refused")
        self._regaining: asyncio.Future[None] | None = None
        self._look = asyncio.Event()
        """`_regaining` looks again at what is refused."""
        self._client: BufferedNatsClient
        self.api = JetStreamApi(self, timeout_s=settings.storage_timeout_s)

    async def _open(self) -> None:
        self._client = await open_client(self.settings, name=self.name, observer=self, ambient=self.ambient)
        try:
            self._client.add_subscription(self._replies.pattern, "", self._replies.receive)
            await self._first_ping()
        except BaseException:
            await self._client.shut()
            raise
        if self._refusals.get(Right.SUBSCRIBE, self._replies.pattern) is not None:
            await self.close()
            raise NotPermitted(
                f"this user may not subscribe to its inbox {self._replies.pattern!r}: set `inbox_prefix` "
                f"(--inbox-prefix) to what its permissions allow, or allow '{self.settings.inbox_prefix}.>'"
            )
        self._was_open = True

    async def _first_ping(self) -> None:
        """Wait for a server that goes down just after the handshake, as for one that has not started yet."""
        patience_s = self.settings.connect_timeout_s
        lost = Disconnected(f"the nats-server did not answer within {patience_s:g} s: it is frozen or far away")
        try:
            async with asyncio.timeout(patience_s):
                while True:
                    try:
                        return await self._client.ping(patience_s)
                    except Disconnected as error:
                        lost = error
                    await asyncio.sleep(_AGAIN_S)
        except TimeoutError:
            raise lost from None

    # -- state ----------------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self._client.ready

    @property
    def closed(self) -> bool:
        """Whether it is closed for good."""
        return self._closed

    @property
    def max_payload(self) -> int:
        return self._client.max_payload

    @property
    def server_version(self) -> str:
        """Version of the connected server, for example `2.15.1`."""
        return str(self._client.server_info.get("version", "unknown"))

    @property
    def server_place(self) -> str:
        name, domain = str(self._client.server_info.get("server_name", "?")), self.jetstream_domain
        return f"server {name!r}" + (f" of JetStream domain {domain!r}" if domain else "")

    @property
    def jetstream_domain(self) -> str:
        return str(self._client.server_info.get("domain", ""))

    def statistics(self) -> dict[str, int]:
        """Counters for operators: buffered bytes, waiting requests, reconnects."""
        return {
            "buffered_bytes": self._client.buffered_bytes,
            "waiting_requests": self._replies.waiting,
            "reconnects": int(self._client.stats["reconnects"]),
        }

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self.connected else "disconnected"
        return f"<NatsBus {self.name!r} {state} {', '.join(self.settings.safe_urls)}>"

    # -- messages -------------------------------------------------------------------------------------------------

    def publish(
        self, subject: str, data: bytes = b"", *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        if not self._client.ready:
            raise self._unusable()
        if subject not in self._checked:
            self._check_subject(subject)
        if reply and reply not in self._checked:
            self._check_subject(reply)
        self._send(subject, data, reply, headers)

    def _send(self, subject: str, data: bytes, reply: str, headers: Mapping[str, str] | None) -> None:
        block = encode_headers(headers) if headers else b""
        client = self._client
        if len(block) + len(data) > client._max_payload:
            raise PayloadTooLarge(
                f"{len(data)} bytes and {len(block)} bytes of headers for {subject!r}: the server takes "
                f"{client._max_payload} together; send less, or raise its max_payload",
                details={"size": len(block) + len(data), "limit": client._max_payload},
            )
        client.send(publication(subject, reply, data, block))

    def publish_known(self, subject: str, data: bytes, reply: str) -> None:
        """Publish to a subject that the server or we made: without checks, and without remembering it."""
        if not self._client.ready:
            raise self._unusable()
        self._send(subject, data, reply, None)

    def publish_each(self, subjects: Iterable[str], text: str) -> None:
        """`publish_known` the same ASCII text to each of these subjects, without a reply."""
        if not self._client.ready:
            raise self._unusable()
        self._client.send(publications(subjects, text))

    def _unusable(self) -> GanglineError:
        if self.forked:
            return self.elsewhere()
        if self._closed:
            return ClosedError("this connection was closed: open another one")
        return Disconnected("no connection to a nats-server right now: nothing was sent; try again when it is back")

    def _check_subject(self, subject: str) -> None:
        refusal = self._refusals.get(Right.PUBLISH, subject)
        if refusal is not None and (refusal.trying or self.loop.time() < refusal.again_at):
            raise _not_permitted(Right.PUBLISH, subject)
        # A requester has an inbox for each of its requests: another last part, behind what was checked before.
        stem, _, last = subject.rpartition(".")
        sibling = stem in self._checked and last.isalnum() and len(subject) <= _MAX_SIBLING_CHARS
        # The pattern matches nearly all others, including new keys.
        if not sibling and (len(subject) > _MAX_PUBLISHED_BYTES or _PLAIN_SUBJECT.fullmatch(subject) is None):
            if not subject or _BAD_SUBJECT.search(subject):
                raise InvalidName(f"subject {subject[:80]!r} is empty, or has spaces or empty parts")
            if _WILDCARD.search(subject):
                raise InvalidName(f"subject {subject[:80]!r} has a wildcard: publish to one subject")
            self._check_length(subject)
        if refusal is not None:  # this message is the attempt, and others are refused until its fate is known
            self._refusals.begin([refusal])
            self._attempts.start(self._confirm([refusal]))
            return
        if len(self._checked) >= _MAX_CHECKED_SUBJECTS:
            self._checked.clear()
        self._checked[subject] = pings = self._client.pings_sent
        if stem and self._refusals.get(Right.PUBLISH, stem) is None:
            self._checked.setdefault(stem, pings)

    @staticmethod
    def _check_length(subject: str) -> None:
        if len(subject.encode()) > _MAX_PUBLISHED_BYTES:
            raise InvalidName(
                f"subject {subject[:40]!r}... has {len(subject.encode())} bytes, at most {_MAX_PUBLISHED_BYTES} are "
                f"allowed: the server would close the connection"
            )

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        self._client.at_turn_end(callback)

    def prompt(self, publish: Callable[[], None]) -> None:
        self._client.prompt(publish)

    def push(self) -> None:
        self._client.push()

    async def writable(self, below_bytes: int = HIGH_WATER_BYTES) -> None:
        await self._client.writable(below_bytes)

    async def request(
        self, subject: str, data: bytes = b"", *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Message:
        reply, future = self.start_request(subject, data, headers=headers)
        try:
            return await self._replies.wait(reply, future, timeout_s)
        except RequestTimeout as error:
            error.details.setdefault("subject", subject)
            raise

    def ask(self, subject: str, data: bytes = b"", *, timeout_s: float, then: Answered) -> None:
        reply = self._replies.call(subject, then, timeout_s)
        try:
            if not self._client.ready:
                raise self._unusable()
            if subject not in self._checked:
                self._check_subject(subject)
            self._send(subject, data, reply, None)
        except GanglineError as error:
            self._replies.take_back(reply, error)

    def start_request(
        self, subject: str, data: bytes = b"", *, headers: Mapping[str, str] | None = None
    ) -> tuple[str, asyncio.Future[Message]]:
        """Publish a request, for callers with many in flight. End it with `finish_request` or `forget_request`."""
        self.check_loop()
        if not self._client.ready:
            raise self._unusable()
        if subject not in self._checked:
            self._check_subject(subject)
        reply, future = self._replies.expect(subject)
        try:
            self._send(subject, data, reply, headers)
        except BaseException:
            self._replies.forget(reply)
            raise
        return reply, future

    async def finish_request(self, reply: str, future: asyncio.Future[Message], timeout_s: float) -> Message:
        """Wait for the answer of `start_request`; errors as `request`."""
        return await self._replies.wait(reply, future, timeout_s)

    def forget_request(self, reply: str) -> None:
        """Stop waiting for the answer."""
        self._replies.forget(reply)

    def new_inbox(self) -> str:
        """A new subject to subscribe to; not guessable, even by those who know `inbox`."""
        return f"{self.inbox}.i.{self.ambient.token()}"

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> NatsSubscription:
        if not subject or _BAD_SUBJECT.search(subject) or _MISPLACED.search(subject):
            raise InvalidName(f"subject {subject[:80]!r} cannot be subscribed: empty parts, spaces or a misplaced '>'")
        if queue and _BAD_SUBJECT.search(queue):
            raise InvalidName(f"queue group {queue[:80]!r} is not a name")
        self._check_length(subject)
        self.check_loop()
        if self._closed:
            raise self._unusable()
        refusal = self._refusals.get(Right.SUBSCRIBE, subject)
        if refusal is not None and (refusal.trying or self.loop.time() < refusal.again_at):
            raise _not_permitted(Right.SUBSCRIBE, subject)
        return NatsSubscription(self._client, self._client.add_subscription(subject, queue, handler), subject)

    async def ping(self) -> None:
        self.check_loop()
        if self._closed:
            raise self._unusable()
        await self._client.ping(_FLUSH_TIMEOUT_S)

    async def flush(self) -> None:
        await self.ping()
        untold, self._untold = self._untold, set()
        if untold:
            raise _not_permitted(Right.SUBSCRIBE, *sorted(untold))

    # -- storage --------------------------------------------------------------------------------------------------

    async def bucket(self, name: str, settings: BucketSettings, *, make: bool = True) -> NatsKeyValue:
        return await self._opened.bucket(name, settings, make=make)

    async def stream(self, name: str, settings: StreamSettings, *, make: bool = True) -> Stream:
        return await self._opened.stream(name, settings, make=make)

    async def object_store(self, name: str, settings: BucketSettings) -> ObjectStore:
        return await self._opened.object_store(name, settings)

    # -- the connection's life ------------------------------------------------------------------------------------

    def on_connection(self, listener: Callable[[ConnectionEvent], None]) -> Callable[[], None]:
        key = object()
        self._listeners[key] = listener

        def stop() -> None:
            self._listeners.pop(key, None)

        return stop

    def _announce(self, event: ConnectionEvent) -> None:
        for listener in list(self._listeners.values()):
            try:
                listener(event)
            except Exception:
                log.exception("a listener of the connection failed", extra={"action": "bus.listener_failed"})

    def impairments(self) -> list[str]:
        now = self.loop.time()
        lost_rights = [f"may not {lost.right.value} {lost.subject!r} any more" for lost in self._refusals.lost(now)]
        return lost_rights + self.api.shortage.reasons()

    def on_disconnected(self, reason: str) -> None:
        """See ConnectionObserver."""
        self._refusals.begin(self._refusals.of(Right.SUBSCRIBE))  # the next connection begins with all subscriptions
        log.warning(
            "lost the connection to the nats-server (%s); trying again until it is back",
            reason,
            extra={"action": "bus.disconnected", "bus": self.name},
        )
        self._replies.fail(
            lambda _: Disconnected(
                f"the connection was lost while waiting for an answer ({reason}): the request may have arrived",
                may_have_started=True,
            )
        )
        self._announce(ConnectionEvent.DISCONNECTED)

    def on_reconnected(self) -> None:
        for refusal in self._refusals.of(Right.PUBLISH):
            refusal.again_at = self.loop.time()
        self._say_permitted(self._refusals.confirm(self._refusals.of(Right.SUBSCRIBE)))
        self._look.set()
        self._failing = None
        self._said_at.clear()
        log.info("reconnected to the nats-server", extra={"action": "bus.reconnected", "bus": self.name})
        self._announce(ConnectionEvent.RECONNECTED)

    def on_closed(self) -> None:
        self._closed = True
        self._look.set()
        self._replies.fail(lambda _: ClosedError("this connection was closed while waiting for an answer"))
        self._announce(ConnectionEvent.CLOSED)

    def on_attempt_failed(self, error: Exception) -> None:
        log.debug("could not connect: %s", error or repr(error), extra={"action": "bus.attempt_failed"})
        cause, now = cause_of(error), self.loop.time()
        before, self._failing = self._failing, cause
        if not self._was_open or cause is before or now < self._said_at.get(cause, float("-inf")) + _SAY_AGAIN_S:
            return
        self._said_at[cause] = now
        log.warning(
            "cannot reconnect, trying again: %s",
            explain(self.settings, error).message,
            extra={"action": "bus.reconnect_failed", "bus": self.name, "cause": cause.value},
        )

    def on_server_error(self, text: str) -> None:
        found = _VIOLATION.search(text)
        if found is None:
            log.error("error from the nats-server: %s", text, extra={"action": "bus.server_error", "bus": self.name})
            return
        right = Right.PUBLISH if found.group(1).lower() == "publish" else Right.SUBSCRIBE
        subject, now = found.group(2), self.loop.time()
        told = right is Right.PUBLISH and self._replies.fail(lambda _: _not_permitted(right, subject), subject=subject)
        lost = self._client.has_subscribed(subject) if right is Right.SUBSCRIBE else self._has_published(subject)
        self._refusals.sweep(now)
        refusal = self._refusals.refused(right, subject, now, lost=lost)
        if refusal is None:
            return
        # If a request was waiting for an answer from there, its caller gets the error, and may have expected it.
        refusal.loud = refusal.loud and (lost or not told)
        log.log(
            logging.ERROR if refusal.loud else logging.DEBUG,
            "%s%s",
            _forbidden(right, subject),
            "; it was allowed before, and is tried again every few seconds" if lost else "",
            extra={"action": "bus.not_permitted", "subject": subject, "bus": self.name, "told": told, "lost": lost},
        )
        if right is Right.PUBLISH:
            self._checked.pop(subject, None)  # from now on `publish` raises, too
            return
        if not lost:
            self._untold.add(subject)
        self._look.set()
        if self._regaining is None or self._regaining.done():
            self._regaining = self._attempts.start(self._regain())

    def _has_published(self, subject: str) -> bool:
        """Whether the server has ever answered after a message to this subject, which it would have refused before."""
        pings = self._checked.get(subject)
        if pings is None:
            pings = self._checked.get(subject.rpartition(".")[0])
        return pings is not None and pings < self._client.pings_answered

    async def _regain(self) -> None:
        """Subscribe again to what was refused, from time to time, until nothing is."""
        while not self._closed and (refused := self._refusals.of(Right.SUBSCRIBE)):
            self._look.clear()
            now = self.loop.time()
            due = [refusal for refusal in refused if refusal.again_at <= now] if self.connected else []
            for refusal in due:
                if not self._client.subscribe_again(refusal.subject):
                    self._refusals.forget(refusal)
            if due:
                self._refusals.begin(due)
                await self._confirm(due)
            else:
                pause_s = min(refusal.again_at for refusal in refused) - now if self.connected else None
                await (self._look.wait() if pause_s is None else set_within(self._look, pause_s))

    async def _confirm(self, attempts: list[SubjectRefusal]) -> None:
        """Wait until the server has seen these attempts."""
        try:
            await self._client.ping(_FLUSH_TIMEOUT_S)
        except (Disconnected, ClosedError):
            self._refusals.postpone(attempts, self.loop.time())
            return
        ended = self._refusals.confirm(attempts)
        self._say_permitted(ended)
        if any(refusal.right is Right.SUBSCRIBE for refusal in ended):
            # What was sent meanwhile did not reach us, as after a reconnect.
            self._announce(ConnectionEvent.RECONNECTED)

    def _say_permitted(self, ended: list[SubjectRefusal]) -> None:
        for refusal in ended:
            log.log(
                logging.INFO if refusal.loud else logging.DEBUG,
                "the nats-server permits this user again to %s %r",
                refusal.right.value,
                refusal.subject,
                extra={"action": "bus.permitted", "subject": refusal.subject, "bus": self.name},
            )

    def after_fork(self) -> None:
        """In the child: the socket is the parent's, and whatever is written to it would come between its messages."""
        super().after_fork()
        self._closed = True
        if self._was_open:
            self._client.abandon()

    async def close(self) -> None:
        if self.forked:
            return
        self._opened.stop()
        await self._client.shut()
        await self._attempts.stop()


def _not_permitted(right: Right, *subjects: str) -> NotPermitted:
    return NotPermitted(_forbidden(right, *subjects), details={"subject": ", ".join(subjects)})


def _forbidden(right: Right, *subjects: str) -> str:
    """Who may, if the subjects are Gangline's, and what to do."""
    from ..schemas.permissions.roles import roles_that_may

    text = f"the nats-server forbids this user to {right.value} {', '.join(subjects)!r}"
    roles = roles_that_may(*subjects, publish=right is Right.PUBLISH)
    if not roles:
        return f"{text}: change the user's permissions, or connect as another one"
    *others, last = roles
    named = f"the roles {', '.join(others)} and {last}" if others else f"the role {last}"
    return f"{text}, which {named} may: connect as such a user, or give this one the role ('gangline roles')"
