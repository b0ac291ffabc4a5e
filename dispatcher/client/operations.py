"""Operator functions of the client: list workers and leases, drain, resize, statistics, end gangs, change routes and
standing sets. What changes something is recorded in the audit trail, with its `reason`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from ...bus.key_value.records import read_record
from ...bus.port.bus import Bus, KeyValue, NoResponders, RequestTimeout
from ...bus.rpc.requester import read_answer, timeout_of
from ...schemas.catalogue.task_schemas import TaskSchema, schema_hash, schema_text
from ...schemas.errors.base import MalformedMessage, NoWorkers, Unavailable, UnknownGang
from ...schemas.messages.gangs import EndRequest, GangReply
from ...schemas.messages.operations import (
    DrainReply,
    DrainRequest,
    ResizeReply,
    ResizeRequest,
    SchemasReply,
    SchemasRequest,
    StatsReply,
    parse_request,
)
from ...schemas.names import GangOperation, Names, Operation, WorkerId, check_name
from ...schemas.records.gangs import GangSetRecord, GangSetStatus
from ...schemas.records.routes import RouteRecord, parse_route
from ...schemas.records.workers import Heartbeat, LeaseRecord, LimitRecord, Record, Registration
from ...schemas.wire import codec
from ..calls.call import CallOptions
from ..gangs.declarations import declare_one, declared_sets, delete, parse_set, read_set, scale
from ..jobs.job import ASK_TIMEOUT_S
from ..jobs.storage import TaskStreams
from ..router.router import Router
from .audit import AuditTrail

END_TIMEOUT_S: Final = 60.0
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
    """Operator functions of Client: they send requests to workers, read the ledger, and write routes and
    declarations of standing sets."""

    _bus: Bus
    _options: CallOptions
    _router: Router
    _streams: TaskStreams
    _audit: AuditTrail | None

    def _noted(self, action: str, target: str, reason: str) -> AbstractAsyncContextManager[None]:
        """See AuditTrail.noted."""
        return contextlib.nullcontext() if self._audit is None else self._audit.noted(action, target, reason)

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

    async def drain(self, worker: str, *, grace_s: float | None = None, reason: str = "") -> DrainReply:
        """Drain a worker (`POOL.WORKER`): it accepts nothing new, finishes its tasks and leaves; tasks still running
        after `grace_s` are cancelled. Returns as soon as draining has begun. `reason` says why, here and below: it
        goes into the audit trail.

        Raises:
            NoWorkers: there is no such worker.
            InvalidRequest: `grace_s` is not a number of seconds.
            RequestTimeout: it did not answer.
        """
        request = parse_request(DrainRequest, {"grace_s": grace_s})
        async with self._noted("drain", worker, reason):
            return await self._ask(worker, Operation.DRAIN, request, DrainReply)

    async def resize(self, worker: str, slots: int, *, reason: str = "") -> ResizeReply:
        """Change the number of slots of a running worker (`POOL.WORKER`); 0 pauses it.

        Raises:
            NoWorkers: there is no such worker.
            InvalidRequest: `slots` is not a number of slots.
            RequestTimeout: it did not answer.
        """
        request = parse_request(ResizeRequest, {"slots": slots})
        async with self._noted("resize", worker, reason):
            return await self._ask(worker, Operation.RESIZE, request, ResizeReply)

    async def end_gang(self, id: str, /, *, reason: str = "") -> GangReply:
        """End a gang, whoever owns it: its owner gets the reason. Returns when its members have stopped.

        Raises:
            UnknownGang: there is no such gang.
            InvalidRequest: the id is none, or the reason is longer than 256 characters.
            NoCoordinator: no coordinator leads.
            RequestTimeout: it did not answer.
        """
        self._check_open()
        request = parse_request(EndRequest, {"id": id, "reason": reason})
        async with self._noted("gang rm", id, reason):
            coordinator, timeout_s = self._router.gangs.coordinator_client, self._options.timeout_s or END_TIMEOUT_S
            return (await coordinator.ask_for(GangReply, GangOperation.END, request, timeout_s)).public()

    async def stats(self, worker: str) -> StatsReply:
        """Statistics of a worker (`POOL.WORKER`): load, leases, counts.

        Raises:
            NoWorkers: there is no such worker.
            RequestTimeout: it did not answer.
        """
        return await self._ask(worker, Operation.STATS, None, StatsReply)

    async def schemas(self, pool: str) -> dict[str, TaskSchema]:
        """The tasks of a pool by method, with the JSON Schema of their parameters and results. If its workers have
        different versions of a task, that of the worker that started last.

        Raises:
            NoWorkers: the pool has no workers.
            RequestTimeout: a worker did not answer.
            MalformedMessage: a worker sent another schema than the one it registered.
        """
        check_name(pool, "pool")
        workers = sorted(await self.workers(pool), key=lambda each: each.registration.started_at)
        if not workers:
            raise NoWorkers(f"pool {pool!r} has no workers", details={"pool": pool})
        tasks: dict[str, TaskSchema] = {}
        owner: dict[str, str] = {}
        for each in workers:
            for method, info in each.registration.methods.items():
                tasks[method] = TaskSchema(pool=pool, method=method, info=info)
                owner[info.schema_hash] = each.name
        bodies: dict[str, dict[str, Any]] = {}
        wanted = {task.info.schema_hash for task in tasks.values()} - {""}
        while missing := sorted(wanted - bodies.keys()):
            worker = owner[missing[0]]
            hashes = [each for each in missing if owner[each] == worker]
            request = parse_request(SchemasRequest, {"hashes": hashes[:1024]})
            reply = await self._ask(worker, Operation.SCHEMAS, request, SchemasReply)
            sent = {name: body for name, body in reply.schemas.items() if schema_hash(schema_text(body)) == name}
            if not sent.keys() & set(hashes):
                raise MalformedMessage(f"{worker} does not send the schemas that it registered: {hashes[0]}")
            bodies |= sent
        return {method: replace(task, body=bodies.get(task.info.schema_hash)) for method, task in sorted(tasks.items())}

    async def set_route(
        self, endpoint: str, route: RouteRecord | Mapping[str, Any], /, *, reason: str = ""
    ) -> RouteRecord:
        """Set or replace the route of an endpoint, for the traffic of all clients.

        ```python
        await client.set_route("resize", {"to": {"resize-v1": 90, "resize-v2": 10}, "shadow": {"resize-v3": 5}})
        ```

        This client follows the new route when this returns, all others within a second.

        Raises:
            InvalidRoute: the route is invalid; says which field, and why. Nothing was written.
            Disconnected, StorageUnavailable: it may not have been written.
        """
        self._check_open()
        body = route.model_dump(mode="json", exclude_defaults=True) if isinstance(route, RouteRecord) else dict(route)
        value = codec.to_json(body)
        record = parse_route(check_name(endpoint, "endpoint"), value)
        async with self._noted("route set", endpoint, reason):
            await (await self._streams.routes()).put(endpoint, value)
            await self._router.routes.refresh(endpoint)
        return record

    async def delete_route(self, endpoint: str, /, *, reason: str = "") -> None:
        """Delete a route: the endpoint is the pool of its name again. No error if there is none.

        Raises:
            Disconnected, StorageUnavailable: it may still be in effect.
        """
        self._check_open()
        check_name(endpoint, "endpoint")
        async with self._noted("route rm", endpoint, reason):
            await (await self._streams.routes()).delete(endpoint)
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

    async def set_gangset(
        self, name: str, declaration: GangSetRecord | Mapping[str, Any], /, *, reason: str = ""
    ) -> GangSetRecord:
        """Declare a standing set of gangs, or replace its declaration. A coordinator forms the gangs. If the `gang` has
        changed, it rolls the set, gang by gang.

        ```python
        await client.set_gangset("llama", {"gangs": 2, "gang": {"pool": "gpu", "size": 4, "strategy": "strict_spread"}})
        ```

        The fields are those of the file for `gangline gangset apply`. Needs the permissions of an operator, as do the
        two below. Declaring the same again changes nothing, unless its gangs fail: then a roll that stopped is tried
        again.

        Raises:
            InvalidName, InvalidRequest: the name or the declaration is invalid; names each wrong field. Nothing was
                written.
            Disconnected, StorageUnavailable: it may not have been written.
        """
        self._check_open()
        if isinstance(declaration, GangSetRecord):
            check_name(name, "set")
            record = declaration
        else:
            record = parse_set(name, declaration)
        async with self._noted("gangset apply", name, reason):
            await declare_one(await self._router.ledger(), name, record)
        return record

    async def scale_gangset(self, name: str, gangs: int, /, *, reason: str = "") -> int:
        """Change the number of gangs of a standing set; returns the previous number. Whole gangs are added or retired.

        Raises:
            UnknownGang: there is no such set.
            InvalidRequest: the number is out of bounds. Nothing was written.
            Disconnected, StorageUnavailable: it may not have been written.
        """
        self._check_open()
        async with self._noted("gangset scale", name, reason):
            return await scale(await self._router.ledger(), name, gangs)

    async def delete_gangset(self, name: str, /, *, reason: str = "") -> None:
        """Delete a standing set: its gangs retire and end. No error if there is none.

        Raises:
            Disconnected, StorageUnavailable: it may still exist.
        """
        self._check_open()
        async with self._noted("gangset rm", name, reason):
            with contextlib.suppress(UnknownGang):
                await delete(await self._router.ledger(), name)

    async def gangsets(self) -> dict[str, GangSetRecord]:
        """Declared standing sets, by name.

        Raises:
            Disconnected, Unavailable: they could not be read.
        """
        self._check_open()
        return await declared_sets(await self._router.ledger())

    async def gangset_status(self, name: str, /) -> GangSetStatus | None:
        """Whether a standing set is steady, rolling or failing, why, and how many of its gangs are formed and ready.
        None: no coordinator has reported it yet.

        Raises:
            UnknownGang: there is no such set.
            Disconnected, Unavailable: it could not be read.
        """
        self._check_open()
        _, _, status = await read_set(await self._router.ledger(), name)
        return status

    async def _ask(self, worker: str, operation: Operation, request: BaseModel | None, reply: type[R]) -> R:
        self._check_open()
        target = WorkerId.parse(worker)
        body = b"" if request is None else codec.to_json(request.model_dump(mode="json", exclude_none=True))
        try:
            subject = self._router.names.worker(target, operation, await self._channel(target))
            answer = await self._bus.request(subject, body, timeout_s=self._options.timeout_s or ASK_TIMEOUT_S)
        except NoResponders as error:
            text = f"there is no worker {worker!r}: 'gangline workers' lists them"
            raise NoWorkers(text, details={"worker": worker}) from error
        except RequestTimeout as error:
            raise timeout_of(f"worker {worker}", error) from error
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


async def shared_limits(ledger: KeyValue, names: Names, pool: str = "*") -> dict[tuple[str, str], LimitRecord]:
    """How the workers divide the limits of tasks, by pool and method; rates by pool and `rate_of(method)`."""
    found = await _read(ledger, names.limits_of(pool), LimitRecord)
    return {(key.split(".")[1], key.split(".")[2]): record for key, record in found.items()}


async def _read(ledger: KeyValue, pattern: str, model: type[V]) -> dict[str, V]:
    records = {entry.key: read_record(model, entry) for entry in await ledger.entries(pattern)}
    return {key: record for key, record in records.items() if record is not None}
