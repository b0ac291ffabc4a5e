"""A nats-server, worker, coordinator and dispatcher processes, an observer, and a client, for one scenario."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ...bus.embedded.server import EmbeddedServer
from ...bus.embedded.temporary_folder import TemporaryFolder
from ...bus.nats_bus import NatsBus
from ...bus.nats_bus import connect as connect_bus
from ...bus.port.bus import BucketSettings, KeyValue, Message, Storage
from ...bus.rpc.requester import raise_if_error
from ...bus.settings.connection import ConnectionSettings
from ...cli.console.children import Launcher
from ...dispatcher.client.client import Client
from ...dispatcher.jobs.storage import TaskStorage, TaskStreams
from ...dispatcher.routing.settings import RouterSettings
from ...schemas.errors.base import GanglineError
from ...schemas.messages.gangs import GangEvent
from ...schemas.names import Names
from ...schemas.records.gangs import GangRecord, GangState
from ...schemas.wire import codec
from .ledger_audit import LedgerAudit, kept
from .processes import PATIENCE_S, ChildProcess, Crew, holds_within
from .records import FOLDER, Run, SystemHistory, read


class Testbed(Crew):
    """Created by `open_testbed`. Every process it started is stopped when that ends."""

    __test__ = False  # no test, whatever pytest thinks of its name
    journals_kept = False
    """Whether workers write journals, which makes them slower."""

    def __init__(
        self, url: str, names: Names, folder: Path, bucket: BucketSettings, launch: Launcher | None = None
    ) -> None:
        environment = {"NATS_URL": url, "GANGLINE_NAMESPACE": names.namespace, FOLDER: str(folder)}
        if bucket.replicas > 1:
            environment |= {"GANGLINE_STORAGE": bucket.storage.value, "GANGLINE_REPLICAS": str(bucket.replicas)}
        super().__init__(folder, environment, launch)
        self.target = ""
        """MODULE:POOL of new workers."""
        self.pool = ""
        """The name of that pool."""
        self.url = url
        self.names = names
        self.audit = LedgerAudit()
        self.workers: dict[str, ChildProcess] = {}
        """The running workers that serve."""
        self.dispatchers: dict[str, ChildProcess] = {}
        self.events: list[tuple[float, GangEvent]] = []
        """Events with the time of their arrival."""
        self.bus: NatsBus
        self.ledger: KeyValue
        self.client: Client
        self.streams: TaskStreams
        self._news = asyncio.Event()
        self._numbers = itertools.count(1)

    # -- processes ----------------------------------------------------------------------------------------------------

    def worker(self, *arguments: str, name: str = "", node: str = "", module: str = "gangline.cli") -> ChildProcess:
        """Start a worker. It serves some time later: see `served`.

        Args:
            name: its id; a new one by default.
            node: the machine that it reports; one of its own by default.
        """
        id = name or self.new_name("w")
        journal = ("--journal", str(self.folder / f"{id}.journal")) if self.journals_kept else ()
        given = ("--id", id, "--node", node or id, *journal, *arguments)
        self.workers[id] = made = self.start(id, module, "worker", self.target, *given, role="worker", worker=id)
        return made

    def coordinator(self, name: str = "") -> ChildProcess:
        return self._service("coordinator", name)

    def dispatcher(self, name: str = "") -> ChildProcess:
        made = self._service("dispatcher", name)
        self.dispatchers[made.name] = made
        return made

    def _service(self, role: str, name: str) -> ChildProcess:
        name = name or self.new_name(role)
        return self.start(name, "gangline.cli", role, "--log-format", "json", role=role)

    def new_name(self, role: str) -> str:
        return f"{role}{next(self._numbers)}"

    async def kill(self, process: ChildProcess) -> float:
        self.workers.pop(process.name, None)
        self.dispatchers.pop(process.name, None)
        return await super().kill(process)

    async def holder(self, endpoint: str) -> ChildProcess:
        """The dispatcher that owns the queue; one takes it as soon as there are workers."""
        found: list[ChildProcess] = []

        async def look() -> bool:
            with contextlib.suppress(GanglineError):
                ids = [queue.dispatcher for queue in await self.client.queues() if queue.endpoint == endpoint]
                for process in self.dispatchers.values():
                    found.extend(process for id in ids if id and f'"{id}"' in process.log_text())
            return bool(found)

        await self.until(look, "a dispatcher has the queue")
        return found[0]

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def served(self) -> None:
        """Wait until all started workers are alive; one that exits ends the wait."""

        async def serve() -> bool:
            with contextlib.suppress(GanglineError):  # a cluster that has just started
                return set(self.workers) <= {info.registration.worker for info in await self.client.workers(self.pool)}
            return False

        await self.until(serve, "all workers serve", pause_s=0.05, alive=list(self.workers))

    async def led(self) -> float:
        """Wait until a coordinator leads and answers; returns when that was."""

        async def answers() -> bool:
            with contextlib.suppress(GanglineError):
                await self.ask_coordinator("list", {}, timeout_s=0.5)
                return True
            return False

        await self.until(answers, "a coordinator leads", pause_s=0.01)
        return time.monotonic()

    async def ask_coordinator(self, operation: str, body: Mapping[str, Any], timeout_s: float = PATIENCE_S) -> Any:
        """A plain request, as other languages send it. Raises its error."""
        subject = f"{self.names.namespace}.gang.{operation}"
        answer = await self.bus.request(subject, codec.to_json(body), timeout_s=timeout_s)
        raise_if_error(answer)
        return codec.from_json(answer.data)

    async def event(
        self, kind: str, gang: str = "", *, since: float = 0.0, but: Collection[str] = ()
    ) -> tuple[float, GangEvent]:
        """Wait for the first such event since then, of that gang or of any except `but`; returns it and when it
        arrived."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for at, event in self.events:
                    if event.kind == kind and at >= since and gang in ("", event.gang) and event.gang not in but:
                        return at, event
                self._news.clear()
                await self._news.wait()

    async def emptied(self) -> list[str]:
        """What is left in the task stream when all tasks have ended; waits for the last acknowledgements."""
        left = -1

        async def empty() -> bool:
            nonlocal left
            with contextlib.suppress(GanglineError):  # a cluster that has just lost its leader
                left = (await (await self.streams.tasks()).state()).messages
            return left == 0

        empties = await holds_within(PATIENCE_S, empty, pause_s=0.05)
        return [] if empties else [f"{left} tasks are left in the stream, although all have ended"]

    # -- records ------------------------------------------------------------------------------------------------------

    def history(self, *names: str, **facts: Any) -> SystemHistory:
        """What tasks have recorded so far, with the lives of all processes; or of those with these names."""
        history = read(self.folder)
        history.lives = [life for life in self.lives if not names or life.name in names]
        if names:
            pids = {life.pid for life in history.lives}
            history.runs = [run for run in history.runs if run.pid in pids]
        for life in self.lives:
            life.drains = history.drains.get(life.pid, life.drains)
        for name, value in facts.items():
            setattr(history, name, value)
        return history

    def runs(self) -> list[Run]:
        """Executions of tasks so far, ordered by their start."""
        return read(self.folder).runs

    def journals(self, names: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
        return {name: self.started[name].journal() for name in names}

    def _on_event(self, message: Message) -> None:
        self.events.append((time.monotonic(), GangEvent.model_validate_json(message.data)))
        self._news.set()


B = TypeVar("B", bound=Testbed)


@asynccontextmanager
async def open_testbed(
    kind: type[B],
    *,
    url: str = "",
    namespace: str = "",
    replicas: int = 1,
    storage: Storage = Storage.MEMORY,
    launch: Launcher | None = None,
    owner: str = "owner",
    audit: bool = True,
    grace_s: float = 0.0,
) -> AsyncIterator[B]:
    """A server with an observer and a client, and no other process yet.

    Args:
        url: servers to use; one is started by default.
        namespace: a new one by default.
        replicas: with more than one, servers may be lost, and the audit reads a bucket with history.
        storage: of the ledger.
        owner: name of the client.
        audit: whether to read the ledger from the beginning; or else start the audit later.
        grace_s: how long processes may take to exit at the end.
    """
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryFolder("gangline-testbed-")).path
        url = url or (await stack.enter_async_context(EmbeddedServer())).url
        names = Names(namespace or f"kit-{os.getpid()}-{secrets.token_hex(3)}")
        bucket = replace(BucketSettings.from_environment(), replicas=replicas, storage=storage)
        bed = kind(url, names, folder, bucket, launch)
        settings = ConnectionSettings.from_url(url, reconnect_wait_s=0.05)
        bed.bus = await connect_bus(settings, name="observer")
        stack.push_async_callback(bed.bus.close)
        tail = await kept(bed.bus, names.ledger_bucket, bucket) if replicas > 1 else None
        bed.ledger = await bed.bus.bucket(names.ledger_bucket, bucket)
        stack.push_async_callback(bed.audit.stop)
        if tail is not None:
            bed.audit.start_tail(tail)
        elif audit:
            await bed.audit.start(bed.ledger)
        await bed.bus.subscribe(names.gang_events, bed._on_event)
        tasks = replace(TaskStorage.from_environment(), replicas=replicas)
        bed.streams = TaskStreams(bed.bus, names, tasks)
        bed.client = Client(
            await connect_bus(settings, name=owner),
            names=names,
            settings=RouterSettings(node="", zone=""),
            bucket=bucket,
            tasks=tasks,
            owns_bus=True,
            name=owner,
        )
        await stack.enter_async_context(bed.client)
        stack.push_async_callback(bed.close, grace_s)
        yield bed


