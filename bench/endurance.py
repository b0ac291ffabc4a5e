"""`python -m bench.endurance`: an hour of all kinds of requests in production settings, to see whether the memory of
any process or the p99 latency of any request grows.

Two workers, a dispatcher, a coordinator and a gateway run as operators run them (`gangline worker` and so on), with
metrics that are scraped, 1 % of the traces sampled, and results kept for a minute. This process sends at fixed rates,
far below the machine's capacity, so that growth is visible. Each minute has a row. The first five do not count, because
caches, tables of answers and the server's buffers fill up meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import urllib.request
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from bench.peers.store import save
from gangline import Client, GanglineError, Pool, connect
from gangline.bench.child import ITEMS, TEXT
from gangline.bench.loads import percentile
from gangline.bench.resting import resident_mb
from gangline.bench.site import clean_environment
from gangline.bench.tracing import set_up
from gangline.bus.embedded.cluster import free_ports
from gangline.bus.embedded.server import EmbeddedServer
from gangline.cli.console.children import end, spawn
from gangline.cli.console.session import run as run_loop

WARM_MINUTES: Final = 5
_POOL: Final = "endured"
_RESULT_TTL_S: Final = 60.0
_SCRAPE_S: Final = 15.0
_PATIENCE_S: Final = 30.0
_MOST_GROWTH: Final = 0.05
"""Of the memory of a process, from the first third of the judged minutes to the last."""
_LEAST_GROWTH_MB: Final = 3.0
"""Less than that is not growth."""

pool = Pool(_POOL, slots=128)


@pool.task(idempotent=True)
async def echo(data: str) -> str:
    return data


@pool.task
async def nap(data: str) -> str:
    await asyncio.sleep(0.02)
    return data


@pool.task
def function(data: str) -> str:
    return data


@pool.task
async def failing(data: str) -> str:
    raise ValueError(data)


@pool.task
async def stream(data: str) -> AsyncIterator[str]:
    for _ in range(ITEMS):
        yield data


Once = Callable[[], Awaitable[object]]


def kinds(client: Client) -> dict[str, tuple[float, Once]]:
    """For each kind of request, the rate per second and a function that makes one."""
    count = iter(range(1 << 62))
    stored = client.options(result_ttl_s=_RESULT_TTL_S)

    async def failed() -> None:
        with contextlib.suppress(GanglineError):
            await client.call(f"{_POOL}.failing", TEXT)
            raise AssertionError("it did not fail")

    async def cancelled() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(client.call(f"{_POOL}.nap", TEXT), 0.01)

    async def streamed() -> None:
        async for _ in client.stream(f"{_POOL}.stream", TEXT):
            pass

    async def leased() -> None:
        async with client.lease(_POOL) as lease:
            await lease.call("echo", TEXT)

    async def chosen() -> None:
        async with client.choose_worker(_POOL) as selection:
            await client.dispatch(selection, "echo", TEXT)

    async def with_result() -> None:
        await (await stored.submit(f"{_POOL}.echo", data=TEXT)).result(timeout_s=_PATIENCE_S)

    async def formed() -> None:
        async with client.gang(pool=_POOL, size=4, strategy="spread") as gang:
            await gang.run("echo", TEXT)

    async def plain() -> None:
        router, body = client.router, json.dumps({"data": TEXT}).encode()
        answer = await router.bus.request(router.names.call(_POOL, "echo"), body, timeout_s=_PATIENCE_S)
        assert json.loads(answer.data) == TEXT, answer

    return {
        "call": (200, lambda: client.call(f"{_POOL}.echo", TEXT)),
        "call with a key": (50, lambda: client.options(key=f"k{next(count) % 5000}").call(f"{_POOL}.echo", TEXT)),
        "call of a plain function": (20, lambda: client.call(f"{_POOL}.function", TEXT)),
        "call of 20 ms": (20, lambda: client.call(f"{_POOL}.nap", TEXT)),
        "call that fails": (2, failed),
        "call that is cancelled": (5, cancelled),
        "stream of 200 items": (1, streamed),
        "lease, call, release": (10, leased),
        "choose, dispatch": (20, chosen),
        "submit, await the result": (20, with_result),
        "submit with a delay of 2 s": (2, lambda: client.options(delay_s=2.0).submit(f"{_POOL}.echo", data=TEXT)),
        "gang of 4": (0.5, formed),
        "request through the gateway": (20, plain),
    }


class Course:
    """The latencies of a minute, by kind."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.errors: dict[str, list[str]] = defaultdict(list)

    def row(self) -> dict[str, Any]:
        """End the minute, and return its row."""
        kinds = {}
        for kind, seconds in sorted(self.seconds.items()):
            seconds.sort()
            p50, p99 = (round(percentile(seconds, share) * 1000, 2) for share in (0.5, 0.99))
            kinds[kind] = {"count": len(seconds), "p50_ms": p50, "p99_ms": p99}
        errors = {kind: (len(texts), texts[0]) for kind, texts in self.errors.items()}
        self.seconds.clear()
        self.errors.clear()
        return {"kinds": kinds, "errors": errors}

    async def pace(self, kind: str, per_s: float, once: Once) -> None:
        """Start each request when it is due, whether or not earlier ones have ended."""
        under_way: set[asyncio.Task[None]] = set()
        due_at = perf_counter()
        while True:
            due_at += 1 / per_s
            await asyncio.sleep(due_at - perf_counter())
            under_way.add(task := asyncio.create_task(self._one(kind, due_at, once)))
            task.add_done_callback(under_way.discard)

    async def _one(self, kind: str, due_at: float, once: Once) -> None:
        try:
            await once()
        except Exception as error:
            self.errors[kind].append(f"{type(error).__name__}: {error}")
        self.seconds[kind].append(perf_counter() - due_at)


