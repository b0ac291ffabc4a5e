"""What streams and buckets need from a connection, and JetStream's JSON API: requests and their errors."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ...runtime.clock import Environment
from ...schemas.errors.base import ServerUnsupported
from ..port.bus import Bus, Handler, Message, NoResponders, RequestTimeout, StorageUnavailable
from ..port.subjects import SubjectSubscription


class TransportSubscription(SubjectSubscription, Protocol):
    """A subscription that also ends where nothing can be awaited."""

    def stop(self) -> None:
        """`unsubscribe` without await; it never waits. Idempotent."""
        ...


class Transport(Bus, Protocol):
    """A connection to a server, which may be one in memory."""

    ambient: Environment
    api: JetStreamApi

    @property
    def jetstream_domain(self) -> str:
        """Of the server that it is connected to; empty: it has none."""
        ...

    @property
    def closed(self) -> bool: ...

    def new_inbox(self) -> str:
        """A new subject to subscribe to; not guessable."""
        ...

    def publish_known(self, subject: str, data: bytes, reply: str) -> None:
        """Publish to a subject that the server or we made: without checks, and without remembering it."""
        ...

    def publish_each(self, subjects: Iterable[str], text: str) -> None:
        """`publish_known` the same ASCII text to each of these subjects, without a reply."""
        ...

    def start_request(
        self, subject: str, data: bytes = b"", *, headers: Mapping[str, str] | None = None
    ) -> tuple[str, asyncio.Future[Message]]:
        """Publish a request, for callers with many in flight. End it with `finish_request` or `forget_request`."""
        ...

    async def finish_request(self, reply: str, future: asyncio.Future[Message], timeout_s: float) -> Message:
        """Wait for the answer of `start_request`; errors as `request`."""
        ...

    def forget_request(self, reply: str) -> None:
        """Stop waiting for the answer."""
        ...

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> TransportSubscription:
        """See Bus.subscribe."""
        ...


log = logging.getLogger("gangline.bus")

MINIMUM_VERSION: Final = (2, 12)

STREAM_NOT_FOUND: Final = 10059
NO_MESSAGE: Final = 10037
STREAM_EXISTS: Final = 10058
CONSUMER_NOT_FOUND: Final = 10014
WRONG_LAST_SEQUENCE: Final = 10071
TRANSIENT_CONFLICT: Final = 10164
TOO_MANY_BATCHES: Final = 10210
"""The stream has as many open atomic batches, ours or others', as the server allows."""
ID_IN_PROCESS: Final = 10158
_STORE_FAILED: Final = 10077
_FULL: Final = (10002, 10023, 10028, 10047, _STORE_FAILED, 10122)
_FULL_S: Final = 6.0
"""A refusal counts for so long: whoever must store something tries again more often."""
_NOT_ENABLED: Final = (10039, 10076)
_BUSY: Final = (ID_IN_PROCESS, TRANSIENT_CONFLICT, 10163)


class ServerConnection(Protocol):
    """What requests need of a connection."""

    @property
    def server_version(self) -> str: ...

    async def request(self, subject: str, data: bytes = b"", *, timeout_s: float) -> Message:
        """See Bus.request."""
        ...


class ApiError(StorageUnavailable):
    """JetStream answered with an error."""

    def __init__(self, what: str, error: Mapping[str, Any]) -> None:
        self.number = int(error.get("err_code", 0))
        description = str(error.get("description", "no description"))
        super().__init__(
            f"JetStream refused to {what}: {description} (error {self.number})",
            details={"err_code": self.number, "status": error.get("code"), "description": description},
            may_have_started=False,
        )

    @property
    def temporary(self) -> bool:
        """Whether to try again soon: there is no leader yet, or too few known peers."""
        unavailable = self.details.get("status") == 503 and not self.full
        return unavailable or self.number in (10005, 10008, 10074)

    @property
    def busy(self) -> bool:
        """Another write with this id or key is in flight in the cluster, perhaps our own earlier attempt: try again.
        Until then it is unknown whether that one is stored."""
        return self.number in _BUSY

    @property
    def full(self) -> bool:
        """The server, the account or the stream has no room. That can last, so nobody waits in silence."""
        return self.number in _FULL

    @property
    def at_limit(self) -> bool:
        """The stream has reached its own limit."""
        return self.number == _STORE_FAILED and "maximum" in str(self.details["description"])


@dataclass(slots=True)
class _Refusal:
    cause: str
    """What the server said last."""
    until: float
    """Loop time until which it counts."""
    stored_since: bool = False


