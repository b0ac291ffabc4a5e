"""Callers in an account of their own, and users by JWT: the same permissions hold."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import nkeys
import pytest

from gangline.bus.nats_bus import connect as connect_jetstream
from gangline.bus.port.bus import BucketSettings, NoResponders, NotPermitted, RequestTimeout
from gangline.bus.settings.connection import ConnectionSettings
from gangline.bus.settings.keys import KeyKind, KeyPair
from gangline.coordinator.service import Coordinator
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.gateway.gateway import Gateway
from gangline.schemas.errors.base import GanglineError, ServerUnreachable
from gangline.schemas.names import Names
from gangline.schemas.permissions.jwt_config import claims_in, claims_of, creds_file, encode_jwt
from gangline.schemas.permissions.nats_config import configuration, parse_user, variable
from gangline.schemas.permissions.roles import Permissions, Role, permissions
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.service import Worker

from ..bus.conftest import collect
from ..support.bus.identities import make_jwt, make_key
from ..waiting import PATIENCE_S, until
from .conftest import NOWHERE, PASSWORD, SERVERS, Site, cut, jwts, unlimited_user
from .pool import pool as images

pytestmark = pytest.mark.server


class Tenants:
    """Two tenants beside Gangline's own account. Each has a producer for one endpoint, and somebody whom no permissions
    limit, to show what the account alone keeps away."""

    USERS = (*SERVERS, "web@shop=producer:images", "other@lab=producer:video")

    def __init__(self, site: Site) -> None:
        self.site = site

    @classmethod
    def configuration(cls) -> str:
        config = cut(*cls.USERS)
        for tenant in ("shop", "lab"):
            users = f"  {tenant} {{\n    users: [\n"
            assert users in config
            config = config.replace(users, f"{users}      {{ user: thief-{tenant}, password: {PASSWORD} }}\n")
        return config


@pytest.fixture(params=["passwords", pytest.param("JWT", marks=pytest.mark.long)])
def tenants(request: pytest.FixtureRequest, site_of, tmp_path: Path) -> Tenants:
    """In each form that `gangline roles` writes."""
    if request.param == "passwords":
        return Tenants(site_of(Tenants.configuration()))
    config = jwts(tmp_path, *Tenants.USERS)
    for tenant in ("shop", "lab"):
        unlimited_user(tmp_path, f"thief-{tenant}", tenant)
    return Tenants(site_of(config, tmp_path))


async def test_a_tenant_calls_and_submits_to_its_own_endpoint_alone(tenants: Tenants):
    site = tenants.site
    await site.everything()
    thief = await site.bus("thief-lab")  # imports calls to "video", and nothing of "images"
    for subject in (
        "gangline.call.images.double",
        "gangline.task.images.double",
        "gangline.task.video.double.@shop",  # in another tenant's name, or in its own
        "gangline.task.video.double.@lab",
        "gangline.queue.images.stats",
    ):
        with pytest.raises(NoResponders):
            await thief.request(subject, b"[2]", timeout_s=PATIENCE_S)
    web = await site.bus("web")
    for subject in Names().both("gangline.call.images.double"):
        assert (await web.request(subject, b"[2]", timeout_s=PATIENCE_S)).data == b"4"
    stored = await web.request(
        "gangline.task.images.double", b"[2]", headers={"Gangline-Job": "images.j1"}, timeout_s=PATIENCE_S
    )
    asked = {"jobs": ["images.j1"], "sequences": [json.loads(stored.data)["seq"]], "wait_s": 30}
    told: list[Any] = []

    async def wait() -> bool:
        try:
            answer = await web.request("gangline.queue.images.wait", json.dumps(asked).encode(), timeout_s=PATIENCE_S)
        except NoResponders:
            return False  # no dispatcher has taken the queue yet
        told.extend(each["result"] for each in json.loads(answer.data)["results"])
        return True

    await until(wait)
    assert told == [4]
    with pytest.raises(NoResponders):
        await thief.request("gangline.queue.images.wait", json.dumps(asked).encode(), timeout_s=PATIENCE_S)
    assert await site.refused() == []


def test_the_server_takes_answers_to_tenants_for_a_day(tmp_path: Path):
    """By default it drops those that take longer than two minutes."""
    users = ("operator", "web@shop=producer:images")
    exports = [line for line in cut(*users).splitlines() if "{ service:" in line and "accounts:" in line]
    assert exports and [line for line in exports if not line.endswith('threshold: "86400s" }')] == []
    key = KeyPair((jwts(tmp_path, *users) and tmp_path / "keys" / "accounts" / "GANGLINE.nk").read_text()).public
    token = (tmp_path / "resolver.conf").read_text().partition(f"  {key}: ")[2].splitlines()[0]
    services = [each for each in claims_in(token)["nats"]["exports"] if each["type"] == "service"]
    assert services and {each["response_threshold"] for each in services} == {86_400 * 10**9}


ATTACKS = {
    "delete a stream by an answer": (
        "$JS.API.STREAM.MSG.GET.KV_GANGLINE_RESULTS",
        "$JS.API.STREAM.DELETE.GANGLINE_TASKS",
    ),
    "purge the queue by an answer": ("$JS.API.STREAM.INFO.GANGLINE_TASKS", "$JS.API.STREAM.PURGE.GANGLINE_TASKS"),
    "drain a worker by an answer": ("$JS.API.STREAM.MSG.GET.KV_GANGLINE_RESULTS", "gangline.worker.images.w1.drain"),
    "unseat the leader by an acknowledgement": ("gangline.task.images.double", "$KV.GANGLINE_LEDGER.leader"),
    "end a worker by an acknowledgement": ("gangline.task.images.double", "$KV.GANGLINE_LEDGER.alive.images.w1"),
    "forge a result by an acknowledgement": ("gangline.task.images.double", "$KV.GANGLINE_RESULTS.result.JOB"),
    "forge a record by a dispatcher's answer": ("gangline.queue.images.stats", "$KV.GANGLINE_LEDGER.gang.forged"),
    "speak as a gateway": ("gangline.call.images.double", "gangline.event.forged"),
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_what_a_tenant_names_as_reply_subject_is_one_of_its_own_account(tenants: Tenants, attack: str):
    site, (asked, aimed_at) = tenants.site, ATTACKS[attack]
    await site.everything()
    operator, web = await site.client("operator"), await site.client("web")
    kept = await web.submit("images.double", 1)
    assert await kept.result(PATIENCE_S) == 2
    aimed_at = aimed_at.replace("JOB", kept.id)
    ledger = await operator._bus.bucket(Names().ledger_bucket, BucketSettings(), make=False)
    leader = await ledger.get("leader")
    thief, heard, at_home = await site.bus("thief-shop"), collect(), collect()
    await operator._bus.subscribe("gangline.event.forged", heard)
    await thief.subscribe(aimed_at, at_home)
    await asyncio.gather(operator._bus.flush(), thief.flush())
    thief.publish(asked, b"" if "task" not in asked else b"[1]", reply=aimed_at)
    await at_home.count(1)  # the answer came, and to nobody else
    assert heard.items == []
    assert await ledger.get("gang.forged") is None and await ledger.get("leader") == leader
    for id in ("w1", "w2"):
        stats = await operator._bus.request(f"gangline.worker.images.{id}.stats", b"{}", timeout_s=PATIENCE_S)
        assert not json.loads(stats.data)["load"]["draining"]
    assert await web.job(kept.id).result(PATIENCE_S) == 2
    assert await (await web.submit("images.double", 3)).result(PATIENCE_S) == 6
    async with operator.gang(pool="images", size=2) as gang:
        assert await gang.run("together") == [0, 1]


@pytest.mark.parametrize(
    "target",
    [
        "$JS.API.STREAM.DELETE.GANGLINE_TASKS",
        "$JS.API.STREAM.NAMES",
        "$JS.API.CONSUMER.CREATE.GANGLINE_JOBS.x",
        "gangline.worker.images.w1.drain",
        "gangline.gang.list",
        "$SRV.PING",
        "gangline.sched.x",
    ],
)
async def test_what_a_tenant_does_not_import_does_not_exist_for_it(tenants: Tenants, target: str):
    await tenants.site.everything()
    thief = await tenants.site.bus("thief-shop")
    with pytest.raises((NoResponders, RequestTimeout)):
        await thief.request(target, b"{}", timeout_s=1.0)


@pytest.mark.parametrize("text, why", [
    ("web@shop=router:images", "may only be a producer, an owner or a worker"),
    ("web@=producer", "no tenant"),
    ("web@GANGLINE=producer", "give the tenant another name"),
    ("web@a.b=producer", "tenant"),
])  # fmt: skip
def test_a_tenant_that_cannot_be_is_refused(text: str, why: str):
    with pytest.raises(GanglineError, match=why):
        cut("operator", text)


async def test_users_may_have_nkeys_in_place_of_passwords(serve, tmp_path, monkeypatch):
    users = (*SERVERS, "web@shop=producer:images")
    config = configuration(Names(), tuple(map(parse_user, users)), nkeys=True)
    assert "password:" not in config
    files = {}
    for name in (*SERVERS, "web"):
        seed, public = make_key(nkeys.PREFIX_BYTE_USER)
        monkeypatch.setenv(variable(name, nkey=True), public)
        files[name] = tmp_path / f"{name}.nk"
        files[name].write_bytes(seed)
    server = serve(config)

    async def bus(name: str):
        settings = ConnectionSettings(urls=(server.url,), nkey_file=files[name], inbox_prefix=f"_INBOX.{name}")
        return await connect_jetstream(settings, name=name)

    leader, gateway, worker, web = [await bus(name) for name in ("coordinator", "gateway", "worker", "web")]
    try:
        async with (
            Coordinator(bus=leader),
            Gateway(gateway),
            Worker(images, bus=worker, settings=WorkerSettings(id="w1")),
        ):
            assert (await web.request("gangline.call.images.double", b"[2]", timeout_s=PATIENCE_S)).data == b"4"
    finally:
        for each in (leader, gateway, worker, web):
            await each.close()


async def test_jwts_let_in_whom_they_name_with_what_the_roles_allow(site_of, tmp_path):
    users = ("operator", "gateway", "worker", "web@shop=producer:images", "old@lab=producer:images")
    jwts(tmp_path, *users)
    # Paths in a server's configuration are relative, whatever they begin with.
    site: Site = site_of(f'include "{"../" * 20}{tmp_path / "resolver.conf"}"', tmp_path)
    await site.worker("w1")
    await site.gateway()
    old = await site.bus("old")
    assert (await old.request("gangline.call.images.double", b"[2]", timeout_s=PATIENCE_S)).data == b"4"
    before = {path: path.read_bytes() for path in (tmp_path / "creds").iterdir()}
    # Run again: one user may do something else, one is left out, one is new. The server goes on.
    jwts(tmp_path, *users[:3], "web@shop=producer:video", "new@shop=producer:images")
    assert {path: path.read_bytes() for path in before} == before
    assert site.server.pid is not None
    os.kill(site.server.pid, signal.SIGHUP)
    await asyncio.to_thread(site.server.await_log, "Reloaded server configuration")
    new, web = await site.bus("new"), await site.bus("web")
    assert (await new.request("gangline.call.images.double", b"[2]", timeout_s=PATIENCE_S)).data == b"4"
    with pytest.raises(NotPermitted):
        await web.request("gangline.call.images.double", b"[2]", timeout_s=PATIENCE_S)
    with pytest.raises(ServerUnreachable):
        await site.bus("old")
    await until(lambda: not old.connected)


async def test_a_jwt_that_is_not_valid_lets_nobody_in(site_of, tmp_path):
    site: Site = site_of(jwts(tmp_path, "operator", "web@shop=producer:images"), tmp_path)
    accounts, creds = tmp_path / "keys" / "accounts", tmp_path / "creds"
    shop, gangline = (KeyPair((accounts / f"{name}.nk").read_text()) for name in ("shop", "GANGLINE"))
    own, now = KeyPair.new(KeyKind.USER), int(time.time())
    about = {"type": "user", "version": 2, **dict.fromkeys(("subs", "data", "payload"), -1)}
    theirs = {**about, "issuer_account": gangline.public}
    head, claims, signature = (creds / "web.creds").read_text().split("-----\n")[1].split("\n")[0].split(".")
    changed = claims_of((creds / "operator.creds").read_text()) | {"sub": own.public}
    written = base64.urlsafe_b64encode(json.dumps(changed).encode()).decode().rstrip("=")
    tokens = {
        "good": encode_jwt(own.public, "good", shop, about, issued_at=now, expires_at=now + 3600),
        "expired": encode_jwt(own.public, "expired", shop, about, issued_at=now - 9, expires_at=now - 1),
        "changed": f"{head}.{written}.{signature}",
        "unsigned": f"{head}.{claims}.",
        "somebody elses": f"{head}.{claims}.{signature}",
        "of a stranger": encode_jwt(own.public, "stranger", KeyPair.new(KeyKind.ACCOUNT), about, issued_at=now),
        "of another account": encode_jwt(own.public, "shop", shop, theirs, issued_at=now),
    }
    for name, token in tokens.items():
        (creds / f"{name}.creds").write_text(creds_file(token, own.seed))
    await site.bus("good", inbox_prefix="_INBOX")
    for name in tokens.keys() - {"good"}:
        with pytest.raises(ServerUnreachable):
            await site.bus(name, inbox_prefix="_INBOX")


class Jwts:
    """An operator, an account, and a signing key for each role, whose template all its users follow (as `nsc edit
    signing-key --role` makes it)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._operator = make_key(nkeys.PREFIX_BYTE_OPERATOR)
        self._account = make_key(nkeys.PREFIX_BYTE_ACCOUNT)
        self._keys: dict[Role, tuple[bytes, str]] = {}
        self._scopes: list[dict[str, Any]] = []

    def scope(self, role: Role, allowed: Permissions) -> None:
        seed, key = self._keys[role] = make_key(nkeys.PREFIX_BYTE_ACCOUNT)
        template: dict[str, Any] = {
            "subs": -1,
            "data": -1,
            "payload": -1,
            "pub": {"allow": list(allowed.publish)},
            "sub": {"allow": list(allowed.subscribe)},
        }
        self._scopes.append({"kind": "user_scope", "key": key, "role": role.value, "template": template})

    def config(self) -> str:
        seed, operator = self._operator
        limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
        storage = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
        about = {
            "type": "account",
            "version": 2,
            "limits": {**limits, **storage, "wildcards": True},
            "signing_keys": self._scopes,
        }
        account = make_jwt(self._account[1], "GANGLINE", seed, operator, about)
        _, system = make_key(nkeys.PREFIX_BYTE_ACCOUNT)
        rest = {"type": "account", "version": 2, "limits": {**limits, "wildcards": True}}
        sys_jwt = make_jwt(system, "SYS", seed, operator, rest)
        root = make_jwt(operator, "O", seed, operator, {"type": "operator", "version": 2, "system_account": system})
        return (
            f"operator: {root}\nresolver: MEMORY\n"
            f"resolver_preload: {{ {self._account[1]}: {account}, {system}: {sys_jwt} }}\n"
        )

    def user(self, name: str, role: Role, *tags: str) -> Path:
        seed, public = make_key(nkeys.PREFIX_BYTE_USER)
        signing, issuer = self._keys[role]
        about = {"type": "user", "version": 2, "issuer_account": self._account[1], "tags": list(tags)}
        jwt = make_jwt(public, name, signing, issuer, about)
        file = self._folder / f"{name}.creds"
        file.write_text(
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{seed.decode()}\n------END USER NKEY SEED------\n"
        )
        return file


