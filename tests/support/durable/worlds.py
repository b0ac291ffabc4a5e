"""Initial worlds for stories of the queue's core."""

from __future__ import annotations

from gangline.schemas.records.routes import QueueRules, RouteRecord

from .world import World


def world_of(
    *free: int, weights: dict[str, float] | None = None, limits: dict[str, int] | None = None, **rules
) -> World:
    route = RouteRecord(to=weights or {}, limits=limits or {}, queue=QueueRules(**rules))
    world = World(route=route, explicit=True)
    world.pool()
    world.open()
    world.credit(*free)
    return world


def started(world: World) -> list[str]:
    return [job for job, _ in world.started]
