"""`gangline top` with keys: filter, inspect, why, drain, cancel. Needs the extra `gangline[top]`."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Label, Static, TabbedContent, TabPane

from ...board.board_core import Delta, Table
from ...board.durations import DurationHistory
from ...board.feed import BoardFeed
from ...board.outlook import Outlook, gang_outlook, job_outlook
from ...board.shares import why_job
from ...dispatcher.client.client import Client
from ...schemas.errors.base import GanglineError
from ...schemas.messages.gangs import GangQuery, GangWhyReply
from ...schemas.messages.jobs import JobInfo
from ...schemas.names import GangOperation
from ...schemas.records.jobs import JobState
from ...schemas.text import printable
from ..views.gang_follow import ask_of
from ..views.gangs import sentence_line
from ..views.jobs import job_lines, why_lines
from .screen import LEGEND, STATES, cells_text, headline, owners_of, shown, system_lines, wait_lines, worker_names

_COLUMNS = {
    "workers": ("WORKER", "STATE", "SLOTS", "USED", "HELD BY"),
    "gangs": ("GANG", "STATE", "SIZE", "GEN", "OWNER", "REASON"),
    "queues": ("QUEUE", "DEPTH", "RUN", "BLOCKED", "OLDEST", "DEAD"),
    "jobs": ("JOB", "STATE", "TASK", "ATTEMPTS", "WORKER", "KEY"),
    "leases": ("LEASE", "WORKER", "SLOTS", "OWNER"),
}
_UNFINISHED: Final = (JobState.RUNNING, JobState.QUEUED, JobState.WAITING, JobState.SCHEDULED)
_WAITING: Final = (JobState.QUEUED, JobState.WAITING, JobState.SCHEDULED)
_MOST_JOBS: Final = 200
_JOBS_S: Final = 2.0
"""Unfinished jobs are asked for as often while they are shown."""


class Confirm(ModalScreen[str]):
    """Asks whether something is meant, and why. The result is the reason; empty: it is not."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Leave it")]
    CSS = """
    Confirm { align: center middle; }
    Confirm > Vertical { width: 60; height: auto; border: round $warning; padding: 1 2; background: $surface; }
    """

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Label(shown(self.question))
            yield Input(placeholder="reason, for the audit trail; escape leaves it", id="reason")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.value.strip():
            self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        self.dismiss("")


