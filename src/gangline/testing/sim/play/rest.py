"""Laws L10 and L12 at rest: gauges, limiters and the ledger agree and are zero; no durable task is left, and each queue
has one dispatcher, which holds nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ....schemas.records.gangs import GangSetRecord
from ....worker.service import WorkerStatistics
from ..actors.durable_steps import list_jobs
from ..plan.durable_plan import JobKind
from .world import World


async def check_rest(world: World) -> None:
    """Check, when there are no more requests, that nothing is held."""
    fail = world.checker.fail
    if world.outcomes.open:
        fail("hang", f"{world.outcomes.open} requests never ended")
    for client in world.clients.values():
        if client.busy:
            fail("hang", f"{client.node} still has {client.busy} steps that never ended")
    for model in world.models.values():
        if model.alive and model.busy:
            fail(
                "L12",
                f"{model.node}: at rest {len(model.living)} leases live, {len(model.holds)} holds stand, "
                f"{model.running} slots run, {len(model.bodies)} bodies run",
            )
    for key in world.ledger_keys():
        if key.startswith("lease."):
            fail("L12", f"at rest the ledger still has {key}")
    for worker in world.workers.values():
        if not worker.settled or worker.worker is None:
            fail("hang", f"{worker.node} does not serve, though everything is healed: {worker.worker!r}")
            continue
        load = worker.worker.statistics().load
        if load.running or load.reserved:
            fail("L12", f"{worker.node}: at rest the limiter counts {load.running} running, {load.reserved} reserved")
    _check_twins(world)
    _check_heartbeats(world)
    _check_board(world)
    _check_coordinators(world)
    world.gangs.check_rest(world.operator.sets)
    for client in world.clients.values():
        if not client.running:
            fail("hang", f"{client.node} does not run, though everything is healed")
        if any(client.counts().values()):
            fail("L12", f"{client.node}: at rest it counts {client.counts()}")


def _check_twins(world: World) -> None:
    for worker in world.lingering:
        other = world.workers[worker.name].node
        world.checker.fail("hang", f"{worker.node} does not leave, though {other} has its id")
    for client in world.clients.values():
        if strangers := world.strangers(client):
            unknown = ", ".join(strangers)
            world.checker.fail("hang", f"{client.node} does not know the present epoch of {unknown}, and never will")


def _check_heartbeats(world: World) -> None:
    for name, beat in world.heartbeats().items():
        if beat is None:
            world.checker.fail("L12", f"{name}: at rest it has no heartbeat in the ledger")
        elif beat.running or beat.reserved:
            world.checker.fail("L12", f"{name}: at rest its heartbeat says {beat.running}+{beat.reserved} slots")


def board_agrees(world: World) -> bool:
    """Whether the board has heard of the workers' last changes: it hears of a resize with the next heartbeat."""
    return not any(world.board.differs(name, books) for name, books in _books(world))


def _check_board(world: World) -> None:
    """What an observer of the ledger is shown is what the workers have in their books."""
    world.board.look()
    for name, books in _books(world):
        world.board.check_worker(name, books)
    world.board.check_rest()


def _books(world: World) -> Iterator[tuple[str, WorkerStatistics]]:
    for worker in world.workers.values():
        if worker.worker is not None and worker.settled:
            yield f"{worker.plan.pool}.{worker.name}", worker.worker.statistics()


# -- gangs ------------------------------------------------------------------------------------------------------------


def gangs_at_rest(world: World) -> bool:
    """As far as can be seen from outside."""
    leading = [each for each in world.coordinators.values() if each.leads]
    return not world.coordinators or (
        len(leading) == 1 and not leading[0].gangs and not world.gangs.ledger.at_rest(world.operator.sets)
    )


def _check_coordinators(world: World) -> None:
    if not world.coordinators:
        return
    leading = [each.node for each in world.coordinators.values() if each.leads]
    if len(leading) != 1:
        world.checker.fail("hang", f"at rest these coordinators lead: {leading}")
    for each in world.coordinators.values():
        if each.leads and each.gangs:
            world.checker.fail("L12", f"{each.node}: at rest it has {each.gangs} gangs in its books")


def sets_stand(world: World) -> bool:
    """Whether each declared set has its gangs."""
    return all(world.gangs.ledger.standing(name) == gangs for name, gangs in world.operator.wanted.items())


def check_sets(world: World) -> None:
    """Check, when there are no faults and everything else has ended, that the sets have their gangs, if they fit."""
    plan = world.plan.gangs
    assert plan is not None
    needs: dict[str, int] = {}
    for step in world.operator.declared:
        if step.record is not None:
            declared = GangSetRecord.model_validate_json(step.record)
            # No room is needed for surge: without it, a replacement takes the place of the old gang.
            for part in (part for rank in declared.template.ranks for part in rank):
                needs[part.pool] = needs.get(part.pool, 0) + part.slots * step.gangs
    room = {pool: sum(m.slots for m in world.living_models(pool)) for pool in needs}
    if sets_stand(world) or any(needs[pool] > room[pool] for pool in needs):
        return
    found = {name: world.gangs.ledger.standing(name) for name in world.operator.wanted}
    world.checker.fail("hang", f"the sets shall have {world.operator.wanted} gangs and have {found}; {needs} of {room}")


# -- durable tasks ----------------------------------------------------------------------------------------------------


def durable_at_rest(world: World) -> bool:
    """As far as can be seen from outside."""
    return not world.dispatchers or (
        world.jobs.ends.settled
        and not world.jobs.ends.tries()
        and not world.routes.busy
        and all(each.running for each in world.dispatchers.values())
        and not _held(world)
        and max(_had(world).values(), default=1) == 1
    )


def check_durable(world: World) -> None:
    """No more requests."""
    if not world.dispatchers:
        return
    world.jobs.ends.check_rest()
    world.jobs.crons.check_rest()
    for each in world.dispatchers.values():
        if not each.running:
            world.checker.fail("hang", f"{each.node} does not run, though everything is healed: {each.dispatcher!r}")
    for text in _held(world):
        world.checker.fail("L12", f"at rest {text}")
    for name, count in _had(world).items():
        if count > 1:
            world.checker.fail("L10", f"at rest {count} dispatchers have the queue {name}")


async def check_listed(world: World) -> None:
    """A client lists all jobs, where some have done so before."""
    if world.plan.durable is None or all(step.kind is not JobKind.LIST for step in world.plan.durable.steps):
        return
    node, client = next((each.node, each.client) for each in world.clients.values() if each.client is not None)
    world.jobs.check_listed(await world.loop.spawn(node, list_jobs(client), name="the last list"))


def _had(world: World) -> Counter[str]:
    """The number of dispatchers that believe they own each queue."""
    return Counter(name for each in world.dispatchers.values() for name in each.queues)


def _held(world: World) -> list[str]:
    """The pending work of dispatchers."""
    found: list[str] = []
    for each in world.dispatchers.values():
        for name, queue in each.queues.items():
            counts = queue.statistics()
            if queue.entries or counts.running or counts.leased or counts.waiting:
                found.append(f"{each.node} holds {len(queue.entries)} tasks of {name}: {counts}")
    return found