@asynccontextmanager
async def _processes() -> AsyncIterator[tuple[str, dict[str, int], list[int]]]:
    """The server's URL, the ids of all processes by name, and the ports of their metrics."""
    commands = {
        "worker 1": ("worker", "bench.endurance:pool", "--id", "w1"),
        "worker 2": ("worker", "bench.endurance:pool", "--id", "w2"),
        "dispatcher": ("dispatcher",),
        "coordinator": ("coordinator",),
        "gateway": ("gateway",),
    }
    ports = free_ports(len(commands))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedServer())
        assert server.pid is not None
        pids = {"nats-server": server.pid}
        nowhere = stack.enter_context(Path(os.devnull).open("wb"))  # noqa: ASYNC230, SIM115
        for (name, arguments), port in zip(commands.items(), ports, strict=True):
            observed = {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": str(port),
                        "OTEL_TRACES_EXPORTER": "console", "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
                        "OTEL_TRACES_SAMPLER_ARG": "0.01"}  # fmt: skip
            environment = clean_environment() | observed
            told = ("-s", server.url, "--log-level", "error")
            process = await spawn(*arguments, *told, environment=environment, output=nowhere)
            stack.push_async_callback(end, process, _PATIENCE_S)
            pids[name] = process.pid
        yield server.url, pids | {"client": os.getpid()}, ports


async def _scrape(ports: list[int]) -> None:
    """As Prometheus does."""

    def read(port: int) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:  # nosec B310
            answer.read()

    while True:
        await asyncio.sleep(_SCRAPE_S)
        for port in ports:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(read, port)


async def run(minutes: int, scale: float, report: Callable[[str], None]) -> dict[str, Any]:
    """The rows of all minutes, and their evaluation."""
    rows: list[dict[str, Any]] = []
    async with (
        _processes() as (url, pids, ports),
        connect(url, name="endurance") as client,
        asyncio.TaskGroup() as all_,
    ):
        async with asyncio.timeout(_PATIENCE_S):
            while len(await client.workers(_POOL)) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        course = Course()
        paced = [
            all_.create_task(course.pace(kind, rate * scale, once)) for kind, (rate, once) in kinds(client).items()
        ]
        paced.append(all_.create_task(_scrape(ports)))
        for minute in range(1, minutes + 1):
            await asyncio.sleep(60)
            row = {"minute": minute, "mb": {name: round(resident_mb(pid), 1) for name, pid in pids.items()}}
            rows.append(row | course.row())
            report(json.dumps(rows[-1]))
        for task in paced:
            task.cancel()
    return {"minutes": rows, **judged(rows[WARM_MINUTES:])}


def judged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Compare the first third of these minutes with the last third: medians of memory and of p99."""
    third = max(1, len(rows) // 3)
    if len(rows) < 2 * third:
        return {}
    first, last = rows[:third], rows[-third:]
    memory, slowest = {}, {}
    for name in rows[0]["mb"]:
        before, after = (round(statistics.median(row["mb"][name] for row in part), 1) for part in (first, last))
        flat = after - before <= max(_LEAST_GROWTH_MB, _MOST_GROWTH * before)
        memory[name] = {"first_mb": before, "last_mb": after, "flat": flat}
    for kind in rows[0]["kinds"]:
        parts = [[row["kinds"][kind]["p99_ms"] for row in part if kind in row["kinds"]] for part in (first, last)]
        before, after = (round(statistics.median(part), 1) for part in parts)
        slowest[kind] = {"first_p99_ms": before, "last_p99_ms": after, "ratio": round(after / before, 2)}
    requests = sum(each["count"] for row in rows for each in row["kinds"].values())
    errors = sum(count for row in rows for count, _ in row["errors"].values())
    return {"memory": memory, "p99": slowest, "requests": requests, "errors": errors}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.endurance", description=__doc__)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--scale", type=float, default=1.0, help="of all rates")
    given = parser.parse_args()
    set_up("production", "endurance")
    found = run_loop(run(given.minutes, given.scale, lambda line: print(line, flush=True)))
    save("endurance", found)
    print(json.dumps({name: found.get(name) for name in ("memory", "p99", "requests", "errors")}, indent=2))
    sys.exit(not all(each["flat"] for each in found.get("memory", {}).values()))


if __name__ == "__main__":
    main()
