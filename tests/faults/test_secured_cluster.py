"""Three servers with TLS and certificates on both sides, tenants in accounts of their own, and processes of all kinds.
One server is killed under load and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import ssl
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from gangline.bus.embedded.cluster import free_ports
from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.nats_bus import NatsBus
from gangline.bus.nats_bus import connect as connect_bus
from gangline.bus.port.bus import BucketSettings, NotPermitted, Storage
from gangline.bus.rpc.requester import raise_if_error
from gangline.bus.settings.connection import ConnectionSettings
from gangline.cli.app import gangline
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.jobs.job import Job
from gangline.dispatcher.jobs.storage import TaskStorage
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.schemas.errors.base import GanglineError, ServerUnreachable
from gangline.schemas.names import Names
from gangline.schemas.permissions.nats_config import configuration, parse_user, variable
from gangline.schemas.permissions.roles import INBOXES
from gangline.testing.kit.judge import judge
from gangline.testing.kit.processes import Crew
from gangline.testing.kit.records import FOLDER, NEVER, SentRequest, read

from ..bus.conftest import collect
from ..docker.plain import greeting
from ..processes import ForkServer
from ..roles.conftest import unlimited_user
from ..waiting import PATIENCE_S, until, until_nobody_responds, until_somebody_responds

pytestmark = [pytest.mark.server, pytest.mark.processes, pytest.mark.long]  # tests/roles has each wall by itself

SERVICES: Final = ("gateway", "coordinator", "dispatcher", "worker")
SHOP: Final = "web@shop=producer:train"
LAB: Final = "batch@lab=producer:work"
USERS: Final = (*SERVICES, "operator", "router", SHOP, LAB)
SPY: Final = "spy"
"""In the account of the lab, without any lists."""
LAWS: Final = (
    "L1 capacity", "L3 at most once", "may_have_started is honest", "answers are right", "L10 durable tasks",
    "L7, L8 gangs",
)  # fmt: skip
ANSWERS_S: Final = 15.0
"""Timeout of a plain request: the server that had it may have been killed."""
LAST: Final = 1_000_000
"""Of all numbered requests."""
ENOUGH: Final = 5
"""Requests of each kind that succeed before, during and after the loss of a server."""

OPENSSL: Final = """\
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical, CA:FALSE
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = IP:127.0.0.1
authorityKeyIdentifier = keyid
"""


class Certificates:
    """An authority, and certificates that it has signed; all made by `openssl`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._config = folder / "openssl.cnf"
        self._config.write_text(OPENSSL)
        self.ca, self._key = folder / "ca.pem", folder / "ca.key"
        self._request("-x509", "-extensions", "authority", "-days", "2", key=self._key, name=folder.name, out=self.ca)

    def issue(self, name: str) -> tuple[Path, Path]:
        """A certificate and its key."""
        certificate, key, request = (self.folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        self._request(key=key, name=name, out=request)
        signer = ("-CA", str(self.ca), "-CAkey", str(self._key), "-CAcreateserial")
        extensions = ("-extfile", str(self._config), "-extensions", "leaf", "-days", "2")
        self._openssl("x509", "-req", "-in", str(request), *signer, *extensions, "-out", str(certificate))
        return certificate, key

    def _request(self, *more: str, key: Path, name: str, out: Path) -> None:
        new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key))
        self._openssl("req", "-config", str(self._config), *new, "-subj", f"/CN={name}", *more, "-out", str(out))

    @staticmethod
    def _openssl(*arguments: str) -> None:
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


