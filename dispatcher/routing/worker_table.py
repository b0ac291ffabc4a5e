"""The workers of one pool as one router sees them.

The table is updated with registrations, heartbeats, answers and the router's own placements; it says which workers may
take a request. Pure: no clock, no randomness of its own, no IO. Every event has its time, in seconds of a monotonic
clock.

Laws:

1. `own` counts slots that this router has placed on a worker and not yet settled; `ongoing >= own` always.
2. A worker is in the open list of its tier exactly when it is not draining, is reachable and has a free slot.
3. Loads of an epoch older than the known one change nothing.
4. The cost of choosing does not depend on the number of workers: two draws from an indexed list.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol, TypeVar

from ...schemas.names import WorkerId
from ...schemas.records.workers import Registration, TaskPolicy
from ...schemas.wire.frames import Load

# Rendezvous hashing (Thaler & Ravishankar 1996): the same key goes to the same worker, in every process. Each worker's
# name is hashed once, each key once; the pair's score mixes the two (the finaliser of SplitMix64). When a worker
# leaves, only its own keys move; when one joins, only the keys that it wins.
_MASK: Final = (1 << 64) - 1


def fingerprint(name: str) -> int:
    """A 64-bit hash of the text, independent of PYTHONHASHSEED."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def score(key: int, worker: int) -> int:
    """The weight of that worker for the key; the highest wins."""
    x = (key ^ worker) & _MASK
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


SAME_NODE, SAME_ZONE, ANYWHERE = 0, 1, 2

_K = TypeVar("_K", bound=Hashable)


class Method(NamedTuple):
    """The part of a task's declaration that routers need."""

    slots: int = 1
    idempotent: bool = False
    streams: bool = False
    policy: TaskPolicy | None = None

    @property
    def limited(self) -> bool:
        """Whether a worker with free slots may refuse it."""
        return self.policy is not None and self.policy.limited


class TimedRequest(Protocol):
    """A request whose duration can be learned."""

    method: str
    """Empty: not known."""

    @property
    def sent_at(self) -> float: ...


class WorkerEntry:
    """One process of a pool as one router sees it. Policies must only read it."""

    __slots__ = (
        "_index",
        "acks",
        "address",
        "channel",
        "chosen",
        "confirmed",
        "draining",
        "ended",
        "epoch",
        "heard_at",
        "id",
        "instance",
        "known",
        "labels",
        "latest",
        "link",
        "loaded_at",
        "max_models",
        "methods",
        "models",
        "node",
        "ongoing",
        "own",
        "print",
        "reachable",
        "revision",
        "routed_models",
        "stored",
        "tier",
        "total",
        "zone",
    )

    def __init__(self, id: WorkerId, instance: str) -> None:
        self.id = id
        self.instance = instance
        self.acks = False
        """Whether it wants an acknowledgement when the end of a durable task is stored."""
        self.stored = False
        """Whether it takes STORED frames."""
        self.channel = ""
        """See Registration.channel."""
        self.known = False
        """Whether it is in its pool's table; False again after it left or is lost."""
        self.epoch = 0
        """The newest known epoch. An answer may name it before it is known that another process announced it."""
        self.confirmed = 0
        """The newest epoch that this instance has confirmed by its registration or a heartbeat."""
        self.node = ""
        self.zone = ""
        self.address = ""
        self.labels: dict[str, str] = _NO_LABELS
        self.methods: dict[str, Method] = _NO_METHODS
        self.models: tuple[str, ...] = ()
        self.max_models = 0
        self.routed_models: dict[str, float] | None = None
        """Models of recent requests placed here, with the time: it will have them before it reports them."""
        self.total = 0
        self.ongoing = 0
        """Estimate of running + reserved slots of all routers: increased when sent, decreased when settled, set by
        answers."""
        self.own = 0
        """The part of `ongoing` that is certain because it is this router's."""
        self.ended = 0
        """The part of `own` that plain requests answered in the current message held; see RoutingCore.ended."""
        self.latest: TimedRequest | None = None
        """The last one of these."""
        self.draining = False
        self.reachable = True
        """False after the server reported no responders, until the worker is heard from again."""
        self.tier = ANYWHERE
        self.revision = 0
        self.loaded_at = 0.0
        self.heard_at = 0.0
        self.chosen = 0
        """Serial number of its last placement: ties go to the lowest."""
        self.print = fingerprint(id.worker)
        self.link: object | None = None
        """For use by the caller of the core."""
        self._index = -1

    @property
    def free(self) -> int:
        """Free slots as far as known; never negative."""
        return max(0, self.total - self.ongoing)

    @property
    def has_room(self) -> bool:
        """Whether it takes new work now: it is in an open list."""
        return self._index >= 0

    @property
    def eligible(self) -> bool:
        """Whether it takes new work once it has a free slot."""
        return self.reachable and not self.draining

    def __repr__(self) -> str:
        flags = ("" if self.reachable else ", unreachable") + (", draining" if self.draining else "")
        return f"WorkerEntry({self.id}, epoch={self.epoch}, {self.ongoing}/{self.total} ongoing, own={self.own}{flags})"


