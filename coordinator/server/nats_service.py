"""A coordinator as a NATS service: what `nats service ls|info|stats` shows of it. Standbys are shown too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ...bus.port.bus import Bus
from ...bus.rpc.micro_service import Endpoint, MicroService, ServiceDescription, statistics_of
from ...runtime.clock import Environment
from ...schemas.names import GangOperation, Names
from ..sharding.shards import Shard

SERVICE: Final = "gangline-coordinator"


def coordinator_service(
    bus: Bus,
    names: Names,
    *,
    ambient: Environment,
    instance: str,
    node: str,
    shard: Shard,
    leads: Callable[[], bool],
    term: Callable[[], int],
    counts: Mapping[str, list[int]],
) -> MicroService:
    """Shows one coordinator.

    Args:
        leads: whether it does, now.
        term: of the leadership under way, or of the last one that it knows of.
        counts: requests and errors by operation; grows meanwhile.
    """
    sharded = {"shard": shard.name, "pools": ",".join(sorted(shard.pools))} if shard.pools is not None else {}

    def describe() -> ServiceDescription:
        return ServiceDescription(
            name=SERVICE,
            description="Grants gangs of slots, all or nothing",
            metadata={
                "namespace": names.namespace,
                "node": node,
                "role": "leader" if leads() else "standby",
                "term": str(term()),
                **sharded,
            },
            endpoints=[
                Endpoint(name=str(operation), subject=names.gang(operation))
                for operation in (GangOperation if leads() else ())
            ],
        )

    return MicroService(bus, describe, statistics=lambda: statistics_of(counts), ambient=ambient, instance=instance)