async def test_users_by_jwt_follow_the_template_of_their_role(serve, tmp_path):
    jwts = Jwts(tmp_path)
    inbox = Permissions(subscribe=("_INBOX.{{name()}}.>",))
    jwts.scope(Role.WORKER, permissions(Role.WORKER, Names(), pool="{{tag(pool)}}", worker="{{name()}}") | inbox)
    jwts.scope(Role.ROUTER, permissions(Role.ROUTER, Names()) | inbox)
    jwts.scope(Role.COORDINATOR, permissions(Role.COORDINATOR, Names()) | inbox)
    server = serve(jwts.config())

    async def bus(name: str, file: Path):
        settings = ConnectionSettings(urls=(server.url,), credentials_file=file, inbox_prefix=f"_INBOX.{name}")
        return await connect_jetstream(settings, name=name)

    first, router = (
        await bus("w1", jwts.user("w1", Role.WORKER, "pool:images")),
        await bus("r", jwts.user("r", Role.ROUTER)),
    )
    maker = await bus("c", jwts.user("c", Role.COORDINATOR))
    await maker.bucket(Names().ledger_bucket, BucketSettings())
    await maker.close()
    try:
        worker = Worker(images, bus=first, settings=WorkerSettings(id="w1"))
        async with worker, Client(router, settings=NOWHERE) as client:
            assert await client.call("images.double", 2) == 4
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(NotPermitted, match=r"alive\.images\.w2"):
                await Worker(images, bus=first, settings=WorkerSettings(id="w2")).start()
    finally:
        await first.close()
        await router.close()