class StorageShortage:
    """Which streams and buckets have refused to store something for want of room. The beginning and the end of each
    shortage are logged once."""

    def __init__(self) -> None:
        self.refusals: dict[str, _Refusal] = {}
        """By stream or bucket."""
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def refused(self, where: str, error: ApiError) -> None:
        """The server has refused to store something there."""
        if not error.full:
            return
        loop = asyncio.get_running_loop()
        cause, until, began = str(error.details["description"]), loop.time() + _FULL_S, where not in self.refusals
        self.refusals[where] = _Refusal(cause, until)
        if not error.at_limit:
            for other in self.refusals.values():  # what is not tried now would find no room either
                other.until = until
        if began:
            log.error(
                "no room in %s: %s. What must be stored there waits, such as the end of tasks: give the server or "
                "account more storage, raise the limit of the stream, or delete what is not needed",
                where,
                cause,
                extra={"action": "bus.storage_full", "stored_in": where},
            )
            self._timers[where] = loop.call_at(until, self._check, where)

    def stored(self, where: str) -> None:
        """Something was stored there."""
        if where in self.refusals:
            self.refusals[where].stored_since = True

    def _check(self, where: str) -> None:
        loop, refusal = asyncio.get_running_loop(), self.refusals[where]
        if refusal.until > loop.time():
            self._timers[where] = loop.call_at(refusal.until, self._check, where)
            return
        del self.refusals[where], self._timers[where]
        if refusal.stored_since:
            log.warning("%s has room again", where, extra={"action": "bus.storage_room", "stored_in": where})

    def reasons(self) -> list[str]:
        """One text for each. Only reads, so any thread may call it."""
        return [f"no room in {where} ({refusal.cause})" for where, refusal in list(self.refusals.items())]

    def stop(self) -> None:
        """The connection is closing."""
        for timer in self._timers.values():
            timer.cancel()


class JetStreamApi:
    """`$JS.API.>` requests of one connection."""

    def __init__(self, bus: ServerConnection, *, timeout_s: float) -> None:
        self._bus = bus
        self.timeout_s = timeout_s
        self._checked_version = ""
        self.shortage = StorageShortage()
        self.reserving = asyncio.Lock()
        """Held while a share of what the server can reserve is looked for."""

    async def call(
        self, operation: str, body: Mapping[str, Any] | None = None, *, what: str, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """One request, for example `STREAM.INFO.KV_X`; `what` completes "JetStream refused to ...".

        Raises:
            ApiError: JetStream answered with an error.
            StorageUnavailable: no answer, or JetStream is not available.
            Disconnected: no connection.
        """
        data = b"" if body is None else json.dumps(body).encode()
        try:
            answer = await self._bus.request(f"$JS.API.{operation}", data, timeout_s=timeout_s or self.timeout_s)
        except NoResponders as error:
            raise StorageUnavailable(
                f"JetStream is not available to {what}: it has no leader, or is not enabled", may_have_started=False
            ) from error
        except RequestTimeout as error:
            raise StorageUnavailable(f"JetStream did not answer in time to {what}: try again") from error
        return parse_answer(answer, what)

    async def require(self, timeout_s: float | None = None) -> None:
        """Check once per server version that the server supports what we need.

        Raises:
            ServerUnsupported: it is too old or has no JetStream; the text has the version.
            StorageUnavailable: no answer, as from a cluster without a leader.
        """
        version = self._bus.server_version
        if version == self._checked_version:
            return
        check_version(version)
        try:
            await self.call("INFO", what="describe the account", timeout_s=timeout_s)
        except ApiError as error:
            if error.number in _NOT_ENABLED:
                raise self._without_jetstream(version) from error
            raise
        except StorageUnavailable as error:
            if isinstance(error.__cause__, NoResponders):
                raise self._without_jetstream(version) from error
            raise
        self._checked_version = version

    @staticmethod
    def _without_jetstream(version: str) -> ServerUnsupported:
        return ServerUnsupported(
            f"this nats-server ({version}) has no JetStream for our account: start it with -js, or enable JetStream "
            f"for the account. If it is a leaf node, and the JetStream of its hub has a domain, connect to the hub",
            details={"version": version},
        )


def parse_answer(answer: Message, what: str) -> dict[str, Any]:
    """The JSON object of an answer.

    Raises:
        ApiError: the answer is an error.
        StorageUnavailable: the answer is not from JetStream.
    """
    try:
        body = json.loads(answer.data)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise StorageUnavailable(
            f"something other than JetStream answered the request to {what}: find out who else listens on the subject"
        )
    error = body.get("error")
    if error:
        raise ApiError(what, error)
    return body


def check_version(version: str) -> None:
    """
    Raises:
        ServerUnsupported: a nats-server of this version is too old.
    """
    if _parse_version(version) < MINIMUM_VERSION:
        raise ServerUnsupported(
            f"this nats-server is {version}: gangline needs 2.12 or later (atomic batches); update the server",
            details={"version": version},
        )


def _parse_version(text: str) -> tuple[int, int]:
    parts = text.split("-")[0].split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (ValueError, IndexError):
        return (0, 0)
