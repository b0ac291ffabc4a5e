"""What buckets, streams and the bus itself return."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Subscription(Protocol):
    """A live subscription. Survives reconnects."""

    async def unsubscribe(self) -> None:
        """Stop delivery at once. Idempotent."""
        ...


@runtime_checkable
class SubjectSubscription(Subscription, Protocol):
    """A subscription to a subject."""

    async def drain(self) -> None:
        """Like `unsubscribe`, but messages that the server sent before it processed that are still delivered.

        For responders: their requests were sent to nobody else. Returns when the server has confirmed, after 5 s, or
        when the connection is lost; never raises. Idempotent.
        """
        ...
