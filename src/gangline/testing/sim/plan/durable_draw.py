"""Plans with durable tasks: the seed's plain plan, plus dispatchers, tasks, routes, and their faults.

The plain plan stays the same (except that no worker is resized to zero, since its queue would then wait forever);
additions are drawn from their own random stream.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from ....schemas.records.jobs import DeadReason
from ....schemas.records.routes import QueueRules, RouteRecord
from ....schemas.records.workers import TaskPolicy
from .durable_plan import Bad, DurableTraffic, JobEnding, JobKind, JobStep, RouteStep
from .plan import DISPATCHER_FAULTS, Accident, Plan, PlanEvent, draw_plan

UNHEARD_SEEDS = 0.1
_LOSE_DELIVERIES: Final = (Accident.DISCONNECT, Accident.SERVER_RESTART)
LISTED_SEEDS = 1 / 6
HOLDER = "holder"
"""In an event: the dispatcher that has the most queues at that moment."""


def draw_durable_plan(seed: int) -> Plan:
    """The plan of a seed with durable tasks; the same on every machine."""
    plain = draw_plan(seed)
    rng = random.Random(f"gangline durable plan {seed}")
    share = rng.choice((0.0, 0.2, 1.0))
    plan = replace(
        plain,
        steps=tuple(step for step in plain.steps if rng.random() < share),
        events=tuple(
            replace(event, amount=max(1, event.amount)) if event.accident is Accident.RESIZE else event
            for event in plain.events
        ),
    )
    dispatchers = tuple(f"d{number}" for number in range(rng.choice((1, 2, 2, 3))))
    pools = sorted({worker.pool for worker in plan.workers})
    routes = _routes(rng, pools, plan.traffic_s)
    endpoints = [*pools, *sorted({each.endpoint for each in routes} - set(pools))]
    steps = _steps(rng, plan, endpoints)
    more = random.Random(f"gangline more durable plan {seed}")
    age_step_s = more.choice((0.5, 2.0, 10.0))
    steps = tuple(_padded(more, step) for step in steps)
    steps += _crowd(more, plan, pools, len(steps))
    steps += _replayed(more, plan, endpoints, len(steps))
    steps = _sorted(steps + _repeated(more, plan, endpoints, len(steps)))
    events = [*plan.events, *_events(rng, plan, dispatchers, steps)]
    events += _roll_outs(random.Random(f"{seed}-roll-outs"), plan, steps)
    if not plan.calm:
        events += _unheard(random.Random(f"{seed}-unheard"), plan, dispatchers)
    declared = _declared(random.Random(f"{seed}-policies"))
    steps = _sorted(steps + _lists(random.Random(f"{seed}-lists"), plan, len(steps)))
    return replace(
        plan,
        events=tuple(sorted(events, key=lambda event: event.at_s)),
        durable=DurableTraffic(
            dispatchers=dispatchers,
            steps=tuple(_as_declared(step, declared) for step in steps),
            routes=routes,
            age_step_s=age_step_s,
            declared=declared,
            item_bytes=_item_bytes(random.Random(f"{seed}-item-bytes")),
        ),
    )


# -- routes -----------------------------------------------------------------------------------------------------------


def _routes(rng: random.Random, pools: list[str], traffic_s: float) -> tuple[RouteStep, ...]:
    """Most endpoints have a route from the beginning; some routes change during the run."""
    found: list[RouteStep] = []
    for endpoint in [*pools, "routed"]:
        if endpoint in pools and rng.random() < 0.4:
            continue
        rules = _rules(rng)
        found.append(RouteStep(at_s=-0.4, endpoint=endpoint, route=_route(rng, endpoint, pools, rules)))
        for _ in range(rng.choice((0, 0, 1, 3))):
            at_s = rng.uniform(0.1, traffic_s)
            if rng.random() < 0.2:
                pause_s = rng.uniform(0.1, 2.0)
                paused = rules.model_copy(update={"paused": True})
                route = found[-1].route
                found.append(RouteStep(at_s=at_s, endpoint=endpoint, route=route.model_copy(update={"queue": paused})))
                found.append(RouteStep(at_s=at_s + pause_s, endpoint=endpoint, route=route))
            else:
                found.append(RouteStep(at_s=at_s, endpoint=endpoint, route=_route(rng, endpoint, pools, rules)))
    # The last route of each endpoint is not paused.
    end = [step for step in found if not step.route.queue.paused]
    last = {step.endpoint: step.route for step in sorted(end, key=lambda step: step.at_s)}
    found += [RouteStep(at_s=traffic_s + 2.0, endpoint=endpoint, route=route) for endpoint, route in last.items()]
    return tuple(sorted(found, key=lambda step: step.at_s))


def _rules(rng: random.Random) -> QueueRules:
    """The rules of an endpoint for the whole run, so that the checks can be strict."""
    return QueueRules(
        per_key=rng.choice((None, 1, 1, 2)),
        ordered=rng.random() < 0.1,
        max_running=rng.choice((None, None, None, 1, 2)),
        rate_per_s=rng.choice((None, None, None, 4.0, 20.0)),
        burst=rng.choice((1, 3)),
    )


def _route(rng: random.Random, endpoint: str, pools: list[str], rules: QueueRules) -> RouteRecord:
    to = {} if endpoint in pools else dict.fromkeys(pools, 1.0)
    if rng.random() < 0.5:
        to = {pool: rng.choice((1.0, 5.0)) for pool in pools if rng.random() < 0.7} or to
    limits = {pool: rng.choice((1, 2)) for pool in to if rng.random() < 0.2}
    return RouteRecord(to=to, by_key=rng.random() < 0.7, limits=limits, queue=rules)


# -- tasks ------------------------------------------------------------------------------------------------------------


_R, _X, _N, _S = JobEnding.RETURN, JobEnding.RAISE, JobEnding.NEVER, JobEnding.SLOW
_ENDINGS = ((_R,), (_R,), (_R,), (_X, _R), (_X, _X, _R), (_X,), (_N, _R), (_S, _R), (_S,))
_FLAVOURS = ((8, 4, 2, 2, 3, 1), (8, 2, 0, 0, 0, 0), (2, 2, 2, 6, 2, 2))
"""How often each kind of step occurs: mixed, plain, and mostly cancelled."""
_KINDS = (JobKind.SUBMIT, JobKind.WATCH, JobKind.ITEMS, JobKind.CANCEL, JobKind.PUBLISH, JobKind.BAD)


def _steps(rng: random.Random, plan: Plan, endpoints: list[str]) -> tuple[JobStep, ...]:
    busy = rng.choice((8, 20, 40))
    weights = rng.choice(_FLAVOURS)
    keyed = rng.choice((0.0, 0.5, 0.9))
    ordered = rng.choice((0.0, 0.5, 1.0))
    bursts = [rng.uniform(0, plan.traffic_s) for _ in range(max(1, busy // 8))]
    steps: list[JobStep] = []
    for number in range(busy):
        kind = rng.choices(_KINDS, weights=weights)[0]
        at_s = rng.choice(bursts) if rng.random() < 0.6 else rng.uniform(0, plan.traffic_s)
        step = _step(rng, number, at_s, rng.choice(plan.clients), kind, rng.choice(endpoints), keyed, ordered)
        steps.append(_twins(rng, steps, step))
    return _sorted(steps)


def _sorted(steps: Iterable[JobStep]) -> tuple[JobStep, ...]:
    return tuple(sorted(steps, key=lambda step: (step.at_s, step.number)))


def _padded(rng: random.Random, step: JobStep) -> JobStep:
    """Give a few tasks a large result."""
    draw, size = rng.random(), rng.choice((2_000, 2_000, 300_000))
    return replace(step, padding=size) if draw < 0.1 and step.method == "job" and step.once is None else step


def _crowd(rng: random.Random, plan: Plan, pools: list[str], first: int) -> tuple[JobStep, ...]:
    """In some plans, more tasks at once than there are slots, with all priorities."""
    if rng.random() < 0.6:
        return ()
    endpoint, begins_s = rng.choice(pools), rng.uniform(0, plan.traffic_s / 2)
    slots = sum(worker.slots for worker in plan.workers if worker.pool == endpoint)
    return tuple(
        JobStep(
            number=number,
            at_s=begins_s + rng.uniform(0, 2.0),
            client=rng.choice(plan.clients),
            kind=rng.choice((JobKind.SUBMIT, JobKind.PUBLISH)),
            endpoint=endpoint,
            method=rng.choices(("job", "job_heavy"), weights=(8, 1))[0],
            duration_s=rng.choice((0.05, 0.3, 0.6)) * rng.uniform(0.5, 1.5),
            priority=rng.choice((-1, 0, 0, 1, 3)),
        )
        for number in range(first, first + min(6 * slots, rng.choice((10, 20, 30))))
    )


def _replayed(rng: random.Random, plan: Plan, endpoints: list[str], first: int) -> tuple[JobStep, ...]:
    """In some plans, tasks that die and are replayed."""
    if rng.random() < 0.5:
        return ()
    steps: list[JobStep] = []
    for number in range(first, first + rng.choice((2, 4, 8))):
        at_s, method = rng.uniform(0, plan.traffic_s * 0.7), rng.choice(("job", "job", "job_items"))
        step = _step(rng, number, at_s, rng.choice(plan.clients), JobKind.REPLAY, rng.choice(endpoints), 0.3, 0.5)
        steps.append(
            replace(
                step,
                method=method,
                items=rng.choice((1, 5)) if method == "job_items" else 0,
                duration_s=min(step.duration_s, 0.3),
                endings=rng.choice(((_X, _R), (_X, _X, _R), (_X,), (_N, _X, _R))),
                timeout_s=0.2,
                max_attempts=rng.choice((1, 1, 2)),
                keeps_result=True,
                doom_after_s=rng.choice((0.0, 0.0, 0.3)),
                at_once=rng.choice((1, 1, 2)),
            )
        )
    return tuple(steps)


def _repeated(rng: random.Random, plan: Plan, endpoints: list[str], first: int) -> tuple[JobStep, ...]:
    """In some plans, schedules. Each is cancelled by its creator, and again by any client when all faults are over."""
    if rng.random() < 0.5:
        return ()
    steps: list[JobStep] = []
    for number in range(first, first + 2 * rng.choice((1, 2, 3)), 2):
        kind = rng.choice((JobKind.REPEAT, JobKind.REPEAT_RAW))
        step = _step(rng, number, 0.0, rng.choice(plan.clients), kind, rng.choice(endpoints), 0.3, 0.5)
        step = replace(
            step,
            at_s=rng.uniform(0, plan.traffic_s * 0.7),
            method="job",
            items=0,
            duration_s=min(step.duration_s, 0.3),
            endings=rng.choice(((_R,), (_R,), (_X, _R))),
            timeout_s=None,
            max_attempts=3,
            deadline_s=None,
            delay_s=None,
            keeps_result=True,
            msgpack=False,
            cancel_after_s=step.cancel_after_s if rng.random() < 0.3 else None,
            doom_after_s=rng.choice((0.0, 0.001, 0.002, 0.5, 2.5, 4.0)) * rng.uniform(0.8, 1.2),
            period_s=rng.choice((1, 1, 2)),
            series=number,
        )
        last = replace(
            step,
            number=number + 1,
            kind=JobKind.UNREPEAT,
            client=rng.choice(plan.clients),
            at_s=plan.traffic_s + 1.5,
            cancel_after_s=None,
        )
        steps += [step, last]
    return tuple(steps)


def _lists(rng: random.Random, plan: Plan, first: int) -> tuple[JobStep, ...]:
    """Lists of all jobs: in one plan of six, unless deliveries to dispatchers may be lost or overtaken. A task whose
    delivery is lost is in no list until the server delivers it again."""
    lossy = plan.storms or any(event.accident in _LOSE_DELIVERIES for event in plan.events)
    if rng.random() >= LISTED_SEEDS or lossy:
        return ()
    return tuple(
        listing(number, rng.uniform(0, plan.traffic_s + 2.0), rng.choice(plan.clients))
        for number in range(first, first + 6)
    )


def listing(number: int, at_s: float, client: str) -> JobStep:
    """A client lists all jobs."""
    return JobStep(
        number=number,
        at_s=at_s,
        client=client,
        kind=JobKind.LIST,
        endpoint="",
        method="",
        duration_s=0.0,
        endings=(),
    )


def _twins(rng: random.Random, before: list[JobStep], step: JobStep) -> JobStep:
    """Make some tasks repeat an earlier one, with the same idempotency key."""
    if step.kind not in (JobKind.SUBMIT, JobKind.WATCH) or rng.random() > 0.15:
        return step
    others = [each for each in before if each.once is not None]
    if others and rng.random() < 0.6:
        twin = rng.choice(others)
        return replace(twin, number=step.number, at_s=max(step.at_s, twin.at_s), client=step.client, kind=step.kind)
    return replace(step, once=step.number, delay_s=None, keeps_result=True)


def _step(
    rng: random.Random,
    number: int,
    at_s: float,
    client: str,
    kind: JobKind,
    endpoint: str,
    keyed: float,
    ordered: float,
) -> JobStep:
    endings = rng.choice(_ENDINGS)
    endless = _N in endings or _S in endings
    key = f"k{rng.randint(0, 2)}" if rng.random() < keyed else None
    method = rng.choices(("job", "job_heavy", "job_items"), weights=(8, 2, 1))[0]
    if kind is JobKind.ITEMS:
        method = "job_items"
    return JobStep(
        number=number,
        at_s=at_s,
        client=client,
        kind=kind,
        endpoint=endpoint,
        method=method,
        duration_s=rng.choice((0.0, 0.002, 0.05, 0.3, 1.5)) * rng.uniform(0.5, 1.5),
        endings=endings,
        items=rng.choice((0, 1, 5, 80)) if method == "job_items" else 0,
        key=key,
        ordered=key is not None and rng.random() < ordered,
        priority=rng.choice((0, 0, 0, 1, 5)),
        deadline_s=rng.choice((0.3, 2.0, 6.0)) if rng.random() < 0.15 else None,
        delay_s=rng.choice((0.05, 0.7, 2.0)) if rng.random() < 0.15 else None,
        timeout_s=rng.choice((0.2, 1.0)) if endless else rng.choice((None, None, None, 0.5)),
        max_attempts=rng.choice((1, 2, 3, 3, 5)),
        backoff_s=rng.choice((0.0, 0.05, 0.4)),
        keeps_result=kind in (JobKind.WATCH, JobKind.ITEMS) or rng.random() < 0.9,
        msgpack=rng.random() < 0.1,
        cancel_after_s=rng.uniform(0, 1.2) ** 2 if rng.random() < 0.08 else None,
        doom_after_s=rng.choice((0.0, 0.002, 0.05, 0.5, 2.0)) * rng.uniform(0.5, 1.5),
        bad=_bad(rng, number, endpoint) if kind is JobKind.BAD else None,
    )


def _bad(rng: random.Random, number: int, endpoint: str) -> Bad:
    task, good = f"sim.task.{endpoint}", f'{{"request": "j{number}", "duration_s": 0, "endings": ["return"]}}'
    malformed = DeadReason.MALFORMED
    choices = (
        Bad(subject=f"{task}.job", body="{", headers=(), reason=malformed),
        Bad(subject=f"{task}.job", body='"text"', headers=(), reason=malformed),
        Bad(subject=f"{task}.job", body=good, headers=(("Gangline-Priority", "high"),), reason=malformed),
        Bad(subject=f"{task}.job", body=good, headers=(("Gangline-Ordered", "true"),), reason=malformed),
        Bad(subject=f"{task}.job", body=good, headers=(("Gangline-Deadline", "soon"),), reason=malformed),
        Bad(subject=f"{task}.job", body=good, headers=(("Gangline-Cron", "now and then"),), reason=malformed),
        Bad(subject=f"{task}.job", body=good, headers=(("Gangline-Job", "not a name"),), reason=malformed),
        Bad(subject=f"{task}.job.more", body=good, headers=(), reason=malformed),
        Bad(subject=task, body=good, headers=(), reason=malformed),
        Bad(subject="sim.task.sched", body=good, headers=(), reason=malformed),
        Bad(subject=f"{task}.nothing", body=good, headers=(), reason=DeadReason.UNKNOWN_METHOD),
        Bad(subject=f"{task}.job", body='{"request": 1}', headers=(), reason=DeadReason.INVALID_ARGUMENTS),
        Bad(subject="sim.task.nowhere.job", body=good, headers=(), reason=DeadReason.UNKNOWN_ENDPOINT),
        Bad(
            subject=f"{task}.job",
            body=good,
            headers=(("Gangline-Pool", "nowhere"),),
            reason=DeadReason.UNKNOWN_ENDPOINT,
        ),
    )
    return rng.choice(choices)


def _declared(rng: random.Random) -> tuple[tuple[str, TaskPolicy], ...]:
    """In some plans, tasks declare limits and attempts."""
    if rng.random() < 0.75:
        return ()
    job = TaskPolicy(
        max_running=rng.choice((None, 1, 2)),
        per_key=rng.choice((None, None, 1)),
        max_attempts=rng.choice((2, 3)),
        backoff_s=rng.choice((0.05, 0.3)),
    )
    return (("job", job), ("job_items", TaskPolicy(max_running=1)))


def _as_declared(step: JobStep, declared: Iterable[tuple[str, TaskPolicy]]) -> JobStep:
    """Leave attempts and backoff to the declaration, if there is one. Every third step says them."""
    policy = dict(declared).get(step.method)
    if policy is None or policy.max_attempts is None or policy.backoff_s is None or step.number % 3 == 0:
        return step
    if step.once is not None or step.series is not None:
        return step
    return replace(step, max_attempts=policy.max_attempts, backoff_s=policy.backoff_s, says_attempts=False)


def _item_bytes(rng: random.Random) -> int | None:
    """In some plans, workers keep almost no items."""
    return rng.choice((0, 4, 30)) if rng.random() < 0.15 else None


# -- faults -----------------------------------------------------------------------------------------------------------


def _events(
    rng: random.Random, plan: Plan, dispatchers: tuple[str, ...], steps: tuple[JobStep, ...]
) -> list[PlanEvent]:
    """Faults of dispatchers, and of workers while they run submitted tasks."""
    kinds: list[Accident] = [Accident.DISPATCHER_STOP]
    if not plan.calm:
        kinds += [*DISPATCHER_FAULTS, Accident.WORKER_CRASH, Accident.WORKER_FREEZE, Accident.SERVER_RESTART]
    events: list[PlanEvent] = []
    for kind in kinds:
        if rng.random() < 0.65:
            continue
        for _ in range(rng.randint(1, 2)):
            step, draw = rng.choice(steps), rng.random()
            if draw < 0.4:
                at_s = step.at_s + rng.uniform(0, 0.01)  # while it is being given to a worker
            elif draw < 0.8:
                at_s = step.at_s + step.duration_s + rng.uniform(0, 0.02)  # while its result is being stored
            else:
                at_s = rng.uniform(0, plan.traffic_s)
            events.append(_event(rng, kind, plan, dispatchers, min(at_s, plan.traffic_s)))
    return events


def _roll_outs(rng: random.Random, plan: Plan, steps: tuple[JobStep, ...]) -> list[PlanEvent]:
    """In some plans, dispatchers and a worker are replaced at the same time, while tasks run."""
    if rng.random() < 0.85:
        return []
    long = [step for step in steps if step.duration_s > 0.1 and step.endings[0] is JobEnding.RETURN] or list(steps)
    events: list[PlanEvent] = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        step = rng.choice(long)
        at_s = step.at_s + (step.delay_s or 0.0) + rng.uniform(0.0, max(0.05, step.duration_s))
        pools = [worker.name for worker in plan.workers if worker.pool == step.endpoint]
        worker = rng.choice(pools or [worker.name for worker in plan.workers])
        late_s = rng.choice((0.0, 0.0, 0.002, 0.2))
        events.append(
            PlanEvent(at_s=min(at_s, plan.traffic_s), accident=Accident.ROLL_OUT, target=worker, for_s=late_s)
        )
    return events


def _unheard(rng: random.Random, plan: Plan, dispatchers: tuple[str, ...]) -> list[PlanEvent]:
    """In one of ten seeds with several dispatchers. Mostly long enough for another to take over, and over while there
    are still tasks to start."""
    if rng.random() >= UNHEARD_SEEDS or len(dispatchers) < 2:
        return []
    for_s = rng.choice((1.0, 2.0, 3.0, 3.6, 4.5, 6.0)) * rng.uniform(0.9, 1.1)
    at_s = rng.uniform(0.2, max(0.4, plan.traffic_s - for_s))
    kind, lost = Accident.DISPATCHER_UNHEARD, rng.choice((0, 1))
    return [PlanEvent(at_s=at_s, accident=kind, target=HOLDER, for_s=for_s, amount=lost)]


def _event(rng: random.Random, kind: Accident, plan: Plan, dispatchers: tuple[str, ...], at_s: float) -> PlanEvent:
    holder = HOLDER if rng.random() < 0.8 else rng.choice(dispatchers)
    worker = rng.choice(plan.workers).name
    match kind:
        case Accident.DISPATCHER_CRASH:
            return PlanEvent(at_s=at_s, accident=kind, target=holder, for_s=rng.choice((0.05, 1.0, 4.0)))
        case Accident.DISPATCHER_FREEZE:
            for_s = rng.choice((0.4, 0.9, 1.3, 2.4, 3.0, 6.0)) * rng.uniform(0.9, 1.1)
            return PlanEvent(at_s=at_s, accident=kind, target=holder, for_s=for_s)
        case Accident.DISPATCHER_PARTITION:
            return PlanEvent(at_s=at_s, accident=kind, target=holder, for_s=rng.uniform(0.1, 5.0))
        case Accident.WORKER_FREEZE:
            for_s = rng.choice((0.4, 0.9, 1.3, 3.0, 8.0)) * rng.uniform(0.8, 1.1)
            return PlanEvent(at_s=at_s, accident=kind, target=worker, for_s=for_s)
        case Accident.SERVER_RESTART:
            return PlanEvent(at_s=at_s, accident=kind, target="", for_s=rng.uniform(0.02, 2.5))
        case Accident.DISPATCHER_STOP:
            return PlanEvent(at_s=at_s, accident=kind, target=holder, for_s=0.0)
        case _:
            return PlanEvent(at_s=at_s, accident=kind, target=worker, for_s=rng.uniform(0.05, 4.0))
