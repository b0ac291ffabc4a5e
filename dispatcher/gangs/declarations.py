"""Declarations of standing gangs in the ledger: read, written, scaled, rolled back and deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from ...bus.key_value.records import read_record
from ...bus.port.bus import Conflict, KeyValue, KvEntry
from ...schemas.errors.base import GanglineError, InvalidRequest, UnknownGang
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
from ...schemas.text import problem_of


def parse_set(name: str, fields: Mapping[str, Any], where: str = "") -> GangSetRecord:
    """The declaration with these fields.

    Args:
        where: begins the text of an error: a file, for example.

    Raises:
        InvalidName: of the set.
        InvalidRequest: names the set and each invalid field.
    """
    check_name(name, "set")
    try:
        return GangSetRecord.model_validate(dict(fields))
    except ValidationError as error:
        problems = "; ".join(map(problem_of, error.errors(include_url=False)))
        # The short form of one bundle was used.
        problems = problems.replace("gang.bundles.0.count", "gang.size").replace("gang.bundles.0.", "gang.")
        raise InvalidRequest(f"{where}set {name}: {problems}") from error


async def declared_sets(ledger: KeyValue) -> dict[str, GangSetRecord]:
    """All valid declarations, sorted by name."""
    entries = sorted(await ledger.entries(Names.gangset_key()), key=lambda entry: entry.key)
    found = {entry.key.partition(".")[2]: read_record(GangSetRecord, entry) for entry in entries}
    return {name: record for name, record in found.items() if record is not None}


async def declare(ledger: KeyValue, sets: dict[str, GangSetRecord]) -> tuple[dict[str, str], bool]:
    """Write the declarations. Returns the outcome by name (see `declare_one`), and whether a coordinator leads."""
    changes = {name: await declare_one(ledger, name, record) for name, record in sets.items()}
    return changes, await is_led(ledger)


async def is_led(ledger: KeyValue) -> bool:
    """Whether a coordinator leads, of all pools or of a shard. If not, the statuses of sets are what the last one has
    written."""
    return bool(await ledger.entries(Names.leader_alive_key, f"{Names.leader_alive_key}.*"))


async def declare_one(ledger: KeyValue, name: str, record: GangSetRecord) -> str:
    """Write one declaration. Returns `created`, `changed`, `unchanged` (nothing was written), or `retried`: it is
    unchanged but its gangs fail, so it was written again, which starts a stopped roll again."""
    entry = await ledger.get(Names.gangset_key(name))
    known = None if entry is None else read_record(GangSetRecord, entry)
    if known is not None and (known, known.template) == (record, record.template):
        _, _, status = await read_set(ledger, name)
        if status is None or status.state is not SetState.FAILING:
            return "unchanged"
        outcome = "retried"
    else:
        outcome = "created" if entry is None else "changed"
    await ledger.put(Names.gangset_key(name), record.model_dump_json(exclude_unset=True).encode())
    return outcome


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
        InvalidRequest: the number is out of bounds.
    """

    def scaled(record: GangSetRecord, _status: GangSetStatus | None) -> GangSetRecord:
        return parse_set(name, {**record.model_dump(mode="json", exclude_unset=True), "gangs": gangs})

    before, _ = await _redeclare(ledger, name, scaled)
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
