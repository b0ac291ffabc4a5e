"""Simulated processes: each start is a new node of the loop, with its own connection and randomness."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Protocol

from ....bus.memory.server import MemoryBus
from ....bus.streams.history_recorder import HistorySettings
from ....dispatcher.client.client import Client
from ....dispatcher.pools.pool import RoutedPool
from ....schemas.errors.base import GanglineError
from ....schemas.records.workers import TaskPolicy
from ....schemas.wire.frames import Load
from ....worker.ledger.settings import WorkerSettings
from ....worker.service import Worker
from ...loop import node_context
from ..calls.slots import WorkerModel
from ..plan.durable_plan import JobStep
from ..plan.gang_plan import GangStep
from ..plan.plan import Accident, PlanEvent, Step, WorkerPlan
from ..stage.stage import Stage
from ..tasks.tasks import make_pool
from .durable_steps import JobStepRunner
from .gang_steps import GangStepRunner
from .steps import StepRunner

DRAIN_GRACE_S = 3.0
RESTART_S = 0.5
"""How long a process manager waits before it restarts a process that exited."""

AnyStep = Step | GangStep | JobStep


class Runner(Protocol):
    """Plays one step."""

    async def run(self) -> None: ...


class Process(ABC):
    """A process that can be started, frozen, thawed, killed, and restarted as a new one."""

    def __init__(self, world: Stage, name: str) -> None:
        self.world = world
        self.name = name
        self.node = ""
        self.bus: MemoryBus | None = None
        """Its connection; None while it is down."""
        self._starts = 0
        self._running: asyncio.Task[None] | None = None
        self._restart: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start a new process with this name."""
        if self.bus is not None:
            return
        self._starts += 1
        self.node = f"{self.name}.{self._starts}"
        self.world.trace.note("sim", f"{self.node} starts")
        self.world.give_clock(self.name, self.node)
        self._running = self.world.loop.spawn(self.node, self._run(), name=f"main of {self.node}")

    async def _run(self) -> None:
        try:
            self.bus = self.world.hub.connect(self.node)
            await self._main(self.bus)
        except GanglineError as error:
            self.world.trace.note(self.node, f"ends: {type(error).__name__}: {error}")
        except Exception as error:
            self.world.checker.fail("error", f"{self.node} died of {error!r}")
            raise
        if self.bus is not None:
            await self.bus.close()
            self.bus = None
        self._ended()

    def _ended(self) -> None:
        """It exited by itself: restart it."""
        self._restart = self.world.loop.call_later(RESTART_S, self.start, context=self.world.context)

    @abstractmethod
    async def _main(self, bus: MemoryBus) -> None:
        """Run the process until it exits by itself."""

    @property
    def frozen(self) -> bool:
        return self.world.loop.frozen(self.node)

    def crash(self) -> None:
        """Kill it, like SIGKILL. It stays down until `start`."""
        self.kill()
        self.world.trace.note("sim", f"{self.node} is dead")

    def kill(self) -> None:
        """Drop all its callbacks and its connection."""
        self.world.loop.crash(self.node)
        if self._restart is not None:
            self._restart.cancel()
        if self.bus is not None:
            self.world.hub.kill(self.bus)
            self.bus = None

    def freeze(self) -> None:
        self.world.loop.freeze(self.node)

    def thaw(self) -> None:
        self.world.loop.thaw(self.node)


class _OlderWorker(Worker):
    """Behaves like a version without channels."""

    def _channel_of(self, instance: str) -> str:
        return ""


