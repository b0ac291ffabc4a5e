"""`python -m bench.distance`: how long a coordinator needs to lead, and a client to its first call, by the number of
workers in one pool and by the time that a packet takes from a process to the server.

Real processes and a real server. All workers of a row are in one process beside the server, each with heartbeats of its
own; the coordinator and the client are behind a proxy that delays everything, as a cable to another region does. The
coordinator is timed from `start` until it serves requests, the client from connecting until the answer of its first
call.

Other work on the machine falsifies the times.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from bench.chaos.proxy import Proxy
from bench.peers.store import save
from gangline import Pool
from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.nats_bus import connect
from gangline.bus.settings.connection import ConnectionSettings
from gangline.bus.streams.history_recorder import HistorySettings
from gangline.cli.console.session import run as run_loop
from gangline.coordinator.service import Coordinator
from gangline.coordinator.settings.settings import ServiceSettings
from gangline.dispatcher.client.client import Client
from gangline.schemas.errors.base import GanglineError
from gangline.worker.ledger.settings import WorkerSettings
from gangline.worker.service import Worker

WORKERS: Final = (10, 100, 1000)
ONE_WAY_MS: Final = (0, 5, 25)
_LIMIT_S: Final = 60.0
"""A longer time is not waited for."""
_NO_HISTORY: Final = HistorySettings(enabled=False)

pool = Pool("images", slots=1)


@pool.task
async def echo(text: str) -> str:
    return text


async def fleet(url: str, count: int) -> None:
    """Workers, until this process is ended."""
    async with AsyncExitStack() as stack:
        bus = await connect(ConnectionSettings(urls=(url,)), name="fleet")
        stack.push_async_callback(bus.close)
        for number in range(count):
            settings = WorkerSettings(id=f"w{number}", node="n", history=_NO_HISTORY, start_timeout_s=_LIMIT_S)
            await stack.enter_async_context(Worker(pool, bus=bus, settings=settings))
        print("ready", flush=True)
        await asyncio.Event().wait()


async def measure(workers: int, one_way_ms: float) -> dict[str, Any]:
    """One row; None for a time beyond the limit."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedServer())
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.distance", "--fleet", server.url, str(workers), stdout=asyncio.subprocess.PIPE
        )
        try:
            assert child.stdout is not None
            async with asyncio.timeout(10 * _LIMIT_S):
                assert await child.stdout.readline() == b"ready\n", "the workers did not start"
            proxy = Proxy()
            stack.push_async_callback(proxy.close)
            settings = ConnectionSettings(
                urls=(f"nats://127.0.0.1:{await proxy.listen('far', 'server', lambda: server.port)}",)
            )
            proxy.between("far", "server").slow(one_way_ms / 1000)
            leads_s = await _timed(_lead(settings))
            calls_s = await _timed(_call(settings))
        finally:
            child.kill()
            await child.wait()
    return {"workers": workers, "one_way_ms": one_way_ms, "leads_s": leads_s, "first_call_s": calls_s}


async def _timed(work: Any) -> float | None:
    began = time.monotonic()
    try:
        async with asyncio.timeout(_LIMIT_S):
            ended = await work
    except (TimeoutError, GanglineError):
        return None
    return round(ended - began, 3)


async def _lead(settings: ConnectionSettings) -> float:
    bus = await connect(settings, name="coordinator")
    try:
        async with Coordinator(bus=bus, shell=ServiceSettings(history=_NO_HISTORY)) as coordinator:
            await coordinator.wait_leading()
            return time.monotonic()
    finally:
        await bus.close()


async def _call(settings: ConnectionSettings) -> float:
    bus = await connect(settings, name="client")
    try:
        async with Client(bus) as client:
            assert await client.call("images.echo", "here") == "here"
            return time.monotonic()
    finally:
        await bus.close()


def _table(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["| workers | one way | leads after | first call after |", "|---|---|---|---|"]
    for row in rows:
        times = (
            f"over {_LIMIT_S:g} s" if row[key] is None else f"{row[key]:.2f} s" for key in ("leads_s", "first_call_s")
        )
        lines.append(f"| {row['workers']} | {row['one_way_ms']:g} ms | {' | '.join(times)} |")
    return "\n".join(lines)


async def measure_all(workers: Sequence[int], one_way_ms: Sequence[float]) -> list[dict[str, Any]]:
    return [await measure(count, distance) for count in workers for distance in one_way_ms]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.distance", description=__doc__)
    parser.add_argument("--workers", type=int, action="append", help=f"{', '.join(map(str, WORKERS))} by default")
    parser.add_argument(
        "--one-way-ms", type=float, action="append", help=f"{', '.join(map(str, ONE_WAY_MS))} by default"
    )
    parser.add_argument("--fleet", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.fleet:
        run_loop(fleet(given.fleet[0], int(given.fleet[1])))
        return
    rows = run_loop(measure_all(given.workers or WORKERS, given.one_way_ms or ONE_WAY_MS))
    save("distance", {"rows": rows})
    print(_table(rows))


if __name__ == "__main__":
    main()
