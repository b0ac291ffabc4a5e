"""Displays routes, and changes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...bus.port.bus import Conflict, KeyValue
from ...dispatcher.client.client import Client
from ...dispatcher.jobs.storage import TaskStorage, TaskStreams
from ...schemas.errors.base import GanglineError, InvalidRoute
from ...schemas.names import check_name
from ...schemas.records.routes import QueueRules, RouteRecord, parse_route
from ...schemas.text import plain
from ...schemas.wire import codec
from ..console.arguments import NONE
from ..console.output import Listing, cell_text

_ROUTE_FIELDS: Final = ("to", "shadow", "limits", "by_key")
_RULE_FIELDS: Final = {
    "max_running": "max_running",
    "per_key": "per_key",
    "ordered": "ordered",
    "rate": "rate_per_s",
    "burst": "burst",
    "max_attempts": "max_attempts",
    "backoff": "backoff_s",
    "backoff_max": "backoff_max_s",
    "timeout": "timeout_s",
    "result_ttl": "result_ttl_s",
    "paused": "paused",
}
"""Option -> field of the queue's rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteChange:
    """Fields to set, or (NONE) to reset."""

    route: Mapping[str, Any]
    queue: Mapping[str, Any]
    replace: bool = False
    """Whether fields that are not given are reset, too."""

    @classmethod
    def of(cls, given: Mapping[str, Any], *, replace: bool) -> RouteChange:
        """From a command's options; None is "not given"."""
        return cls(
            route={name: given[name] for name in _ROUTE_FIELDS if given.get(name) is not None},
            queue={field: given[name] for name, field in _RULE_FIELDS.items() if given.get(name) is not None},
            replace=replace,
        )

    def apply(self, endpoint: str, before: RouteRecord | None) -> RouteRecord:
        """The changed route.

        Raises:
            InvalidRoute: the result is invalid; names the field and says why.
        """
        old = {} if before is None or self.replace else before.model_dump(mode="json", exclude_defaults=True)
        new = _changed(old, self.route)
        if queue := _changed(old.get("queue", {}), self.queue):
            new["queue"] = queue
        return parse_route(endpoint, codec.to_json(new))


def _changed(old: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    new = {name: value for name, value in old.items() if name not in given and name != "queue"}
    return new | {name: value for name, value in given.items() if value != NONE}


# -- in the bucket ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRow:
    """One value of the bucket."""

    endpoint: str
    revision: int
    record: RouteRecord | None
    """None: it is invalid."""
    error: str = ""

    def to_json(self) -> dict[str, object]:
        if self.record is None:
            return {"endpoint": self.endpoint, "revision": self.revision, "error": self.error}
        route = self.record.model_dump(mode="json", exclude_defaults=True)
        return {"endpoint": self.endpoint, "revision": self.revision, "route": route}


async def change_route(
    client: Client, endpoint: str, change: RouteChange
) -> tuple[RouteRecord | None, RouteRecord, list[str]]:
    """Write the route. Returns the previous and the new one, and those of its pools that nobody serves and that got
    no requests, or no copies, before.

    Raises:
        InvalidRoute: the existing or the new route is invalid; nothing was written.
    """
    bucket = await TaskStreams(client.router.bus, client.router.names).routes()
    while True:
        entry = await bucket.get(endpoint)
        before = None
        if entry is not None and not change.replace:
            try:
                before = parse_route(endpoint, entry.value)
            except InvalidRoute as error:
                raise InvalidRoute(
                    f"the existing route cannot be changed ({error.message}): use --replace to overwrite it"
                ) from error
        record = change.apply(endpoint, before)
        value = record.model_dump_json(exclude_defaults=True).encode()
        try:
            await bucket.put(endpoint, value, revision=0 if entry is None else entry.revision)
        except Conflict:
            continue  # another client changed it meanwhile
        served = await _served(client)
        known = [] if before is None else _fed(before)
        return before, record, [fed[0] for fed in _fed(record) if fed[0] not in served and fed not in known]


def _fed(record: RouteRecord) -> list[tuple[str, str]]:
    """Its pools that get requests, or copies, and which of the two."""
    shares = (("requests", record.to), ("copies", record.shadow))
    return [(pool, what) for what, pools in shares for pool, share in pools.items() if share > 0]


async def read_routes(client: Client, endpoint: str | None = None) -> list[RouteRow]:
    """All routes by endpoint, or the one of `endpoint`.

    Raises:
        InvalidRoute: the endpoint has none.
    """
    bucket = await _bucket(client)
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


async def _bucket(client: Client) -> KeyValue:
    """The bucket as it is; reading does not create it."""
    storage = TaskStorage.from_environment().routes
    return await client.router.bus.bucket(client.router.names.routes_bucket, storage, make=False)


async def _served(client: Client) -> set[str]:
    """Pools with living workers, and standing sets."""
    names = client.router.names
    entries = await (await client.router.ledger()).entries(names.alive_of(), names.gangset_key())
    return {entry.key.split(".")[1] for entry in entries}


def _unknown(endpoint: str) -> InvalidRoute:
    return InvalidRoute(f"{endpoint} has no route: it is the pool of its name; 'gangline route ls' shows all")


# -- tables ----------------------------------------------------------------------------------------------------


def routes_table(rows: Sequence[RouteRow]) -> Listing:
    from rich.text import Text

    lines: list[Sequence[str | Text]] = []
    for row in rows:
        record = row.record
        if record is None:
            lines.append((row.endpoint, Text(cell_text(row.error), "red"), "", "", "not followed"))
        else:
            lines.append((row.endpoint, *(" ".join(part) for part in _parts(row.endpoint, record))))
    return Listing(
        ("ENDPOINT", "TO", "SHADOW", "LIMITS", "QUEUE"),
        lines,
        whole=("ENDPOINT",),
        wrap=("TO", "SHADOW", "LIMITS", "QUEUE"),
    )


def route_lines(endpoint: str, record: RouteRecord, change: str) -> Iterator[str]:
    """`resize changed: resize-v1 90%, resize-v2 10%`, and one line for each other change."""
    to, shadow, limits, queue = _parts(endpoint, record)
    yield f"{endpoint} {change}: to {', '.join(to)}"
    for name, part in (("copies to", shadow), ("limits", limits), ("queue", queue)):
        if part:
            yield f"  {name}: {', '.join(part)}"


def _parts(endpoint: str, record: RouteRecord) -> tuple[list[str], list[str], list[str], list[str]]:
    weights = record.pools(endpoint)
    total = sum(weights.values())
    return (
        [f"{pool} {plain(round(100 * weight / total, 2))}%" for pool, weight in weights.items()],
        [f"{pool} {plain(percent)}%" for pool, percent in record.shadow.items()],
        [f"{pool} {limit}" for pool, limit in record.limits.items()],
        list(_rules(record.queue)) + ([] if record.by_key else ["not by key"]),
    )


def _rules(queue: QueueRules) -> Iterator[str]:
    if queue.paused:
        yield "paused"
    if queue.ordered:
        yield "ordered"
    if queue.rate_per_s is not None:
        yield f"rate={plain(round(queue.rate_per_s, 6))}/s"
    for name, value in queue.model_dump(exclude_defaults=True).items():
        if name not in ("paused", "ordered", "rate_per_s"):
            yield f"{name}={plain(value)}"
