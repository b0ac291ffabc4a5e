"""Draws the board in a terminal: slots of each worker, and what waits."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from ...board.board_core import Board, Table
from ...board.reasons import Sentence
from ...board.slots import Cells, WorkerSlots
from ..console.output import cell_text, duration
from ..views.gangs import sentence_line

_CELLS: Final = {
    "gang": ("■", "▤", "magenta"),
    "lease": ("■", "□", "blue"),
    "task": ("■", "■", "green"),
    "reserved": ("▫", "▫", "dim"),
    "kept": ("▨", "▨", "yellow"),
    "free": ("·", "·", "dim"),
    "closed": ("-", "-", "dim"),
    "lost": ("✕", "✕", "red"),
}
"""Character of a running slot and of another, and the style, by kind."""
STATES: Final = {"serving": "green", "draining": "yellow", "lost": "red"}
LEGEND: Final = "■ runs  ▤ gang  □ lease  ▨ for a gang  ▫ reserved  · free  - draining  ✕ lost"


def cells_text(cells: Iterable[Cells], most: int = 32) -> Text:
    """A character for each slot; the rest of a long worker as a number."""
    text, left = Text(), most
    for each in cells:
        running, other, style = _CELLS[each.kind]
        shown = min(each.slots, left)
        left -= shown
        busy = min(each.running, shown)
        text.append(running * busy + other * (shown - busy), style)
    hidden = sum(each.slots for each in cells) - (most - left)
    if hidden > 0:
        text.append(f" +{hidden}", "dim")
    return text


def shown(text: str, style: str = "") -> Text:
    """Text of others, in one line."""
    return Text(cell_text(text), style)


def matches(board: Board, name: str, words: str) -> bool:
    """Whether a worker is shown with this filter: each word is in its name, place, state, tasks, labels or owners."""
    row = board.rows[Table.WORKERS].get(name)
    if row is None:
        return False
    owners = [lease.owner for lease in board.workers[name].leases.values()]
    holders = [cells.holder for cells in board.slots[name].cells]
    text = " ".join(str(part) for part in (name, *row.values(), *owners, *holders)).lower()
    return all(word in text for word in words.lower().split())


def worker_names(board: Board, words: str = "") -> list[str]:
    return [name for name in sorted(board.slots) if matches(board, name, words)]


def headline(board: Board) -> Text:
    """`leader since 14:03:12  slots 12/32  waiting 3  workers 4, 1 lost`: 80 columns show it."""
    slots = board.slots.values()
    total = sum(each.total for each in slots if not each.lost)
    used = sum(each.total - each.free for each in slots if not each.lost)
    lost = sum(each.lost for each in slots)
    leaders = [row for key, row in board.rows[Table.SYSTEM].items() if key.startswith("leader:") and row["alive"]]
    text = Text()
    text.append("gangline top  ", "bold")
    since = leaders[0]["since"] if leaders else None
    text.append(
        f"leader since {_clock(since)}" if isinstance(since, float) else "no leader", "" if leaders else "yellow"
    )
    text.append(f"  slots {used}/{total}")
    text.append(f"  waiting {len(board.rows[Table.WAITS])}", "yellow" if board.rows[Table.WAITS] else "")
    text.append(f"  workers {len(slots)}")
    if lost:
        text.append(f", {lost} lost", "red")
    return text


def system_lines(board: Board) -> list[Text]:
    """How many gateways and other services have answered a ping; and what is shown as it was some time ago, and why."""
    found = Counter(str(row["name"]) for row in board.rows[Table.SYSTEM].values() if row["kind"] == "service")
    services = "  ".join(f"{name}s {count}" for name, count in sorted(found.items()))
    old = [row for key, row in sorted(board.rows[Table.SYSTEM].items()) if key.startswith("old:")]
    lines = [shown(services)] if services else []
    return lines + [
        shown(f"{row['id']} as of {_clock(float(str(row['at'])))}: {row['why'] or 'no answer'}", "yellow")
        for row in old
    ]


def _clock(at: float) -> str:
    """The local time, with its date unless it is of the last day."""
    moment = datetime.fromtimestamp(at).astimezone()
    return f"{moment:%H:%M:%S}" if time.time() - at < 86_400 else f"{moment:%Y-%m-%d %H:%M:%S}"


def owners_of(board: Board, name: str) -> str:
    """Who holds slots of a worker, and until when."""
    now, entries = time.time(), board.workers[name]
    found = []
    for gang in sorted(entries.members):
        record = board.gangs.get(gang)  # the gangs of a set differ only at the ends of their ids
        found.append(f"gang {gang if record is not None and record.gangset else gang[:12]}")
    for lease in sorted(entries.leases.values(), key=lambda lease: lease.granted_at)[:4]:
        found.append(f"{lease.owner or lease.token[:7]} {lease.slots} {duration(lease.expires_at - now)}")
    more = len(entries.leases) - 4
    return ", ".join(found) + (f", +{more}" if more > 0 else "")


def workers_view(board: Board, names: Iterable[str]) -> RichTable:
    lines = []
    for name in names:
        slots: WorkerSlots = board.slots[name]
        state = str(board.rows[Table.WORKERS][name]["state"])
        used = f"{slots.total - slots.free}/{slots.total}" if not slots.lost else ""
        lines.append(
            (shown(name), Text(state, STATES[state]), cells_text(slots.cells), used, shown(owners_of(board, name)))
        )
    made = RichTable(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("WORKER", "STATE", "SLOTS", "USED"):
        made.add_column(column, no_wrap=True)
    made.add_column("HELD BY", overflow="fold")
    for line in lines:
        made.add_row(*line)
    return made


def wait_lines(board: Board) -> list[Text]:
    """What waits, why, who holds the slots, and until when."""
    lines = []
    now = time.time()
    for row in board.rows[Table.WAITS].values():
        line = Text()
        line.append(f"{row['kind']} ", "yellow")
        line.append(cell_text(str(row["id"])), "bold")
        unit = str(row["unit"]).removesuffix("s" if row["count"] == 1 else "")
        line.append(cell_text(f"  {row['count']} {unit}  {row['owner']}"))
        since = row.get("since")
        if isinstance(since, float) and since:
            line.append(f"  {duration(now - since)}", "dim")
        lines.append(line)
        told, reasons = row.get("told"), row.get("reasons")
        if isinstance(told, list) and told:
            lines += [shown(f"  {sentence_line(Sentence(**each), now)}") for each in told]
        elif isinstance(reasons, list):
            lines += [shown(f"  {reason}") for reason in reasons]
    return lines


def screen(board: Board, words: str = "", *, most: int = 1000) -> RenderableType:
    """All of it."""
    names = worker_names(board, words)
    parts: list[RenderableType] = [headline(board), *system_lines(board), Text()]
    parts.append(workers_view(board, names[:most]) if names else Text("no workers", "dim"))
    if len(names) > most:
        parts.append(Text(f"and {len(names) - most} more workers", "dim"))
    parts.append(Text(LEGEND, "dim"))
    waits = wait_lines(board)
    parts += [Text(), Text("waits, and why", "bold"), *waits] if waits else [Text(), Text("nothing waits", "dim")]
    return Group(*parts)