# -- workers in an account of their own -------------------------------------------------------------------------------


class GpuAccount:
    """Workers in an account of their own, with somebody there whom no permissions limit."""

    USERS = (
        *(user for user in SERVERS if user != "worker"),
        *("w1@gpus=worker:images.w1", "w2@gpus=worker:images.w2"),
        *("web@shop=producer:images", "batch@shop=owner:images"),
    )

    @classmethod
    def configuration(cls) -> str:
        users = "  gpus {\n    users: [\n"
        config = cut(*cls.USERS)
        assert users in config
        return config.replace(users, f"{users}      {{ user: thief-gpus, password: {PASSWORD} }}\n")


@pytest.fixture(params=["passwords", pytest.param("JWT", marks=pytest.mark.long)])
async def gpus(request: pytest.FixtureRequest, site_of, tmp_path: Path) -> Site:
    """Two workers there, and all servers in Gangline's own account."""
    if request.param == "passwords":
        site: Site = site_of(GpuAccount.configuration())
    else:
        config = jwts(tmp_path, *GpuAccount.USERS)
        unlimited_user(tmp_path, "thief-gpus", "gpus")
        site = site_of(config, tmp_path)
    await site.coordinator()
    for id in ("w1", "w2"):
        await site.worker(id, user=id)
    await site.dispatcher()
    await site.gateway()
    return site


