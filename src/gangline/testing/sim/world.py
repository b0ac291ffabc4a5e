"""Plays a plan: a hub that fails, worker processes, client processes, and the checks that watch them all."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections.abc import Callable
from contextlib import suppress

from ...bus.ambient import Ambient
from ...bus.memory import MemoryHub
from ...bus.memory_faults import RandomFaults
from ...dispatcher.leases import Lease
from ...dispatcher.selection import Selection, State
from ...schemas.names import Names
from ...schemas.records import Heartbeat
from ...worker.context import TaskContext
from ..loop import VirtualLoop, current_node
from .accidents import Accidents
from .checker import Checker
from .ledger import LedgerWatch
from .outcomes import Outcomes
from .plan import CALM_RATES, Plan
from .processes import ClientProcess, WorkerProcess
from .rest import check_rest
from .slots import WorkerModel
from .tasks import COSTS, OBSERVER
from .trace import Trace
from .wire import WireWatch

WALL_S = 1_790_000_000.0
"""What every wall clock shows at the beginning, but for its own skew."""
LOOK_S = 0.1
"""How often what should have happened by now is looked for."""
SETTLE_S = 60.0
"""Longest time from the end of the traffic to rest: five uses of a lease at six seconds each, leases, drains."""
SETTLE_LOOK_S = 0.25


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
        self._began = loop.time()
        self.trace = Trace(self.now, echo)
        self._over: asyncio.Future[None] = loop.create_future()
        self.checker = Checker(self.now, self.trace, self._end)
        self.faults = RandomFaults(random.Random(f"gangline faults {plan.seed}"), CALM_RATES, self._on_fault)
        self.hub = MemoryHub(ambient=self.ambient("hub"), faults=self.faults)
        self.names = Names("sim")
        self.outcomes = Outcomes(self.checker, self.now)
        self.ledger = LedgerWatch(self.checker, self.now, self.ledger_keys)
        self.models: dict[str, WorkerModel] = {}
        """Every worker process that ever was, by node."""
        self.holders: dict[str, Lease | Selection] = {}
        """Who holds a token, as the client sees it."""
        wire = WireWatch(self.checker, self.trace, self.models.get, lambda: loop.ran)
        self.hub.tap(on_message=wire.on_message, on_delivery=wire.on_delivery)
        self.workers = {each.name: WorkerProcess(self, each) for each in plan.workers}
        self.clients = {name: ClientProcess(self, name) for name in plan.clients}
        self.accidents = Accidents(self)
        self.context = contextvars.copy_context()
        """Of no node; for timers that outlive the node that sets them."""
        self._bodies = 0

    # -- for processes --------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds since the beginning."""
        return self.loop.time() - self._began

    def ambient(self, node: str, skew_s: float = 0.0) -> Ambient:
        """Chance, names and wall clock of one process."""
        source = random.Random(f"gangline {self.plan.seed} {node}")
        prefix = node.replace(".", "_")
        numbers = iter(range(1, 1 << 62))
        return Ambient(
            wall=lambda: WALL_S + skew_s + self.now(),
            random=source,
            token=lambda: f"{prefix}-{next(numbers)}",
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

    def holder_must_distrust(self, token: str, node: str) -> None:
        """L5: a worker's lease has expired, so its holder must have stopped trusting it. (Not so when a drain cut it
        short: the holder learns that from the answer to its next use.)"""
        holder = self.holders.get(token)
        if holder is None:
            return
        if _trusts(holder):
            self.checker.fail("L5", f"{node}: token {token} has expired, and its holder still trusts it: {holder!r}")

    # -- what task code tells -------------------------------------------------------------------------------------

    def body_started(self, request: str, cost: int, context: TaskContext) -> int:
        self._bodies += 1
        number, node = self._bodies, current_node() or "?"
        self.trace.note(node, f"{request} begins ({context.method}, token {context.token})")
        model = self.models[node]
        deadline_at = self.outcomes.requests[request].deadline_at
        excused = self.accidents.excuses_late_messages
        self.outcomes.body_started(request, node)
        model.body_started(number, request, COSTS[context.method], context.token, None if excused else deadline_at)
        return number

    def body_ended(self, number: int, request: str, *, returned: bool) -> None:
        node = current_node() or "?"
        model = self.models.get(node)
        if self.loop.is_closed() or model is None or model.dead:
            return
        self.trace.note(node, f"{request} {'returns' if returned else 'stops'}")
        model.body_ended(number)
        if returned:
            self.outcomes.body_returned(request)

    # -- the run --------------------------------------------------------------------------------------------------

    async def play(self) -> None:
        """From the start of the workers to rest, or to the first violation."""
        OBSERVER.set(self)
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
        for worker in self.workers.values():
            worker.start()
        for client in self.clients.values():
            client.start()
        await asyncio.sleep(0.5)
        self.trace.note("sim", f"traffic begins: {plan.summary()}")
        self.accidents.schedule(plan)
        begin = self.loop.time()
        for step in plan.steps:
            self.loop.call_at(begin + step.at_s, self.clients[step.client].begin, step)
        await asyncio.sleep(plan.traffic_s)
        self.trace.note("sim", "traffic ends, everything heals")
        self.accidents.heal()
        for _ in range(round(SETTLE_S / SETTLE_LOOK_S)):
            if self.at_rest():
                break
            await asyncio.sleep(SETTLE_LOOK_S)
        self.trace.note("sim", "rest")
        await check_rest(self)

    def at_rest(self) -> bool:
        """Nothing is asked, held or run, as far as can be seen from outside."""
        return (
            not self.outcomes.open
            and all(client.running and not client.busy for client in self.clients.values())
            and not any(sum(client.counts().values()) for client in self.clients.values())
            and all(worker.settled for worker in self.workers.values())
            and not any(model.living or model.running or model.bodies for model in self.models.values() if model.alive)
            and not any(key.startswith("lease.") for key in self.ledger_keys())
            and all(beat is not None and not beat.running + beat.reserved for beat in self.heartbeats().values())
        )

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.outcomes.look()
            for worker in self.workers.values():
                worker.look()

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _stop_everything(self) -> None:
        """The run is over: no process says another word."""
        self.checker.closed = True
        for process in (*self.workers.values(), *self.clients.values()):
            process.kill()

    def _on_fault(self, kind: str, subject: str) -> None:
        self.trace.note("fault", f"{kind}: {subject}")

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        facts = ", ".join(f"{key}={value!r}" for key, value in context.items() if key != "message")
        self.checker.fail("error", f"unhandled: {context['message']}: {facts}")


def _trusts(holder: Lease | Selection) -> bool:
    if isinstance(holder, Lease):
        return holder.lost is None
    return holder.state is State.OPEN and holder.hold.trouble() is None


class _LogWatch(logging.Handler):
    """An error in the log is an error of the run: handlers that fail are logged, not raised."""

    def __init__(self, checker: Checker) -> None:
        super().__init__(logging.ERROR)
        self._checker = checker

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._checker.fail("error", f"logged: {record.getMessage()}{f': {error!r}' if error else ''}")
