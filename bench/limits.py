"""What a limit over all workers costs while everybody wants more of it: throughput against the ideal, moves of units,
and writes to the ledger.

    python -m bench.limits
    python -m bench.limits --workers 8 --callers 64 --max-running 4 --hold-ms 20
    python -m bench.limits --workers 8 --callers 64 --rate 200 --hold-ms 0
    python -m bench.limits --virtual

The workers and the clients are in one process beside the server. Prints one line of JSON for each load; without a limit
in the arguments, for several. On a busy machine compare a load with the same one on one worker, or use --virtual.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Final

from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.nats_bus import connect
from gangline.bus.port.bus import KvEntry
from gangline.bus.settings.connection import ConnectionSettings
from gangline.cli.console.session import run as run_loop
from gangline.dispatcher.client.client import Client
from gangline.schemas.errors.base import Saturated
from gangline.schemas.names import Names
from gangline.schemas.records.workers import LimitRecord
from gangline.testing.in_memory import cluster
from gangline.testing.loop import VirtualLoop
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

_POOL: Final = "bench"
_CLIENTS: Final = 4
_SETTLES_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    workers: int = 4
    callers: int = 64
    max_running: int | None = None
    rate_per_s: float | None = None
    hold_s: float = 0.02
    """How long each execution takes."""

    @property
    def ideal_per_s(self) -> float:
        """Executions per second if no unit is ever idle."""
        running = self.callers if self.max_running is None else min(self.callers, self.max_running)
        at_once = running / self.hold_s if self.hold_s else float("inf")
        return min(at_once, self.rate_per_s or float("inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    load: Load
    per_s: float
    of_ideal: float
    moves_per_s: float
    """Units that one worker had before and another one afterwards."""
    writes_per_s: float
    """Writes of the record to the ledger."""

    def to_json(self) -> dict[str, object]:
        figures = asdict(self)
        return {**figures.pop("load"), "ideal_per_s": round(self.load.ideal_per_s, 1), **figures}


class Moves:
    """Counts what happens to the records of limits."""

    def __init__(self) -> None:
        self.writes = self.moved = 0
        self._units: dict[str, dict[str, int]] = {}

    def see(self, entry: KvEntry) -> None:
        """A record was stored."""
        units = {name: share.units for name, share in LimitRecord.read(entry.value).shares.items()}
        before = self._units.get(entry.key)
        self._units[entry.key] = units
        if before is not None:
            self.writes += 1
            self.moved += sum(max(0, count - before.get(name, 0)) for name, count in units.items())


async def measure(load: Load, seconds: float, url: str, names: Names) -> Found:
    """On a server: each worker and client has a connection of its own."""
    async with AsyncExitStack() as stack:
        for number in range(load.workers):
            bus = await connect(ConnectionSettings.from_url(url), name=f"worker {number}")
            stack.push_async_callback(bus.close)
            settings = WorkerSettings(id=f"w{number}", freeze_after_s=20.0)
            worker = Worker(_pool(load), bus=bus, names=names, settings=settings)
            stack.push_async_callback(worker.stop)
            await worker.start()
        clients = []
        for number in range(_CLIENTS):
            bus = await connect(ConnectionSettings.from_url(url), name=f"client {number}")
            stack.push_async_callback(bus.close)
            clients.append(await stack.enter_async_context(Client(bus, names=names)))
        return await _call(load, seconds, clients)


async def imagine(load: Load, seconds: float) -> Found:
    """In memory and on virtual time: what the rules cost, without the machine."""
    running = cluster(_pool(load), workers=load.workers)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(running)]
        for number in range(1, _CLIENTS):
            bus = running.hub.connect(f"client {number}")
            clients.append(await stack.enter_async_context(Client(bus, names=running.names)))
        return await _call(load, seconds, clients)


async def _call(load: Load, seconds: float, clients: Sequence[Client]) -> Found:
    """Let callers call as fast as they are answered for some seconds."""
    moves, done, now = Moves(), 0, asyncio.get_running_loop().time
    router = clients[0].router
    watch = await (await router.ledger()).watch(router.names.limits_of(_POOL), moves.see)

    async def calls(client: Client) -> None:
        nonlocal done
        patient = client.options(timeout_s=60.0)
        while True:
            try:
                await patient.call(f"{_POOL}.work")
            except Saturated:
                continue
            done += 1

    callers = [asyncio.ensure_future(calls(clients[number % len(clients)])) for number in range(load.callers)]
    try:
        await asyncio.sleep(_SETTLES_S)
        began, before, writes, moved = now(), done, moves.writes, moves.moved
        await asyncio.sleep(seconds)
        took, count, writes, moved = now() - began, done - before, moves.writes - writes, moves.moved - moved
    finally:
        for each in callers:
            each.cancel()
        await asyncio.wait(callers)
        await watch.unsubscribe()
    return Found(
        load=load,
        per_s=round(count / took, 1),
        of_ideal=round(count / took / load.ideal_per_s, 3),
        moves_per_s=round(moved / took, 1),
        writes_per_s=round(writes / took, 1),
    )


def _pool(load: Load) -> Pool:
    pool = Pool(_POOL, slots=load.callers)

    @pool.task(max_running=load.max_running, rate_per_s=load.rate_per_s)
    async def work() -> None:
        if load.hold_s:
            await asyncio.sleep(load.hold_s)

    return pool


LOADS: Final = (
    Load(max_running=4, workers=1),
    Load(max_running=4),
    Load(max_running=4, workers=16),
    Load(max_running=1),
    Load(max_running=64, callers=32),
    Load(rate_per_s=100.0, hold_s=0.0, workers=1),
    Load(rate_per_s=100.0, hold_s=0.0),
    Load(rate_per_s=5.0, hold_s=0.0),
)
"""With one worker nothing moves. With room for all callers nobody waits."""


async def _measure_all(loads: Iterable[Load], seconds: float) -> None:
    async with EmbeddedServer() as server:
        for number, load in enumerate(loads):
            _print(await measure(load, seconds, server.url, Names(f"limits{number}")))


def _imagine_all(loads: Iterable[Load], seconds: float) -> None:
    for load in loads:
        with contextlib.closing(VirtualLoop()) as loop:
            _print(loop.run_until_complete(imagine(load, seconds)))


def _print(found: Found) -> None:
    print(json.dumps(found.to_json()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--max-running", type=int)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--hold-ms", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--virtual", action="store_true", help="in memory and on virtual time, without the machine")
    given = parser.parse_args()
    one = Load(
        workers=given.workers,
        callers=given.callers,
        max_running=given.max_running,
        rate_per_s=given.rate,
        hold_s=given.hold_ms / 1000,
    )
    loads = LOADS if given.max_running is None and given.rate is None else (one,)
    if given.virtual:
        _imagine_all(loads, given.seconds)
    else:
        run_loop(_measure_all(loads, given.seconds))


if __name__ == "__main__":
    main()