class Identities:
    """Who may connect: by password, or by a JWT of an operator, whose accounts the servers keep."""

    def __init__(self, folder: Path | None) -> None:
        """`folder`: for JWTs."""
        self.folder = folder

    def configuration(self, server: str) -> str:
        """What a server of that name is told of users and accounts."""
        if self.folder is None:
            roles = configuration(Names(), tuple(map(parse_user, USERS)))
            before, start, after = roles.partition("  lab {\n    users: [\n")
            assert start
            return f"{before}{start}      {{ user: {SPY}, password: ${variable(SPY)} }}\n{after}"
        if not self.folder.exists():
            self.write(*USERS)
            unlimited_user(self.folder, SPY, "lab")
        return (self.folder / "resolver.conf").read_text().replace(KEPT, str(self.folder / "kept" / server))

    def write(self, *users: str, push: tuple[str, ...] = ()) -> str:
        """What `gangline roles --jwt` prints."""
        made = CliRunner().invoke(gangline, ["roles", "--jwt", str(self.folder), "--resolver", KEPT, *push, *users])
        assert made.exit_code == 0, made.output
        return made.output

    def of(self, user: str) -> dict[str, Any]:
        """Settings of a connection."""
        if self.folder is None:
            return {"user": user, "password": password(user)}
        return {"credentials_file": self.folder / "creds" / f"{user}.creds"}

    def environment(self, user: str) -> dict[str, str]:
        """The same for a command."""
        if self.folder is None:
            return {"NATS_USER": user, "NATS_PASSWORD": password(user)}
        return {"NATS_CREDS": str(self.folder / "creds" / f"{user}.creds")}


KEPT: Final = "where the server keeps accounts"


class Servers:
    """A cluster in which clients and servers both need a certificate of the authority."""

    def __init__(self, certificates: Certificates, identities: Identities) -> None:
        self.identities = identities
        certificate, key = certificates.issue("server")
        tls = (
            f'tls {{ cert_file: "{certificate}", key_file: "{key}", ca_file: "{certificates.ca}", verify: true, '
            "timeout: 30 }"
        )
        self.route_ports = free_ports(3)
        others = f"routes: [{', '.join(f'nats://127.0.0.1:{port}' for port in self.route_ports)}]"
        self.each = [
            EmbeddedServer(
                name=f"n{number}",
                config=f"cluster {{ name: secured, listen: 127.0.0.1:{port}, {others}, {tls} }}\n{tls}\n"
                + identities.configuration(f"n{number}"),
            )
            for number, port in enumerate(self.route_ports, 1)
        ]

    def start(self) -> None:
        for server in self.each:
            server.launch()
        for server in self.each:
            server.await_ready()
        for server in self.each:
            server.await_log("JetStream cluster (new )?metadata leader", PATIENCE_S)

    def stop(self) -> None:
        for server in self.each:
            server.stop()

    def named(self, name: str) -> EmbeddedServer:
        return self.each[int(name.removeprefix("n")) - 1]

    @property
    def url(self) -> str:
        return ",".join(map(tls_url, self.each))

    def violations(self) -> list[str]:
        """What the servers refused; workers may ask for the ledger before a coordinator has made it."""
        lines = [line for server in self.each for line in server.log_tail(100_000).splitlines()]
        return [line for line in lines if "iolation" in line and "STREAM.CREATE.KV_GANGLINE_LEDGER" not in line]


def password(user: str) -> str:
    return f"of-{user}"


class Load:
    """Requests of several kinds, each sent one after the other until they are stopped, and what became of them."""

    def __init__(self) -> None:
        self.requests: list[SentRequest] = []
        self.jobs: dict[int, Job] = {}
        self._numbers = itertools.count(1)
        self._stopped = asyncio.Event()
        self._kinds: dict[str, asyncio.Task[None]] = {}

    def run(self, kind: str, ask: Callable[[str, int], Awaitable[Any]], *, once: bool = True) -> None:
        self._kinds[kind] = asyncio.ensure_future(self._repeat(kind, ask, once))

    async def _repeat(self, kind: str, ask: Callable[[str, int], Awaitable[Any]], once: bool) -> None:
        while not self._stopped.is_set():
            await self._send(kind, ask, once)
            await asyncio.sleep(0)

    async def _send(self, kind: str, ask: Callable[[str, int], Awaitable[Any]], once: bool) -> None:
        number = next(self._numbers)
        id = f"{kind}-{number}" if once else str(number)
        sent = SentRequest(id=id, kind=kind, pid=os.getpid(), asked=time.monotonic(), due=NEVER, once=once)
        self.requests.append(sent)
        try:
            sent.value = await ask(id, number)
            sent.ok = True
        except GanglineError as error:
            sent.code, sent.text, sent.may_have_started = error.code, str(error), error.may_have_started
        sent.answers, sent.told = 1, time.monotonic()

    async def progresses(self, what: str) -> None:
        """Wait until enough requests of each kind, sent from now on, have succeeded."""
        since = time.monotonic()

        def done() -> dict[str, int]:
            found = dict.fromkeys(self._kinds, 0)
            for sent in self.requests:
                if sent.ok and sent.asked >= since:
                    found[sent.kind] += 1
            for task in self._kinds.values():
                if task.done():
                    task.result()
            return found

        await until(
            lambda: min(done().values()) >= ENOUGH,
            lambda: f"{what}: {done()}, {[each.text for each in self.requests if each.text][-5:]}",
            within_s=3 * PATIENCE_S,
            pause_s=0.1,
        )

    async def stop(self) -> None:
        self._stopped.set()
        await asyncio.gather(*self._kinds.values())


