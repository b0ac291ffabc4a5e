"""Gangs on real processes: a nats-server, a coordinator, workers, and an owner here."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline.dispatcher.client.client import Client, connect
from gangline.dispatcher.client.sync import connect_sync
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.schemas.errors.base import GangImpossible
from gangline.worker.gangs.collectives_core import MAX_TOTAL_BYTES, MAX_VALUE_BYTES

from ...processes import ForkedProcess, ForkServer
from ...waiting import PATIENCE_S, until

pytestmark = [pytest.mark.server, pytest.mark.processes]

ROOT = Path(__file__).resolve().parents[3]
POOL = "tests.support.modules.gang_pool:pool"


class GangProcesses:
    """Processes of one test."""

    def __init__(self, url: str, namespace: str, forks: ForkServer) -> None:
        self.url = url
        self.namespace = namespace
        self.forks = forks
        self.running: dict[str, ForkedProcess] = {}

    def start(self, name: str, *arguments: str) -> None:
        command = ["-m", "gangline.cli", *arguments, "-s", self.url, "--namespace", self.namespace]
        self.running[name] = self.forks.start([*command, "--log-level", "warning"], cwd=ROOT)

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
    async def connected(self, *workers: str) -> AsyncIterator[Client]:
        """A client, when these workers serve and the coordinator knows them all."""
        for name in workers:
            self.worker(name)
        alone = RouterSettings(node="", zone="")
        async with connect(self.url, namespace=self.namespace, settings=alone) as client:
            if workers:
                await granted(lambda: one_on_each(client, len(workers)))
            yield client


async def one_on_each(client: Client, workers: int) -> None:
    async with client.gang(pool="train", size=workers, strategy="strict_spread", deadline_s=PATIENCE_S):
        pass


async def granted(acquire: Callable[[], Awaitable[None]]) -> None:
    """Try a gang until the coordinator has heard of enough workers, which may be later than the client has."""

    async def possible() -> bool:
        try:
            await acquire()
        except GangImpossible:
            return False
        return True

    await until(possible)


@pytest.fixture
def site(nats_url: str, namespace: str, forks: ForkServer) -> Iterator[GangProcesses]:
    """With a coordinator, and no worker so far."""
    made = GangProcesses(nats_url, namespace, forks)
    try:
        made.start("coordinator", "coordinator")
        yield made
    finally:
        made.stop()


def started(path: Path, generation: int) -> set[int]:
    """Ranks that run `wait_for(path)`."""
    return {int(each.suffix[1:]) for each in path.parent.glob(f"{path.name}.{generation}.*")}


def worker_of(member: Any) -> str:
    return str(member.worker.partition(".")[2])


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_256_members_on_8_workers_share_as_much_as_they_may_and_no_worker_is_lost(site: GangProcesses) -> None:
    names = [f"w{number}" for number in range(8)]
    for name in names:
        site.worker(name, "--slots", "32")
    alone = RouterSettings(node="", zone="")
    async with connect(site.url, namespace=site.namespace, settings=alone) as client:
        await granted(lambda: one_on_each(client, len(names)))
        async with client.gang(pool="train", size=256, strategy="spread", deadline_s=PATIENCE_S) as gang:
            calls = gang.options(timeout_s=10 * PATIENCE_S)
            for root in (0, 5):
                each_bytes, one_bytes = MAX_TOTAL_BYTES // 256 - 16, MAX_VALUE_BYTES - 16
                results = await calls.run("share", each_bytes, one_bytes, root)
                assert results == [[256, one_bytes, 1]] * 256, "in generation 1: no member was lost"


async def test_a_killed_member_makes_generation_2_and_the_run_ends_right(site: GangProcesses, tmp_path: Path) -> None:
    async with site.connected("w1", "w2", "w3") as client:
        go = tmp_path / "go"
        async with client.gang(pool="train", size=4, strategy="spread", deadline_s=PATIENCE_S) as gang:
            await gang.ready()
            events = gang.events()
            running = asyncio.ensure_future(gang.options(retries=1, timeout_s=PATIENCE_S).run("wait_for", str(go)))
            await until(lambda: started(go, 1) == set(range(4)))
            victim = gang.members[3]
            site.kill(worker_of(victim))
            torn_down = await anext(events)
            assert (torn_down.kind, torn_down.generation) == ("torn_down", 1)
            # Not by its heartbeat, which would take three times as long.
            assert torn_down.reason == f"worker_lost: {victim.worker}: no responders"
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


def test_plain_code_runs_gangs_too(site: GangProcesses) -> None:
    site.worker("w1")
    with connect_sync(site.url, namespace=site.namespace) as client:

        def pair() -> None:
            with client.gang(pool="train", size=2, deadline_s=PATIENCE_S):
                pass

        asyncio.run(granted(lambda: asyncio.to_thread(pair)))
        with client.gang(pool="train", size=2, deadline_s=PATIENCE_S) as gang:
            assert [result[:2] for result in gang.run("where")] == [[0, 1], [1, 1]]
            assert gang.call(1, "where")[0] == 1
            assert gang.lost is None and gang.generation == 1
            gang.ready()
            events = gang.events()
            gang.release()
            assert [event.kind for event in events][-1:] in ([], ["ended"], ["torn_down"])
        with pytest.raises(GangImpossible), client.gang(pool="train", size=3):
            pass
