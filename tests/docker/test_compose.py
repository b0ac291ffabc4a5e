"""`docker compose up` in a real engine: calls are answered, also while one of the three servers is killed."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import pytest

import gangline
from gangline import ConnectionSettings

from ..waiting import PATIENCE_S
from .conftest import ComposeProject
from .plain import Identity, NoAnswer, request

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


async def ledger_of(system: ComposeProject, server: str = "nats-1") -> dict:
    stream = "$JS.API.STREAM.INFO.KV_GANGLINE_LEDGER"
    answer = await request(system.ports[server], system.identity("operator"), stream)
    told = answer.json()
    assert isinstance(told, dict)
    return told


@pytest.mark.parametrize("server", ["nats-1", "nats-2", "nats-3"])
async def test_a_plain_request_is_answered_by_each_server(system, server):
    answer = await request(system.ports[server], system.identity("producer"), SUBJECT, BODY)
    assert answer.body == b"6"
    assert answer.headers["Gangline-Worker"].startswith("words.")


async def test_a_wrong_request_is_answered_with_its_error(system):
    answer = await request(system.ports["nats-1"], system.identity("producer"), SUBJECT, b'{"txt": 1}')
    assert answer.headers["Nats-Service-Error-Code"] == "422"
    body = answer.json()
    assert isinstance(body, dict)
    assert (body["code"], body["may_have_started"]) == ("invalid_arguments", False)


async def test_a_plain_request_is_granted_a_gang_over_both_workers(system):
    asked = json.dumps({"pool": "words", "size": 4, "strategy": "spread", "ttl_s": 5}).encode()
    router = system.identity("router")
    gang = (await request(system.ports["nats-2"], router, "gangline.gang.acquire", asked)).json()
    assert isinstance(gang, dict)
    assert (gang["state"], gang["generation"], len(gang["seats"])) == ("formed", 1, 4)
    assert len({seat["worker"] for seat in gang["seats"]}) == 2
    owned = json.dumps({"id": gang["id"], "owner_token": gang["owner_token"]}).encode()
    released = (await request(system.ports["nats-3"], router, "gangline.gang.release", owned)).json()
    assert isinstance(released, dict)
    assert released["state"] == "ended"


async def test_a_submitted_task_is_run_by_one_of_two_dispatchers(system):
    body = json.dumps({"text": "a b c"}).encode()
    producer = system.identity("producer")
    stored = (await request(system.ports["nats-2"], producer, "gangline.task.words.count", body)).json()
    assert isinstance(stored, dict)
    result = system.command("result", str(stored["seq"]), "--timeout", "30s")
    assert result.strip() == "3"


@pytest.mark.parametrize(
    "identity", [Identity(), Identity(user="producer", password="guessed")], ids=["nobody", "unencrypted"]
)
async def test_nobody_connects_without_tls_and_a_password(system, identity):
    with pytest.raises(NoAnswer):
        await request(system.ports["nats-1"], identity, SUBJECT, BODY)
    trusted = system.identity("producer").trusted
    with pytest.raises(NoAnswer, match="Authorization Violation"):
        await request(system.ports["nats-1"], replace(identity, trusted=trusted), SUBJECT, BODY)


async def test_the_ledger_has_three_copies_on_disk(system):
    told = await ledger_of(system)
    assert (told["config"]["num_replicas"], told["config"]["storage"]) == (3, "file")
    assert len(told["cluster"]["replicas"]) == 2


def test_two_workers_serve_and_neither_runs_as_root(system):
    rows = json.loads(system.command("workers", "--json"))
    assert [(row["pool"], row["slots"]) for row in rows] == [("words", 4), ("words", 4)]
    for service in ("worker", "gateway", "coordinator", "dispatcher"):
        assert system.compose("exec", "-T", service, "id", "-u").strip() == "10001"


async def test_calls_go_on_while_the_server_that_leads_the_ledger_is_killed(system):
    leader = (await ledger_of(system))["cluster"]["leader"]
    others = [port for name, port in system.ports.items() if name != leader]
    producer = system.identity("producer")
    plain: list[bool] = []
    counted: list[int] = []
    async with gangline.connect(connection(system, "router", *others)) as client:
        patient = client.options(timeout_s=30, idempotent=True)

        async def ask_plainly() -> None:
            while True:
                try:
                    answer = await request(others[len(plain) % 2], producer, SUBJECT, BODY, timeout_s=2)
                    plain.append(answer.body == b"6")
                except NoAnswer:
                    plain.append(False)
                await asyncio.sleep(0.02)

        async def call() -> None:
            while True:
                counted.append(await patient.call("words.count", text="a b c"))
                await asyncio.sleep(0.02)

        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(ask_plainly()), group.create_task(call())]
            while len(plain) < 20 or len(counted) < 20:  # noqa: ASYNC110 - two counters, no one event
                await asyncio.sleep(0.05)
            assert all(plain), "before anything happened"
            before = len(plain), len(counted)
            await asyncio.to_thread(system.compose, "kill", leader)
            # Long enough for the survivors to elect, whichever roles the killed one had.
            limit = time.monotonic() + PATIENCE_S
            while min(len(plain) - before[0], len(counted) - before[1]) < 100 and time.monotonic() < limit:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            for task in asking:
                task.cancel()
    assert len(plain) >= before[0] + 100
    assert all(plain[-50:]), "plain requests are answered again"
    # A plain request that was on the dead server's wire is lost: the gateway may have been connected to it.
    assert plain.count(False) <= 5
    assert len(counted) >= before[1] + 100
    assert set(counted) == {3}, "and no call of the client's was lost"


async def test_a_killed_server_comes_back_and_catches_up(system):
    system.compose("up", "--detach", "--wait")
    limit = time.monotonic() + PATIENCE_S
    while True:
        try:
            told = await ledger_of(system)
            if all(replica["current"] for replica in told["cluster"]["replicas"]) and "leader" in told["cluster"]:
                break
        except (NoAnswer, KeyError):
            pass
        assert time.monotonic() < limit, "the cluster did not heal"
        await asyncio.sleep(0.2)
    for port in system.ports.values():
        assert (await request(port, system.identity("producer"), SUBJECT, BODY)).body == b"6"


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
