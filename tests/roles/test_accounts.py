"""Callers in an account of their own, and users by JWT: the same permissions hold."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gangline.bus.nats_bus import NatsBus
from gangline.bus.port.bus import (
    BucketSettings,
    Message,
    NoResponders,
    NotPermitted,
    RequestTimeout,
    StorageUnavailable,
)
from gangline.bus.settings.keys import KeyKind, KeyPair
from gangline.cli.app import gangline
from gangline.dispatcher.calls.call import CallOptions
from gangline.dispatcher.durable.service import Dispatcher
from gangline.dispatcher.jobs.submitter import job_of_key
from gangline.schemas.errors.base import GanglineError, InvalidRequest, ServerUnreachable, TaskFailed, UnknownMethod
from gangline.schemas.names import Names
from gangline.schemas.permissions.jwt_config import claims_in, claims_of, creds_file, encode_jwt
from gangline.schemas.permissions.roles import Permissions, Role, permissions
from gangline.worker.pool.pool import Pool

from ..bus.conftest import collect
from ..support.rows import case
from ..waiting import PATIENCE_S, until, until_somebody_responds
from .conftest import PASSWORD, SERVERS, Site, ask, cut, jwts

pytestmark = pytest.mark.server


DOUBLE = "gangline.call.images.double"
TENANTS = (*SERVERS, "web@shop=producer:images", "other@lab=producer:video")
"""Two tenants beside Gangline's own account. Each has a producer for one endpoint."""


@pytest.fixture
async def tenants(site_in_form) -> Site:
    site: Site = site_in_form(*TENANTS, free={"shop": "thief-shop", "lab": "thief-lab"})
    await site.everything()
    return site


async def test_a_tenant_calls_and_submits_to_its_own_endpoint_alone(tenants: Site):
    thief = await tenants.bus("thief-lab")  # imports calls to "video", and nothing of "images"
    for subject in (
        "gangline.call.images.double",
        "gangline.task.images.double",
        "gangline.task.video.double.@shop",  # in another tenant's name, or in its own
        "gangline.task.video.double.@lab",
        "gangline.queue.images.stats",
    ):
        with pytest.raises(NoResponders):
            await thief.request(subject, b"[2]", timeout_s=PATIENCE_S)
    web = await tenants.bus("web")
    for subject in Names().both("gangline.call.images.double"):
        assert (await web.request(subject, b"[2]", timeout_s=PATIENCE_S)).data == b"4"
    stored = await web.request(
        "gangline.task.images.double", b"[2]", headers={"Gangline-Job": "images.j1"}, timeout_s=PATIENCE_S
    )
    asked: dict[str, Any] = {"jobs": ["images.j1"], "sequences": [json.loads(stored.data)["seq"]], "wait_s": 30}
    # Until a dispatcher has taken the queue.
    await until_somebody_responds(lambda: ask(web, "gangline.queue.images.stats"))
    told = await ask(web, "gangline.queue.images.wait", **asked)
    assert [each["result"] for each in told["results"]] == [4]
    with pytest.raises(NoResponders):
        await ask(thief, "gangline.queue.images.wait", **asked)
    assert await tenants.refused() == []


async def test_a_tenant_that_submits_again_has_one_task_beside_that_of_another_tenant_with_its_key(
    site_in_form,
):
    """The server adds the tenant to the subject, so what is stored does not look like what was sent."""
    users = (*SERVERS, "web@shop=producer:images", "batch@lab=producer:images")
    site: Site = site_in_form(*users)
    async with Dispatcher(await site.bus("dispatcher")):
        pass  # it has made the streams
    web, operator = await site.client("web"), await site.client("operator")
    tasks = await operator._submitter._streams.tasks()

    async def stored() -> list[str]:
        count = (await tasks.state()).messages
        found = [await tasks.get(number) for number in range(1, count + 1)]
        return [each.subject.rpartition("@")[2] for each in found if each is not None]

    unkeyed = await web._submitter.one("images.double", [1], {}, CallOptions())
    again = await web._submitter._stored(unkeyed.message, StorageUnavailable("no answer"))  # it was stored, though
    assert (again.sequence, await stored()) == (unkeyed.sequence, ["shop"])
    for user in ("web", "batch", "web", "batch"):
        client = await site.client(user)  # each time another process, which does not know what the others sent
        await client.options(idempotency_key="order-7").submit("images.double", 1)
        await client.options(idempotency_key="order-7").submit("images.double", 1)
    assert await stored() == ["shop", "shop", "lab"]


