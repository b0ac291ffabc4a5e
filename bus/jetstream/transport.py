"""What streams and buckets need from the connection: the bus, and requests of which many can be pending."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from ...runtime.clock import Environment
from ..port.bus import Bus, Handler, Message
from ..port.types import SubjectSubscription
from .api import JetStreamApi


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
    def closed(self) -> bool: ...

    def new_inbox(self) -> str:
        """A new subject to subscribe to; not guessable."""
        ...

    def publish_known(self, subject: str, data: bytes, reply: str) -> None:
        """Publish to a subject that the server or we made: without checks, and without remembering it."""
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
