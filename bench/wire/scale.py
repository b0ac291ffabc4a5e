"""Costs that could grow with the number of workers, measured in one process without a server: a router's choice and
its memory, a coordinator's placement and its decisions."""

from __future__ import annotations

import gc
import itertools
import random
import time
import tracemalloc
from functools import cache
from typing import Any, Final

from ..bus.memory.server import MemoryServer
from ..bus.port.bus import BucketSettings
from ..coordinator.core.gang_core import SchedulerCore
from ..coordinator.model import events as on
from ..coordinator.model.effects import SendHold
from ..coordinator.scheduling.inventory import SlotIndex, WorkerFacts, WorkerSpot
from ..coordinator.scheduling.placement import place
from ..dispatcher.router.router import Router
from ..dispatcher.routing.policy import Sticky
from ..dispatcher.routing.pool_core import RoutedRequest, RoutingCore
from ..dispatcher.routing.settings import RouterSettings
from ..schemas.messages.gangs import AcquireRequest, OwnedRequest
from ..schemas.names import Names, WorkerId
from ..schemas.records.gangs import Bundle, GangSpec, Strategy
from ..schemas.records.workers import Heartbeat, MethodInfo, Registration
from .child import main, serve

FEW: Final = 10
MANY: Final = 10_000
_CHOICES: Final = 3_000
_PLACEMENTS: Final = 200
_DECISIONS: Final = 200
_GANG: Final = 8
_gangs = itertools.count()  # a core remembers the ids of ended gangs


def registration(number: int) -> Registration:
    """As a worker of a real cluster writes it: a hundred workers share a node."""
    return Registration(
        pool="p",
        worker=f"host-{number // 100}-{number:06}",
        epoch=1_700_000_000_000 + number,
        instance=f"instance-{number:013}",
        slots=4,
        methods={"echo": MethodInfo(description="Give it back."), "nap": MethodInfo(slots=2, idempotent=True)},
        node=f"node-{number // 100}",
        zone=f"zone-{number % 3}",
        address=f"10.0.{number // 250}.{number % 250}:7000",
        labels={"zone": f"zone-{number % 3}", "gpu": "h100"},
        pid=number,
        version="0.1.0",
    )


@cache
def router_core(workers: int) -> RoutingCore:
    """A router's view of this many workers; created once for all rounds."""
    core = RoutingCore("p", RouterSettings(), Sticky(), random.Random(7).random)
    for number in range(workers):
        core.registered(registration(number), number + 1, 0.0)
    return core


def routing_s(workers: int) -> float:
    """Seconds to assign one request to one of this many workers, and to settle it."""
    core = router_core(workers)
    began_at = time.perf_counter()
    for _ in range(_CHOICES):
        ticket = RoutedRequest(method="echo")
        assert core.admit(ticket, 1.0)
        core.accepted(ticket, 1.0)
        core.settle(ticket)
    return (time.perf_counter() - began_at) / _CHOICES


@cache
def slot_map(workers: int) -> SlotIndex:
    """A coordinator's view of this many workers."""
    slots = SlotIndex()
    for number in range(workers):
        record = registration(number)
        worker = WorkerId(record.pool, record.worker)
        slots.put(WorkerSpot(worker=worker, node=record.node, labels=record.labels), record.slots)
    return slots


def placing_s(workers: int) -> float:
    """Seconds to place a gang of eight on this many workers."""
    slots = slot_map(workers)
    spec = GangSpec(bundles=(Bundle(pool="p", count=_GANG),), strategy=Strategy.SPREAD)
    began_at = time.perf_counter()
    for _ in range(_PLACEMENTS):
        assert place(spec, slots) is not None
    return (time.perf_counter() - began_at) / _PLACEMENTS


@cache
def gang_core(workers: int) -> SchedulerCore:
    """A coordinator that leads and knows this many workers."""
    core = SchedulerCore()
    known = []
    for number in range(workers):
        record = registration(number)
        worker = WorkerId(record.pool, record.worker)
        facts = WorkerFacts(
            id=worker,
            epoch=record.epoch,
            revision=number + 1,
            total=record.slots,
            node=record.node,
            labels=record.labels,
        )
        known.append(facts)
    core.handle(on.LeadershipGained(now=0.0, term=1, fence=1, workers=tuple(known)))
    return core


def deciding_s(workers: int) -> float:
    """Seconds from the request for a gang of eight to its holds, and to its end when it is withdrawn."""
    core = gang_core(workers)
    began_at = time.perf_counter()
    for _ in range(_DECISIONS):
        gang = f"g{next(_gangs)}"
        fields = {"pool": "p", "size": _GANG, "strategy": Strategy.SPREAD, "id": gang, "owner_token": "t"}
        request = AcquireRequest.model_validate(fields)
        effects = core.handle(on.AcquireAsked(now=0.0, request=request, reply_to=1, new_id=gang, new_token="t"))
        assert sum(isinstance(effect, SendHold) for effect in effects) == _GANG
        core.handle(on.ReleaseAsked(now=0.0, request=OwnedRequest(id=gang, owner_token="t"), reply_to=2))
    return (time.perf_counter() - began_at) / _DECISIONS


async def bytes_per_worker(workers: int) -> float:
    """A router's memory per known worker, traced after it has read all of them."""
    hub, names = MemoryServer(), Names()
    writer = hub.connect("writer")
    ledger = await writer.bucket(names.ledger_bucket, BucketSettings())
    for number in range(workers):
        record = registration(number)
        worker = WorkerId(record.pool, record.worker)
        beat = Heartbeat(epoch=record.epoch, instance=record.instance, running=0, reserved=0, total=4)
        await ledger.put(names.registration_key(worker), record.model_dump_json().encode())
        await ledger.put(names.alive_key(worker), beat.model_dump_json().encode())
    router = Router(hub.connect("router"), names)
    await router.start()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        pool = await router.pool("p")
        assert len(pool.core.view.workers) == workers
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        await router.stop()
    return (after - before) / workers


async def life() -> None:
    async def route() -> dict[str, Any]:
        few, many = routing_s(FEW), routing_s(MANY)
        return {"few_s": few, "many_s": many}

    async def form() -> dict[str, Any]:
        few, many = placing_s(FEW), placing_s(MANY)
        return {"few_s": few, "many_s": many}

    async def decide() -> dict[str, Any]:
        few, many = deciding_s(FEW), deciding_s(MANY)
        return {"few_s": few, "many_s": many}

    async def memory() -> dict[str, Any]:
        return {"bytes_per_worker": await bytes_per_worker(2_000)}

    gc.disable()  # a garbage collection during one side would be counted as its cost
    await serve({"route": route, "form": form, "decide": decide, "memory": memory})


if __name__ == "__main__":
    main(life)