class WorkerProcess(Process):
    """A worker with one name; its processes run one after another."""

    def __init__(self, world: Stage, plan: WorkerPlan, having: dict[str, WorkerProcess]) -> None:
        super().__init__(world, plan.name)
        self.plan = plan
        self._having = having
        """The process that owns each worker id."""
        self.worker: Worker | None = None
        self.model: WorkerModel | None = None
        self._first: WorkerProcess | None = None
        """The process that it has replaced."""
        self._served = False
        self.served_at: float | None = None
        """Since when its current process has been serving; None: it does not serve."""
        self._displaced = False
        """Whether another process is started in its place."""

    def twin(self) -> WorkerProcess:
        """Create a second process with its id; this one is not restarted."""
        second = WorkerProcess(self.world, self.plan, self._having)
        second._starts = self._starts
        second._first = self
        self._displaced = True
        return second

    def _ended(self) -> None:
        served, self._served = self._served, False
        if self._displaced:
            return
        earlier = self._first
        while earlier is not None and earlier.bus is None:
            earlier = earlier._first
        if earlier is None or served:
            super()._ended()
        else:  # it woke up while nobody had its id, and has it again
            earlier._displaced, earlier._starts = False, self._starts
            self._having[self.name] = earlier

    async def _main(self, bus: MemoryBus) -> None:
        world, plan, node = self.world, self.plan, self.node
        model = WorkerModel(
            node=node,
            checker=world.checker,
            clock=world.clock_of(node),
            load=self._load,
            drain_grace_s=DRAIN_GRACE_S,
            slots=plan.slots,
        )

        def aside() -> int:
            gangs = worker.core.gangs
            return gangs.keeps.slots + sum(gangs.reserved_by(leaving) for leaving in gangs.leaving)

        model.aside = aside
        model.has_id = lambda: world.has_id(worker)

        def journal(record: dict[str, Any]) -> None:
            self._journal(model, record)

        declared = () if world.plan.durable is None else world.plan.durable.declared
        rates = dict(world.plan.rates)
        declared += tuple(
            (method, TaskPolicy(max_running=most, rate_per_s=rates.get(method))) for method, most in world.plan.limits
        )
        worker = (Worker if plan.channel else _OlderWorker)(
            make_pool(plan.pool, declared),
            bus=bus,
            names=world.names,
            settings=WorkerSettings(
                id=plan.name,
                slots=plan.slots,
                node=plan.node or f"host-{plan.name}",
                zone=plan.zone,
                freeze_after_s=min(1.0, plan.heartbeat_ttl_s / 2),
                heartbeat_s=plan.heartbeat_ttl_s / 3,
                heartbeat_ttl_s=plan.heartbeat_ttl_s,
                drain_grace_s=DRAIN_GRACE_S,
                send_tracebacks=False,
                history=HistorySettings(enabled=False),
            ),
            ambient=world.ambient(node, plan.clock_skew_s),
            journal=journal,
        )
        world.models[node] = self.model = model
        if world.plan.durable is not None and world.plan.durable.item_bytes is not None:
            worker.core.jobs.keep_items(world.plan.durable.item_bytes)
        self.worker = worker
        try:
            await worker.start()
        except GanglineError:
            model.dead = True  # it ends without having served
            raise
        self._served, self.served_at = True, world.now()
        if self._first is not None and self._first.model is not None:
            self._first.model.successor = model
        world.trace.note(node, f"serves {plan.pool} with {plan.slots} slots")
        await worker.wait_closed()
        self.served_at = None
        model.check_turn()
        world.checker.require(model.left, "L11", f"{node} closed without having left")

    def _journal(self, model: WorkerModel, record: dict[str, Any]) -> None:
        world, event = self.world, record["event"]
        facts = " ".join(f"{key}={record[key]}" for key in record if key not in _USUAL)
        slots = f"{record['running']}+{record['reserved']}/{record['total']}"
        if event == "fence":  # its twin, which woke up, has the id again: what runs here may be taken for dead
            world.troubles.begin(self.name)()
        world.trace.note(model.node, f"journal {event} {facts} {slots}")
        model.record(record, world.loop.ran)
        world.gangs.journal(model.node, record)
        token = record.get("token")
        if token is not None and token in model.leases and model.leases[token].gang is None:
            if event == "grant":
                world.ledger.granted(model, model.leases[token])
            elif event in ("use", "release", "expire", "drop"):
                world.ledger.ended(model, model.leases[token])
            if event == "expire" and model.draining_since is None:
                world.holder_must_distrust(token, model.node)

    def _load(self) -> Load | None:
        return None if self.worker is None else self.worker.core.load

    def look(self) -> None:
        """Check what should have happened by now."""
        if self.model is not None and self.bus is not None:
            self.model.look(reachable=self.bus.connected)

    @property
    def restarted(self) -> bool:
        """Whether its current process is not the first one with its name."""
        return self._starts > 1

    @property
    def settled(self) -> bool:
        """Whether it serves, and is neither frozen nor being stopped."""
        return self.worker is not None and self.worker.state == "serving" and self.bus is not None and not self.frozen

    def operate(self, event: PlanEvent) -> None:
        """Carry out an operator's request."""
        worker = self.worker
        if worker is None or worker.state != "serving":
            return
        context = node_context(self.node)
        if event.accident is not Accident.RESIZE:
            self.world.loop.call_soon(worker.begin_drain, context=context)
        else:
            self.world.loop.call_soon(worker.resize, event.amount, context=context)

    def kill(self) -> None:
        model = self.model
        if model is not None and model.alive:
            model.dead = True
            self.world.ledger.worker_died(model)
        self.world.gangs.died(self.node)
        self.world.limits.died(self.node)
        self.world.jobs.died(self.node)
        self.worker = self.served_at = None
        super().kill()

    def freeze(self) -> None:
        super().freeze()
        if self.model is not None:
            self.model.froze(serving=self.worker is not None and self.worker.state in ("serving", "draining"))

    def thaw(self) -> None:
        if self.model is not None:
            self.model.thawed()
        self.world.gangs.thawed(self.node)
        super().thaw()


