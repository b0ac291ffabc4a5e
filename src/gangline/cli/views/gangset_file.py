"""Declarations of standing gangs: in a file (YAML or JSON, one document or several, each with a `name`), and in the
ledger."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import yaml
from pydantic import ValidationError

from ...bus.port.bus import Conflict, KeyValue, KvEntry
from ...dispatcher.client.client import Client
from ...dispatcher.client.operations import read_record
from ...schemas.errors.base import GanglineError, InvalidRequest, Unavailable, UnknownGang
from ...schemas.names import Names, check_name
from ...schemas.records.gangs import (
    GangSetRecord,
    GangSetStatus,
    SetState,
    StrictGangSpec,
    read_gang,
    template_of,
    write_gang,
)
from .gang_follow import list_gangs
from .gangs import SetRow


def parse_sets(text: str, source: str) -> dict[str, GangSetRecord]:
    """Declarations by name.

    Args:
        source: the file's name, for error texts.

    Raises:
        InvalidRequest: names the file, the set, and each invalid field.
    """
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise InvalidRequest(f"{source} is not YAML: {_where(error)}") from error
    if not documents:
        raise InvalidRequest(f"{source} declares nothing: give name, gangs and gang")
    found: dict[str, GangSetRecord] = {}
    for number, document in enumerate(documents, 1):
        name, record = _parse(document, source if len(documents) == 1 else f"{source}, document {number}")
        if name in found:
            raise InvalidRequest(f"{source} declares {name} twice")
        found[name] = record
    return found


def _parse(document: Any, where: str) -> tuple[str, GangSetRecord]:
    if not isinstance(document, dict):
        raise InvalidRequest(f"{where} is not a map: give name, gangs and gang")
    fields = dict(document)
    name = fields.pop("name", None)
    if not isinstance(name, str):
        raise InvalidRequest(f"{where} has no name: add 'name: llama', for example")
    try:
        check_name(name, "set")
        return name, GangSetRecord.model_validate(fields)
    except ValidationError as error:
        complaints = "; ".join(_complaint(item) for item in error.errors(include_url=False))
        raise InvalidRequest(f"{where}, set {name}: {complaints}") from error
    except GanglineError as error:
        raise InvalidRequest(f"{where}: {error.message}") from error


def _complaint(item: Any) -> str:
    place = ".".join(str(part) for part in item["loc"])
    # The short form of one bundle was used.
    place = place.replace("gang.bundles.0.count", "gang.size").replace("gang.bundles.0.", "gang.")
    return f"{place}: {item['msg']}" if place else str(item["msg"])


def _where(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else str(problem)


# -- in the ledger ----------------------------------------------------------------------------------------------------


async def declare(ledger: KeyValue, sets: dict[str, GangSetRecord]) -> tuple[dict[str, str], bool]:
    """Write the declarations. Returns the outcome by name (`created`, `changed`, `unchanged`), and whether a
    coordinator leads."""
    changes = {name: await _declare(ledger, name, record) for name, record in sets.items()}
    led = await ledger.entries(Names.leader_alive_key, f"{Names.leader_alive_key}.*")
    return changes, bool(led)


async def _declare(ledger: KeyValue, name: str, record: GangSetRecord) -> str:
    entry = await ledger.get(Names.gangset_key(name))
    known = None if entry is None else read_record(GangSetRecord, entry)
    if known is not None and (known, known.template) == (record, record.template):
        return "unchanged"
    await ledger.put(Names.gangset_key(name), record.model_dump_json(exclude_unset=True).encode())
    return "created" if entry is None else "changed"


async def _redeclare(
    ledger: KeyValue, name: str, change: Callable[[GangSetRecord, GangSetStatus | None], GangSetRecord]
) -> tuple[GangSetRecord, GangSetRecord]:
    """Replace the declaration with the result of `change`, given it and its status; returns the previous and the new
    one."""
    while True:
        entry, record, status = await read_set(ledger, name)
        wanted = change(record, status)
        try:
            await ledger.put(entry.key, wanted.model_dump_json(exclude_unset=True).encode(), revision=entry.revision)
        except Conflict:
            continue  # another client changed it meanwhile
        return record, wanted


async def scale(ledger: KeyValue, name: str, gangs: int) -> int:
    """Change the number of gangs; returns the previous number.

    Raises:
        UnknownGang: no such set.
    """
    before, _ = await _redeclare(ledger, name, lambda record, _: record.model_copy(update={"gangs": gangs}))
    return before.gangs


async def roll_back(ledger: KeyValue, name: str) -> GangSetRecord:
    """Declare the `gang` that served before the current one again. Returns the new declaration.

    Raises:
        UnknownGang: no such set.
        InvalidRequest: there is no previous gang.
    """

    def back(record: GangSetRecord, status: GangSetStatus | None) -> GangSetRecord:
        if status is None or status.previous is None:
            raise InvalidRequest(f"set {name!r} has nothing to go back to: no other gang has served")
        wanted = record.model_copy(update={"gang": StrictGangSpec.model_validate(status.previous)})
        if wanted.template == record.template:
            raise InvalidRequest(f"set {name!r} is already rolled back: it declares the gang that served before")
        return wanted

    _, record = await _redeclare(ledger, name, back)
    return record


async def delete(ledger: KeyValue, name: str) -> None:
    """Raises UnknownGang: no such set."""
    await ledger.delete((await _entry(ledger, name)).key)


async def _entry(ledger: KeyValue, name: str) -> KvEntry:
    entry = await ledger.get(Names.gangset_key(check_name(name, "set")))
    if entry is None:
        raise _unknown(name)
    return entry


def _unknown(name: str) -> GanglineError:
    return UnknownGang(f"there is no set {name!r}: 'gangline gangset ls' shows them")


async def read_set(ledger: KeyValue, name: str) -> tuple[KvEntry, GangSetRecord, GangSetStatus | None]:
    """A declaration, and its status, if a coordinator has reported it since.

    Raises:
        UnknownGang: there is no such set, or it cannot be parsed.
    """
    entry = await _entry(ledger, name)
    record = read_record(GangSetRecord, entry)
    if record is None:
        raise _unknown(name)
    said = await ledger.get(Names.gangset_status_key(name))
    status = None if said is None else read_record(GangSetStatus, said)
    current = None if status is None else read_gang(status.current)
    about = current is not None and template_of(current) == record.template
    if status is not None and not about:
        # The status does not include the latest declaration yet.
        news = {
            "state": SetState.ROLLING,
            "reason": "no coordinator has read the declaration yet",
            "previous": status.current if status.served else status.previous,
            "current": write_gang(record.gang),
        }
        status = status.model_copy(update=news)
    return entry, record, status


async def read_sets(client: Client) -> list[SetRow]:
    """All valid declarations by name, with their gangs."""
    entries = await (await client.router.ledger()).entries(Names.gangset_key())
    gangs = None
    with contextlib.suppress(Unavailable):
        gangs = (await list_gangs(client)).gangs
    found = []
    for entry in sorted(entries, key=lambda entry: entry.key):
        name, record = entry.key.partition(".")[2], read_record(GangSetRecord, entry)
        if record is not None:
            found.append((name, record, None if gangs is None else [gang for gang in gangs if gang.gangset == name]))
    return found
