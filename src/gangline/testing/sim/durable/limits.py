"""When durable tasks may start, and when they must: limits of keys and routes, turns, and idle workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ....bus.memory.server import MemoryServer
from ....bus.port.bus import StreamMessage
from ....dispatcher.jobs.stored import job_of
from ....schemas.names import Names
from ....worker.context.task_context import TaskContext
from ..calls.ledger import QUIET_S
from ..calls.shared_limits import WAITS_S, Waiter
from ..history.checker import Checker
from ..history.troubles import Troubles
from ..plan.durable_plan import DurableTraffic
from ..tasks.tasks import COSTS
from .records import JobModel, TaskBody

BUNCHED_S = 2.6
"""How much shorter than planned the interval between two starts may be because of late messages, at worst ..."""
BUNCHED_CALM_S = 0.01
"""... and without faults."""


class Limits:
    """How many tasks of a key or route run at once, in which order, and how fast they start. Checked at each start."""

    def __init__(
        self,
        checker: Checker,
        hub: MemoryServer,
        names: Names,
        traffic: DurableTraffic,
        troubles: Troubles,
        models: Mapping[str, JobModel],
        *,
        ended: Callable[[str], bool],
        explained: Callable[[TaskBody], bool],
    ) -> None:
        """
        Args:
            ended: whether the record of the job's end is stored.
            explained: whether a fault may have made that body look dead.
        """
        self._checker = checker
        self._clock = checker.clock
        self._hub = hub
        self._names = names
        self._traffic = traffic
        self._troubles = troubles
        self._models = models
        self._ended = ended
        self._explained = explained
        self._starts: dict[str, list[float]] = {}
        """By endpoint."""

    def starts(self, model: JobModel, node: str, context: TaskContext) -> None:
        """An attempt starts on that worker process, and is not among the running ones yet."""
        step = model.step
        if context.endpoint != step.endpoint or context.key != step.key:
            text = f"{model} runs with endpoint {context.endpoint} and key {context.key}"
            self._checker.fail("L10", text)
        self._check_room(model)
        self._check_declared(model, node)
        ordered = step.key is not None and (step.ordered or self._traffic.most(step.endpoint, "ordered"))
        if ordered and not self._troubles.lossy:
            self._check_order(model)
        self._check_rate(step.endpoint)

    def _others(self, model: JobModel, *, key: bool) -> list[JobModel]:
        """Other running tasks of its endpoint (and key) that no fault can have made look dead."""
        step = model.step
        return [
            other
            for other in self._models.values()
            if other is not model
            and other.step.endpoint == step.endpoint
            and (not key or other.step.key == step.key)
            and any(not self._explained(body) for body in other.running)
        ]

    def _check_room(self, model: JobModel) -> None:
        step = model.step
        per_key = self._traffic.most(step.endpoint, "per_key")
        if per_key is not None and step.key is not None:
            others = self._others(model, key=True)
            if len(others) >= per_key:
                text = f"{model} starts while {_names(others)} of its key run: the limit is {per_key}"
                self._checker.fail("per-key", text)
        max_running = self._traffic.most(step.endpoint, "max_running")
        if max_running is not None:
            others = self._others(model, key=False)
            if len(others) >= max_running:
                text = f"{model} starts while {_names(others)} of its endpoint run: the limit is {max_running}"
                self._checker.fail("max-running", text)

    def _check_declared(self, model: JobModel, node: str) -> None:
        """Check the limits that its task declares: on its worker, whatever happens; and over all workers."""
        step, policy = model.step, self._traffic.policy(model.step.method)
        here = [
            other
            for other in self._models.values()
            if other.step.method == step.method and any(body.node == node for body in other.running)
        ]
        everywhere = self._others(model, key=False) if self._traffic.one_pool(step.endpoint) else []
        for others in (here, [other for other in everywhere if other.step.method == step.method]):
            if policy.max_running is not None and len(others) >= policy.max_running:
                text = (
                    f"{model} starts on {node} while {_names(others)} run: {step.method} declares {policy.max_running}"
                )
                self._checker.fail("declared", text)
            same = [other for other in others if other.step.key == step.key]
            if policy.per_key is not None and step.key is not None and len(same) >= policy.per_key:
                text = f"{model} starts on {node} while {_names(same)} of its key run: {step.method} declares one"
                self._checker.fail("declared", text)

    def _check_order(self, model: JobModel) -> None:
        """Check that all tasks of its key that were published before it have ended."""
        by_job = {each.job: each for each in self._models.values()}
        messages = self.messages(model.step.endpoint)
        if not any(_job(message) == model.job for message in messages):
            return  # cancelled in the stream meanwhile
        for message in messages:
            job = _job(message)
            if job == model.job:
                return
            other = by_job.get(job)
            if other is None or other is model or other.step.key != model.step.key or other.step.bad is not None:
                continue
            if not (other.step.ordered or self._traffic.most(model.step.endpoint, "ordered")):
                continue
            if "Gangline-Delay" in (message.headers or {}):
                continue  # it gets its place when its delay is over
            ended = self._ended(job) if other.step.keeps_result else not other.running
            if not ended:
                self._checker.fail("order", f"{model} starts before {other}, published before it, has ended")

    def messages(self, endpoint: str) -> list[StreamMessage]:
        """The stream's messages for an endpoint, in order."""
        prefix = f"{self._names.namespace}.task.{endpoint}."
        return [each for each in self._hub.messages(self._names.tasks_stream) if each.subject.startswith(prefix)]

    def _check_rate(self, endpoint: str) -> None:
        rate, burst = self._traffic.most(endpoint, "rate_per_s"), self._traffic.most(endpoint, "burst")
        times = self._starts.setdefault(endpoint, [])
        times.append(self._clock())
        if rate is None or burst is None:
            return
        bunched_s = BUNCHED_CALM_S if self._troubles.calm else BUNCHED_S
        for number, time in enumerate(times):
            count, span_s = len(times) - number, times[-1] - time
            if count > burst + rate * (span_s + bunched_s) + 0.001:
                self._checker.fail("rate", f"{endpoint} started {count} tasks in {span_s:.3f} s: the rate is {rate}/s")
                return


