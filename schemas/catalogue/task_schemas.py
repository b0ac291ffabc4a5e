"""What a pool's workers say of their tasks: the JSON Schema of parameters and results, named by content."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ..records.workers import MethodInfo


def schema_text(body: dict[str, Any]) -> bytes:
    """The text whose hash names a schema: JSON with sorted keys and no blanks."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def schema_hash(text: bytes) -> str:
    """The first 32 hexadecimal digits of its SHA-256."""
    return sha256(text).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSchema:
    """One task of a pool."""

    pool: str
    method: str
    info: MethodInfo
    body: dict[str, Any] | None = None
    """See worker.pool.json_schema for its form. None: its workers have none."""

    @property
    def target(self) -> str:
        """`POOL.METHOD`."""
        return f"{self.pool}.{self.method}"

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON Schema of the named arguments; without a schema, any object."""
        found: dict[str, Any] = (self.body or {}).get("parameters", {"type": "object"})
        return found

    @property
    def result(self) -> dict[str, Any]:
        """JSON Schema of the result, or of each item of a task that yields."""
        body = self.body or {}
        found: dict[str, Any] = body.get("items" if self.info.streams else "result", {})
        return found

    @property
    def definitions(self) -> dict[str, Any]:
        """Schemas that the others refer to as `#/$defs/NAME`."""
        found: dict[str, Any] = (self.body or {}).get("$defs", {})
        return found
