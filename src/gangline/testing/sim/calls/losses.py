"""No live worker is taken for lost: the workers that routers drop are compared with those that serve.

A worker is live when its process serves and nothing has gone wrong with it lately; in particular, its heartbeat has
not been missing from the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from ....dispatcher.pools.pool import RoutedPool
from ....dispatcher.routing.worker_table import WorkerEntry
from ..history.checker import Checker


class Routing(Protocol):
    """A process with a router."""

    @property
    def node(self) -> str: ...

    def routed(self) -> Iterable[RoutedPool]:
        """Its pools."""
        ...


class LossWatch:
    """Losses over a whole run.

    Args:
        lives: whether a worker process, by name and instance, is live as far as anybody can know.
    """

    def __init__(self, checker: Checker, lives: Callable[[str, str], bool]) -> None:
        self._checker = checker
        self._lives = lives
        self._known: dict[str, dict[str, WorkerEntry]] = {}
        """Workers by the process that knows them, and by their names."""

    def look(self, processes: Iterable[Routing]) -> None:
        """Compare the workers that are known with those that were known last time."""
        for process in processes:
            pools = list(process.routed())
            known = {each.id.worker: each for pool in pools for each in pool.core.view.workers.values()}
            for name, before in self._known.get(process.node, {}).items():
                if not before.known and self._lives(name, before.instance):
                    self._checker.fail("loss", f"{process.node} takes {before.id} for lost, which lives")
            self._known[process.node] = known
