"""`--watch`: reads a list again and again, and shows it as a table that is redrawn, or as one line for each change."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

from ...runtime.tasks import set_within
from ...schemas.text import printable
from .options import ConnectionOptions
from .output import Listing, console, echo, print_rows
from .session import with_client

if TYPE_CHECKING:
    from ...bus.port.bus import Bus
    from ...dispatcher.client.client import Client

T = TypeVar("T")
Read = Callable[[], Awaitable["Page[T]"]]
WATCH_S: Final = 2.0
"""How often the list is read."""
_HEAD: Final = 4
"""Lines of a terminal that are not for rows."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A list as it was read."""

    rows: Sequence[T]
    notes: tuple[str, ...] = ()
    """For people, below the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListView(Generic[T]):
    """How a command shows its list."""

    item: str
    """One of them, for example `worker`; the key of the row in JSON lines."""
    table: Callable[[Sequence[T]], Listing]
    empty: str
    """Shown instead of an empty table."""
    key: Callable[[T], Hashable]
    """The identity of a row."""
    to_json: Callable[[T], Mapping[str, Any]]
    restless: frozenset[str] = frozenset()
    """Fields of the JSON that change all the time; they alone are no change of the row."""
    newest: bool = False
    """The list has the newest of many rows, the last one at its end. So a row that leaves it is not gone, and
    a terminal with too few lines shows the end."""

    def show(self, page: Page[T], as_json: bool) -> None:
        """Print the list once."""
        print_rows(page.rows, as_json, table=self.table, empty=self.empty, to_json=self.to_json)
        for note in () if as_json else page.notes:
            echo(note, err=True)


def list_rows(
    connection: ConnectionOptions,
    name: str,
    read: Callable[[Client], Awaitable[Page[T]]],
    view: ListView[T],
    *,
    watch: bool,
    as_json: bool,
) -> None:
    """Print a list, or follow it. `name`: of the connection. Raises as `watch_list`."""

    async def work(client: Client) -> None:
        if watch:
            await watch_list(client.router.bus, lambda: read(client), view, as_json)
        view.show(await read(client), as_json)

    with_client(connection, name, work)


async def watch_list(bus: Bus, read: Read[T], view: ListView[T], as_json: bool) -> NoReturn:
    """Follow a list until cancelled. If it cannot be read for the moment, that is noted, and it is read again.

    Raises:
        Disconnected: the connection was closed for good.
        GanglineError: the first read failed, or a later one failed for good.
        BrokenPipeError: the reader of stdout is gone.
    """
    from ...bus.port.bus import ConnectionEvent
    from ...schemas.errors.base import Disconnected

    closed = asyncio.Event()
    bus.on_connection(lambda event: closed.set() if event is ConnectionEvent.CLOSED else None)
    pages = _pages(read, closed)
    async with contextlib.aclosing(pages):
        if as_json or not sys.stdout.isatty():
            await _print_changes(pages, ChangeLog(view, as_json=as_json))
        else:
            await _redraw(pages, view)
    raise Disconnected("the connection was closed")


async def _pages(read: Read[T], closed: asyncio.Event) -> AsyncGenerator[Page[T], None]:
    from ...schemas.errors.base import DeadlineExceeded, Unavailable

    page = await read()
    while True:
        yield page
        if await set_within(closed, WATCH_S):
            return
        try:
            page = await read()
        except (Unavailable, DeadlineExceeded) as error:
            page = Page(page.rows, (f"not up to date: {error.message}",))


class ChangeLog(Generic[T]):
    """Rows that are new, have changed or are gone, as lines."""

    def __init__(self, view: ListView[T], *, as_json: bool) -> None:
        self._view = view
        self._as_json = as_json
        self._known: dict[Hashable, tuple[T, dict[str, Any]]] = {}
        self._notes: tuple[str, ...] = ()

    def lines(self, rows: Sequence[T]) -> list[str]:
        """The differences from the rows of the last call, in the order of the list; what is gone comes last."""
        found, lines = dict[Hashable, tuple[T, dict[str, Any]]](), list[str]()
        for row in rows:
            told = self._view.to_json(row)
            state = {name: value for name, value in told.items() if name not in self._view.restless}
            key = self._view.key(row)
            found[key] = (row, state)
            known = self._known.pop(key, None)
            if known is None or known[1] != state:
                lines.append(self._line("added" if known is None else "changed", row))
        lines += [self._line("gone", row) for row, _ in self._known.values() if not self._view.newest]
        self._known = found
        return lines

    def new_notes(self, notes: tuple[str, ...]) -> list[str]:
        """Those that were not in the last call."""
        fresh = [note for note in notes if note not in self._notes]
        self._notes = notes
        return fresh

    def _line(self, event: str, row: T) -> str:
        if self._as_json:
            return json.dumps({"event": event, self._view.item: self._view.to_json(row)}, default=str)
        listing = self._view.table([row])
        name, *cells = map(str, listing.rows[0])
        told = [f"{column} {cell}" for column, cell in zip(listing.columns[1:], cells, strict=True) if cell]
        return "  ".join([time.strftime("%H:%M:%S"), f"{event:<7}", name, *told])


async def _print_changes(pages: AsyncIterable[Page[T]], log: ChangeLog[T]) -> None:
    async for page in pages:
        for line in log.lines(page.rows):
            echo(line)
        sys.stdout.flush()
        for note in log.new_notes(page.notes):
            echo(note, err=True)


async def _redraw(pages: AsyncIterable[Page[T]], view: ListView[T]) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    screen = console()
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        async for page in pages:
            rows = page.rows[-max(1, screen.height - _HEAD) :] if view.newest else page.rows
            shown = view.table(rows) if rows else Text(f"{view.empty} (Ctrl-C stops)")
            live.update(Group(shown, *(Text(printable(note), style="yellow") for note in page.notes)), refresh=True)