def _job(message: StreamMessage) -> str:
    return job_of(message, "sim.task.")


def _names(models: list[JobModel]) -> str:
    return ", ".join(str(each) for each in models)


SEEN_S = 0.5
"""After this time a published task has arrived at the dispatcher and was looked up if necessary."""
TOGETHER_S = 0.75
"""Tasks sent together start within this time: one that a worker rejects, because it drains or is resized, is sent again
up to half a second later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overtaking:
    """One task started before another one that should have started first."""

    at_s: float
    overtaken: JobModel
    text: str


class Turns:
    """Law `turn`: of the tasks of one pool that may start, the one with the lowest place starts first (see
    durable/policies/start_order.py). Checked at each start.

    A task's place is its publication time minus the age step for each step of its priority: this is what priorities
    promise, and it bounds starvation. Checked while there are no faults: a task that was overtaken must start soon
    after the other one, since both may have been sent together.

    Law `tenant`: places only order the tasks of one tenant. While a tenant has a task that could start, those of others
    start before it only in their turns.

    Args:
        messages: the stream's messages for an endpoint, in order.
        models: all tasks, by request.
        quiet_for: seconds since the last fault.
        wall: the server's clock.
    """

    def __init__(
        self,
        checker: Checker,
        traffic: DurableTraffic,
        *,
        messages: Callable[[str], list[StreamMessage]],
        models: Mapping[str, JobModel],
        quiet_for: Callable[[], float],
        troubles: Troubles,
        wall: Callable[[], float],
    ) -> None:
        self._checker = checker
        self._clock = checker.clock
        self._traffic = traffic
        self._messages = messages
        self._models = models
        self._quiet_for = quiet_for
        self._troubles = troubles
        self._wall = wall
        self._open: list[_Overtaking] = []
        self._passed: dict[tuple[str, str], int] = {}
        """By endpoint and tenant: how many tasks of others have started while one of its tasks could."""
        self.compared = 0
        """Number of pairs of tasks in which the right one started first."""
        self.passed = 0
        """Number of starts while another tenant had a task that could start."""

    def starts(self, model: JobModel, body: TaskBody) -> None:
        """An attempt starts."""
        if self._troubles.lossy or self._quiet_for() < QUIET_S or not self._traffic.one_pool(model.step.endpoint):
            self._passed.clear()
            return
        messages = self._messages(model.step.endpoint)
        mine = next((message for message in messages if _job(message) == model.job), None)
        if mine is None:
            return
        place, passed = self._place(mine), set[str]()
        for message, other in self._waiting(messages, model, body.cost):
            if other.step.tenant != model.step.tenant:
                passed.add(other.step.tenant)
            elif self._place(message) < place:
                text = (
                    f"{model} (priority {model.step.priority}, published at {mine.at:.3f}) starts before {other} "
                    f"(priority {other.step.priority}, published at {message.at:.3f}): an age step is "
                    f"{self._traffic.age_step_s:g} s"
                )
                self._open.append(_Overtaking(at_s=self._clock(), overtaken=other, text=text))
            else:
                self.compared += 1
        self._pass(model, passed)

    def _pass(self, model: JobModel, tenants: set[str]) -> None:
        """A task starts while these other tenants have tasks that could."""
        endpoint, most = model.step.endpoint, self._traffic.most_passed
        if most is None:
            return
        self._passed = {(endpoint, tenant): self._passed.get((endpoint, tenant), 0) + 1 for tenant in tenants}
        for (_, tenant), count in self._passed.items():
            self.passed += 1
            if count > most:
                text = f"{count} tasks of others, the last {model}, started while one of tenant {tenant!r} could"
                self._checker.fail("tenant", text)

    def look(self) -> None:
        """Report overtaken tasks that should have started by now."""
        due, self._open = self._open, [each for each in self._open if self._clock() - each.at_s <= TOGETHER_S]
        for each in due:
            if each in self._open:
                continue
            if self._quiet_for() >= QUIET_S and not each.overtaken.bodies and not self._is_out(each.overtaken):
                self._checker.fail("turn", each.text)

    def _waiting(
        self, messages: list[StreamMessage], model: JobModel, cost: int
    ) -> Iterator[tuple[StreamMessage, JobModel]]:
        """Other tasks that could have started instead."""
        by_job = {each.job: each for each in self._models.values()}
        for message in messages:
            other = by_job.get(_job(message))
            if other is None or other is model or other.bodies or self._is_out(other):
                continue
            headers = message.headers or {}
            if "Gangline-Delay" in headers or "Gangline-Cron" in headers:
                continue  # it gets its place when its delay is over
            if COSTS[other.step.method] <= cost and self._wall() - message.at >= SEEN_S:
                yield message, other

    def _is_out(self, model: JobModel) -> bool:
        """Whether it need not start, or may have to wait for its key."""
        step = model.step
        return (
            step.bad is not None
            or self._traffic.policy(step.method).limited
            or step.key is not None
            or step.deadline_s is not None
            or model.doomed
            or model.record is not None
        )

    def _place(self, message: StreamMessage) -> tuple[float, int]:
        priority = int((message.headers or {}).get("Gangline-Priority", "0"))
        return (message.at - priority * self._traffic.age_step_s, message.sequence)


LEASED_S = 4.0
"""Allows for idle leases, a change of the queue's owner, and the start of a dispatcher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The free slots of a worker process that serves."""

    node: str
    pool: str
    slots: int
    """Slots without a running task."""


