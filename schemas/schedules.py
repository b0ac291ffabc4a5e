"""Checks schedules before they are sent to the server, and knows when they are due. Pure.

The server reads `Nats-Schedule` by the rules of robfig/cron (`@at`: nats-server 2.12 and later; all others: 2.14). This
accepts the same schedules, and for all others says what to write. It also refuses a field of nothing but commas: it
matches no time, and JetStream stalls for seconds while the server searches for one.

=======================  =============================================================================================
six fields               seconds, minutes, hours, days of the month, months, days of the week (0 is Sunday, 6 Saturday)
five fields              the same without seconds: at second 0 (here only; the server gets six)
a field                  one or more of the following, separated by commas
`*`, `?`                 every one
`5`, `mon`, `jan`        that one; names of three letters are for months and days of the week
`1-5`, `mon-fri`         a range, upwards
`*/10`, `5/10`, `0-30/5` every 10th, or every 10th from that one on
`@every 1h30m`           at least one second
`@hourly`, ...           see `NAMED`
`@at` RFC 3339           once
=======================  =============================================================================================

Times of cron are UTC, or those of a time zone (`Nats-Schedule-Time-Zone`). Where clocks change, the server goes by what
they show: a time that is skipped does not come on that day, and one that is repeated comes twice.
"""

from __future__ import annotations

import itertools
import re
import zoneinfo
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from .errors.base import InvalidSchedule

NAMED: Final = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
"""Names of schedules, and the same as cron."""
_MONTHS: Final = {
    "jan": 1,
    "feb": 2,
    "mar": 3,
    "apr": 4,
    "may": 5,
    "jun": 6,
    "jul": 7,
    "aug": 8,
    "sep": 9,
    "oct": 10,
    "nov": 11,
    "dec": 12,
}
_DAYS: Final = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_FIELDS: Final[tuple[tuple[str, int, int, dict[str, int]], ...]] = (
    ("seconds", 0, 59, {}),
    ("minutes", 0, 59, {}),
    ("hours", 0, 23, {}),
    ("days of the month", 1, 31, {}),
    ("months", 1, 12, _MONTHS),
    ("days of the week", 0, 6, _DAYS),
)
_LONGEST: Final = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""Number of days of each month."""
_NUMBER: Final = re.compile(r"\+?[0-9]{1,18}")
_LENGTH: Final = re.compile(r"[+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+")
_PART: Final = re.compile(r"([0-9.]+)([a-zµμ]+)")
_NS: Final = {"ns": 1, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}
_MOST_NS: Final = float(1 << 63)
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:\d\d)", re.ASCII)
_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*", re.ASCII)
_SHOWN: Final = 60
_HORIZON_S: Final = 5 * 366 * 86_400
"""A date that does not occur within this time never does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CronSchedule:
    """One schedule; exactly one of the first three is set."""

    at: float | None = None
    """Unix time."""
    every_s: float | None = None
    cron: tuple[frozenset[int], ...] | None = None
    """The values of the six fields."""
    either_day: bool = False
    """Whether both the day of the month and the day of the week are restricted: then one match is enough."""
    zone: tzinfo = UTC

    @property
    def once(self) -> bool:
        return self.at is not None

    @property
    def shortest_s(self) -> float:
        """No two runs are closer than that, except where clocks change."""
        if self.every_s is not None:
            return self.every_s
        if self.cron is None:
            return float("inf")
        for values, unit_s, count in zip(self.cron, (1.0, 60.0, 3600.0), (60, 60, 24), strict=False):
            if len(values) > 1:
                ordered = sorted(values)
                gaps = [later - earlier for earlier, later in itertools.pairwise((*ordered, ordered[0] + count))]
                return min(gaps) * unit_s
        return 86_400.0

    def next(self, after: float) -> float | None:
        """The first time after `after`, both in Unix time; None: not within five years. An `@at` in the past is due at
        once. `@every` counts in whole seconds, like the server."""
        if self.at is not None:
            return max(self.at, after)
        if self.every_s is not None:
            return int(after + 0.5) + self.every_s
        return self._next_of_cron(int(after) + 1)

    def _next_of_cron(self, moment: int) -> float | None:
        """The first time from `moment` on. Hours, minutes and seconds pass as they do in fact, also where clocks
        change."""
        assert self.cron is not None
        seconds, minutes, hours, _, months, _ = self.cron
        end = moment + _HORIZON_S
        while moment < end:
            local = datetime.fromtimestamp(moment, self.zone)
            if local.month not in months:
                moment = self._midnight((local.replace(day=1) + timedelta(days=32)).replace(day=1))
            elif not self._on_day(local):
                moment = max(moment + 1, self._midnight(local + timedelta(days=1)))
            elif local.hour not in hours:
                moment += 3600 - 60 * local.minute - local.second
            elif local.minute not in minutes:
                moment += 60 - local.second
            elif local.second not in seconds:
                moment += 1
            else:
                return moment
        return None

    def _midnight(self, day: datetime) -> int:
        return int(datetime(day.year, day.month, day.day, tzinfo=self.zone).timestamp())

    def _on_day(self, moment: datetime) -> bool:
        assert self.cron is not None
        of_month = moment.day in self.cron[3]
        of_week = moment.isoweekday() % 7 in self.cron[5]
        return of_month or of_week if self.either_day else of_month and of_week


