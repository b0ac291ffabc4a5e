"""What people type about routes: `POOL=NUMBER`, `100/s`, `5m`, and `none` for what is to be taken back."""

from __future__ import annotations

import math
from typing import Final

import click

NONE: Final = "none"
"""Takes a field back to its default. (In a change: None is "not given".)"""
_PER_S: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


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


def whole(_context: click.Context, parameter: click.Parameter, text: str | None) -> int | str | None:
    """A whole number."""
    if text is None or text == NONE:
        return text
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no whole number; 'none' takes it back") from None


def rate(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | str | None:
    """`100/s`, `30/m`, `5/h`, or a number of starts a second."""
    if text is None or text == NONE:
        return text
    number, _, unit = text.partition("/")
    try:
        return float(number) / _PER_S[unit or "s"]
    except (ValueError, KeyError):
        raise click.BadParameter(f"{text!r} is no rate: write 100/s, 30/m or 5/h; 'none' takes it back") from None


def seconds(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | str | None:
    """`90`, `500ms`, `5m`."""
    from ...schemas.text import parse_duration

    if text is None or text == NONE:
        return text
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}; 'none' takes it back") from None