class Idle:
    """Law `idle`: no task waits for long while a worker has room for it and starts nothing. Checked periodically, while
    there are no faults and nobody else has slots.

    Tasks that take fewer slots than the head of their queue wait with it for an age step, and leases are released
    within a second; no task has a reason to wait longer than both.

    Args:
        models: all tasks, by request.
        quiet_for: seconds since the last fault.
        rooms: free slots of all workers; None: not only durable tasks use them.
    """

    def __init__(
        self,
        checker: Checker,
        traffic: DurableTraffic,
        models: Mapping[str, JobModel],
        *,
        quiet_for: Callable[[], float],
        rooms: Callable[[], list[Room] | None],
    ) -> None:
        self._checker = checker
        self._clock = checker.clock
        self._traffic = traffic
        self._models = models
        self._quiet_for = quiet_for
        self._rooms = rooms
        self._since: dict[tuple[str, int], float] = {}
        """Since when a worker process has had that many free slots without starting anything."""
        self._bound_s = traffic.age_step_s + LEASED_S
        self.looked = 0
        """Number of checks of a waiting task."""

    def started(self, node: str) -> None:
        """A task starts there."""
        for key in [key for key in self._since if key[0] == node]:
            del self._since[key]

    def look(self) -> None:
        """Check how long tasks have waited."""
        now, rooms = self._clock(), self._rooms()
        if rooms is None or self._quiet_for() < QUIET_S:
            self._since.clear()
            return
        free = {(room.node, cost) for room in rooms for cost in range(1, room.slots + 1)}
        self._since = {key: self._since.get(key, now) for key in free}
        for model in self._models.values():
            if model.bodies or not self._could_start(model):
                continue
            self.looked += 1
            cost, waits = COSTS[model.step.method], model.stored_at
            for room in rooms:
                if room.pool != self._pool_of(model) or room.slots < cost or waits is None:
                    continue
                idle_s = now - max(self._since[room.node, cost], waits)
                if idle_s > self._bound_s:
                    text = (
                        f"{model} has waited for {now - waits:.3f} s, and {room.node} has had room for {idle_s:.3f} s"
                    )
                    self._checker.fail("idle", text)
                    return

    def waiters(self) -> Iterator[Waiter]:
        """Tasks with `max_running`, of one slot, that only wait for a slot and a unit; none if others use the slots."""
        if self._rooms() is None:
            return
        for model in self._models.values():
            policy, waits = self._traffic.policy(model.step.method), model.stored_at
            limited = policy.max_running is not None and policy.per_key is None and policy.rate_per_s is None
            if model.bodies or waits is None or not limited or not self._waits(model):
                continue
            if COSTS[model.step.method] == 1 and not self._crowded(model):
                yield Waiter(str(model), self._pool_of(model), model.step.method, waits + LEASED_S - WAITS_S)

    def _crowded(self, model: JobModel) -> bool:
        """Whether another task of its pool may have to start before it."""
        return any(
            not other.bodies
            and other.record is None
            and other.step.method != model.step.method
            and other.stored_at is not None
            for other in self._models.values()
        )

    def _could_start(self, model: JobModel) -> bool:
        """Whether it only waits for a free slot."""
        return not self._traffic.policy(model.step.method).limited and self._waits(model)

    def _waits(self, model: JobModel) -> bool:
        """Whether it only waits for a free slot, and for what its method declares."""
        step, traffic = model.step, self._traffic
        if step.bad is not None or step.key is not None or step.delay_s or model.doomed or model.record is not None:
            return False
        return (
            step.keeps_result and step.series is None and traffic.one_pool(step.endpoint) and self._free(step.endpoint)
        )

    def _free(self, endpoint: str) -> bool:
        """Whether no route ever limits the endpoint."""
        routes = [step.route for step in self._traffic.routes if step.endpoint == endpoint]
        rules = [route.queue for route in routes]
        unlimited = all(each.rate_per_s is None and each.max_running is None and not each.paused for each in rules)
        return unlimited and not any(route.limits for route in routes)

    def _pool_of(self, model: JobModel) -> str:
        """The only pool of its endpoint."""
        endpoint = model.step.endpoint
        routes = [step.route for step in self._traffic.routes if step.endpoint == endpoint]
        return next(iter(routes[0].pools(endpoint))) if routes else endpoint
