"""Tables for people, JSON for programs.

All that commands print goes through here, in a form that does not control the terminal: names, error texts and values
may be of anybody. A test enforces it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import click

from ...schemas.text import count_of, printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

T = TypeVar("T")


def echo(
    text: str, *, raw: bool = False, err: bool = False, nl: bool = True, file: IO[Any] | None = None, **style: Any
) -> None:
    """Print text. `raw`: as it is, for programs. `style`: of the whole text, as click.style has it."""
    shown = text if raw else printable(text)
    click.echo(click.style(shown, **style) if style else shown, file=file, nl=nl, err=err)


_BLANKS: Final = re.compile(r"[\t\n]+")


def cell_text(text: str) -> str:
    """The text in one line, as `printable`."""
    return printable(_BLANKS.sub(" ", text))


def print_json(value: object, *, lines: bool = False) -> None:
    """Print one JSON document: indented on a terminal, else on one line (always on one line with `lines`)."""
    indent = 2 if sys.stdout.isatty() and not lines else None
    echo(json.dumps(value, indent=indent, ensure_ascii=False, default=str))


def print_value(value: object, as_json: bool) -> None:
    """Print a task's result: text as it is (on a terminal, what controls it is escaped), everything else as JSON; JSON
    on one line if `as_json`."""
    if isinstance(value, str) and not as_json:
        echo(value, raw=not sys.stdout.isatty())
    else:
        print_json(value, lines=as_json)


def print_lines(value: object, lines: Iterable[str], as_json: bool) -> None:
    """Print one item: lines for people, or this value as JSON."""
    if as_json:
        print_json(value)
        return
    for line in lines:
        echo(line)


def print_rows(
    rows: Sequence[T],
    as_json: bool,
    *,
    table: Callable[[Sequence[T]], Listing],
    empty: str,
    to_json: Callable[[Any], object] = lambda row: row.model_dump(mode="json"),
) -> None:
    """Print a list: as a table, or as JSON. `empty` is printed for people if the list is empty."""
    if as_json:
        print_json([to_json(row) for row in rows])
    elif rows:
        console().print(table(rows))
    else:
        echo(empty, err=True)


def console() -> Console:
    """Writes to stdout; plain and as wide as it takes if that is not a terminal, so that a pipe gets whole lines."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPED
    return Console(soft_wrap=False, highlight=False, markup=False, emoji=False, width=width)


_PIPED: Final = 10_000
_GAP: Final = 2
"""Blanks between columns."""
_LEAST: Final = 16
"""A column of free text is not made narrower than that."""
_BAR: Final = 12
"""Characters of a bar of slots."""
_SHORT: Final = 8
"""The least number of characters of an abbreviated id, after its endpoint."""


