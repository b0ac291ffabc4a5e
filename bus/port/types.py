"""What buckets, streams and the bus itself hand out."""

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
    """Of the messages on a subject."""

    async def drain(self) -> None:
        """As `unsubscribe`, but messages that the server sent before it heard of that are still delivered.

        For those who answer requests: what was sent to them was sent to nobody else. Returns when the server has
        confirmed, after 5 s, or when the connection is lost; raises nothing. Idempotent.
        """
        ...
