"""Law L12: at rest the gauges, the limiters and the ledger agree, and all are zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .world import World


async def check_rest(world: World) -> None:
    """Nothing is asked any more: nothing may be held."""
    fail = world.checker.fail
    if world.outcomes.open:
        fail("hang", f"{world.outcomes.open} requests never ended")
    for client in world.clients.values():
        if client.busy:
            fail("hang", f"{client.node} still has {client.busy} steps that never ended")
    for model in world.models.values():
        if model.alive and (model.living or model.running or model.bodies):
            fail(
                "L12",
                f"{model.node}: at rest {len(model.living)} leases live, {model.running} slots run, "
                f"{len(model.bodies)} bodies run",
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
    _check_heartbeats(world)
    for client in world.clients.values():
        if not client.running:
            fail("hang", f"{client.node} does not run, though everything is healed")
        if any(client.counts().values()):
            fail("L12", f"{client.node}: at rest it counts {client.counts()}")


def _check_heartbeats(world: World) -> None:
    for name, beat in world.heartbeats().items():
        if beat is None:
            world.checker.fail("L12", f"{name}: at rest it has no heartbeat in the ledger")
        elif beat.running or beat.reserved:
            world.checker.fail("L12", f"{name}: at rest its heartbeat says {beat.running}+{beat.reserved} slots")
