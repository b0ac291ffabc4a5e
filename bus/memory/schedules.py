"""When the server publishes a scheduled message: `@at`, `@every` and six fields of cron, as nats-server reads them.

For the in-memory bus, and to tell a user what a schedule means before it is sent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(h|ms|us|µs|ns|m|s)")
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_SHORTHANDS: Final = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
_MONTHS: Final = {
    "JAN": "1", "FEB": "2", "MAR": "3", "APR": "4", "MAY": "5", "JUN": "6",
    "JUL": "7", "AUG": "8", "SEP": "9", "OCT": "10", "NOV": "11", "DEC": "12",
}  # fmt: skip
_DAYS: Final = {"SUN": "0", "MON": "1", "TUE": "2", "WED": "3", "THU": "4", "FRI": "5", "SAT": "6"}
_FIELDS: Final[tuple[tuple[int, int, dict[str, str]], ...]] = (
    (0, 59, {}),
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, _MONTHS),
    (0, 6, _DAYS),
)
_HORIZON: Final = timedelta(days=5 * 366)
"""A date that does not come within so long (February 30th) never does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CronSchedule:
    """One schedule; exactly one of the first three is set."""

    at: float | None = None
    """Unix time."""
    every_s: float | None = None
    cron: tuple[frozenset[int], ...] | None = None
    either_day: bool = False
    """Both the day of the month and that of the week are limited: one of them is enough."""
    zone: tzinfo = UTC

    @property
    def once(self) -> bool:
        return self.at is not None

    def next(self, after: float) -> float | None:
        """The first time later than `after`; both Unix times. None: not within five years. A time `at` in the past is
        due at once.

        `@every` counts in whole seconds, as the server does.
        """
        if self.at is not None:
            return max(self.at, after)
        if self.every_s is not None:
            return int(after + 0.5) + self.every_s
        found = self._next_of_cron(datetime.fromtimestamp(after, self.zone).replace(tzinfo=None))
        return None if found is None else found.replace(tzinfo=self.zone).timestamp()

    def _next_of_cron(self, after: datetime) -> datetime | None:
        assert self.cron is not None
        seconds, minutes, hours, _, months, _ = self.cron
        moment = after.replace(microsecond=0) + timedelta(seconds=1)
        end = after + _HORIZON
        while moment < end:
            if moment.month not in months:
                first = moment.replace(day=1, hour=0, minute=0, second=0)
                moment = (first + timedelta(days=32)).replace(day=1)
            elif not self._on_day(moment):
                moment = moment.replace(hour=0, minute=0, second=0) + timedelta(days=1)
            elif moment.hour not in hours:
                moment = moment.replace(minute=0, second=0) + timedelta(hours=1)
            elif moment.minute not in minutes:
                moment = moment.replace(second=0) + timedelta(minutes=1)
            elif moment.second not in seconds:
                moment += timedelta(seconds=1)
            else:
                return moment
        return None

    def _on_day(self, moment: datetime) -> bool:
        assert self.cron is not None
        of_month = moment.day in self.cron[3]
        of_week = moment.isoweekday() % 7 in self.cron[5]
        return of_month or of_week if self.either_day else of_month and of_week


def parse_schedule(text: str, zone: str = "") -> CronSchedule:
    """What stands in `Nats-Schedule`: `@at <RFC 3339>`, `@every <duration>`, six fields of cron (seconds first) or a
    shorthand such as `@daily`; with the zone that stands in `Nats-Schedule-Time-Zone` (cron only; UTC without).

    Raises:
        ValueError: it is none of these.
    """
    word, _, rest = text.strip().partition(" ")
    if zone and word in ("@at", "@every"):
        raise ValueError("a time zone is for cron only")
    if word == "@at":
        moment = datetime.fromisoformat(rest.strip())
        if moment.tzinfo is None:
            raise ValueError(f"{rest!r} has no time zone: end it with Z or +hh:mm")
        return CronSchedule(at=moment.timestamp())
    if word == "@every":
        every_s = parse_go_duration(rest.strip())
        if every_s < 1:
            raise ValueError(f"{rest!r} is less than a second")
        return CronSchedule(every_s=every_s)
    try:
        where = ZoneInfo(zone) if zone else UTC
    except (ZoneInfoNotFoundError, ValueError):
        raise ValueError(f"there is no time zone {zone!r}") from None
    return _parse_cron(_SHORTHANDS.get(text.strip(), text), where)


def parse_go_duration(text: str) -> float:
    """Seconds of a duration as Go writes it, such as `1h30m` or `500ms`.

    Raises:
        ValueError: it is none.
    """
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text[:40]!r} is not a duration: write 10s, 5m or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _parse_cron(text: str, zone: tzinfo) -> CronSchedule:
    fields = text.split()
    if len(fields) != len(_FIELDS):
        raise ValueError(f"{text[:80]!r} has {len(fields)} fields, cron has six: second minute hour day month weekday")
    sets = tuple(_parse_field(field, *bounds) for field, bounds in zip(fields, _FIELDS, strict=True))
    either = not any(fields[place].startswith(("*", "?")) for place in (3, 5))
    schedule = CronSchedule(cron=sets, either_day=either, zone=zone)
    if schedule.next(0.0) is None:
        raise ValueError(f"{text!r} never comes")
    return schedule


def _parse_field(text: str, lowest: int, highest: int, names: dict[str, str]) -> frozenset[int]:
    found: set[int] = set()
    for part in filter(None, text.upper().split(",")):
        span, slash, step = part.partition("/")
        if span in ("*", "?"):
            first, last = lowest, highest
        else:
            begin, dash, end = span.partition("-")
            first = _number(names.get(begin, begin))
            last = _number(names.get(end, end)) if dash else (highest if slash else first)
        stride = _number(step) if slash else 1
        if not lowest <= first <= last <= highest or stride < 1:
            raise ValueError(f"{part!r} is no part of a cron field from {lowest} to {highest}")
        found.update(range(first, last + 1, stride))
    if not found:
        raise ValueError(f"{text!r} is no cron field")
    return frozenset(found)


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is no number")
    return int(text)
