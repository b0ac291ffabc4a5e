"""Variants of a plan: faults aimed at steps of something in progress, processes whose clocks differ, and limits."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

from ....schemas.records.gangs import Bundle, RestartPolicy, Strategy
from ...loop import NodeClock
from .gang_plan import GangKind, GangStep, GangTraffic
from .plan import OF_OWNERS, Accident, Aim, Moment, Plan, StepKind


def draw_aims(plan: Plan) -> tuple[Aim, ...]:
    """Faults at a step of something in progress, rather than at a time; the same on every machine.

    An owner is killed while its gang is queued, granted, committed, announced to its members, or formed; the server is
    restarted at such a moment, or when a standing gang has been granted, or while a stream yields its items. An owner
    is cut off while a member of its gang is replaced, so that its tasks reach members that are a generation ahead.
    """
    rng = random.Random(f"gangline aims {plan.seed}")
    moments = AIMED_AT if plan.gangs is not None else (Moment.STREAM,)
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
    return (*found, *_late_runs(plan))


AIMED_AT: Final = tuple(moment for moment in Moment if moment not in (Moment.TO_RUN, Moment.SCHEDULED))


def _late_runs(plan: Plan) -> tuple[Aim, ...]:
    rng = random.Random(f"gangline late runs {plan.seed}")
    if _largest_pool(plan)[1] < 2 or rng.random() < 0.5:
        return ()
    moment, nth = Moment.TO_RUN, rng.choice((1, 1, 2))
    crash_s, back_s = rng.uniform(0.0, 0.02), rng.uniform(0.01, 0.1)
    return (
        Aim(moment=moment, nth=nth, accident=Accident.PARTITION, after_s=0.0, for_s=rng.uniform(0.6, 2.0)),
        Aim(moment=moment, nth=nth, accident=Accident.WORKER_CRASH, after_s=crash_s, for_s=back_s),
    )


def _largest_pool(plan: Plan) -> tuple[str, int]:
    """The pool with the most workers, and their number; 0 without gangs."""
    if plan.gangs is None:
        return "", 0
    [most] = Counter(worker.pool for worker in plan.workers).most_common(1)
    return most


def _aimed_at(plan: Plan) -> GangTraffic | None:
    """The gangs of the plan, with one more if there are late runs."""
    gangs = plan.gangs
    if gangs is None or not _late_runs(plan):
        return gangs
    rng = random.Random(f"gangline late gang {plan.seed}")
    step = GangStep(
        number=len(gangs.steps),
        at_s=rng.uniform(0, 1),
        client=rng.choice(plan.clients),
        kind=GangKind.RUN,
        bundles=(Bundle(pool=_largest_pool(plan)[0], slots=1, count=2),),
        strategy=Strategy.SPREAD,
        priority=5,
        preempt=True,
        restart=RestartPolicy.RESTART_MEMBER,
        ttl_s=4.0,
        deadline_s=6.0,
        runs=2,
        meets=True,
        duration_s=rng.choice((0.002, 0.05)),
        timeout_s=6.0,
        retries=3,
        hold_s=rng.uniform(0.001, 0.1),
    )
    return replace(gangs, steps=(*gangs.steps, step))


def with_aims(plan: Plan) -> Plan:
    """The same plan, with faults at its moments."""
    return replace(plan, aims=draw_aims(plan), gangs=_aimed_at(plan))


def with_limits(plan: Plan) -> Plan:
    """The same plan, with tasks that declare `max_running` and some of them a rate, and more calls of them."""
    rng = random.Random(f"gangline limits {plan.seed}")
    limits = {"work": rng.choice((1, 1, 2, 3)), "again": rng.choice((1, 2, 4))}
    steps = tuple(
        replace(step, kind=StepKind.CALL, method=rng.choice(tuple(limits)))
        if step.kind is not StepKind.CALL and rng.random() < 0.6
        else step
        for step in plan.steps
    )
    rng = random.Random(f"gangline rates {plan.seed}")
    rates = {method: rng.choice((0.2, 1.0, 4.0, 25.0)) for method in limits if rng.random() < 0.4}
    return replace(plan, steps=steps, limits=tuple(limits.items()), rates=tuple(rates.items()))


SLOWEST, FASTEST = 0.9, 1.1
"""Limits of rates. Two rates differ by less than a fifth of the faster one: see schemas.deadline.CLOCKS_DIFFER."""
_STEERED = 0.0005
"""Maximum error of the rate of a clock that NTP controls."""
_DAYS_S = 30 * 86_400.0
_STEP_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The clocks of one machine. They do not change when a process there is restarted.

    The monotonic clock has an offset and a rate; the wall clock follows that, has an error, and is sometimes set. Code
    that compares its time with that of another process fails at once, because the clocks are days apart.
    """

    monotonic: NodeClock
    steps: tuple[tuple[float, float], ...] = ()
    """When its wall clock is set (seconds since the beginning of the run), and by how much."""

    def wrong_s(self, now: float) -> float:
        """How far its wall clock is ahead after this many seconds of the run, beyond its initial error."""
        return (self.monotonic.rate - 1) * now + sum(by_s for at_s, by_s in self.steps if at_s <= now)


def draw_machine(seed: int, name: str, *, exact: bool) -> Machine:
    """The machine of the process of that name; always the same.

    Args:
        exact: its clocks are synchronized, because deadlines and start times of submitted tasks are Unix times, and
            rates are counted in real seconds.
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