async def test_an_idempotency_key_belongs_to_its_tenant_and_each_has_its_own_result(site_in_form):
    own = "own=producer:images"
    users = (*SERVERS, own, "web@shop=producer:images", "batch@lab=producer:images")
    site: Site = site_in_form(*users)
    await site.everything()
    jobs: dict[str, str] = {}
    for number, user in enumerate(("own", "web", "batch"), 1):
        for _ in range(2):  # each time another process
            keyed = (await site.client(user)).options(idempotency_key="order-7")
            job = await keyed.submit("images.double", number)
            assert await job.result(timeout_s=PATIENCE_S) == 2 * number
            assert jobs.setdefault(user, job.id) == job.id
    assert len(set(jobs.values())) == 3
    assert jobs["own"] == job_of_key("images.double", "order-7")
    assert await (await site.client("operator")).job(jobs["own"]).result(timeout_s=PATIENCE_S) == 2


RELOADS = 6


async def test_a_reload_of_the_file_with_other_accounts_delivers_each_request_once_or_says_that_nobody_answers(
    site_of, tmp_path: Path
):
    """A server that gets an account in a JWT adds its new imports before it removes the old ones. A server that reads a
    file has no imports for a moment, and keeps the connections of users that have not changed."""
    file = tmp_path / "accounts.conf"
    users = ("operator", "gateway", "web@shop=producer:images", "batch@lab=producer:images")

    def write(*more: str) -> None:
        file.write_text(re.sub(r"\$GANGLINE_PASSWORD_\w+", PASSWORD, cut(*users, *more)))

    write()
    site: Site = site_of(f'include "{"../" * 20}{file}"')
    gateway, web = await site.bus("gateway"), await site.bus("web")
    came: Counter[bytes] = Counter()
    unanswerable: Counter[str] = Counter()
    closed: list[str] = []
    for bus in (gateway, web):
        bus.on_connection(lambda event: closed.append(event.name))
    # The gateway answers nothing, so what comes is the server's word that there are no responders.
    await web.subscribe("_INBOX.web.*", lambda message: unanswerable.update([message.subject]))
    await web.flush()
    await gateway.subscribe("gangline.call.>", lambda message: came.update([message.data]), queue="gangline-gateway")
    await gateway.flush()
    over = asyncio.Event()
    sent = 0

    async def ask() -> None:
        nonlocal sent
        while not over.is_set():
            with contextlib.suppress(GanglineError):
                web.publish("gangline.call.images.double", str(sent).encode(), reply=f"_INBOX.web.{sent}")
                sent += 1
            await asyncio.sleep(0)

    asking = asyncio.create_task(ask())
    try:
        for number in range(RELOADS):
            more = [f"u{each}@shop=producer:images" for each in range(number % 3)]
            write(*more, *([f"z@zoo{number}=producer:images"] if number % 2 else []))
            assert site.server.pid is not None
            os.kill(site.server.pid, signal.SIGHUP)
            before = len(came)
            await until(lambda at=number: site.server.log_tail(100_000).count("Reloaded server") > at)
            await until(lambda enough=before + 200: len(came) > enough)
    finally:
        over.set()
        await asking
    await until(lambda: len(came) + len(unanswerable) == sent, lambda: f"{len(came)}, {len(unanswerable)}, {sent}")
    assert sum(came.values()) == len(came) > 200 * RELOADS
    assert sum(unanswerable.values()) == len(unanswerable)
    assert closed == []