class Parties:
    """What is connected to the servers."""

    def __init__(self, servers: Servers, certificates: Certificates, crew: Crew, stack: AsyncExitStack) -> None:
        self.servers = servers
        self.certificates = certificates
        self.crew = crew
        self._stack = stack
        self._certificate = certificates.issue("client")

    def settings(self, user: str, **others: Any) -> ConnectionSettings:
        certificate, key = self._certificate
        given: dict[str, Any] = {
            **self.servers.identities.of(user), "inbox_prefix": f"{INBOXES}.{user}", "reconnect_wait_s": 0.05,
            "tls_ca": self.certificates.ca, "tls_certificate": certificate, "tls_key": key, "connect_timeout_s": 30.0,
        }  # fmt: skip
        return ConnectionSettings.from_url(self.servers.url, **{**given, **others})

    async def bus(self, user: str) -> NatsBus:
        bus = await connect_bus(self.settings(user), name=user)
        self._stack.push_async_callback(bus.close)
        return bus

    async def client(self, user: str) -> Client:
        client = Client(
            await self.bus(user),
            settings=RouterSettings(node="", zone=""),
            bucket=replace(BucketSettings.from_environment(), replicas=3, storage=Storage.FILE),
            tasks=replace(TaskStorage.from_environment(), replicas=3),
            name=user,
        )
        return await self._stack.enter_async_context(client)

    def start(self, role: str, *arguments: str, name: str = "") -> None:
        certificate, key = self._certificate
        environment = {
            "NATS_URL": self.servers.url,
            **self.servers.identities.environment(role),
            "NATS_CA": str(self.certificates.ca),
            "NATS_CERT": str(certificate),
            "NATS_KEY": str(key),
            "GANGLINE_INBOX_PREFIX": f"{INBOXES}.{role}",
        }
        self.crew.start(name or role, "gangline.cli", role, *arguments, role=role, environment=environment)


@pytest.fixture
def authority(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "authority")


@pytest.fixture(params=["passwords", "JWT"])
def servers(
    request: pytest.FixtureRequest, authority: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Servers]:
    for user in (*(parse_user(text).name for text in USERS), SPY):
        monkeypatch.setenv(variable(user), password(user))
    with ExitStack() as stack:
        made = Servers(authority, Identities(tmp_path / "jwt" if request.param == "JWT" else None))
        stack.callback(made.stop)
        made.start()
        yield made


async def ask(bus: NatsBus, subject: str, body: Any) -> Any:
    """A plain request, as any client sends it."""
    answer = await bus.request(subject, json.dumps(body).encode(), timeout_s=ANSWERS_S)
    raise_if_error(answer)
    return json.loads(answer.data)


def start_all(parties: Parties) -> None:
    for number in (1, 2):
        parties.start("coordinator", name=f"coordinator{number}")
        parties.start("dispatcher", name=f"dispatcher{number}")
        for pool, target in (("train", "pool"), ("work", "work")):
            id = f"{pool}{number}"
            parties.start("worker", f"bench.faults.tasks:{target}", "--slots", "4", "--id", id, "--node", id, name=id)
    parties.start("gateway")


