"""A key of which one process at a time is the owner: each of its writes is conditional on its own last one."""

from __future__ import annotations

from ...bus.port.bus import Conflict, KeyValue, KvEntry
from ...schemas.errors.base import MalformedMessage
from ...schemas.wire import codec


class KeyLost(Exception):
    """Another process has the key. `instance` is its own."""

    def __init__(self, key: str, instance: str) -> None:
        super().__init__(f"{key} belongs to instance {instance}")
        self.instance = instance


class OwnedKey:
    """Writes one key whose JSON value names its owner in `instance`.

    Several writes may be in flight (storage may be slow, heartbeats go on): the one that comes second conflicts with
    our own first, sees that, and follows.
    """

    __slots__ = ("_instance", "_key", "_kv", "_revision", "recreated")

    def __init__(self, kv: KeyValue, key: str, instance: str) -> None:
        self._kv = kv
        self._key = key
        self._instance = instance
        self._revision = 0
        """Of our last write; 0 while the key does not exist."""
        self.recreated = 0
        """How often it had vanished and was written anew: expired, or the bucket was lost."""

    @property
    def revision(self) -> int:
        """Of our last write; 0 while the key does not exist."""
        return self._revision

    async def read(self) -> KvEntry | None:
        """What stands there now, whoever wrote it."""
        return await self._kv.get(self._key)

    def adopt(self, entry: KvEntry) -> None:
        """The next write may replace this entry, whoever wrote it."""
        self._revision = entry.revision

    async def write(self, value: bytes, ttl_s: float) -> None:
        """Write, if the key is ours or nobody's.

        Raises:
            KeyLost: it is another's.
            Unavailable: storage did not take it; whether it was written shows at the next write.
        """
        for _ in range(3):
            try:
                revision = await self._kv.put(self._key, value, ttl_s=ttl_s, revision=self._revision)
            except Conflict:
                await self._follow()
            else:
                self._revision = max(self._revision, revision)
                return
        # Thrice overtaken by our own other writes: what stands there is as new as this.

    async def delete(self) -> None:
        """Delete the key if it is still ours.

        Raises:
            Unavailable: storage did not take it; the key expires by itself.
        """
        # Read first: routers see a delete pass and believe it, also one that storage then refuses.
        self._revision = 0
        entry = await self.read()
        if entry is not None and owner_of(entry) == self._instance:
            await self._kv.delete(self._key, revision=entry.revision)

    async def _follow(self) -> None:
        entry = await self.read()
        if entry is None:
            self._revision = 0
            self.recreated += 1
        elif (owner := owner_of(entry)) == self._instance:
            self._revision = entry.revision
        else:
            raise KeyLost(self._key, owner)

    def __repr__(self) -> str:
        return f"OwnedKey({self._key!r}, revision={self._revision})"


def owner_of(entry: KvEntry) -> str:
    """The instance that wrote an entry; empty when that cannot be read."""
    value = _fields(entry)
    instance = value.get("instance")
    return instance if isinstance(instance, str) else ""


def epoch_of(entry: KvEntry) -> int:
    """The epoch that an entry names; 0 when that cannot be read."""
    epoch = _fields(entry).get("epoch")
    return epoch if type(epoch) is int and epoch >= 0 else 0


def _fields(entry: KvEntry) -> dict[object, object]:
    try:
        value = codec.from_json(entry.value)
    except MalformedMessage:
        return {}
    return value if isinstance(value, dict) else {}
