"""Who takes a request: the protocol of policies, and the one that is used unless another is given. Pure."""

from __future__ import annotations

from typing import Protocol

from .candidates import Candidates, Requirements
from .worker_table import WorkerEntry


class Policy(Protocol):
    """A way of choosing. One object per pool and router; called on the event loop, so it must not block.

    `routed` and `completed` come in pairs, once each for every try that was placed on a worker, on every path.
    """

    def choose(self, candidates: Candidates, request: Requirements) -> WorkerEntry | None:
        """One of the candidates, or None to let the request wait (until there is more room)."""
        ...

    def routed(self, worker: WorkerEntry, request: Requirements) -> None:
        """The request was placed on the worker."""
        ...

    def completed(self, worker: WorkerEntry, request: Requirements) -> None:
        """... and no longer counts there: answered, refused, released or lost."""
        ...

    def worker_lost(self, worker: WorkerEntry) -> None:
        """The worker left or vanished; it comes up no more."""
        ...


class PolicyBase:
    """The hooks of a policy that needs none; a base class for convenience."""

    def routed(self, worker: WorkerEntry, request: Requirements) -> None:
        """See Policy."""

    def completed(self, worker: WorkerEntry, request: Requirements) -> None:
        """See Policy."""

    def worker_lost(self, worker: WorkerEntry) -> None:
        """See Policy."""


class PowerOfTwo(PolicyBase):
    """The less loaded of two drawn at random (Mitzenmacher 1996), in the nearest tier that has room.

    Load is relative to size, so that a worker of 16 slots gets four times as much as one of 4. Equals take turns.
    """

    def choose(self, candidates: Candidates, request: Requirements) -> WorkerEntry | None:
        drawn = candidates.draw(2)
        return less_loaded(drawn) if drawn else None


def less_loaded(workers: list[WorkerEntry]) -> WorkerEntry:
    """The one with the most room for its size; of equals the one whose turn it is."""
    best = workers[0]
    for worker in workers[1:]:
        mine, its = worker.ongoing * best.total, best.ongoing * worker.total
        if mine < its or (mine == its and worker.chosen < best.chosen):
            best = worker
    return best


class Sticky(PowerOfTwo):
    """The default: keys and models where they were before, everything else by power of two choices.

    - A request with a *key* goes to the key's home (rendezvous hashing over the pool's workers, the same from every
      router) and waits there while that worker is full: the same key, the same worker, as long as that lives.
    - A request with a *model* goes to a worker that has it, if one has room; else to the one with the fewest models
      (of at most 32 drawn); so to any.
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