async def put_under_load(parties: Parties, load: Load) -> None:
    """Calls and submitted tasks of two tenants; calls, leases and gangs of a router of Gangline's own account."""
    web, lab, router = await parties.bus("web"), await parties.client("batch"), await parties.client("router")
    batch = lab._bus

    async def shop_calls(id: str, _: int) -> Any:
        return await ask(web, "gangline.call.train.once", {"id": id, "seconds": 0.02})

    async def lab_calls(_: str, number: int) -> Any:
        assert await ask(batch, "gangline.call.work.square", {"number": number, "seconds": 0.01}) == number**2

    async def submits(_: str, number: int) -> Any:
        load.jobs[number] = await lab.submit("work.square", number=number, seconds=0.01)

    async def leases(id: str, _: int) -> Any:
        async with router.lease("train", slots=1) as lease:
            return await lease.call("once", id=id, seconds=0.02)

    async def gangs(id: str, _: int) -> Any:
        async with router.gang(pool="train", size=2, strategy="strict_spread", restart="fail") as gang:
            found = await gang.run("where")
            assert [rank for rank, _, _ in found] == [0, 1], id

    async def calls(id: str, _: int) -> Any:
        return await router.call("train.once", id=id, seconds=0.02)

    for act in (shop_calls, leases, gangs, calls):
        load.run(act.__name__, act)
    for act in (lab_calls, submits):
        load.run(act.__name__, act, once=False)


async def leader_of_tasks(operator: NatsBus) -> str:
    found: list[str] = []

    async def look() -> bool:
        try:
            cluster = (await ask(operator, "$JS.API.STREAM.INFO.GANGLINE_TASKS", {}))["cluster"]
        except (GanglineError, KeyError):
            return False
        found[:] = [str(cluster.get("leader", ""))]
        others = cluster.get("replicas", ())
        return bool(found[0]) and len(others) == 2 and all(other.get("current") for other in others)

    await until(look, "all servers have the tasks", within_s=3 * PATIENCE_S, pause_s=0.1)
    return found[0]


async def outcomes(load: Load) -> dict[str, tuple[str, Any]]:
    """Of every acknowledged task."""

    async def one(job: Job) -> tuple[str, Any]:
        try:
            return "done", await job.result(timeout_s=2 * PATIENCE_S)
        except GanglineError as error:
            return error.code, str(error)

    found = await asyncio.gather(*map(one, load.jobs.values()))
    return {job.id: outcome for job, outcome in zip(load.jobs.values(), found, strict=True)}


def verdicts(crew: Crew, load: Load, results: dict[str, tuple[str, Any]]) -> list[str]:
    history = read(crew.folder)
    history.lives, history.results = crew.lives, results
    submitted = [
        replace(sent, kind="submit", expected=number**2, job=load.jobs[number].id)
        for sent in load.requests
        if sent.kind == "submits" and (number := int(sent.id)) in load.jobs
    ]
    history.requests = [sent for sent in load.requests if sent.kind not in ("submits", "gangs")] + submitted
    found = judge(history)
    broken = [f"{law}: {text}" for law in LAWS for text in found[law]]
    ended = {run.id for run in history.runs if run.done}
    recorded = [sent for sent in history.requests if sent.ok]
    assert recorded
    return broken + [f"{sent.kind} {sent.id} was answered, and never ran" for sent in recorded if sent.id not in ended]


async def nobody_else_gets_in(parties: Parties, folder: Path) -> None:
    stranger = Certificates(folder / "stranger")
    certificate, key = stranger.issue("client")
    # The server's reason may be lost with the connection.
    closes = "no TLS with|Connection lost|Connection reset|Broken pipe"
    others: dict[str, tuple[dict[str, Any], str]] = {
        "no certificate": ({"tls_certificate": None, "tls_key": None}, closes),
        "another authority's certificate": ({"tls_certificate": certificate, "tls_key": key}, closes),
        "no user": (dict.fromkeys(parties.servers.identities.of("batch")), "rejected the credentials"),
    }
    if parties.servers.identities.folder is None:
        named = {"user": "web", "password": password("batch")}
        others["another tenant's name"] = (named, "rejected the credentials")
    for who, (given, why) in others.items():
        with pytest.raises(ServerUnreachable, match=why):
            await connect_bus(parties.settings(**{"user": "batch", "connect_timeout_s": 30.0, **given}), name=who)
    own = {
        "no certificate": None,
        "another authority's": (certificate, key),
        "its own": parties.certificates.issue("n4"),
    }
    for whose, files in own.items():
        as_server = ssl.create_default_context(cafile=parties.certificates.ca)
        if files is not None:
            as_server.load_cert_chain(*files)
        for port in parties.servers.route_ports:
            assert (whose, (await greeting(port, as_server)).startswith("INFO ")) == (whose, whose == "its own")


