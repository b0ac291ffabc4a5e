"""A server with the configuration that the project ships, and every part of a system connected by its role."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from click.testing import CliRunner

from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.nats_bus import NatsBus
from gangline.bus.nats_bus import connect as connect_jetstream
from gangline.bus.port.bus import BucketSettings
from gangline.bus.settings.connection import ConnectionSettings
from gangline.bus.settings.keys import KeyKind, KeyPair
from gangline.cli.app import gangline
from gangline.coordinator.service import Coordinator
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.dispatcher.durable.service import Dispatcher
from gangline.dispatcher.gateway.gateway import Gateway
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.schemas.names import Names
from gangline.schemas.permissions.jwt_config import creds_file, encode_jwt
from gangline.schemas.permissions.nats_config import configuration, parse_limit, parse_user, variable
from gangline.schemas.permissions.quotas import parse_quotas
from gangline.schemas.permissions.roles import INBOXES
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ..support.opened import opened as opened
from ..support.opened import pytest_pyfunc_call as pytest_pyfunc_call
from ..waiting import PATIENCE_S
from .pool import pool as images

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "roles.conf"
PASSWORD = "s3cret"
# A grant that nobody has renewed after `claim_s` ends, and on a busy machine its first renewal may be late.
NOWHERE = RouterSettings(node="", zone="", claim_s=PATIENCE_S)


def cut(*users: str) -> str:
    """Configuration with other users than the shipped ones, as `gangline roles` writes it."""
    return configuration(Names(), tuple(map(parse_user, users)))


def jwts(folder: Path, *users: str) -> str:
    """The same in JWTs, as `gangline roles --jwt` writes it; the folder gets the users' credentials."""
    done = CliRunner().invoke(gangline, ["roles", "--jwt", str(folder), *users])
    assert done.exit_code == 0, done.output
    return (folder / "resolver.conf").read_text()


def unlimited_user(folder: Path, name: str, account: str) -> None:
    """Write credentials of a user of that account whom no lists limit."""
    signer, own = KeyPair((folder / "keys" / "accounts" / f"{account}.nk").read_text()), KeyPair.new(KeyKind.USER)
    limits = dict.fromkeys(("subs", "data", "payload"), -1)
    token = encode_jwt(own.public, name, signer, {"type": "user", "version": 2, **limits}, issued_at=int(time.time()))
    (folder / "creds" / f"{name}.creds").write_text(creds_file(token, own.seed))


async def ask(bus: NatsBus, subject: str, headers: dict[str, str] | None = None, /, **body: Any) -> Any:
    """A bare request in JSON, and its answer, which may be an error."""
    data = json.dumps(body).encode()
    return json.loads((await bus.request(subject, data, headers=headers, timeout_s=PATIENCE_S)).data)


def violations(server: EmbeddedServer) -> list[str]:
    """What the server refused since it was started."""
    return [line for line in server.log_tail(100_000).splitlines() if "Violation" in line]


class Site:
    """One server, and what is connected to it."""

    def __init__(
        self,
        server: EmbeddedServer,
        stack: AsyncExitStack,
        jwt_folder: Path | None = None,
        nkey_folder: Path | None = None,
    ) -> None:
        self.server = server
        self._jwt_folder = jwt_folder
        self._nkey_folder = nkey_folder
        self._stack = stack
        self._ledger = False
        self._user = ""
        """Who was connected last."""
        self._probes = itertools.count(1)

    def credentials(self, user: str) -> Path | None:
        """The file of a user by JWT."""
        return None if self._jwt_folder is None else self._jwt_folder / "creds" / f"{user}.creds"

    @property
    def named(self) -> list[str]:
        """What quotas must say about the accounts of tenants."""
        return [] if self._jwt_folder is None else (self._jwt_folder / "tenants").read_text().split()

    async def bus(self, user: str, **others: Any) -> NatsBus:
        file = self.credentials(user)
        identity: dict[str, Any] = {"credentials_file": file} if file else {"user": user, "password": PASSWORD}
        if self._nkey_folder is not None:
            identity = {"nkey_file": self._nkey_folder / f"{user}.nk"}
        settings = ConnectionSettings(
            urls=(self.server.url,),
            **identity,
            **{"inbox_prefix": f"{INBOXES}.{user}", "reconnect_wait_s": 0.02, **others},
        )
        bus = await connect_jetstream(settings, name=user)
        self._user = user
        self._stack.push_async_callback(bus.close)
        return bus

    async def client(self, user: str, *, gateway: bool = False) -> Client:
        client = Client(await self.bus(user), settings=NOWHERE, name=user, gateway=gateway)
        return await self._stack.enter_async_context(client)

    async def make_ledger(self) -> None:
        """As whoever may: workers wait for it."""
        bus = await self.bus("operator")
        await bus.bucket(Names().ledger_bucket, BucketSettings())
        await bus.close()

    async def worker(self, id: str = "w1", *, user: str = "worker", pool: Pool = images) -> Worker:
        if not self._ledger:
            self._ledger = True
            await self.make_ledger()
        settings = WorkerSettings(id=id, node=id, start_timeout_s=PATIENCE_S)
        return await self._stack.enter_async_context(Worker(pool, bus=await self.bus(user), settings=settings))

    async def dispatcher(self, *quotas: str, **settings: Any) -> Dispatcher:
        found = DispatcherSettings(quotas=parse_quotas([*self.named, *quotas]), **settings)
        made = Dispatcher(await self.bus("dispatcher"), settings=found)
        return await self._stack.enter_async_context(made)

    async def gateway(self) -> Gateway:
        return await self._stack.enter_async_context(Gateway(await self.bus("gateway")))

    async def coordinator(self, **others: Any) -> Coordinator:
        coordinator = Coordinator(bus=await self.bus("coordinator"), **others)
        await self._stack.enter_async_context(coordinator)
        await coordinator.wait_leading()
        return coordinator

    async def everything(self) -> None:
        """A coordinator, two workers, a dispatcher and a gateway."""
        await self.coordinator()
        for id in ("w1", "w2"):
            await self.worker(id)
        await self.dispatcher()
        await self.gateway()

    async def refused(self) -> list[str]:
        """What the server has refused so far; its log is read until it tells of a refusal that is made here."""
        probe = f"probe.{next(self._probes)}"
        bus = await self.bus(self._user)
        bus.publish(probe, b"")
        await bus.flush()
        await asyncio.to_thread(self.server.await_log, re.escape(probe))
        await bus.close()
        return [line for line in violations(self.server) if "probe." not in line]


