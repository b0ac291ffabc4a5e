"""Arguments and options of commands, and how their values are parsed."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from .options import Command

if TYPE_CHECKING:
    from ...schemas.permissions.quotas import Quotas


def _worker(ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    from ...schemas.errors.base import InvalidName
    from ...schemas.names import check_name

    pool, dot, worker = value.partition(".")
    if not dot:
        raise click.UsageError(f"{value!r} is not POOL.WORKER; 'gangline workers' shows them", ctx)
    try:
        return f"{check_name(pool, 'pool')}.{check_name(worker, 'worker')}"
    except InvalidName as error:
        raise click.UsageError(str(error), ctx) from None


worker_argument = click.argument("worker", metavar="POOL.WORKER", callback=_worker)
"""`POOL.WORKER`, as `gangline workers` prints it."""


def _slots(ctx: click.Context, parameter: click.Parameter, value: str) -> int:
    if value.isdecimal() and len(value) < 20:
        return int(value)
    if value.startswith("-") and not value[1:].isdecimal():
        raise click.NoSuchOption(value, ctx=ctx)
    raise click.BadParameter(f"{value!r} is not a number of slots: give a whole number from 0", ctx, parameter)


slots_argument = click.argument("slots", callback=_slots)
"""`SLOTS`, 0 included. The command must have SLOTS_CONTEXT."""


def _size(ctx: click.Context, parameter: click.Parameter, value: str) -> int | list[int]:
    least, dots, most = value.partition("..")
    if least.isdecimal() and (most.isdecimal() if dots else not most) and len(value) < 20:
        return [int(least), int(most)] if dots else int(least)
    raise click.BadParameter(f"{value!r} is not a size: give a number, or a range such as 2..8", ctx, parameter)


size_argument = click.argument("size", callback=_size)
"""`SIZE` of a gang: a number, or a range as a list of two."""

SLOTS_CONTEXT = {"ignore_unknown_options": True}
"""Context settings that stop click from reading -1 as an option, and complaining that it does not exist."""


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that were given: for settings, whose own defaults apply to the rest."""
    return {name: value for name, value in options.items() if value is not None}


def _labels(ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise click.UsageError(f"--label {text!r} is not KEY=VALUE", ctx)
        found[key] = value
    return found


def labels_option(metavar: str, text: str) -> Callable[[Command], Command]:
    """`--label KEY=VALUE`, repeatable, as `labels`: a dictionary."""
    return click.option("--label", "labels", multiple=True, metavar=metavar, callback=_labels, help=text)


reason_option = click.option(
    "--reason", default="", metavar="TEXT", help="Why; recorded in the audit trail, see 'gangline audit'."
)


def _quotas(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> Quotas:
    from ...schemas.errors.base import GanglineError
    from ...schemas.permissions.quotas import parse_quotas

    try:
        return parse_quotas(values)
    except GanglineError as error:
        raise click.BadParameter(str(error), ctx, parameter) from None


quotas_option = click.option(
    "--quota",
    "quotas",
    multiple=True,
    envvar="GANGLINE_QUOTAS",
    metavar="[TENANT:]QUOTA=VALUE",
    callback=_quotas,
    help="What a tenant may use, or each of them. Repeatable (GANGLINE_QUOTAS: with blanks between). See "
    "docs/how-to/share-between-tenants.md.",
)


def parse_arguments(text: str | None) -> tuple[list[Any], dict[str, Any]]:
    """A task's arguments as typed: positional and keyword ones. `-` reads them from stdin."""
    if text == "-":
        text = sys.stdin.read()
    if text is None or not text.strip():
        return [], {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.UsageError(
            f'the arguments are not JSON ({error}); quote them for the shell: \'{{"path": "a.png"}}\''
        ) from None
    if isinstance(value, dict):
        return [], value
    if isinstance(value, list):
        return value, {}
    raise click.UsageError(f"the arguments must be a JSON object or array, not {type(value).__name__}: try '[{text}]'")


def _duration(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    from ...schemas.text import parse_duration

    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, parameter) from None


def duration_option(*names: str, text: str, default: str | None = None) -> Callable[[Command], Command]:
    """An option whose value is a duration (`90`, `500ms`, `5m`, `2h`), as seconds."""
    shown = default is not None
    return click.option(*names, metavar="TIME", callback=_duration, default=default, show_default=shown, help=text)


def moment(ctx: click.Context, parameter: click.Parameter, value: str | None) -> datetime | None:
    """Callback of an option whose value is a timestamp with a time zone."""
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a timestamp: write 2030-01-31T12:00:00Z", ctx, parameter) from None
    if found.tzinfo is None:
        raise click.BadParameter(f"{value!r} has no time zone: add Z for UTC, or +02:00", ctx, parameter)
    return found


def _job(ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    from ...schemas.errors.base import InvalidName
    from ...schemas.names import check_job

    try:
        return check_job(value)
    except InvalidName as error:
        raise click.UsageError(str(error), ctx) from None


job_argument = click.argument("job", metavar="JOB", callback=_job)
"""A job's id, as `gangline submit` prints it; for a task published without the SDK, its sequence in the stream."""

endpoint_option = click.option("--endpoint", metavar="NAME", help="Endpoint of the task; makes the lookup faster.")


# -- of routes: `POOL=NUMBER`, `100/s`, `5m`, and `none` to reset a field ----------------------------------------------

NONE: Final = "none"
"""Resets a field to its default. (In a change, None means "not given".)"""
_PER_S: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
Callback = Callable[[click.Context, click.Parameter, str | None], Any]


def pools(
    _context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, float] | str | None:
    """`("v1=90", "v2=10")` -> `{"v1": 90.0, "v2": 10.0}`."""
    if not values:
        return None
    if values == (NONE,):
        return NONE
    found: dict[str, float] = {}
    for text in values:
        pool, equals, number = text.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not pool or not equals or not math.isfinite(value):
            raise click.BadParameter(f"{text!r} is not {parameter.metavar}, for example images-v2=10")
        if pool in found:
            raise click.BadParameter(f"{pool} is given twice")
        found[pool] = int(value) if value.is_integer() else value
    return found


def _or_none(read: Callable[[str], float], complaint: str) -> Callback:
    """Parses a value, or `none`, which resets the setting."""

    def callback(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | str | None:
        if text is None or text == NONE:
            return text
        try:
            return read(text)
        except (ValueError, KeyError) as error:
            raise click.BadParameter(
                f"{complaint.format(text=text, error=error)}; 'none' removes the setting"
            ) from None

    return callback


def _rate(text: str) -> float:
    number, _, unit = text.partition("/")
    return float(number) / _PER_S[unit or "s"]


def _seconds(text: str) -> float:
    from ...schemas.text import parse_duration

    return parse_duration(text)


whole = _or_none(int, "{text!r} is not an integer")
rate = _or_none(_rate, "{text!r} is not a rate: write 100/s, 30/m or 5/h")
"""`100/s`, `30/m`, `5/h`, or a number of starts per second."""
seconds = _or_none(_seconds, "{error}")
"""`90`, `500ms`, `5m`."""
