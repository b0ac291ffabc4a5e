"""The processes of a run."""

from __future__ import annotations

from collections.abc import Callable

from ...loop import VirtualLoop
from ..actors.coordinators import CoordinatorProcess, Operator
from ..actors.dispatchers import DispatcherProcess, RouteOperator
from ..actors.processes import ClientProcess, WorkerProcess
from ..calls.slots import WorkerModel
from ..durable.limits import Room
from ..plan.plan import Plan
from ..stage.stage import Stage

LOST_FOR_S = 1.5
"""For this long after a fault, a worker may be reported as lost because of it."""


class World(Stage):
    """All processes of a plan, not started."""

    def __init__(self, plan: Plan, loop: VirtualLoop, echo: Callable[[str], None] | None = None) -> None:
        super().__init__(plan, loop, echo)
        self.workers: dict[str, WorkerProcess] = {}
        for each in plan.workers:
            self.workers[each.name] = WorkerProcess(self, each, self.workers)
        self.displaced: list[WorkerProcess] = []
        """Processes replaced by others with their ids."""
        self.clients = {name: ClientProcess(self, name) for name in plan.clients}
        self.coordinators: dict[str, CoordinatorProcess] = {}
        if plan.gangs is not None:
            after_s = plan.gangs.starve_after_s
            self.coordinators = {name: CoordinatorProcess(self, name, after_s) for name in plan.gangs.coordinators}
        self.operator = Operator(self)
        self.dispatchers: dict[str, DispatcherProcess] = {}
        if plan.durable is not None:
            self.dispatchers = {name: DispatcherProcess(self, name) for name in plan.durable.dispatchers}
        self.routes = RouteOperator(self)

    # -- stage.Stage ----------------------------------------------------------------------------------------------

    def lives(self, worker: str, instance: str) -> bool:
        found = self.workers.get(worker)
        return (
            found is not None
            and found.settled
            and found.worker is not None
            and found.worker.instance == instance
            and not self.may_be_lost(worker, self.now())
            and not self.missed(worker)
        )

    def may_be_lost(self, worker: str, since: float) -> bool:
        found = self.workers.get(worker)
        if found is None or any(twin.name == worker for twin in self.displaced):
            return True  # a gang of a set; or one of two processes that alternately have the id
        since -= LOST_FOR_S
        restarted = found.served_at is None or (found.restarted and found.served_at >= since)
        return restarted or self.troubles.affected(worker, since)

    def rooms(self) -> list[Room] | None:
        serving = [each.model for each in self.workers.values() if each.settled and each.model is not None]
        held = any(token in self.holders for model in serving for token in (lease.token for lease in model.living))
        if held or self.outcomes.open or self.troubles.lossy:
            return None
        pools = {each.node: each.plan.pool for each in self.workers.values()}
        return [
            Room(node=model.node, pool=pools[model.node], slots=model.slots - model.running)
            for model in serving
            if model.draining_since is None
        ]

    # -- processes ------------------------------------------------------------------------------------------------

    def living_models(self, pool: str) -> list[WorkerModel]:
        """Workers of a pool that serve now."""
        return [each.model for each in self.workers.values() if each.plan.pool == pool and each.model is not None]

    def start_twin(self, first: WorkerProcess) -> None:
        """Replace a worker by a second process with its id. No-op if that has been done."""
        if self.workers[first.name] is not first:
            return
        self.workers[first.name] = second = first.twin()
        self.displaced.append(first)
        second.start()

    @property
    def lingering(self) -> list[WorkerProcess]:
        """Processes that were replaced and have not left."""
        return [each for each in self.displaced if each.bus is not None and each is not self.workers[each.name]]

    def views_agree(self) -> bool:
        """Whether clients know exactly the workers that serve, each in its current epoch."""
        return not any(self.strangers(client) for client in self.clients.values())

    def strangers(self, client: ClientProcess) -> list[str]:
        """Workers whose epoch a client does not know correctly."""
        serving = {name: each.worker.core.epoch for name, each in self.workers.items() if each.worker is not None}
        known = client.epochs()
        return [name for name, epoch in serving.items() if known.get(name, epoch) != epoch]

    def leading(self) -> CoordinatorProcess | None:
        """The coordinator that believes it leads; if there is none, any that runs."""
        running = [each for each in self.coordinators.values() if each.bus is not None and not each.frozen]
        return next((each for each in running if each.leads), running[0] if running else None)

    def holding(self) -> DispatcherProcess | None:
        """The dispatcher that has the most queues now."""
        running = [each for each in self.dispatchers.values() if each.running]
        return max(running, key=lambda each: len(each.queues), default=None)
