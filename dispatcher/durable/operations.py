"""The requests that a dispatcher answers, and how others see it.

A dispatcher answers `<ns>.dispatcher.<id>.{ping,stats}`, and is a NATS service. Clients and operators send requests
about one queue to `<ns>.queue.<endpoint>.{get,list,cancel,stats,why,wait}`: only its owner listens, so the server
reports at once if nobody owns the queue.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from ...bus.port.bus import Bus, Message
from ...bus.rpc.micro_service import Endpoint, EndpointStatistics, MicroService, ServiceDescription
from ...bus.rpc.responder import CountingResponder, Listening, Responder, listen
from ...schemas.errors.base import GanglineError, InvalidRequest, NoDispatcher, UnknownJob
from ...schemas.messages.jobs import (
    CancelReply,
    DispatcherStats,
    JobInfo,
    JobRequest,
    JobWhyReply,
    ListReply,
    ListRequest,
    QueueStats,
    WaitRequest,
)
from ...schemas.messages.operations import parse_request
from ...schemas.names import DispatcherOperation, Names, QueueOperation
from ...schemas.records.jobs import JobState
from .queue.queue_runner import QueueRunner
from .workers.context import DispatcherContext

SERVICE: Final = "gangline-dispatcher"
"""Name under which `nats service ls` shows durable dispatchers."""


class DispatcherNatsService:
    """The NATS service of one dispatcher."""

    def __init__(
        self, context: DispatcherContext, *, responder: CountingResponder, statistics: Callable[[], DispatcherStats]
    ) -> None:
        """`statistics` is called for each `stats` request, and must be fast."""
        self._bus, self._names, self._dispatcher = context.bus, context.names, context.dispatcher
        self._guard = context.guard
        self._responder = responder
        self._statistics = statistics
        name, node = context.name, context.settings.node
        self._pong = DispatcherStats(dispatcher=context.dispatcher, name=name, node=node, since=context.ambient.wall())
        self._listening = Listening()
        names = context.names
        description = ServiceDescription(
            name=SERVICE,
            description="Runs durable tasks",
            metadata={"namespace": names.namespace, "node": node, "name": name},
            endpoints=tuple(
                Endpoint(name=operation.value, subject=names.dispatcher(context.dispatcher, operation))
                for operation in DispatcherOperation
            ),
        )
        self._service = MicroService(
            context.bus,
            lambda: description,
            statistics=self._counters,
            ambient=context.ambient,
            instance=context.dispatcher,
        )

    async def start(self) -> None:
        subjects = self._names.both(self._names.dispatcher(self._dispatcher))
        self._listening = await listen(self._bus, subjects, self._on_request)
        await self._service.start()

    async def stop(self) -> None:
        """Idempotent, safe before `start`."""
        with contextlib.suppress(GanglineError):
            await self._service.stop()
        await self._listening.drain()

    def _on_request(self, message: Message) -> None:
        self._guard.look()
        operation = message.subject.rpartition(".")[2]
        handlers: dict[str, Callable[[Any], DispatcherStats]] = {
            DispatcherOperation.PING: lambda _: self._pong,
            DispatcherOperation.STATS: lambda _: self._statistics(),
        }
        self._responder.serve(message, handlers.get(operation, _unknown(operation, [*DispatcherOperation])))

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


class QueueOperations:
    """The operations of one queue."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        queue: QueueRunner,
        *,
        responder: CountingResponder,
        counts: Callable[[str], tuple[int | None, int]],
    ) -> None:
        """`counts`: number of an endpoint's tasks in the stream, if known, and of those that wait for their time."""
        self._bus = bus
        self._names = names
        self._queue = queue
        self._responder = responder
        self._counts = counts
        self._listening = Listening()

    async def start(self) -> None:
        subjects = self._names.both(self._names.queue(self._queue.endpoint))
        self._listening = await listen(self._bus, subjects, self._on_request)

    async def stop(self) -> None:
        """Idempotent, safe before `start`."""
        await self._listening.drain()

    async def abandon(self) -> None:
        """Like `stop`, but at once and without further answers: another dispatcher owns the queue, and gets the
        requests."""
        await self._listening.unsubscribe()

    def _on_request(self, message: Message) -> None:
        operation = message.subject.rpartition(".")[2]
        if operation == QueueOperation.WAIT:
            self._responder.serve_when(message, self._wait)
            return
        if operation == QueueOperation.CANCEL:
            self._responder.serve_later(message, self._cancel)
            return
        handlers: dict[str, Callable[[Any], JobInfo | QueueStats | JobWhyReply | ListReply]] = {
            QueueOperation.GET: self._get,
            QueueOperation.LIST: self._list,
            QueueOperation.STATS: self._stats,
            QueueOperation.WHY: self._why,
        }
        self._responder.serve(message, handlers.get(operation, _unknown(operation, [*QueueOperation])))

    def _get(self, body: Any) -> JobInfo:
        request = parse_request(JobRequest, body)
        info = self._queue.info(request.job)
        if info is None:
            raise self._not_here(request.job)
        return info

    def _list(self, body: Any) -> ListReply:
        return self._queue.listed(parse_request(ListRequest, body))

    def _wait(self, responder: Responder, body: Any) -> None:
        self._queue.waiters.add(parse_request(WaitRequest, body), responder)

    async def _cancel(self, body: Any) -> CancelReply:
        request = parse_request(JobRequest, body)
        info = await self._queue.cancel(request.job)
        if info is None:
            self._queue.waiters.left(request.job)  # its client cancels it in the stream
            raise self._not_here(request.job)
        return CancelReply(cancelled=info.state not in (JobState.DONE, JobState.DEAD), state=info.state)

    def _stats(self, body: Any) -> QueueStats:
        return self._queue.statistics(*self._counts(self._queue.endpoint))

    def _why(self, body: Any) -> JobWhyReply:
        request = parse_request(JobRequest, body)
        why = self._queue.why(request.job)
        if why is None:
            raise self._not_here(request.job)
        return why

    def _not_here(self, job: str) -> GanglineError:
        if not self._queue.core.open:
            return NoDispatcher(f"the queue of {self._queue.endpoint} is being taken over: ask again")
        return UnknownJob(
            f"job {job} is not among the tasks of {self._queue.endpoint} that the dispatcher has fetched: it has "
            "ended, is further back in the stream, or was never submitted",
            details={"job": job},
        )

    def __repr__(self) -> str:
        return f"QueueOperations({self._queue.endpoint})"


def _unknown(operation: str, known: list[str]) -> Callable[[Any], Any]:
    def refuse(_body: Any) -> Any:
        raise InvalidRequest(f"no operation {operation[:40]!r}; known are {', '.join(known)}")

    return refuse