class Top(App[None]):
    """The application.

    Args:
        client: for statistics and actions.
        feed: a started feed.
        words: the filter at the beginning.
    """

    TITLE = "gangline top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: auto; padding: 0 1; } #legend { height: 1; padding: 0 1; color: $text-muted; }
    #left { width: 2fr; } #waits { width: 1fr; border-left: solid $panel; padding: 0 1; }
    #detail { height: auto; max-height: 14; border-top: solid $panel; padding: 0 1; display: none; }
    #filter { display: none; } DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter"),
        Binding("i", "inspect", "Inspect"),
        Binding("w", "why", "Why"),
        Binding("d", "drain", "Drain"),
        Binding("c", "end", "Cancel"),
        Binding("escape", "clear", "Clear", show=False),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, client: Client, feed: BoardFeed, words: str = "") -> None:
        super().__init__()
        self._client = client
        self._feed = feed
        self._words = words
        self._jobs: dict[str, JobInfo] = {}
        self._durations = DurationHistory(client)
        self._forget: Callable[[], None] = lambda: None
        feed.in_view = self._in_view

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        with Horizontal():
            with Vertical(id="left"), TabbedContent(id="tabs"):
                for name in _COLUMNS:
                    with TabPane(name.capitalize(), id=name):
                        yield DataTable(id=f"{name}-table", cursor_type="row")
            with VerticalScroll(id="waits"):
                yield Static(id="waiting")
        with VerticalScroll(id="detail"):
            yield Static(id="told")
        yield Input(placeholder="filter: words in the name, place, state, task or owner", id="filter")
        yield Static(LEGEND, id="legend")
        yield Footer()

    def on_mount(self) -> None:
        for name, columns in _COLUMNS.items():
            self.table(name).add_columns(*((column, column) for column in columns))
        self._forget = self._feed.listen(self._seen)
        self.set_interval(1.0, self.draw)
        self.set_interval(_JOBS_S, self._list_jobs)
        self.draw()
        self.table("workers").focus()

    async def on_unmount(self) -> None:
        self._forget()
        await self._durations.close()

    def table(self, name: str) -> DataTable[str | Text]:
        found: DataTable[str | Text] = self.query_one(f"#{name}-table", DataTable)
        return found

    @property
    def current(self) -> str:
        """The name of the tab that is shown."""
        return self.query_one("#tabs", TabbedContent).active

    @property
    def chosen(self) -> str | None:
        """The key of the row under the cursor."""
        shown = self.table(self.current)
        if not shown.row_count:
            return None
        return shown.coordinate_to_cell_key(shown.cursor_coordinate).row_key.value

    def _in_view(self) -> list[str]:
        return worker_names(self._feed.board, self._words)[:40]

    def _seen(self, _delta: Delta) -> None:
        self.draw()

    @work(exclusive=True, group="jobs")
    async def _list_jobs(self) -> None:
        """Jobs are not on the board: there may be a million of them."""
        if self.current != "jobs":
            return
        try:
            page = await self._client.jobs(states=_UNFINISHED, limit=_MOST_JOBS)
        except GanglineError as error:
            self.tell(error.message)
            return
        self._jobs = {info.job: info for info in page.jobs}
        self.draw()

    # -- drawing ------------------------------------------------------------------------------------------------------

    def draw(self) -> None:
        board = self._feed.board
        self.query_one("#head", Static).update(Text("\n").join([headline(board), *system_lines(board)]))
        waits = wait_lines(board)
        text = Text("\n").join([Text("waits, and why", "bold"), *waits]) if waits else Text("nothing waits", "dim")
        self.query_one("#waiting", Static).update(text)
        self._fill(self.current, self._rows(self.current))

    def _rows(self, name: str) -> dict[str, tuple[str | Text, ...]]:
        board = self._feed.board
        match name:
            case "workers":
                found: dict[str, tuple[str | Text, ...]] = {}
                for key in worker_names(board, self._words):
                    slots, state = board.slots[key], str(board.rows[Table.WORKERS][key]["state"])
                    used = "" if slots.lost else f"{slots.total - slots.free}/{slots.total}"
                    cells = cells_text(slots.cells)
                    found[key] = (key, Text(state, STATES[state]), cells, used, owners_of(board, key))
                return found
            case "jobs":
                return self._job_rows()
            case "gangs":
                fields: tuple[str, ...] = ("id", "state", "size", "generation", "owner", "reason")
            case "queues":
                fields = ("endpoint", "depth", "running", "blocked", "oldest_s", "dead")
            case _:
                fields = ("id", "worker", "slots", "owner")
        rows = {key: tuple(_shown(row.get(field)) for field in fields) for key, row in board.rows[name].items()}
        return {key: row for key, row in sorted(rows.items()) if self._matches(row)}

    def _job_rows(self) -> dict[str, tuple[str | Text, ...]]:
        rows = {
            id: (
                id,
                info.state.value,
                f"{info.endpoint}.{info.method}",
                str(info.attempts),
                info.worker,
                info.key or "",
            )
            for id, info in self._jobs.items()
        }
        return {key: row for key, row in rows.items() if self._matches(row)}

    def _matches(self, row: tuple[str, ...]) -> bool:
        shown = " ".join(row).lower()
        return all(word in shown for word in self._words.lower().split())

    def _fill(self, name: str, rows: dict[str, tuple[str | Text, ...]]) -> None:
        """Change only what differs, so that the cursor stays."""
        table, columns = self.table(name), _COLUMNS[name]
        for key in [key.value for key in table.rows if key.value not in rows]:
            table.remove_row(str(key))
        known = {key.value for key in table.rows}
        for key, cells in rows.items():
            row = tuple(shown(cell) if isinstance(cell, str) else cell for cell in cells)  # a string would be markup
            if key not in known:
                table.add_row(*row, key=key)
                continue
            for column, value in zip(columns, row, strict=True):
                if table.get_cell(key, column) != value:
                    table.update_cell(key, column, value, update_width=True)

    def tell(self, text: str) -> None:
        """Show something at the bottom."""
        self.query_one("#detail").display = bool(text)
        self.query_one("#told", Static).update(Text(printable(text)))

    # -- keys ---------------------------------------------------------------------------------------------------------

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        self._list_jobs()
        self.draw()
        self.table(self.current).focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self.action_inspect()

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.value = self._words
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "filter":
            self._words = event.value
            self.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "filter":
            event.input.display = bool(self._words)
            self.table(self.current).focus()

    def action_clear(self) -> None:
        self._words = ""
        self.query_one("#filter", Input).display = False
        self.tell("")
        self.draw()
        self.table(self.current).focus()

    @work(exclusive=True)
    async def action_inspect(self) -> None:
        if (key := self.chosen) is None:
            return
        if self.current == "workers":
            await self._try(self._inspect_worker(key))
        elif self.current == "jobs":
            await self._try(self._inspect_job(key))
        elif self.current == "gangs" and self._feed.board.is_queued(key):
            await self._try(self._inspect_waiting_gang(key))
        else:
            self.tell(self._row_text(key))

    async def _inspect_worker(self, name: str) -> str:
        stats = await self._client.stats(name)
        tasks = ", ".join(f"{count} {kind}" for kind, count in stats.tasks.items() if count) or "no tasks yet"
        leases = [
            f"  {lease.token[:12]}  {lease.running} of {lease.slots} run  {lease.owner}  {lease.expires_in_s:.1f} s"
            for lease in stats.leases
        ]
        gangs = [f"  gang {gang.gang}  {gang.state}  ranks {list(gang.ranks)}" for gang in stats.gangs]
        return "\n".join([f"{name}, epoch {stats.epoch}: {tasks}", *leases, *gangs])

    def _row_text(self, key: str) -> str:
        return json.dumps(self._feed.board.rows[self.current].get(key, {}), indent=1, ensure_ascii=False)

    async def _inspect_job(self, id: str) -> str:
        job = self._client.job(id)
        info = await job.status()
        lines = list(job_lines(info))
        if info.state in _WAITING:
            board, durations = self._feed.board, await self._durations.durations()
            why = await why_job(self._client, job, board)
            lines += self._lines_of(job_outlook(board, why, durations, time.time()))
        return "\n".join(lines)

    async def _inspect_waiting_gang(self, id: str) -> str:
        why = await ask_of(self._client, GangWhyReply, GangOperation.WHY, GangQuery(id=id))
        outlook = gang_outlook(self._feed.board, why, await self._durations.durations(), time.time())
        return "\n".join([*self._lines_of(outlook), self._row_text(id)])

    def _lines_of(self, outlook: Outlook) -> list[str]:
        now = time.time()
        return [sentence_line(sentence, now) for sentence in outlook.sentences]

    async def _why_job(self, id: str) -> str:
        return "\n".join(why_lines(await why_job(self._client, self._client.job(id), self._feed.board)))

    @work(exclusive=True)
    async def action_why(self) -> None:
        if (key := self.chosen) is None:
            return
        if self.current == "jobs":
            await self._try(self._why_job(key))
            return
        board = self._feed.board
        row = board.rows[Table.WAITS].get(f"{self.current.removesuffix('s')}:{key}")
        if row is None:
            self.tell(f"{key} waits for nothing")
        else:
            self.tell("\n".join(line.plain for line in wait_lines(board)))

    @work(exclusive=True)
    async def action_drain(self) -> None:
        if self.current != "workers" or (name := self.chosen) is None:
            return
        reason = await self.push_screen_wait(Confirm(f"Drain {name}? It finishes its tasks and exits."))
        if reason:
            await self._try(self._drain(name, reason))

    async def _drain(self, name: str, reason: str) -> str:
        reply = await self._client.drain(name, reason=reason)
        return f"{name} is draining: {reply.load.ongoing} slots still in use"

    @work(exclusive=True)
    async def action_end(self) -> None:
        if self.current not in ("gangs", "jobs") or (id := self.chosen) is None:
            return
        if self.current == "gangs":
            question, end = f"End gang {id}? Its members are stopped.", self._end
        else:
            question, end = f"Cancel job {id}? It does not start again; if it runs, it is asked to stop.", self._cancel
        if reason := await self.push_screen_wait(Confirm(question)):
            await self._try(end(id, reason))

    async def _cancel(self, id: str, reason: str) -> str:
        cancelled = await self._client.job(id).cancel(reason=reason)
        self._list_jobs()
        return f"job {id} is cancelled" if cancelled else f"job {id} had already ended"

    async def _end(self, id: str, reason: str) -> str:
        await self._client.end_gang(id, reason=reason[:256])
        return f"gang {id} ends"

    async def _try(self, work: Awaitable[str]) -> None:
        try:
            self.tell(await work)
        except GanglineError as error:
            self.tell(error.message)


def _shown(value: object) -> str:
    return "" if value is None else f"{value:.0f} s" if isinstance(value, float) else str(value)
