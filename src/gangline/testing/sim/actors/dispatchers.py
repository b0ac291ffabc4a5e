"""Simulated dispatchers, and the operator that sets routes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ....bus.memory.server import MemoryBus
from ....bus.streams.history_recorder import HistorySettings
from ....dispatcher.durable.policies.settings import DispatcherSettings
from ....dispatcher.durable.queue.queue_runner import QueueRunner
from ....dispatcher.durable.service import Dispatcher, DispatcherState
from ....dispatcher.jobs.storage import TaskStorage
from ....dispatcher.pools.pool import RoutedPool
from ....dispatcher.routing.settings import RouterSettings
from ....schemas.errors.base import GanglineError
from ...loop import node_context
from ..plan.durable_plan import INLINE_BYTES, UNKNOWN_AFTER_S, RouteStep
from ..stage.stage import Stage
from .processes import Process

STORAGE = TaskStorage()
UNCONFIRMED_AFTER_S = 1.0
"""Durable tasks wait for the ledger, however short the timeouts of calls are."""
_RETRY_S = 0.1
_TAKEN_WITHIN_S = 12.0
"""How long a dispatcher may take over a queue when nothing has failed for as long: it waits for workers and for its
predecessor's trust to end, but not for messages that were lost."""


class DispatcherProcess(Process):
    """A dispatcher of durable tasks with one name; its processes run one after another."""

    def __init__(self, world: Stage, name: str) -> None:
        super().__init__(world, name)
        self.dispatcher: Dispatcher | None = None
        self._taking: dict[QueueRunner, float] = {}
        """Queues that it is taking over, and since when."""

    async def _main(self, bus: MemoryBus) -> None:
        world, node = self.world, self.node
        traffic = world.plan.durable
        assert traffic is not None
        settings = DispatcherSettings(
            node=f"host-{self.name}",
            unknown_after_s=UNKNOWN_AFTER_S,
            age_step_s=traffic.age_step_s,
            result_inline_bytes=INLINE_BYTES,
            history=HistorySettings(enabled=False),
            window_tasks=traffic.window_tasks,
            count_delayed_s=0,  # only for metrics
        )
        dispatcher = Dispatcher(
            bus,
            names=world.names,
            settings=settings,
            router_settings=RouterSettings(unconfirmed_after_s=UNCONFIRMED_AFTER_S),
            tasks=STORAGE,
            ambient=world.ambient(node),
        )
        self.dispatcher = dispatcher
        await dispatcher.start()
        world.trace.note(node, "runs durable tasks")
        await dispatcher.wait_closed()
        world.trace.note(node, "has left")

    @property
    def running(self) -> bool:
        """Whether it runs, and is neither frozen nor being stopped."""
        return (
            self.dispatcher is not None
            and self.dispatcher.state is DispatcherState.RUNNING
            and self.bus is not None
            and not self.frozen
        )

    @property
    def queues(self) -> dict[str, QueueRunner]:
        """The queues that it believes it owns."""
        return {} if self.dispatcher is None else self.dispatcher.queues

    def routed(self) -> Iterable[RoutedPool]:
        return () if self.dispatcher is None else self.dispatcher.router.pools.values()

    def look(self) -> None:
        """Check how long it has been taking over its queues."""
        now = self.world.now()
        taking = (queue for queue in self.queues.values() if queue.recovery_s is None)
        self._taking = {queue: self._taking.get(queue, now) for queue in taking}
        for queue, since in self._taking.items():
            if min(now - since, self.world.ledger.quiet_for()) > _TAKEN_WITHIN_S:
                text = f"{self.node} has been taking over the queue {queue.endpoint} for {now - since:.1f} s"
                self.world.checker.fail("hang", text)

    def stop(self) -> None:
        """Stop it like SIGTERM: it hands its queues over and leaves."""
        dispatcher = self.dispatcher
        if dispatcher is None or dispatcher.state is not DispatcherState.RUNNING:
            return
        self.world.loop.call_soon(
            lambda: self.world.loop.create_task(dispatcher.stop(), name=f"stop of {self.node}"),
            context=node_context(self.node),
        )

    def kill(self) -> None:
        self.dispatcher = None
        super().kill()


class RouteOperator:
    """Writes routes over its own connection, and retries failed writes."""

    def __init__(self, world: Stage) -> None:
        self._world = world
        self._newest: dict[str, RouteStep] = {}
        self._bus: MemoryBus | None = None
        self._writing = 0

    @property
    def busy(self) -> bool:
        """Whether a write is pending."""
        return self._writing > 0

    def write(self, step: RouteStep) -> None:
        """Write a route, unless a later one for the endpoint is written first."""
        self._newest[step.endpoint] = step
        self._writing += 1
        self._world.loop.spawn("operator", self._write(step), name=f"route of {step.endpoint}")

    async def _write(self, step: RouteStep) -> None:
        world = self._world
        try:
            while self._newest[step.endpoint] is step:
                try:
                    if self._bus is None:
                        self._bus = world.hub.connect("operator")
                    kv = await self._bus.bucket(world.names.routes_bucket, STORAGE.routes)
                    await kv.put(step.endpoint, step.route.model_dump_json().encode())
                except GanglineError:
                    await asyncio.sleep(_RETRY_S)
                else:
                    world.trace.note("operator", f"route of {step.endpoint}: {step.route.model_dump_json()}")
                    return
        finally:
            self._writing -= 1
