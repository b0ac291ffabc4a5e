"""Displays schedules."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo

from ...dispatcher.jobs.stored import Schedule
from ...schemas.errors.base import InvalidSchedule
from ...schemas.schedules import parse_schedule, short_cron
from ...schemas.wire.codec import from_json, to_json
from ..console.output import Listing, about, duration

_RUNS: Final = 3
"""How many of the next runs are shown."""


def title(schedule: Schedule) -> str:
    """How a message calls it."""
    return schedule.name or schedule.id


def schedules_table(schedules: Sequence[Schedule]) -> Listing:
    now = time.time()
    lines = [
        (
            schedule.name or schedule.id,
            schedule.target,
            f"{short_cron(schedule.cron)}{f' {schedule.time_zone}' if schedule.time_zone else ''}",
            _next(schedule, now),
        )
        for schedule in schedules
    ]
    return Listing(("SCHEDULE", "TASK", "WHEN", "NEXT"), lines, whole=("SCHEDULE", "NEXT"), drop=("TASK",))


def _next(schedule: Schedule, now: float) -> str:
    if schedule.paused:
        return "paused"
    return "" if schedule.next_at is None else f"{_moment(schedule.next_at, _zone(schedule))}, {_in(schedule, now)}"


def next_run(schedule: Schedule) -> str:
    """When it runs next."""
    if schedule.next_at is None:
        return "unknown"
    return f"{_moment(schedule.next_at, _zone(schedule))}, {_in(schedule, time.time())}"


def _in(schedule: Schedule, now: float) -> str:
    """How long until its next run, in two units at most: `in 13 h 34 min`."""
    assert schedule.next_at is not None
    return f"in {about(schedule.next_at - now)}"


def _zone(schedule: Schedule) -> tzinfo:
    return ZoneInfo(schedule.time_zone) if schedule.time_zone else UTC


def schedule_lines(schedule: Schedule) -> Iterator[str]:
    """One schedule."""
    now = time.time()
    paused = None if schedule.paused_at is None else f"{duration(now - schedule.paused_at)} ago"
    fields = (
        ("schedule", schedule.id),
        ("name", schedule.name),
        ("task", schedule.target),
        ("when", short_cron(schedule.cron)),
        ("time zone", schedule.time_zone or ("" if schedule.cron.startswith("@every") else "UTC")),
        ("paused", paused),
        ("next", None if schedule.paused else next_run(schedule)),
        *(("then", text) for text in _later(schedule)),
        (
            "declared",
            f"{duration(now - schedule.declared_at)} ago{', by the task (cron=)' if schedule.in_code else ''}",
        ),
        ("arguments", json.dumps(_plain(schedule.arguments), ensure_ascii=False) if schedule.data else "none"),
        *((name, value) for name, value in sorted(schedule.headers.items()) if name in _SHOWN),
        ("runs", f"'gangline jobs ls --schedule {title(schedule)}' lists them, as {schedule.id}-NUMBER"),
    )
    for name, value in fields:
        if value:
            yield f"{_SHOWN.get(name, name):<11}{value}"


_SHOWN: Final = {
    "Gangline-Priority": "priority",
    "Gangline-Key": "key",
    "Gangline-Timeout": "timeout",
    "Gangline-Max-Attempts": "attempts",
    "Gangline-Deadline": "deadline",
    "Gangline-Pool": "pool",
}
"""Headers with options of the runs, and what they are called."""


def _later(schedule: Schedule) -> Iterator[str]:
    """The runs after the next, in its own time zone."""
    if schedule.next_at is None:
        return
    try:
        parsed = parse_schedule(schedule.cron, schedule.time_zone)
    except InvalidSchedule:
        return
    zone = _zone(schedule)
    moment: float | None = schedule.next_at
    for _ in range(_RUNS - 1):
        moment = None if moment is None else parsed.next(moment)
        if moment is not None:
            yield _moment(moment, zone)


def _moment(at: float, zone: tzinfo) -> str:
    text = f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M:%S%z}"
    return text.replace("+0000", "Z")


COMES_BACK: Final = (
    "its task declares it with cron=: a dispatcher stores it again within seconds; to stop it, use 'gangline schedules "
    "pause', which lasts, or remove cron="
)
"""About a removed schedule that was declared in code."""


def schedule_json(schedule: Schedule) -> dict[str, object]:
    return {
        "schedule": schedule.id,
        "name": schedule.name,
        "endpoint": schedule.endpoint,
        "method": schedule.method,
        "cron": schedule.cron,
        "time_zone": schedule.time_zone or None,
        "paused_at": schedule.paused_at,
        "next_at": schedule.next_at,
        "declared_at": schedule.declared_at,
        "in_code": schedule.in_code,
        "arguments": _plain(schedule.arguments),
        "headers": dict(schedule.headers),
    }


def _plain(value: Any) -> Any:
    return from_json(to_json(value))