def test_the_server_takes_answers_to_tenants_for_a_day(tmp_path: Path):
    """By default it drops those that take longer than two minutes."""
    users = ("operator", "web@shop=producer:images")
    exports = [line for line in cut(*users).splitlines() if "{ service:" in line and "accounts:" in line]
    assert exports and [line for line in exports if not line.endswith('threshold: "86400s" }')] == []
    key = KeyPair((jwts(tmp_path, *users) and tmp_path / "keys" / "accounts" / "GANGLINE.nk").read_text()).public
    token = (tmp_path / "resolver.conf").read_text().partition(f"  {key}: ")[2].splitlines()[0]
    services = [each for each in claims_in(token)["nats"]["exports"] if each["type"] == "service"]
    assert services and {each["response_threshold"] for each in services} == {86_400 * 10**9}


async def test_coordinators_are_told_whose_connection_broke(site_in_form):
    users = (*SERVERS, "w1@gpus=worker:images.w1")
    site: Site = site_in_form(*users)
    coordinator, heard = await site.bus("coordinator"), collect()
    await coordinator.subscribe("$SYS.ACCOUNT.*.DISCONNECT", heard)
    await coordinator.flush()
    for number, user in enumerate(("worker", "w1"), 1):
        await (await site.bus(user)).close()
        told = await heard.count(number)
        assert json.loads(told[-1].data)["client"]["name"] == user
    assert await site.refused() == []


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


async def test_what_a_tenant_names_as_reply_subject_is_one_of_its_own_account(tenants: Site):
    operator, web = await tenants.client("operator"), await tenants.client("web")
    kept = await web.submit("images.double", 1)
    assert await kept.result(PATIENCE_S) == 2
    ledger = await operator._bus.bucket(Names().ledger_bucket, BucketSettings(), make=False)
    leader = await ledger.get("leader")
    thief, heard = await tenants.bus("thief-shop"), collect()
    await operator._bus.subscribe("gangline.event.forged", heard)
    await operator._bus.flush()
    for attack, (asked, target) in ATTACKS.items():
        with case(attack):
            aimed_at, at_home = target.replace("JOB", kept.id), collect()
            await thief.subscribe(aimed_at, at_home)
            await thief.flush()
            thief.publish(asked, b"" if "task" not in asked else b"[1]", reply=aimed_at)
            await at_home.count(1)  # the answer came, and to nobody else
            assert heard.items == []
            assert await ledger.get("gang.forged") is None and await ledger.get("leader") == leader
            for id in ("w1", "w2"):
                stats = await ask(operator._bus, f"gangline.worker.images.{id}.stats")
                assert not stats["load"]["draining"]
    assert await web.job(kept.id).result(PATIENCE_S) == 2
    assert await (await web.submit("images.double", 3)).result(PATIENCE_S) == 6
    async with operator.gang(pool="images", size=2) as gang:
        assert await gang.run("together") == [0, 1]


async def answered(bus: NatsBus, *subjects: str) -> list[str]:
    """Those of the subjects on which somebody answers."""

    async def answers(subject: str) -> bool:
        try:
            await bus.request(subject, b"{}", timeout_s=1.0)
        except (NoResponders, RequestTimeout):
            return False
        return True

    found = await asyncio.gather(*map(answers, subjects))
    return [subject for subject, answer in zip(subjects, found, strict=True) if answer]


async def test_what_a_tenant_does_not_import_does_not_exist_for_it(tenants: Site):
    foreign = (
        "$JS.API.STREAM.DELETE.GANGLINE_TASKS", "$JS.API.STREAM.NAMES", "$JS.API.CONSUMER.CREATE.GANGLINE_JOBS.x",
        "gangline.worker.images.w1.drain", "gangline.gang.list", "$SRV.PING", "gangline.sched.x",
    )  # fmt: skip
    assert await answered(await tenants.bus("thief-shop"), *foreign) == []


@pytest.mark.parametrize("text, why", [
    ("web@shop=router:images", "may only be a producer, an owner or a worker"),
    ("web@=producer", "no tenant"),
    ("web@GANGLINE=producer", "give the tenant another name"),
    ("web@a.b=producer", "tenant"),
])  # fmt: skip
def test_a_tenant_that_cannot_be_is_refused(text: str, why: str):
    with pytest.raises(GanglineError, match=why):
        cut("operator", text)


