"""`gangline leases --watch`: the ledger's leases as they come and go."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable

import click

from ...bus.port.bus import ConnectionEvent, KvEntry, KvOperation
from ...schemas.errors.base import Disconnected
from ...schemas.public_id import public_id
from ...schemas.records.workers import LeaseRecord
from ...schemas.text import count_of
from ..console.options import Connection
from ..console.output import console
from ..console.session import open_bus, open_ledger
from ..stores.registry import lease_json, parse
from .workers import leases_table

REDRAW_S = 0.25


async def watch_leases(connection: Connection, pool: str, as_json: bool) -> None:
    """Follow until interrupted.

    Raises:
        Disconnected: the connection was closed for good.
        BrokenPipeError: nobody reads what is printed any more.
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
    """The leases that are known now."""

    def __init__(self, *, print_lines: bool, as_json: bool, on_end: Callable[[], None] = lambda: None) -> None:
        """`on_end` is called when nobody reads the lines any more."""
        self.prints_lines = print_lines
        self.broken: BrokenPipeError | None = None
        """What printing ended with."""
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
        lease = parse(LeaseRecord, entry)
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
            live.update(leases_table(leases) if leases else "no leases (ctrl-c ends)")
            await asyncio.sleep(REDRAW_S)