async def test_workers_in_an_account_of_their_own_do_all_that_workers_do(gpus: Site):
    web, router, operator = [await gpus.bus(user) for user in ("web", "router", "operator")]
    client = await gpus.client("router")
    assert await client.call("images.double", 1) == 2
    assert [item async for item in client.stream("images.count", 200)] == list(range(200))
    async with client.choose_worker("images") as selection:
        assert await client.dispatch(selection, "double", 2) == 4
    async with client.lease("images", slots=2, ledger="sync") as lease:
        assert await lease.call("double", 3) == 6
    async with client.gang(pool="images", size=2) as gang:
        assert await gang.run("together") == [0, 1]
    assert (await web.request("gangline.call.images.double", b"[2]", timeout_s=PATIENCE_S)).data == b"4"
    producer = await gpus.client("web")
    told = await producer.options(events=True).submit("images.report")
    assert {type(event).__name__ async for event in told.events()} == {"JobEvent", "JobProgress"}
    large = await producer.submit("images.text", 900_000)
    assert len(await large.result(PATIENCE_S)) == 900_000
    for asker in (router, operator):
        stats = await asker.request("gangline.worker.images.w1.reserve", b'{"slots": 1}', timeout_s=PATIENCE_S)
        assert "token" in json.loads(stats.data)
    assert await gpus.refused() == []


