"""Every revision of the ledger while gangs are about, and every event of theirs, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from ...bus.port import Bus, KeyValue, KvEntry, Message
from ...schemas.gang_messages import GangEvent, GangEventKind
from ...schemas.names import Names


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One event, and when it reached us."""

    at: float
    """Seconds of this process's loop."""
    event: GangEvent


class LedgerLog:
    """Watches from `start` until the bus is closed."""

    def __init__(self) -> None:
        self.revisions: list[KvEntry] = []
        """In the order of the stream: what was there at the start, then everything."""
        self.heard: list[Heard] = []
        self._news = asyncio.Event()

    async def start(self, bus: Bus, ledger: KeyValue, names: Names) -> None:
        await ledger.watch(">", self.revisions.append)
        await bus.subscribe(names.gang_events, self._hear)
        await bus.flush()

    def _hear(self, message: Message) -> None:
        event = GangEvent.model_validate_json(message.data)
        self.heard.append(Heard(at=asyncio.get_running_loop().time(), event=event))
        self._news.set()

    def of(self, kind: GangEventKind, gang: str | None = None) -> list[Heard]:
        """All events of that kind, of one gang or of any."""
        return [heard for heard in self.heard if heard.event.kind is kind and gang in (None, heard.event.gang)]

    async def wait(self, kind: GangEventKind, gang: str | None = None, *, but: Collection[str] = ()) -> Heard:
        """The newest event of that kind, waited for; not of the gangs in `but`."""
        while True:
            found = [heard for heard in self.of(kind, gang) if heard.event.gang not in but]
            if found:
                return found[-1]
            self._news.clear()
            await self._news.wait()
