"""A dispatcher as others see it: it answers `<ns>.dispatcher.<id>.{ping,stats}`, and is a NATS service."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from ....bus.port.bus import Bus, Message
from ....bus.port.types import Subscription
from ....bus.rpc.micro_service import (
    Endpoint,
    EndpointStatistics,
    MicroService,
    ServiceDescription,
)
from ....bus.rpc.responder import CountingResponder, listen
from ....runtime.clock import Environment
from ....schemas.errors.base import GanglineError, InvalidRequest
from ....schemas.messages.jobs import DispatcherStats
from ....schemas.names import DispatcherOperation, Names
from ..freeze_guard import DoubtMonitor

SERVICE: Final = "gangline-dispatcher"
"""Name under which `nats service ls` shows durable dispatchers."""


class DispatcherNatsService:
    """Of one dispatcher."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        *,
        dispatcher: str,
        name: str,
        node: str,
        guard: DoubtMonitor,
        ambient: Environment,
        responder: CountingResponder,
        statistics: Callable[[], DispatcherStats],
    ) -> None:
        """`statistics` is asked for each `stats`, and must be quick."""
        self._bus = bus
        self._names = names
        self._dispatcher = dispatcher
        self._guard = guard
        self._responder = responder
        self._statistics = statistics
        self._pong = DispatcherStats(dispatcher=dispatcher, name=name, node=node, since=ambient.wall())
        self._subscription: Subscription | None = None
        description = self._describe(name, node)
        self._service = MicroService(
            bus, lambda: description, statistics=self._counters, ambient=ambient, instance=dispatcher
        )

    async def start(self) -> None:
        subjects = self._names.both(self._names.dispatcher(self._dispatcher))
        self._subscription = await listen(self._bus, subjects, self._on_request)
        await self._service.start()

    async def stop(self) -> None:
        """Idempotent, safe before `start`."""
        subscription, self._subscription = self._subscription, None
        with contextlib.suppress(GanglineError):
            await self._service.stop()
        if subscription is not None:
            with contextlib.suppress(GanglineError):
                await subscription.unsubscribe()

    def _on_request(self, message: Message) -> None:
        self._guard.look()
        operation = message.subject.rpartition(".")[2]
        self._responder.serve(message, lambda body: self._answer(operation, body))

    def _answer(self, operation: str, _body: Any) -> DispatcherStats:
        match operation:
            case DispatcherOperation.PING:
                return self._pong
            case DispatcherOperation.STATS:
                return self._statistics()
            case _:
                raise InvalidRequest(f"no operation {operation[:40]!r}; there are {', '.join(DispatcherOperation)}")

    def _describe(self, name: str, node: str) -> ServiceDescription:
        names = self._names
        return ServiceDescription(
            name=SERVICE,
            description="Runs durable tasks",
            metadata={"namespace": names.namespace, "node": node, "name": name},
            endpoints=tuple(
                Endpoint(name=operation.value, subject=names.dispatcher(self._dispatcher, operation))
                for operation in DispatcherOperation
            ),
        )

    def _counters(self) -> list[EndpointStatistics]:
        stats, responder = self._statistics(), self._responder
        data = {
            "queues": [queue.endpoint for queue in stats.queues],
            "running": sum(queue.running for queue in stats.queues),
            "depth": sum(queue.depth for queue in stats.queues),
            **stats.counts,
        }
        return [
            EndpointStatistics(
                name=DispatcherOperation.STATS.value,
                requests=responder.requests,
                errors=responder.errors,
                last_error=responder.last_error,
                data=data,
            )
        ]

    def __repr__(self) -> str:
        return f"DispatcherNatsService({self._dispatcher})"
