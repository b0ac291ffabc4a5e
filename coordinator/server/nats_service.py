"""A coordinator as a NATS service: what `nats service ls|info|stats` shows of it. Standbys are shown too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...bus.port.bus import Bus
from ...bus.rpc.micro_service import Endpoint, EndpointStatistics, ServiceDescription, ServiceResponder, package_version
from ...runtime.clock import Ambient
from ...schemas.names import GangOperation, Names
from ..sharding.shards import Shard

SERVICE: Final = "gangline-coordinator"


class Discovery:
    """Shows one coordinator."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        *,
        ambient: Ambient,
        instance: str,
        node: str,
        shard: Shard,
        counts: Mapping[str, list[int]],
    ) -> None:
        """`counts`: requests and errors by operation, read at each question."""
        self._names = names
        self._node = node
        self._shard = shard
        self._counts = counts
        self._responder = ServiceResponder(
            bus, self._describe("standby", 0), statistics=self._statistics, ambient=ambient, instance=instance
        )

    async def start(self) -> None:
        """Idempotent."""
        await self._responder.start()

    async def stop(self) -> None:
        """Idempotent, and safe before `start`."""
        await self._responder.stop()

    def role(self, role: str, term: int) -> None:
        """It leads, or it stands by."""
        self._responder.replace_description(self._describe(role, term))

    def _describe(self, role: str, term: int) -> ServiceDescription:
        shard = self._shard
        operations = list(GangOperation) if role == "leader" else []
        return ServiceDescription(
            name=SERVICE,
            version=package_version(),
            description="Grants gangs of slots, all or nothing",
            metadata={
                "namespace": self._names.namespace,
                "node": self._node,
                "role": role,
                "term": str(term),
                **({"shard": shard.name, "pools": ",".join(sorted(shard.pools))} if shard.pools is not None else {}),
            },
            endpoints=[Endpoint(name=str(operation), subject=self._names.gang(operation)) for operation in operations],
        )

    def _statistics(self) -> list[EndpointStatistics]:
        return [
            EndpointStatistics(name=name, requests=requests, errors=errors)
            for name, (requests, errors) in self._counts.items()
        ]