async def a_tenant_is_added(parties: Parties, server: EmbeddedServer) -> None:
    """While one server is down: it has to hear of it from the others."""
    certificate, key = parties._certificate
    with pytest.MonkeyPatch.context() as environment:
        for name, file in (("NATS_CA", parties.certificates.ca), ("NATS_CERT", certificate), ("NATS_KEY", key)):
            environment.setenv(name, str(file))
        told = await asyncio.to_thread(
            parties.servers.identities.write, *USERS, "late@extra=producer:work", push=("--push", tls_url(server))
        )
    assert "the servers have 5 accounts" in told


async def let_in(settings: ConnectionSettings) -> NatsBus:
    """A connection of the new tenant, as soon as the server that was down has heard of it."""
    found: list[NatsBus] = []

    async def try_it() -> bool:
        with contextlib.suppress(ServerUnreachable):
            found.append(await connect_bus(settings, name="late"))
        return bool(found)

    await until(try_it, "the new tenant is let in", within_s=3 * PATIENCE_S, pause_s=0.1)
    return found[0]


def tls_url(server: EmbeddedServer) -> str:
    return server.url.replace("nats://", "tls://")


async def tenants_reach_nothing_of_each_other(web: NatsBus, spy: NatsBus) -> None:
    body = json.dumps({"id": "stolen", "seconds": 0}).encode()
    for subject in ("gangline.call.train.once", "gangline.task.train.once", "gangline.worker.train.train1.dispatch"):
        await until_nobody_responds(partial(spy.request, subject, body, timeout_s=1.0))
    for subject in ("gangline.call.work.square", "gangline.task.work.square", "gangline.gang.list"):
        with pytest.raises(NotPermitted):
            await ask(web, subject, {"number": 1, "seconds": 0})


@pytest.mark.timeout(900)
async def test_tenants_behind_mutual_tls_lose_nothing_when_a_server_is_killed_under_load(
    servers: Servers, authority: Certificates, forks: ForkServer, tmp_path: Path
) -> None:
    records = tmp_path / "records"
    records.mkdir()
    common = {
        "GANGLINE_REPLICAS": "3",
        "GANGLINE_STORAGE": "file",
        "GANGLINE_MAX_BYTES": str(16 << 20),
        "GANGLINE_LOG_FORMAT": "json",
        FOLDER: str(records),
    }
    async with AsyncExitStack() as stack:
        crew = Crew(records, common, forks.start)
        stack.push_async_callback(crew.close, 10.0)
        parties = Parties(servers, authority, crew, stack)
        start_all(parties)
        operator, spy, load, heard = await parties.bus("operator"), await parties.bus(SPY), Load(), collect()
        listening = await spy.subscribe(">", heard)
        await leader_of_tasks(operator)  # who submits before there is a queue asks to make it, which a tenant may not
        await put_under_load(parties, load)
        stack.push_async_callback(load.stop)
        await load.progresses("before")
        victim = servers.named(await leader_of_tasks(operator))
        victim.kill()
        await load.progresses(f"without {victim}:\n{crew.log_tails()}")
        changes = servers.identities.folder is not None
        if changes:
            await a_tenant_is_added(parties, servers.each[0 if victim is not servers.each[0] else 1])
        victim.launch()
        await asyncio.to_thread(victim.await_ready)
        if changes:
            late = await let_in(replace(parties.settings("late"), urls=(tls_url(victim),)))
            stack.push_async_callback(late.close)
            request = partial(ask, late, "gangline.call.work.square", {"number": LAST, "seconds": 0})
            await until_somebody_responds(request)  # its server learns of users before it learns of subscriptions
            assert await request() == LAST**2
        await leader_of_tasks(operator)
        await load.progresses("with all servers again")
        await load.stop()
        assert verdicts(crew, load, await outcomes(load)) == []
        # What the shop sent and got, nobody of the lab has heard; and all that was sent was allowed.
        assert heard.items and [each for each in heard.items if "train" in each.subject or b"shop" in each.data] == []
        assert servers.violations() == []
        await listening.unsubscribe()  # it would answer in place of the server's "no responders"
        await tenants_reach_nothing_of_each_other(await parties.bus("web"), spy)
        await nobody_else_gets_in(parties, tmp_path)
