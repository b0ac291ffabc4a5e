"""Stream information from storage. Asks again while a cluster is electing a leader."""

from __future__ import annotations

import contextlib
from typing import Any

from bench.faults.crew import Crew
from gangline.bus.nats_bus import NatsBus
from gangline.schemas.errors.base import GanglineError


async def last_revision(crew: Crew, bus: NatsBus, stream: str) -> int:
    revision: int = (await _described(crew, bus, stream))["state"]["last_seq"]
    return revision


async def leader_of(crew: Crew, bus: NatsBus, stream: str) -> str:
    """The name of the server."""
    name: str = (await _described(crew, bus, stream))["cluster"]["leader"]
    return name


async def _described(crew: Crew, bus: NatsBus, stream: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def look() -> bool:
        with contextlib.suppress(GanglineError):
            found.update(await bus.api.call(f"STREAM.INFO.{stream}", what="look at a stream"))
        alone = found.get("cluster") is None
        return bool(found) and (alone or bool(found["cluster"].get("leader")))

    await crew.until(look, f"{stream} has a leader")
    return found