async def test_a_tenants_owner_cannot_dispatch_to_workers_of_another_account(gpus: Site):
    """The server passes on no request through two accounts. Should it do so one day, the page is to be changed."""
    batch = await gpus.bus("batch")
    body = json.dumps({"pool": "images", "size": 2, "id": "mine", "owner_token": "s3cret"}).encode()
    formed = json.loads((await batch.request("gangline.gang.acquire", body, timeout_s=PATIENCE_S)).data)
    seat = formed["seats"][0]
    run = json.dumps({"token": seat["token"], "method": "double", "arguments": [4]}).encode()
    worker = f"gangline.worker.images.{seat['worker']}.dispatch"
    with pytest.raises(NoResponders):
        await batch.request(worker, run, timeout_s=PATIENCE_S)


WORKER_ATTACKS = {
    "delete a stream by an answer": (
        "$JS.API.STREAM.MSG.GET.KV_GANGLINE_LEDGER",
        "$JS.API.STREAM.DELETE.GANGLINE_TASKS",
    ),
    "drain a worker by an answer": ("$JS.API.STREAM.INFO.KV_GANGLINE_LEDGER", "gangline.worker.images.w2.drain"),
    "unseat the leader by an acknowledgement": (
        "$KV.GANGLINE_LEDGER.lease.images.w1.x",
        "$KV.GANGLINE_LEDGER.leader",
    ),
    "forge a gang by an acknowledgement": ("$KV.GANGLINE_LEDGER.lease.images.w1.x", "$KV.GANGLINE_LEDGER.gang.forged"),
}


