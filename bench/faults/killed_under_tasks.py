"""A worker, the dispatcher that owns the queue, or a nats-server is killed while 1,000 durable tasks run.

Later tasks do not end before the kill, so every slot is in use at that moment, however slow the machine is.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from bench.faults.figures import Row
from bench.faults.site import QUEUE, Site, tasks_opened
from bench.faults.trial import Trial
from gangline.bus.embedded.cluster import EmbeddedCluster
from gangline.bus.embedded.server import EmbeddedServer
from gangline.dispatcher.jobs.job import Job
from gangline.schemas.records.routes import QueueRules, RouteRecord
from gangline.testing.kit.records import Run

TASKS: Final = 1000
SECONDS: Final = 0.02
KEYS: Final = 10
PER_KEY: Final = 3
SLOTS: Final = 12


async def worker_killed(trial: Trial, tasks: int = TASKS) -> list[Row]:
    """One of four workers is killed while it runs tasks: how soon do they start elsewhere?"""
    row = Row(name="worker killed: its tasks start elsewhere", target=3.0)
    for number in range(trial.repetitions):
        async with tasks_opened(trial, workers=4) as site:
            jobs = await _under_way(site, tasks)
            victim = random.choice(list(site.workers.values()))
            await site.until(lambda: site.interrupted(victim), "it runs some")  # noqa: B023
            at = await site.kill(victim)
            site.let_go()
            row.broken += await site.check_squares(jobs) + site.started_twice() + await site.emptied()
            cut_off = {run.job for run in site.interrupted(victim)}
            again = [run.began - at for run in site.runs() if run.job in cut_off and run.began > at]
            row.samples += [max(again)] if again else []
            row.note = f"{tasks} tasks each time; {len(cut_off)} cut off in the last"
            trial.report(f"{row.name} {number + 1}: {len(cut_off)} cut off, {max(again, default=0.0):.3f} s")
    return [row]


async def dispatcher_killed(trial: Trial, tasks: int = TASKS) -> list[Row]:
    """The dispatcher that owns the queue is killed: how soon does the other one start tasks?"""
    row = Row(name="dispatcher killed: the next task starts", target=3.0)
    twice = 0
    for number in range(trial.repetitions):
        async with tasks_opened(trial, workers=4, dispatchers=2) as site:
            jobs = await _under_way(site, tasks)
            at = await site.kill(await site.holder(QUEUE))
            site.let_go()
            # Messages it sent before may still arrive; no task of it can start later than this.
            row.samples.append(await site.started_after(at + 0.05) - at)
            row.broken += await site.check_squares(jobs) + await site.emptied()
            started_twice = site.started_twice()
            twice += len(started_twice)
            row.note = f"{tasks} tasks each time; {twice} started twice in all"
            trial.report(f"{row.name} {number + 1}: {row.samples[-1]:.3f} s, started twice: {started_twice}")
    return [row]


async def server_killed(trial: Trial, tasks: int = TASKS) -> list[Row]:
    """The only nats-server is killed and restarted at once: how soon does the next task start?"""
    row = Row(name="server killed: the next task starts", target=5.0)
    for number in range(trial.repetitions):
        async with EmbeddedServer() as server, tasks_opened(trial, workers=4, url=server.url) as site:
            jobs = await _under_way(site, tasks)
            server.kill()
            at = time.monotonic()
            site.let_go()
            await asyncio.to_thread(server.restart)
            row.samples.append(await site.started_after(at + 0.1) - at)
            row.broken += await site.check_squares(jobs) + site.started_twice() + await site.emptied()
            row.note = f"{tasks} tasks each time"
            trial.report(f"{row.name} {number + 1}: {row.samples[-1]:.3f} s")
    return [row]


async def stream_leader_killed(trial: Trial, tasks: int = TASKS) -> list[Row]:
    """Three nats-servers; the leader of the task stream is killed for good."""
    row = Row(name="leader of three killed: longest pause of starts", target=30.0)
    for number in range(trial.repetitions):
        async with (
            EmbeddedCluster(3) as servers,
            tasks_opened(trial, workers=4, url=",".join(servers.urls), replicas=3) as site,
        ):
            jobs = await _under_way(site, tasks)
            servers.server((await site.stream_info(site.names.tasks_stream))["cluster"]["leader"]).kill()
            site.let_go()
            row.broken += await site.check_squares(jobs) + site.started_twice() + await site.emptied()
            starts = [run.began for run in site.runs()]
            row.samples.append(max(b - a for a, b in zip(starts, starts[1:], strict=False)))
            row.note = f"{tasks} tasks each time"
            trial.report(f"{row.name} {number + 1}: {row.samples[-1]:.3f} s")
    return [row]


async def limit_per_key(trial: Trial, tasks: int = TASKS) -> list[Row]:
    """At most 3 tasks of each of 10 keys at once, with two dispatchers; the one that owns the queue is killed."""
    row = Row(name=f"limit 3 per key, dispatcher killed: {tasks:,} tasks done", target=15.0)
    each = tasks // KEYS
    for number in range(trial.repetitions):
        async with tasks_opened(trial, workers=4, dispatchers=0, arguments=("--slots", str(SLOTS))) as site:
            bucket = await site.streams.routes()
            rules = RouteRecord(queue=QueueRules(per_key=PER_KEY))
            await bucket.put(QUEUE, rules.model_dump_json(exclude_defaults=True).encode())
            for _ in range(2):
                site.dispatcher()  # they read the rules before they start anything
            began = time.monotonic()
            some = random.randrange(each // 5, each // 2)
            jobs = []
            for key in range(KEYS):
                jobs += await site.squares(each, SECONDS, first=key * each, held_from=some, key=f"k{key}")
            await site.run_some(some * KEYS)
            await site.kill(await site.holder(QUEUE))
            site.let_go()
            row.broken += await site.check_squares(jobs, slots=SLOTS, per_key=PER_KEY)
            row.samples.append(time.monotonic() - began)
            row.broken += site.started_twice() + await site.emptied()
            most = most_at_once(site.runs())
            row.note = f"most at once: {max(most.values())}"
            trial.report(f"{row.name} {number + 1}: {row.samples[-1]:.3f} s, {most}")
    return [row]


async def _under_way(site: Site, tasks: int) -> list[Job]:
    """Submit this many; some have ended when it returns, and the others do not end yet."""
    some = random.randrange(tasks // 10, tasks * 6 // 10)
    jobs = await site.squares(tasks, SECONDS, held_from=some)
    await site.run_some(some)
    return jobs


def most_at_once(runs: Iterable[Run]) -> dict[str, int]:
    """For each key, the maximum number of its tasks that ran at once."""
    most: dict[str, int] = {}
    living: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.key is not None:
            living[run.key] = [*(other for other in living[run.key] if other.ended > run.began), run]
            most[run.key] = max(most.get(run.key, 0), len(living[run.key]))
    return most
