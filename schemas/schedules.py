"""Checks schedules before they are sent to the server. Pure.

The server reads `Nats-Schedule` by the rules of robfig/cron (nats-server 2.12 and later). This accepts the same
schedules, and for all others says what to write. It also refuses a field of nothing but commas: it matches no time, and
JetStream stalls for seconds while the server searches for one.

=======================  =============================================================================================
six fields               seconds, minutes, hours, days of the month, months, days of the week (0 is Sunday, 6 Saturday)
a field                  one or more of the following, separated by commas
`*`, `?`                 every one
`5`, `mon`, `jan`        that one; names of three letters are for months and days of the week
`1-5`, `mon-fri`         a range, upwards
`*/10`, `5/10`, `0-30/5` every 10th, or every 10th from that one on
`@every 1h30m`           at least one second
`@hourly`, ...           see `NAMED`
`@at` RFC 3339           once
=======================  =============================================================================================
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from .errors.base import InvalidSchedule

NAMED: Final = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
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
_SHOWN: Final = 60


def check_schedule(text: str) -> str:
    """Return a schedule that the server accepts, without surrounding blanks.

    Raises:
        InvalidSchedule: says what is wrong, and what to write.
    """
    text = text.strip()
    if text.startswith("@"):
        _check_named(text)
        return text
    fields = text.split()
    if len(fields) != len(_FIELDS):
        raise InvalidSchedule(_of_fields(text, len(fields)))
    found = [_parse_field(text, *each) for each in zip(fields, _FIELDS, strict=True)]
    days, months, weekdays = found[3:]
    # If both days of the week and days of the month are given, either of them is enough.
    if weekdays[1] and not any(day <= _LONGEST[month] for month in months[0] for day in days[0]):
        raise _wrong(text, "no month that it names has such a day")
    return text


def _of_fields(text: str, count: int) -> str:
    shown = text[:_SHOWN]
    if not count:
        return "it is empty: give six fields of cron, such as '0 0 3 * * *', or '@every 5m'"
    number = "five fields" if count == 5 else f"{count} field{'' if count == 1 else 's'}"
    instead = f"write '0 {' '.join(shown.split())}'" if count == 5 else "such as '0 0 3 * * *'"
    return f"{shown!r} has {number}, and a schedule has six fields, seconds first: {instead}"


def _check_named(text: str) -> None:
    if text in NAMED:
        return
    kind, _, rest = text.partition(" ")
    if kind == "@every":
        _check_every(text, rest)
    elif kind == "@at":
        if not _is_moment(rest):
            raise _wrong(text, "'@at' takes a timestamp such as 2030-01-31T12:00:00Z")
    elif text.lower() in NAMED or kind.lower() in ("@every", "@at"):
        raise _wrong(text, f"write {kind.lower()!r}, in lower case")
    else:
        raise _wrong(text, f"there are '@every 5m' and {', '.join(NAMED)}")


def _check_every(text: str, length: str) -> None:
    if _LENGTH.fullmatch(length) is None:
        raise _wrong(text, "'@every' takes, after one blank, a duration such as 30s, 5m or 1h30m")
    ns = sum(float(number) * _NS[unit] for number, unit in _PART.findall(length))
    if length.startswith("-") or ns < _NS["s"]:
        raise _wrong(text, "at least one second lies between two times")
    if ns >= _MOST_NS:
        raise _wrong(text, "that is longer than 292 years")


def _is_moment(text: str) -> bool:
    if _MOMENT.fullmatch(text) is None:
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


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
