"""The candidates for a request, the protocol of policies, and the built-in policies. Pure except for the random numbers
passed in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from .worker_table import WorkerEntry, WorkerTable, fingerprint, score

Draw = Callable[[], float]
"""A random number in [0, 1)."""

_TRIES = 8
_HOMES_KEPT = 4096


class Requirements(Protocol):
    """Requirements of a request."""

    @property
    def method(self) -> str | None:
        """Name of the task; None if only a slot is reserved."""

    @property
    def slots(self) -> int | None:
        """Slots to reserve; None: as many as the task takes."""

    @property
    def key(self) -> str | None:
        """Session or shard key."""

    @property
    def model(self) -> str | None:
        """Model id of a multiplexed pool."""

    @property
    def labels(self) -> Mapping[str, str] | None:
        """Labels that the worker must have."""

    @property
    def avoid(self) -> set[WorkerEntry] | None:
        """Workers that just rejected this request."""


class Candidates:
    """Iterates over all workers that fit, nearest tier first; `draw` picks some without looking at all.

    One object serves all requests of a pool: it is valid only during the `choose` it was passed to.
    """

    __slots__ = ("_anyhow", "_draw", "_homes", "_homes_version", "_plain", "_request", "_view")

    def __init__(self, view: WorkerTable, draw: Draw) -> None:
        self._view = view
        self._draw = draw
        self._request: Requirements | None = None
        self._plain = True
        self._anyhow = False
        self._homes: OrderedDict[tuple[str, str | None, tuple[tuple[str, str], ...]], WorkerEntry] = OrderedDict()
        self._homes_version = -1

    def of(self, request: Requirements, *, anyhow: bool = False) -> Candidates:
        """Set the request. `anyhow`: include workers that may have free slots, judging only by what is certain."""
        self._request = request
        self._anyhow = anyhow
        self._plain = (
            not anyhow
            and not request.labels
            and not request.avoid
            and self._view.uniform
            and cost(self._view, request) == 1
        )
        return self

    def fits(self, worker: WorkerEntry) -> bool:
        """Whether the worker has room for the request (with `anyhow`: may have)."""
        if not self.serves(worker):
            return False
        request = self._request
        assert request is not None
        if request.avoid and worker in request.avoid:
            return False
        # Other routers' tasks may have ended unreported; this router's own have not.
        taken = worker.own if self._anyhow else worker.ongoing
        return taken + cost_on(worker, request) <= worker.total

    def serves(self, worker: WorkerEntry) -> bool:
        """Whether the worker could ever take it: it has the task and the labels, and is not draining."""
        request = self._request
        assert request is not None
        return _serves(worker, request.method, request.labels)

    def draw(self, count: int) -> list[WorkerEntry]:
        """At most `count` different workers that fit, at random, all from the nearest tier that has any."""
        for tier in self._tiers():
            size = len(tier)
            if not size:
                continue
            if self._plain:
                return sample(tier, count, self._draw)
            if size > _TRIES * count and (found := self._try(tier, count)):
                return found
            if found := [worker for worker in self._matching(tier) if self.fits(worker)]:
                return sample(found, count, self._draw)
        return []

    def __iter__(self) -> Iterator[WorkerEntry]:
        for tier in self._tiers():
            yield from (worker for worker in tier if self.fits(worker))

    def with_model(self, model: str) -> list[WorkerEntry]:
        """Workers that fit and have the model."""
        return [worker for worker in self._view.by_model.get(model, ()) if self.fits(worker)]

    def home(self, key: str) -> WorkerEntry | None:
        """The home worker of the key, full or not; None if no worker could ever take the request."""
        request = self._request
        assert request is not None
        return self.home_for(key, request.method, request.labels)

    def home_for(self, key: str, method: str | None, labels: Mapping[str, str] | None = None) -> WorkerEntry | None:
        """`home` of a request for that task with these labels; does not set the request."""
        cache_key = (key, method, tuple(sorted(labels.items())) if labels else ())
        if self._homes_version != self._view.version:
            self._homes.clear()
            self._homes_version = self._view.version
        elif (known := self._homes.get(cache_key)) is not None:
            return known
        print_ = fingerprint(key)
        best: WorkerEntry | None = None
        highest = -1
        for worker in self._view.workers.values():
            if _serves(worker, method, labels) and (points := score(print_, worker.print)) > highest:
                best, highest = worker, points
        if best is not None:
            self._homes[cache_key] = best
            if len(self._homes) > _HOMES_KEPT:
                self._homes.popitem(last=False)
        return best

    # -- inside ---------------------------------------------------------------------------------------------------

    def _tiers(self) -> tuple[list[WorkerEntry], ...]:
        if not self._anyhow:
            return self._view.open
        tiers: tuple[list[WorkerEntry], list[WorkerEntry], list[WorkerEntry]] = ([], [], [])
        for worker in self._view.workers.values():
            tiers[worker.tier].append(worker)
        return tiers

    def _matching(self, tier: list[WorkerEntry]) -> list[WorkerEntry]:
        """The tier, or the subset of workers with one of the required labels if that is smaller."""
        request = self._request
        assert request is not None
        if not request.labels:
            return tier
        rows = (self._view.by_label.get(item, []) for item in request.labels.items())
        row = min(rows, key=len)
        if len(row) >= len(tier):
            return tier
        wanted = tier[0].tier
        return [worker for worker in row if worker.tier == wanted]

    def _try(self, tier: list[WorkerEntry], count: int) -> list[WorkerEntry]:
        found: dict[WorkerEntry, None] = {}
        size = len(tier)
        for _ in range(_TRIES * count):
            worker = tier[int(self._draw() * size)]
            if worker not in found and self.fits(worker):
                found[worker] = None
                if len(found) == count:
                    break
        return list(found)


def _serves(worker: WorkerEntry, method: str | None, labels: Mapping[str, str] | None) -> bool:
    if not worker.eligible or (method is not None and method not in worker.methods):
        return False
    if labels:
        has = worker.labels
        for name, value in labels.items():
            if has.get(name) != value:
                return False
    return True


def sample(row: list[WorkerEntry], count: int, draw: Draw) -> list[WorkerEntry]:
    """At most `count` different workers of the row, at random."""
    size = len(row)
    if size <= count:
        return list(row)
    first = int(draw() * size)
    if count == 1:
        return [row[first]]
    if count == 2:
        second = int(draw() * (size - 1))
        return [row[first], row[second if second < first else second + 1]]
    # A run from a random start: cheap, and the order of the row has no meaning.
    return [row[(first + step) % size] for step in range(count)]


def cost_on(worker: WorkerEntry, request: Requirements) -> int:
    """Slots that the request takes on that worker."""
    if request.slots is not None:
        return request.slots
    method = worker.methods.get(request.method or "")
    return method.slots if method is not None else 1


def cost(view: WorkerTable, request: Requirements) -> int:
    """Slots that the request takes, if all workers have the same tasks."""
    if request.slots is not None:
        return request.slots
    method = view.method(request.method or "")
    return method.slots if method is not None else 1


class Policy(Protocol):
    """Chooses workers. One object per pool and router; called on the event loop, so it must not block.

    `routed` and `completed` are paired: each is called once for every attempt placed on a worker, on every path.
    """

    def choose(self, candidates: Candidates, request: Requirements) -> WorkerEntry | None:
        """One of the candidates, or None to let the request wait (until there is more room)."""
        ...

    def routed(self, worker: WorkerEntry, request: Requirements) -> None:
        """The request was placed on the worker."""
        ...

    def completed(self, worker: WorkerEntry, request: Requirements) -> None:
        """The request no longer counts on the worker: answered, refused, released or lost."""
        ...

    def worker_lost(self, worker: WorkerEntry) -> None:
        """The worker left or disappeared; it will not be a candidate again."""
        ...


class PolicyBase:
    """A base class for policies that need none of the hooks."""

    def routed(self, worker: WorkerEntry, request: Requirements) -> None:
        """See Policy."""

    def completed(self, worker: WorkerEntry, request: Requirements) -> None:
        """See Policy."""

    def worker_lost(self, worker: WorkerEntry) -> None:
        """See Policy."""


class PowerOfTwo(PolicyBase):
    """The less loaded of two workers drawn at random (Mitzenmacher 1996), in the nearest tier that has room.

    Load is relative to size, so that a worker of 16 slots gets four times as much as one of 4. Ties alternate.
    """

    def choose(self, candidates: Candidates, request: Requirements) -> WorkerEntry | None:
        drawn = candidates.draw(2)
        return less_loaded(drawn) if drawn else None


def less_loaded(workers: list[WorkerEntry]) -> WorkerEntry:
    """The worker with the lowest relative load; ties go to the one chosen least recently."""
    best = workers[0]
    for worker in workers[1:]:
        mine, its = worker.ongoing * best.total, best.ongoing * worker.total
        if mine < its or (mine == its and worker.chosen < best.chosen):
            best = worker
    return best


class Sticky(PowerOfTwo):
    """The default: keys and models go where they were before, everything else by power of two choices.

    - A request with a *key* goes to the key's home (rendezvous hashing over the pool's workers, the same in every
      router) and waits while that worker is full: the same key goes to the same worker as long as it lives.
    - A request with a *model* goes to a worker that has the model and a free slot; else to the one with the fewest
      models (of at most 32 drawn); else to any.
    """

    DRAWN_FOR_MODELS = 32

    def choose(self, candidates: Candidates, request: Requirements) -> WorkerEntry | None:
        if request.key is not None:
            home = candidates.home(request.key)
            return home if home is not None and candidates.fits(home) else None
        if request.model is not None:
            return self._by_model(candidates, request.model)
        return super().choose(candidates, request)

    def _by_model(self, candidates: Candidates, model: str) -> WorkerEntry | None:
        holders = candidates.with_model(model)
        if holders:
            return min(holders, key=lambda worker: (worker.tier, worker.ongoing / worker.total, worker.chosen))
        drawn = candidates.draw(self.DRAWN_FOR_MODELS)
        if not drawn:
            return None
        return min(drawn, key=lambda worker: (len(worker.models), worker.ongoing / worker.total, worker.chosen))
