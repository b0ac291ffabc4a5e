"""The surroundings of a run: a server with faults, the clock and randomness of each process, and the checks."""

from __future__ import annotations

import asyncio
import contextvars
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from ....bus.memory.faults import RandomFaults
from ....bus.memory.server import MemoryServer
from ....bus.port.bus import KvEntry, KvOperation, Message, StreamMessage
from ....dispatcher.leases.lease import Lease
from ....dispatcher.leases.selection import Selection, SelectionState
from ....runtime.clock import Environment
from ....schemas.names import PRIVATE, GangOperation, Names, Operation
from ....schemas.records.gangs import GangRecord
from ....schemas.records.workers import Heartbeat, LimitRecord
from ....worker.context.task_context import GangContext, TaskContext
from ....worker.service import Worker
from ...loop import NodeClock, VirtualLoop, current_node, node_context
from ..calls.board import BoardWatch
from ..calls.ledger import LedgerWatch
from ..calls.outcomes import TOLD_S as ANSWERED_S
from ..calls.outcomes import LossWatch, Outcomes, SimulatedRequest
from ..calls.shared_limits import SharedLimits, Waiter
from ..calls.slots import WorkerModel
from ..calls.wire import SecretWatch, WireWatch
from ..durable.laws import JobWatch
from ..durable.limits import Room
from ..gangs.ledger import STANDING
from ..gangs.members import GangWatch, meeting_value
from ..gangs.wire import GangWire
from ..history.checker import Checker, Trace
from ..history.troubles import SERVER, SILENCE, WEATHER, Troubles, pool_name
from ..plan.durable_draw import HOLDER
from ..plan.gang_draw import LEADER
from ..plan.gang_plan import BadStart
from ..plan.plan import CALM_RATES, POOLS, Accident, Aim, Moment, Plan, PlanEvent
from ..plan.variants import Machine, draw_machine
from ..tasks.tasks import COSTS, TaskBroke


