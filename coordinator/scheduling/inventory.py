"""The leader's view of the workers, kept up by heartbeats, by answers and by what was sent and is not answered yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...schemas.names import WorkerId
from ...schemas.wire.frames import Load
from .slot_index import SlotIndex, WorkerSpot


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """A registration, as the ledger has it."""

    id: WorkerId
    epoch: int
    revision: int
    """Of the `reg` key."""
    total: int
    load: Load | None = None
    """From its heartbeat, when known."""
    node: str = ""
    zone: str = ""
    address: str = ""
    labels: dict[str, str] = field(default_factory=dict[str, str])
    draining: bool = False
    drain_grace_s: float | None = None
    """While it drains: how long that takes at most, if the worker says so."""


@dataclass(slots=True, kw_only=True)
class WorkerView:
    facts: WorkerFacts
    ongoing: int = 0
    """Running + reserved, by the last that it said."""
    charged: int = 0
    """Slots of holds that it has not answered yet."""
    granted: int = 0
    """Slots of members in the ledger."""
    draining: bool = False
    silent: int = 0
    """Pings in a row without responders."""

    @property
    def free(self) -> int:
        return max(0, self.facts.total - self.ongoing - self.charged)

    @property
    def claimable(self) -> int:
        """What would be free if no plain traffic ran."""
        return max(0, self.facts.total - self.granted)


class Inventory:
    """Three measures of the workers that may be used: free now, claimable, total. Draining workers are in none."""

    __slots__ = ("claimable", "free", "total", "workers")

    def __init__(self) -> None:
        self.workers: dict[WorkerId, WorkerView] = {}
        self.free = SlotIndex()
        self.claimable = SlotIndex()
        self.total = SlotIndex()

    def __repr__(self) -> str:
        return f"<Inventory {len(self.workers)} workers>"

    def seen(self, facts: WorkerFacts) -> WorkerView:
        """A registration. Returns the view of it."""
        view = self.workers.get(facts.id)
        if view is None or view.facts.epoch != facts.epoch:
            granted = view.granted if view is not None else 0
            view = self.workers[facts.id] = WorkerView(facts=facts, granted=granted)
        view.facts = facts
        view.draining = facts.draining
        view.silent = 0
        if facts.load is not None:
            view.ongoing = facts.load.ongoing
            view.draining = view.draining or facts.load.draining
        self._put(view)
        return view

    def gone(self, worker: WorkerId) -> None:
        if self.workers.pop(worker, None) is not None:
            for measure in (self.free, self.claimable, self.total):
                measure.discard(worker)

    def load(self, worker: WorkerId, load: Load) -> bool:
        """A worker said how many slots are in use. True: there may be more room than before."""
        view = self.workers.get(worker)
        if view is None:
            return False
        before = view.free
        view.ongoing = load.ongoing
        if load.draining and not view.draining:
            view.draining = True
            self._put(view)
            return False
        self.free.set(worker, view.free)
        return view.free > before

    def charge(self, worker: WorkerId, slots: int) -> None:
        """`slots` were asked for and are not answered yet; negative when they are."""
        view = self.workers.get(worker)
        if view is not None:
            view.charged = max(0, view.charged + slots)
            self.free.set(worker, view.free)

    def occupy(self, worker: WorkerId, slots: int) -> None:
        """`slots` more are in use; negative: fewer. Until the worker says what is true."""
        view = self.workers.get(worker)
        if view is not None:
            view.ongoing = max(0, view.ongoing + slots)
            self.free.set(worker, view.free)

    def held(self, worker: WorkerId, slots: int) -> None:
        """What was charged is in use now: it said yes to a hold."""
        view = self.workers.get(worker)
        if view is not None:
            view.charged = max(0, view.charged - slots)
            view.ongoing += slots
            self.free.set(worker, view.free)

    def grant(self, worker: WorkerId, slots: int) -> None:
        """`slots` more belong to members in the ledger; negative: fewer."""
        view = self.workers.get(worker)
        if view is not None:
            view.granted = max(0, view.granted + slots)
            self.claimable.set(worker, view.claimable)

    def _put(self, view: WorkerView) -> None:
        facts = view.facts
        if view.draining:
            for measure in (self.free, self.claimable, self.total):
                measure.discard(facts.id)
            return
        labels = dict(facts.labels)
        if facts.zone:
            labels.setdefault("zone", facts.zone)
        place = WorkerSpot(worker=facts.id, node=facts.node or f"worker {facts.id}", labels=labels)
        self.free.put(place, view.free)
        self.claimable.put(place, view.claimable)
        self.total.put(place, facts.total)
