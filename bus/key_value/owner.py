"""What the helpers of a bucket need of the bucket that they belong to."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from ..jetstream.transport import Transport
from .wire import StoredEntry


class BucketOwner(Protocol):
    """Implemented by NatsKeyValue; more is told there."""

    name: str
    bus: Transport
    stream: str
    prefix: str
    unsure_batches: deque[str]

    @property
    def made(self) -> bool: ...

    async def ensure(self, *, look: bool = False) -> bool: ...

    async def restore(self, timeout_s: float) -> bool: ...

    async def vanished(self) -> bool: ...

    async def stored(self, key: str) -> StoredEntry | None: ...
