"""Displays workers and leases as tables, and follows leases as they are granted and end."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.text import Text

from ...board.board_core import Board, Delta, Table
from ...board.feed import BoardFeed, following, read_board
from ...board.slots import state_of
from ...bus.port.bus import ConnectionEvent, Message
from ...bus.rpc.micro_service import with_other_ledger
from ...dispatcher.client.client import Client
from ...dispatcher.client.operations import shared_limits
from ...schemas.errors.base import Disconnected, Unavailable
from ...schemas.names import public_id, rate_of
from ...schemas.records.workers import Heartbeat, LeaseRecord, LimitRecord, MethodInfo, Registration
from ...schemas.schedules import short_cron
from ...schemas.text import count_of, plain
from ..console.options import ConnectionOptions
from ..console.output import Listing, console, duration, echo, slots_bar
from ..console.session import open_client

_STATE_STYLES = {"serving": "green", "draining": "yellow", "lost": "red"}
REDRAW_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """One registered worker, as the board has it."""

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
        return state_of(self.registration, self.heartbeat)

    def identity(self) -> str:
        return self.name

    def to_json(self) -> dict[str, object]:
        beat = self.heartbeat if self.state != "lost" else None
        load = {"running": beat.running, "reserved": beat.reserved, "total": beat.total} if beat else None
        return {**self.registration.model_dump(mode="json", exclude={"v"}), "state": self.state, "load": load}


async def read_workers(client: Client, pool: str | None = None) -> list[WorkerRow]:
    """All registered workers, by name."""
    names = client.router.names
    board = await read_board(client, names.registrations_of(pool or "*"), names.alive_of(pool or "*"))
    return worker_rows(board, pool)


_ANSWERS_S: Final = 0.5


async def read_elsewhere(client: Client, pool: str | None) -> list[str]:
    """What is wrong with workers that answer and are not in our ledger: at a server with storage of its own, such as a
    leaf node, there is another one. For those who may ask."""
    bus, names, ours = client.router.bus, client.router.names, (await client.router.ledger()).created
    found: dict[str, str] = {}

    def on_answer(message: Message) -> None:
        about = with_other_ledger(message, names.namespace, ours)
        if about is not None and {"pool", "worker"} <= about.keys() and pool in (None, about["pool"]):
            found[f"{about['pool']}.{about['worker']}"] = about["place"]

    try:
        answers = await bus.subscribe(f"{bus.inbox}.workers", on_answer)
        bus.publish("$SRV.PING.gangline-worker", reply=f"{bus.inbox}.workers")
        await asyncio.sleep(_ANSWERS_S)
        await answers.unsubscribe()
    except Unavailable:
        return []
    return [
        f"worker {worker} serves at {place}, which has a ledger of its own: connect there to see it, or connect all "
        "processes to servers of one JetStream domain"
        for worker, place in sorted(found.items())
    ]


def worker_rows(board: Board, pool: str | None = None) -> list[WorkerRow]:
    """The registered workers of a board."""
    return [
        WorkerRow(registration=entries.registration, heartbeat=entries.heartbeat)
        for entries in board.registered(pool)
        if entries.registration is not None
    ]


async def read_leases(client: Client, pool: str | None = None) -> list[LeaseRecord]:
    """The leases in the ledger, oldest first."""
    return (await read_board(client, client.router.names.leases_of(pool or "*"))).leases(pool)


def workers_table(rows: Sequence[WorkerRow]) -> Listing:
    now = time.time()
    lines = []
    for row in rows:
        reg, beat = row.registration, row.heartbeat
        place = "/".join(part for part in (reg.zone, reg.node) if part)
        labels = " ".join(f"{key}={value}" for key, value in reg.labels.items())
        lines.append(
            (
                row.name,
                Text(row.state, _STATE_STYLES[row.state]),
                slots_bar(beat.running, beat.reserved, beat.total)
                if beat and row.state != "lost"
                else f"?/{reg.slots}",
                ", ".join(sorted(reg.methods)),
                " ".join(part for part in (place, labels) if part),
                str(reg.epoch),
                duration(now - reg.started_at) if reg.started_at else "",
            )
        )
    columns = ("WORKER", "STATE", "SLOTS", "TASKS", "NODE", "EPOCH", "UP")
    return Listing(
        columns, lines, right=("UP",), whole=("WORKER", "STATE", "SLOTS"), drop=("EPOCH", "UP", "NODE", "TASKS")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """One task as workers of a pool declare it; during a roll-out there may be several of one name."""

    pool: str
    method: str
    info: MethodInfo
    workers: int
    """How many workers declare it so."""
    shares: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many executions each worker may run of the task's `max_running`."""
    rate_shares: Mapping[str, float] = field(default_factory=dict[str, float])
    """How many each worker may start per second of the task's `rate_per_s`."""

    def identity(self) -> tuple[str, str, MethodInfo]:
        return self.pool, self.method, self.info

    def to_json(self) -> dict[str, object]:
        told = self.info.model_dump(mode="json")
        return {"pool": self.pool, "task": self.method, "workers": self.workers, **told} | {
            "shares": dict(self.shares),
            "rate_shares": dict(self.rate_shares),
        }

    @property
    def options(self) -> str:
        """What it declares, as it is written in the code."""
        flags = [name for name in ("idempotent", "streams") if getattr(self.info, name)]
        policy = {} if self.info.policy is None else self.info.policy.model_dump(exclude_defaults=True)
        if policy.get("cron"):
            policy["cron"] = short_cron(policy["cron"])
        told = [*flags, *(f"{name}={_shown(value)}" for name, value in policy.items())]
        for name, shares in (("shares", self.shares), ("rate_shares", self.rate_shares)):
            if shares:
                told.append(f"{name}={','.join(f'{worker}:{plain(each)}' for worker, each in sorted(shares.items()))}")
        return " ".join(told)