async def still_held(client: Client, workers: Sequence[str]) -> list[str]:
    """What is held although there are no requests (L2, L4, L12): each of these workers (`POOL.WORKER`) is asked, and
    the ledger, heartbeats and queues are read.

    Raises:
        GanglineError: one of them could not be asked.
    """
    found: list[str] = []
    for worker in workers:
        stats = await client.stats(worker)
        if stats.load.ongoing or stats.leases or stats.gangs:
            found.append(f"{worker} holds {stats.load}, {stats.leases}, {stats.gangs}")
        if stats.ledger.get("pending"):
            found.append(f"{worker} has not written {stats.ledger}")
    living = {info.name: info for info in await client.workers()}
    found += [f"{worker} has no heartbeat" for worker in workers if worker not in living]
    found += [f"{name}'s heartbeat shows {info.ongoing} slots" for name, info in living.items() if info.ongoing]
    names, ledger = client.router.names, await client.router.ledger()
    for keys in (names.leases_of(), names.members_of()):
        found += [f"the ledger still has {entry.key}" for entry in await ledger.entries(keys)]
    for entry in await ledger.entries(names.gang_key()):
        record = GangRecord.model_validate_json(entry.value)
        if record.state is not GangState.ENDED:
            found.append(f"gang {record.id} is {record.state}")
    queues = await client.queues()
    return found + [f"the queue has {queue}" for queue in queues if queue.depth or queue.running or queue.waiting]
