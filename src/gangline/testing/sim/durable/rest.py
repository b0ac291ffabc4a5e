"""Laws L10 and L12 at rest: no durable task is left anywhere, and each queue has one dispatcher that holds nothing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..world import World


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
    """Nothing is asked any more."""
    if not world.dispatchers:
        return
    world.jobs.ends.check_rest()
    for each in world.dispatchers.values():
        if not each.running:
            world.checker.fail("hang", f"{each.node} does not run, though everything is healed: {each.dispatcher!r}")
    for text in _held(world):
        world.checker.fail("L12", f"at rest {text}")
    for name, count in _had(world).items():
        if count > 1:
            world.checker.fail("L10", f"at rest {count} dispatchers have the queue {name}")


def _had(world: World) -> Counter[str]:
    """How many dispatchers have each queue, as far as they know."""
    return Counter(name for each in world.dispatchers.values() for name in each.queues)


def _held(world: World) -> list[str]:
    """What dispatchers still have in hand."""
    found: list[str] = []
    for each in world.dispatchers.values():
        for name, queue in each.queues.items():
            counts = queue.statistics()
            if queue.entries or counts.running or counts.leased or counts.waiting:
                found.append(f"{each.node} holds {len(queue.entries)} tasks of {name}: {counts}")
    return found