@pytest.fixture
def serve(monkeypatch) -> Iterator[Callable[[str], EmbeddedServer]]:
    """Start a server with users; the environment has their passwords."""
    with contextlib.ExitStack() as stack:

        def start(config: str) -> EmbeddedServer:
            for user in re.findall(r"user: ([\w-]+)", config):
                monkeypatch.setenv(variable(user), PASSWORD)
            return stack.enter_context(EmbeddedServer(config=config))

        yield start


@pytest.fixture
def site_of(serve, opened: AsyncExitStack) -> Callable[..., Site]:
    """A site on a server of that configuration; for users by JWT or nkey, with the folder that has their secrets."""
    return lambda config, jwt_folder=None, nkey_folder=None: Site(serve(config), opened, jwt_folder, nkey_folder)


@pytest.fixture(params=["passwords", pytest.param("JWT", marks=pytest.mark.long)])
def site_in_form(request: pytest.FixtureRequest, site_of, tmp_path: Path) -> Callable[..., Site]:
    """A site with these users, in each form that `gangline roles` writes. `free` has the name of a user, by account,
    whom no lists limit: it shows what the account alone keeps away."""

    def make(*users: str, free: Mapping[str, str] = MappingProxyType({}), limits: Iterable[str] = ()) -> Site:
        if request.param == "JWT":
            config = jwts(tmp_path, *(f"--limit={limit}" for limit in limits), *users)
            for account, name in free.items():
                unlimited_user(tmp_path, name, account)
            return site_of(config, tmp_path)
        config = configuration(Names(), tuple(map(parse_user, users)), limits=map(parse_limit, limits))
        for account, name in free.items():
            before, start, after = config.partition(f"  {account} {{\n")
            head, listed, tail = after.partition("    users: [\n")
            assert start and listed
            config = f"{before}{start}{head}{listed}      {{ user: {name}, password: {PASSWORD} }}\n{tail}"
        return site_of(config)

    return make


@pytest.fixture
def site_by_nkeys(site_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Site]:
    def make(*users: str) -> Site:
        found = tuple(map(parse_user, users))
        config = configuration(Names(), found, nkeys=True)
        assert "password:" not in config
        for user in found:
            own = KeyPair.new(KeyKind.USER)
            monkeypatch.setenv(variable(user.name, nkey=True), own.public)
            (tmp_path / f"{user.name}.nk").write_text(own.seed)
        return site_of(config, nkey_folder=tmp_path)

    return make


@pytest.fixture
def site(site_of) -> Site:
    """With the configuration that is shipped."""
    return site_of(SHIPPED.read_text())


SERVERS = ("gateway", "dispatcher", "coordinator", "operator", "worker", "router")


@pytest.fixture(
    params=["in one account", *(pytest.param(form, marks=pytest.mark.long) for form in ("of a tenant", "by JWT"))]
)
def producing(request: pytest.FixtureRequest, site_of, tmp_path: Path) -> Site:
    """With a producer in Gangline's own account, and with one in an account that imports what it needs."""
    users = "producer" if request.param == "in one account" else "producer@shop=producer"
    if request.param == "by JWT":
        return site_of(jwts(tmp_path, *SERVERS, users), tmp_path)
    return site_of(cut(*SERVERS, users))
