"""What buckets, streams and the bus itself hand out."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Subscription(Protocol):
    """A live subscription. Survives reconnects."""

    async def unsubscribe(self) -> None:
        """Stop delivery at once. Idempotent."""
        ...