@pytest.mark.parametrize("attack", WORKER_ATTACKS)
async def test_what_a_worker_names_as_reply_subject_is_one_of_its_own_account(gpus: Site, attack: str):
    asked, aimed_at = WORKER_ATTACKS[attack]
    client = await gpus.client("operator")
    ledger = await client._bus.bucket(Names().ledger_bucket, BucketSettings(), make=False)
    leader = await ledger.get("leader")
    thief, at_home = await gpus.bus("thief-gpus"), collect()
    await thief.subscribe(aimed_at, at_home)
    await thief.flush()
    thief.publish(asked, b"{}", reply=aimed_at)
    await at_home.count(1)  # the answer came, and to nobody else
    assert await ledger.get("gang.forged") is None and await ledger.get("leader") == leader
    stats = await client._bus.request("gangline.worker.images.w2.stats", b"{}", timeout_s=PATIENCE_S)
    assert not json.loads(stats.data)["load"]["draining"]
    assert await (await client.submit("images.double", 3)).result(PATIENCE_S) == 6


@pytest.mark.parametrize(
    "target",
    [
        "$JS.API.STREAM.NAMES",
        "$JS.API.STREAM.PURGE.GANGLINE_TASKS",
        "$JS.API.CONSUMER.CREATE.KV_GANGLINE_LEDGER.x",
        "$KV.GANGLINE_LEDGER.leader",
        "$KV.GANGLINE_LEDGER.alive.images.w3",
        "gangline.task.images.double",
        "gangline.call.images.double",
        "gangline.gang.list",
    ],
)
async def test_what_workers_do_not_import_does_not_exist_for_them(gpus: Site, target: str):
    thief = await gpus.bus("thief-gpus")
    with pytest.raises((NoResponders, RequestTimeout)):
        await thief.request(target, b"{}", timeout_s=1.0)
