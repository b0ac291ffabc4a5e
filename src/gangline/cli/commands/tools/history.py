"""`gangline history`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ...console.arguments import moment_option
from ...console.options import ConnectionOptions, connection_options, json_option, watch_option

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
@watch_option
@json_option
@connection_options
def command(
    connection: ConnectionOptions,
    since: float | None,
    until: float | None,
    held_at: float | None,
    kinds: tuple[str, ...],
    limit: int,
    watch: bool,
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
    from ...console.watching import ListView, Page, list_rows

    if watch and held_at is not None:
        raise click.UsageError("--held-at cannot be combined with --watch")
    unknown = set(kinds) - {kind.value for kind in HistoryKind}
    if unknown:
        known = ", ".join(kind.value for kind in HistoryKind)
        raise click.UsageError(f"there is no kind {sorted(unknown)[0]!r}: give one of {known}")
    wanted = HistoryFilter(since=since, until=until, kinds=frozenset(map(HistoryKind, kinds)), **names)
    name = "gangline history"
    if held_at is None:
        view = ListView(
            item="record", table=_table, empty="nothing was recorded", key=_key, to_json=_to_json, newest=True
        )

        async def page(client: Client) -> Page[HistoryRecord]:
            return Page(await _read(client, wanted, None, limit))

        list_rows(connection, name, page, view, watch=watch, as_json=as_json)
    else:
        found = with_client(connection, name, lambda client: _read(client, wanted, held_at, limit))
        empty = f"nobody held slots at {_moment(held_at)} (leases shorter than a second are not recorded one by one)"
        print_rows(found, as_json, table=lambda rows: _held(rows, held_at), empty=empty, to_json=_to_json)


async def _read(client: Client, wanted: Any, held_at: float | None, limit: int) -> list[HistoryRecord]:
    from ....dispatcher.client.history import HistoryReader

    reader = HistoryReader(client.router.bus, client.router.names)
    if held_at is not None:
        return [record for record in await reader.held_at(held_at) if wanted.takes(record)]
    return await reader.records(wanted, limit=limit)


def _key(record: HistoryRecord) -> str:
    return record.model_dump_json(exclude_defaults=True)


def _to_json(record: HistoryRecord) -> dict[str, Any]:
    return record.model_dump(mode="json", exclude_defaults=True)


def _moment(at: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _held(records: Sequence[HistoryRecord], at: float) -> Listing:
    """Who held slots then, the longest holder first."""
    from ...console.output import Listing, duration

    rows = []
    for record in records:
        holder = f"gang {record.gang} (generation {record.generation})" if record.gang else f"lease {record.lease}"
        where = " ".join(record.workers) or f"{record.pool}.{record.worker}"
        slots = str(record.slots or "")
        rows.append((holder, record.owner, where, slots, _moment(record.at), duration(at - record.at)))
    headings = ("HOLDER", "OWNER", "ON", "SLOTS", "SINCE", "HELD FOR")
    return Listing(headings, rows, whole=("SINCE",))


def _table(records: Sequence[HistoryRecord]) -> Listing:
    from datetime import UTC, datetime

    from ...console.output import Listing

    rows = []
    for record in records:
        at = datetime.fromtimestamp(record.at, UTC).strftime("%m-%d %H:%M:%S")
        rows.append(
            (at, record.kind.value.replace("_", " "), _what(record), _more(record), record.by.partition(".")[0])
        )
    return Listing(
        ("WHEN (UTC)", "WHAT", "WHOM", "HOW", "BY"), rows, whole=("WHEN (UTC)", "WHAT"), wrap=("HOW",), drop=("BY",)
    )


def _what(record: HistoryRecord) -> str:
    if record.details.get("target"):
        return str(record.details["target"])
    # Leases do not know the generation of their gang, and leaders have a generation and no gang.
    gang = f"{record.gang}#{record.generation}" if record.gang and record.generation else record.gang
    task = record.job or ".".join(filter(None, (record.endpoint, record.method)))
    pool = record.pool if record.pool != record.endpoint else ""
    worker = f"{record.pool}.{record.worker}" if record.worker else pool
    return " ".join(filter(None, (gang, task, worker, record.lease)))


def _more(record: HistoryRecord) -> str:
    from ....schemas.records.history import HistoryKind
    from ....schemas.text import count_of
    from ...console.output import duration

    if record.kind in (HistoryKind.ATTEMPT_ENDED, HistoryKind.JOB_DEAD, HistoryKind.JOB_CANCELLED):
        return _of_job(record)
    told = []
    if record.kind is HistoryKind.ACTION:
        failed = f" ({record.details['error']})" if "error" in record.details else ""
        told.append(f"{record.details.get('action', '')} {record.details.get('stage', '')}{failed}")
    if record.slots:
        told.append(count_of(record.slots, "slot"))
    if record.kind in (HistoryKind.LEASES, HistoryKind.ATTEMPTS):
        told.append(f"{record.count} short {'one' if record.count == 1 else 'ones'} in a minute")
        told.append(f"{duration(record.seconds)} in all")
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


def _of_job(record: HistoryRecord) -> str:
    """How an attempt or a job ended."""
    from ....schemas.records.history import HistoryKind
    from ....schemas.text import count_of
    from ...console.output import duration

    if record.kind is HistoryKind.ATTEMPT_ENDED:
        took = "" if record.since is None else f" after {duration(record.at - record.since)}"
        how = f"failed{took}: {record.reason}" if record.reason else f"succeeded{took}"
        return f"attempt {record.attempt} {how}"
    if record.attempt:
        return f"{record.reason} after {count_of(record.attempt, 'attempt')}".strip()
    return record.reason or "before its first attempt"
