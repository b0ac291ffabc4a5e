"""Interest in a subject, on one connection."""

from __future__ import annotations

from .client import BufferedNatsClient


class NatsSubscription:
    """Interest in a subject; see port.Subscription."""

    __slots__ = ("_client", "_sid", "subject")

    def __init__(self, client: BufferedNatsClient, sid: bytes, subject: str) -> None:
        self._client = client
        self._sid = sid
        self.subject = subject

    async def unsubscribe(self) -> None:
        self.stop()

    def stop(self) -> None:
        """`unsubscribe` without an await; nothing in it waits."""
        self._client.remove_subscription(self._sid)

    def __repr__(self) -> str:
        return f"<NatsSubscription {self.subject!r}>"
