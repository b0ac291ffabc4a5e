"""Routes for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...schemas.records.routes import QueueRules, RouteRecord
from ...schemas.text import plain
from ..console.output import table
from ..stores.route_store import RouteRow

if TYPE_CHECKING:
    from rich.table import Table


def routes_table(rows: Sequence[RouteRow]) -> Table:
    from rich.markup import escape

    lines: list[Sequence[str]] = []
    for row in rows:
        record = row.record
        if record is None:
            lines.append((row.endpoint, f"[red]{escape(row.error)}[/]", "", "", "not followed"))
        else:
            lines.append((row.endpoint, *(" ".join(part) for part in _parts(row.endpoint, record))))
    return table(("ENDPOINT", "TO", "SHADOW", "LIMITS", "QUEUE"), lines)


def route_lines(endpoint: str, record: RouteRecord, change: str) -> Iterator[str]:
    """`resize changed: resize-v1 90%, resize-v2 10%`, and one line for each other thing."""
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
