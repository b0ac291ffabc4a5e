"""Declarations of standing gangs in the ledger."""

from __future__ import annotations

from ...bus.port.bus import Conflict, KeyValue
from ...schemas.errors.base import GanglineError, InvalidRequest, Unavailable
from ...schemas.errors.gangs import UnknownGang
from ...schemas.messages.gangs import GangListReply, GangReply
from ...schemas.names import GangOperation, Names, check_name
from ...schemas.records.gangs import (
    GangSetRecord,
    GangSetStatus,
    SetState,
    StrictGangSpec,
    read_gang,
    template_of,
    write_gang,
)
from ..console.options import Connection
from ..console.session import open_bus, open_ledger
from .gang_requests import ask
from .registry import parse


async def apply_sets(connection: Connection, sets: dict[str, GangSetRecord]) -> tuple[dict[str, str], bool]:
    """Declare them; what changed by name (`created`, `changed`, `unchanged`), and whether anybody leads."""
    async with open_bus(connection, "gangline gangset") as bus:
        ledger = await open_ledger(bus, connection)
        changes = {name: await _declare(ledger, name, record) for name, record in sets.items()}
        led = await ledger.entries(Names.leader_alive_key, f"{Names.leader_alive_key}.*")
        return changes, bool(led)


async def _declare(ledger: KeyValue, name: str, record: GangSetRecord) -> str:
    entry = await ledger.get(Names.gangset_key(name))
    known = parse(GangSetRecord, entry) if entry is not None else None
    if known is not None and (known, known.template) == (record, record.template):
        return "unchanged"
    await ledger.put(Names.gangset_key(name), record.model_dump_json(exclude_unset=True).encode())
    return "created" if entry is None else "changed"


async def read_sets(connection: Connection) -> list[tuple[str, GangSetRecord, list[GangReply] | None]]:
    """All declarations that can be read, by name, with their gangs (None: no coordinator could be asked)."""
    async with open_bus(connection, "gangline gangset") as bus:
        entries = await (await open_ledger(bus, connection)).entries(Names.gangset_key())
        try:
            gangs = (await ask(bus, connection.names, GangOperation.LIST, {}, GangListReply)).gangs
        except Unavailable:
            gangs = None
    found = []
    for entry in sorted(entries, key=lambda entry: entry.key):
        name, record = entry.key.partition(".")[2], parse(GangSetRecord, entry)
        if record is not None:
            found.append((name, record, None if gangs is None else [gang for gang in gangs if gang.gangset == name]))
    return found


async def scale_set(connection: Connection, name: str, gangs: int) -> int:
    """The number of gangs before.

    Raises:
        UnknownGang: no such set.
    """
    async with open_bus(connection, "gangline gangset") as bus:
        ledger = await open_ledger(bus, connection)
        while True:
            entry = await ledger.get(Names.gangset_key(check_name(name, "set")))
            record = parse(GangSetRecord, entry) if entry is not None else None
            if entry is None or record is None:
                raise _unknown(name)
            wanted = record.model_copy(update={"gangs": gangs})
            try:
                await ledger.put(
                    entry.key, wanted.model_dump_json(exclude_unset=True).encode(), revision=entry.revision
                )
            except Conflict:
                continue  # somebody else changed it just now
            return record.gangs


async def read_status(connection: Connection, name: str) -> tuple[GangSetRecord, GangSetStatus | None]:
    """A declaration, and how it fares, if a coordinator has said so since.

    Raises:
        UnknownGang: no such set.
    """
    async with open_bus(connection, "gangline gangset") as bus:
        return await _read(await open_ledger(bus, connection), name)


async def roll_back(connection: Connection, name: str) -> GangSetRecord:
    """Declare the `gang` again that served before the present one. Returns what stands now.

    Raises:
        UnknownGang: no such set.
        InvalidRequest: there is nothing to go back to.
    """
    async with open_bus(connection, "gangline gangset") as bus:
        ledger = await open_ledger(bus, connection)
        while True:
            entry = await ledger.get(Names.gangset_key(check_name(name, "set")))
            record, status = await _read(ledger, name)
            if status is None or status.previous is None:
                raise InvalidRequest(f"set {name!r} has nothing to go back to: no other gang of it has served")
            wanted = record.model_copy(update={"gang": StrictGangSpec.model_validate(status.previous)})
            if wanted.template == record.template:
                raise InvalidRequest(f"set {name!r} has gone back already: what it declares is what served before")
            body = wanted.model_dump_json(exclude_unset=True).encode()
            try:
                await ledger.put(Names.gangset_key(name), body, revision=entry.revision if entry is not None else 0)
            except Conflict:
                continue  # somebody else changed it just now
            return wanted


async def _read(ledger: KeyValue, name: str) -> tuple[GangSetRecord, GangSetStatus | None]:
    entry = await ledger.get(Names.gangset_key(check_name(name, "set")))
    record = parse(GangSetRecord, entry) if entry is not None else None
    if record is None:
        raise _unknown(name)
    said = await ledger.get(Names.gangset_status_key(name))
    status = parse(GangSetStatus, said) if said is not None else None
    current = None if status is None else read_gang(status.current)
    about = current is not None and template_of(current) == record.template
    if status is not None and not about and status.served:
        status = status.model_copy(update={"previous": status.current})
    if status is not None and not about:
        # What was declared just now is not in it yet.
        news = {
            "state": SetState.ROLLING,
            "reason": "no coordinator has looked at what is declared",
            "current": write_gang(record.gang),
        }
        status = status.model_copy(update=news)
    return record, status


async def delete_set(connection: Connection, name: str) -> None:
    """Raises UnknownGang: no such set."""
    async with open_bus(connection, "gangline gangset") as bus:
        ledger = await open_ledger(bus, connection)
        if await ledger.get(Names.gangset_key(check_name(name, "set"))) is None:
            raise _unknown(name)
        await ledger.delete(Names.gangset_key(name))


def _unknown(name: str) -> GanglineError:
    return UnknownGang(f"there is no set {name!r}: 'gangline gangset ls' shows them")