async def test_users_may_have_nkeys_in_place_of_passwords(site_by_nkeys):
    site: Site = site_by_nkeys(*SERVERS, "web@shop=producer:images")
    await site.coordinator()
    await site.gateway()
    await site.worker("w1")
    assert (await (await site.bus("web")).request(DOUBLE, b"[2]", timeout_s=PATIENCE_S)).data == b"4"


async def test_jwts_let_in_whom_they_name_with_what_the_roles_allow(site_of, tmp_path):
    users = ("operator", "gateway", "worker", "web@shop=producer:images", "old@lab=producer:images")
    jwts(tmp_path, *users)
    # Paths in a server's configuration are relative, whatever they begin with.
    site: Site = site_of(f'include "{"../" * 20}{tmp_path / "resolver.conf"}"', tmp_path)
    await site.worker("w1")
    await site.gateway()
    old = await site.bus("old")
    assert (await old.request(DOUBLE, b"[2]", timeout_s=PATIENCE_S)).data == b"4"
    before = {path: path.read_bytes() for path in (tmp_path / "creds").iterdir()}
    # Run again: one user may do something else, one is left out, one is new. The server goes on.
    jwts(tmp_path, *users[:3], "web@shop=producer:video", "new@shop=producer:images")
    assert {path: path.read_bytes() for path in before} == before
    assert site.server.pid is not None
    os.kill(site.server.pid, signal.SIGHUP)
    await asyncio.to_thread(site.server.await_log, "Reloaded server configuration")
    new, web = await site.bus("new"), await site.bus("web")
    assert (await new.request(DOUBLE, b"[2]", timeout_s=PATIENCE_S)).data == b"4"
    with pytest.raises(NotPermitted):
        await web.request(DOUBLE, b"[2]", timeout_s=PATIENCE_S)
    with pytest.raises(ServerUnreachable):
        await site.bus("old")
    await until(lambda: not old.connected)


class Pushed:
    """A server that keeps its accounts, and what `gangline roles --push` makes of them."""

    def __init__(self, folder: Path, *users: str) -> None:
        self.jwts = folder / "j"
        self._options = ("--resolver", str(folder / "kept by the server"))
        jwts(self.jwts, *self._options, *users)
        self.configuration = f'include "{"../" * 20}{self.jwts / "resolver.conf"}"'

    async def push(self, site: Site, *users: str) -> str:
        arguments = ["roles", "--jwt", str(self.jwts), *self._options, "--push", site.server.url, *users]
        done = await asyncio.to_thread(CliRunner().invoke, gangline, arguments)
        assert done.exit_code == 0, done.output
        return done.output


async def test_accounts_are_changed_while_the_servers_run_and_stay_after_a_restart(site_of, tmp_path):
    users = ("operator", "gateway", "worker", "web@shop=producer:images", "old@lab=producer:images", "x@gone=producer")
    accounts = Pushed(tmp_path, *users)
    site: Site = site_of(accounts.configuration, accounts.jwts)
    await site.worker("w1")
    await site.gateway()
    old, gone = await site.bus("old"), await site.bus("x")
    assert (await old.request(DOUBLE, b"[2]", timeout_s=PATIENCE_S)).data == b"4"
    changed = (*users[:3], "web@shop=producer:video", "new@shop=producer:images", "other@lab=producer:images")
    assert "the servers have 4 accounts; they have forgotten gone" in await accounts.push(site, *changed)

    async def holds() -> None:
        web, new, other = [await site.bus(user) for user in ("web", "new", "other")]
        for bus in (new, other):
            assert (await bus.request(DOUBLE, b"[2]", timeout_s=PATIENCE_S)).data == b"4"
        with pytest.raises(NotPermitted):
            await web.request(DOUBLE, b"[2]", timeout_s=PATIENCE_S)
        for left_out in ("old", "x"):
            with pytest.raises(ServerUnreachable):
                await site.bus(left_out)

    await holds()
    await until(lambda: not old.connected and not gone.connected)
    # The file that the server was started with is older than what it keeps.
    await asyncio.to_thread(site.server.restart)
    again = await site.bus("new")
    # Until the gateway is back.
    await until_somebody_responds(lambda: again.request(DOUBLE, b"[2]", timeout_s=PATIENCE_S))
    await holds()


