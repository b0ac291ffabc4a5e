"""Clocks of processes: each machine's monotonic clock begins somewhere and has a rate of its own; its wall clock
follows it, is wrong, and is set now and then.

Code that compares its time with another process's fails here at once: the clocks are days apart.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from ...loop import NodeClock
from .plan import Plan

SLOWEST, FASTEST = 0.9, 1.1
"""Rates. Two of them differ by less than a fifth of the faster one: see schemas.deadline.CLOCKS_DIFFER."""
_STEERED = 0.0005
"""Difference from the right rate: the most that a kernel disciplined by NTP applies."""
_DAYS_S = 30 * 86_400.0
_STEP_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The clocks of one machine; a process that is restarted there finds them as they are."""

    monotonic: NodeClock
    steps: tuple[tuple[float, float], ...] = ()
    """When its wall clock is set, in seconds of the run, and by how much."""

    def wrong_s(self, now: float) -> float:
        """By how much its wall clock is ahead after this many seconds of the run, beyond its initial error."""
        return (self.monotonic.rate - 1) * now + sum(by_s for at_s, by_s in self.steps if at_s <= now)


def draw_machine(seed: int, name: str, *, exact: bool) -> Machine:
    """The machine of the process of that name; the same for ever.

    Args:
        exact: somebody keeps its clocks right. Of a submitted task the deadline and the time to start are Unix times,
            and rates are counted in real seconds.
    """
    rng = random.Random(f"gangline clocks {seed} {name}")
    if exact:
        return Machine(monotonic=NodeClock(rng.uniform(1 - _STEERED, 1 + _STEERED), rng.uniform(0, _DAYS_S)))
    rate = rng.choice((1.0, SLOWEST, FASTEST, rng.uniform(SLOWEST, FASTEST)))
    steps = tuple((rng.uniform(0, 10), rng.uniform(-_STEP_S, _STEP_S)) for _ in range(rng.choice((0, 0, 1, 2))))
    return Machine(monotonic=NodeClock(rate, rng.uniform(0, _DAYS_S)), steps=steps)


def with_clocks(plan: Plan) -> Plan:
    """The same plan, with processes whose clocks differ."""
    return replace(plan, clocks=True)
