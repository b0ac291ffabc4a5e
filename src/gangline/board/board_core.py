"""The board's state: what it has been told of a running system, and the rows that follow from it. Pure.

Laws, which `check()` and the simulator assert:

1. A slot is never shown both free and leased in one revision: of each worker, `free + leased + gang <= slots`.
2. Applying the deltas since a revision to the rows of that revision gives the rows of the present one.
3. At rest, the rows equal the books of the workers and of the coordinator.
4. No row has a token: holders are named by public ids.
5. Memory is bounded by what the ledger holds at once; lists of events have fixed lengths.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from ..schemas.errors.base import GanglineError
from ..schemas.messages.gangs import GangEvent, GangReply, GangWhyReply
from ..schemas.messages.jobs import QueueStats
from ..schemas.messages.operations import RouterQueues, StatsReply
from ..schemas.names import public_id
from ..schemas.records.gangs import (
    GangRecord,
    GangSetRecord,
    GangSetStatus,
    LeaderAlive,
    LeaderRecord,
    MemberRecord,
)
from ..schemas.records.jobs import DispatcherEvent, JobEvent, TaskDeadEvent
from ..schemas.records.routes import RouteRecord, parse_route
from ..schemas.records.workers import Heartbeat, LeaseRecord, Record, Registration
from ..schemas.wire import codec
from . import rows
from .rank_times import rank_report, times_in
from .slots import WorkerSlots, slots_of, state_of

Row = dict[str, object]
Rows = dict[str, dict[str, Row]]
"""By table and key."""
V = TypeVar("V", bound=Record)

MOST_EVENTS: Final = 300
"""Length of the lists of events, jobs and dead letters."""
MOST_ENDED: Final = 50
"""Number of ended gangs that are still shown."""
MOST_GONE: Final = 100
"""Number of workers that are still shown after they are gone."""
MOST_GENERATIONS: Final = 60
"""Steps that are remembered of each gang."""
MOST_DELTAS: Final = 240
"""A minute at four deltas a second: a client that was away for less than that needs no snapshot."""
SILENT_S: Final = 5.0
"""Routers and dispatchers that were not heard for this long are gone."""
LOST_S: Final = 2.5
"""A worker whose registration ends so long after its last heartbeat has not left by itself."""
FRESH_S: Final = 4.0
"""How long the statistics of a worker count."""


class Table(StrEnum):
    """The board's tables."""

    POOLS = "pools"
    WORKERS = "workers"
    """What a worker is: changes seldom."""
    SLOTS = "slots"
    """What its slots do; by the same keys."""
    GONE = "gone"
    """What workers were that are no longer registered, and when they were last seen."""
    LEASES = "leases"
    GANGS = "gangs"
    WAITS = "waits"
    SETS = "sets"
    QUEUES = "queues"
    ROUTES = "routes"
    SYSTEM = "system"
    JOBS = "jobs"
    DEAD = "dead"
    EVENTS = "events"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What changed from one revision to the next; or, if `whole`, all rows at this one."""

    revision: int
    rows: Rows
    """New and changed rows."""
    gone: dict[str, list[str]]
    """Keys of rows that are gone, by table."""
    whole: bool = False

    def to_json(self) -> dict[str, object]:
        return {"revision": self.revision, "whole": self.whole, "rows": self.rows, "gone": self.gone}


def apply(to: Rows, delta: Delta) -> None:
    """Change the rows of one revision into those of the next."""
    if delta.whole:
        to.clear()
    for table, changed in delta.rows.items():
        to.setdefault(table, {}).update(changed)
    for table, keys in delta.gone.items():
        for key in keys:
            to.get(table, {}).pop(key, None)


@dataclass(slots=True)
class WorkerEntries:
    """What is known of one worker. Gone when all of it is."""

    registration: Registration | None = None
    heartbeat: Heartbeat | None = None
    leases: dict[str, LeaseRecord] = field(default_factory=dict)
    """By key of the ledger."""
    members: dict[str, MemberRecord] = field(default_factory=dict)
    """By gang."""
    stats: StatsReply | None = None
    stats_at: float = 0.0
    kept: dict[str, int] = field(default_factory=dict)
    """By gang, as the coordinator says."""
    seen_at: float = 0.0
    """Unix time of the last heartbeat; 0: not known."""

    @property
    def empty(self) -> bool:
        return self.registration is None and self.heartbeat is None and not self.leases and not self.members


class Board:
    """The read model. Feed it with the `see_` and `answer_` methods, then `take` the next delta."""

    def __init__(self, namespace: str = "gangline") -> None:
        self._prefix = f"{namespace}."
        self.revision = 0
        self.rows: Rows = {table.value: {} for table in Table}
        """The rows at `revision`. Read only."""
        self.workers: dict[str, WorkerEntries] = {}
        """By `<pool>.<worker>`."""
        self.slots: dict[str, WorkerSlots] = {}
        """Of registered workers, at `revision`."""
        self.gangs: dict[str, GangRecord] = {}
        self.queues: dict[str, QueueStats] = {}
        self.routes: dict[str, RouteRecord | str] = {}
        """By endpoint; a text says what is wrong with it."""
        self._pools: dict[str, set[str]] = {}
        self._steps: dict[str, deque[Row]] = {}
        self._ended: OrderedDict[str, Row] = OrderedDict()
        self._listed: dict[str, GangReply] = {}
        """Gangs that the coordinator told of. Only those that have formed once are in the ledger."""
        self._whys: dict[str, tuple[GangWhyReply, float]] = {}
        self._leases: dict[str, LeaseRecord] = {}
        self._sets: dict[str, tuple[GangSetRecord | None, GangSetStatus | None]] = {}
        self._routers: dict[str, tuple[RouterQueues, float]] = {}
        self._dispatchers: dict[str, tuple[DispatcherEvent, float]] = {}
        self._leaders: dict[str, LeaderRecord] = {}
        self._leading: dict[str, LeaderAlive] = {}
        self._services: dict[str, Row] = {}
        self._answered: dict[str, float] = {}
        """When the lists of gangs and of queues were answered last, Unix times."""
        self._missed: dict[str, str] = {}
        """Why they were not, since then."""
        self._number = 0
        self._now = 0.0
        """Unix time of the last tick."""
        self._dirty: dict[Table, set[str]] = {table: set() for table in Table}
        self._lists: dict[Table, OrderedDict[str, Row]] = {
            table: OrderedDict() for table in (Table.GONE, Table.JOBS, Table.DEAD, Table.EVENTS)
        }
        self._deltas: deque[Delta] = deque(maxlen=MOST_DELTAS)
        self._entries: dict[str, Callable[[str, bytes | None], None]] = {
            "reg": self._see_registration,
            "alive": self._see_heartbeat,
            "lease": self._see_lease,
            "member": self._see_member,
            "gang": self._see_gang,
            "gangset": self._see_set,
            "gangset_status": self._see_set,
            "leader": self._see_leader,
            "leader_alive": self._see_leader,
        }
        self._events: dict[str, Callable[[str, bytes, float], None]] = {
            "gang": self._see_gang_event,
            "worker": self._see_worker_event,
            "task": self._see_dead,
            "dispatcher": self._see_dispatcher,
            "router": self._see_router,
        }

    # -- in: the ledger -----------------------------------------------------------------------------------------------

    def see_entry(self, key: str, value: bytes | None) -> None:
        """A new revision of a key of the ledger; None: deleted or expired."""
        see = self._entries.get(key.partition(".")[0])
        if see is not None:
            see(key, value)

    def _worker(self, key: str) -> tuple[str, WorkerEntries] | None:
        parts = key.split(".", 3)
        if len(parts) < 3:
            return None
        name = f"{parts[1]}.{parts[2]}"
        found = self.workers.get(name)
        if found is None:
            self.workers[name] = found = WorkerEntries()
            self._pools.setdefault(parts[1], set()).add(name)
        self._touch_worker(name)
        return name, found

    def _see_registration(self, key: str, value: bytes | None) -> None:
        if (worker := self._worker(key)) is None:
            return
        name, entries = worker
        before, entries.registration = entries.registration, _read(Registration, value)
        self._dirty[Table.WORKERS].add(name)
        if entries.registration is not None:
            self._lists[Table.GONE].pop(name, None)
            self._dirty[Table.GONE].add(name)
        elif before is not None:
            # Who leaves removes its entries at once; those of a worker that died expire one after the other.
            lost = bool(entries.seen_at) and self._now - entries.seen_at >= LOST_S
            row = rows.worker_row(before, "lost" if lost else "left")
            self._list(Table.GONE, name, {**row, "last_seen_at": entries.seen_at or None})

    def _see_heartbeat(self, key: str, value: bytes | None) -> None:
        if (worker := self._worker(key)) is None:
            return
        name, entries = worker
        before, entries.heartbeat = entries.heartbeat, _read(Heartbeat, value)
        if entries.heartbeat is not None:
            entries.seen_at = self._now
        if (before is None) != (entries.heartbeat is None):
            self._dirty[Table.WORKERS].add(name)

    def _see_lease(self, key: str, value: bytes | None) -> None:
        if (worker := self._worker(key)) is None:
            return
        _, entries = worker
        before = entries.leases.pop(key, None)
        if before is not None:
            self._leases.pop(public_id(before.token), None)
            self._dirty[Table.LEASES].add(public_id(before.token))
        record = _read(LeaseRecord, value)
        if record is not None:
            entries.leases[key] = self._leases[public_id(record.token)] = record
            self._dirty[Table.LEASES].add(public_id(record.token))

    def _see_member(self, key: str, value: bytes | None) -> None:
        if (worker := self._worker(key)) is None:
            return
        _, entries = worker
        gang = key.split(".", 3)[-1]
        record = _read(MemberRecord, value)
        if record is None:
            entries.members.pop(gang, None)
        else:
            entries.members[gang] = record

    def _see_gang(self, key: str, value: bytes | None) -> None:
        id = key.partition(".")[2]
        record = _read(GangRecord, value)
        before = self.gangs.pop(id, None)
        if record is not None:
            self.gangs[id] = record
            self._ended.pop(id, None)
        elif before is not None:
            self._bury(id)
        if not self.is_queued(id):
            self._forget_why(id)
        self._touch_gang(id)

    def _see_set(self, key: str, value: bytes | None) -> None:
        kind, _, name = key.partition(".")
        declared, status = self._sets.get(name, (None, None))
        if kind == "gangset":
            declared = _read(GangSetRecord, value)
        else:
            status = _read(GangSetStatus, value)
        self._sets[name] = declared, status
        if declared is None and status is None:
            del self._sets[name]
        self._dirty[Table.SETS].add(name)
        self._dirty[Table.WAITS].add(f"set:{name}")

    def _see_leader(self, key: str, value: bytes | None) -> None:
        kind, _, shard = key.partition(".")
        if kind == "leader":
            _put(self._leaders, shard, _read(LeaderRecord, value))
        else:
            _put(self._leading, shard, _read(LeaderAlive, value))
        self._dirty[Table.SYSTEM].add(f"leader:{shard}")

    # -- in: routes, events, jobs -------------------------------------------------------------------------------------

    def see_route(self, endpoint: str, value: bytes | None) -> None:
        """A new revision of a route; None: deleted."""
        if value is None:
            self.routes.pop(endpoint, None)
        else:
            try:
                self.routes[endpoint] = parse_route(endpoint, value)
            except GanglineError as error:
                self.routes[endpoint] = error.message
        self._dirty[Table.ROUTES].add(endpoint)
        self._dirty[Table.WAITS].add(f"queue:{endpoint}")

    def see_event(self, subject: str, data: bytes, now: float) -> None:
        """A message on `<ns>.event.>`; `now`: Unix time."""
        kind, _, rest = subject.removeprefix(self._prefix).removeprefix("event.").partition(".")
        see = self._events.get(kind)
        if see is not None:
            see(rest, data, now)

    def _see_gang_event(self, id: str, data: bytes, now: float) -> None:
        event = _read(GangEvent, data)
        if event is None or not id:
            return
        steps = self._steps.get(id)
        if steps is None:
            if id not in self.gangs and id not in self._listed:  # its record comes next, or it has ended
                self._bury(id)
            self._steps[id] = steps = deque(maxlen=MOST_GENERATIONS)
        at = event.at or now
        steps.append(
            {
                "at": at,
                "kind": event.kind.value,
                "generation": event.generation,
                "rank": event.rank,
                "reason": event.reason,
                "size": event.size,
                "unconfirmed": list(event.unconfirmed),
                "slowest": rank_report(times_in(event.details))["told"],
            }
        )
        told = [f"generation {event.generation}", *([f"rank {event.rank}"] if event.rank is not None else [])]
        self._note(at, f"gang {event.kind.value}", id, ", ".join([*told, *([event.reason] if event.reason else [])]))
        self._touch_gang(id)

    def _see_worker_event(self, worker: str, data: bytes, now: float) -> None:
        body = _object(data)
        at = body.get("at")
        kind = str(body.get("event", ""))[:40]
        self._note(at if isinstance(at, float) else now, f"worker {kind}", worker, f"epoch {body.get('epoch', '?')}")

    def _see_dead(self, endpoint: str, data: bytes, now: float) -> None:
        event = _read(TaskDeadEvent, data)
        if event is None:
            return
        error = event.error
        row: Row = {
            "job": event.job,
            "endpoint": event.endpoint,
            "method": event.method,
            "reason": event.reason.value,
            "attempts": event.attempts,
            "error": None if error is None else {"code": error.code, "message": error.message[:300]},
            "at": event.at or now,
        }
        self._list(Table.DEAD, event.job, row)
        told = event.reason.value + (f": {error.message[:120]}" if error is not None else "")
        self._note(event.at or now, "task dead", event.job, told)

    def _see_dispatcher(self, id: str, data: bytes, now: float) -> None:
        event = _read(DispatcherEvent, data)
        if event is None:
            return
        if event.event == "left":
            self._dispatchers.pop(id, None)
        else:
            self._dispatchers[id] = event, now
        if event.event != "here":
            told = ", ".join(event.queues)
            self._note(event.at or now, f"dispatcher {event.event}", id, told)
        self._dirty[Table.SYSTEM].add(f"dispatcher:{id}")

    def _see_router(self, id: str, data: bytes, now: float) -> None:
        try:
            told = RouterQueues.model_validate_json(data)
        except ValueError:
            return
        before, _ = self._routers.pop(id, (None, 0.0))
        if any(told.waiting.values()):
            self._routers[id] = told, now
        for pool in {*told.waiting, *(before.waiting if before is not None else ())}:
            self._touch_calls(pool)

    def see_job(self, data: bytes) -> None:
        """A message on `<ns>.job.<job>.state`."""
        event = _read(JobEvent, data)
        if event is None:
            return
        error = event.error
        row: Row = {
            "job": event.job,
            "state": event.state.value,
            "attempt": event.attempt,
            "worker": event.worker,
            "at": event.at,
            "error": None if error is None else {"code": error.code, "message": error.message[:300]},
            "reason": event.reason,
        }
        self._list(Table.JOBS, event.job, row)

    # -- in: answers --------------------------------------------------------------------------------------------------

    def answer_stats(self, stats: StatsReply, now: float) -> None:
        """A worker's statistics."""
        name = f"{stats.pool}.{stats.worker}"
        entries = self.workers.get(name)
        if entries is not None:
            entries.stats, entries.stats_at = stats, now
            self._touch_worker(name)

    def answer_queues(self, queues: Iterable[QueueStats]) -> None:
        """All queues."""
        found = {queue.endpoint: queue for queue in queues}
        for endpoint in {*found, *self.queues}:
            if found.get(endpoint) != self.queues.get(endpoint):
                self._dirty[Table.QUEUES].add(endpoint)
                self._dirty[Table.WAITS].add(f"queue:{endpoint}")
        self.queues = found
        self._answer("queues")

    def answer_gangs(self, gangs: Iterable[GangReply]) -> None:
        """All gangs that the coordinator has."""
        before, self._listed = self._listed, {gang.id: gang for gang in gangs}
        for id in {*before, *self._listed}:
            if before.get(id) == self._listed.get(id):
                continue
            if id not in self._listed and id not in self.gangs:
                self._bury(id)
            if not self.is_queued(id):
                self._forget_why(id)
            self._touch_gang(id)
        self._answer("gangs")

    def _answer(self, what: str) -> None:
        self._answered[what] = self._now
        self._missed.pop(what, None)
        self._dirty[Table.SYSTEM].add(f"old:{what}")

    def miss(self, what: str, why: str) -> None:
        """A question was not answered. The rows of `gangs` and `queues` stay, and one of the system says how old they
        are."""
        if what in self._answered:
            self._missed.setdefault(what, why)
            self._dirty[Table.SYSTEM].add(f"old:{what}")

    def is_queued(self, gang: str) -> bool:
        """Whether the gang waits for slots."""
        record, listed = self.gangs.get(gang), self._listed.get(gang)
        if record is not None:
            return rows.gang_state(record, listed) == "queued"
        return listed is not None and listed.state == "queued"

    def known_gang(self, gang: str) -> GangRecord | GangReply | None:
        """Its record; before it has formed once, what the coordinator says of it."""
        return self.gangs.get(gang) or self._listed.get(gang)

    def registered(self, pool: str | None = None) -> list[WorkerEntries]:
        """Registered workers of a pool, or all, by name."""
        found = [
            (name, entries)
            for name, entries in self.workers.items()
            if entries.registration is not None and (pool is None or entries.registration.pool == pool)
        ]
        return [entries for _, entries in sorted(found, key=lambda each: each[0])]

    def leases(self, pool: str | None = None) -> list[LeaseRecord]:
        """The leases of a pool, or all, oldest first."""
        found = [lease for lease in self._leases.values() if pool is None or lease.pool == pool]
        return sorted(found, key=lambda lease: (lease.granted_at, lease.token))

    def lease(self, id: str) -> LeaseRecord | None:
        """A lease by its public id."""
        return self._leases.get(id)

    def registration(self, worker: str) -> Registration | None:
        """Of `<pool>.<worker>`."""
        entries = self.workers.get(worker)
        return None if entries is None else entries.registration

    @property
    def queued(self) -> list[str]:
        """The gangs that wait for slots."""
        return sorted(id for id in {*self.gangs, *self._listed} if self.is_queued(id))

    def answer_why(self, why: GangWhyReply, now: float) -> None:
        """What a gang waits for."""
        if not self.is_queued(why.id):
            return
        self._forget_why(why.id)
        self._whys[why.id] = why, now
        for name, slots in why.kept.items():
            if slots and name in self.workers:
                self.workers[name].kept[why.id] = slots
                self._touch_worker(name)
        self._touch_gang(why.id)

    def answer_services(self, services: Mapping[str, Row]) -> None:
        """The NATS services that were found, by `service:<id>`: gateways and the like."""
        self._dirty[Table.SYSTEM].update({*services, *self._services})
        self._services = dict(services)

    def tick(self, now: float) -> None:
        """Time has passed: forget who was not heard for long. Call it about once a second."""
        self._now = now
        self._dirty[Table.SYSTEM].update(f"old:{what}" for what in self._answered)
        for router, (told, at) in list(self._routers.items()):
            if at + SILENT_S < now:
                del self._routers[router]
                for pool in told.waiting:
                    self._touch_calls(pool)
        for dispatcher, (_, at) in list(self._dispatchers.items()):
            if at + SILENT_S < now:
                del self._dispatchers[dispatcher]
                self._dirty[Table.SYSTEM].add(f"dispatcher:{dispatcher}")
        for name, entries in self.workers.items():
            if entries.stats is not None and entries.stats_at + FRESH_S < now:
                entries.stats = None
                self._touch_worker(name)

    # -- what follows from a change ------------------------------------------------------------------------------------

    def _touch_worker(self, name: str) -> None:
        self._dirty[Table.SLOTS].add(name)
        self._dirty[Table.POOLS].add(name.partition(".")[0])

    def _touch_gang(self, id: str) -> None:
        self._dirty[Table.GANGS].add(id)
        self._dirty[Table.WAITS].add(f"gang:{id}")
        self._dirty[Table.POOLS].update(self.pools_of(id))

    def pools_of(self, gang: str) -> frozenset[str]:
        """The pools whose slots a gang has, or waits for as far as is known."""
        if gang in self.gangs:
            return self.gangs[gang].spec.pools
        why = self._whys.get(gang)
        return frozenset(worker.partition(".")[0] for worker in why[0].target) if why is not None else frozenset()

    def _touch_calls(self, pool: str) -> None:
        self._dirty[Table.WAITS].add(f"calls:{pool}")
        self._dirty[Table.POOLS].add(pool)

    def _forget_why(self, id: str) -> None:
        self._dirty[Table.POOLS].update(self.pools_of(id))
        why = self._whys.pop(id, None)
        for name in why[0].kept if why is not None else ():
            if name in self.workers and self.workers[name].kept.pop(id, None) is not None:
                self._touch_worker(name)

    def _bury(self, id: str) -> None:
        """The gang's record is gone. Its last row is kept for a while."""
        shown = self.rows[Table.GANGS].get(id)
        if shown is not None or id not in self._ended:
            self._ended[id] = shown or {}
        self._ended.move_to_end(id)
        while len(self._ended) > MOST_ENDED:
            oldest, _ = self._ended.popitem(last=False)
            self._steps.pop(oldest, None)
            self._dirty[Table.GANGS].add(oldest)

    def _note(self, at: float, kind: str, subject: str, text: str) -> None:
        self._number += 1
        row: Row = {"at": at, "kind": kind, "subject": subject, "text": text}
        self._list(Table.EVENTS, f"{self._number:09d}", row)

    def _list(self, table: Table, key: str, row: Row) -> None:
        kept = self._lists[table]
        kept[key] = row
        kept.move_to_end(key)
        self._dirty[table].add(key)
        most = MOST_GONE if table is Table.GONE else MOST_EVENTS
        while len(kept) > most:
            self._dirty[table].add(kept.popitem(last=False)[0])

    # -- out ----------------------------------------------------------------------------------------------------------

    def take(self) -> Delta | None:
        """The next delta; None: no row has changed. Its revision is then that of the board."""
        changed: Rows = {}
        gone: dict[str, list[str]] = {}
        self._settle()
        for table, keys in self._dirty.items():
            shown = self.rows[table]
            for key in sorted(keys):
                row = self._row(table, key)
                if row is None:
                    if shown.pop(key, None) is not None:
                        gone.setdefault(table.value, []).append(key)
                elif shown.get(key) != row:
                    shown[key] = row
                    changed.setdefault(table.value, {})[key] = row
            keys.clear()
        if not changed and not gone:
            return None
        self.revision += 1
        delta = Delta(revision=self.revision, rows=changed, gone=gone)
        self._deltas.append(delta)
        return delta

    def snapshot(self) -> Delta:
        """All rows at the present revision."""
        return Delta(
            revision=self.revision,
            rows={table: dict(rows) for table, rows in self.rows.items()},
            gone={},
            whole=True,
        )

    def since(self, revision: int) -> Sequence[Delta] | None:
        """The deltas after a revision; None: it is too old, or of another board, so a snapshot is needed."""
        if revision == self.revision:
            return ()
        if not self._deltas or not self._deltas[0].revision - 1 <= revision < self.revision:
            return None
        return [delta for delta in self._deltas if delta.revision > revision]

    def check(self) -> None:
        """Assert what holds at every revision."""
        for name, slots in self.slots.items():
            count = sum(cells.slots for cells in slots.cells)
            assert count >= slots.total, f"{name}: {count} cells for {slots.total} slots"
            assert all(cells.slots > 0 and 0 <= cells.running <= cells.slots for cells in slots.cells), (name, slots)
            assert slots.free + slots.leased + slots.gang <= max(slots.total, slots.leased + slots.gang), (name, slots)
            free = sum(cells.slots for cells in slots.cells if cells.kind == "free")
            assert free == slots.free, (name, slots)
        assert set(self.slots) == set(self.rows[Table.SLOTS])

    def _settle(self) -> None:
        """Work out the slots of the workers that changed, which several tables show."""
        for name in sorted(self._dirty[Table.SLOTS]):
            entries = self.workers.get(name)
            if entries is None or entries.registration is None:
                self.slots.pop(name, None)
                if entries is not None and entries.empty:
                    del self.workers[name]
                    pool = name.partition(".")[0]
                    self._pools[pool].discard(name)
                    if not self._pools[pool]:
                        del self._pools[pool]
                continue
            self.slots[name] = slots_of(
                entries.registration,
                entries.heartbeat,
                list(entries.leases.values()),
                list(entries.members.values()),
                entries.stats,
                entries.kept,
            )
        # A queue waits for free slots of its pools, and so do calls.
        for pool in self._dirty[Table.POOLS]:
            if f"calls:{pool}" in self.rows[Table.WAITS]:
                self._dirty[Table.WAITS].add(f"calls:{pool}")
        if self._dirty[Table.POOLS]:
            self._dirty[Table.WAITS].update(f"queue:{endpoint}" for endpoint in self.queues)

    def _row(self, table: Table, key: str) -> Row | None:
        match table:
            case Table.WORKERS:
                entries = self.workers.get(key)
                if entries is None or entries.registration is None:
                    return None
                return rows.worker_row(entries.registration, state_of(entries.registration, entries.heartbeat))
            case Table.SLOTS:
                slots = self.slots.get(key)
                return None if slots is None else slots.to_row()
            case Table.POOLS:
                return self._pool_row(key)
            case Table.LEASES:
                lease = self._leases.get(key)
                return None if lease is None else rows.lease_row(lease)
            case Table.GANGS:
                record = self.gangs.get(key)
                steps = list(self._steps.get(key, ()))
                if record is not None:
                    return rows.gang_row(record, self._listed.get(key), steps)
                if key in self._listed:
                    return rows.listed_row(self._listed[key], self.pools_of(key), steps)
                last = self._ended.get(key)
                return {**last, "state": "ended", "steps": steps} if last else None
            case Table.WAITS:
                return self._wait_row(key)
            case Table.SETS:
                return rows.set_row(key, *self._sets[key]) if key in self._sets else None
            case Table.QUEUES:
                return self.queues[key].model_dump(mode="json") if key in self.queues else None
            case Table.ROUTES:
                return rows.route_row(key, self.routes[key]) if key in self.routes else None
            case Table.SYSTEM:
                return self._system_row(key)
            case _:
                return self._lists[table].get(key)

    def _pool_row(self, pool: str) -> Row | None:
        waiting = self.calls_wait(pool)
        queued = [id for id in self.queued if pool in self.pools_of(id)]
        workers = [(name, self.slots[name]) for name in self._pools.get(pool, ()) if name in self.slots]
        if not workers and not waiting and not queued:
            return None
        states = [_text(self.workers[name]) for name, _ in workers]
        leases = sum(len(self.workers[name].leases) for name, _ in workers)
        return rows.pool_row(pool, [slots for _, slots in workers], states, leases, sum(waiting.values()), len(queued))

    def calls_wait(self, pool: str, *, besides: str = "") -> dict[str, int]:
        """Requests that wait for slots of a pool, by client; without those of the router `besides`."""
        found = (
            (told.owner or told.router, told.waiting.get(pool, 0))
            for told, _ in self._routers.values()
            if told.router != besides
        )
        return {owner: count for owner, count in found if count}

    def _wait_row(self, key: str) -> Row | None:
        kind, _, id = key.partition(":")
        match kind:
            case "gang":
                if not self.is_queued(id):
                    return None
                listed, why = self._listed.get(id), self._whys.get(id, (None, 0.0))
                gang = self.gangs.get(id) or self._listed[id]
                since = listed.queued_at if listed is not None and listed.queued_at else gang.created_at
                return rows.gang_wait(gang, since, sorted(self.pools_of(id)), *why)
            case "queue":
                queue = self.queues.get(id)
                return None if queue is None else rows.queue_wait(queue, self.routes.get(id), self._free_slots(id))
            case "calls":
                waiting = self.calls_wait(id)
                return rows.calls_wait(id, waiting, self._pool_slots(id)) if waiting else None
            case _:
                return rows.set_wait(id, self._sets[id][1]) if id in self._sets else None

    def _pool_slots(self, pool: str) -> tuple[int, int]:
        """Its free slots and all of them."""
        found = [self.slots[name] for name in self._pools.get(pool, ()) if name in self.slots]
        return sum(each.free for each in found), sum(each.total for each in found)

    def _free_slots(self, endpoint: str) -> tuple[int, int]:
        route = self.routes.get(endpoint)
        pools = route.pools(endpoint) if isinstance(route, RouteRecord) else {endpoint: 1.0}
        found = [self._pool_slots(pool) for pool in pools]
        return sum(free for free, _ in found), sum(total for _, total in found)

    def _system_row(self, key: str) -> Row | None:
        kind, _, id = key.partition(":")
        match kind:
            case "leader":
                return rows.leader_row(id, self._leaders.get(id), self._leading.get(id))
            case "dispatcher":
                found = self._dispatchers.get(id)
                return None if found is None else rows.dispatcher_row(found[0])
            case "old":
                at = self._answered.get(id)
                shown = self.queues if id == "queues" else {**self._listed, **self._sets}
                if at is None or at + SILENT_S >= self._now or not shown:
                    return None
                return rows.old_row(id, at, self._missed.get(id, ""))
            case _:
                return self._services.get(key)


def _text(entries: WorkerEntries) -> str:
    assert entries.registration is not None
    return state_of(entries.registration, entries.heartbeat)


def _read(model: type[V], value: bytes | None) -> V | None:
    """None also for a value that is not such a record."""
    if value is None:
        return None
    try:
        return model.read(value)
    except ValueError:
        return None


def _object(data: bytes) -> Mapping[str, object]:
    try:
        body: object = codec.from_json(data)
    except GanglineError:
        return {}
    return body if isinstance(body, dict) else {}


def _put(table: dict[str, V], key: str, value: V | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
