"""Shared by the service tests: scripted workers, owners that send plain requests, and a watcher."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import Any

from gangline.bus.port.bus import BucketSettings, Bus, KeyValue, KvEntry, KvOperation, Message
from gangline.coordinator.election.election_core import ElectionSettings
from gangline.coordinator.service import Coordinator
from gangline.coordinator.settings.settings import CoordinatorSettings, ServiceSettings
from gangline.schemas.errors.base import GanglineError, error_from_wire
from gangline.schemas.messages import gangs as gang_messages
from gangline.schemas.messages.operations import LoadReply
from gangline.schemas.names import GangOperation, Names, Operation, WorkerId, public_id
from gangline.schemas.records.gangs import GangRecord, GangState, MemberRecord
from gangline.schemas.records.workers import Heartbeat, Registration
from gangline.schemas.wire import codec, headers
from gangline.schemas.wire.codec import Format
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ...waiting import PATIENCE_S

HEARTBEAT_S = 1.0


class ScriptedWorker:
    """A minimal implementation of the worker's side of the protocol, which can be told to misbehave."""

    _numbers = itertools.count(1)

    def __init__(
        self, bus: Bus, kv: KeyValue, names: Names, worker: WorkerId, *, slots: int = 4, **fields: Any
    ) -> None:
        self.bus = bus
        self.kv = kv
        self.names = names
        self.id = worker
        self.epoch = next(self._numbers)
        self.instance = f"i{self.epoch}"
        self.slots = slots
        self.fields = fields
        self.draining = False
        self.running = 0
        self.revision = 0
        self.holds: dict[tuple[str, int, int], dict[str, int]] = {}
        self.members: dict[str, tuple[int, dict[str, int]]] = {}
        """By gang: generation, and slots by public id."""
        self.secrets: dict[str, str] = {}
        """Tokens by public id."""
        self.sealed = True
        """False: of an earlier version, which has tokens everywhere."""
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.silent: set[str] = set()
        """Operations that get no answer."""
        self.refuse: set[str] = set()
        """Operations that are refused."""
        self.delay_s: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscription: Any = None

    # -- presence --

    async def start(self) -> ScriptedWorker:
        self._subscription = await self.bus.subscribe(self.names.worker_operations(self.id), self.take)
        await self.beat()
        await self.register()
        self._spawn(self._beat_on())
        return self

    async def register(self) -> None:
        record = Registration(
            pool=self.id.pool,
            worker=self.id.worker,
            epoch=self.epoch,
            instance=self.instance,
            slots=self.slots,
            state="draining" if self.draining else "serving",
            **self.fields,
        )
        key = self.names.registration_key(self.id)
        self.revision = await self.kv.put(key, record.model_dump_json().encode(), ttl_s=60)

    async def beat(self) -> None:
        load = self.load()
        beat = Heartbeat(
            epoch=self.epoch, instance=self.instance, running=load.running, reserved=load.reserved, total=load.total,
            draining=self.draining,
        )  # fmt: skip
        await self.kv.put(self.names.alive_key(self.id), beat.model_dump_json().encode(), ttl_s=3)

    async def _beat_on(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            with contextlib.suppress(GanglineError):
                await self.beat()
                found = await self.kv.get(self.names.registration_key(self.id))
                if found is None:
                    await self.register()

    async def freeze(self) -> None:
        """It answers and writes nothing; the connection stays open."""
        self.silent = set(Operation)
        for task in list(self._tasks):
            task.cancel()

    async def vanish(self) -> None:
        """As after SIGKILL."""
        await self.freeze()
        await self._subscription.unsubscribe()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        await self.vanish()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- operations --

    @property
    def reserved(self) -> int:
        held = sum(sum(tokens.values()) for tokens in self.holds.values())
        return held + sum(sum(tokens.values()) for _, tokens in self.members.values())

    def load(self) -> LoadReply:
        free = self.slots - self.running - self.reserved
        assert free >= 0, f"L1: {self.id} is over its slots"
        return LoadReply(
            running=self.running,
            reserved=self.reserved,
            total=self.slots,
            ongoing=self.running + self.reserved,
            free=free,
            draining=self.draining,
        )

    def take(self, message: Message) -> None:
        operation = message.subject.rpartition(".")[2]
        body = codec.decode(message.data, Format.of(message.headers))
        self.asked.append((operation, body))
        if operation in self.silent:
            return
        answer = getattr(self, f"on_{operation}")(body)
        if answer is None or not message.reply:
            return
        data = answer.model_dump_json().encode()
        if operation in self.delay_s:
            self._spawn(self._later(self.delay_s[operation], message.reply, data))
        else:
            self.bus.publish(message.reply, data)

    async def _later(self, delay_s: float, reply: str, data: bytes) -> None:
        await asyncio.sleep(delay_s)
        self.bus.publish(reply, data)

    def on_hold(self, body: Any) -> Any:
        request = gang_messages.HoldRequest.model_validate(body)
        key = (request.gang, request.generation, request.attempt)
        wanted = sum(seat.slots for seat in request.seats)
        accepted = Operation.HOLD not in self.refuse and self.load().free >= wanted
        tokens: dict[str, int] = {}
        if accepted:
            made = [f"t{next(self._numbers)}" for _ in request.seats]
            self.secrets |= {public_id(token) if self.sealed else token: token for token in made}
            tokens = dict(zip(list(self.secrets)[-len(made) :], (seat.slots for seat in request.seats), strict=True))
            self.holds[key] = tokens
        return gang_messages.HoldReply(
            accepted=accepted,
            reason=None if accepted else "full",
            epoch=self.epoch,
            reg_revision=self.revision,
            tokens=tuple(map(self.secrets.get, tokens)),
            sealed=self.sealed,
            port=4711 if any(seat.rank == 0 for seat in request.seats) else None,
            load=self.load(),
        )

    def on_unhold(self, body: Any) -> Any:
        request = gang_messages.UnholdRequest.model_validate(body)
        self.holds.pop((request.gang, request.generation, request.attempt), None)

    def on_keep(self, body: Any) -> Any:
        request = gang_messages.KeepRequest.model_validate(body)
        return gang_messages.KeepReply(kept=min(request.slots, self.load().free), load=self.load())

    def on_form(self, body: Any) -> Any:
        request = gang_messages.FormRequest.model_validate(body)
        if Operation.FORM in self.refuse:
            return gang_messages.FormReply(formed=False, reason="no interpreter")
        here = {s.token: s.slots for s in request.seats if (s.pool, s.worker) == (self.id.pool, self.id.worker)}
        for key in [key for key in self.holds if key[0] == request.gang]:
            del self.holds[key]
        self.members[request.gang] = (request.generation, here)
        assert self.sealed or not request.open, "a worker of an earlier version does not know the field"
        told = here if self.sealed and not request.open else ()
        return gang_messages.FormReply(formed=True, tokens=tuple(map(self.secrets.__getitem__, told)))

    def on_teardown(self, body: Any) -> Any:
        request = gang_messages.TeardownRequest.model_validate(body)
        generation, tokens = self.members.get(request.gang, (0, {}))
        if request.only is not None:
            for token in request.only:
                tokens.pop(token, None)
        else:
            if generation <= request.generation:
                self.members.pop(request.gang, None)
            for key in [k for k in self.holds if k[0] == request.gang and k[1] <= request.generation]:
                del self.holds[key]
        return gang_messages.TeardownReply(stopped=True, load=self.load())

    def on_ping(self, body: Any) -> Any:
        request = gang_messages.PingRequest.model_validate(body)
        missing = {g: n for g, n in request.gangs.items() if self.members.get(g, (0, {}))[0] != n}
        return gang_messages.PingReply(missing=missing)


class Owner:
    """Sends plain requests, as the `nats` CLI does."""

    def __init__(self, bus: Bus, names: Names) -> None:
        self.bus = bus
        self.names = names

    async def ask(
        self, operation: str, body: Any = None, *, timeout_s: float = PATIENCE_S, fmt: Format = Format.JSON
    ) -> Any:
        """The decoded answer; an error is raised."""
        fields = {codec.CONTENT_TYPE: fmt.value} if fmt is Format.MSGPACK else None
        data = b"" if body is None else codec.encode(body, fmt)
        subject = f"{self.names.namespace}.gang.{operation}"
        message = await self.bus.request(subject, data, timeout_s=timeout_s, headers=fields)
        answer = codec.decode(message.data, Format.of(message.headers))
        if message.headers and headers.ERROR in message.headers:
            assert message.headers[headers.ERROR_CODE].isdecimal()
            raise error_from_wire(
                answer["code"], answer["message"], answer.get("details"), answer.get("may_have_started", False)
            )
        return answer

    async def acquire(self, **fields: Any) -> Any:
        return await self.ask(GangOperation.ACQUIRE, fields)

    async def release(self, gang: Any) -> Any:
        return await self.ask("release", {"id": gang["id"], "owner_token": gang["owner_token"]})


class LedgerWatcher:
    """Reads the bucket in the order of revisions, and checks L7: at each record with `formed` exactly its members
    exist; at the end of each teardown, none."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.members: dict[str, dict[str, MemberRecord]] = {}
        self.records: list[GangRecord] = []
        self.formed: dict[str, set[int]] = {}
        self.broken: list[str] = []

    def see(self, entry: KvEntry) -> None:
        folder, _, rest = entry.key.partition(".")
        if folder == "member":
            worker = WorkerId(*rest.split(".")[:2])
            gang = rest.split(".")[2]
            here = self.members.setdefault(gang, {})
            if entry.operation is KvOperation.DELETE:
                here.pop(str(worker), None)
            else:
                here[str(worker)] = MemberRecord.model_validate_json(entry.value)
        elif folder == "gang" and entry.operation is KvOperation.PUT:
            self._judge(GangRecord.model_validate_json(entry.value))

    def _judge(self, record: GangRecord) -> None:
        self.records.append(record)
        here = self.members.get(record.id, {})
        if record.state in (GangState.FORMED, GangState.RETIRING):
            wanted = {(f"{s.pool}.{s.worker}", s.token) for s in record.seats}
            found = {(worker, seat.token) for worker, member in here.items() for seat in member.seats}
            generations = {member.generation for member in here.values()}
            if wanted != found or generations != {record.generation}:
                self.broken.append(f"{record.id} is formed with {sorted(found)} instead of {sorted(wanted)}")
            self.formed.setdefault(record.id, set()).add(record.generation)
        elif record.state in (GangState.ENDED, GangState.QUEUED) and here:
            self.broken.append(f"{record.id} is {record.state} and has members on {sorted(here)}")


def check_atomic(entries: list[KvEntry]) -> list[str]:
    """Breaches of L7 in one snapshot of the ledger: a gang with only some of its members, or members without a gang."""
    granted: dict[str, set[tuple[str, str]]] = {}
    records: dict[str, GangRecord] = {}
    for entry in entries:
        folder, _, rest = entry.key.partition(".")
        if folder == "member":
            pool, worker, gang = rest.split(".")
            seats = MemberRecord.model_validate_json(entry.value).seats
            granted.setdefault(gang, set()).update((f"{pool}.{worker}", seat.token) for seat in seats)
        elif folder == "gang":
            records[rest] = GangRecord.model_validate_json(entry.value)
    broken = []
    for gang in granted.keys() | records.keys():
        record = records.get(gang)
        stands = record is not None and record.state in (GangState.FORMED, GangState.RETIRING)
        wanted = {(f"{s.pool}.{s.worker}", s.token) for s in record.seats} if record is not None and stands else set()
        if granted.get(gang, set()) != wanted:
            broken.append(f"{gang} ({record and record.state}): {granted.get(gang)} instead of {wanted}")
    return broken


class CoordinatorSystem:
    """A bus factory, and the services started on it."""

    def __init__(self, connect: Callable[[str], Any], names: Names) -> None:
        self._connect = connect
        self.names = names
        self.stack = contextlib.AsyncExitStack()
        self.workers: dict[str, ScriptedWorker] = {}
        self.served: list[Worker] = []
        self.events: list[dict[str, Any]] = []
        self.news = asyncio.Event()
        self.watcher = LedgerWatcher(names)
        self.bucket = BucketSettings()
        self.election: ElectionSettings | None = None

    async def bus(self, name: str) -> Bus:
        made = self._connect(name)
        bus: Bus = await made if asyncio.iscoroutine(made) else made
        self.stack.push_async_callback(bus.close)
        return bus

    async def kv(self, bus: Bus) -> KeyValue:
        return await bus.bucket(self.names.ledger_bucket, self.bucket)

    async def open(self) -> None:
        bus = await self.bus("observer")
        await bus.subscribe(self.names.gang_events, self._on_event)
        self.ledger = await self.kv(bus)
        watch = await self.ledger.watch(">", self.watcher.see)
        self.stack.push_async_callback(watch.unsubscribe)
        self.owner = Owner(bus, self.names)

    def _on_event(self, message: Message) -> None:
        self.events.append(codec.from_json(message.data))
        self.news.set()

    async def event(
        self, kind: str, gang: str | None = None, *, within_s: float = PATIENCE_S, nth: int = 1
    ) -> dict[str, Any]:
        """Wait for the nth event of that kind."""
        async with asyncio.timeout(within_s):
            while True:
                found = [e for e in self.events if e["kind"] == kind and gang in (None, e["gang"])]
                if len(found) >= nth:
                    return found[nth - 1]
                self.news.clear()
                await self.news.wait()

    async def worker(self, name: str = "w1", pool: str = "train", *, slots: int = 4, **fields: Any) -> ScriptedWorker:
        bus = await self.bus(f"worker-{pool}-{name}")
        worker = ScriptedWorker(bus, await self.kv(bus), self.names, WorkerId(pool, name), slots=slots, **fields)
        self.workers[name] = await worker.start()
        self.stack.push_async_callback(worker.stop)
        return worker

    async def coordinator(
        self,
        name: str = "coordinator",
        settings: CoordinatorSettings | None = None,
        *,
        shard: str | None = None,
        pools: tuple[str, ...] = (),
        **shell: Any,
    ) -> Coordinator:
        """Start a coordinator; use `await coordinator.wait_leading()` if it is to lead."""
        made = Coordinator(
            bus=await self.bus(name),
            names=self.names,
            settings=settings,
            shell=ServiceSettings(bucket=self.bucket, **shell),
            election=self.election,
            shard=shard,
            pools=pools,
        )
        await self.stack.enter_async_context(made)
        return made

    async def lead(self, name: str = "coordinator", *args: Any, **settings: Any) -> Coordinator:
        """Start a coordinator, and wait until it leads."""
        made = await self.coordinator(name, *args, **settings)
        await made.wait_leading()
        return made

    async def serve(self, name: str = "w1", pool: str = "train", *, slots: int = 4, **settings: Any) -> Worker:
        """Start a real worker."""
        declared = Pool(pool, slots=slots)

        @declared.task
        async def double(x: int) -> int:
            return 2 * x

        made = Worker(
            declared,
            bus=await self.bus(f"worker {name}"),
            names=self.names,
            settings=WorkerSettings(**{"id": name, "bucket": self.bucket, **settings}),
        )
        self.served.append(made)
        await self.stack.enter_async_context(made)
        return made

    async def insist(self, operation: str, body: Any, *, timeout_s: float = 5.0) -> Any:
        """Ask until somebody answers who leads; other errors are raised. An answer may have been lost with a server, so
        it is asked again after `timeout_s`: requests for gangs need an id."""
        async with asyncio.timeout(3 * PATIENCE_S):
            while True:
                try:
                    return await self.owner.ask(operation, body, timeout_s=timeout_s)
                except GanglineError as error:
                    if error.code not in ("no_responders", "no_coordinator", "request_timeout", "disconnected"):
                        raise
                    await asyncio.sleep(0.1)

    @property
    def slots_in_use(self) -> int:
        """At real workers."""
        return sum(worker.core.load.ongoing for worker in self.served)

    def at_rest(self) -> bool:
        return all(worker.reserved == 0 for worker in self.workers.values())

    async def close(self) -> None:
        await self.stack.aclose()