class Aimer:
    """Counts moments and triggers faults. Taps the server.

    Args:
        later: calls a function after a delay, in the context of no process.
    """

    def __init__(
        self,
        plan: Plan,
        names: Names,
        *,
        later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._aims = plan.aims
        self._names = names
        self._later = later
        self.happen: Callable[[PlanEvent], None] = _nothing
        """Triggers a fault, unless all faults have ended."""
        self._counts = dict.fromkeys(Moment, 0)
        self._prefix = f"{names.namespace}.worker."
        self._sets: set[str] = set()
        """Gangs of standing sets."""
        self._last_workers: dict[str, str] = {}
        """By gang: the worker of its last rank."""
        steps = plan.gangs.steps if plan.gangs is not None else ()
        self._owners = {f"q{step.number}": step.client for step in steps}
        """Owners of gangs whose ids are in the plan."""

    def passes(self, moment: Moment, gang: str = "") -> None:
        """A moment occurs."""
        self._counts[moment] += 1
        for aim in self._aims:
            if aim.moment is moment and aim.nth == self._counts[moment]:
                target = self._target(aim, gang)
                event = PlanEvent(at_s=0.0, accident=aim.accident, target=target, for_s=aim.for_s)
                self._later(aim.after_s, lambda event=event: self.happen(event))  # type: ignore[misc]

    def _target(self, aim: Aim, gang: str) -> str:
        match aim.accident:
            case Accident.CLIENT_CRASH | Accident.PARTITION:
                return self._owner(gang)
            case Accident.WORKER_CRASH:
                return self._last_workers[gang]
            case Accident.DISPATCHER_CRASH:
                return HOLDER
            case Accident.COORDINATOR_CRASH:
                return LEADER
            case _:
                return ""

    def _owner(self, gang: str) -> str:
        """The client that acquired the gang, whose id contains the client's name unless it is in the plan."""
        return self._owners.get(gang) or gang.rpartition("-")[0].partition("_")[0]

    # -- taps -------------------------------------------------------------------------------------------------------

    def on_message(self, _sender: str, message: Message) -> None:
        """A message has reached the server."""
        subject = message.subject.removeprefix(f"{PRIVATE}.")
        if subject == self._names.gang(GangOperation.ACQUIRE):
            self.passes(Moment.QUEUED, json.loads(message.data).get("id", ""))
        elif subject.startswith(self._prefix):
            operation = subject.rpartition(".")[2]
            if operation in (Operation.HOLD, Operation.FORM):
                gang = json.loads(message.data)["gang"]
                told = Moment.SET_TOLD if gang in self._sets else Moment.TOLD
                self.passes(Moment.GRANTED if operation == Operation.HOLD else told, gang)

    def on_stored(self, _stream: str, message: StreamMessage) -> None:
        """A stream has a new message."""
        if self._names.parse_schedule(message.subject):
            self.passes(Moment.SCHEDULED)

    def on_change(self, bucket: str, entry: KvEntry) -> None:
        """One revision."""
        if bucket != self._names.ledger_bucket or entry.operation is not KvOperation.PUT:
            return
        if entry.key.partition(".")[0] != "gang":
            return
        record = GangRecord.model_validate_json(entry.value)
        if record.state not in STANDING:
            return
        if record.gangset:
            self._sets.add(record.id)
        self._last_workers[record.id] = record.seats[-1].worker
        self.passes(Moment.SET_COMMITTED if record.gangset else Moment.COMMITTED, record.id)


def _nothing(_event: PlanEvent) -> None:
    """Does nothing: the run has not begun."""


WALL_S = 1_790_000_000.0
"""Unix time of every wall clock at the beginning, without its error."""
FIRST_PORT = 40_000
"""First port for rendezvous addresses; nothing listens there."""
TOLD_S = 1.0
"""Time within which a worker tries to write its heartbeat after a server was silent."""
RECOVERED_S = 3.0
"""Time within which two processes with one id learn which of them has it, after a restart that lost the ledger: the
first to write it has it. The other one learns it from the answer to its own write, two of which may be lost."""


class Stage(ABC):
    """The server with its faults, the clocks, and the checks.

    Args:
        plan: what to play.
        loop: the loop for the run; nothing else may run on it.
        echo: called with each line of the trace as it happens.
    """

    def __init__(self, plan: Plan, loop: VirtualLoop, echo: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self._planned = {each.name: each for each in plan.workers}
        self.loop = loop
        self._began = loop.true_time
        self._machines: dict[str, Machine] = {}
        """Machines of processes with their own clocks, by name of the process."""
        self.quiet = False
        """The traffic has ended: start hooks no longer fail."""
        self.trace = Trace(self.now, echo)
        self.over: asyncio.Future[None] = loop.create_future()
        self.checker = Checker(self.now, self.trace, self._end)
        self.faults = RandomFaults(random.Random(f"gangline faults {plan.seed}"), CALM_RATES, self._on_fault)
        self.hub = MemoryServer(ambient=self.ambient("hub"), faults=self.faults)
        self.names = Names("sim")
        self.outcomes = Outcomes(self.checker, self._excuses_doubt, self.may_be_lost, rate=self._rate)
        self.losses = LossWatch(self.checker, self.lives)
        self.ledger = LedgerWatch(self.checker, self.ledger_keys, lambda: self.hub.still)
        self.board = BoardWatch(self.checker, self.names)
        self.models: dict[str, WorkerModel] = {}
        """All worker processes so far, by node."""
        self.holders: dict[str, tuple[str, Lease | Selection]] = {}
        """The process that holds each lease, by public id, and the holder's view of it."""
        self.instances: dict[str, str] = {}
        """All coordinator processes so far, by node."""
        self.gangs = GangWatch(
            self.checker,
            self.names,
            instance_of=self.instances.get,
            frozen=loop.frozen,
            quiet_for=self.ledger.quiet_for,
            rate=self._rate,
        )
        secrets = SecretWatch(self.checker, self.names)
        wire = WireWatch(
            self.checker,
            self.models.get,
            lambda: loop.ran,
            reached=self._reached,
            durable=lambda sender, node, job: self.jobs.sent(sender, node, job),
            durable_reached=lambda sender, job: self.jobs.reached(sender, job),
            granted=lambda token: secrets.made(token, "the token of a lease"),
        )
        self.hub.tap(on_message=secrets.on_message, on_change=secrets.on_change)
        self.hub.tap(on_message=wire.on_message, on_delivery=wire.on_delivery)
        self.hub.tap(on_change=self.board.on_change)
        self._tap_gangs()
        self.troubles = Troubles(self.now)
        self._missed_at: dict[str, float] = {}
        """By worker: when its heartbeat was last missing."""
        self.hub.tap(on_change=self._on_change)
        self.jobs = self._watch_jobs()
        self.limits = self._watch_limits()
        self.context = contextvars.copy_context()
        """A context of no node, for timers that outlive the node that sets them."""
        self.aims = Aimer(plan, self.names, later=self._later)
        if plan.durable is not None:
            self.hub.tap(on_change=self.jobs.ends.on_change, on_stored=self.jobs.on_stored)
            self.hub.tap(on_change=self.jobs.on_change)
        if plan.aims:
            self.hub.tap(on_message=self.aims.on_message, on_change=self.aims.on_change, on_stored=self.aims.on_stored)
        self._bodies = 0

    def _watch_jobs(self) -> JobWatch:
        return JobWatch(
            self.checker,
            self.hub,
            self.names,
            self.plan.durable,
            self.troubles,
            quiet_for=self.ledger.quiet_for,
            drains_for=self._drains_for,
            rooms=self.rooms,
        )

    def _watch_limits(self) -> SharedLimits:
        return SharedLimits(
            self.checker,
            self.troubles,
            self.plan.max_running,
            dict(self.plan.rates),
            {each.name: each.pool for each in self.plan.workers},
            expires_s={each.name: each.heartbeat_ttl_s for each in self.plan.workers},
            quiet_for=self.ledger.quiet_for,
            names=self.names,
            record=self._limit_record,
            waiters=self._waiters,
            rooms=self._free_workers,
        )

    def _waiters(self) -> Iterator[Waiter]:
        """Calls and submitted tasks with a limit, where no other request or task of the pool waits."""
        calls = self.outcomes.waiting()
        for request in calls:
            others = any(each.pool == request.pool and each.method not in self.plan.max_running for each in calls)
            if request.plain and request.method in self.plan.max_running and not others:
                yield Waiter(request.id, request.pool, request.method, request.begun_at)
        yield from self.jobs.waiters()

    def _free_workers(self) -> Iterator[str]:
        for model in self.models.values():
            serves = model.alive and model.draining_since is None and model.frozen_at is None
            # Slots that a dispatcher leases are for its tasks.
            taken = model.running + (0 if self.plan.durable is not None else model.reserved + model.aside())
            if serves and model.slots - taken > 0:
                yield model.node

    def _limit_record(self, key: str) -> LimitRecord | None:
        found = [each.value for each in self.hub.peek(self.names.ledger_bucket, key) if each.key == key]
        return LimitRecord.model_validate_json(found[0]) if found else None

    def _drains_for(self, node: str) -> tuple[float, float] | None:
        model = self.models.get(node)
        if model is None or model.draining_since is None:
            return None
        return self.now() - model.draining_since, model.drain_grace_s

    def _excuses_doubt(self, request: SimulatedRequest) -> bool:
        """Whether messages between the caller and the server may have been lost or late, or the caller could not wait
        for them: calls on a gang end with its generation."""
        if request.sent_at is not None and self.gangs.torn_within(request.sent_at, ANSWERED_S, request.node):
            return True
        client = request.node.partition(".")[0]
        return any(self.troubles.affected(each, request.begun_at) for each in (client, SERVER, SILENCE, WEATHER))

    def _reached(self, request: str, subject: str) -> None:
        """A task has reached the server."""
        name = subject.split(".worker.")[1].split(".")[1]
        older = self.plan.watched and not self._planned[name].channel
        self.outcomes.reached(request, heard=older or any(each in self.models for each in self.hub.listeners(subject)))

    def _tap_gangs(self) -> None:
        if self.plan.gangs is None:
            return
        wire = GangWire(
            self.checker,
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

    def _rate(self, node: str) -> float:
        return self.loop.clock(node).rate

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.loop.call_later(delay_s, action, context=self.context)

    def _on_fault(self, kind: str, subject: str) -> None:
        self.trace.note("fault", f"{kind}: {subject}")

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    # -- views of the processes --------------------------------------------------------------------------------------

    @abstractmethod
    def lives(self, worker: str, instance: str) -> bool:
        """Whether that process of a worker serves and had no fault lately."""

    @abstractmethod
    def may_be_lost(self, worker: str, since: float) -> bool:
        """Whether it had a fault since then, or shortly before, for which it may be reported as lost."""

    @abstractmethod
    def rooms(self) -> list[Room] | None:
        """Free slots of workers. None: clients call them, or have leases or selections; or a storm may have dropped a
        message, which is delivered again only after half a minute."""

    # -- for processes --------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds since the beginning of the run, in virtual time."""
        return self.loop.true_time - self._began

    def clock_of(self, node: str) -> Callable[[], float]:
        """Seconds since the beginning of the run, by that process's clock."""
        clock, loop = self.loop.clock(node), self.loop
        began = clock.local(self._began)
        return lambda: clock.local(loop.true_time) - began

    def give_clock(self, name: str, node: str) -> None:
        """Give the new node of a process its clock."""
        if self.plan.clocks:
            exact = self.plan.durable is not None
            self._machines[name] = machine = draw_machine(self.plan.seed, name, exact=exact)
            self.loop.set_clock(node, machine.monotonic)

    def ambient(self, node: str, skew_s: float = 0.0) -> Environment:
        """The Environment of one process."""
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
        """The heartbeat of each worker in the ledger, by its name."""
        found = {
            entry.key: Heartbeat.model_validate_json(entry.value)
            for entry in self.hub.peek(self.names.ledger_bucket, "alive.")
        }
        return {name: found.get(f"alive.{each.pool}.{name}") for name, each in self._planned.items()}

    def has_id(self, worker: Worker) -> bool:
        """Whether the ledger says that this process has the worker's id, and has said so for long enough for others to
        know it."""
        now = self.now()
        if self.troubles.affected(SILENCE, now - TOLD_S) or self.troubles.affected(SERVER, now - RECOVERED_S):
            return False
        beat = self.heartbeats()[worker.id.worker]
        return beat is not None and beat.instance == worker.instance

    def holder_must_distrust(self, token: str, node: str) -> None:
        """L5: when a lease has expired at its worker, its holder must have stopped trusting it. (Not if a drain ended
        it early: the holder learns that from the answer to its next use.)"""
        if token not in self.holders:
            return
        owner, holder = self.holders[token]
        if node_context(owner).run(_trusts, holder):  # by its own clock
            self.checker.fail("L5", f"{node}: token {token} has expired, and its holder still trusts it: {holder!r}")

    def told_too_late(self, request: SimulatedRequest) -> None:
        """A client was told that a deadline has passed. (After a freeze a worker deducts its length from deadlines in
        received messages, since they may have arrived at the beginning of the freeze.)"""
        if not any(self.troubles.affected(name, request.begun_at) for name in self._planned):
            self.outcomes.too_late(request)

    # -- reports of the tasks' code -------------------------------------------------------------------------------

    def hear(self) -> None:
        """Record which workers have a heartbeat in the ledger, and which pools a registration."""
        keys = [key.split(".") for key in self.ledger_keys()]
        heard = {key[2] for key in keys if key[0] == "alive"} | {pool_name(key[1]) for key in keys if key[0] == "reg"}
        self.troubles.hear((*self._planned, *map(pool_name, POOLS)), heard)

    def _on_change(self, bucket: str, entry: KvEntry) -> None:
        """A heartbeat may be missing for less time than between two looks."""
        if bucket == self.names.ledger_bucket and entry.key.startswith("alive.") and not entry.value:
            self._missed_at[entry.key.rpartition(".")[2]] = self.now()

    def missed(self, worker: str) -> bool:
        """Whether the ledger had no heartbeat of it so recently that a look at the ledger may tell that only now."""
        return self.now() - self._missed_at.get(worker, float("-inf")) < TOLD_S

    def body_started(self, request: str, cost: int, context: TaskContext) -> int:
        self._bodies += 1
        number, node = self._bodies, current_node() or "?"
        self.trace.note(node, f"{request} begins ({context.method}, token {context.token})")
        model = self.models[node]
        deadline_at = self.outcomes.requests[request].deadline_at
        excused = self.troubles.late
        self.outcomes.body_started(request, node)
        if not context.in_gang:
            self.limits.starts(number, node, context.method)
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
        self.limits.ends(number)
        self.gangs.stops(number)
        if returned:
            self.outcomes.body_returned(request)

    def job_started(self, request: str, cost: int, context: TaskContext) -> int:
        self._bodies += 1
        number, node = self._bodies, current_node() or "?"
        self.trace.note(node, f"{request} begins as {context.job}, attempt {context.attempt} (token {context.token})")
        self.hear()
        self.jobs.body_started(number, node, request, cost, context)
        if not context.in_gang:
            self.limits.starts(number, node, context.method)
        self.models[node].body_started(number, request, cost, context.token, None)
        return number

    def job_ended(self, number: int, how: str) -> None:
        node = current_node() or "?"
        model = self.models.get(node)
        if self.loop.is_closed() or model is None or model.dead:
            return
        self.trace.note(node, f"try {number} {how}")
        model.body_ended(number)
        self.limits.ends(number)
        self.jobs.body_ended(number, how)

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
        """See tasks.Observer. Start hooks of standing gangs take time, raise or hang while there is traffic."""
        history = self.gangs.ledger.history.get(gang.id)
        record = None if history is None else history.formed
        if self.plan.gangs is None or record is None or record.gangset is None or self.quiet:
            return
        starts = self.plan.gangs.starts
        await asyncio.sleep(starts.takes_s)
        if starts.version != record.spec.owner or self.quiet:
            return
        if starts.bad is BadStart.RAISE:
            raise TaskBroke(f"rank {gang.rank} does not start, by its plan for {starts.version}")
        if starts.bad is BadStart.HANG:
            await asyncio.sleep(1e6)

    def hook_ended(self, number: int) -> None:
        self.gangs.stops(number)


_TRUE = Machine(monotonic=NodeClock())


def _trusts(holder: Lease | Selection) -> bool:
    if isinstance(holder, Lease):
        return holder.lost is None
    return holder.state is SelectionState.OPEN and holder.hold.trouble() is None
