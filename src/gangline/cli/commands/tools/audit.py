"""`gangline audit`"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from ...console.options import ConnectionOptions, connection_options, json_option

if TYPE_CHECKING:
    from ....dispatcher.client.audit import AuditEntry
    from ...console.output import Listing


@click.command(short_help="List what operators did: who, when, what and why.")
@click.option("--by", "by", metavar="NAME", help="Only this operator's actions.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, metavar="N", help="Newest records.")
@json_option
@connection_options
def command(connection: ConnectionOptions, by: str | None, limit: int, as_json: bool) -> None:
    """List what operators did with gangline's commands: who, when, what and why; oldest first.

    Each action is recorded before it (begun) and after it (done or failed). The table has one row for both; --json has
    both, with whole targets and years.

    \b
    The same with nats:
        nats stream view GANGLINE_AUDIT
    """
    from ...console.output import print_rows
    from ...console.session import audit_of, with_client

    found = with_client(connection, "gangline audit", lambda client: audit_of(client).entries(user=by, limit=limit))
    print_rows(found, as_json, table=_table, empty="no records", to_json=_to_json)


def _to_json(entry: AuditEntry) -> dict[str, Any]:
    return {"user": entry.user, "at": entry.at, **entry.record.model_dump(mode="json", exclude={"v"})}


def _table(entries: Sequence[AuditEntry]) -> Listing:
    from datetime import UTC, datetime

    from ...console.output import Listing

    actions: dict[str, list[AuditEntry]] = {}
    for entry in entries:
        actions.setdefault(entry.record.id, []).append(entry)
    rows = []
    for first, *_, last in ([*each, each[-1]] for each in actions.values()):
        record = last.record
        stage = f"{record.stage} ({record.error})" if record.error else record.stage.value
        at = datetime.fromtimestamp(first.at, UTC).strftime("%m-%d %H:%M:%S")
        target = record.target if len(record.target) <= _MOST_TARGET else f"{record.target[: _MOST_TARGET - 1]}…"
        rows.append((at, first.user, record.action, target, stage, record.reason))
    columns = ("WHEN (UTC)", "USER", "ACTION", "TARGET", "STAGE", "REASON")
    return Listing(columns, rows, whole=("WHEN (UTC)",), drop=("REASON", "USER"))


_MOST_TARGET: Final = 120
"""Characters of it in a table: an action on many jobs names all of them."""
