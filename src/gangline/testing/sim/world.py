"""Plays a plan: a hub that fails, worker processes, client processes, and the checks that watch them all."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import random
from collections.abc import Callable
from contextlib import suppress

from ...bus.memory.faults import RandomFaults
from ...bus.memory.server import MemoryServer
from ...dispatcher.leases.lease import Lease
from ...dispatcher.leases.selection import Selection, SelectionState
from ...runtime.clock import Environment
from ...schemas.names import Names
from ...schemas.records.workers import Heartbeat
from ...worker.context.task_context import GangContext, TaskContext
from ...worker.service import Worker
from ..loop import NodeClock, VirtualLoop, current_node, node_context
from .actors.coordinators import CoordinatorProcess, Operator
from .actors.dispatchers import DispatcherProcess, RouteOperator
from .actors.durable_tasks import JOBS, JobBroke
from .actors.processes import ClientProcess, WorkerProcess
from .actors.tasks import COSTS, OBSERVER, SIM_POOLS, TaskBroke
from .calls.ledger import LedgerWatch
from .calls.losses import LossWatch
from .calls.outcomes import Outcomes, SimulatedRequest
from .calls.rest import check_rest, check_sets, gangs_at_rest, sets_stand
from .calls.slots import WorkerModel
from .calls.wire import WireWatch
from .checker import Checker
from .durable.idle import Room
from .durable.laws import JobWatch
from .durable.rest import check_durable, durable_at_rest
from .gangs.members import GangWatch, meeting_value
from .gangs.wire import GangWire
from .plan.accidents import Accidents
from .plan.aims import Aimer, Moment
from .plan.clocks import Machine, draw_machine
from .plan.gang_plan import BadStart
from .plan.plan import CALM_RATES, Plan
from .plan.troubles import SERVER, SILENCE, WEATHER, Troubles, pool_name
from .trace import Trace

WALL_S = 1_790_000_000.0
"""What every wall clock shows at the beginning, but for its own skew."""
FIRST_PORT = 40_000
"""Those of rendezvous; nobody listens there."""
LOOK_S = 0.1
"""How often what should have happened by now is looked for."""
SETTLE_S = 90.0
"""Longest time from the end of the traffic to rest: five uses of a lease at six seconds each, leases, drains; the
tries of some forty tasks, of up to 1.4 s each, on a single slot."""
SETTLE_LOOK_S = 0.25
TOLD_S = 1.0
"""After a server was silent, a worker has tried to write its heartbeat by then."""
LOST_FOR_S = 1.5
"""What befell a worker so long ago may still be the reason why it is said to be lost."""


class World:
    """One run of one plan.

    Args:
        plan: what to play.
        loop: on which it runs; nothing else may run on it.
        echo: called with each line of the trace as it happens.
    """

    def __init__(self, plan: Plan, loop: VirtualLoop, echo: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self.loop = loop
        self._began = loop.true_time
        self._machines: dict[str, Machine] = {}
        """Of processes whose clocks are their own, by name."""
        self._quiet = False
        """Traffic has ended: whatever starts from now on starts well."""
        self.trace = Trace(self.now, echo)
        self._over: asyncio.Future[None] = loop.create_future()
        self.checker = Checker(self.now, self.trace, self._end)
        self.faults = RandomFaults(random.Random(f"gangline faults {plan.seed}"), CALM_RATES, self._on_fault)
        self.hub = MemoryServer(ambient=self.ambient("hub"), faults=self.faults)
        self.names = Names("sim")
        self.outcomes = Outcomes(self.checker, self.now, self._excuses_doubt, self._may_be_lost, rate=self._rate)
        self.losses = LossWatch(self.checker, self._lives)
        self.ledger = LedgerWatch(self.checker, self.now, self.ledger_keys, lambda: self.hub.still)
        self.models: dict[str, WorkerModel] = {}
        """Every worker process that ever was, by node."""
        self.holders: dict[str, tuple[str, Lease | Selection]] = {}
        """Which process holds a token, and how that one sees it."""
        self.instances: dict[str, str] = {}
        """Of every coordinator process that ever was, by node."""
        self.gangs = GangWatch(
            self.checker,
            self.trace,
            self.now,
            self.names,
            instance_of=self.instances.get,
            frozen=loop.frozen,
            quiet_for=self.ledger.quiet_for,
            rate=self._rate,
        )
        wire = WireWatch(
            self.checker,
            self.trace,
            self.models.get,
            lambda: loop.ran,
            clock=self.now,
            reached=self._reached,
            durable=self._durable_sent,
            durable_reached=lambda sender, job: self.jobs.reached(sender, job),
        )
        self.hub.tap(on_message=wire.on_message, on_delivery=wire.on_delivery)
        self._tap_gangs()
        self.troubles = Troubles(self.now)
        self.jobs = self._watch_jobs()
        self.workers = {each.name: WorkerProcess(self, each) for each in plan.workers}
        self.displaced: list[WorkerProcess] = []
        """In whose place others of their ids were started."""
        self.clients = {name: ClientProcess(self, name) for name in plan.clients}
        self.coordinators: dict[str, CoordinatorProcess] = {}
        if plan.gangs is not None:
            after_s = plan.gangs.starve_after_s
            self.coordinators = {name: CoordinatorProcess(self, name, after_s) for name in plan.gangs.coordinators}
        self.operator = Operator(self)
        self.dispatchers: dict[str, DispatcherProcess] = {}
        if plan.durable is not None:
            self.dispatchers = {name: DispatcherProcess(self, name) for name in plan.durable.dispatchers}
            self.hub.tap(on_change=self.jobs.ends.on_change, on_stored=self.jobs.on_stored)
            self.hub.tap(on_change=self.jobs.on_change)
        self.routes = RouteOperator(self)
        self.accidents = Accidents(self)
        self.context = contextvars.copy_context()
        """Of no node; for timers that outlive the node that sets them."""
        self.aims = Aimer(plan, self.names, later=self._later, happen=self.accidents.happen)
        if plan.aims:
            self.hub.tap(on_message=self.aims.on_message, on_change=self.aims.on_change)
        self._bodies = 0

    def _watch_jobs(self) -> JobWatch:
        return JobWatch(
            self.checker,
            self.trace,
            self.now,
            self.hub,
            self.names,
            self.plan.durable,
            self.troubles,
            excused=lambda: self.accidents.excuses_late_messages,
            calm=lambda: self.accidents.calm,
            lossy=lambda: self.accidents.lossy,
            doubling=lambda: self.accidents.doubling,
            quiet_for=self.ledger.quiet_for,
            drains_for=self._drains_for,
            rooms=self._rooms,
        )

    def _drains_for(self, node: str) -> tuple[float, float] | None:
        model = self.models.get(node)
        if model is None or model.draining_since is None:
            return None
        return self.now() - model.draining_since, model.drain_grace_s

    def _rooms(self) -> list[Room] | None:
        """What workers have free; None: clients call them, or have leases or selections; or a message may have got lost
        that no server loses, and comes again after half a minute."""
        serving = [each.model for each in self.workers.values() if each.settled and each.model is not None]
        held = any(token in self.holders for model in serving for token in (lease.token for lease in model.living))
        if held or self.outcomes.open or self.accidents.lossy:
            return None
        pools = {each.node: each.plan.pool for each in self.workers.values()}
        return [
            Room(node=model.node, pool=pools[model.node], slots=model.slots - model.running)
            for model in serving
            if model.draining_since is None
        ]

    def _lives(self, worker: str, instance: str) -> bool:
        found = self.workers.get(worker)
        return (
            found is not None
            and found.settled
            and found.worker is not None
            and found.worker.instance == instance
            and not self._may_be_lost(worker, self.now())
        )

    def _may_be_lost(self, worker: str, since: float) -> bool:
        found = self.workers.get(worker)
        if found is None or any(twin.name == worker for twin in self.displaced):
            return True  # a gang, which stands for a worker; or one of two that take turns to have the id
        since -= LOST_FOR_S
        restarted = found.served_at is None or (found.restarted and found.served_at >= since)
        return restarted or self.troubles.befell(worker, since)

    # -- for processes --------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds since the beginning, by no process's clock."""
        return self.loop.true_time - self._began

    def _rate(self, node: str) -> float:
        return self.loop.clock(node).rate

    def clock_of(self, node: str) -> Callable[[], float]:
        """Seconds since the beginning, by that process's clock."""
        clock, loop = self.loop.clock(node), self.loop
        began = clock.local(self._began)
        return lambda: clock.local(loop.true_time) - began

    def give_clock(self, name: str, node: str) -> None:
        """A process of that name starts as that node."""
        if self.plan.clocks:
            exact = self.plan.durable is not None
            self._machines[name] = machine = draw_machine(self.plan.seed, name, exact=exact)
            self.loop.set_clock(node, machine.monotonic)

    def ambient(self, node: str, skew_s: float = 0.0) -> Environment:
        """Chance, names and wall clock of one process."""
        source = random.Random(f"gangline {self.plan.seed} {node}")
        prefix = node.replace(".", "_")
        numbers = iter(range(1, 1 << 62))
        machine = self._machines.get(node.rpartition(".")[0], _TRUE)
        return Environment(
            wall=lambda: WALL_S + skew_s + self.now() + machine.wrong_s(self.now()),
            random=source,
            token=lambda: f"{prefix}-{next(numbers)}",
            port=lambda: FIRST_PORT + next(numbers) % 1000,
        )

    def ledger_keys(self) -> list[str]:
        return [entry.key for entry in self.hub.peek(self.names.ledger_bucket)]

    def heartbeats(self) -> dict[str, Heartbeat | None]:
        """What the ledger shows of each worker, by its name."""
        found = {
            entry.key: Heartbeat.model_validate_json(entry.value)
            for entry in self.hub.peek(self.names.ledger_bucket)
            if entry.key.startswith("alive.")
        }
        return {name: found.get(f"alive.{each.plan.pool}.{name}") for name, each in self.workers.items()}

    def has_id(self, worker: Worker) -> bool:
        """Whether the ledger says that the worker's id is this process's, and any other could have learnt that."""
        if self.troubles.befell(SILENCE, self.now() - TOLD_S):
            return False
        beat = self.heartbeats()[worker.id.worker]
        return beat is not None and beat.instance == worker.instance

    def living_models(self, pool: str) -> list[WorkerModel]:
        """Of the workers of a pool that serve now."""
        return [each.model for each in self.workers.values() if each.plan.pool == pool and each.model is not None]

    def start_twin(self, first: WorkerProcess) -> None:
        """Start a second process of its id in its place. No-op if that has happened."""
        if self.workers[first.name] is not first:
            return
        self.workers[first.name] = second = first.twin()
        self.displaced.append(first)
        second.start()

    @property
    def lingering(self) -> list[WorkerProcess]:
        """Those in whose place others were started, and that have not left."""
        return [each for each in self.displaced if each.bus is not None and each is not self.workers[each.name]]

    def views_agree(self) -> bool:
        """Clients know the workers that serve, each in its present epoch."""
        return not any(self.strangers(client) for client in self.clients.values())

    def strangers(self, client: ClientProcess) -> list[str]:
        """Workers that a client believes to be in another epoch than they are."""
        serving = {name: each.worker.core.epoch for name, each in self.workers.items() if each.worker is not None}
        known = client.epochs()
        return [name for name, epoch in serving.items() if known.get(name, epoch) != epoch]

    def leading(self) -> CoordinatorProcess | None:
        """Who leads now, as far as it knows itself; else any that runs."""
        running = [each for each in self.coordinators.values() if each.bus is not None and not each.frozen]
        return next((each for each in running if each.leads), running[0] if running else None)

    def holding(self) -> DispatcherProcess | None:
        """The dispatcher that has most queues now."""
        running = [each for each in self.dispatchers.values() if each.running]
        return max(running, key=lambda each: len(each.queues), default=None)

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.loop.call_later(delay_s, action, context=self.context)

    def _durable_sent(self, sender: str, node: str, job: str) -> None:
        self.jobs.sent(sender, node, job)

    def _reached(self, request: str, subject: str) -> None:
        """A task has reached the server."""
        name = subject.split(".worker.")[1].split(".")[1]
        older = self.plan.watched and not self.workers[name].plan.channel
        self.outcomes.reached(request, heard=older or any(each in self.models for each in self.hub.listeners(subject)))

    def _excuses_doubt(self, request: SimulatedRequest) -> bool:
        """Whether what passed between the caller and the server may have been lost, or late."""
        client = request.node.partition(".")[0]
        return any(self.troubles.befell(each, request.begun_at) for each in (client, SERVER, SILENCE, WEATHER))

    def _tap_gangs(self) -> None:
        if self.plan.gangs is None:
            return
        wire = GangWire(
            self.checker,
            self.trace,
            self.names,
            self.gangs.ledger,
            coordinates=self.instances.__contains__,
            told=self.gangs.told,
        )
        self.hub.tap(
            on_message=wire.on_message,
            on_delivery=wire.on_delivery,
            on_change=self.gangs.ledger.on_change,
            on_write=self.gangs.ledger.on_write,
        )

    def holder_must_distrust(self, token: str, node: str) -> None:
        """L5: a worker's lease has expired, so its holder must have stopped trusting it. (Not so when a drain cut it
        short: the holder learns that from the answer to its next use.)"""
        if token not in self.holders:
            return
        owner, holder = self.holders[token]
        if node_context(owner).run(_trusts, holder):  # by its own clock
            self.checker.fail("L5", f"{node}: token {token} has expired, and its holder still trusts it: {holder!r}")

    def told_too_late(self, request: SimulatedRequest) -> None:
        """A client was told that a deadline has passed. (A worker that stood still takes that off the time of
        what lay in its socket, which may have lain there from the beginning.)"""
        if not any(self.troubles.befell(name, request.begun_at) for name in self.workers):
            self.outcomes.too_late(request)

    # -- what task code tells -------------------------------------------------------------------------------------

    def body_started(self, request: str, cost: int, context: TaskContext) -> int:
        self._bodies += 1
        number, node = self._bodies, current_node() or "?"
        self.trace.note(node, f"{request} begins ({context.method}, token {context.token})")
        model = self.models[node]
        deadline_at = self.outcomes.requests[request].deadline_at
        excused = self.accidents.excuses_late_messages
        self.outcomes.body_started(request, node)
        if context.method == "items":
            self.aims.passes(Moment.STREAM)
        if context.in_gang:
            self.gangs.starts(number, node, request, context.gang, context.token)
            if context.method == "rank":
                self.gangs.runs(request, context.gang)
        late_s = None if excused else self.now() - deadline_at
        model.body_started(number, request, COSTS[context.method], context.token, late_s)
        return number

    def body_ended(self, number: int, request: str, *, returned: bool) -> None:
        node = current_node() or "?"
        model = self.models.get(node)
        if self.loop.is_closed() or model is None or model.dead:
            return
        self.trace.note(node, f"{request} {'returns' if returned else 'stops'}")
        model.body_ended(number)
        self.gangs.stops(number)
        if returned:
            self.outcomes.body_returned(request)

    def job_started(self, request: str, cost: int, context: TaskContext) -> int:
        self._bodies += 1
        number, node = self._bodies, current_node() or "?"
        self.trace.note(node, f"{request} begins as {context.job}, attempt {context.attempt} (token {context.token})")
        self._hear()
        self.jobs.body_started(number, node, request, cost, context)
        self.models[node].body_started(number, request, cost, context.token, None)
        return number

    def job_ended(self, number: int, how: str) -> None:
        node = current_node() or "?"
        model = self.models.get(node)
        if self.loop.is_closed() or model is None or model.dead:
            return
        self.trace.note(node, f"try {number} {how}")
        model.body_ended(number)
        self.jobs.body_ended(number, how)

    def _hear(self) -> None:
        """Note which workers have a heartbeat in the ledger, and which pools a registration."""
        keys = [key.split(".") for key in self.ledger_keys()]
        heard = {key[2] for key in keys if key[0] == "alive"} | {pool_name(key[1]) for key in keys if key[0] == "reg"}
        self.troubles.hear((*self.workers, *map(pool_name, SIM_POOLS)), heard)

    def rank_arrived(self, request: str, gang: GangContext) -> list[object]:
        self.gangs.arrives(request, gang)
        return meeting_value(request, gang.rank, gang.generation)

    def rank_passed(self, request: str, gang: GangContext, values: list[object]) -> None:
        self.gangs.passes(request, gang, values)

    def hook_started(self, what: str, gang: GangContext) -> int:
        self._bodies += 1
        number, node = self._bodies, current_node() or "?"
        self.trace.note(node, f"{what} of rank {gang.rank} of gang {gang.id}, generation {gang.generation}")
        if what == "start hook":
            self.gangs.starts(number, node, what, gang, None)
            rate = self.plan.gangs.failing_starts if self.plan.gangs is not None else 0.0
            draw = random.Random(f"gangline start {self.plan.seed} {gang.id} {gang.generation} {gang.rank}").random()
            if draw < rate:
                self.gangs.stops(number)
                raise TaskBroke(f"rank {gang.rank} does not start, by its plan")
        return number

    async def starts(self, gang: GangContext) -> None:
        """See tasks.Observer: members of standing gangs take time, raise or hang, as long as there is traffic."""
        history = self.gangs.ledger.history.get(gang.id)
        record = None if history is None else history.formed
        if self.plan.gangs is None or record is None or record.gangset is None or self._quiet:
            return
        starts = self.plan.gangs.starts
        await asyncio.sleep(starts.takes_s)
        if starts.version != record.spec.owner or self._quiet:
            return
        if starts.bad is BadStart.RAISE:
            raise TaskBroke(f"rank {gang.rank} does not start, by its plan for {starts.version}")
        if starts.bad is BadStart.HANG:
            await asyncio.sleep(1e6)

    def hook_ended(self, number: int) -> None:
        self.gangs.stops(number)

    # -- the run --------------------------------------------------------------------------------------------------

    async def play(self) -> None:
        """From the start of the workers to rest, or to the first violation."""
        OBSERVER.set(self)
        JOBS.set(self)
        self.context = contextvars.copy_context()
        watcher = _LogWatch(self.checker)
        logger = logging.getLogger("gangline")
        logger.addHandler(watcher)
        self.loop.set_exception_handler(self._unhandled)
        story = self.loop.create_task(self._story(), name="story")
        looker = self.loop.create_task(self._look(), name="looker")
        try:
            await asyncio.wait((story, self._over), return_when=asyncio.FIRST_COMPLETED)
            if story.done():
                story.result()
        finally:
            logger.removeHandler(watcher)
            for task in (story, looker):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            self._stop_everything()

    async def _story(self) -> None:
        plan = self.plan
        await self._watch()
        for worker in self.workers.values():
            worker.start()
        for coordinator in self.coordinators.values():
            coordinator.start()
        for dispatcher in self.dispatchers.values():
            dispatcher.start()
        for client in self.clients.values():
            client.start()
        if plan.durable is not None:
            for route in plan.durable.routes:
                self.loop.call_later(0.5 + route.at_s, self.routes.write, route)
        await asyncio.sleep(0.5)
        self.trace.note("sim", f"traffic begins: {plan.summary()}")
        self.accidents.schedule(plan)
        begin = self.loop.time()
        for step in plan.steps:
            self.loop.call_at(begin + step.at_s, self.clients[step.client].begin, step)
        if plan.gangs is not None:
            for gang_step in plan.gangs.steps:
                self.loop.call_at(begin + gang_step.at_s, self.clients[gang_step.client].begin, gang_step)
            for declared in plan.gangs.sets:
                self.loop.call_at(begin + declared.at_s, self.operator.declare, declared)
        if plan.durable is not None:
            for job_step in plan.durable.steps:
                self.loop.call_at(begin + job_step.at_s, self.clients[job_step.client].begin, job_step)
        await asyncio.sleep(plan.traffic_s)
        self.trace.note("sim", "traffic ends, everything heals")
        self._quiet = True
        self.accidents.heal()
        if self.operator.sets:
            self.operator.again()
            await self._until(lambda: sets_stand(self))
            check_sets(self)
            self.operator.delete_all()
        await self._until(self.at_rest)
        self.trace.note("sim", "rest")
        await check_rest(self)
        check_durable(self)

    async def _watch(self) -> None:
        """Have somebody who answers nothing listen to all public subjects, if the plan says so."""
        if self.plan.watched:
            await self.hub.connect("watcher").subscribe(f"{self.names.namespace}.>", lambda message: None)

    async def _until(self, reached: Callable[[], bool]) -> None:
        for _ in range(round(SETTLE_S / SETTLE_LOOK_S)):
            if reached():
                break
            await asyncio.sleep(SETTLE_LOOK_S)

    def at_rest(self) -> bool:
        """Nothing is asked, held or run, as far as can be seen from outside."""
        return (
            not self.outcomes.open
            and all(client.running and not client.busy for client in self.clients.values())
            and not any(sum(client.counts().values()) for client in self.clients.values())
            and all(worker.settled for worker in self.workers.values())
            and not self.lingering
            and self.views_agree()
            and not any(model.busy for model in self.models.values() if model.alive)
            and gangs_at_rest(self)
            and durable_at_rest(self)
            and not any(key.startswith("lease.") for key in self.ledger_keys())
            and all(beat is not None and not beat.running + beat.reserved for beat in self.heartbeats().values())
        )

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.outcomes.look()
            self.gangs.look()
            self._hear()
            self.jobs.look()
            self.losses.look((*self.clients.values(), *self.dispatchers.values()))
            for worker in (*self.workers.values(), *self.displaced):
                worker.look()
            for coordinator in self.coordinators.values():
                coordinator.look()

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _stop_everything(self) -> None:
        """The run is over: no process says another word."""
        gc.collect()  # an exception that nobody looked at is told of when its task goes
        self.checker.closed = True
        processes = (self.workers, self.clients, self.coordinators, self.dispatchers)
        for process in (*self.displaced, *(each for group in processes for each in group.values())):
            process.kill()

    def _on_fault(self, kind: str, subject: str) -> None:
        self.trace.note("fault", f"{kind}: {subject}")

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        facts = ", ".join(f"{key}={value!r}" for key, value in context.items() if key != "message")
        self.checker.fail("error", f"unhandled: {context['message']}: {facts}")


_TRUE = Machine(monotonic=NodeClock())


def _trusts(holder: Lease | Selection) -> bool:
    if isinstance(holder, Lease):
        return holder.lost is None
    return holder.state is SelectionState.OPEN and holder.hold.trouble() is None


class _LogWatch(logging.Handler):
    """An error in the log is an error of the run: handlers that fail are logged, not raised."""

    def __init__(self, checker: Checker) -> None:
        super().__init__(logging.ERROR)
        self._checker = checker

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, TaskBroke | JobBroke) or getattr(record, "action", "") == "worker.id_taken":
            return  # by the plan
        self._checker.fail("error", f"logged: {record.getMessage()}{f': {error!r}' if error else ''}")
