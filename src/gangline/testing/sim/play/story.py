"""Plays a plan: from the start of its processes to rest, or to the first violation."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
from collections.abc import Callable
from contextlib import suppress

from ...loop import VirtualLoop
from ..history.checker import Checker
from ..plan.plan import Plan
from ..tasks.tasks import JOBS, OBSERVER, JobBroke, TaskBroke
from .accidents import Accidents
from .rest import (
    board_agrees,
    check_durable,
    check_listed,
    check_rest,
    check_sets,
    durable_at_rest,
    gangs_at_rest,
    sets_stand,
)
from .world import World

LOOK_S = 0.1
"""Interval of checks for things that should have happened by now."""
SETTLE_S = 90.0
"""Maximum time from the end of the traffic to rest: five uses of a lease of six seconds each, leases, drains; attempts
of some forty tasks, of up to 1.4 s each, on a single slot."""
SETTLE_LOOK_S = 0.25


class Story:
    """One run of one plan.

    Args:
        plan: what to play.
        loop: the loop for the run; nothing else may run on it.
        echo: called with each line of the trace as it happens.
    """

    def __init__(self, plan: Plan, loop: VirtualLoop, echo: Callable[[str], None] | None = None) -> None:
        self.world = World(plan, loop, echo)
        self.accidents = Accidents(self.world)

    async def play(self) -> None:
        """Play from the start of the processes to rest, or to the first violation."""
        world = self.world
        OBSERVER.set(world)
        JOBS.set(world)
        world.context = contextvars.copy_context()
        watcher = _LogWatch(world.checker)
        logger = logging.getLogger("gangline")
        logger.addHandler(watcher)
        world.loop.set_exception_handler(self._unhandled)
        story = world.loop.create_task(self._story(), name="story")
        looker = world.loop.create_task(self._look(), name="looker")
        try:
            await asyncio.wait((story, world.over), return_when=asyncio.FIRST_COMPLETED)
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
        world, plan = self.world, self.world.plan
        await self._watch()
        for worker in world.workers.values():
            worker.start()
        for coordinator in world.coordinators.values():
            coordinator.start()
        for dispatcher in world.dispatchers.values():
            dispatcher.start()
        for client in world.clients.values():
            client.start()
        if plan.durable is not None:
            for route in plan.durable.routes:
                world.loop.call_later(0.5 + route.at_s, world.routes.write, route)
        await asyncio.sleep(0.5)
        world.trace.note("sim", f"traffic begins: {plan.summary()}")
        self.accidents.schedule(plan)
        begin = world.loop.time()
        for step in plan.steps:
            world.loop.call_at(begin + step.at_s, world.clients[step.client].begin, step)
        if plan.gangs is not None:
            for gang_step in plan.gangs.steps:
                world.loop.call_at(begin + gang_step.at_s, world.clients[gang_step.client].begin, gang_step)
            for declared in plan.gangs.sets:
                world.loop.call_at(begin + declared.at_s, world.operator.declare, declared)
        if plan.durable is not None:
            for job_step in plan.durable.steps:
                world.loop.call_at(begin + job_step.at_s, world.clients[job_step.client].begin, job_step)
        await asyncio.sleep(plan.traffic_s)
        world.trace.note("sim", "traffic ends, everything heals")
        world.quiet = True
        self.accidents.heal()
        if world.operator.sets:
            world.operator.again()
            await self._until(lambda: sets_stand(world))
            check_sets(world)
            world.operator.delete_all()
        await self._until(self.at_rest)
        world.trace.note("sim", "rest")
        await check_rest(world)
        check_durable(world)
        await check_listed(world)

    async def _watch(self) -> None:
        """Subscribe to all public subjects without ever answering, if the plan says so."""
        world = self.world
        if world.plan.watched:
            await world.hub.connect("watcher").subscribe(f"{world.names.namespace}.>", lambda message: None)

    async def _until(self, reached: Callable[[], bool]) -> None:
        for _ in range(round(SETTLE_S / SETTLE_LOOK_S)):
            if reached():
                break
            await asyncio.sleep(SETTLE_LOOK_S)

    def at_rest(self) -> bool:
        """Whether nothing is requested, held or running, as seen from outside."""
        world = self.world
        return (
            not world.outcomes.open
            and all(client.running and not client.busy for client in world.clients.values())
            and not any(sum(client.counts().values()) for client in world.clients.values())
            and all(worker.settled for worker in world.workers.values())
            and not world.lingering
            and world.views_agree()
            and not any(model.busy for model in world.models.values() if model.alive)
            and gangs_at_rest(world)
            and durable_at_rest(world)
            and not any(key.startswith("lease.") for key in world.ledger_keys())
            and all(beat is not None and not beat.running + beat.reserved for beat in world.heartbeats().values())
            and board_agrees(world)
        )

    async def _look(self) -> None:
        world = self.world
        while True:
            await asyncio.sleep(LOOK_S)
            world.outcomes.look()
            world.gangs.look()
            world.hear()
            world.board.look()
            world.jobs.look()
            world.limits.look()
            world.losses.look((*world.clients.values(), *world.dispatchers.values()))
            for worker in (*world.workers.values(), *world.displaced):
                worker.look()
            for coordinator in world.coordinators.values():
                coordinator.look()
            for dispatcher in world.dispatchers.values():
                dispatcher.look()

    def _stop_everything(self) -> None:
        """The run is over: stop all processes."""
        world = self.world
        gc.collect()  # an exception that nobody looked at is reported when its task is collected
        world.checker.closed = True
        processes = (world.workers, world.clients, world.coordinators, world.dispatchers)
        for process in (*world.displaced, *(each for group in processes for each in group.values())):
            process.kill()

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        facts = ", ".join(f"{key}={value!r}" for key, value in context.items() if key != "message")
        self.world.checker.fail("error", f"unhandled: {context['message']}: {facts}")


class _LogWatch(logging.Handler):
    """Reports each error in the log as a violation: handlers that fail are logged, not raised."""

    def __init__(self, checker: Checker) -> None:
        super().__init__(logging.ERROR)
        self._checker = checker

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, TaskBroke | JobBroke) or getattr(record, "action", "") == "worker.id_taken":
            return  # planned
        self._checker.fail("error", f"logged: {record.getMessage()}{f': {error!r}' if error else ''}")
