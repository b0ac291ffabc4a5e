"""A worker as a NATS service: what `nats service ls|info|stats` shows of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...bus.rpc.micro_service import Endpoint, MicroService, ServiceDescription, statistics_of
from ...schemas.names import Operation
from ...schemas.records.workers import Registration
from ..identity import WorkerIdentity

SERVICE = "gangline-worker"


def worker_service(
    place: WorkerIdentity, registration: Callable[[], Registration], counts: Callable[[], Mapping[str, Sequence[int]]]
) -> MicroService:
    """Shows one worker. Its endpoints are its operations; FRAMES counts messages, not tasks.

    `counts` gives requests and errors by operation.
    """

    def describe() -> ServiceDescription:
        now = registration()
        return ServiceDescription(
            name=SERVICE,
            version=now.version or "0.0.0",
            description=f"tasks of pool {now.pool}: {', '.join(now.methods) or 'none'}",
            metadata={
                "namespace": place.names.namespace,
                "pool": now.pool,
                "worker": now.worker,
                "epoch": str(now.epoch),
                "state": now.state,
                "slots": str(now.slots),
                "node": now.node,
                "zone": now.zone,
            },
            endpoints=[
                Endpoint(name=str(operation), subject=place.names.worker(place.worker, operation))
                for operation in Operation
            ],
        )

    return MicroService(
        place.bus,
        describe,
        statistics=lambda: statistics_of(counts()),
        ambient=place.ambient,
        instance=place.instance,
    )
