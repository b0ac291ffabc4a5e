"""Which standing sets are declared and which of their gangs are formed: pulled, and followed by events.

Only what stands in the ledger makes a gang known; events say what to look up, and at once what must not be used any
more. A pull that fails removes nothing; what is missing in two pulls one after the other is gone (once may be a bucket
that vanished, which the coordinator fills again).
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple, Protocol, TypeVar

from pydantic import ValidationError

from ...bus.port.bus import Bus, KeyValue, KvEntry, KvOperation, Message
from ...bus.port.types import Subscription
from ...schemas.errors.base import GanglineError
from ...schemas.messages.gangs import GangEvent, GangEventKind
from ...schemas.names import Names
from ...schemas.records.gangs import GangRecord, GangSetRecord
from ...schemas.records.workers import Record
from ...telemetry.logs import logger_for

_log = logger_for("dispatcher")

R = TypeVar("R", bound=Record)

_STORED_WITHIN_S: Final = 2.0
_LOOK_AGAIN_S: Final = 0.05


class Passed(NamedTuple):
    """A write that passed. Storage may take a moment to have it, and may have refused it."""

    value: bytes | None
    """None: a deletion."""
    until: float
    """Loop time from which storage's word counts, whatever passed."""


class SetCensus(Protocol):
    """Who is told."""

    def declared(self, name: str, record: GangSetRecord | None) -> None:
        """The set stands in the ledger like this; None: not at all."""

    def names(self) -> list[str]:
        """Sets that are believed to be declared."""

    async def seen(self, record: GangRecord, revision: int) -> None:
        """The record of a gang of some set stands in the ledger."""

    def gone(self, gang: str, generation: int, reason: str) -> None:
        """That generation (and those before it) is no more."""

    def leaving(self, gang: str, generation: int) -> None:
        """That generation is to be sent nothing new."""

    def vanished(self, gang: str) -> None:
        """The gang is not in the ledger any more."""

    def known(self) -> list[str]:
        """Gangs that are believed to stand."""


class SetFeed:
    """Follows all standing sets of a namespace."""

    def __init__(self, bus: Bus, ledger: KeyValue, names: Names, census: SetCensus) -> None:
        self._bus = bus
        self._ledger = ledger
        self._names = names
        self._census = census
        self._subscriptions: list[Subscription] = []
        self._lookups: dict[str, Passed | None] = {}
        """Keys, with what passed there, if something did."""
        self._stopped = False
        self._missing: set[tuple[str, str]] = set()
        """What the last pull did not show."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Follow what passes; `pull` does the rest."""
        self._subscriptions.append(await self._ledger.observe(self._names.gangset_key(), self._on_set))
        self._subscriptions.append(await self._bus.subscribe(self._names.gang_events, self._on_event))

    async def stop(self) -> None:
        """Idempotent, and safe before `start`."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.unsubscribe()

    async def pull(self) -> None:
        """Read all sets and, if there are any, all gangs.

        Raises:
            Unavailable: nothing was learnt.
        """
        census = self._census
        sets = {entry.key.partition(".")[2]: entry for entry in await self._ledger.entries(self._names.gangset_key())}
        gangs: set[str] = set()
        if sets or census.known():
            for name, entry in sets.items():
                declared = _read(entry, GangSetRecord)
                if declared is not None:  # else the declaration before stays in force
                    census.declared(name, declared)
            for entry in await self._ledger.entries(self._names.gang_key()):
                gang = _read(entry, GangRecord)
                if gang is not None and gang.gangset is not None:
                    gangs.add(gang.id)
                    await census.seen(gang, entry.revision)
        missing = {("gang", gang) for gang in census.known() if gang not in gangs}
        missing |= {("gangset", name) for name in census.names() if name not in sets}
        for kind, name in sorted(missing & self._missing):
            if kind == "gang":
                census.vanished(name)
            else:
                census.declared(name, None)
        self._missing = missing

    def look_up(self, gang: str) -> None:
        """Something is wrong with a gang: read its record."""
        self._look_up(self._names.gang_key(gang))

    # -- what passes ----------------------------------------------------------------------------------------------

    def _on_set(self, entry: KvEntry) -> None:
        value = None if entry.operation is KvOperation.DELETE else entry.value
        until = asyncio.get_running_loop().time() + _STORED_WITHIN_S
        self._look_up(entry.key, Passed(value, until))  # storage has not judged it yet

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
                self._census.gone(event.gang, event.generation, event.reason)
            case GangEventKind.RESTARTING:
                self._census.gone(event.gang, event.generation - 1, event.reason)
            case GangEventKind.RETIRING | GangEventKind.MEMBER_LOST:
                self._census.leaving(event.gang, event.generation)
            case GangEventKind.FORMED | GangEventKind.READY | GangEventKind.RECOVERED:
                if event.gangset not in self._census.names():
                    self._look_up(self._names.gangset_key(event.gangset))
                self.look_up(event.gang)
            case GangEventKind.QUEUED:
                pass

    # -- looking up -----------------------------------------------------------------------------------------------

    def _look_up(self, key: str, passed: Passed | None = None) -> None:
        if self._stopped:
            return
        self._lookups[key] = passed
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._look_all_up(), name="gangline-look-up-gangs")

    async def _look_all_up(self) -> None:
        while self._lookups:
            key = next(iter(self._lookups))
            passed = self._lookups.pop(key)
            try:
                entry = await self._ledger.get(key)
            except GanglineError as error:
                # The next pull sees it.
                _log.info("cannot look up %s: %s", key, error, extra={"action": "gang.look_up", "key": key})
                continue
            if passed is not None and passed.value != (None if entry is None else entry.value):
                self._not_yet(key, passed)
            kind, _, name = key.partition(".")
            if kind == "gangset":
                record = _read(entry, GangSetRecord) if entry is not None else None
                if entry is None or record is not None:
                    self._census.declared(name, record)
            elif entry is not None:
                gang = _read(entry, GangRecord)
                if gang is not None and gang.gangset is not None:
                    await self._census.seen(gang, entry.revision)

    def _not_yet(self, key: str, passed: Passed) -> None:
        """Storage does not have what passed, or refused it: look again, for a while."""
        loop = asyncio.get_running_loop()
        if loop.time() < passed.until:
            loop.call_later(_LOOK_AGAIN_S, self._look_again, key, passed)

    def _look_again(self, key: str, passed: Passed) -> None:
        if key not in self._lookups:
            self._look_up(key, passed)


def _read(entry: KvEntry, model: type[R]) -> R | None:
    try:
        return model.model_validate_json(entry.value)
    except ValidationError as error:
        first = str(error).splitlines()[0]
        _log.warning(
            "unreadable record %s: %s", entry.key, first, extra={"action": "record.unreadable", "key": entry.key}
        )
        return None
