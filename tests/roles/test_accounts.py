"""Callers in an account of their own, and users by JWT: the same permissions hold."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nkeys
import pytest

from gangline.bus.nats_bus import connect as connect_jetstream
from gangline.bus.port.bus import NotPermitted
from gangline.bus.settings.connection import ConnectionSettings
from gangline.dispatcher.client.client import Client
from gangline.schemas.names import Names
from gangline.schemas.permissions.roles import Permissions, Role, permissions
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.service import Worker

from ..bus.conftest import collect
from ..support.bus.identities import make_jwt, make_key
from ..waiting import PATIENCE_S
from .conftest import NOWHERE, SHIPPED, Site
from .pool import pool as images

pytestmark = pytest.mark.server

OUTSIDE = """accounts {
  SHOP {
    users: [ { user: outside, password: s3cret } ]
    imports: [
      { service: { account: GANGLINE, subject: "gangline.call.>" } }
      { service: { account: GANGLINE, subject: "_GANGLINE.gangline.call.>" } }
    ]
  }
"""


async def test_callers_of_another_account_reach_nothing_but_what_it_imports(site_of):
    config = SHIPPED.read_text().replace("accounts {\n", OUTSIDE)
    exports = ", ".join(f'{{ service: "{subject}" }}' for subject in Names().both("gangline.call.>"))
    config = config.replace("jetstream: enabled", f"jetstream: enabled, exports: [ {exports} ]")
    site: Site = site_of(config)
    await site.everything()
    outside, operator = await site.bus("outside"), await site.bus("operator")
    for subject in Names().both("gangline.call.images.double"):
        assert (await outside.request(subject, b"[2]", timeout_s=PATIENCE_S)).data == b"4"
    # There an answer goes where the question says in the caller's account alone.
    heard, heard_outside = collect(), collect()
    await operator.subscribe("gangline.event.forged", heard)
    await outside.subscribe("gangline.event.forged", heard_outside)
    await operator.flush()
    outside.publish("gangline.call.images.double", b"[3]", reply="gangline.event.forged")
    (answer,) = await heard_outside.count(1)
    assert answer.data == b"6"
    await operator.flush()
    assert heard.items == []
    assert await site.refused() == []


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
    server = serve(jwts.config())

    async def bus(name: str, file: Path):
        settings = ConnectionSettings(urls=(server.url,), credentials_file=file, inbox_prefix=f"_INBOX.{name}")
        return await connect_jetstream(settings, name=name)

    first, router = (
        await bus("w1", jwts.user("w1", Role.WORKER, "pool:images")),
        await bus("r", jwts.user("r", Role.ROUTER)),
    )
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
