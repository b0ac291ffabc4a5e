"""The plan of a seed: the processes, their steps, and faults. Drawn in advance, so that it can be printed.

Each seed first draws the kinds of faults that it has (swarm testing), since a run with all kinds at once hides what two
of them do together. One seed in eight has none; there the laws about milliseconds (L6) are checked all the time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from ....bus.memory.faults import FaultRates
from .durable_plan import DurableTraffic
from .gang_plan import GangTraffic

POOLS = ("alpha", "beta")
LATENCY_S = 0.0005
CALM_RATES = FaultRates(latency_s=LATENCY_S)
MAX_DELAY_S = 0.5
"""Maximum delay of a single message by a storm, in seconds. Partitions last longer."""


class TaskEnding(StrEnum):
    """What a task does after its sleep."""

    RETURN = "return"
    RAISE = "raise"
    NEVER = "never"
    """Sleeps until it is cancelled."""


class StepKind(StrEnum):
    """What a client does in one step."""

    CALL = "call"
    DISPATCH = "choose, dispatch"
    CHOOSE = "choose only"
    TWICE = "choose, dispatch twice"
    LEASE = "lease"
    HOLD = "lease held idle"
    STREAM = "stream"


class Accident(StrEnum):
    WORKER_CRASH = "worker crash"
    CLIENT_CRASH = "client crash"
    WORKER_FREEZE = "worker freeze"
    CLIENT_FREEZE = "client freeze"
    PARTITION = "partition"
    """Neither end notices: everything arrives late."""
    DISCONNECT = "disconnect"
    SERVER_RESTART = "server restart"
    STORAGE_OUTAGE = "storage outage"
    DRAIN = "drain"
    RESIZE = "resize"
    COORDINATOR_CRASH = "coordinator crash"
    COORDINATOR_FREEZE = "coordinator freeze"
    """This and the following ones: only in plans with gangs."""
    LEADER_PARTITION = "leader partition"
    DISPATCHER_CRASH = "dispatcher crash"
    """This and the following ones: only in plans with durable tasks."""
    DISPATCHER_FREEZE = "dispatcher freeze"
    DISPATCHER_PARTITION = "dispatcher partition"
    DISPATCHER_STOP = "dispatcher stop"
    DISPATCHER_UNHEARD = "dispatcher unheard"
    """Its messages do not arrive for a while; it still receives everything."""
    WORKER_TWIN = "worker twin"
    """A worker is frozen until a second process with its id has taken its place, and then wakes up."""
    ROLL_OUT = "roll-out"
    """All dispatchers stop and a worker drains at the same time, and all of them are restarted."""
    SILENCE = "silence"
    """A server is frozen: connections to it stay up, but everything arrives late."""
    SPLIT = "split"
    """A server and the others cannot communicate."""
    REFUSED_DELETE = "refused delete"
    """An operator deletes a worker's keys with a condition that is not met: others see the message, and storage refuses
    it."""


FAULTS = (
    Accident.WORKER_CRASH,
    Accident.CLIENT_CRASH,
    Accident.WORKER_FREEZE,
    Accident.CLIENT_FREEZE,
    Accident.PARTITION,
    Accident.DISCONNECT,
    Accident.SERVER_RESTART,
    Accident.STORAGE_OUTAGE,
)
"""Faults of plain plans, without twins and faults of a cluster's servers. DRAIN, RESIZE, DISPATCHER_STOP and ROLL_OUT
are an operator's actions, not faults."""

COORDINATOR_FAULTS = (Accident.COORDINATOR_CRASH, Accident.COORDINATOR_FREEZE, Accident.LEADER_PARTITION)
"""Faults only in plans with gangs."""

DISPATCHER_FAULTS = (Accident.DISPATCHER_CRASH, Accident.DISPATCHER_FREEZE, Accident.DISPATCHER_PARTITION)
"""Faults only in plans with durable tasks, besides DISPATCHER_UNHEARD."""


