"""The system of a run: three nats-servers with a proxy on every link, and all processes, which are restarted when
they exit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bench.chaos.client import JOBS, JOBS_ROUTE, POOL, SET
from bench.chaos.proxy import Link, Proxy
from gangline.bus.embedded.cluster import free_ports
from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.nats_bus import NatsBus
from gangline.bus.nats_bus import connect as connect_bus
from gangline.bus.port.bus import BucketSettings, Storage
from gangline.bus.settings.connection import ConnectionSettings
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.jobs.storage import TaskStorage
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.schemas.errors.base import GanglineError, NoWorkers
from gangline.schemas.names import Names
from gangline.schemas.permissions.nats_config import ACCOUNT
from gangline.schemas.records.gangs import LeaderRecord
from gangline.testing.kit.ledger_audit import LedgerAudit
from gangline.testing.kit.processes import ChildProcess, Crew, holds_within, remaining
from gangline.testing.kit.records import FOLDER, Trouble

NAMESPACE: Final = "chaos"
SERVERS: Final = ("n1", "n2", "n3")
WORKERS: Final = ("w1", "w2", "w3", "w4")
ROLES: Final = {
    "coordinator": ("c1", "c2"), "dispatcher": ("d1", "d2"), "worker": WORKERS, "client": ("p1", "p2", "p3"),
}  # fmt: skip
OBSERVER: Final = "observer"
_PASSWORD: Final = "chaos"  # noqa: S105  # of servers on 127.0.0.1, for the time of a run
_ROOM_BYTES: Final = 2048
"""Of a full stream. Not less than it holds: the server would remove the oldest messages."""
NAMES: Final = tuple(name for names in ROLES.values() for name in names)
_STANDING: Final = {
    "gangs": 1, "retire_s": 0.5,
    "gang": {"pool": POOL, "size": 2, "strategy": "spread", "grace_s": 1.0, "backoff_s": 0.2},
}  # fmt: skip
_START_S: Final = 60.0
_AGAIN_S: Final = 0.3
_DRAIN_S: Final = 40.0
"""A process that was told to stop and has not exited within this time is killed, as a supervisor does."""


class System(Crew):
    """Created by `running`. Everything it started is stopped when that ends."""

    def __init__(self, folder: Path, seed: int) -> None:
        # Tasks are on disk in any case, and so is what the clients were promised.
        self.ledger = BucketSettings(storage=Storage.MEMORY if seed % 2 else Storage.FILE, replicas=3)
        variables = {"GANGLINE_NAMESPACE": NAMESPACE, "GANGLINE_REPLICAS": "3"}
        if self.ledger.storage is Storage.FILE:
            variables["GANGLINE_STORAGE"] = "file"
        super().__init__(folder, {FOLDER: str(folder), **variables})
        self.seed = seed
        self.proxy = Proxy()
        self.names = Names(NAMESPACE)
        self.servers: dict[str, EmbeddedServer] = {}
        self.children: dict[str, ChildProcess] = {}
        """The running processes. A second process of a worker's id is listed as `w1'`, until it is the only one."""
        self.parties: dict[int, str] = {}
        """By process id, the name of the process whose links it uses."""
        self.troubles: list[Trouble] = []
        self.exits: list[str] = []
        """Processes that exited by themselves."""
        self.blind: list[tuple[float, float]] = []
        """Intervals in which storage, or our own connection to it, may have been unavailable."""
        self.audit = LedgerAudit(lossy=True)
        self.bus: NatsBus
        self.observer: Client
        self._cluster: dict[str, str] = {}
        """Configuration of each server."""
        self._urls: dict[str, str] = {}
        self._watching: set[asyncio.Task[None]] = set()
        self._wanted: set[str] = set()
        """Processes that are restarted when they exit."""

    # -- servers --------------------------------------------------------------------------------------------------

    async def start_servers(self) -> None:
        routes = dict(zip(SERVERS, free_ports(len(SERVERS)), strict=True))
        nowhere = await self.proxy.closed_port()
        for name in SERVERS:
            others = [other for other in SERVERS if other != name]
            ports = [await self.proxy.listen(name, other, lambda other=other: routes[other]) for other in others]  # type: ignore[misc]
            # Addresses that servers advertise to each other must not bypass the proxy.
            self._cluster[name] = (
                f"cluster {{ name: chaos, listen: 127.0.0.1:{routes[name]}, advertise: 127.0.0.1:{nowhere},"
                f" no_advertise: true, routes: [{', '.join(f'nats://127.0.0.1:{port}' for port in ports)}] }}"
            )
            config = self._cluster[name] + _users()
            self.servers[name] = EmbeddedServer(name=name, data=self.folder / "data" / name, config=config)
        await asyncio.to_thread(self._launch_servers)

    def _launch_servers(self) -> None:
        for server in self.servers.values():
            server.launch()
        for server in self.servers.values():
            server.await_ready()
        for server in self.servers.values():
            server.await_log("JetStream cluster (new )?metadata leader", _START_S)

    async def stop_servers(self) -> None:
        for server in self.servers.values():
            server.thaw()
        await asyncio.gather(*(asyncio.to_thread(server.stop) for server in self.servers.values()))

    async def wipe(self, name: str) -> None:
        """Delete everything that a killed server has stored."""
        await asyncio.to_thread(shutil.rmtree, self.folder / "data" / name, ignore_errors=True)

    async def lagging(self) -> list[str]:
        """Streams without a leader or with replicas that are behind. If there are none, any one server may fail."""
        found: list[str] = []
        offset = 0
        while True:
            answer = await self.bus.api.call("STREAM.LIST", {"offset": offset}, what="list streams", timeout_s=3.0)
            streams = answer.get("streams") or []
            for stream in streams:
                name, cluster = stream["config"]["name"], stream.get("cluster") or {}
                replicas = cluster.get("replicas") or []
                behind = [r["name"] for r in replicas if not r.get("current") or r.get("offline") or r.get("lag", 0)]
                if not cluster.get("leader"):
                    found.append(f"{name} has no leader")
                elif behind or len(replicas) + 1 < stream["config"].get("num_replicas", 1):
                    found.append(f"{name} is behind on {', '.join(behind)}")
            found += [f"{name} does not answer" for name in (answer.get("missing") or [])]
            offset += len(streams)
            if not streams or offset >= answer["total"]:
                break
        meta = await self._behind_in_meta()
        return [*found, *meta]

    async def _behind_in_meta(self) -> list[str]:
        states = await asyncio.gather(*(self._serves(name) for name in SERVERS))
        return [f"{name} is not there" for name, serves in zip(SERVERS, states, strict=True) if not serves]

    async def _serves(self, name: str) -> bool:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.servers[name].port)
                line = await reader.readline()
                writer.close()
                return line.startswith(b"INFO")
        return False

    async def storage_is_whole(self, within_s: float) -> list[str]:
        """Wait until every replica of every stream is up to date; returns those that are not."""

        async def twice() -> list[str]:
            found = await self.lagging()
            if not found:
                await asyncio.sleep(_AGAIN_S)
            return found or await self.lagging()

        return await remaining(within_s, twice, pause_s=_AGAIN_S)

    # -- processes ------------------------------------------------------------------------------------------------

    def role(self, name: str) -> str:
        return next(role for role, names in ROLES.items() if name.rstrip("'") in names)

    def command(self, name: str) -> list[str]:
        role, plain = self.role(name), name.rstrip("'")
        if role == "client":
            return ["bench.chaos.client", plain, str(self.seed)]
        cli = ["gangline.cli", role, "--node", plain]
        if role == "worker":
            return [*cli, "bench.chaos.tasks:pool", "--id", plain, "--drain-grace", "10s"]
        return [*cli, "--log-format", "json"]

    async def _wire(self, party: str) -> str:
        """Its own links to all servers."""
        if party not in self._urls:
            ports = [
                await self.proxy.listen(party, server, lambda server=server: self.servers[server].port)  # type: ignore[misc]
                for server in SERVERS
            ]
            self._urls[party] = ",".join(f"nats://127.0.0.1:{port}" for port in ports)
        return self._urls[party]

    async def begin(self, name: str, *, wanted: bool = True) -> ChildProcess:
        """Start a process. `wanted`: restart it whenever it exits, until `unwanted`."""
        plain = name.rstrip("'")
        used = {self.parties[child.pid] for child in self.children.values()}
        party = next(each for each in (name, plain, f"{plain}'") if each not in used)
        role = self.role(name)
        wire = {"NATS_URL": await self._wire(party), "NATS_USER": role, "NATS_PASSWORD": _PASSWORD}
        worker = plain if role == "worker" else ""
        self.children[name] = child = self.start(name, *self.command(name), role=role, worker=worker, environment=wire)
        self.parties[child.pid] = party
        if wanted:
            self._wanted.add(name)
        watch = asyncio.ensure_future(self._watch(child))
        self._watching.add(watch)
        watch.add_done_callback(self._watching.discard)
        return child

    async def _watch(self, child: ChildProcess) -> None:
        """Record its exit; restart it."""
        while (code := await child.ended()) is None:
            pass
        name = child.name
        if self.children.get(name) is child:
            del self.children[name]
        if not child.life.killed and code != 0:
            last = child.log_tail(1)[:200] or "nothing in its log"
            self.exits.append(f"{name} ended by itself with code {code}: {last}")
        if name in self._wanted and name not in self.children:
            await asyncio.sleep(0.5)
            if name in self._wanted and name not in self.children:
                await self.begin(name)

    def succeeds(self, name: str) -> None:
        """The second process of a worker's id is now the only one."""
        child = self.children.pop(f"{name}'", None)
        if child is not None:
            child.name = name
            self.children[name] = child

    def want(self, name: str) -> None:
        """Restart it whenever it exits."""
        self._wanted.add(name)

    def signal(self, name: str, number: signal.Signals) -> None:
        child = self.children.get(name)
        if child is not None:
            child.signal(number)

    def unwanted(self, name: str) -> None:
        self._wanted.discard(name)

    async def ended(self, name: str) -> None:
        """Wait until a process that was told to stop has exited; kill it if that takes too long."""
        child = self.children.get(name)
        if child is not None and await child.ended(_DRAIN_S) is None:
            child.life.overdue = True
            await child.kill()

    async def restarted(self, name: str) -> None:
        """Shut a process down and wait until the next one has started, as a deployment does."""
        before = self.children.get(name)
        self.signal(name, signal.SIGTERM)
        await self.ended(name)

        def started() -> bool:
            child = self.children.get(name)
            return child is not None and child is not before and f"{child.life.role}.started" in child.log_text()

        if not await holds_within(_START_S, started, pause_s=0.1):
            self.exits.append(f"{name} did not start again within {_START_S:g} s")

    # -- faults -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def troubled(self, how: str, names: Iterable[str]) -> Iterator[None]:
        """Record that these are frozen or cut off meanwhile."""
        made = []
        for name in names:
            child = self.children.get(name)
            if child is not None:
                made.append(Trouble(pid=child.life.pid, how=how, since=time.monotonic()))
        self.troubles += made
        try:
            yield
        finally:
            for trouble in made:
                trouble.until = time.monotonic()

    @contextlib.asynccontextmanager
    async def without_rights(self, role: str, lost: str) -> AsyncIterator[None]:
        """All processes of a role lose these rights on all servers, and get them back. They stay connected."""
        await self._reload(_users(role, lost))
        try:
            yield
        finally:
            await self._reload(_users())

    async def _reload(self, users: str) -> None:
        for name, server in self.servers.items():
            await asyncio.to_thread(server.reload, self._cluster[name] + users)

    @contextlib.asynccontextmanager
    async def full(self, stream: str) -> AsyncIterator[None]:
        """A stream has hardly any room left."""
        info = await self.bus.api.call(f"STREAM.INFO.{stream}", what="look at a stream")
        config = info["config"]
        small = {**config, "max_bytes": info["state"]["bytes"] + _ROOM_BYTES}
        await self.bus.api.call(f"STREAM.UPDATE.{stream}", small, what="make a stream small")
        try:
            yield
        finally:
            await self.bus.api.call(f"STREAM.UPDATE.{stream}", config, what="give a stream room")

    def links(self, name: str) -> list[Link]:
        child = self.children.get(name)
        return self.proxy.of(self.parties[child.pid] if child is not None else name)

    def connected(self, server: str) -> list[str]:
        """Processes that are connected to that server."""
        parties = {name: self.parties[child.pid] for name, child in self.children.items()}
        return [name for name, party in parties.items() if self.proxy.between(party, server).connections]

    async def leading_coordinator(self) -> str:
        """The leader according to the ledger; the first coordinator if that cannot be read."""
        with contextlib.suppress(GanglineError):
            entry = await (await self.observer.router.ledger()).get(self.names.leader_key)
            if entry is not None:
                instance = LeaderRecord.model_validate_json(entry.value).instance
                for name in ROLES["coordinator"]:
                    child = self.children.get(name)
                    if child is not None and instance in child.log_text():
                        return name
        return ROLES["coordinator"][0]

    # -- lifecycle --------------------------------------------------------------------------------------------------

    async def start_all(self) -> None:
        await self.start_servers()
        settings = ConnectionSettings(
            urls=tuple(server.url for server in self.servers.values()),
            user=OBSERVER,
            password=_PASSWORD,
            reconnect_wait_s=0.1,
            ping_interval_s=1.0,
        )
        bucket = self.ledger
        self.bus = await connect_bus(settings, name="observer")

        async def follow_ledger() -> None:
            await self.audit.start(await self.bus.bucket(self.names.ledger_bucket, bucket))

        await _patiently(follow_ledger)
        bus = await connect_bus(settings, name="observer")
        tasks = TaskStorage.from_environment({"GANGLINE_STORAGE": "file", "GANGLINE_REPLICAS": "3"})
        router = RouterSettings(node="", zone="")
        self.observer = Client(
            bus, names=self.names, settings=router, bucket=bucket, tasks=tasks, owns_bus=True, name="observer"
        )
        await self.observer.start()
        for name in (*ROLES["coordinator"], *ROLES["worker"], *ROLES["dispatcher"]):
            await self.begin(name)

        async def declare() -> None:
            ledger = await self.observer.router.ledger()
            await ledger.put(self.names.gangset_key(SET), json.dumps(_STANDING).encode())
            await self.observer.set_route(JOBS, JOBS_ROUTE)

        await _patiently(declare)
        await self._served()
        for name in ROLES["client"]:
            await self.begin(name)

    async def _served(self) -> None:
        """Wait until all workers are alive."""

        async def all_live() -> None:
            living = {info.registration.worker for info in await self.observer.workers(POOL)}
            if living != set(WORKERS):
                raise NoWorkers(f"only {sorted(living)} live")

        await _patiently(all_live)

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop everything, whatever fails meanwhile."""
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.stop_servers)
            stack.push_async_callback(self.proxy.close)
            stack.push_async_callback(self._close_observer)
            stack.push_async_callback(self._kill_all)

    async def _kill_all(self) -> None:
        self._wanted.clear()
        await asyncio.gather(*(child.end(0.0) for child in list(self.children.values())))
        if self._watching:
            await asyncio.wait(self._watching)

    async def _close_observer(self) -> None:
        with contextlib.suppress(AttributeError, GanglineError, TimeoutError):  # AttributeError: it was not opened yet
            async with asyncio.timeout(10):
                await self.audit.stop()
                await self.observer.close()
                await self.bus.close()


@asynccontextmanager
async def running(folder: Path, seed: int) -> AsyncIterator[System]:
    """A running system, which is stopped whatever happens."""
    system = System(folder, seed)
    try:
        await system.start_all()
        yield system
    finally:
        closing = asyncio.ensure_future(system.close())
        while not closing.done():  # a second Ctrl-C must not leave anything running
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(closing)
        closing.result()


def _users(role: str = "", lost: str = "") -> str:
    """Users for all roles, in one account; one of them may have lost rights."""
    users = [
        f"{{ user: {user}, password: {_PASSWORD}{f', permissions {{ {lost} }}' if user == role else ''} }}"
        for user in (*ROLES, OBSERVER)
    ]
    return f"\naccounts {{ {ACCOUNT} {{ jetstream: enabled, users: [ {', '.join(users)} ] }} }}\n"


async def _patiently(what: Callable[[], Awaitable[None]]) -> None:
    """Servers that have just started may not have elected their leaders yet."""

    async def done() -> list[str]:
        await what()
        return []

    if errors := await remaining(_START_S, done, pause_s=0.3):
        raise TimeoutError(f"the system did not start within {_START_S:g} s: {errors[0]}")