class ClientProcess(Process):
    """A client with one name; its processes run one after another."""

    def __init__(self, world: Stage, name: str) -> None:
        super().__init__(world, name)
        self.client: Client | None = None
        self._steps: dict[asyncio.Task[None], str] = {}
        """Unfinished steps of the current process, and their nodes."""
        self._waiting: list[AnyStep] = []
        """Steps that came due while no process was running."""

    async def _main(self, bus: MemoryBus) -> None:
        world = self.world
        client = Client(bus, names=world.names, ambient=world.ambient(self.node), audit=False)
        await client.start()
        self.client = client
        waiting, self._waiting = self._waiting, []
        for step in waiting:
            self.begin(step)
        await asyncio.Event().wait()  # until it is killed

    def begin(self, step: AnyStep) -> None:
        """Let the current process play a step, or the next process if there is none now."""
        if self.client is None:
            self._waiting.append(step)
            return
        runner: Runner
        if isinstance(step, GangStep):
            runner = GangStepRunner(self.world, self.bus, self.node, self.client, step)
        elif isinstance(step, JobStep):
            runner = JobStepRunner(self.world, self.bus, self.node, self.client, step)
        else:
            runner = StepRunner(self.world, self.node, self.client, step)
        task = self.world.loop.spawn(self.node, self._play(runner, step), name=f"step {step.number} of {self.node}")
        self._steps[task] = self.node

    async def _play(self, runner: Runner, step: AnyStep) -> None:
        task = asyncio.current_task()
        assert task is not None
        timer = None
        if step.cancel_after_s is not None:
            timer = self.world.loop.call_later(step.cancel_after_s, task.cancel)
        self.world.trace.note(self.node, f"step {step.number}: {runner}")
        try:
            await runner.run()
        except asyncio.CancelledError:
            pass  # planned
        except Exception as error:
            self.world.checker.fail("error", f"step {step.number} ({step.kind}) raised {error!r}")
        finally:
            if timer is not None:
                timer.cancel()
            self._steps.pop(task, None)

    @property
    def running(self) -> bool:
        """Whether it can play steps."""
        return self.client is not None and not self.frozen

    @property
    def busy(self) -> int:
        """Number of unfinished steps."""
        return len(self._steps) + len(self._waiting)

    def kill(self) -> None:
        super().kill()
        self.client = None
        self._steps.clear()
        self.world.outcomes.client_died(self.node)
        self.world.gangs.died(self.node)

    def freeze(self) -> None:
        super().freeze()
        self.world.outcomes.client_froze(self.node)

    def thaw(self) -> None:
        self.world.outcomes.client_thawed(self.node)
        super().thaw()

    def routed(self) -> Iterable[RoutedPool]:
        return () if self.client is None else self.client._router.pools.values()

    def epochs(self) -> dict[str, int]:
        """Epochs of the workers that this client knows, by name."""
        return {known.id.worker: known.epoch for pool in self.routed() for known in pool.core.view.workers.values()}

    def counts(self) -> dict[str, int]:
        """Numbers of things that this client believes it holds or waits for; all zero at rest."""
        if self.client is None:
            return {}
        statistics = self.client.statistics()
        pools = statistics["pools"].values()
        counts = {name: statistics[name] for name in ("holds", "in_flight", "gangs")}
        return counts | {name: sum(pool[name] for pool in pools) for name in ("placed", "waiting")}


_USUAL = ("t", "event", "worker", "epoch", "running", "reserved", "total")
