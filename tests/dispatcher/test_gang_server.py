"""Gangs on real processes: a nats-server, a coordinator, workers, and an owner here."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gangline.dispatcher.client import Client, connect
from gangline.dispatcher.settings import RouterSettings
from gangline.dispatcher.sync import connect_sync
from gangline.schemas.gang_errors import GangImpossible, GangRestarted

from .modules.gang_pool import words_of

pytestmark = [pytest.mark.server, pytest.mark.processes]

ROOT = Path(__file__).resolve().parents[2]
POOL = "tests.dispatcher.modules.gang_pool:pool"


class Site:
    """Processes of one test."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url = url
        self.namespace = namespace
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "gangline.cli", *arguments, "-s", self.url, "--namespace", self.namespace]
        self.running[name] = subprocess.Popen([*command, "--log-level", "warning"], cwd=ROOT)

    def worker(self, name: str, *arguments: str) -> None:
        self.start(name, "worker", POOL, "--id", name, "--node", name, *arguments)

    def kill(self, name: str) -> None:
        process = self.running[name]
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait()


@contextlib.asynccontextmanager
async def site(url: str, namespace: str, *workers: str) -> AsyncIterator[tuple[Site, Client]]:
    made = Site(url, namespace)
    try:
        made.start("coordinator", "coordinator")
        for name in workers:
            made.worker(name)
        async with connect(url, namespace=namespace, settings=RouterSettings(node="", zone="")) as client:
            async with asyncio.timeout(30):
                while len(await client.workers("train")) < len(workers):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            yield made, client
    finally:
        made.stop()


def files() -> list[str]:
    return sorted(str(path) for path in Path(sysconfig.get_path("stdlib")).glob("*.py"))


def worker_of(member: Any) -> str:
    return str(member.worker.partition(".")[2])


async def test_a_gang_counts_words_and_gathers_the_counts(nats_url: str, namespace: str) -> None:
    async with site(nats_url, namespace, "w1", "w2", "w3") as (_, client):
        paths = files()
        async with client.gang(pool="train", size=4, strategy="spread", deadline_s=30) as gang:
            assert len({member.worker for member in gang.members}) == 3
            results = await gang.options(timeout_s=60).run("count_words", paths)
        expected = words_of(paths)
        assert results[0] == dict(expected)
        assert results[1:] == [{"": sum(expected.values())}] * 3


async def test_a_killed_member_makes_generation_2_and_the_run_ends_right(
    nats_url: str, namespace: str, tmp_path: Path
) -> None:
    async with site(nats_url, namespace, "w1", "w2", "w3") as (made, client):
        go = tmp_path / "go"
        async with client.gang(pool="train", size=4, strategy="spread", deadline_s=30) as gang:
            events = gang.events()
            running = asyncio.ensure_future(gang.options(retries=1, timeout_s=60).run("wait_for", str(go)))
            await asyncio.sleep(1)
            victim = gang.members[3]
            loop = asyncio.get_running_loop()
            killed_at = loop.time()
            made.kill(worker_of(victim))
            torn_down = await anext(events)
            assert loop.time() - killed_at < 1.0, "kill to teardown"
            assert (torn_down.kind, torn_down.generation) == ("torn_down", 1)
            assert await gang.wait_formed() == 2
            assert victim.worker not in {member.worker for member in gang.members}
            go.touch()
            results = await running
            assert [result[:2] for result in results] == [[rank, 2] for rank in range(4)]
            async with contextlib.aclosing(events) as rest:
                kinds = [torn_down.kind]
                async for event in rest:
                    kinds.append(event.kind)
                    if event.kind == "formed":
                        break
            assert kinds == ["torn_down", "restarting", "formed"]


async def test_a_frozen_member_is_found_out(nats_url: str, namespace: str, tmp_path: Path) -> None:
    async with (
        site(nats_url, namespace, "w1", "w2", "w3") as (made, client),
        client.gang(pool="train", size=2, strategy="spread", deadline_s=30) as gang,
    ):
        running = asyncio.ensure_future(gang.run("wait_for", str(tmp_path / "never")))
        await asyncio.sleep(1)
        process = made.running[worker_of(gang.members[1])]
        loop = asyncio.get_running_loop()
        frozen_at = loop.time()
        process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(GangRestarted):
                await running
            assert loop.time() - frozen_at < 4.0
        finally:
            process.send_signal(signal.SIGCONT)


