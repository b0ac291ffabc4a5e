"""What a coordinator has for as long as it runs, and each of its leaderships works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..bus.port.bus import Bus, KeyValue
from ..runtime.clock import EventClock
from ..schemas.errors.gangs import ShardConflict
from ..schemas.names import Names
from ..telemetry.logs import Log
from .election.elector import Elector
from .election.leader_record import LeaderKey
from .ledger.worker_registry import WorkerRegistry
from .service_settings import ServiceSettings
from .settings import CoordinatorSettings
from .sharding.registry import ShardRegistry
from .sharding.shards import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorContext:
    """What a term works with; outlives it."""

    bus: Bus
    kv: KeyValue
    names: Names
    clock: EventClock
    leader: LeaderKey
    worker_registry: WorkerRegistry
    elector: Elector
    settings: CoordinatorSettings
    shell: ServiceSettings
    shard: Shard
    registry: ShardRegistry
    unfit: Callable[[ShardConflict], None]
    """Told that others keep our pools: we must not lead any more."""
    counts: dict[str, list[int]]
    """Requests and errors by operation."""
    log: Log
