"""How a durable task is submitted, beside its arguments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Final, TypedDict

from ...schemas.errors.base import InvalidSettings
from ...schemas.limits import MAX_BACKOFF_S, MAX_DEADLINE_S, MAX_RESULT_TTL_S
from ...schemas.messages.submission import LAST_MOMENT, MAX_KEY_CHARS, MAX_PRIORITY
from ...schemas.schedules import check_schedule
from ...schemas.text import plain

_BOUNDS: Final = (
    ("deadline_s", 0.001, MAX_DEADLINE_S),
    ("delay_s", 0.0, MAX_DEADLINE_S),
    ("backoff_s", 0.0, MAX_BACKOFF_S),
    ("result_ttl_s", 0.0, MAX_RESULT_TTL_S),
)
_TIMES: Final = frozenset(("delay_s", "at", "cron"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """What `Client.options` takes for `Client.submit` alone. None leaves it to the endpoint's route, or the default.

    Raises:
        InvalidSettings: a value out of its bounds.
        InvalidSchedule: a `cron` that the server would not take.
    """

    priority: int | None = None
    """Higher goes first; 0 is usual."""
    idempotency_key: str | None = None
    """The same key for the same target is the same job, however often it is submitted: surely within two minutes, and
    as long as its result is kept."""
    deadline_s: float | None = None
    """How long after its submission (of a delayed one, after its time) it may start and run; then it is a dead letter,
    `expired`."""
    delay_s: float | None = None
    """Not before so long from now."""
    at: datetime | None = None
    """Not before that moment, which needs a time zone."""
    cron: str | None = None
    """Recurring: a six-field cron expression, seconds first (`0 0 3 * * *`), or `@every 5m`, `@hourly`, `@daily`."""
    ordered: bool | None = None
    """One at a time, and in the order of submission, among those of the same `key`."""
    backoff_s: float | None = None
    """Wait before the second try; doubles with each."""
    result_ttl_s: float | None = None
    """How long the result is kept; 0: not at all."""
    events: bool | None = None
    """Whether each change of the job's state is told, for `Job.events`."""

    @property
    def given(self) -> list[str]:
        """Names of what is not None."""
        return [each.name for each in fields(self) if getattr(self, each.name) is not None]

    def __post_init__(self) -> None:
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if value is None:
                continue
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or not low <= value <= high:
                raise InvalidSettings(f"{name} is {value!r}, it must be between {plain(low)} and {plain(high)}")
        _check_priority(self.priority)
        check_header_text("idempotency_key", self.idempotency_key)
        check_header_text("cron", self.cron)
        if self.cron is not None:
            check_schedule(self.cron)
        if self.at is not None and (not isinstance(self.at, datetime) or self.at.tzinfo is None):
            raise InvalidSettings(f"at is {self.at!r}: give a datetime with a time zone, such as datetime.now(UTC)")
        if self.at is not None and not self.at.timestamp() < LAST_MOMENT:
            raise InvalidSettings(f"at is {self.at!r}, which is after the year 2261: give an earlier time")
        given = [name for name in ("delay_s", "at", "cron") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidSettings(f"{' and '.join(given)} exclude each other: give one")


class ClientOptions(TypedDict, total=False):
    """What `Client.options` takes: the fields of CallOptions, and for `submit` alone those of SubmitOptions. None is as
    if it were not given."""

    timeout_s: float | None
    key: str | None
    model: str | None
    idempotent: bool | None
    max_attempts: int | None
    labels: Mapping[str, str] | None
    pool: str | None
    queue: bool | None
    priority: int | None
    idempotency_key: str | None
    deadline_s: float | None
    delay_s: float | None
    at: datetime | None
    cron: str | None
    ordered: bool | None
    backoff_s: float | None
    result_ttl_s: float | None
    events: bool | None


def check_names(function: str, given: Iterable[str], options: Any) -> None:
    """Python checks the names of parameters by itself, but not those of options, a TypedDict.

    Raises:
        TypeError: one of them is none of its names.
    """
    for name in given:
        if name not in options.__annotations__:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


SUBMIT_ONLY: Final = frozenset(each.name for each in fields(SubmitOptions))


def submit_options(base: SubmitOptions | None, given: Mapping[str, Any]) -> SubmitOptions | None:
    """`base` with what is given; `base` itself where nothing is: so it is for calls, and costs them little. A time that
    is given (`delay_s`, `at`, `cron`) replaces another one.

    Raises:
        InvalidSettings, InvalidSchedule: see SubmitOptions.
    """
    if not given:
        return base
    times = {} if _TIMES.isdisjoint(given) else dict.fromkeys(_TIMES)
    return replace(base or SubmitOptions(), **{**times, **given})


def _check_priority(value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not -MAX_PRIORITY <= value <= MAX_PRIORITY:
        raise InvalidSettings(
            f"priority is {value!r}, it must be a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}"
        )


def check_header_text(name: str, value: object) -> None:
    """A text that travels in a header arrives as it was given.

    Raises:
        InvalidSettings: empty, too long, with control characters, or with blanks at an end.
    """
    if value is None:
        return
    if not isinstance(value, str) or not 0 < len(value) <= MAX_KEY_CHARS:
        raise InvalidSettings(f"{name} is {value!r:.60}: give a text of 1 to {MAX_KEY_CHARS} characters")
    if not value.isprintable() or value != value.strip():
        raise InvalidSettings(f"{name} is {value!r:.60}: it may not have control characters, nor blanks at its ends")
