"""The requests that a dispatcher answers, and how others see it.

A dispatcher answers `<ns>.dispatcher.<id>.{ping,stats}`, and is a NATS service. Clients and operators send requests
about one queue to `<ns>.queue.<endpoint>.{get,list,cancel,stats,why,wait}`: only its owner listens, so the server
reports at once if nobody owns the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pydantic import BaseModel

from ...bus.port.bus import Bus, Message, StorageUnavailable, StreamMessage
from ...bus.rpc.micro_service import Endpoint, EndpointStatistics, MicroService, ServiceDescription
from ...bus.rpc.responder import CountingResponder, Listening, Responder, listen
from ...schemas.errors.base import GanglineError, InvalidRequest, NoDispatcher, UnknownJob
from ...schemas.messages.jobs import (
    CancelReply,
    CancelRequest,
    DispatcherStats,
    JobInfo,
    JobObstacle,
    JobRequest,
    JobWhyReply,
    ListReply,
    ListRequest,
    QueueStats,
    WaitRequest,
)
from ...schemas.messages.operations import parse_request
from ...schemas.names import DispatcherOperation, Names, QueueOperation, job_of_tenant, short_job
from ...schemas.permissions.quotas import Quotas, is_account_key
from ...schemas.records.jobs import JobState
from ...schemas.wire import headers
from ..jobs.stored import UNREAD, JobRef, info_of_task
from .queue.queue_runner import QueueRunner
from .workers.context import DispatcherContext

SERVICE: Final = "gangline-dispatcher"
"""Name under which `nats service ls` shows durable dispatchers."""
_CANCEL_S: Final = 1.0
"""A cancellation that is not stored after this time is answered with the reason, if one is known. Clients ask again
after 1.5 s."""


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
        delayed: Callable[[], int],
        quotas: Quotas,
    ) -> None:
        """
        Args:
            delayed: number of the endpoint's tasks that wait for their time.
            quotas: has the names of tenants.
        """
        self._bus = bus
        self._names = names
        self._queue = queue
        self._responder = responder
        self._delayed = delayed
        self._quotas = quotas
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
        operation, given = message.subject.rpartition(".")[2], message.headers
        account = "" if given is None or headers.REQUEST_INFO not in given else headers.account_of(given)
        if operation == QueueOperation.WAIT:
            self._responder.serve_when(message, functools.partial(self._wait, account))
            return
        later: dict[str, Callable[[str, Any], Awaitable[BaseModel]]] = {
            QueueOperation.CANCEL: self._cancel,
            QueueOperation.GET: self._get,
            QueueOperation.WHY: self._why,
        }
        if operation in later:
            self._responder.serve_later(message, functools.partial(later[operation], account))
            return
        handlers: dict[str, Callable[[str, Any], QueueStats | ListReply]] = {
            QueueOperation.LIST: self._list,
            QueueOperation.STATS: self._stats,
        }
        handler = handlers.get(operation)
        known = _unknown(operation, [*QueueOperation]) if handler is None else functools.partial(handler, account)
        self._responder.serve(message, known)

    async def _get(self, account: str, body: Any) -> JobInfo:
        request = parse_request(JobRequest, body)
        job = self._job(account, request.job)
        return await self._queue.looked_up(job) or self._info_of_unread(job, await self._unread(job, request.sequence))

    async def _unread(self, job: str, sequence: int) -> StreamMessage:
        """A task that is in the stream, and not fetched.

        Raises:
            UnknownJob, NoDispatcher.
        """
        message = await self._queue.unread(job, sequence) if self._queue.core.open else None
        if message is None:
            raise self._not_here(job)
        return message

    def _info_of_unread(self, job: str, message: StreamMessage) -> JobInfo:
        return self._queue.info(job) or info_of_task(JobRef(job), message, self._names)

    def _list(self, account: str, body: Any) -> ListReply:
        return self._queue.listed(parse_request(ListRequest, body), self._quotas.tenant_of(account))

    def _wait(self, account: str, responder: Responder, body: Any) -> None:
        request = parse_request(WaitRequest, body)
        asked: dict[str, str] = {}
        if account:
            asked = {self._job(account, job): job for job in request.jobs}
            if len(asked) < len(request.jobs):
                raise InvalidRequest("the request names a job twice, with and without its tenant: name it once")
            request = request.model_copy(update={"jobs": tuple(asked)})
        self._queue.waiters.add(request, responder, asked)

    async def _cancel(self, account: str, body: Any) -> CancelReply:
        request = parse_request(CancelRequest, body)
        job = self._job(account, request.job)
        info = await self._stored_cancel(job)
        later = None
        if info is None and not request.unscheduled and self._queue.core.open:
            message = await self._queue.unread(job, request.sequence)
            if message is not None and self._info_of_unread(job, message).state is not JobState.SCHEDULED:
                self._queue.read_ahead(message)
                info = await self._stored_cancel(job)
            later = None if message is None else message.sequence
        if info is None and request.unscheduled:
            await self._queue.unscheduled(job)
        if info is None:
            self._queue.waiters.left(job)  # its client cancels it in the stream
            raise self._not_here(job, later)
        return CancelReply(cancelled=info.state not in (JobState.DONE, JobState.DEAD), state=info.state)

    async def _stored_cancel(self, job: str) -> JobInfo | None:
        """As the queue's `cancel`, but says soon why it cannot be stored."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CANCEL_S):
                return await self._queue.cancel(job)
        if impaired := self._impaired():
            raise StorageUnavailable(
                f"neither the cancellation of {job!r} nor its end can be stored: {impaired}. The dispatcher tries again"
            )
        return await self._queue.cancel(job)

    def _stats(self, account: str, body: Any) -> QueueStats:
        return self._queue.statistics(self._delayed()).model_copy(update={"impaired": self._impaired()})

    def _impaired(self) -> str:
        return "; ".join(self._bus.impairments())

    async def _why(self, account: str, body: Any) -> JobWhyReply:
        return (await self._why_of(account, body)).model_copy(update={"impaired": self._impaired()})

    async def _why_of(self, account: str, body: Any) -> JobWhyReply:
        request = parse_request(JobRequest, body)
        job = self._job(account, request.job)
        why = self._queue.why(job)
        if why is not None:
            return why
        message = await self._unread(job, request.sequence)
        info = self._info_of_unread(job, message)
        later = info.state is JobState.SCHEDULED
        obstacle = JobObstacle(
            kind="schedule" if later else "position", text=info.reason or UNREAD, until=info.next_try_at
        )
        return self._queue.why(job) or JobWhyReply(job=info, obstacles=(obstacle,))

    def _job(self, account: str, job: str) -> str:
        """The id, in Gangline's account, of the job that a user of that account (empty: Gangline's) means: a tenant's
        requests are about its own jobs, whatever ids it names.

        Raises:
            UnknownJob: we do not know which tenant that is.
        """
        if not account:
            return job
        tenant = self._quotas.tenant_of(account)
        if not is_account_key(tenant):
            return job_of_tenant(job, self._queue.endpoint, tenant)
        if short_job(job) == job:
            raise UnknownJob(
                f"this dispatcher does not know the name of your account {tenant}: give the id of the job with the "
                "tenant, or have an operator start dispatchers with the names of all tenants (GANGLINE_QUOTAS)",
                details={"job": ""},
            )
        return job

    def _not_here(self, job: str, sequence: int | None = None) -> GanglineError:
        if not self._queue.core.open:
            return NoDispatcher(f"the queue of {self._queue.endpoint} is being taken over: ask again")
        return UnknownJob(
            f"job {job} is not among the waiting tasks of {self._queue.endpoint}: it has ended, is delayed, or was "
            "never submitted",
            details={"job": job, "certain": True, **({} if sequence is None else {"sequence": sequence})},
        )

    def __repr__(self) -> str:
        return f"QueueOperations({self._queue.endpoint})"


def _unknown(operation: str, known: list[str]) -> Callable[[Any], Any]:
    def refuse(_body: Any) -> Any:
        raise InvalidRequest(f"no operation {operation[:40]!r}; known are {', '.join(known)}")

    return refuse
