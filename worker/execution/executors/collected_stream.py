"""A stream whose caller did not ask for a stream: its items, as one list of bounded size."""

from __future__ import annotations

from typing import Any

from ....schemas.errors.base import InvalidResult
from ....schemas.wire import codec


class CollectedStream:
    """Gathers items."""

    __slots__ = ("_bytes", "_limit_bytes", "_where", "items")

    def __init__(self, where: str, limit_bytes: int) -> None:
        self.items: list[Any] = []
        self._bytes = 0
        self._limit_bytes = limit_bytes
        self._where = where

    def add(self, value: Any) -> None:
        """Raises InvalidResult when the list would grow over its limit."""
        self._bytes += len(codec.pack(value))
        if self._bytes > self._limit_bytes:
            raise InvalidResult(
                f"{self._where}: the items are over {self._limit_bytes} bytes in all: ask for a stream, and read them "
                "one by one",
                details={"limit_bytes": self._limit_bytes, "items": len(self.items)},
            )
        self.items.append(value)
