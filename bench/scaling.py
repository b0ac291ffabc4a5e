"""`python -m bench.scaling`: measures what each operation costs, for the page on scaling.

For each load: CPU time of the server, the client, the worker and the coordinator, messages and bytes through the
server, and writes to the ledger, all per operation. Also the same for one second of an idle worker, with and without
routers that watch it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any, Final

from bench.peers.cell import cpu_s
from bench.peers.store import save
from gangline.bench.figures import machine
from gangline.bench.loads import closed_loop
from gangline.bench.process import Child
from gangline.bench.resting import ledger_stream, page
from gangline.bench.site import Site, opened, part_of
from gangline.bus.embedded.cluster import EmbeddedCluster
from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.nats_bus import connect
from gangline.bus.port.bus import BucketSettings
from gangline.bus.settings.connection import ConnectionSettings
from gangline.cli.console.session import run as run_loop

_LOADS: Final = ("call", "reserve", "lease_cycle")
_SLOTS: Final = 512
_RESTING: Final = 60
"""Idle workers, in one process, each with its own connection."""
_GANG: Final = 8

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Costs of one operation."""

    per_s: float
    cpu_us: Mapping[str, float]
    """By process."""
    in_messages: float
    """Messages received by the server."""
    out_messages: float
    """Messages sent by the server."""
    bytes: float
    """Both ways."""
    ledger_writes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """The counters at one moment."""

    at: float
    cpu_s: Mapping[str, float]
    in_messages: int
    out_messages: int
    bytes: int
    ledger: int

    def since(self, before: _Look, count: float) -> Cost:
        """Per operation, for `count` operations since `before`."""
        return Cost(
            per_s=round(count / (self.at - before.at), 1),
            cpu_us={name: round((used - before.cpu_s[name]) / count * 1e6, 2) for name, used in self.cpu_s.items()},
            in_messages=round((self.in_messages - before.in_messages) / count, 3),
            out_messages=round((self.out_messages - before.out_messages) / count, 3),
            bytes=round((self.bytes - before.bytes) / count, 1),
            ledger_writes=round((self.ledger - before.ledger) / count, 3),
        )


async def _look(site: Site, processes: Mapping[str, int]) -> _Look:
    varz, ledger = await page(site.monitoring, "varz"), await ledger_stream(site.monitoring)
    return _Look(
        at=asyncio.get_running_loop().time(),
        cpu_s={name: cpu_s(pid) for name, pid in processes.items()},
        in_messages=varz["in_msgs"],
        out_messages=varz["out_msgs"],
        bytes=varz["in_bytes"] + varz["out_bytes"],
        ledger=ledger["last_seq"],
    )


async def loaded(site: Site, what: str, seconds: float) -> Cost:
    """A closed loop of 64."""
    worker = await site.worker(f"cost-{what}", _SLOTS)
    client = await site.client(f"cost-{what}")
    processes = {"server": site.server_pid, "client": client.pid, "worker": worker.pid}
    await client.ask("closed", what=what, concurrency=64, seconds=seconds / 4)
    before = await _look(site, processes)
    done = await client.ask("closed", what=what, concurrency=64, seconds=seconds)
    return (await _look(site, processes)).since(before, done["count"])


async def gangs(site: Site, times: int) -> Cost:
    """Gangs of eight over four workers, one after the other, formed and released."""
    coordinator = await site.start("our_coordinator", url=site.url)
    workers = await site.worker("cost-gang", 2, workers=4)
    client = await site.client("cost-gang")
    processes = {
        "server": site.server_pid,
        "coordinator": coordinator.pid,
        "client": client.pid,
        "4 workers": workers.pid,
    }
    await client.ask("gang", pool="cost-gang", size=_GANG, times=3)
    before = await _look(site, processes)
    await client.ask("gang", pool="cost-gang", size=_GANG, times=times)
    return (await _look(site, processes)).since(before, times)


async def resting(site: Site, seconds: float, *, routers: int) -> Cost:
    """Idle workers watched by this many routers; costs per worker and second."""
    pool = f"cost-rest-{routers}"
    workers = await site.worker(pool, 4, workers=_RESTING)
    watching: list[Child] = []
    for _ in range(routers):
        client = await site.client(pool)
        await client.ask("closed", what="call", concurrency=1, seconds=0.05)  # a router watches only pools in use
        watching.append(client)
    processes = {"server": site.server_pid, "worker": workers.pid}
    processes |= {f"router {number}": client.pid for number, client in enumerate(watching)}
    await asyncio.sleep(2)
    before = await _look(site, processes)
    await asyncio.sleep(seconds)
    after = await _look(site, processes)
    return after.since(before, _RESTING * (after.at - before.at))


async def ledger_writes(servers: int, seconds: float) -> dict[str, float]:
    """Single writes to a bucket like the ledger, 64 at once, with this many replicas: writes per second, and CPU
    time of all servers per write."""
    async with AsyncExitStack() as stack:
        if servers == 1:
            server = await stack.enter_async_context(EmbeddedServer())
            url, running = server.url, [server]
        else:
            cluster = stack.enter_context(EmbeddedCluster(servers))
            url, running = cluster.urls[0], cluster.servers
        bus = await connect(ConnectionSettings.from_url(url), name="bench writes")
        stack.push_async_callback(bus.close)
        bucket = await bus.bucket("BENCH", BucketSettings(replicas=servers))
        numbers = itertools.count()
        await closed_loop(lambda: bucket.put(f"k{next(numbers) % 1000}", b"x" * 200), concurrency=64, seconds=0.5)
        pids = [one.pid for one in running if one.pid is not None]
        before = sum(map(cpu_s, pids))
        done = await closed_loop(
            lambda: bucket.put(f"k{next(numbers) % 1000}", b"x" * 200), concurrency=64, seconds=seconds
        )
        return {
            "per_s": round(done.rate, 1),
            "servers_cpu_us": round((sum(map(cpu_s, pids)) - before) / done.count * 1e6, 1),
        }


async def run(seconds: float, report: Report) -> dict[str, Any]:
    """Everything, one after the other."""
    costs: dict[str, Cost] = {}
    writes: dict[str, dict[str, float]] = {}
    for servers in (1, 3):
        writes[f"{servers} copies" if servers > 1 else "1 copy"] = await ledger_writes(servers, seconds)
    report(f"writes: {writes}")
    async with opened() as site:
        for what in _LOADS:
            async with part_of(site) as part:
                costs[what] = await loaded(part, what, seconds)
            report(f"{what}: {costs[what]}")
        async with part_of(site) as part:
            costs["gang8"] = await gangs(part, 100)
        report(f"gang of 8: {costs['gang8']}")
        for routers in (0, 2):
            async with part_of(site) as part:
                costs[f"worker_second_{routers}_routers"] = await resting(part, 2 * seconds, routers=routers)
            report(f"a worker's second, {routers} routers: {costs[f'worker_second_{routers}_routers']}")
        version = site.server_version
    return {
        "costs": {name: asdict(cost) for name, cost in costs.items()},
        "ledger_writes": writes,
        "about": {
            **machine(),
            "nats-server": version,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    given = parser.parse_args()
    found = run_loop(run(given.seconds, lambda line: print(line, flush=True)))
    save("scaling", found)


if __name__ == "__main__":
    main()