_NO_LABELS: dict[str, str] = {}
_NO_METHODS: dict[str, Method] = {}
_ROUTED_MODEL_S = 5.0


class WorkerTable:
    """The workers of one pool, with an index of those that have room."""

    def __init__(self, *, node: str = "", zone: str = "", stale_after_s: float = 10.0) -> None:
        self.version = 0
        """Grows whenever the set of eligible workers changes; used as a cache key."""
        self.workers: dict[str, WorkerEntry] = {}
        self.open: tuple[list[WorkerEntry], list[WorkerEntry], list[WorkerEntry]] = ([], [], [])
        """Workers with room, by locality tier, in no particular order."""
        self.by_label: dict[tuple[str, str], list[WorkerEntry]] = {}
        self.by_model: dict[str, list[WorkerEntry]] = {}
        self.table: dict[str, Method] | None = None
        """The tasks of all workers, if they all have the same; None while they differ, or there are none."""
        self._serving: dict[str, int] = {}  # method -> workers that have it
        self._tables: dict[tuple[tuple[str, Method], ...], dict[str, Method]] = {}
        self._table_users: dict[int, int] = {}
        self._labels: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
        self._node = node
        self._zone = zone
        self._stale_after_s = stale_after_s
        self._serial = 0

    # -- queries --------------------------------------------------------------------------------------------------

    @property
    def uniform(self) -> bool:
        """Whether all workers have the same tasks, so that a request's method does not restrict the choice."""
        return len(self._table_users) <= 1

    @property
    def has_room(self) -> bool:
        near, zone, far = self.open
        return bool(near or zone or far)

    def serves(self, method: str) -> bool:
        """Whether some known worker has the task."""
        return method in self._serving

    @property
    def methods(self) -> list[str]:
        return sorted(self._serving)

    def method(self, name: str) -> Method | None:
        """A task's declaration by some worker that has it; declarations differ only during a roll-out."""
        for table in self._tables.values():
            if id(table) in self._table_users and (found := table.get(name)) is not None:
                return found
        return None

    def streams(self, name: str) -> bool:
        """Whether some worker that has the task streams it."""
        return any(
            id(table) in self._table_users and name in table and table[name].streams for table in self._tables.values()
        )

    # -- news of workers ------------------------------------------------------------------------------------------

    def register(self, record: Registration, revision: int, now: float) -> tuple[WorkerEntry, WorkerEntry | None]:
        """Apply a registration from the ledger; returns the worker, and the one it replaced.

        Another instance under the same name is another worker: the replaced one is gone for good. Exception: if answers
        named the new epoch before its registration was read, the known worker is kept and also returned as replaced;
        then only what was sent to it under earlier epochs went to the previous instance.
        """
        known = self.workers.get(record.worker)
        replaced = None
        if known is not None and known.instance != record.instance:
            if revision and revision < known.revision:
                return known, None
            replaced = known
            if known.confirmed < known.epoch == record.epoch:
                known.instance = record.instance
                known.routed_models = None
            else:
                self.remove(known)
                known = None
        if known is None:
            known = WorkerEntry(WorkerId(record.pool, record.worker), record.instance)
            known.heard_at = now
            known.tier = self._tier(record)
            known.known = True
            self.workers[record.worker] = known
            self.version += 1
        elif record.epoch < known.epoch or (revision and revision < known.revision):
            return known, None
        self._describe(known, record)
        known.revision = max(known.revision, revision)
        if known.loaded_at == 0.0 or known.epoch != record.epoch:
            known.epoch = record.epoch
        known.confirmed = max(known.confirmed, record.epoch)
        known.total = record.slots
        self._set_draining(known, record.state == "draining")
        self._place(known)
        return known, replaced

    def heard(self, worker: WorkerEntry, now: float) -> None:
        """The worker gave a sign of life."""
        worker.heard_at = now
        if not worker.reachable:
            worker.reachable = True
            self.version += 1
            self._place(worker)

    def loaded(self, worker: WorkerEntry, load: Load, epoch: int, now: float) -> None:
        """Set the load reported by an answer or a heartbeat. What was sent to it meanwhile is in `own`."""
        if epoch < worker.epoch:
            return
        worker.epoch = epoch
        worker.total = load.total
        worker.ongoing = max(load.ongoing, worker.own)
        worker.loaded_at = now
        if load.draining != worker.draining:
            self._set_draining(worker, load.draining)
        self._place(worker)

    def confirm(self, worker: WorkerEntry, epoch: int) -> None:
        """A heartbeat of this instance named its epoch. A later epoch that no heartbeat has named was another
        process's."""
        worker.confirmed = max(worker.confirmed, epoch)
        worker.epoch = min(worker.epoch, worker.confirmed)

    def has_models(self, worker: WorkerEntry, models: tuple[str, ...], now: float) -> None:
        """Set the models that a worker reports; those of recent requests are kept, because it is about to load them."""
        kept = models
        if worker.routed_models:
            recent = {name: at for name, at in worker.routed_models.items() if now - at < _ROUTED_MODEL_S}
            worker.routed_models = recent or None
            kept = tuple(dict.fromkeys((*models, *recent)))
        self._index_models(worker, kept)

    # -- placements -----------------------------------------------------------------------------------------------

    def charge(self, worker: WorkerEntry, slots: int) -> None:
        """A request for this many slots was placed on the worker."""
        worker.own += slots
        worker.ongoing += slots
        self._serial += 1
        worker.chosen = self._serial
        if worker.ongoing >= worker.total or worker._index < 0:
            self._place(worker)

    def discharge(self, worker: WorkerEntry, slots: int) -> None:
        """Charged slots are settled."""
        worker.own -= slots
        ongoing = worker.ongoing - slots
        worker.ongoing = ongoing if ongoing > worker.own else worker.own
        if worker._index < 0:
            self._place(worker)

    def routed_model(self, worker: WorkerEntry, model: str, now: float) -> None:
        """A request for a model was placed on the worker, which will load it."""
        if worker.routed_models is None:
            worker.routed_models = {}
        worker.routed_models[model] = now
        if model not in worker.models:
            self._index_models(worker, (*worker.models, model))

    def unreachable(self, worker: WorkerEntry) -> None:
        """The server reported no responders. The worker is no candidate until it is heard from again."""
        if worker.reachable:
            worker.reachable = False
            self.version += 1
            self._place(worker)

    def retire(self, worker: WorkerEntry) -> None:
        """It is known to take nothing new before it reports so itself."""
        self._set_draining(worker, True)
        self._place(worker)

    def remove(self, worker: WorkerEntry) -> None:
        """Remove a worker that left or is lost. No-op if it is not in the table."""
        if self.workers.get(worker.id.worker) is not worker:
            return
        del self.workers[worker.id.worker]
        worker.known = worker.reachable = False
        self._place(worker)
        methods, labels = worker.methods, worker.labels
        self._index_models(worker, ())
        self._index_labels(worker, _NO_LABELS)
        self._use_table(worker, _NO_METHODS)
        # Still readable for requests that are in progress there.
        worker.methods, worker.labels = methods, labels
        self.version += 1

    def silent(self, now: float, lost_after_s: float) -> list[WorkerEntry]:
        """Workers that were silent for that long."""
        limit = now - lost_after_s
        return [worker for worker in self.workers.values() if worker.heard_at < limit]

    def forgive(self, seconds: float) -> None:
        """This process could not receive anything for that long (a stall, a lost connection): it does not count as
        silence."""
        for worker in self.workers.values():
            worker.heard_at += seconds

    def age(self, now: float) -> bool:
        """Discard loads that were not confirmed for too long; True if that made room somewhere."""
        limit = now - self._stale_after_s
        made_room = False
        for worker in self.workers.values():
            if worker.loaded_at < limit and worker.ongoing > worker.own:
                worker.ongoing = worker.own
                self._place(worker)
                made_room = True
        return made_room

    def check(self) -> None:
        """Assert the laws; tests call it after every event."""
        for worker in self.workers.values():
            assert worker.known and not worker.ended, worker
            assert worker.own >= 0, worker
            assert worker.ongoing >= worker.own, worker
            is_open = worker._index >= 0
            assert is_open == (worker.eligible and worker.ongoing < worker.total), worker
            if is_open:
                assert self.open[worker.tier][worker._index] is worker
        assert sum(map(len, self.open)) == sum(worker._index >= 0 for worker in self.workers.values())
        tables = {id(worker.methods): worker.methods for worker in self.workers.values() if worker.methods}
        assert self.table is (next(iter(tables.values())) if len(tables) == 1 else None)
        assert sum(self._table_users.values()) == sum(bool(worker.methods) for worker in self.workers.values())
        for model, holders in self.by_model.items():
            assert holders and all(model in worker.models for worker in holders)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _tier(self, record: Registration) -> int:
        if self._node and record.node == self._node:
            return SAME_NODE
        return SAME_ZONE if self._zone and record.zone == self._zone else ANYWHERE

    def _describe(self, worker: WorkerEntry, record: Registration) -> None:
        # Tables and labels are shared between workers: with thousands of equal workers they would use most of the
        # memory.
        table = {
            name: Method(info.slots, info.idempotent, info.streams, info.policy)
            for name, info in sorted(record.methods.items())
        }
        self._use_table(worker, self._tables.setdefault(tuple(table.items()), table))
        labels = dict(sorted(record.labels.items()))
        self._index_labels(worker, self._labels.setdefault(tuple(labels.items()), labels))
        worker.channel = record.channel
        worker.node, worker.zone, worker.address = record.node, record.zone, record.address
        worker.max_models = record.max_models
        worker.acks, worker.stored = record.acks, record.stored
        if record.models != worker.models and not worker.routed_models:
            self._index_models(worker, record.models)

    def _set_draining(self, worker: WorkerEntry, draining: bool) -> None:
        if worker.draining != draining:
            worker.draining = draining
            self.version += 1

    def _use_table(self, worker: WorkerEntry, table: dict[str, Method]) -> None:
        if worker.methods is table:
            return
        if worker.methods:
            _count(self._serving, worker.methods, -1)
            _count(self._table_users, (id(worker.methods),), -1)
        worker.methods = table
        if table:
            _count(self._serving, table, +1)
            _count(self._table_users, (id(table),), +1)
        self.table = None
        if len(self._table_users) == 1:
            self.table = next(known for known in self._tables.values() if id(known) in self._table_users)

    def _index_labels(self, worker: WorkerEntry, labels: dict[str, str]) -> None:
        if worker.labels is labels:
            return
        _reindex(self.by_label, worker, worker.labels.items(), labels.items())
        worker.labels = labels

    def _index_models(self, worker: WorkerEntry, models: tuple[str, ...]) -> None:
        if models != worker.models:
            _reindex(self.by_model, worker, worker.models, models)
            worker.models = models

    def _place(self, worker: WorkerEntry) -> None:
        """Enforce law 2."""
        index = worker._index
        if worker.ongoing < worker.total and worker.reachable and not worker.draining:
            if index < 0:
                row = self.open[worker.tier]
                worker._index = len(row)
                row.append(worker)
        elif index >= 0:
            row = self.open[worker.tier]
            last = row.pop()
            if last is not worker:
                row[index] = last
                last._index = index
            worker._index = -1


def _count(counts: dict[_K, int], keys: Iterable[_K], step: int) -> None:
    for key in keys:
        left = counts.get(key, 0) + step
        if left:
            counts[key] = left
        else:
            del counts[key]


def _reindex(index: dict[_K, list[WorkerEntry]], worker: WorkerEntry, old: Iterable[_K], new: Iterable[_K]) -> None:
    before, after = set(old), set(new)
    for key in before - after:
        row = index[key]
        row.remove(worker)
        if not row:
            del index[key]
    for key in after - before:
        index.setdefault(key, []).append(worker)
