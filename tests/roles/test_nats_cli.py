"""The `nats` CLI, as the pages of docs/how-to use it, with the password of a producer and of tenants' users.

It is taken from the PATH, or from NATS_CLI.
"""

from __future__ import annotations

import asyncio
import json
import os
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