def _shown(value: object) -> str:
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) or "nothing"
    return plain(value) if isinstance(value, float) else repr(value) if isinstance(value, str) else str(value)


async def read_shares(client: Client, pool: str | None = None) -> dict[tuple[str, str], LimitRecord]:
    """How workers divide the limits of their tasks, by pool and method."""
    return await shared_limits(await client.router.ledger(), client.router.names, pool or "*")


def tasks_of(rows: Sequence[WorkerRow], limits: Mapping[tuple[str, str], LimitRecord] | None = None) -> list[TaskRow]:
    """The tasks of these workers, by pool and name. `limits`: how the workers divide their limits."""
    found: dict[tuple[str, str, MethodInfo], int] = {}
    for row in rows:
        for method, info in row.registration.methods.items():
            key = (row.registration.pool, method, info)
            found[key] = found.get(key, 0) + 1
    tasks = [
        TaskRow(
            pool=pool,
            method=name,
            info=info,
            workers=count,
            shares=_shares(info, (limits or {}).get((pool, name))),
            rate_shares=_rate_shares(info, (limits or {}).get((pool, rate_of(name)))),
        )
        for (pool, name, info), count in found.items()
    ]
    return sorted(tasks, key=lambda task: (task.pool, task.method, task.options))


def _shares(info: MethodInfo, record: LimitRecord | None) -> dict[str, int]:
    if record is None or info.policy is None or info.policy.max_running is None:
        return {}
    return {worker: share.units for worker, share in record.shares.items()}


def _rate_shares(info: MethodInfo, record: LimitRecord | None) -> dict[str, float]:
    if record is None or not record.interval_s or info.policy is None or info.policy.rate_per_s is None:
        return {}
    return {worker: round(share.units / record.interval_s, 6) for worker, share in record.shares.items()}


def tasks_table(rows: Sequence[TaskRow]) -> Listing:
    lines = [(f"{row.pool}.{row.method}", str(row.info.slots), str(row.workers), row.options) for row in rows]
    columns = ("TASK", "SLOTS", "WORKERS", "DECLARES")
    return Listing(columns, lines, right=("SLOTS", "WORKERS"), whole=("TASK",), wrap=("DECLARES",))