async def test_answers_on_their_way_arrive_while_a_tenant_comes_and_another_one_changes(site_of, tmp_path):
    users = ("operator", "gateway", "worker", "web@shop=producer:images")
    accounts = Pushed(tmp_path, *users, "batch@lab=producer:video")
    site: Site = site_of(accounts.configuration, accounts.jwts)
    gateway, web, asked = await site.bus("gateway"), await site.bus("web"), collect()
    await gateway.subscribe("gangline.call.*.*", asked, queue=Names().gateway_queue)
    await gateway.flush()
    waiting = asyncio.ensure_future(web.request("gangline.call.images.double", b"[2]", timeout_s=2 * PATIENCE_S))
    await asked.count(1)
    await accounts.push(site, *users, "batch@lab=producer:audio", "w@new=worker", "o@new=owner")
    gateway.publish(asked.items[0].reply, b"4")
    assert (await waiting).data == b"4"
    await site.bus("w")  # the new tenant


@pytest.mark.long
async def test_requests_of_a_tenant_are_delivered_once_while_its_account_changes(site_of, tmp_path):
    """The server would deliver those twice that come while it has the old imports beside the new ones."""
    users = ("operator", "gateway", "worker")
    accounts = Pushed(tmp_path, *users, "web@shop=producer:images")
    site: Site = site_of(accounts.configuration, accounts.jwts)
    gateway, web = await site.bus("gateway"), await site.bus("web")
    delivered, numbers, over = Counter[bytes](), itertools.count(), asyncio.Event()

    def answer(message: Message) -> None:
        delivered[message.data] += 1
        gateway.publish(message.reply, b"")

    async def ask() -> None:
        while not over.is_set():
            with contextlib.suppress(NoResponders):  # nothing was delivered
                number = str(next(numbers)).encode()
                await web.request("gangline.call.images.double", number, timeout_s=2 * PATIENCE_S)

    await gateway.subscribe("gangline.call.*.*", answer, queue=Names().gateway_queue)
    await gateway.flush()
    asking = [asyncio.ensure_future(ask()) for _ in range(100)]
    for change in range(12):
        await accounts.push(site, *users, "web@shop=producer:images", *["more@shop=producer:video"][: change % 2])
        before = delivered.total()
        await until(lambda before=before: delivered.total() > before + 200)
    over.set()
    await asyncio.gather(*asking)
    assert [number for number, times in delivered.items() if times > 1] == []


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
        self._operator = KeyPair.new(KeyKind.OPERATOR)
        self._account = KeyPair.new(KeyKind.ACCOUNT)
        self._keys: dict[Role, KeyPair] = {}
        self._scopes: list[dict[str, Any]] = []
        (folder / "creds").mkdir()

    def scope(self, role: Role, allowed: Permissions) -> None:
        key = self._keys[role] = KeyPair.new(KeyKind.ACCOUNT)
        lists = {"pub": {"allow": list(allowed.publish)}, "sub": {"allow": list(allowed.subscribe)}}
        template = dict.fromkeys(("subs", "data", "payload"), -1) | lists
        self._scopes.append({"kind": "user_scope", "key": key.public, "role": role.value, "template": template})

    def config(self) -> str:
        limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
        storage = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
        rest = {"type": "account", "version": 2, "limits": {**limits, "wildcards": True}}
        about = {**rest, "limits": {**limits, **storage, "wildcards": True}, "signing_keys": self._scopes}
        account, system = self._account.public, KeyPair.new(KeyKind.ACCOUNT).public
        preload = f"{account}: {self._jwt(account, 'GANGLINE', about)}, {system}: {self._jwt(system, 'SYS', rest)}"
        root = self._jwt(self._operator.public, "O", {"type": "operator", "version": 2, "system_account": system})
        return f"operator: {root}\nresolver: MEMORY\nresolver_preload: {{ {preload} }}\n"

    def _jwt(self, subject: str, name: str, about: dict[str, Any], signer: KeyPair | None = None) -> str:
        return encode_jwt(subject, name, signer or self._operator, about, issued_at=int(time.time()))

    def user(self, name: str, role: Role, *tags: str) -> None:
        own = KeyPair.new(KeyKind.USER)
        about = {"type": "user", "version": 2, "issuer_account": self._account.public, "tags": list(tags)}
        token = self._jwt(own.public, name, about, self._keys[role])
        (self._folder / "creds" / f"{name}.creds").write_text(creds_file(token, own.seed))