SERVER_FAULTS = (Accident.SILENCE, Accident.SPLIT)
"""Faults of a server of a cluster; `amount` is its number."""
SERVERS = 3
ONLY_SERVER = -1
"""Number that stands for the single server that all processes use."""
NOTICED_S = 2.5
"""Both ends notice a partition that lasts longer, like a client with its pings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    name: str
    pool: str
    slots: int
    clock_skew_s: float
    """Error of its wall clock."""
    node: str = ""
    """Its machine; empty: a separate one."""
    zone: str = ""
    heartbeat_ttl_s: float = 3.0
    channel: bool = True
    """Whether its registration names a channel, unlike workers of earlier versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of one client. `at_s` is measured from the beginning of the traffic."""

    number: int
    at_s: float
    client: str
    kind: StepKind
    pool: str
    method: str
    duration_s: float
    ending: TaskEnding = TaskEnding.RETURN
    timeout_s: float
    cancel_after_s: float | None = None
    """When the whole step is cancelled."""
    slots: int = 1
    """Slots of a lease."""
    ttl_s: float = 1.0
    uses: int = 1
    """Number of tasks on a lease, or of items of a stream."""
    together: bool = False
    """Whether a lease is used by all tasks at once or by one after another."""
    hold_s: float = 0.0
    """How long a selection or lease is held before it is used or released."""
    key: str | None = None
    """Sticky routing key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEvent:
    at_s: float
    accident: Accident
    target: str
    """A worker, client, coordinator or dispatcher; `leader`: the leading coordinator; `holder`: the dispatcher that has
    the most queues; empty: the server."""
    for_s: float
    amount: int = 0
    """Slots after a resize; the number of a server; 1 if the messages of an unheard dispatcher are lost, not late."""


class Moment(StrEnum):
    """A step of something in progress."""

    QUEUED = "queued"
    """A gang has been requested."""
    GRANTED = "granted"
    """A worker is asked to hold slots for the gang."""
    COMMITTED = "committed"
    """The gang's record says `formed`."""
    TOLD = "told"
    """A worker is told to form it."""
    FORMED = "formed"
    """Its owner got the answer."""
    SET_COMMITTED = "set committed"
    """The record of a standing gang says `formed`."""
    SET_TOLD = "set told"
    STREAM = "stream"
    """A task that yields items starts."""
    TO_RUN = "to run"
    """A gang on several workers that replaces single members is formed, and its owner will run tasks on all ranks."""
    SCHEDULED = "scheduled"
    """A schedule has been stored."""


