"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

T = TypeVar("T")


def print_json(value: object, *, lines: bool = False) -> None:
    """Print one JSON document: indented on a terminal, else on one line (always on one line with `lines`)."""
    indent = 2 if sys.stdout.isatty() and not lines else None
    click.echo(json.dumps(value, indent=indent, ensure_ascii=False, default=str))


def print_value(value: object, as_json: bool) -> None:
    """Print a task's result: text as it is, everything else as JSON; JSON on one line if `as_json`."""
    if isinstance(value, str) and not as_json:
        click.echo(value)
    else:
        print_json(value, lines=as_json)


def print_lines(value: object, lines: Iterable[str], as_json: bool) -> None:
    """Print one item: lines for people, or this value as JSON."""
    if as_json:
        print_json(value)
        return
    for line in lines:
        click.echo(line)


def print_rows(
    rows: Sequence[T],
    as_json: bool,
    *,
    table: Callable[[Sequence[T]], Table],
    empty: str,
    to_json: Callable[[Any], object] = lambda row: row.model_dump(mode="json"),
) -> None:
    """Print a list: as a table, or as JSON. `empty` is printed for people if the list is empty."""
    if as_json:
        print_json([to_json(row) for row in rows])
    elif rows:
        console().print(table(rows))
    else:
        click.echo(empty, err=True)


def console() -> Console:
    """Writes to stdout; plain and wide if that is not a terminal, so that a pipe gets whole lines."""
    from rich.console import Console

    return Console(soft_wrap=False, highlight=False, width=None if sys.stdout.isatty() else 200)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = (), whole: Sequence[str] = ()
) -> Table:
    """A table without lines. Columns in `right` are right-aligned; they and those in `whole` are not wrapped while
    others can be."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))  # most fit in 80 columns
    for name in columns:
        number = name in right
        made.add_column(name, justify="right" if number else "left", overflow="fold", no_wrap=number or name in whole)
    for row in rows:
        made.add_row(*row)
    return made


def slots_bar(running: int, reserved: int, total: int, *, width: int = 12) -> str:
    """`■■□····· 2+1/8`: running, reserved, free. Scaled if there are more slots than characters."""
    if total <= 0:
        return f"{'':{width}} {running}+{reserved}/{total}"
    scale = min(1.0, width / total)
    filled = min(width, round(running * scale) or int(running > 0))
    held = min(width - filled, round(reserved * scale) or int(reserved > 0))
    free = max(0, round(total * scale) - filled - held)
    return f"{'■' * filled}{'□' * held}{'·' * free} {running}+{reserved}/{total}"


def duration(seconds: float) -> str:
    """`4.2 s`, `3 min 20 s`, `2 days, 1:00:00`."""
    if seconds < 60:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return str(timedelta(seconds=int(seconds)))