async def test_users_by_jwt_follow_the_template_of_their_role(site_of, tmp_path):
    jwts = Jwts(tmp_path)
    inbox = Permissions(subscribe=("_INBOX.{{name()}}.>",))
    jwts.scope(Role.WORKER, permissions(Role.WORKER, Names(), pool="{{tag(pool)}}", worker="{{name()}}") | inbox)
    for role in (Role.ROUTER, Role.COORDINATOR):
        jwts.scope(role, permissions(role, Names()) | inbox)
        jwts.user(role.value, role)
    jwts.user("w1", Role.WORKER, "pool:images")
    site: Site = site_of(jwts.config(), tmp_path)
    await (await site.bus("coordinator")).bucket(Names().ledger_bucket, BucketSettings())
    site._ledger = True
    await site.worker("w1", user="w1")
    assert await (await site.client("router")).call("images.double", 2) == 4
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(NotPermitted, match=r"alive\.images\.w2"):
            await site.worker("w2", user="w1")


# -- Python clients of tenants ----------------------------------------------------------------------------------------


@pytest.fixture
async def programs(site_in_form) -> Site:
    """Two tenants, and a worker of each of their endpoints."""
    site: Site = site_in_form(*TENANTS)
    await site.coordinator()
    await site.worker("w1")
    await site.worker("v1", pool=VIDEO)
    await site.dispatcher()
    await site.gateway()
    return site


VIDEO = Pool("video", slots=2)


@VIDEO.task
async def play(film: str, speed: float = 1.0) -> dict[str, Any]:
    return {"film": film, "speed": speed, "raw": b"\x00\xff"}


async def test_python_programs_of_tenants_call_stream_and_submit_to_their_own_endpoint(programs: Site):
    shop, lab = await programs.client("web", gateway=True), await programs.client("other", gateway=True)
    assert await shop.call("images.double", n=4) == 8
    assert await lab.call("video.play", "m") == {"film": "m", "speed": 1.0, "raw": b"\x00\xff"}
    assert [item async for item in shop.stream("images.count", 1000)] == list(range(1000))
    large = [page async for page in shop.stream("images.pages", 7, 300_000)]
    assert [len(page) for page in large] == [300_000] * 7
    assert await asyncio.gather(*(shop.call("images.double", n) for n in range(50))) == [2 * n for n in range(50)]
    job = await shop.options(events=True).submit("images.report")
    assert await job.result(PATIENCE_S) == "done"
    with pytest.raises(TaskFailed, match="not today"):
        await shop.call("images.fail")
    with pytest.raises(UnknownMethod):
        await shop.call("images.nothing")
    with pytest.raises(InvalidRequest, match="does not stream"):
        _ = [item async for item in shop.stream("images.double", 1)]
    for client, target in ((shop, "video.play"), (lab, "images.double")):
        with pytest.raises(NotPermitted, match=target):
            await client.call(target, 1)
    assert [line for line in await programs.refused() if ".call." not in line] == []


async def test_a_tenant_cannot_read_or_close_another_ones_stream(programs: Site):
    web, other = await programs.bus("web"), await programs.bus("other")
    first = await ask(web, "gangline.call.images.count", {"Gangline-Stream": "3"}, n=9)
    got = first["items"]
    for body in (b"", b'{"close": true}', b'{"after": 0}'):
        stolen = await other.request(first["next"], body, timeout_s=PATIENCE_S)
        assert stolen.headers and json.loads(stolen.data)["code"] == "stream_broken"
    following = first["next"]
    while following is not None:
        answer = json.loads((await web.request(following, b"", timeout_s=PATIENCE_S)).data)
        got, following = got + answer["items"], answer["next"]
    assert got == list(range(9))
    assert await programs.refused() == []