OF_OWNERS: Final = (Moment.QUEUED, Moment.GRANTED, Moment.COMMITTED, Moment.TOLD, Moment.FORMED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """A fault `after_s` after the `nth` occurrence of a moment."""

    moment: Moment
    nth: int
    accident: Accident
    """The crash or a partition of the owner, the crash of a member's worker, of the leading coordinator, or
    of the dispatcher that has most queues, or a fault of the server."""
    after_s: float
    for_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """An interval with faults of single messages."""

    from_s: float
    until_s: float
    rates: FaultRates


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seed: int
    workers: tuple[WorkerPlan, ...]
    clients: tuple[str, ...]
    steps: tuple[Step, ...]
    events: tuple[PlanEvent, ...]
    storms: tuple[Storm, ...]
    traffic_s: float
    """After this time no step begins, and all faults end."""
    watched: bool = False
    """Whether a client subscribes to all public subjects."""
    gangs: GangTraffic | None = None
    """Gangs; see gang_draw."""
    durable: DurableTraffic | None = None
    """Durable tasks; see durable_draw."""
    clocks: bool = False
    """Whether processes have clocks that differ; see variants."""
    aims: tuple[Aim, ...] = ()
    """Faults at moments; see variants."""
    limits: tuple[tuple[str, int], ...] = ()
    """`max_running` of called tasks by method; see variants."""
    rates: tuple[tuple[str, float], ...] = ()
    """`rate_per_s` of called tasks by method; see variants."""

    @property
    def elects(self) -> bool:
        """Whether the server that leads JetStream fails at some time, and another one is elected."""
        leader = leader_of(self.seed)
        return any(
            event.accident in (Accident.SILENCE, Accident.SPLIT) and event.amount == leader for event in self.events
        )

    @property
    def max_running(self) -> dict[str, int]:
        """The limits over all workers of each pool, of called and of submitted tasks, by method."""
        declared = () if self.durable is None else self.durable.declared
        submitted = {method: policy.max_running for method, policy in declared if policy.max_running is not None}
        return submitted | dict(self.limits)

    @property
    def calm(self) -> bool:
        """Whether there are no faults except at moments."""
        accidents = {event.accident for event in self.events}
        faults = {
            *FAULTS,
            *COORDINATOR_FAULTS,
            *DISPATCHER_FAULTS,
            *SERVER_FAULTS,
            Accident.WORKER_TWIN,
            Accident.DISPATCHER_UNHEARD,
        }
        return not self.storms and not self.aims and not accidents & faults

    def summary(self) -> str:
        kinds = sorted({event.accident.value for event in self.events})
        return (
            f"{len(self.workers)} workers ({sum(w.slots for w in self.workers)} slots), {len(self.clients)} clients, "
            f"{len(self.steps)} steps, {len(self.storms)} storms, accidents: {', '.join(kinds) or 'none'}"
            f"{', watched' if self.watched else ''}"
            f"{'' if self.gangs is None else f', {self.gangs.summary()}'}"
            f"{'' if self.durable is None else f', {self.durable.summary()}'}"
            f"{', clocks that differ' if self.clocks else ''}"
            f"{''.join(f', at most {most} {method}' for method, most in self.limits)}"
            f"{''.join(f', at most {rate:g} {method} a second' for method, rate in self.rates)}"
            f"{''.join(f', {aim.accident} when {aim.moment}' for aim in self.aims)}"
        )


def draw_plan(seed: int) -> Plan:
    """The plan of a seed; the same on every machine."""
    rng = random.Random(f"gangline plan {seed}")
    pools = POOLS[: rng.choice((1, 1, 2))]
    workers = tuple(
        WorkerPlan(
            name=f"w{number}",
            pool=pools[number % len(pools)],
            slots=rng.choice((1, 2, 2, 3, 4)),
            clock_skew_s=rng.choice((0.0, 0.0, rng.uniform(-5, 5))),
        )
        for number in range(rng.randint(len(pools), 4))
    )
    clients = tuple(f"c{number}" for number in range(rng.randint(1, 3)))
    traffic_s = rng.uniform(4, 9)
    steps = _with_streams(seed, _draw_steps(rng, pools, clients, traffic_s))
    calm = rng.random() < 0.125
    events = _draw_events(rng, workers, clients, steps, traffic_s, calm=calm)
    twins = () if calm else _draw_twins(seed, workers, traffic_s)
    servers = () if calm else (*_draw_silences(seed, traffic_s), *_draw_splits(seed, traffic_s))
    deletes = _draw_refused_deletes(seed, workers, traffic_s)
    if twins:
        workers = tuple(replace(worker, heartbeat_ttl_s=TWIN_TTL_S) for worker in workers)
    return Plan(
        seed=seed,
        workers=_draw_channels(seed, workers, (0.0, 1.0) if twins else (0.0, 0.5)),
        clients=clients,
        steps=steps,
        events=tuple(sorted((*events, *twins, *servers, *deletes), key=lambda event: event.at_s)),
        storms=() if calm else _draw_storms(rng, traffic_s),
        traffic_s=traffic_s,
        watched=random.Random(f"gangline watchers {seed}").random() < 0.25,
    )


def _with_streams(seed: int, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """In some plans, the tasks of some selections stream."""
    rng = random.Random(f"gangline selected streams {seed}")
    share = rng.choice((0.0, 0.0, 0.0, 0.5))
    return tuple(
        replace(step, method="items")
        if step.kind in (StepKind.DISPATCH, StepKind.TWICE) and rng.random() < share
        else step
        for step in steps
    )


_FLAVOURS = ((8, 5, 3, 1, 4, 2, 2), (8, 5, 3, 1, 4, 2, 2), (1, 1, 1, 1, 8, 2, 0), (2, 8, 4, 2, 1, 1, 1))
"""How often each kind of step occurs: mixed, mostly leases, mostly selections."""


def _draw_steps(
    rng: random.Random, pools: tuple[str, ...], clients: tuple[str, ...], traffic_s: float
) -> tuple[Step, ...]:
    busy = rng.choice((15, 30, 60))
    impatient = rng.choice((0.0, 0.1, 0.4))
    sticky = rng.choice((0.0, 0.3))
    weights = rng.choice(_FLAVOURS)
    ttls = rng.choice(((1.0, 2.0, 4.0), (1.0,)))
    # Bursts fall into one turn of the loop, and share messages.
    bursts = [rng.uniform(0, traffic_s) for _ in range(max(1, busy // 8))]
    steps: list[Step] = []
    for number in range(busy):
        kind = rng.choices(tuple(StepKind), weights=weights)[0]
        method = rng.choices(("work", "again", "heavy"), weights=(5, 3, 2))[0]
        timeout_s = rng.choice((0.3, 1.0, 3.0, 6.0))
        steps.append(
            Step(
                number=number,
                at_s=rng.choice(bursts) if rng.random() < 0.5 else rng.uniform(0, traffic_s),
                client=rng.choice(clients),
                kind=kind,
                pool=rng.choice(pools),
                method="items" if kind is StepKind.STREAM else method,
                duration_s=rng.choice((0.0, 0.002, 0.05, 0.3, 1.5)) * rng.uniform(0.5, 1.5),
                ending=rng.choices(tuple(TaskEnding), weights=(10, 2, 1))[0],
                timeout_s=timeout_s,
                cancel_after_s=rng.uniform(0, 1.2) ** 2 if rng.random() < impatient else None,
                slots=rng.choice((1, 1, 2, 2, 3)),
                ttl_s=rng.choice(ttls),
                uses=rng.randint(0, 5),
                together=rng.random() < 0.5,
                hold_s=rng.choice((0.0, 0.01, 0.5, 2.5)) * rng.uniform(0.5, 1.5),
                key=f"k{rng.randint(0, 3)}" if rng.random() < sticky else None,
            )
        )
    return tuple(sorted(steps, key=lambda step: (step.at_s, step.number)))


def _draw_events(
    rng: random.Random,
    workers: tuple[WorkerPlan, ...],
    clients: tuple[str, ...],
    steps: tuple[Step, ...],
    traffic_s: float,
    *,
    calm: bool,
) -> tuple[PlanEvent, ...]:
    kinds = [] if calm else [kind for kind in FAULTS if rng.random() < 0.3]
    kinds += [kind for kind in (Accident.DRAIN, Accident.RESIZE) if rng.random() < 0.4]
    events: list[PlanEvent] = []
    for kind in kinds:
        for _ in range(rng.randint(1, 4)):
            # Half of the faults occur during a step.
            at_s = rng.choice(steps).at_s + rng.uniform(0, 1) if rng.random() < 0.5 else rng.uniform(0, traffic_s)
            events.append(_draw_event(rng, kind, workers, clients, min(at_s, traffic_s)))
    return tuple(sorted(events, key=lambda event: event.at_s))


def _draw_event(
    rng: random.Random, kind: Accident, workers: tuple[WorkerPlan, ...], clients: tuple[str, ...], at_s: float
) -> PlanEvent:
    worker = rng.choice(workers)
    event = PlanEvent(at_s=at_s, accident=kind, target=worker.name, for_s=rng.uniform(0.05, 4.0))
    match kind:
        case Accident.CLIENT_CRASH | Accident.CLIENT_FREEZE:
            return replace(event, target=rng.choice(clients))
        case Accident.WORKER_FREEZE:
            # Below the freeze detector's second, just above it, and well above every deadline.
            return replace(event, for_s=rng.choice((0.4, 0.8, 0.9, 1.3, 3.0, 8.0)) * rng.uniform(0.8, 1.1))
        case Accident.PARTITION | Accident.DISCONNECT:
            return replace(event, target=rng.choice((worker.name, rng.choice(clients))))
        case Accident.SERVER_RESTART | Accident.STORAGE_OUTAGE:
            return replace(event, target="", for_s=rng.uniform(0.02, 2.5))
        case Accident.RESIZE:
            return replace(event, amount=rng.randint(0, worker.slots + 2))
        case _:
            return event


TWIN_TTL_S = 1.2
"""Workers that get twins lose their ids so early that most of the traffic is still to come when they wake up."""


def _draw_twins(seed: int, workers: tuple[WorkerPlan, ...], traffic_s: float) -> tuple[PlanEvent, ...]:
    """In one of four seeds, early enough that there is traffic when the first process wakes up. Own random stream."""
    rng = random.Random(f"gangline twins {seed}")
    if rng.random() > 0.25:
        return ()
    return tuple(
        PlanEvent(
            at_s=rng.uniform(0.0, 0.5) * traffic_s,
            accident=Accident.WORKER_TWIN,
            target=rng.choice(workers).name,
            for_s=TWIN_TTL_S + rng.choice((0.1, 0.3, 0.6, 1.0, 1.5, 2.5)) * rng.uniform(0.9, 1.1),
        )
        for _ in range(rng.choice((1, 1, 2)))
    )


def _draw_channels(seed: int, workers: tuple[WorkerPlan, ...], shares: tuple[float, float]) -> tuple[WorkerPlan, ...]:
    """Decide which workers are of an earlier version. Own random stream."""
    rng = random.Random(f"gangline channels {seed}")
    older = rng.choice(shares)
    return tuple(replace(worker, channel=rng.random() >= older) for worker in workers)


SILENT_SEEDS = SPLIT_SEEDS = 0.1
"""Share of the seeds with such a fault."""


def server_of(seed: int, name: str) -> int:
    """The number of the server to which a process connects."""
    return random.Random(f"{seed}-server {name}").randrange(SERVERS)


def leader_of(seed: int) -> int:
    """The number of the server that leads JetStream at first."""
    return random.Random(f"{seed}-leader").randrange(SERVERS)


def _draw_refused_deletes(seed: int, workers: tuple[WorkerPlan, ...], traffic_s: float) -> tuple[PlanEvent, ...]:
    """In one of twelve seeds, including calm ones, since they have no effect. Own random stream."""
    rng = random.Random(f"{seed}-refused delete")
    if rng.random() >= 1 / 12:
        return ()
    kind = Accident.REFUSED_DELETE
    return tuple(
        PlanEvent(at_s=rng.uniform(0.3, traffic_s), accident=kind, target=rng.choice(workers).name, for_s=0.0)
        for _ in range(rng.choice((1, 2, 4)))
    )


def _draw_silences(seed: int, traffic_s: float) -> tuple[PlanEvent, ...]:
    """In one of ten seeds. Own random stream."""
    rng = random.Random(f"{seed}-silence")
    if rng.random() >= SILENT_SEEDS:
        return ()
    return _draw_server_events(rng, Accident.SILENCE, (*range(SERVERS), *SERVERS * (ONLY_SERVER,)), traffic_s)


def _draw_splits(seed: int, traffic_s: float) -> tuple[PlanEvent, ...]:
    """In one seed of ten. From its own random stream."""
    rng = random.Random(f"{seed}-split")
    if rng.random() >= SPLIT_SEEDS:
        return ()
    return _draw_server_events(rng, Accident.SPLIT, range(SERVERS), traffic_s)


def _draw_server_events(
    rng: random.Random, kind: Accident, servers: Sequence[int], traffic_s: float
) -> tuple[PlanEvent, ...]:
    """Mostly long enough for workers to count as silent, and over before the traffic ends."""
    events: list[PlanEvent] = []
    for _ in range(rng.choice((1, 1, 2))):
        for_s = rng.choice((1.0, 2.4, 3.6, 4.5, 6.0, 8.0)) * rng.uniform(0.9, 1.1)
        at_s = rng.uniform(0.5, max(0.7, traffic_s - for_s))  # when most pools are in use
        events.append(PlanEvent(at_s=at_s, accident=kind, target="", for_s=for_s, amount=rng.choice(servers)))
    return tuple(events)


def _draw_storms(rng: random.Random, traffic_s: float) -> tuple[Storm, ...]:
    storms: list[Storm] = []
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        from_s = rng.uniform(0, traffic_s)
        strength = rng.choice((0.01, 0.05, 0.2))
        rates = {
            name: strength * rng.random()
            for name in ("drop", "duplicate", "delay", "reorder", "storage_drop")
            if rng.random() < 0.6
        }
        storms.append(
            Storm(
                from_s=from_s,
                until_s=min(traffic_s, from_s + rng.uniform(0.2, 4.0)),
                rates=FaultRates(latency_s=LATENCY_S, delay_s=MAX_DELAY_S * rng.random(), **rates),
            )
        )
    return tuple(storms)
