"""A worker as a NATS service: what `nats service ls|info|stats` shows of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...bus.port.bus import Bus
from ...bus.rpc.micro_service import Endpoint, EndpointStatistics, ServiceDescription, ServiceResponder
from ...runtime.clock import Ambient
from ...schemas.names import Names, Operation, WorkerId
from ...schemas.records.workers import Registration

SERVICE = "gangline-worker"


class Discovery:
    """Shows one worker. Its endpoints are its operations; FRAMES counts messages, not tasks."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        worker: WorkerId,
        *,
        ambient: Ambient,
        instance: str,
        registration: Callable[[], Registration],
        counts: Callable[[], Mapping[str, tuple[int, int]]],
    ) -> None:
        """`counts` gives requests and errors by operation."""
        self._names = names
        self._worker = worker
        self._registration = registration
        self._counts = counts
        self._responder = ServiceResponder(
            bus, self._describe(), statistics=self._statistics, ambient=ambient, instance=instance
        )

    async def start(self) -> None:
        """Idempotent."""
        await self._responder.start()

    async def stop(self) -> None:
        """Idempotent, and safe before `start`."""
        await self._responder.stop()

    def refresh(self) -> None:
        """The registration has changed."""
        self._responder.replace_description(self._describe())

    def _describe(self) -> ServiceDescription:
        registration = self._registration()
        return ServiceDescription(
            name=SERVICE,
            version=registration.version or "0.0.0",
            description=f"tasks of pool {registration.pool}: {', '.join(registration.methods) or 'none'}",
            metadata={
                "namespace": self._names.namespace,
                "pool": registration.pool,
                "worker": registration.worker,
                "epoch": str(registration.epoch),
                "state": registration.state,
                "slots": str(registration.slots),
                "node": registration.node,
                "zone": registration.zone,
            },
            endpoints=[
                Endpoint(name=str(operation), subject=self._names.worker(self._worker, operation))
                for operation in Operation
            ],
        )

    def _statistics(self) -> list[EndpointStatistics]:
        return [
            EndpointStatistics(name=name, requests=requests, errors=errors)
            for name, (requests, errors) in self._counts().items()
        ]
