"""Faults that are aimed: not at a time, but at a step of something in progress.

An owner is killed while its gang is queued, granted, committed, announced to its members, or formed; the server is
restarted at such a moment, or when a standing gang has been granted, or while a stream yields its items.
"""

from __future__ import annotations

import random
from dataclasses import replace

from .plan import OF_OWNERS, Accident, Aim, Moment, Plan


def draw_aims(plan: Plan) -> tuple[Aim, ...]:
    """Those of the seed; the same on every machine."""
    rng = random.Random(f"gangline aims {plan.seed}")
    moments = tuple(Moment) if plan.gangs is not None else (Moment.STREAM,)
    found: list[Aim] = []
    for _ in range(rng.choice((1, 2, 3))):
        moment = rng.choice(moments)
        kill = moment in OF_OWNERS and rng.random() < 0.6
        found.append(
            Aim(
                moment=moment,
                nth=rng.choice((1, 1, 2, 3, 5)),
                accident=Accident.CLIENT_CRASH if kill else Accident.SERVER_RESTART,
                after_s=rng.choice((0.0, 0.0003, 0.001, 0.01, 0.2)) * rng.uniform(0.5, 1.5),
                for_s=rng.choice((0.02, 0.3, 1.0, 2.5)) * rng.uniform(0.5, 1.5),
            )
        )
    return tuple(found)


def with_aims(plan: Plan) -> Plan:
    """The same plan, with faults at its moments."""
    return replace(plan, aims=draw_aims(plan))
