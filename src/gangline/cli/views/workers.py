"""Displays workers and leases as tables, and follows leases as they are granted and end."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from ...bus.port.bus import ConnectionEvent, KvEntry, KvOperation
from ...dispatcher.client.client import Client
from ...dispatcher.client.operations import read_record, registered
from ...schemas.errors.base import Disconnected
from ...schemas.names import public_id
from ...schemas.records.workers import Heartbeat, LeaseRecord, Registration
from ...schemas.text import count_of
from ..console.options import ConnectionOptions
from ..console.output import console, duration, slots_bar, table
from ..console.session import open_bus, open_ledger

if TYPE_CHECKING:
    from rich.table import Table

_STATE_STYLES = {"serving": "green", "draining": "yellow", "lost": "red"}
REDRAW_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """One registered worker."""

    registration: Registration
    heartbeat: Heartbeat | None
    """None: registered, but silent for three seconds."""

    @property
    def name(self) -> str:
        """`<pool>.<worker>`"""
        return f"{self.registration.pool}.{self.registration.worker}"

    @property
    def state(self) -> str:
        """`serving`, `draining`, or `lost`."""
        if self.heartbeat is None:
            return "lost"
        return "draining" if self.heartbeat.draining else self.registration.state

    def to_json(self) -> dict[str, object]:
        beat = self.heartbeat
        load = {"running": beat.running, "reserved": beat.reserved, "total": beat.total} if beat else None
        return {**self.registration.model_dump(mode="json", exclude={"v"}), "state": self.state, "load": load}


async def read_workers(client: Client, pool: str | None = None) -> list[WorkerRow]:
    """All registered workers, by name."""
    found = await registered(await client.router.ledger(), client.router.names, pool or "*")
    return [WorkerRow(registration=registration, heartbeat=heartbeat) for registration, heartbeat in found]


def workers_table(rows: Sequence[WorkerRow]) -> Table:
    now = time.time()
    lines = []
    for row in rows:
        reg, beat = row.registration, row.heartbeat
        place = "/".join(part for part in (reg.zone, reg.node) if part)
        labels = " ".join(f"{key}={value}" for key, value in reg.labels.items())
        lines.append(
            (
                row.name,
                f"[{_STATE_STYLES[row.state]}]{row.state}[/]",
                slots_bar(beat.running, beat.reserved, beat.total) if beat else f"?/{reg.slots}",
                ", ".join(sorted(reg.methods)),
                " ".join(part for part in (place, labels) if part),
                str(reg.epoch),
                duration(now - reg.started_at) if reg.started_at else "",
            )
        )
    columns = ("WORKER", "STATE", "SLOTS", "TASKS", "PLACE", "EPOCH", "UP")
    return table(columns, lines, right=("UP",), whole=("WORKER", "STATE", "SLOTS"))


def leases_table(leases: Sequence[LeaseRecord]) -> Table:
    now = time.time()
    lines = [
        (
            public_id(lease.token),
            f"{lease.pool}.{lease.worker}",
            str(lease.slots),
            "one task" if lease.single_use else "held",
            lease.owner,
            duration(now - lease.granted_at) if lease.granted_at else "",
            duration(lease.expires_at - now),
        )
        for lease in leases
    ]
    columns = ("LEASE", "WORKER", "SLOTS", "FOR", "OWNER", "AGE", "EXPIRES IN")
    return table(columns, lines, right=("SLOTS", "AGE", "EXPIRES IN"), whole=("LEASE", "WORKER"))


def lease_json(lease: LeaseRecord) -> dict[str, object]:
    """For people and scripts: with the lease's public id."""
    told = lease.model_dump(mode="json", exclude={"v"})
    return {**told, "token": public_id(lease.token), "expires_in_s": round(lease.expires_at - time.time(), 3)}


# -- following --------------------------------------------------------------------------------------------------------


async def watch_leases(connection: ConnectionOptions, pool: str, as_json: bool) -> None:
    """Follow until interrupted.

    Raises:
        Disconnected: the connection was closed for good.
        BrokenPipeError: the reader of stdout is gone.
    """
    async with open_bus(connection, "gangline leases") as bus:
        ledger = await open_ledger(bus, connection)
        closed = asyncio.Event()
        bus.on_connection(lambda event: closed.set() if event is ConnectionEvent.CLOSED else None)
        board = Board(print_lines=as_json or not sys.stdout.isatty(), as_json=as_json, on_end=closed.set)
        subscription = await ledger.watch(connection.names.leases_of(pool), board.see)
        try:
            if board.prints_lines:
                await closed.wait()
            else:
                await _draw(board, closed)
        finally:
            await subscription.unsubscribe()
        raise board.broken or Disconnected("the connection was closed")


class Board:
    """The current leases."""

    def __init__(self, *, print_lines: bool, as_json: bool, on_end: Callable[[], None] = lambda: None) -> None:
        """`on_end` is called when the reader of the lines is gone."""
        self.prints_lines = print_lines
        self.broken: BrokenPipeError | None = None
        """The error that ended printing."""
        self._as_json = as_json
        self._on_end = on_end
        self.leases: dict[str, LeaseRecord] = {}

    def see(self, entry: KvEntry) -> None:
        """One change in the ledger."""
        if entry.operation is KvOperation.DELETE:
            gone = self.leases.pop(entry.key, None)
            if gone is not None and self.prints_lines:
                self._print("gone", gone)
            return
        lease = read_record(LeaseRecord, entry)
        if lease is None:
            return
        event = "renewed" if entry.key in self.leases else "granted"
        self.leases[entry.key] = lease
        if self.prints_lines:
            self._print(event, lease)

    def _print(self, event: str, lease: LeaseRecord) -> None:
        if self._as_json:
            line = json.dumps({"event": event, "lease": lease_json(lease)})
        else:
            clock = time.strftime("%H:%M:%S")
            slots = count_of(lease.slots, "slot")
            line = f"{clock}  {event:<7}  {lease.pool}.{lease.worker}  {slots}  {public_id(lease.token)}"
            line = f"{line}  {lease.owner}".rstrip()
        try:
            click.echo(line)
            sys.stdout.flush()
        except BrokenPipeError as error:
            self.broken, self.prints_lines = error, False
            self._on_end()


async def _draw(board: Board, closed: asyncio.Event) -> None:
    from rich.live import Live

    with Live(console=console(), refresh_per_second=1 / REDRAW_S, transient=True) as live:
        while not closed.is_set():
            leases = list(board.leases.values())
            live.update(leases_table(leases) if leases else "no leases (Ctrl-C stops)")
            await asyncio.sleep(REDRAW_S)
