"""Initial worlds for stories of the queue's core."""

from __future__ import annotations

from typing import Any

from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.schemas.permissions.quotas import parse_quotas
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


def world_running(job: str = "a", **fields: Any) -> World:
    """One with a single slot, which this task has."""
    world = world_of(1)
    world.arrive(job, **fields)
    return world


def world_with(*quotas: str, slots: int = 0, route: RouteRecord | None = None, **pool) -> World:
    """One for tenants with these quotas."""
    settings = DispatcherSettings(node="n", quotas=parse_quotas(quotas))
    world = World(route=route or RouteRecord(), explicit=True, settings=settings)
    world.pool(**pool)
    world.open()
    if slots:
        world.credit(slots)
    return world


def started(world: World) -> list[str]:
    return [job for job, _ in world.started]
