"""Routes in their bucket."""

from __future__ import annotations

from dataclasses import dataclass

from ...bus.port.bus import BucketSettings, Bus, Conflict
from ...dispatcher.jobs.storage import TaskStorage, TaskStreams
from ...schemas.errors.base import GanglineError
from ...schemas.errors.tasks import InvalidRoute
from ...schemas.names import check_name
from ...schemas.records.routes import RouteRecord, parse_route
from ..console.options import Connection
from ..console.session import open_bus
from ..views.route_change import RouteChange


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRow:
    """One value of the bucket."""

    endpoint: str
    revision: int
    record: RouteRecord | None
    """None: it cannot be followed."""
    error: str = ""

    def to_json(self) -> dict[str, object]:
        if self.record is None:
            return {"endpoint": self.endpoint, "revision": self.revision, "error": self.error}
        route = self.record.model_dump(mode="json", exclude_defaults=True)
        return {"endpoint": self.endpoint, "revision": self.revision, "route": route}


async def change_route(
    connection: Connection, endpoint: str, change: RouteChange
) -> tuple[RouteRecord | None, RouteRecord, list[str]]:
    """The route before and now, and pools of it that nobody serves.

    Raises:
        InvalidRoute: the route that is there, or the one that was asked for, cannot be followed; nothing was written.
    """
    check_name(endpoint, "endpoint")
    async with open_bus(connection, "gangline route") as bus:
        bucket = await TaskStreams(bus, connection.names).routes()
        while True:
            entry = await bucket.get(endpoint)
            before = None
            if entry is not None and not change.replace:
                try:
                    before = parse_route(endpoint, entry.value)
                except InvalidRoute as error:
                    raise InvalidRoute(
                        f"what stands there cannot be changed ({error.message}): --replace writes it anew"
                    ) from error
            record = change.apply(endpoint, before)
            value = record.model_dump_json(exclude_defaults=True).encode()
            try:
                await bucket.put(endpoint, value, revision=0 if entry is None else entry.revision)
            except Conflict:
                continue  # somebody else changed it just now
            served = await _served(bus, connection)
            wanted = [*record.pools(endpoint), *record.shadow] if record.to or record.shadow else []
            return before, record, [pool for pool in wanted if pool not in served]


async def read_routes(connection: Connection, endpoint: str | None = None) -> list[RouteRow]:
    """All routes by endpoint, or the one of `endpoint`.

    Raises:
        InvalidRoute: there is none of that endpoint.
    """
    async with open_bus(connection, "gangline route") as bus:
        storage = TaskStorage.from_environment().bucket
        bucket = await bus.bucket(connection.names.routes_bucket, storage, make=False)
        entries = await bucket.entries(">" if endpoint is None else check_name(endpoint, "endpoint"))
    if endpoint is not None and not entries:
        raise _unknown(endpoint)
    rows = []
    for entry in sorted(entries, key=lambda entry: entry.key):
        record, why = None, ""
        try:
            record = parse_route(check_name(entry.key, "endpoint"), entry.value)
        except GanglineError as error:
            why = error.message
        rows.append(RouteRow(endpoint=entry.key, revision=entry.revision, record=record, error=why))
    return rows


async def delete_route(connection: Connection, endpoint: str) -> None:
    """Raises InvalidRoute: there is none of that endpoint."""
    check_name(endpoint, "endpoint")
    async with open_bus(connection, "gangline route") as bus:
        storage = TaskStorage.from_environment().bucket
        bucket = await bus.bucket(connection.names.routes_bucket, storage, make=False)
        if await bucket.get(endpoint) is None:
            raise _unknown(endpoint)
        await bucket.delete(endpoint)


async def _served(bus: Bus, connection: Connection) -> set[str]:
    """Pools with living workers, and standing sets."""
    names = connection.names
    ledger = await bus.bucket(names.ledger_bucket, BucketSettings.from_environment(), make=False)
    entries = await ledger.entries(names.alive_of(), names.gangset_key())
    return {entry.key.split(".")[1] for entry in entries}


def _unknown(endpoint: str) -> InvalidRoute:
    return InvalidRoute(f"{endpoint} has no route: it is the pool of its name; 'gangline route ls' shows all")
