"""`gangline route`: what is typed becomes what is stored, and running gateways follow it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gangline.bus.memory.server import MemoryServer
from gangline.bus.nats_bus import connect
from gangline.bus.port.bus import BucketSettings
from gangline.bus.settings.connection import ConnectionSettings
from gangline.cli.views.routes import RouteChange, change_route
from gangline.dispatcher.client.client import Client
from gangline.schemas.errors.base import InvalidRoute
from gangline.schemas.names import Names
from gangline.schemas.records.routes import QueueRules, RouteRecord

from ..support.rows import case


def change(*, replace: bool = False, before: RouteRecord | None = None, **given: Any) -> RouteRecord:
    return RouteChange.of(given, replace=replace).apply("resize", before)


def test_only_what_is_given_changes() -> None:
    before = RouteRecord(to={"v1": 1}, shadow={"v3": 5}, limits={"v1": 8}, queue=QueueRules(per_key=3, burst=9))
    after = change(before=before, to={"v1": 90, "v2": 10}, rate=100.0)
    assert after == RouteRecord(
        to={"v1": 90, "v2": 10},
        shadow={"v3": 5},
        limits={"v1": 8},
        queue=QueueRules(per_key=3, burst=9, rate_per_s=100.0),
    )


def test_none_takes_a_field_back_and_replace_takes_back_what_is_not_given() -> None:
    before = RouteRecord(to={"v1": 1}, shadow={"v3": 5}, queue=QueueRules(per_key=3, paused=True))
    assert change(before=before, shadow="none", per_key="none") == RouteRecord(
        to={"v1": 1}, queue=QueueRules(paused=True)
    )
    assert change(before=before, to={"v2": 1}, replace=True) == RouteRecord(to={"v2": 1})
    assert change(before=before, paused=False).queue == QueueRules(per_key=3)


def test_a_change_that_cannot_be_followed_is_refused_before_anything_is_written() -> None:
    with pytest.raises(InvalidRoute, match="add up to 0"):
        change(to={"v1": 0})
    with pytest.raises(InvalidRoute, match=r"limits\.v1"):
        change(to={"v1": 1}, limits={"v1": 0})


async def test_a_pool_that_nobody_serves_is_named_whenever_it_begins_to_get_something() -> None:
    changes = (
        ({"to": {"v1": 1, "v2": 0}}, ["v1"]),
        ({"per_key": 3}, []),
        ({"to": {"v1": 0, "v2": 1}}, ["v2"]),
        ({"to": {"v1": 1, "v2": 9}}, ["v1"]),
        ({"shadow": {"v3": 0}}, []),
        ({"shadow": {"v3": 5}}, ["v3"]),
        ({"shadow": {"v3": 6}}, []),
        ({"shadow": "none", "to": {"v1": 1, "v3": 1}}, ["v3"]),
    )
    async with Client(MemoryServer().connect("client"), owns_bus=True) as client:
        told = [await change_route(client, "resize", RouteChange.of(given, replace=False)) for given, _ in changes]
    assert [idle for _, _, idle in told] == [idle for _, idle in changes]


def test_wrong_usage_is_one_line_and_exit_code_2(invoke: Any) -> None:
    cases = [
        (("--to", "v1"), "'v1' is not POOL=WEIGHT"),
        (("--to", "v1=much"), "'v1=much' is not POOL=WEIGHT"),
        (("--to", "v1=inf"), "is not POOL=WEIGHT"),
        (("--to", "v1=1", "--to", "v1=2"), "v1 is given twice"),
        (("--rate", "fast"), "write 100/s"),
        (("--rate", "1/week"), "write 100/s"),
        (("--per-key", "three"), "not an integer"),
        (("--backoff", "soon"), "write 90, 500ms"),
    ]
    for arguments, says in cases:
        with case(arguments, says):
            done = invoke("route", "set", "resize", *arguments)
            assert done.exit_code == 2
            assert says in done.stderr
            assert len(done.stderr.strip().splitlines()) == 1


@pytest.fixture
def put_raw(nats_url: str, namespace: str) -> Callable[[str, bytes], None]:
    """What `nats kv put` does."""

    async def put(endpoint: str, value: bytes) -> None:
        bus = await connect(ConnectionSettings.from_url(nats_url), name="raw")
        try:
            await (await bus.bucket(Names(namespace).routes_bucket, BucketSettings())).put(endpoint, value)
        finally:
            await bus.close()

    return lambda endpoint, value: asyncio.run(put(endpoint, value))


@pytest.mark.server
@pytest.mark.processes
def test_routes_are_set_changed_listed_and_removed(commands: Any, put_raw: Callable[[str, bytes], None]) -> None:
    assert commands.run("route", "ls").stderr.strip() == "no routes: every endpoint is the pool of its name"
    done = commands.run("route", "set", "resize", "--to", "v1=90", "--to", "v2=10", "--shadow", "v3=5")
    assert (done.returncode, done.stdout) == (0, "resize created: to v1 90%, v2 10%\n  copies to: v3 5%\n")
    assert done.stderr.splitlines() == [
        "no worker serves v1, v2 now: requests go to the other pools, if any",
        "no worker serves v3 now: nothing is copied there",
    ]
    done = commands.run("route", "set", "resize", "--per-key", "3", "--rate", "30/m", "--limit", "v1=8", "--pause")
    assert done.stdout == (
        "resize changed: to v1 90%, v2 10%\n  copies to: v3 5%\n  limits: v1 8\n"
        "  queue: paused, rate=0.5/s, per_key=3\n"
    )
    assert done.stderr == "", "it was said when these pools were given"
    [row] = commands.json("route", "ls")
    assert row["route"] == {
        "to": {"v1": 90.0, "v2": 10.0},
        "shadow": {"v3": 5.0},
        "limits": {"v1": 8},
        "queue": {"per_key": 3, "rate_per_s": 0.5, "paused": True},
    }
    put_raw("broken", b'{"to": {"v1": 0}}')
    rows = commands.json("route", "ls")
    assert [row["endpoint"] for row in rows] == ["broken", "resize"] and "add up to 0" in rows[0]["error"]
    table = commands.run("route", "ls").stdout
    assert "add up to 0" in table and "v1 90% v2 10%" in table
    refused = commands.run("route", "set", "broken", "--pause")
    assert (refused.returncode, "--replace" in refused.stderr) == (2, True)
    assert commands.json("route", "set", "broken", "--to", "v1=1", "--replace")["route"] == {"to": {"v1": 1.0}}
    assert commands.run("route", "rm", "broken").returncode == 0
    assert commands.run("route", "rm", "broken").returncode == 2
    assert [row["endpoint"] for row in commands.json("route", "ls", "resize")] == ["resize"]
    refused = commands.run("route", "set", "resize", "--to", "v1=0")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
