"""No task waits for long while a worker has room for it and starts nothing.

Tasks that take fewer slots than the head of their queue wait with it for an age step, and leases are released after
fractions of a second; a task that waits for longer than both has no reason to. Judged while nothing is going wrong
and nobody else has slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..calls.ledger import QUIET_S
from ..history.checker import Checker
from ..plan.durable_plan import DurableTraffic
from ..tasks.tasks import COSTS
from .records import JobModel

LEASED_S = 4.0
"""Leases that others leave idle, a queue that changes hands, another dispatcher that starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A worker process that serves."""

    node: str
    pool: str
    slots: int
    """Slots on which nothing runs."""


class Idle:
    """Looks now and then.

    Args:
        models: by request.
        quiet_for: seconds since anything has gone wrong.
        rooms: of all workers; None: others than durable tasks use them.
    """

    def __init__(
        self,
        checker: Checker,
        clock: Callable[[], float],
        traffic: DurableTraffic,
        models: Mapping[str, JobModel],
        *,
        quiet_for: Callable[[], float],
        rooms: Callable[[], list[Room] | None],
    ) -> None:
        self._checker = checker
        self._clock = clock
        self._traffic = traffic
        self._models = models
        self._quiet_for = quiet_for
        self._rooms = rooms
        self._since: dict[tuple[str, int], float] = {}
        """Since when a worker process has had that many free slots and has started nothing."""
        self._bound_s = traffic.age_step_s + LEASED_S
        self.looked = 0
        """Waiting tasks that were judged."""

    def started(self, node: str) -> None:
        """A task begins there."""
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

    def _could_start(self, model: JobModel) -> bool:
        """Only room decides whether it starts."""
        step, traffic = model.step, self._traffic
        if step.bad is not None or step.key is not None or step.delay_s or model.doomed or model.record is not None:
            return False
        return (
            step.keeps_result and step.series is None and traffic.one_pool(step.endpoint) and self._free(step.endpoint)
        )

    def _free(self, endpoint: str) -> bool:
        """No route ever limits it."""
        routes = [step.route for step in self._traffic.routes if step.endpoint == endpoint]
        rules = [route.queue for route in routes]
        unlimited = all(each.rate_per_s is None and each.max_running is None and not each.paused for each in rules)
        return unlimited and not any(route.limits for route in routes)

    def _pool_of(self, model: JobModel) -> str:
        """The only pool of its endpoint."""
        endpoint = model.step.endpoint
        routes = [step.route for step in self._traffic.routes if step.endpoint == endpoint]
        return next(iter(routes[0].pools(endpoint))) if routes else endpoint