def short_cron(text: str) -> str:
    """A checked schedule as people write it: cron at second 0 with five fields, not the six that the server gets."""
    fields = text.split()
    return " ".join(fields[1:]) if len(fields) == len(_FIELDS) and fields[0] == "0" else text


def check_schedule(text: str, zone: str = "") -> str:
    """Return a schedule as the server accepts it: without surrounding blanks, and with six fields if it has five.

    Args:
        zone: name of the time zone of cron, such as `Europe/Berlin`; empty: UTC.

    Raises:
        InvalidSchedule: says what is wrong, and what to write.
    """
    text = text.strip()
    five = not text.startswith("@") and len(text.split()) == len(_FIELDS) - 1
    full = f"0 {text}" if five else text
    _parse(full, zone, text)
    return full


def parse_schedule(text: str, zone: str = "") -> CronSchedule:
    """What the server makes of `Nats-Schedule` and `Nats-Schedule-Time-Zone`.

    Raises:
        InvalidSchedule: it refuses them.
    """
    return _parse(text, zone, text)


def _parse(text: str, zone: str, typed: str) -> CronSchedule:
    """`typed`: as its author wrote it, for errors."""
    if text.startswith("@") and text not in NAMED:
        found = _parse_named(text)
        if zone:
            raise _wrong(text, "only cron schedules take a time zone")
        return found
    where = _zone(zone)
    fields = NAMED.get(text, text).split()
    if len(fields) != len(_FIELDS):
        raise InvalidSchedule(_of_fields(text, len(fields)))
    parsed = [_parse_field(typed, *each) for each in zip(fields, _FIELDS, strict=True)]
    days, months, weekdays = parsed[3:]
    # If both days of the week and days of the month are given, either of them is enough.
    if weekdays[1] and not any(day <= _LONGEST[month] for month in months[0] for day in days[0]):
        raise _wrong(typed, "no month that it names has such a day")
    return CronSchedule(
        cron=tuple(frozenset(values) for values, _ in parsed),
        either_day=not (days[1] or weekdays[1]),
        zone=where,
    )


def check_time_zone(zone: str) -> str:
    """Return the name of a time zone, such as `Europe/Berlin`. Without a time zone database on this machine, only its
    form is checked, and the server decides.

    Raises:
        InvalidSchedule: there is no such time zone.
    """
    _zone(zone)
    return zone


def _zone(name: str) -> tzinfo:
    if not name or name == "UTC":
        return UTC
    if _ZONE.fullmatch(name) is not None:
        try:
            return zoneinfo.ZoneInfo(name)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            if not zoneinfo.available_timezones():
                return UTC
    close = _close(name, zoneinfo.available_timezones())
    hint = f"did you mean {close!r}?" if close else "write one such as 'Europe/Berlin'"
    raise InvalidSchedule(f"there is no time zone {name[:_SHOWN]!r}: {hint}")


