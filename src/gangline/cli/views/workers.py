"""Tables of workers and leases, for a rich console."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...schemas.public_id import public_id
from ...schemas.records.workers import LeaseRecord
from ..console.output import duration, slots_bar, table
from ..stores.registry import WorkerRow

if TYPE_CHECKING:
    from rich.table import Table

_STATE_STYLES = {"serving": "green", "draining": "yellow", "lost": "red"}


def workers_table(rows: Sequence[WorkerRow]) -> Table:
    now = time.time()
    lines = []
    for row in rows:
        reg, beat = row.registration, row.heartbeat
        place = "/".join(part for part in (reg.zone, reg.node) if part)
        labels = " ".join(f"{key}={value}" for key, value in reg.labels.items())
        lines.append(
            (
                str(row.id),
                f"[{_STATE_STYLES[row.state]}]{row.state}[/]",
                slots_bar(beat.running, beat.reserved, beat.total) if beat else f"?/{reg.slots}",
                ", ".join(sorted(reg.methods)),
                " ".join(part for part in (place, labels) if part),
                str(reg.epoch),
                duration(now - reg.started_at) if reg.started_at else "",
            )
        )
    columns = ("WORKER", "STATE", "SLOTS", "TASKS", "PLACE", "EPOCH", "UP")
    return table(columns, lines, right=("UP",), whole=("WORKER", "STATE", "SLOTS"))


def leases_table(leases: Sequence[LeaseRecord]) -> Table:
    now = time.time()
    lines = [
        (
            public_id(lease.token),
            f"{lease.pool}.{lease.worker}",
            str(lease.slots),
            "one task" if lease.single_use else "held",
            lease.owner,
            duration(now - lease.granted_at) if lease.granted_at else "",
            duration(lease.expires_at - now),
        )
        for lease in leases
    ]
    columns = ("LEASE", "WORKER", "SLOTS", "FOR", "OWNER", "AGE", "EXPIRES IN")
    return table(columns, lines, right=("SLOTS", "AGE", "EXPIRES IN"), whole=("LEASE", "WORKER"))
