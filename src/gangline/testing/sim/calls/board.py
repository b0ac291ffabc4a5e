"""The laws of the board: what people are shown.

The board is fed with every revision of the ledger, as an observer with a watch is. It never shows a slot both free and
leased, its deltas lead from each revision to the next, and at rest it shows what the workers have in their books.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import cast

from ....board.board_core import Board, Rows, Table, apply
from ....bus.port.bus import KvEntry, KvOperation
from ....schemas.names import Names
from ....worker.service import WorkerStatistics
from ..history.checker import Checker

_LAW = "board"


class BoardWatch:
    """Feeds a board and compares it with the ledger, which it reads by itself."""

    def __init__(self, checker: Checker, names: Names) -> None:
        self._checker = checker
        self._bucket = names.ledger_bucket
        self.board = Board(names.namespace)
        self._shown: Rows = {}
        """What a reader shows that has applied every delta."""
        self._epochs: dict[str, int] = {}
        """Of registered workers."""
        self._held: dict[str, dict[str, tuple[int, int]]] = {}
        """Epoch and slots of leases and members, by worker and key."""
        self._keys: set[str] = set()
        self._revision = 0

    def on_change(self, bucket: str, entry: KvEntry) -> None:
        """A revision of the ledger, or the expiry of a key."""
        if bucket != self._bucket:
            return
        if entry.revision:  # expiry makes none
            if self._revision and entry.revision != self._revision + 1:
                self._vanished()
            self._revision = entry.revision
        gone = entry.operation is KvOperation.DELETE
        (self._keys.discard if gone else self._keys.add)(entry.key)
        self._see(entry, gone)

    def _vanished(self) -> None:
        """A new bucket begins: a watch reports the keys of the old one as deleted."""
        for key in sorted(self._keys):
            self._see(KvEntry(key=key, value=b"", revision=0, operation=KvOperation.DELETE), gone=True)
        self._keys.clear()

    def _see(self, entry: KvEntry, gone: bool) -> None:
        self.board.see_entry(entry.key, None if gone else entry.value)
        kind, _, rest = entry.key.partition(".")
        if kind not in ("reg", "lease", "member"):
            return
        worker = ".".join(rest.split(".")[:2])
        body: Mapping[str, int] = {} if gone else json.loads(entry.value)
        if kind == "reg":
            self._epochs.pop(worker, None)
            if not gone:
                self._epochs[worker] = body["epoch"]
            return
        held = self._held.setdefault(worker, {})
        held.pop(entry.key, None)
        if not gone:
            held[entry.key] = body["epoch"], _slots(kind, body)

    def look(self) -> None:
        """Take the next delta and check the rows that it changes."""
        delta = self.board.take()
        if delta is None:
            return
        apply(self._shown, delta)
        try:
            self.board.check()
        except AssertionError as error:
            self._checker.fail(_LAW, f"revision {delta.revision}: {error}")
        for name, row in delta.rows.get(Table.SLOTS, {}).items():
            cells = Counter[str]()
            for kind, count, *_ in row["cells"]:  # type: ignore[attr-defined]
                cells[kind] += count
            total, leased = int(str(row["total"])), self._leased(name)
            if cells["free"] and cells["free"] + leased > total:
                text = (
                    f"revision {delta.revision}: of {total} slots of {name}, {leased} are leased, {cells['free']} free"
                )
                self._checker.fail(_LAW, text)

    def _leased(self, worker: str) -> int:
        """Slots that leases and gangs of its epoch have in the ledger."""
        epoch = self._epochs.get(worker)
        return sum(slots for of, slots in self._held.get(worker, {}).values() if of == epoch)

    def differs(self, name: str, books: WorkerStatistics) -> str | None:
        """How the row of a worker at rest differs from its books; None: it does not."""
        slots, row = self.board.slots.get(name), self.board.rows[Table.WORKERS].get(name)
        if slots is None or row is None:
            return f"at rest the board does not show {name}"
        load = books.load
        shown = (slots.running, slots.reserved, slots.total, slots.leased, slots.gang, row["epoch"], row["state"])
        if shown != (load.running, load.reserved, load.total, 0, 0, books.epoch, "serving"):
            return f"at rest the board shows {shown} of {name}, whose books say {books}"
        return None

    def check_worker(self, name: str, books: WorkerStatistics) -> None:
        """At rest: the board shows what the worker says of itself."""
        text = self.differs(name, books)
        if text is not None:
            self._checker.fail(_LAW, text)

    def check_rest(self) -> None:
        """At rest: no lease and no gang is shown, and a reader of the deltas sees the same as the board."""
        for table in (Table.LEASES, Table.WAITS):
            if self.board.rows[table]:
                self._checker.fail(_LAW, f"at rest the board shows {table.value}: {self.board.rows[table]}")
        living = [id for id, gang in self.board.gangs.items() if gang.state != "ended"]
        if living:
            self._checker.fail(_LAW, f"at rest the board shows gangs: {living}")
        shown = {table: rows for table, rows in self._shown.items() if rows}
        if shown != {table: rows for table, rows in self.board.rows.items() if rows}:
            self._checker.fail(_LAW, "the deltas do not lead to the rows of the board")


def _slots(kind: str, body: Mapping[str, object]) -> int:
    if kind == "lease":
        return int(str(body["slots"]))
    seats = cast(list[dict[str, int]], body["seats"])
    return sum(seat["slots"] for seat in seats)
