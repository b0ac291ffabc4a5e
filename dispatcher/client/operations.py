"""Operator functions of the client: list workers and leases, drain, resize, statistics, change routes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ...bus.port.bus import Bus, KeyValue, KvEntry, NoResponders
from ...bus.rpc.requester import read_answer
from ...schemas.errors.base import NoWorkers, Unavailable
from ...schemas.messages.operations import (
    DrainReply,
    DrainRequest,
    ResizeReply,
    ResizeRequest,
    StatsReply,
    parse_request,
)
from ...schemas.names import Names, Operation, WorkerId, check_name, split_target
from ...schemas.records.routes import RouteRecord, parse_route
from ...schemas.records.workers import Heartbeat, LeaseRecord, Record, Registration
from ...schemas.wire import codec
from ...telemetry.logs import logger_for
from ..calls.call import CallOptions
from ..jobs.job import ASK_TIMEOUT_S
from ..jobs.storage import TaskStreams
from ..router.router import Router

_log = logger_for("ledger")
R = TypeVar("R", bound=BaseModel)
V = TypeVar("V", bound=Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """An active worker, as recorded in the ledger."""

    registration: Registration
    heartbeat: Heartbeat
    """At most a second old."""

    @property
    def name(self) -> str:
        """`<pool>.<worker>`, the argument of `drain` and `resize`."""
        return f"{self.registration.pool}.{self.registration.worker}"

    @property
    def ongoing(self) -> int:
        """Slots that are running a task or reserved."""
        return self.heartbeat.running + self.heartbeat.reserved


class Operations:
    """Operator functions of Client: they send requests to workers, read the ledger, and write routes."""

    _bus: Bus
    _options: CallOptions
    _router: Router
    _streams: TaskStreams

    def _check_open(self) -> None:
        raise NotImplementedError

    async def workers(self, pool: str | None = None) -> list[WorkerInfo]:
        """Active workers of one pool, or of all pools, sorted by name.

        Raises:
            Disconnected, StorageUnavailable: the ledger could not be read.
        """
        self._check_open()
        router = self._router
        return [
            WorkerInfo(registration=record, heartbeat=beat)
            for record, beat in await registered(await router.ledger(), router.names, pool or "*")
            if beat is not None
        ]

    async def leases(self, pool: str | None = None, worker: str | None = None) -> list[LeaseRecord]:
        """Current leases, oldest first; `worker` is the name within its pool.

        Raises:
            Disconnected, StorageUnavailable: the ledger could not be read.
        """
        self._check_open()
        router = self._router
        records = await _read(await router.ledger(), router.names.leases_of(pool or "*", worker or "*"), LeaseRecord)
        return sorted(records.values(), key=lambda record: (record.granted_at, record.token))

    async def drain(self, worker: str, *, grace_s: float | None = None) -> DrainReply:
        """Drain a worker (`POOL.WORKER`): it accepts nothing new, finishes its tasks and leaves; tasks still running
        after `grace_s` are cancelled. Returns as soon as draining has begun.

        Raises:
            NoWorkers: there is no such worker.
            InvalidRequest: `grace_s` is not a number of seconds.
            RequestTimeout: it did not answer.
        """
        request = parse_request(DrainRequest, {"grace_s": grace_s})
        return await self._ask(worker, Operation.DRAIN, request, DrainReply)

    async def resize(self, worker: str, slots: int) -> ResizeReply:
        """Change the number of slots of a running worker (`POOL.WORKER`); 0 pauses it.

        Raises:
            NoWorkers: there is no such worker.
            InvalidRequest: `slots` is not a number of slots.
            RequestTimeout: it did not answer.
        """
        request = parse_request(ResizeRequest, {"slots": slots})
        return await self._ask(worker, Operation.RESIZE, request, ResizeReply)

    async def stats(self, worker: str) -> StatsReply:
        """Statistics of a worker (`POOL.WORKER`): load, leases, counts.

        Raises:
            NoWorkers: there is no such worker.
            RequestTimeout: it did not answer.
        """
        return await self._ask(worker, Operation.STATS, None, StatsReply)

    async def set_route(self, endpoint: str, route: RouteRecord | Mapping[str, Any], /) -> RouteRecord:
        """Set or replace the route of an endpoint, for the traffic of all clients.

        ::

            await client.set_route("resize", {"to": {"resize-v1": 90, "resize-v2": 10}, "shadow": {"resize-v3": 5}})

        This client follows the new route when this returns, all others within a second.

        Raises:
            InvalidRoute: the route is invalid; says which field, and why. Nothing was written.
            Disconnected, StorageUnavailable: it may not have been written.
        """
        self._check_open()
        body = route.model_dump(mode="json", exclude_defaults=True) if isinstance(route, RouteRecord) else dict(route)
        value = codec.to_json(body)
        record = parse_route(check_name(endpoint, "endpoint"), value)
        await (await self._streams.routes()).put(endpoint, value)
        await self._router.routes.refresh(endpoint)
        return record

    async def delete_route(self, endpoint: str, /) -> None:
        """Delete a route: the endpoint is the pool of its name again. No error if there is none.

        Raises:
            Disconnected, StorageUnavailable: it may still be in effect.
        """
        self._check_open()
        await (await self._streams.routes()).delete(check_name(endpoint, "endpoint"))
        await self._router.routes.refresh(endpoint)

    async def routes(self) -> dict[str, RouteRecord]:
        """Routes in effect, by endpoint. Invalid routes are in `statistics()["routes"]["refused"]`.

        Raises:
            Disconnected, Unavailable: they could not be read.
        """
        self._check_open()
        table = self._router.routes
        await table.ready()
        return dict(table.known)

    async def _ask(self, worker: str, operation: Operation, request: BaseModel | None, reply: type[R]) -> R:
        self._check_open()
        target = WorkerId(*split_target(worker))
        body = b"" if request is None else codec.to_json(request.model_dump(mode="json", exclude_none=True))
        try:
            subject = self._router.names.worker(target, operation, await self._channel(target))
            answer = await self._bus.request(subject, body, timeout_s=self._options.timeout_s or ASK_TIMEOUT_S)
        except NoResponders as error:
            raise NoWorkers(f"there is no worker {worker!r}: 'gangline workers' lists them") from error
        return read_answer(answer, reply, worker)

    async def _channel(self, worker: WorkerId) -> str:
        """See Registration.channel. If storage is unavailable, the public subject is used.

        Raises:
            NoResponders: it has no registration, so it does not serve.
        """
        try:
            entry = await (await self._router.ledger()).get(self._router.names.registration_key(worker))
            if entry is not None:
                return Registration.read(entry.value).channel
        except (Unavailable, ValidationError):
            return ""
        raise NoResponders(f"{worker} has no registration")


async def registered(ledger: KeyValue, names: Names, pool: str = "*") -> list[tuple[Registration, Heartbeat | None]]:
    """Registered workers, sorted by name. After a crash, the registration remains for up to a minute and the heartbeat
    for three seconds; None: the worker has no heartbeat."""
    beats = await _read(ledger, names.alive_of(pool), Heartbeat)
    found = []
    for key, record in (await _read(ledger, names.registrations_of(pool), Registration)).items():
        beat = beats.get(f"alive.{key.partition('.')[2]}")
        found.append((record, beat if beat is not None and beat.instance == record.instance else None))
    return sorted(found, key=lambda each: f"{each[0].pool}.{each[0].worker}")


async def _read(ledger: KeyValue, pattern: str, model: type[V]) -> dict[str, V]:
    records = {entry.key: read_record(model, entry) for entry in await ledger.entries(pattern)}
    return {key: record for key, record in records.items() if record is not None}


def read_record(model: type[V], entry: KvEntry) -> V | None:
    """Parse a record; None if it is invalid, for example because a newer version or a foreign program wrote it."""
    try:
        return model.read(entry.value)
    except ValidationError as error:
        _log.debug("not a %s: %s", model.__name__, error, extra={"action": "ledger.unreadable", "key": entry.key})
        return None
