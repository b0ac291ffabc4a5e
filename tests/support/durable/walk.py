"""Random histories: by seed, fast and long; or drawn by hypothesis."""

from __future__ import annotations

import random
from collections.abc import Callable

from gangline.schemas.records.workers import TaskPolicy

from .actor import Actor


def walk(seed: int | random.Random, steps: int = 120, tenants: tuple[str, ...] = ("",)) -> Actor:
    """Run one history; raises AssertionError if a law is broken."""
    draw = random.Random(seed) if isinstance(seed, int) else seed
    actor = Actor(window=draw.choice([4096, 4096, 6]), tenants=tenants)
    rich = draw.random() < 0.5
    if rich:
        lease(actor, draw)
    chances = [(act, weight) for act, weight in ACTIONS.items() if draw.random() < 0.8 or weight > 5]
    if len(tenants) > 1:
        chances.append((lambda actor, draw: actor.read_ahead(draw.choice(actor.tenants)), 15))
    for act in draw.choices([act for act, _ in chances], [weight for _, weight in chances], k=steps):
        act(actor, draw)
    actor.heal()
    return actor


def submit(actor: Actor, draw: random.Random) -> None:
    key = draw.choice([None, "a", "a", "b"])
    for _ in range(draw.choice([1, 1, 3])):
        actor.submit(
            key=key,
            ordered=draw.random() < 0.4,
            priority=draw.choice([None, None, 0, 1, 2, -1]),
            deadline_s=draw.choice([None, None, None, 2.0, 10.0]),
            timeout_s=draw.choice([None, None, 1.0]),
            backoff_s=draw.choice([None, 0.0]),
            attempts=draw.choice([0, 0, 0, 5]) if len(actor.tenants) == 1 else 0,
            method=draw.choice(["run", "run", "big"]),
            pool=draw.choice([None, None, None, "f"]),
            again=draw.choice([None, None, None, 0, 1]),
            tenant=draw.choice(actor.tenants) if len(actor.tenants) > 1 else actor.tenants[0],
            draw=draw.randrange(16) / 16,
        )


def lease(actor: Actor, draw: random.Random) -> None:
    for pool in ("e", "f"):
        actor.world.credit(*(draw.randint(1, 4) for _ in range(draw.choice([0, 1, 2, 3]))), pool=pool)


def wait(actor: Actor, draw: random.Random) -> None:
    actor.world.advance(draw.choice([0.0625, 0.25, 1.0, 1.0, 8.0, 40.0]), flush=draw.random() < 0.5)


def end(actor: Actor, draw: random.Random) -> None:
    how = draw.choice(["done", "done", "failed", "failed", "wrong", "lost", "finished anyway"])
    actor.end(draw.randrange(1000), draw.randrange(16) / 16, how)


def register(actor: Actor, draw: random.Random) -> None:
    largest = draw.choice([0, 1, 4, 4])
    limits = TaskPolicy(
        max_running=draw.choice([None, None, 1, 2]),
        per_key=draw.choice([None, None, 1, 2]),
        rate_per_s=draw.choice([None, None, 2.0, 20.0]),
        priority=draw.choice([None, None, 1, -1]),
    )
    actor.world.pool(
        draw.choice("ef"),
        workers=int(largest > 0),
        largest=largest,
        big=draw.choice([1, 2, 3]),
        policies=draw.choice([{}, {"run": limits}, {"big": limits, "run": limits}]),
    )


def route(actor: Actor, draw: random.Random) -> None:
    rules = {
        "max_running": draw.choice([None, None, 1, 3]),
        "per_key": draw.choice([None, 1, 2]),
        "ordered": draw.random() < 0.3,
        "rate_per_s": draw.choice([None, None, 2.0, 4.0]),
        "burst": draw.choice([1, 3]),
        "paused": draw.random() < 0.1,
    }
    weights = draw.choice([{}, {"e": 1}, {"e": 1, "f": 1}, {"e": 3, "f": 1}, {"f": 1}])
    actor.route(weights, draw.choice([{}, {}, {"e": 1}, {"f": 2}]), rules)


Act = Callable[[Actor, random.Random], None]

ACTIONS: dict[Act, float] = {
    submit: 20,
    lease: 10,
    wait: 10,
    end: 20,
    lambda actor, draw: actor.world.flush(): 12,
    lambda actor, draw: actor.deliver_message(): 15,
    lambda actor, draw: actor.deliver_one(draw.randrange(1000)): 20,
    lambda actor, draw: actor.recover(): 8,
    lambda actor, draw: actor.cancel(draw.randrange(1000)): 3,
    lambda actor, draw: actor.refuse(draw.randrange(1000)): 3,
    lambda actor, draw: actor.kill(draw.randrange(1000)): 3,
    lambda actor, draw: actor.submit_delayed(draw.choice([0.0, 30.0])): 1,
    lambda actor, draw: actor.publish_nonsense(): 1,
    lambda actor, draw: actor.deliver_again(draw.randrange(1000)): 2,
    lambda actor, draw: actor.take_over(draw, draw.random() < 0.5): 2,
    lambda actor, draw: actor.doubt(draw.random() < 0.3): 4,
    register: 2,
    route: 3,
}
