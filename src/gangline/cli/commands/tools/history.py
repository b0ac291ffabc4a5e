"""`gangline history`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ...console.arguments import moment_option
from ...console.options import ConnectionOptions, connection_options, json_option

if TYPE_CHECKING:
    from ....dispatcher.client.client import Client
    from ....schemas.records.history import HistoryRecord
    from ...console.output import Listing


@click.command(short_help="Show what happened: leases, gangs, jobs, drains, leaders, routes, operators.")
@moment_option("--since", text="Only what happened after this.")
@moment_option("--until", text="Only what happened before this.")
@moment_option("--held-at", text="Who held slots at this time, instead of what happened.")
@click.option("--pool", default="", metavar="POOL", help="Only this pool.")
@click.option("--worker", default="", metavar="POOL.WORKER", help="Only this worker.")
@click.option("--gang", default="", metavar="GANG", help="Only this gang.")
@click.option("--job", default="", metavar="JOB", help="Only this job.")
@click.option("--endpoint", default="", metavar="ENDPOINT", help="Only this endpoint.")
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Only this kind, such as gang_ended. Repeatable.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, metavar="N", help="Newest.")
@json_option
@connection_options
def command(
    connection: ConnectionOptions,
    since: float | None,
    until: float | None,
    held_at: float | None,
    kinds: tuple[str, ...],
    limit: int,
    as_json: bool,
    **names: str,
) -> None:
    """Show what happened, oldest first: leases, gangs and why each generation ended, attempts of jobs, drains, changes
    of leader, routes, and what operators did.

    TIME is a time of today (14:03), a date and time (2026-01-31T14:03, in UTC unless it names its zone), or how long
    ago (10m, 2h).

    Leases and successful attempts shorter than a second are counted once a minute. The history is kept for a week, or
    as long as it fits into its size. The same with nats:

        nats stream view GANGLINE_HISTORY
    """
    from ....dispatcher.client.history import HistoryFilter
    from ....schemas.records.history import HistoryKind
    from ...console.output import print_rows
    from ...console.session import with_client

    unknown = set(kinds) - {kind.value for kind in HistoryKind}
    if unknown:
        known = ", ".join(kind.value for kind in HistoryKind)
        raise click.UsageError(f"there is no kind {sorted(unknown)[0]!r}: give one of {known}")
    wanted = HistoryFilter(since=since, until=until, kinds=frozenset(map(HistoryKind, kinds)), **names)
    found = with_client(connection, "gangline history", lambda client: _read(client, wanted, held_at, limit))
    if held_at is None:
        print_rows(found, as_json, table=_table, empty="nothing was recorded", to_json=_to_json)
    else:
        empty = f"nobody held slots at {_moment(held_at)} (leases shorter than a second are not recorded one by one)"
        print_rows(found, as_json, table=lambda rows: _held(rows, held_at), empty=empty, to_json=_to_json)


async def _read(client: Client, wanted: Any, held_at: float | None, limit: int) -> list[HistoryRecord]:
    from ....dispatcher.client.history import HistoryReader

    reader = HistoryReader(client.router.bus, client.router.names)
    if held_at is not None:
        return [record for record in await reader.held_at(held_at) if wanted.takes(record)]
    return await reader.records(wanted, limit=limit)


def _to_json(record: HistoryRecord) -> dict[str, Any]:
    return record.model_dump(mode="json", exclude_defaults=True)


def _moment(at: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _held(records: Sequence[HistoryRecord], at: float) -> Listing:
    """Who held slots then, the longest holder first."""
    from ...console.output import duration, table

    rows = []
    for record in records:
        holder = f"gang {record.gang} (generation {record.generation})" if record.gang else f"lease {record.lease}"
        where = " ".join(record.workers) or f"{record.pool}.{record.worker}"
        slots = str(record.slots or "")
        rows.append((holder, record.owner, where, slots, _moment(record.at), duration(at - record.at)))
    headings = ("HOLDER", "OWNER", "ON", "SLOTS", "SINCE", "HELD FOR")
    return table(headings, rows, whole=("SINCE",))


def _table(records: Sequence[HistoryRecord]) -> Listing:
    from datetime import UTC, datetime

    from ...console.output import table

    rows = []
    for record in records:
        at = datetime.fromtimestamp(record.at, UTC).strftime("%m-%d %H:%M:%S")
        rows.append(
            (at, record.kind.value.replace("_", " "), _what(record), _more(record), record.by.partition(".")[0])
        )
    return table(
        ("WHEN (UTC)", "WHAT", "WHOM", "HOW", "BY"), rows, whole=("WHEN (UTC)", "WHAT"), wrap=("HOW",), drop=("BY",)
    )


def _what(record: HistoryRecord) -> str:
    if record.details.get("target"):
        return str(record.details["target"])
    worker = f"{record.pool}.{record.worker}" if record.worker else record.pool
    gang = f"{record.gang}#{record.generation}" if record.generation else record.gang  # leases do not know it
    named = (gang, record.job or record.endpoint, worker, record.lease)
    return " ".join(filter(None, named))


def _more(record: HistoryRecord) -> str:
    from ....schemas.records.history import HistoryKind
    from ....schemas.text import count_of
    from ...console.output import duration

    told = []
    if record.kind is HistoryKind.ACTION:
        failed = f" ({record.details['error']})" if "error" in record.details else ""
        told.append(f"{record.details.get('action', '')} {record.details.get('stage', '')}{failed}")
    if record.slots:
        told.append(count_of(record.slots, "slot"))
    if record.attempt:
        told.append(f"attempt {record.attempt}")
    if record.kind in (HistoryKind.LEASES, HistoryKind.ATTEMPTS):
        told.append(f"{record.count} in a minute, {duration(record.seconds)} in all")
    elif record.kind is HistoryKind.LEASE_GRANTED and record.since is not None:
        told.append(f"{duration(record.at - record.since)} earlier")  # recorded when it turned out to last
    elif record.since is not None:
        told.append(f"after {duration(record.at - record.since)}")
    if record.kind is HistoryKind.WORKER_LOST:
        told += [f"with lease {lease}" for lease in record.details.get("leases", ())]
        told += [f"with gang {gang}" for gang in record.details.get("gangs", ())]
    told += [record.owner and f"for {record.owner}", record.reason, " ".join(record.workers)]
    if record.kind is HistoryKind.ROUTE_SET:
        told.append(str(record.details))
    if record.kind in (HistoryKind.LEADER_ELECTED, HistoryKind.LEADER_YIELDED):
        told.insert(0, f"term {record.generation}")
    return ", ".join(filter(None, told))
