"""The `nats` CLI, as the pages of docs/how-to use it, with the password of a producer and of tenants' users.

It is taken from the PATH, or from NATS_CLI.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gangline.schemas.names import Names
from gangline.schemas.permissions.roles import INBOXES

from ..support.tools import NATS
from ..waiting import PATIENCE_S, until
from .conftest import PASSWORD, SERVERS, Site

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not NATS, reason="no `nats` CLI: install it, or set NATS_CLI to its path"),
]

Cli = Callable[..., Awaitable[tuple[int, str]]]
USERS = (*SERVERS, "billing=producer:images", "web@shop=producer:images", "batch@lab=owner:images")


@pytest.fixture
def site(site_in_form) -> Site:
    site: Site = site_in_form(*USERS)
    return site


@pytest.fixture
def cli(site: Site, tmp_path: Path) -> Cli:
    """Run it as a user; its exit code, and what it printed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("NATS_")}

    async def run(user: str, *arguments: str, timeout: str = f"{PATIENCE_S:g}s") -> tuple[int, str]:
        file = site.credentials(user)
        identity = ("--creds", str(file)) if file else ("--user", user, "--password", PASSWORD)
        common = ("--server", site.server.url, "--inbox-prefix", f"{INBOXES}.{user}", "--timeout", timeout)
        process = await asyncio.create_subprocess_exec(
            NATS,
            *arguments,
            *common,
            *identity,
            env={**clean, "XDG_CONFIG_HOME": str(tmp_path)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, printed.decode().strip()

    return run


async def result_of(cli: Cli, user: str, job: str) -> Any:
    found: list[Any] = []

    async def look() -> bool:
        code, printed = await cli(user, "kv", "get", "--raw", Names().results_bucket, f"result.{job}")
        if code == 0:
            found.append(json.loads(printed))
        else:
            assert "not found" in printed, printed
        return bool(found)

    await until(look)
    return found[0]


@pytest.mark.parametrize("user", ["billing", pytest.param("web", marks=pytest.mark.long)])
async def test_a_producer_calls_submits_and_reads_results(site: Site, cli: Cli, user: str):
    await site.everything()
    assert await cli(user, "req", "--raw", "gangline.call.images.double", "[4]") == (0, "8")
    code, printed = await cli(user, "pub", "-J", "gangline.task.images.double", "[5]", "-H", "Gangline-Job:images.one")
    assert code == 0, printed
    job = "images.one" if user == "billing" else "images.t4-shop-one"
    assert (await result_of(cli, user, job))["result"] == 10
    code, printed = await cli(user, "req", "--raw", "gangline.queue.images.stats", "")
    assert (code, json.loads(printed)["endpoint"]) == (0, "images")
    assert await site.refused() == []


@pytest.mark.parametrize("user", ["billing", pytest.param("web", marks=pytest.mark.long)])
async def test_what_is_not_a_producers_is_refused_and_has_no_effect(site: Site, cli: Cli, user: str):
    await site.everything()
    operator = await site.client("operator")
    kept = await operator.options(delay_s=3600.0).submit("images.double", 1)
    ledger = Names().ledger_bucket
    for arguments in (
        ("req", "gangline.call.video.double", "[4]"),
        ("pub", "-J", "gangline.task.video.double", "[4]"),
        ("pub", "-J", "gangline.task.images.double.@lab", "[4]"),
        ("req", "gangline.worker.images.w1.drain", "{}"),
        ("req", "gangline.gang.list", "{}"),
        ("kv", "put", ledger, "leader", "me"),
        ("kv", "get", ledger, "leader"),
        ("kv", "del", Names().results_bucket, "result.one", "--force"),
        ("stream", "purge", Names().schedules_stream, "--force"),
        ("stream", "rm", Names().tasks_stream, "--force"),
        ("consumer", "add", Names().tasks_stream, "mine", "--pull", "--defaults"),
    ):
        code, printed = await cli(user, *arguments, timeout="1s")
        refused = re.search("permissions violation|no responders", printed.lower())
        assert code != 0 or refused, (arguments, printed)  # `nats req` ends with 0 whatever happened
    assert (await kept.status()).state.value == "scheduled"
    assert await cli(user, "req", "--raw", "gangline.call.images.double", "[4]") == (0, "8")
    assert await (await operator.submit("images.double", 3)).result(PATIENCE_S) == 6
    async with operator.gang(pool="images", size=2) as gang:
        assert await gang.run("together") == [0, 1]


async def test_a_tenants_priority_is_refused_and_a_producers_of_our_own_account_is_not(site: Site, cli: Cli):
    await site.everything()
    for user in ("billing", "web"):
        task = ("gangline.task.images.double", "[5]", "-H", f"Gangline-Job:images.{user}", "-H", "Gangline-Priority:3")
        assert (await cli(user, "pub", "-J", *task))[0] == 0
    assert (await result_of(cli, "billing", "images.billing"))["result"] == 10
    refused = await result_of(cli, "web", "images.t4-shop-web")
    assert (refused["state"], refused["reason"], refused["error"]["code"]) == ("dead", "refused", "not_entitled")
    assert refused["error"]["details"] == {"tenant": "shop", "quota": "priority", "limit": 0}


async def test_a_tenants_owner_forms_a_gang_and_runs_tasks_on_it(site: Site, cli: Cli):
    await site.everything()

    async def ask(operation: str, **body: Any) -> Any:
        code, printed = await cli("batch", "req", "--raw", f"gangline.{operation}", json.dumps(body))
        assert code == 0, printed
        return json.loads(printed)

    gang = await ask("gang.acquire", pool="images", size=2, id="mine", owner_token="s3cret")
    assert (gang["state"], len(gang["seats"])) == ("formed", 2)
    seat = gang["seats"][0]
    run = {"token": seat["token"], "method": "double", "arguments": [4]}
    assert await ask(f"worker.images.{seat['worker']}.dispatch", **run) == 8
    assert (await ask("gang.release", id="mine", owner_token="s3cret"))["state"] == "ended"