class Listing:
    """A table that fits the terminal: first it abbreviates ids, then it cuts free text, with an ellipsis, and leaves
    out the less important columns if that is not enough. It wraps only columns that are declared so.

    A cell that is a string is shown as it is, in one line: it may be of anybody. One that has a style is a Text.

    Args:
        right: columns that are right-aligned; they, those in `whole` and ids are never cut.
        ids: columns of ids, which are abbreviated on a terminal.
        titles: what in those columns is not an id, and stays as it is.
        wrap: columns whose text goes on in the next line where there is no room, instead of being cut.
        drop: columns to leave out where there is no room, first the first.
    """

    def __init__(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[str | Text]],
        *,
        right: Sequence[str] = (),
        whole: Sequence[str] = (),
        ids: Sequence[str] = (),
        titles: Collection[str] = (),
        wrap: Sequence[str] = (),
        drop: Sequence[str] = (),
    ) -> None:
        self.columns = tuple(columns)
        self.rows = [tuple(cell_text(cell) if isinstance(cell, str) else cell for cell in row) for row in rows]
        self._right = frozenset(right)
        self._whole = frozenset((*right, *whole, *ids))
        self._ids = frozenset(ids)
        self._titles = frozenset(map(cell_text, titles))
        self._wrap = frozenset(wrap)
        self._drop = tuple(drop)

    def fitted(self, width: int, *, short: bool) -> Table:
        """The table in a terminal of that width; `short`: with abbreviated ids."""
        from rich.box import SIMPLE_HEAD
        from rich.cells import cell_len
        from rich.table import Table
        from rich.text import Text

        cells = dict(zip(self.columns, zip(*self.rows, strict=True), strict=True)) if self.rows else {}
        for name in self._ids if short else ():
            ids = tuple(map(str, cells[name]))
            cells[name] = tuple(map(short_ids(ids, self._titles).__getitem__, ids))
        texts = {
            name: [Text(cell) if isinstance(cell, str) else cell for cell in column] for name, column in cells.items()
        }
        widths = {
            name: max([len(name), *(cell_len(cell.plain) for cell in texts.get(name, ()))]) for name in self.columns
        }
        for name in self._drop:
            least = {each: size if each in self._whole else min(size, _LEAST) for each, size in widths.items()}
            if self._total(least) <= width:
                break
            if name in widths:
                del widths[name]
        cut = self._cut(widths, width)
        fits = self._total({**widths, **cut}) <= width
        table = Table(
            box=SIMPLE_HEAD, show_edge=False, header_style="bold", pad_edge=False, padding=(0, _GAP - 1, 0, 0)
        )
        for name, natural in widths.items():
            table.add_column(
                name,
                justify="right" if name in self._right else "left",
                overflow="fold" if name in self._wrap else "ellipsis",
                no_wrap=name not in self._wrap,
                # A given width saves measuring each cell again, which takes a quarter of the time of a long table.
                width=min(natural, cut.get(name, natural)) if fits and name not in self._wrap else None,
                min_width=min(natural, cut.get(name, natural)),
                max_width=cut.get(name),
            )
        for row in zip(*(texts[name] for name in widths), strict=True) if cells else ():
            table.add_row(*row)
        return table

    @staticmethod
    def _total(widths: Mapping[str, int]) -> int:
        return sum(widths.values()) + _GAP * len(widths) - 1

    def _cut(self, widths: Mapping[str, int], width: int) -> dict[str, int]:
        """Narrower widths of columns of free text, widest first."""
        cut: dict[str, int] = {}
        while (over := self._total({**widths, **cut}) - width) > 0:
            free = [name for name in widths if name not in self._whole and cut.get(name, widths[name]) > _LEAST]
            if not free:
                break
            widest = max(free, key=lambda name: cut.get(name, widths[name]))
            cut[widest] = max(_LEAST, cut.get(widest, widths[widest]) - over)
        return cut

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.fitted(options.max_width, short=console.is_terminal)


def short_ids(ids: Iterable[str], titles: Collection[str] = ()) -> dict[str, str]:
    """The shortest unique beginning of each id, but at least 8 characters after its endpoint; for people to read, and
    to type: commands accept it. Sequences and short names stay as they are.

    Args:
        titles: those of `ids` that are titles (JobInfo.title): they stay as they are, since commands accept no
            beginning of them. An id of the user's own can look like one.
    """
    known = sorted(set(ids))
    found: dict[str, str] = {}
    for place, id in enumerate(known):
        endpoint, dot, _ = id.rpartition(".")
        common = max(
            (_common(id, other) for other in (*known[max(0, place - 1) : place], *known[place + 1 : place + 2])),
            default=0,
        )
        least = max(len(endpoint) + len(dot) + _SHORT, common + 1)
        found[id] = id if least >= len(id) - 2 or id.isdecimal() or id in titles else id[:least]
    return found


def _common(one: str, other: str) -> int:
    return next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), len(one))


def slots_bar(running: int, reserved: int, total: int) -> str:
    """`■■□····· 2+1/8`: running, reserved, free. Scaled if there are more slots than characters."""
    if total <= 0:
        return f"{'':{_BAR}} {running}+{reserved}/{total}"
    scale = min(1.0, _BAR / total)
    filled = min(_BAR, round(running * scale) or int(running > 0))
    held = min(_BAR - filled, round(reserved * scale) or int(reserved > 0))
    free = max(0, round(total * scale) - filled - held)
    return f"{'■' * filled}{'□' * held}{'·' * free} {running}+{reserved}/{total}"


def about(seconds: float) -> str:
    """A time to come, in two units at most: `4 s`, `3 min 20 s`, `1 h`, `13 h 34 min`, `2 days 1 h`."""
    left = max(0, round(seconds))
    if left < _MINUTE:
        return f"{left} s"
    if left < _HOUR:
        whole, rest, unit = f"{left // _MINUTE} min", left % _MINUTE, "s"
    elif left < _DAY:
        whole, rest, unit = f"{left // _HOUR} h", left % _HOUR // _MINUTE, "min"
    else:
        whole, rest, unit = count_of(left // _DAY, "day"), left % _DAY // _HOUR, "h"
    return f"{whole} {rest} {unit}" if rest else whole


_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR


def duration(seconds: float) -> str:
    """`4.2 s`, `3 min 20 s`, `2 days, 1:00:00`."""
    if seconds < 60:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return str(timedelta(seconds=int(seconds)))
