"""Plans with gangs: the seed's plain plan, plus more workers, coordinators, gangs, and their faults.

The plain plan stays the same; additions are drawn from their own random stream.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace

from ....schemas.records.gangs import Bundle, Part, RestartPolicy, Strategy
from .gang_plan import BadStart, Breaking, GangKind, GangStep, GangTraffic, SetStep, Starts
from .plan import COORDINATOR_FAULTS, POOLS, Accident, Plan, PlanEvent, WorkerPlan, draw_plan

LEADER = "leader"
"""In an event: the coordinator that leads at that moment."""
_NOTICED_LATE_S = (2.2, 2.49)
"""A leader that is cut off for this long is deposed, but its messages still arrive when the link heals."""


def draw_gang_plan(seed: int) -> Plan:
    """The plan of a seed with gangs; the same on every machine."""
    plain = draw_plan(seed)
    rng = random.Random(f"gangline gang plan {seed}")
    share = rng.choice((0.0, 0.3, 1.0))
    plan = replace(
        plain,
        workers=_workers(rng, plain.workers),
        steps=tuple(step for step in plain.steps if rng.random() < share),
    )
    sets = _sets(rng, plan)
    coordinators = tuple(f"k{number}" for number in range(rng.choice((1, 2, 2, 3))))
    steps = _with_ranges(seed, _steps(rng, plan, sorted({each.name for each in sets})))
    events = [*plan.events, *_events(rng, plan, coordinators, steps)]
    return replace(
        plan,
        events=tuple(sorted(events, key=lambda event: event.at_s)),
        gangs=GangTraffic(
            coordinators=coordinators,
            steps=steps,
            sets=sets,
            starve_after_s=rng.choice((0.5, 2.0)),
            failing_starts=rng.choice((0.0, 0.0, 0.1)),
            starts=_starts(seed),
        ),
    )


def _starts(seed: int) -> Starts:
    rng = random.Random(f"gangline starts {seed}")
    return Starts(
        takes_s=rng.choice((0.0, 0.0, 0.3, 2.0)),
        bad=rng.choice((BadStart.NOTHING, BadStart.RAISE, BadStart.RAISE, BadStart.HANG)),
        version=f"version {rng.randint(0, 1)}",
    )


def _workers(rng: random.Random, workers: tuple[WorkerPlan, ...]) -> tuple[WorkerPlan, ...]:
    """Add workers; in some plans, several share a machine."""
    more = [
        WorkerPlan(
            name=f"w{number}",
            pool=rng.choice(POOLS),
            slots=rng.choice((1, 2, 2, 3, 4)),
            clock_skew_s=rng.choice((0.0, 0.4)),
        )
        for number in range(len(workers), max(len(workers), rng.randint(3, 6)))
    ]
    shared = rng.random() < 0.5
    return tuple(
        replace(
            worker,
            node=f"host-{rng.randint(0, 2)}" if shared else "",
            zone=rng.choice(("", "east", "west")),
        )
        for worker in (*workers, *more)
    )


# -- gangs ------------------------------------------------------------------------------------------------------------


def _sets(rng: random.Random, plan: Plan) -> tuple[SetStep, ...]:
    """Standing sets that are declared at the beginning, then scaled, rolled or deleted. Members have one slot and no
    labels, so the number of slots decides whether they fit."""
    found: list[SetStep] = []
    patience = random.Random(f"gangline surge {plan.seed}")
    for number in range(rng.choice((0, 0, 1, 1, 2))):
        pool = rng.choice(sorted({worker.pool for worker in plan.workers}))
        at_s, size = rng.uniform(0, 1), rng.randint(1, 3)
        for change in range(rng.randint(1, 4)):
            gangs = rng.choice((1, 1, 2, 2, 3, 0))
            record = {
                "gangs": gangs,
                "surge": rng.choice((0, 1)),
                "surge_wait_s": patience.choice((0.0, 0.5, 3.0)),
                "route": rng.choice(("rank0", "all")),
                "retire_s": 0.3,
                "min_ready_s": patience.choice((0.0, 0.2, 1.0)),
                "roll_failures": 2,
                "gang": {
                    "pool": pool,
                    "size": size,
                    "strategy": rng.choice(("pack", "spread")),
                    "restart": rng.choice(("restart_gang", "restart_gang", "restart_member", "fail")),
                    "grace_s": 0.5,
                    "backoff_s": 0.1,
                    "start_timeout_s": 3.0,
                    "owner": f"version {rng.randint(0, 1)}",
                },
            }
            deleted = change > 0 and rng.random() < 0.15
            name = f"set{number}"
            found.append(
                SetStep(
                    at_s=at_s,
                    name=name,
                    gangs=0 if deleted else gangs,
                    record=None if deleted else json.dumps(record),
                )
            )
            at_s += rng.uniform(0.5, 4)
    return tuple(sorted((each for each in found if each.at_s < plan.traffic_s), key=lambda each: each.at_s))


PATIENT_S = 30.0
"""The deadline of steps that wait as long as necessary."""
_FLAVOURS = ((8, 4, 3, 3, 1), (4, 2, 1, 1, 0), (1, 1, 6, 3, 2))
"""How often each kind of step except SET_CALL occurs: mixed, mostly work, mostly held."""


def _steps(rng: random.Random, plan: Plan, sets: list[str]) -> tuple[GangStep, ...]:
    busy = rng.choice((3, 6, 12))
    weights = rng.choice(_FLAVOURS)
    impatient = rng.choice((0.0, 0.1, 0.4))
    kinds: list[GangKind] = [kind for kind in GangKind if kind is not GangKind.SET_CALL]
    drawn = rng.choices(kinds, weights=weights, k=busy)
    if sets:
        drawn += [GangKind.SET_CALL] * rng.choice((0, 5, 20))
    bursts = [rng.uniform(0, plan.traffic_s) for _ in range(max(1, busy // 4))]
    steps = [_step(rng, plan, number, kind, impatient, bursts, sets) for number, kind in enumerate(drawn)]
    patience = random.Random(f"gangline patience {plan.seed}")
    patient = patience.choice((0.0, 0.0, 0.3, 0.8))
    steps = [replace(step, deadline_s=PATIENT_S) if patience.random() < patient else step for step in steps]
    return tuple(sorted(steps, key=lambda step: (step.at_s, step.number)))


def _with_ranges(seed: int, steps: tuple[GangStep, ...]) -> tuple[GangStep, ...]:
    """In some plans, give some gangs a range of sizes."""
    rng = random.Random(f"gangline sizes {seed}")
    share = rng.choice((0.0, 0.0, 0.3, 1.0))

    def ranged(bundle: Bundle) -> Bundle:
        least, most = rng.randint(1, bundle.count), bundle.count + rng.randint(0, 4)
        return bundle.model_copy(update={"count": least, "min_count": least, "max_count": most})

    return tuple(
        replace(step, bundles=(ranged(step.bundles[0]),)) if len(step.bundles) == 1 and rng.random() < share else step
        for step in steps
    )


def _step(
    rng: random.Random,
    plan: Plan,
    number: int,
    kind: GangKind,
    impatient: float,
    bursts: list[float],
    sets: list[str],
) -> GangStep:
    return GangStep(
        number=number,
        at_s=rng.choice(bursts) if rng.random() < 0.5 else rng.uniform(0, plan.traffic_s),
        client=rng.choice(plan.clients),
        kind=kind,
        bundles=_bundles(rng, sorted({worker.pool for worker in plan.workers})),
        strategy=rng.choice(tuple(Strategy)),
        priority=rng.choice((0, 0, 0, 1, 5)),
        preempt=rng.random() < 0.3,
        restart=rng.choices(tuple(RestartPolicy), weights=(3, 2, 1))[0],
        max_restarts=rng.choice((0, 1, 3, 3)),
        backoff_s=rng.choice((0.0, 0.05, 0.5)),
        grace_s=rng.choice((0.0, 0.2, 1.0)),
        ttl_s=rng.choice((1.0, 2.0, 4.0)),
        deadline_s=rng.choice((0.3, 2.0, 6.0)),
        runs=rng.randint(1, 4),
        together=rng.random() < 0.5,
        meets=rng.random() < 0.7,
        duration_s=rng.choice((0.0, 0.002, 0.05, 0.3, 1.5)) * rng.uniform(0.5, 1.5),
        breaking=rng.choices(tuple(Breaking), weights=(12, 2, 2, 1, 1))[0],
        timeout_s=rng.choice((0.3, 1.0, 3.0, 6.0)),
        retries=rng.choice((0, 0, 1, 3)),
        partial=rng.random() < 0.2,
        hold_s=rng.choice((0.0, 0.01, 0.5, 2.5)) * rng.uniform(0.5, 1.5),
        cancel_after_s=rng.uniform(0, 1.2) ** 2 if rng.random() < impatient else None,
        target=rng.choice(sets) if kind is GangKind.SET_CALL else "",
    )


def _bundles(rng: random.Random, pools: list[str]) -> tuple[Bundle, ...]:
    """Mostly a few members of one slot each; sometimes two shapes, larger members, or slots held beside them."""
    found: list[Bundle] = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        labels = {"zone": rng.choice(("east", "west"))} if rng.random() < 0.1 else {}
        extras = (Part(pool=rng.choice(pools), slots=1),) if rng.random() < 0.2 else ()
        found.append(
            Bundle(
                pool=rng.choice(pools),
                slots=rng.choice((1, 1, 1, 2)),
                count=rng.choice((1, 2, 2, 3, 4)),
                labels=labels,
                extras=extras,
            )
        )
    return tuple(found)


# -- faults -----------------------------------------------------------------------------------------------------------


def _events(
    rng: random.Random, plan: Plan, coordinators: tuple[str, ...], steps: tuple[GangStep, ...]
) -> list[PlanEvent]:
    """Faults of coordinators, and of workers while a gang is being granted."""
    if plan.calm:
        return []
    events: list[PlanEvent] = []
    for kind in (*COORDINATOR_FAULTS, Accident.WORKER_CRASH, Accident.WORKER_FREEZE, Accident.PARTITION):
        if rng.random() < 0.6:
            continue
        for _ in range(rng.randint(1, 2)):
            draw = rng.random()
            if draw < 0.4:
                at_s = rng.choice(steps).at_s + rng.uniform(0, 0.006)  # in the middle of a grant
            elif draw < 0.7:
                at_s = rng.choice(steps).at_s + rng.uniform(0, 1)
            else:
                at_s = rng.uniform(0, plan.traffic_s)
            events.append(_event(rng, kind, plan, coordinators, min(at_s, plan.traffic_s)))
    return events


def _event(rng: random.Random, kind: Accident, plan: Plan, coordinators: tuple[str, ...], at_s: float) -> PlanEvent:
    leader = LEADER if rng.random() < 0.8 else rng.choice(coordinators)
    worker = rng.choice(plan.workers).name
    match kind:
        case Accident.COORDINATOR_CRASH:
            return PlanEvent(at_s=at_s, accident=kind, target=leader, for_s=rng.choice((0.05, 1.0, 4.0)))
        case Accident.COORDINATOR_FREEZE:
            return PlanEvent(at_s=at_s, accident=kind, target=leader, for_s=rng.choice((0.3, 1.6, 2.3, 3.0, 5.0)))
        case Accident.LEADER_PARTITION:
            for_s = rng.uniform(*_NOTICED_LATE_S) if rng.random() < 0.6 else rng.uniform(0.1, 5.0)
            return PlanEvent(at_s=at_s, accident=kind, target=leader, for_s=for_s)
        case Accident.WORKER_FREEZE:
            for_s = rng.choice((0.4, 0.9, 1.3, 3.0, 8.0)) * rng.uniform(0.8, 1.1)
            return PlanEvent(at_s=at_s, accident=kind, target=worker, for_s=for_s)
        case Accident.PARTITION:
            target = worker if rng.random() < 0.6 else rng.choice(plan.clients)
            return PlanEvent(at_s=at_s, accident=kind, target=target, for_s=rng.uniform(0.05, 6.0))
        case _:
            return PlanEvent(at_s=at_s, accident=kind, target=worker, for_s=rng.uniform(0.05, 4.0))
