"""Arguments and options of commands, and how their values are parsed."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from . import completion
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


def worker_name(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Callback of an argument `[POOL.WORKER]` that may be left out."""
    return None if value is None else _worker(ctx, parameter, value)


worker_argument = click.argument("worker", metavar="POOL.WORKER", callback=_worker, shell_complete=completion.workers)
"""`POOL.WORKER`, as `gangline workers` prints it."""


def _slots(ctx: click.Context, parameter: click.Parameter, value: str) -> int:
    if value.isdecimal() and len(value) < 20:
        return int(value)
    if value.startswith("-") and not value[1:].isdecimal():
        raise click.NoSuchOption(value, ctx=ctx)
    raise click.BadParameter(f"{value!r} is not a number of slots: give a whole number from 0", ctx, parameter)


slots_argument = click.argument("slots", callback=_slots)
"""`SLOTS`, 0 included. The command must have SLOTS_CONTEXT."""


slots_option = click.option(
    "--slots",
    multiple=True,
    metavar="[POOL=]N",
    help="Initial number of slots; repeatable with POOL=. [the pool's own]",
)


def slots_by_pool(texts: Sequence[str], pools: Sequence[str]) -> dict[str, int | None]:
    """The slots of each pool from values of `--slots`; None: as the pool declares.

    Raises:
        UsageError: a value is not `N` or `POOL=N`, or names a pool that is not served; or a pool is served twice.
    """
    if len(set(pools)) < len(pools):
        raise click.UsageError(f"a pool is named twice: {', '.join(pools)}")
    found: dict[str, int | None] = dict.fromkeys(pools)
    for text in texts:
        pool, equals, number = text.rpartition("=")
        if not number.isdecimal() or len(number) >= 20:
            raise click.UsageError(f"--slots {text!r}: give a whole number from 0, or POOL=N")
        if equals and pool not in found:
            raise click.UsageError(f"--slots {text!r}: pool {pool!r} is not served here; pools: {', '.join(pools)}")
        if not equals and len(pools) > 1:
            raise click.UsageError(
                f"--slots {text!r}: say which of the pools it is for, as in --slots {pools[0]}={text}"
            )
        found[pool or pools[0]] = int(number)
    return found


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


task_arguments = click.argument("arguments", metavar="[JSON|KEY=VALUE...]", nargs=-1)
"""The arguments of a task, for `parse_arguments`."""
_PAIR: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(:?=)(.*)", re.DOTALL)


def parse_arguments(given: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """A task's arguments as typed: positional and keyword ones.

    Either one JSON object or array (`-`: from stdin), or any number of `KEY=VALUE`, whose value is JSON if it can be
    parsed as such and else text, and `KEY:=JSON`.
    """
    pairs = [_PAIR.fullmatch(each) for each in given]
    if len(given) != 1 or pairs[0] is not None:
        return [], _named(given, pairs)
    return _parse_json(given[0])


def _named(given: Sequence[str], pairs: Sequence[re.Match[str] | None]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text, pair in zip(given, pairs, strict=True):
        if pair is None:
            raise click.UsageError(
                f"{text!r} is not KEY=VALUE: give one JSON object or array, or KEY=VALUE for each argument"
            )
        key, sign, value = pair.groups()
        if key in found:
            raise click.UsageError(f"{key} is given twice")
        try:
            found[key] = json.loads(value)
        except ValueError as error:
            if sign == ":=":
                raise click.UsageError(f"{key}:= takes JSON, and {value!r} is not ({error})") from None
            found[key] = value
    return found


def _parse_json(text: str) -> tuple[list[Any], dict[str, Any]]:
    if text == "-":
        text = sys.stdin.read()
    if not text.strip():
        return [], {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.UsageError(
            f'the arguments are not JSON ({error}); write path=a.png, or quote JSON: \'{{"path": "a.png"}}\''
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


def _past(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    import time
    from datetime import UTC

    from ...schemas.text import parse_duration

    if value is None:
        return None
    try:
        return time.time() - parse_duration(value)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(value if "-" in value else f"{datetime.now(UTC):%Y-%m-%d}T{value}")
    except ValueError:
        text = f"{value!r} is not a time: write 14:03, 2030-01-31T14:03Z, or how long ago: 10m, 2h"
        raise click.BadParameter(text, ctx, parameter) from None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def moment_option(name: str, *, text: str) -> Callable[[Command], Command]:
    """An option whose value is a time of day (UTC), a timestamp, or how long ago; as Unix time."""
    return click.option(name, metavar="TIME", callback=_past, help=text)


def _job(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    from ...schemas.errors.base import InvalidName
    from ...schemas.names import check_job

    try:
        return None if value is None else check_job(value)
    except InvalidName as error:
        raise click.UsageError(str(error), ctx) from None


job_argument = click.argument("job", metavar="JOB", callback=_job, shell_complete=completion.jobs)
"""A job's id, as `gangline submit` prints it, or its beginning; for a task published without the SDK, its sequence in
the stream."""
optional_job_argument = click.argument(
    "job", metavar="JOB", required=False, callback=_job, shell_complete=completion.jobs
)
"""The same, for a command that says itself what to do without one."""
target_argument = click.argument("target", metavar="ENDPOINT.METHOD", shell_complete=completion.targets)

endpoint_option = click.option(
    "--endpoint",
    metavar="NAME",
    help="Endpoint of the task; makes the lookup faster.",
    shell_complete=completion.endpoints,
)


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
