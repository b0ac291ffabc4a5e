"""A responder of the NATS micro protocol, so that `nats service ls|info|stats` shows us.

Answers `$SRV.PING|INFO|STATS`, alone, with the service's name, and with name and id. This is only discovery: the
endpoints are served elsewhere. See https://github.com/nats-io/nats-architecture-and-design (ADR-32).
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, Final

from ...runtime.clock import Environment
from ...schemas.errors.base import InvalidSettings, MalformedMessage, PayloadTooLarge, Unavailable
from ...schemas.wire.codec import from_json
from ..port.bus import Bus, Handler, Message
from ..port.subjects import Subscription

NOT_READY: Final = "not_ready"
"""In the metadata: why it does not do what it is for at the moment."""
_TYPE: Final = "io.nats.micro.v1"
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+([-+.][0-9A-Za-z.+-]+)?")
_NANOSECONDS: Final = 1_000_000_000


@functools.cache
def package_version() -> str:
    """Version of the installed distribution; empty if it runs from a bare folder."""
    try:
        return metadata.version("gangline")
    except metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One subject that the service answers, as shown by INFO."""

    name: str
    subject: str
    queue_group: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointStatistics:
    """Counters of one endpoint since the start, as shown by STATS."""

    name: str
    requests: int = 0
    errors: int = 0
    last_error: str = ""
    processing_s: float = 0.0
    """Time spent on all requests together."""
    data: Mapping[str, Any] | None = None
    """Additional JSON-compatible data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceDescription:
    """Describes a service; validated at construction.

    Raises:
        InvalidSettings: the protocol does not allow the name or version.
    """

    name: str
    """Letters, digits, '-' and '_'; the same for all instances."""
    version: str = field(default_factory=lambda: package_version() or "0.0.0")
    """Semantic version; the package's if not given."""
    description: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    endpoints: Sequence[Endpoint] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidSettings(f"service name {self.name!r} may only have letters, digits, '-' and '_'")
        if not _VERSION.fullmatch(self.version):
            raise InvalidSettings(f"service version {self.version!r} is not like '1.2.3'")


class MicroService:
    """Answers discovery for one instance of a service.

    Args:
        bus: the connection.
        describe: returns the current description; called for each request, so it must be fast. The name never changes.
        statistics: called for each STATS request; must be fast.
        ambient: for the instance's id and the start time.
        instance: the id; random if empty.
    """

    def __init__(
        self,
        bus: Bus,
        describe: Callable[[], ServiceDescription],
        *,
        statistics: Callable[[], Sequence[EndpointStatistics]] = tuple,
        ambient: Environment | None = None,
        instance: str = "",
    ) -> None:
        """
        Raises:
            InvalidSettings: the protocol does not allow the name, version or id.
        """
        ambient = ambient or Environment()
        self.id = instance or ambient.token()
        if not _NAME.fullmatch(self.id):
            raise InvalidSettings(f"service id {self.id!r} may only have letters, digits, '-' and '_'")
        self._bus = bus
        self._describe = describe
        self._name = describe().name
        self._statistics = statistics
        self._started = datetime.fromtimestamp(ambient.wall(), UTC).isoformat().replace("+00:00", "Z")
        self._subscriptions: list[Subscription] = []

    def __repr__(self) -> str:
        return f"<MicroService {self._name} {self.id}>"

    async def start(self) -> None:
        """Subscribe. No-op if started."""
        if self._subscriptions:
            return
        handlers: dict[str, Handler] = {"PING": self._ping, "INFO": self._info, "STATS": self._stats}
        self._subscriptions = [
            await self._bus.subscribe(f"$SRV.{verb}{suffix}", handler)
            for verb, handler in handlers.items()
            for suffix in ("", f".{self._name}", f".{self._name}.{self.id}")
        ]

    async def stop(self) -> None:
        """Stop answering. Idempotent; safe before `start`."""
        subscriptions, self._subscriptions = self._subscriptions, []
        await asyncio.gather(*(subscription.unsubscribe() for subscription in subscriptions))

    def _identity(self, kind: str, description: ServiceDescription) -> dict[str, Any]:
        return {
            "type": f"{_TYPE}.{kind}_response",
            "name": self._name,
            "id": self.id,
            "version": description.version,
            "metadata": {**description.metadata, **self._condition()},
        }

    def _condition(self) -> dict[str, str]:
        lost = self._bus.impairments()
        return {NOT_READY: "; ".join(lost)} if lost else {}

    def _ping(self, message: Message) -> None:
        self._answer(message, self._identity("ping", self._describe()))

    def _info(self, message: Message) -> None:
        description = self._describe()
        endpoints = [
            {
                "name": endpoint.name,
                "subject": endpoint.subject,
                "queue_group": endpoint.queue_group,
                "metadata": dict(endpoint.metadata),
            }
            for endpoint in description.endpoints
        ]
        identity = self._identity("info", description)
        self._answer(message, {**identity, "description": description.description, "endpoints": endpoints})

    def _stats(self, message: Message) -> None:
        description = self._describe()
        counted = {counters.name: counters for counters in self._statistics()}
        endpoints = [
            _statistics_body(endpoint, counted.get(endpoint.name) or EndpointStatistics(name=endpoint.name))
            for endpoint in description.endpoints
        ]
        identity = self._identity("stats", description)
        self._answer(message, {**identity, "started": self._started, "endpoints": endpoints})

    def _answer(self, message: Message, body: dict[str, Any]) -> None:
        if not message.reply:
            return
        try:
            self._bus.publish(message.reply, json.dumps(body).encode())
        except (Unavailable, PayloadTooLarge):
            pass  # the requester asks again


def statistics_of(counts: Mapping[str, Sequence[int]]) -> list[EndpointStatistics]:
    """Statistics from requests and errors by endpoint."""
    return [EndpointStatistics(name=name, requests=each[0], errors=each[1]) for name, each in counts.items()]


def with_other_ledger(answer: Message, namespace: str, ours: str) -> dict[str, str] | None:
    """What a service says of itself when it is pinged, if it is of our namespace and uses another ledger than we do:
    servers of two JetStream domains, such as a hub and a leaf node, share subjects but not storage. `place` is where it
    is connected.

    Args:
        ours: when our ledger was created.
    """
    try:
        about = from_json(answer.data)["metadata"]
        ledger = about.get("ledger")
        if about.get("namespace") != namespace or not isinstance(ledger, str) or ledger in ("", ours):
            return None
        return {"place": "", **{str(name): str(text)[:200] for name, text in about.items()}}
    except (MalformedMessage, TypeError, KeyError, AttributeError):
        return None  # another service's answer


def _statistics_body(endpoint: Endpoint, counters: EndpointStatistics) -> dict[str, Any]:
    total_ns = int(counters.processing_s * _NANOSECONDS)
    body: dict[str, Any] = {
        "name": endpoint.name,
        "subject": endpoint.subject,
        "queue_group": endpoint.queue_group,
        "num_requests": counters.requests,
        "num_errors": counters.errors,
        "last_error": counters.last_error,
        "processing_time": total_ns,
        "average_processing_time": total_ns // counters.requests if counters.requests else 0,
    }
    if counters.data is not None:
        body["data"] = dict(counters.data)
    return body