def leases_table(leases: Sequence[LeaseRecord]) -> Listing:
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
    return Listing(
        columns, lines, right=("SLOTS", "AGE", "EXPIRES IN"), whole=("LEASE", "WORKER"), drop=("AGE", "FOR", "OWNER")
    )


def lease_json(lease: LeaseRecord) -> dict[str, object]:
    """For people and scripts: with the lease's public id."""
    told = lease.model_dump(mode="json", exclude={"v"})
    return {**told, "token": public_id(lease.token), "expires_in_s": round(lease.expires_at - time.time(), 3)}


# -- following --------------------------------------------------------------------------------------------------------


async def watch_leases(connection: ConnectionOptions, pool: str | None, as_json: bool) -> None:
    """Follow until interrupted.

    Raises:
        Disconnected: the connection was closed for good.
        BrokenPipeError: the reader of stdout is gone.
    """
    async with open_client(connection, "gangline leases") as client:
        closed = asyncio.Event()
        client.router.bus.on_connection(lambda event: closed.set() if event is ConnectionEvent.CLOSED else None)
        keys = client.router.names.leases_of(pool or "*")
        feed = BoardFeed(client, ("ledger",), keys=keys, take_s=0)
        log = LeaseLog(print_lines=as_json or not sys.stdout.isatty(), as_json=as_json, on_end=closed.set)
        feed.listen(log.see)
        async with following(feed):
            log.see(feed.board.snapshot())
            if log.prints_lines:
                await closed.wait()
            else:
                await _draw(feed.board, closed)
        raise log.broken or Disconnected("the connection was closed")


class LeaseLog:
    """Prints what changes in the leases of a board."""

    def __init__(self, *, print_lines: bool, as_json: bool, on_end: Callable[[], None] = lambda: None) -> None:
        """`on_end` is called when the reader of the lines is gone."""
        self.prints_lines = print_lines
        self.broken: BrokenPipeError | None = None
        """The error that ended printing."""
        self._as_json = as_json
        self._on_end = on_end
        self._shown: dict[str, Mapping[str, Any]] = {}
        """Rows by public id."""

    def see(self, delta: Delta) -> None:
        """What changed on the board."""
        for id, row in delta.rows.get(Table.LEASES, {}).items():
            event = "renewed" if id in self._shown else "granted"
            self._shown[id] = row
            self._print(event, row)
        for id in delta.gone.get(Table.LEASES, ()):
            gone = self._shown.pop(id, None)
            if gone is not None:
                self._print("gone", gone)

    def _print(self, event: str, row: Mapping[str, Any]) -> None:
        if not self.prints_lines:
            return
        if self._as_json:
            told = {field: row[field] for field in _LEASE_FIELDS if field != "token"}
            left_s = round(row["expires_at"] - time.time(), 3)
            line = json.dumps({"event": event, "lease": {**told, "token": row["id"], "expires_in_s": left_s}})
        else:
            clock = time.strftime("%H:%M:%S")
            line = f"{clock}  {event:<7}  {row['pool']}.{row['worker']}  {count_of(row['slots'], 'slot')}  {row['id']}"
            line = f"{line}  {row['owner']}".rstrip()
        try:
            echo(line)
            sys.stdout.flush()
        except BrokenPipeError as error:
            self.broken, self.prints_lines = error, False
            self._on_end()


_LEASE_FIELDS: Final = tuple(field for field in LeaseRecord.model_fields if field != "v")


async def _draw(board: Board, closed: asyncio.Event) -> None:
    from rich.live import Live

    with Live(console=console(), refresh_per_second=1 / REDRAW_S, transient=True) as live:
        while not closed.is_set():
            leases = board.leases()
            live.update(leases_table(leases) if leases else "no leases (Ctrl-C stops)")
            await asyncio.sleep(REDRAW_S)