async def test_two_gangs_of_2_on_3_slots_run_one_after_the_other(nats_url: str, namespace: str, tmp_path: Path) -> None:
    async with site(nats_url, namespace) as (made, client):
        made.worker("w1")
        made.worker("w2", "--slots", "1")
        async with asyncio.timeout(30):
            while len(await client.workers("train")) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        at_once = most = 0

        async def one(number: int) -> list[list[int]]:
            nonlocal at_once, most
            async with client.gang(pool="train", size=2, deadline_s=60) as gang:
                at_once += 1
                most = max(most, at_once)
                results = await gang.run("where")
                at_once -= 1
                return results

        results = await asyncio.gather(*(one(number) for number in range(20)))
        assert most == 1
        assert all([result[0] for result in each] == [0, 1] for each in results)


async def test_a_dead_owner_leaves_nothing_behind(nats_url: str, namespace: str) -> None:
    async with site(nats_url, namespace, "w1") as (_, client):
        code = (
            "import asyncio, sys, gangline\n"
            "async def main():\n"
            "    async with gangline.connect(sys.argv[1], namespace=sys.argv[2]) as client:\n"
            "        async with client.gang(pool='train', size=2, ttl_s=2, deadline_s=30) as gang:\n"
            "            print('held', flush=True)\n"
            "            await asyncio.sleep(1000)\n"
            "asyncio.run(main())\n"
        )
        owner = subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", code, nats_url, namespace], stdout=subprocess.PIPE
        )
        try:
            assert owner.stdout is not None
            assert (await asyncio.to_thread(owner.stdout.readline)).strip() == b"held"
            owner.kill()
            loop = asyncio.get_running_loop()
            began_at = loop.time()
            async with client.gang(pool="train", size=2, deadline_s=30):
                assert loop.time() - began_at < 5.0, "the time to live, and a little"
        finally:
            owner.kill()
            owner.wait()
            owner.stdout.close()  # type: ignore[union-attr]


async def test_a_standing_set_serves_and_loses_only_what_ran_on_the_dead_gang(nats_url: str, namespace: str) -> None:
    async with site(nats_url, namespace, "w1", "w2", "w3", "w4") as (made, client):
        kv = await client.router.ledger()
        await kv.put("gangset.llm", b'{"gangs": 3, "gang": {"pool": "train", "size": 2, "strategy": "spread"}}')
        seen: dict[str, int] = {}
        errors = []
        done = asyncio.Event()

        async def caller() -> None:
            while not done.is_set():
                try:
                    rank, _, pid = await client.options(timeout_s=20).call("llm.where")
                    assert rank == 0
                    seen[pid] = seen.get(pid, 0) + 1
                except Exception as error:
                    errors.append(error)
                await asyncio.sleep(0.005)

        async with asyncio.timeout(20):
            while len(client.router.sets.known()) < 3:  # noqa: ASYNC110
                with contextlib.suppress(Exception):
                    await client.call("llm.where")
                await asyncio.sleep(0.05)
        callers = [asyncio.ensure_future(caller()) for _ in range(3)]
        await asyncio.sleep(1)
        made.kill("w1")
        await asyncio.sleep(6)
        done.set()
        await asyncio.gather(*callers)
        assert len(errors) <= 3, errors
        assert sum(seen.values()) > 300


def test_plain_code_runs_gangs_too(nats_url: str, namespace: str) -> None:
    made = Site(nats_url, namespace)
    try:
        made.start("coordinator", "coordinator")
        made.worker("w1")
        with connect_sync(nats_url, namespace=namespace) as client:
            limit = time.monotonic() + 20
            while not client.workers("train") and time.monotonic() < limit:
                time.sleep(0.05)
            with client.gang(pool="train", size=2, deadline_s=30) as gang:
                assert [result[:2] for result in gang.run("where")] == [[0, 1], [1, 1]]
                assert gang.call(1, "where")[0] == 1
                assert gang.lost is None and gang.generation == 1
                events = gang.events()
                gang.release()
                assert [event.kind for event in events][-1:] in ([], ["ended"], ["torn_down"])
            with pytest.raises(GangImpossible), client.gang(pool="train", size=3):
                pass
    finally:
        made.stop()