def _close(name: str, known: set[str]) -> str:
    """The known name that has the same city, in whatever spelling."""
    city = name.rpartition("/")[2].lower().replace(" ", "_")
    return min((each for each in known if city and each.rpartition("/")[2].lower() == city), default="")


def _of_fields(text: str, count: int) -> str:
    shown = text[:_SHOWN]
    if not count:
        return "it is empty: give five or six fields of cron, such as '0 3 * * *', or '@every 5m'"
    number = f"{count} field{'' if count == 1 else 's'}"
    return (
        f"{shown!r} has {number}: a schedule has five fields of cron, such as '0 3 * * *', or six with the seconds "
        "first, or is '@every 5m'"
    )


def _parse_named(text: str) -> CronSchedule:
    kind, _, rest = text.partition(" ")
    if kind == "@every":
        return CronSchedule(every_s=_every_s(text, rest))
    if kind == "@at":
        moment = _moment(rest)
        if moment is None:
            raise _wrong(text, "'@at' takes a timestamp such as 2030-01-31T12:00:00Z")
        return CronSchedule(at=moment)
    if text.lower() in NAMED or kind.lower() in ("@every", "@at"):
        raise _wrong(text, f"write {kind.lower()!r}, in lower case")
    raise _wrong(text, f"there are '@every 5m' and {', '.join(NAMED)}")


def _every_s(text: str, length: str) -> float:
    if _LENGTH.fullmatch(length) is None:
        raise _wrong(text, "'@every' takes, after one blank, a duration such as 30s, 5m or 1h30m")
    ns = sum(float(number) * _NS[unit] for number, unit in _PART.findall(length))
    if length.startswith("-") or ns < _NS["s"]:
        raise _wrong(text, "at least one second lies between two times")
    if ns >= _MOST_NS:
        raise _wrong(text, "that is longer than 292 years")
    return ns / _NS["s"]


def _moment(text: str) -> float | None:
    if _MOMENT.fullmatch(text) is None:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _parse_field(text: str, field: str, kind: tuple[str, int, int, dict[str, int]]) -> tuple[set[int], bool]:
    """The values that it matches, and whether it means "every one"."""
    name, low, high, names = kind
    parts = [part for part in field.split(",") if part]
    if not parts:
        raise _wrong(text, f"its {name} match nothing: write * for every one")
    found: set[int] = set()
    every = False
    for part in parts:
        values, star = _parse_part(text, part, name, low, high, names)
        found |= values
        every |= star
    return found, every


def _parse_part(text: str, part: str, name: str, low: int, high: int, names: dict[str, int]) -> tuple[set[int], bool]:
    span, *steps = part.split("/")
    first, *ends = span.split("-")
    if len(steps) > 1:
        raise _wrong(text, f"{part!r} of its {name} has more than one step")
    step = 1 if not steps else _number(text, steps[0], name)
    star = first in ("*", "?")
    if star:
        start, end = low, high
    else:
        if len(ends) > 1:
            raise _wrong(text, f"{part!r} of its {name} has more than one hyphen")
        start = _value(text, first, name, names)
        end = _value(text, ends[0], name, names) if ends else high if steps else start
    if start < low or end > high:
        raise _wrong(text, f"{part!r} is out of bounds: {name} go from {low} to {high}")
    if start > end:
        raise _wrong(text, f"{part!r} of its {name} is not a range: the first value is after the last")
    if not step:
        raise _wrong(text, f"{part!r} of its {name} has a step of 0")
    return set(range(start, end + 1, step)), star and step == 1


def _value(text: str, given: str, name: str, names: dict[str, int]) -> int:
    known = names.get(given.lower())
    return known if known is not None else _number(text, given, name)


def _number(text: str, given: str, name: str) -> int:
    if _NUMBER.fullmatch(given) is None:
        raise _wrong(text, f"{given!r} in its {name} is not a number")
    return int(given)


def _wrong(text: str, why: str) -> InvalidSchedule:
    return InvalidSchedule(f"{text[:_SHOWN]!r} is not a schedule: {why}")
