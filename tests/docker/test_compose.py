"""`docker compose up` in a real engine: calls are answered, also while one of the three servers is killed."""

from __future__ import annotations

import asyncio
import json

import pytest

import gangline
from gangline import ConnectionSettings

from .conftest import ComposeProject
from .plain import request

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(900),
    # All on one process of pytest-xdist: they share one system.
    pytest.mark.xdist_group("docker"),
]

SUBJECT = "gangline.call.words.count"
BODY = b'{"text": "lease a slot before you send"}'


def connection(system: ComposeProject, user: str, *ports: int) -> ConnectionSettings:
    """As that user, to these servers."""
    return ConnectionSettings.from_environment(
        {
            "XDG_CONFIG_HOME": str(system.secrets),
            "NATS_CONTEXT": user,
            "NATS_URL": ",".join(f"tls://127.0.0.1:{port}" for port in ports),
        }
    )


@pytest.mark.parametrize("server", ["nats-1", "nats-2", "nats-3"])
async def test_a_plain_request_is_answered_by_each_server(system, server):
    answer = await request(system.ports[server], system.identity("producer"), SUBJECT, BODY)
    assert answer.body == b"6"
    assert answer.headers["Gangline-Worker"].startswith("words.")


def test_two_workers_serve_and_neither_runs_as_root(system):
    rows = json.loads(system.command("workers", "--json"))
    assert [(row["pool"], row["slots"]) for row in rows] == [("words", 4), ("words", 4)]
    for service in ("worker", "gateway", "coordinator", "dispatcher"):
        assert system.compose("exec", "-T", service, "id", "-u").strip() == "10001"


async def test_a_stop_drains_honours_a_lease_and_then_both_workers_leave_with_exit_code_0(system):
    async with gangline.connect(connection(system, "router", *system.ports.values())) as client:
        async with client.lease("words", slots=2, ttl_s=30) as lease:
            stopping = asyncio.create_task(asyncio.to_thread(system.compose, "stop", "worker"))
            for _ in range(3):
                assert await lease.call("count", text="still mine") == 2
        await stopping
    assert [told["State"]["ExitCode"] for told in system.containers("worker")] == [0, 0]
    answer = await request(system.ports["nats-1"], system.identity("producer"), SUBJECT, BODY)
    body = answer.json()
    assert isinstance(body, dict)
    assert (body["code"], body["may_have_started"]) == ("no_workers", False)
