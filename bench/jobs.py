"""How long look-ups and cancellations of jobs take that wait far back in a queue: by another client, which knows only
their ids.

    python -m bench.jobs
    python -m bench.jobs --waiting 100000 --asked 1000 --pause 30

A server in a process of its own, and dispatcher and clients in this one; no worker, so that nothing starts. Prints one
line of JSON; `first`, `status` and `cancel` are seconds, and CPU seconds of this process. `first` is the first look-up,
which waits until the dispatcher has read the ids of all waiting jobs; it reads them by itself in the background, too
(`--pause`: seconds for that).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.nats_bus import connect
from gangline.bus.settings.connection import ConnectionSettings
from gangline.cli.console.session import run as run_loop
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.dispatcher.durable.service import Dispatcher
from gangline.dispatcher.jobs.job import Job

_TARGET = "bench.square"
_TOGETHER = 5000


async def submit(how: ConnectionSettings, waiting: int) -> list[str]:
    jobs: list[str] = []
    async with Client(await connect(how, name="submitter"), owns_bus=True) as client:
        for start in range(0, waiting, _TOGETHER):
            arguments = [{"x": number} for number in range(start, min(start + _TOGETHER, waiting))]
            jobs += [job.id for job in await client.submit_many(_TARGET, arguments)]
    return jobs


async def measure(url: str, waiting: int, asked: int, pause_s: float) -> dict[str, object]:
    async with AsyncExitStack() as stack:
        how = ConnectionSettings.from_url(url)
        bus = await connect(how, name="dispatcher")
        stack.push_async_callback(bus.close)
        dispatcher = Dispatcher(bus, settings=DispatcherSettings(unknown_after_s=86_400))
        stack.push_async_callback(dispatcher.stop)
        await dispatcher.start()
        at = time.perf_counter()
        jobs = await submit(how, waiting)
        submitted_s = time.perf_counter() - at
        await asyncio.sleep(pause_s)
        chosen = random.Random(1).sample(jobs, min(2 * asked, len(jobs)))
        client = await stack.enter_async_context(Client(await connect(how, name="asker"), owns_bus=True))

        async def all_of(ask: Callable[[Job], Awaitable[object]], ids: Sequence[str]) -> tuple[float, float]:
            at, cpu = time.perf_counter(), time.process_time()
            await asyncio.gather(*(ask(client.job(job)) for job in ids))
            return round(time.perf_counter() - at, 3), round(time.process_time() - cpu, 3)

        return {
            "waiting": waiting,
            "asked": asked,
            "submitted_s": round(submitted_s, 3),
            "first": await all_of(Job.status, jobs[-1:]),
            "status": await all_of(Job.status, chosen[:asked]),
            "cancel": await all_of(Job.cancel, chosen[asked:]),
        }


async def _main(options: argparse.Namespace) -> None:
    async with EmbeddedServer() as server:
        print(json.dumps(await measure(server.url, options.waiting, options.asked, options.pause)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--asked", type=int, default=1000)
    parser.add_argument("--pause", type=float, default=0.0)
    run_loop(_main(parser.parse_args()))
