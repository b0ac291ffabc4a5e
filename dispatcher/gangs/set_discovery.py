"""Which standing sets are declared and which of their gangs are formed: read from the ledger, and followed by events.

Only what stands in the ledger makes a gang known; events say what to look up, and at once what must not be used any
more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple, Protocol

from pydantic import ValidationError

from ...bus.key_value.informer import Absent, BucketInformer
from ...bus.port.bus import Bus, KeyValue, KvEntry, Message
from ...bus.port.types import Subscription
from ...schemas.messages.gangs import GangEvent, GangEventKind
from ...schemas.names import Names
from ...schemas.records.gangs import GangRecord, GangSetRecord
from ...telemetry.logs import logger_for

_log = logger_for("dispatcher")


class SetListener(Protocol):
    """Who is told."""

    def declared(self, name: str, record: GangSetRecord | None) -> None:
        """The set stands in the ledger like this; None: not at all."""

    async def seen(self, record: GangRecord, revision: int) -> None:
        """The record of a gang of some set stands in the ledger."""

    def gone(self, gang: str, generation: int, reason: str) -> None:
        """That generation (and those before it) is no more."""

    def leaving(self, gang: str, generation: int) -> None:
        """That generation is to be sent nothing new."""

    def vanished(self, gang: str) -> None:
        """The gang is not in the ledger any more."""


class _GangOfSet(NamedTuple):
    record: GangRecord
    revision: int


class SetDiscovery:
    """Follows all standing sets of a namespace."""

    def __init__(
        self,
        bus: Bus,
        ledger: Callable[[], Awaitable[KeyValue]],
        names: Names,
        listener: SetListener,
        *,
        resync_s: float,
        patience_s: float | None = None,
    ) -> None:
        """For the last two see BucketInformer."""
        self._bus = bus
        self._names = names
        self._listener = listener
        self.informer = BucketInformer[GangSetRecord | _GangOfSet](
            bus,
            ledger,
            observed=names.gangset_key(),
            listed=self._listed,
            subscribe=self._follow_events,
            parse=self._parse,
            on_change=self._changed,
            absent=Absent.TWICE,
            resync_s=resync_s,
            patience_s=patience_s,
            kind="gangset",
            what="the standing sets",
            log=_log,
        )

    def look_up(self, gang: str) -> None:
        """Something is wrong with a gang: read its record."""
        self.informer.look_up(self._names.gang_key(gang))

    def _listed(self) -> Iterator[str]:
        yield self._names.gangset_key()
        if len(self.informer):  # else there are no gangs of sets
            yield self._names.gang_key()

    def _parse(self, entry: KvEntry) -> GangSetRecord | _GangOfSet | None:
        if entry.key.startswith("gangset."):
            return GangSetRecord.model_validate_json(entry.value)
        gang = GangRecord.model_validate_json(entry.value)
        return None if gang.gangset is None else _GangOfSet(gang, entry.revision)

    def _changed(
        self, key: str, _old: GangSetRecord | _GangOfSet | None, new: GangSetRecord | _GangOfSet | None
    ) -> Awaitable[None] | None:
        kind, _, name = key.partition(".")
        if isinstance(new, _GangOfSet):
            return self._listener.seen(new.record, new.revision)
        if kind == "gangset":
            self._listener.declared(name, new)
        else:
            self._listener.vanished(name)
        return None

    # -- events ---------------------------------------------------------------------------------------------------

    async def _follow_events(self) -> Subscription:
        return await self._bus.subscribe(self._names.gang_events, self._on_event)

    def _on_event(self, message: Message) -> None:
        try:
            event = GangEvent.model_validate_json(message.data)
        except ValidationError as error:
            first = str(error).splitlines()[0]
            _log.warning("unreadable event on %s: %s", message.subject, first, extra={"action": "event.unreadable"})
            return
        if event.gangset is None:
            return
        match event.kind:
            case GangEventKind.TORN_DOWN | GangEventKind.ENDED:
                self._listener.gone(event.gang, event.generation, event.reason)
            case GangEventKind.RESTARTING:
                self._listener.gone(event.gang, event.generation - 1, event.reason)
            case GangEventKind.RETIRING | GangEventKind.MEMBER_LOST:
                self._listener.leaving(event.gang, event.generation)
            case GangEventKind.FORMED | GangEventKind.READY | GangEventKind.RECOVERED:
                key = self._names.gangset_key(event.gangset)
                if self.informer.get(key) is None:
                    self.informer.look_up(key)
                self.look_up(event.gang)
            case GangEventKind.QUEUED:
                pass