# -- workers in an account of their own -------------------------------------------------------------------------------


@pytest.fixture
async def gpus(site_in_form) -> Site:
    """Two workers there, and all servers in Gangline's own account."""
    servers = (user for user in SERVERS if user != "worker")
    workers = ("w1@gpus=worker:images.w1", "w2@gpus=worker:images.w2")
    tenants = ("web@shop=producer:images", "batch@shop=owner:images")
    site: Site = site_in_form(*servers, *workers, *tenants, free={"gpus": "thief-gpus"})
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
    assert (await web.request(DOUBLE, b"[2]", timeout_s=PATIENCE_S)).data == b"4"
    producer = await gpus.client("web")
    told = await producer.options(events=True).submit("images.report")
    assert {type(event).__name__ async for event in told.events()} == {"JobEvent", "JobProgress"}
    large = await producer.submit("images.text", 900_000)
    assert len(await large.result(PATIENCE_S)) == 900_000
    for asker in (router, operator):
        assert "token" in await ask(asker, "gangline.worker.images.w1.reserve", slots=1)
    assert await gpus.refused() == []


async def test_a_tenants_owner_cannot_dispatch_to_workers_of_another_account(gpus: Site):
    """The server passes on no request through two accounts. Should it do so one day, the page is to be changed."""
    batch = await gpus.bus("batch")
    formed = await ask(batch, "gangline.gang.acquire", pool="images", size=2, id="mine", owner_token="s3cret")
    seat = formed["seats"][0]
    worker = f"gangline.worker.images.{seat['worker']}.dispatch"
    with pytest.raises(NoResponders):
        await ask(batch, worker, token=seat["token"], method="double", arguments=[4])


WORKER_ATTACKS = {
    "delete a stream by an answer": (
        "$JS.API.STREAM.MSG.GET.KV_GANGLINE_LEDGER",
        "$JS.API.STREAM.DELETE.GANGLINE_TASKS",
    ),
    "drain a worker by an answer": ("$JS.API.STREAM.INFO.KV_GANGLINE_LEDGER", "gangline.worker.images.w2.drain"),
    "unseat the leader by an acknowledgement": ("$KV.GANGLINE_LEDGER.lease.images.w1.x", "$KV.GANGLINE_LEDGER.leader"),
    "forge a gang by an acknowledgement": ("$KV.GANGLINE_LEDGER.lease.images.w1.x", "$KV.GANGLINE_LEDGER.gang.forged"),
}


async def test_what_a_worker_names_as_reply_subject_is_one_of_its_own_account(gpus: Site):
    client = await gpus.client("operator")
    ledger = await client._bus.bucket(Names().ledger_bucket, BucketSettings(), make=False)
    leader = await ledger.get("leader")
    thief = await gpus.bus("thief-gpus")
    for attack, (asked, aimed_at) in WORKER_ATTACKS.items():
        with case(attack):
            at_home = collect()
            await thief.subscribe(aimed_at, at_home)
            await thief.flush()
            thief.publish(asked, b"{}", reply=aimed_at)
            await at_home.count(1)  # the answer came, and to nobody else
            assert await ledger.get("gang.forged") is None and await ledger.get("leader") == leader
            assert not (await ask(client._bus, "gangline.worker.images.w2.stats"))["load"]["draining"]
    assert await (await client.submit("images.double", 3)).result(PATIENCE_S) == 6


async def test_what_workers_do_not_import_does_not_exist_for_them(gpus: Site):
    foreign = (
        "$JS.API.STREAM.NAMES", "$JS.API.STREAM.PURGE.GANGLINE_TASKS", "$JS.API.CONSUMER.CREATE.KV_GANGLINE_LEDGER.x",
        "$KV.GANGLINE_LEDGER.leader", "$KV.GANGLINE_LEDGER.alive.images.w3", "gangline.task.images.double",
        "gangline.call.images.double", "gangline.gang.list",
    )  # fmt: skip
    assert await answered(await gpus.bus("thief-gpus"), *foreign) == []
