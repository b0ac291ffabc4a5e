"""What a coordinator has for as long as it runs, and each of its leaderships works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..bus.port import Bus, KeyValue
from ..schemas.gang_errors import ShardConflict
from ..schemas.names import Names
from ..telemetry.logs import Log
from .candidacy import Candidacy
from .census import Census
from .leader_key import LeaderKey
from .moment import Clock
from .settings import CoordinatorSettings
from .shard_registry import ShardRegistry
from .shards import Shard
from .shell_settings import ShellSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """What a term works with; outlives it."""

    bus: Bus
    kv: KeyValue
    names: Names
    clock: Clock
    leader: LeaderKey
    census: Census
    candidacy: Candidacy
    settings: CoordinatorSettings
    shell: ShellSettings
    shard: Shard
    registry: ShardRegistry
    unfit: Callable[[ShardConflict], None]
    """Told that others keep our pools: we must not lead any more."""
    counts: dict[str, list[int]]
    """Requests and errors by operation."""
    log: Log
