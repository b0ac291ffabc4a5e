"""What happens to a bucket in memory behind the backs of its users."""

from __future__ import annotations

from gangline.bus.memory.connection import MemoryConnection
from gangline.bus.memory.server import MemoryServer
from gangline.bus.port.bus import Message


def store_unseen(hub: MemoryServer, bucket: str, key: str, value: bytes | None) -> None:
    """Storage gets a write (None: a deletion), and nobody sees it pass."""
    store = hub.store(bucket)
    assert store is not None
    store.publish(f"$KV.{bucket}.{key}", value or b"", None if value is not None else {"KV-Operation": "PURGE"})


def pass_unstored(hub: MemoryServer, sender: MemoryConnection, bucket: str, key: str, value: bytes) -> None:
    """Observers see a write pass, and storage does not get it."""
    hub.show(sender, Message(f"$KV.{bucket}.{key}", value))
