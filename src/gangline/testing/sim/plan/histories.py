"""Plans for histories that other plans hold too rarely: few processes, one kind of work, faults when they matter."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Final

from ....bus.memory.faults import FaultRates
from ....schemas.records.gangs import Bundle, RestartPolicy, Strategy
from ....schemas.records.workers import TaskPolicy
from .durable_draw import HOLDER, draw_durable_plan, listing
from .durable_plan import DurableTraffic, JobKind, JobStep
from .gang_plan import GangKind, GangStep, GangTraffic, SetStep
from .plan import (
    LATENCY_S,
    MAX_DELAY_S,
    NOTICED_S,
    POOLS,
    Accident,
    Aim,
    Moment,
    Plan,
    PlanEvent,
    Step,
    StepKind,
    Storm,
    WorkerPlan,
    draw_plan,
    server_of,
)

_POOL: Final = POOLS[0]


def _workers(count: int, slots: int) -> tuple[WorkerPlan, ...]:
    """Workers of one pool."""
    return tuple(WorkerPlan(name=f"w{number}", pool=_POOL, slots=slots, clock_skew_s=0.0) for number in range(count))


def _sorted(steps: list[JobStep]) -> tuple[JobStep, ...]:
    return tuple(sorted(steps, key=lambda step: (step.at_s, step.number)))


# -- calls ------------------------------------------------------------------------------------------------------------


def draw_absences_plan(seed: int) -> Plan:
    """The only worker is away again and again, for a moment each time, while tasks are sent to it; and some answers are
    lost."""
    rng = random.Random(f"{seed}-absences")
    absences: list[PlanEvent] = []
    at_s = 0.5
    while at_s < 2.5:
        for_s = rng.choice((0.0005, 0.001, 0.003)) * rng.uniform(0.5, 1.5)
        absences.append(PlanEvent(at_s=at_s, accident=Accident.DISCONNECT, target="w0", for_s=for_s))
        at_s += for_s + rng.choice((0.001, 0.02, 0.1)) * rng.uniform(0.5, 1.5)
    steps = [_call(rng, number, 0.4 + 2.1 * rng.random(), _POOL, ("work",)) for number in range(100)]
    return replace(
        draw_plan(seed),
        workers=_workers(1, 60),
        clients=("c0",),
        steps=tuple(sorted(steps, key=lambda step: (step.at_s, step.number))),
        events=tuple(absences),
        storms=(Storm(from_s=0.4, until_s=2.6, rates=FaultRates(latency_s=LATENCY_S, drop=rng.choice((0.05, 0.2)))),),
        traffic_s=3.0,
        watched=False,
    )


def _call(rng: random.Random, number: int, at_s: float, pool: str, methods: tuple[str, ...]) -> Step:
    return Step(
        number=number,
        at_s=at_s,
        client="c0",
        kind=StepKind.CALL,
        pool=pool,
        method=rng.choice(methods),
        duration_s=rng.choice((0.0, 0.05, 0.3, 0.6)) * rng.uniform(0.5, 1.5),
        timeout_s=6.0,
    )


def draw_contended_plan(seed: int) -> Plan:
    """More calls than a limit over all workers allows, all the time, and leases that take all slots of a worker."""
    rng = random.Random(f"{seed}-contended")
    clients = ("c0", "c1", "c2")
    steps = [
        replace(_call(rng, number, 5.0 * rng.random(), _POOL, ("work",)), client=rng.choice(clients))
        for number in range(rng.choice((15, 40)))
    ]
    for number in range(len(steps), len(steps) + rng.choice((0, 1, 2))):
        lease = _call(rng, number, 3.0 * rng.random(), _POOL, ("work",))
        steps.append(replace(lease, kind=StepKind.HOLD, slots=2, ttl_s=4.0, hold_s=rng.choice((1.0, 6.0))))
    return replace(
        draw_plan(seed),
        workers=_workers(rng.choice((2, 3)), 2),
        clients=clients,
        steps=tuple(sorted(steps, key=lambda step: (step.at_s, step.number))),
        events=(),
        storms=(),
        traffic_s=10.0,
        watched=False,
        limits=(("work", rng.choice((1, 1, 2))),),
    )


# -- gangs ------------------------------------------------------------------------------------------------------------


def draw_repairs_plan(seed: int) -> Plan:
    """A gang loses a member, and another fault comes while that is being replaced: the ledger is lost, or storage is
    away while the owner is silent for about as long as it may be."""
    rng = random.Random(f"{seed}-repairs")
    loses_ledger = rng.random() < 0.5
    spare = 0 if loses_ledger else 1
    if loses_ledger:
        lost_s = rng.uniform(0.2, 0.6)
        aims = [
            _aim(Accident.WORKER_CRASH, lost_s, rng.uniform(2.5, 4.0)),
            _aim(Accident.SERVER_RESTART, lost_s + rng.uniform(0.3, 2.0), rng.uniform(0.02, 0.3)),
        ]
    else:
        aims = [
            _aim(Accident.WORKER_CRASH, rng.uniform(0.0, 0.4), rng.uniform(0.3, 2.0)),
            _aim(Accident.PARTITION, rng.uniform(0.0, 0.8), rng.uniform(0.85, 1.2)),
            # When another worker is asked for the slots of the lost one.
            replace(
                _aim(Accident.STORAGE_OUTAGE, rng.uniform(0.0, 0.0008), rng.uniform(0.5, 1.5), Moment.GRANTED), nth=3
            ),
        ]
    step = GangStep(
        number=0,
        at_s=0.5,
        client="c0",
        kind=GangKind.QUEUE,
        bundles=(Bundle(pool=_POOL, slots=1, count=2),),
        strategy=Strategy.SPREAD,
        restart=RestartPolicy.RESTART_MEMBER,
        ttl_s=4.0 if loses_ledger else 1.0,
        deadline_s=3.0,
        duration_s=0.05,
        timeout_s=3.0,
        hold_s=2.0,
    )
    return replace(
        draw_plan(seed),
        workers=_workers(2 + spare, 1),
        clients=("c0",),
        steps=(),
        events=(),
        storms=(),
        aims=tuple(aims),
        traffic_s=7.0,
        watched=False,
        gangs=GangTraffic(coordinators=("k0", "k1"), steps=(step,), starve_after_s=2.0),
    )


def draw_roll_plan(seed: int) -> Plan:
    """A member of the new version of a standing set is lost, and the leading coordinator dies while it is replaced."""
    rng = random.Random(f"{seed}-roll")
    gang = {
        "pool": _POOL,
        "size": 2,
        "strategy": "spread",
        "restart": "restart_member",
        "grace_s": 0.2,
        "backoff_s": 0.1,
        "start_timeout_s": 3.0,
    }
    gangs = rng.choice((1, 2))
    record = {"gangs": gangs, "surge": 1, "min_ready_s": 2.0, "roll_failures": 3, "retire_s": 0.3}
    sets = [
        SetStep(
            at_s=at_s,
            name="set0",
            gangs=gangs,
            record=json.dumps({**record, "gang": {**gang, "owner": f"version {version}"}}),
        )
        for version, at_s in enumerate((0.2, 2.0))
    ]
    lost_s = rng.uniform(0.05, 1.0)
    aims = (
        _aim(Accident.WORKER_CRASH, lost_s, rng.uniform(1.0, 4.0), Moment.SET_COMMITTED),
        _aim(Accident.COORDINATOR_CRASH, lost_s + rng.uniform(0.5, 1.5), rng.uniform(0.5, 3.0), Moment.SET_COMMITTED),
    )
    return replace(
        draw_plan(seed),
        workers=_workers(rng.choice((2, 3)), 2 * gangs),
        clients=("c0",),
        steps=(),
        events=(),
        storms=(),
        aims=tuple(replace(aim, nth=2 * gangs + 1) for aim in aims),  # formed and ready
        traffic_s=9.0,
        watched=False,
        gangs=GangTraffic(coordinators=("k0", "k1"), sets=tuple(sets), starve_after_s=2.0),
    )


def draw_lost_ledger_plan(seed: int) -> Plan:
    """The server loses the ledger, mostly for longer than a leader trusts itself, and processes come back to it one
    after another, in any order; in some plans it is lost again soon. All of them stay alive. A set and a gang are
    standing meanwhile; in half of the plans other gangs come and go, and the set is declared again."""
    rng = random.Random(f"{seed}-lost-ledger")
    coordinators = ("k0", "k1", "k2")[: rng.choice((1, 2, 2, 3))]
    workers = _workers(4, 3)
    events: list[PlanEvent] = []
    at_s = rng.uniform(2.0, 2.5)
    for away_s in rng.choices((0.2, 1.0, 1.6, 2.5, 4.0, 6.0), k=rng.choice((1, 1, 2))):
        away_s *= rng.uniform(0.9, 1.1)
        events.append(PlanEvent(at_s=at_s, accident=Accident.SERVER_RESTART, target="", for_s=away_s))
        at_s += away_s
        for name in (*coordinators, *(worker.name for worker in workers), "c0"):
            if rng.random() < 0.4:
                late_s = rng.choice((0.01, 0.3, 1.0, 2.5)) * rng.uniform(0.8, 1.2)
                events.append(PlanEvent(at_s=at_s + 1e-5, accident=Accident.DISCONNECT, target=name, for_s=late_s))
        at_s += rng.uniform(0.01, 4.0)
    busy = is_busy_when_the_ledger_is_lost(seed)
    gang = {"pool": _POOL, "size": 2, "strategy": "spread", "grace_s": 0.2, "backoff_s": 0.1}
    sets = [
        SetStep(at_s=at_s, name="set0", gangs=gangs, record=json.dumps({"gangs": gangs, "gang": gang}))
        for at_s, gangs in ((0.2, 2), *(((at_s - rng.uniform(0.0, 6.0), rng.choice((1, 3))),) if busy else ()))
    ]
    steps = [
        GangStep(
            number=number,
            at_s=rng.uniform(0.5, at_s) if number else 0.5,
            client="c0",
            kind=GangKind.HOLD,
            bundles=(Bundle(pool=_POOL, slots=1, count=2),),
            strategy=Strategy.SPREAD,
            restart=rng.choice(tuple(RestartPolicy)),
            ttl_s=4.0 if number else 20.0,
            deadline_s=3.0,
            duration_s=0.05,
            timeout_s=3.0,
            hold_s=rng.choice((0.0, 0.3, 2.0)) if number else at_s + 6.0,
        )
        for number in range(9 if busy else 1)
    ]
    return replace(
        draw_plan(seed),
        workers=workers,
        clients=("c0",),
        steps=(),
        events=tuple(sorted(events, key=lambda event: event.at_s)),
        storms=(),
        traffic_s=at_s + 8.0,
        watched=False,
        gangs=GangTraffic(coordinators=coordinators, steps=tuple(steps), sets=tuple(sets), starve_after_s=2.0),
    )


def is_busy_when_the_ledger_is_lost(seed: int) -> bool:
    """Whether gangs come and go in that plan."""
    return seed % 2 == 1


def _aim(accident: Accident, after_s: float, for_s: float, moment: Moment = Moment.COMMITTED) -> Aim:
    return Aim(moment=moment, nth=1, accident=accident, after_s=after_s, for_s=for_s)


# -- durable tasks ----------------------------------------------------------------------------------------------------


def draw_unheard_plan(seed: int) -> Plan:
    """The durable plan of a seed, but with two dispatchers and only one fault: the owner of the queues cannot be heard
    while the other one takes them, and is heard again while there is still work."""
    plan, rng = draw_durable_plan(seed), random.Random(f"{seed}-only-unheard")
    assert plan.durable is not None
    at_s, for_s, lost = rng.uniform(0.5, 2.0), rng.uniform(3.2, 4.5), rng.choice((0, 1, 1))
    unheard = PlanEvent(at_s=at_s, accident=Accident.DISPATCHER_UNHEARD, target=HOLDER, for_s=for_s, amount=lost)
    return replace(
        plan,
        events=(unheard,),
        storms=(),
        traffic_s=max(plan.traffic_s, at_s + for_s + 3.0),
        durable=replace(plan.durable, dispatchers=("d0", "d1")),
    )


def draw_unacknowledged_plan(seed: int) -> Plan:
    """The durable plan of a seed, but its submissions come at once, many without an acknowledgement, and the server
    restarts when most of their tasks have ended: it has forgotten their ids when the clients send them again."""
    plan, rng = draw_durable_plan(seed), random.Random(f"{seed}-unacknowledged")
    assert plan.durable is not None
    at_s = rng.uniform(1.5, 2.0)
    steps = [
        # The first ones find everything that their clients need later.
        replace(
            step, at_s=0.2 if number % 3 == 0 else at_s + rng.uniform(0.0, 0.1), duration_s=min(step.duration_s, 0.1)
        )
        for number, step in enumerate(plan.durable.steps)
        if step.kind in (JobKind.SUBMIT, JobKind.WATCH) and step.delay_s is None
    ]
    restart = PlanEvent(at_s=at_s + rng.uniform(2.0, 4.0), accident=Accident.SERVER_RESTART, target="", for_s=0.3)
    rates = FaultRates(latency_s=LATENCY_S, storage_drop=0.4)
    unheard = Storm(from_s=at_s, until_s=at_s + 0.1, rates=rates)
    return replace(
        plan,
        steps=(),
        events=(restart,),
        storms=(unheard,),
        traffic_s=max(plan.traffic_s, restart.at_s + 3.0),
        durable=replace(plan.durable, steps=_sorted(steps)),
    )


def draw_tenants_plan(seed: int) -> Plan:
    """The faults of the durable plan of a seed (in half of the plans none), while a tenant submits many more tasks than
    the window of the queue holds, and others submit a few after it. Tenants choose the same ids."""
    plan, rng = draw_durable_plan(seed), random.Random(f"{seed}-tenants")
    assert plan.durable is not None
    pool = rng.choice(sorted({worker.pool for worker in plan.workers}))
    slots = sum(worker.slots for worker in plan.workers if worker.pool == pool)
    window = rng.choice((8, 16, 32))
    at_s = rng.uniform(0.3, 1.0)
    waves = {
        "lab": (6 * slots + 2 * window, at_s),
        "shop": (3 * slots, at_s + 1.0),
        "": (rng.choice((0, 6)), at_s + 2.0),
    }
    steps: list[JobStep] = []
    for tenant, (count, begins_s) in waves.items():
        for each in range(count):
            step = JobStep(
                number=len(steps),
                at_s=begins_s + rng.uniform(0.0, 0.3 if tenant == "lab" else 2.0),
                client=rng.choice(plan.clients),
                kind=JobKind.PUBLISH,
                endpoint=pool,
                method="job",
                duration_s=rng.choice((0.2, 0.4, 0.6)),
                tenant=tenant,
                called=f"named-{each}" if each % 2 else None,
            )
            steps.append(step)
    faults = plan.events if rng.random() < 0.5 else ()
    return replace(
        plan,
        steps=(),
        events=faults,
        storms=plan.storms if faults else (),
        traffic_s=max(plan.traffic_s, at_s + 8.0),
        durable=replace(
            plan.durable,
            steps=_sorted(steps),
            routes=(),
            declared=(),
            window_tasks=window,
            # Each of the others may have a turn, and what was sent to free slots at the same time may start late.
            most_passed=2 * (len(waves) - 1) + slots,
        ),
    )


def draw_returned_plan(seed: int) -> Plan:
    """A worker with tasks that yield items is taken for lost, and comes back when others have started them again."""
    rng = random.Random(f"{seed}-returned")
    freeze = PlanEvent(
        at_s=rng.uniform(0.8, 1.5), accident=Accident.WORKER_FREEZE, target="w0", for_s=rng.uniform(3.5, 6.0)
    )
    events = [freeze]
    if rng.random() < 0.5:
        crash_s = freeze.at_s + rng.uniform(0.05, 0.5)
        events.append(PlanEvent(at_s=crash_s, accident=Accident.DISPATCHER_CRASH, target=HOLDER, for_s=1.0))
    steps = [
        JobStep(
            number=number,
            at_s=rng.uniform(0.3, 0.6),
            client="c0",
            kind=rng.choice((JobKind.SUBMIT, JobKind.ITEMS)),
            endpoint=_POOL,
            method="job_items",
            duration_s=rng.uniform(2.0, 4.0),
            items=rng.choice((80, 150)),
        )
        for number in range(rng.choice((1, 2, 3)))
    ]
    return _durable(seed, _workers(2, rng.choice((1, 2))), steps, events, traffic_s=freeze.at_s + freeze.for_s + 2.0)


def draw_withdrawn_plan(seed: int) -> Plan:
    """A dispatcher dies when it has just stored a schedule. That is cancelled before another one takes its queue, and
    the server is restarted, so that it has forgotten what it has stored."""
    rng = random.Random(f"{seed}-withdrawn")
    away_s = rng.uniform(1.5, 3.0)
    step = JobStep(
        number=rng.choice((0, 1)),
        at_s=rng.uniform(0.3, 0.6),
        client="c0",
        kind=rng.choice((JobKind.REPEAT, JobKind.REPEAT_RAW)),
        endpoint=_POOL,
        method="job",
        duration_s=0.05,
        doom_after_s=rng.uniform(0.05, 0.8),
        period_s=1,
        series=0,
    )
    traffic_s = step.at_s + away_s + 4.0
    last = replace(step, number=2, kind=JobKind.UNREPEAT, at_s=traffic_s + 1.5)
    plan = _durable(seed, _workers(1, 2), [step, last], [], dispatchers=("d0",), traffic_s=traffic_s)
    restart_s = rng.uniform(step.doom_after_s + 0.2, away_s)
    return replace(
        plan,
        aims=(
            _aim(Accident.DISPATCHER_CRASH, rng.choice((0.0, LATENCY_S)) * rng.random(), away_s, Moment.SCHEDULED),
            _aim(Accident.SERVER_RESTART, restart_s, 0.2, Moment.SCHEDULED),
        ),
    )


def draw_listed_plan(seed: int) -> Plan:
    """As `draw_tenants_plan`, but the queue changes hands while a client lists all jobs again and again."""
    plan, rng = draw_tenants_plan(seed), random.Random(f"{seed}-listed")
    assert plan.durable is not None
    begins_s = min(step.at_s for step in plan.durable.steps)
    stops = [
        PlanEvent(
            at_s=begins_s + rng.uniform(0.5, 4.0),
            accident=rng.choice((Accident.DISPATCHER_STOP, Accident.DISPATCHER_CRASH)),
            target=HOLDER,
            for_s=rng.uniform(0.5, 2.0),
        )
        for _ in range(2)
    ]
    count = len(plan.durable.steps)
    lists = [listing(count + each, begins_s + 0.2 * each, rng.choice(plan.clients)) for each in range(1, 31)]
    return replace(
        plan,
        events=tuple(sorted(stops, key=lambda event: event.at_s)),
        storms=(),
        durable=replace(
            plan.durable, dispatchers=("d0", "d1"), steps=_sorted([*plan.durable.steps, *lists]), most_passed=None
        ),
    )


def draw_late_deliveries_plan(seed: int) -> Plan:
    """A tenant keeps the window of a queue full, while tasks of another are read beyond it and end at once; and many
    deliveries are late, so that some come when their task has ended."""
    rng = random.Random(f"{seed}-late-deliveries")
    begins_s = rng.uniform(0.3, 1.0)
    steps = [
        JobStep(
            number=number,  # even ones get no id, which would make their dispatcher look for an earlier end
            # The first ones end the pause after which the dispatcher looks everything up.
            at_s=begins_s + 0.01 * number + (0.5 if number >= 4 else 0.0),
            client="c0",
            kind=JobKind.PUBLISH,
            endpoint=_POOL,
            method="job",
            duration_s=0.0 if number % 4 == 2 else rng.choice((0.1, 0.3)),
            tenant="shop" if number % 4 == 2 else "lab",
        )
        for number in range(40)
    ]
    # A worker remembers what has ended on it: the task must have another one to run on once more.
    workers = _workers(rng.choice((2, 3)), 1)
    plan = _durable(seed, workers, steps, [], dispatchers=("d0",), traffic_s=begins_s + 6.0)
    assert plan.durable is not None
    late = Storm(
        from_s=begins_s + 0.5,
        until_s=begins_s + 5.0,
        rates=FaultRates(latency_s=LATENCY_S, delay=rng.choice((0.2, 0.4)), delay_s=MAX_DELAY_S),
    )
    return replace(plan, storms=(late,), durable=replace(plan.durable, window_tasks=rng.choice((4, 8))))


def draw_lost_deliveries_plan(seed: int) -> Plan:
    """A dispatcher takes over the queue of one that dies or leaves, while messages are lost; then nothing new comes
    that would show it which."""
    rng = random.Random(f"{seed}-lost-deliveries")
    gone_s = rng.uniform(1.0, 1.5)
    accident = rng.choice((Accident.DISPATCHER_CRASH, Accident.DISPATCHER_STOP))
    steps = [
        JobStep(
            number=number,
            at_s=rng.uniform(0.3, 0.9),
            client="c0",
            kind=JobKind.PUBLISH,
            endpoint=_POOL,
            method="job",
            duration_s=rng.uniform(1.0, 2.0),
        )
        for number in range(rng.choice((1, 2, 4)))
    ]
    loss = Storm(
        from_s=gone_s,
        until_s=gone_s + rng.uniform(1.0, 5.0),
        rates=FaultRates(latency_s=LATENCY_S, drop=rng.choice((0.1, 0.3))),
    )
    event = PlanEvent(at_s=gone_s, accident=accident, target=HOLDER, for_s=1.0)
    plan = _durable(seed, _workers(rng.choice((1, 2)), 2), steps, [event], traffic_s=loss.until_s)
    return replace(plan, storms=(loss,))


def draw_cut_off_plan(seed: int) -> Plan:
    """The only dispatcher's server and the others give each other up, while tasks wait for a slot, or before they come:
    before the servers find each other again, clients on the other side cancel some. The slot becomes free so late that
    nothing can have been on its way since then."""
    rng = random.Random(f"{seed}-cut-off")
    begins_s = 1.0 + (seed % 2)  # splits that begin in an odd second of even seeds, or the reverse, are noticed
    for_s = NOTICED_S + rng.uniform(0.5, 3.0)
    cancelled_s = begins_s + rng.uniform(NOTICED_S + 0.1, for_s - 0.1)
    come_s = rng.choice((0.3, cancelled_s - 0.1))
    steps = [
        JobStep(
            number=number,
            at_s=(at_s := come_s + 0.02 * number if number else 0.3),
            client="c0",
            kind=JobKind.CANCEL if number % 2 else JobKind.SUBMIT,
            endpoint=_POOL,
            method="job",
            duration_s=begins_s + for_s + rng.uniform(5.0, 7.0) if number == 0 else 0.1,
            doom_after_s=max(0.01, cancelled_s - at_s) if number % 2 else 0.0,
        )
        for number in range(6)
    ]
    split = PlanEvent(at_s=begins_s, accident=Accident.SPLIT, target="", for_s=for_s, amount=server_of(seed, "d0"))
    return _durable(seed, _workers(1, 1), steps, [split], dispatchers=("d0",), traffic_s=begins_s + for_s + 8.0)


def draw_shared_unit_plan(seed: int) -> Plan:
    """Tasks of which one may run at once over all workers, each of which has one slot, come one by one; and other
    tasks, which use these slots meanwhile."""
    rng = random.Random(f"{seed}-shared-unit")
    steps: list[JobStep] = []
    at_s = 0.3
    for number in range(12):
        at_s += rng.choice((0.02, 0.3, 0.8)) * rng.uniform(0.5, 1.5)
        steps.append(
            JobStep(
                number=number,
                at_s=at_s,
                client="c0",
                kind=JobKind.PUBLISH,
                endpoint=_POOL,
                method="job" if number % 2 or rng.random() < 0.5 else "job_items",
                duration_s=rng.choice((0.0, 0.02, 0.2)),
            )
        )
    plan = _durable(seed, _workers(rng.choice((2, 3)), 1), steps, [], dispatchers=("d0",), traffic_s=at_s + 4.0)
    assert plan.durable is not None
    policy = TaskPolicy(max_running=1, max_attempts=3, backoff_s=0.05)
    return replace(plan, durable=replace(plan.durable, declared=(("job", policy),)))


def _durable(
    seed: int,
    workers: tuple[WorkerPlan, ...],
    steps: list[JobStep],
    events: list[PlanEvent],
    *,
    dispatchers: tuple[str, ...] = ("d0", "d1"),
    traffic_s: float,
) -> Plan:
    return replace(
        draw_plan(seed),
        workers=workers,
        clients=("c0",),
        steps=(),
        events=tuple(sorted(events, key=lambda event: event.at_s)),
        storms=(),
        traffic_s=traffic_s,
        watched=False,
        durable=DurableTraffic(dispatchers=dispatchers, steps=_sorted(steps), routes=()),
    )
