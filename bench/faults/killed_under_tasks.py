"""A worker, the dispatcher that has the queue, or a nats-server is killed while 1,000 durable tasks run."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from bench.faults.figures import Report, Row
from bench.faults.notes import interrupted, most_at_once, unexplained_starts
from bench.faults.task_site import SERVED, TaskSite, task_site
from gangline.bus.embedded import EmbeddedServer
from gangline.bus.embedded_cluster import EmbeddedCluster
from gangline.schemas.routes import QueueRules, RouteRecord

TASKS: Final = 1000
SECONDS: Final = 0.02
KEYS: Final = 10
PER_KEY: Final = 3


async def worker_killed(repetitions: int, report: Report) -> list[Row]:
    """One of four workers dies in the middle: how soon do its tasks start elsewhere?"""
    row = Row(name="worker killed: its tasks start elsewhere", target=3.0)
    for number in range(repetitions):
        async with task_site(workers=4) as site:
            jobs = await site.squares(TASKS, SECONDS)
            await site.run_some(random.randrange(100, 600))
            victim = random.choice(list(site.workers.values()))
            at = await site.kill_worker(victim)
            broken = await site.check_squares(jobs)
            notes = site.notes()
            cut_off = interrupted(notes, victim.child.pid)
            again = [note.at - at for note in notes if note.job in cut_off and note.event == "start" and note.at > at]
            row.samples += [max(again)] if again else []
            row.broken += broken + unexplained_starts(notes, site.killed) + await site.emptied()
            row.note = f"{TASKS} tasks each time; {len(cut_off)} cut off in the last"
            report(f"{row.name} {number + 1}: {len(cut_off)} cut off, {max(again, default=0.0):.3f} s")
    return [row]


async def dispatcher_killed(repetitions: int, report: Report) -> list[Row]:
    """The dispatcher that has the queue dies: how soon does the other one start tasks?"""
    row = Row(name="dispatcher killed: the next task starts", target=3.0)
    twice = 0
    for number in range(repetitions):
        async with task_site(workers=4, dispatchers=2) as site:
            jobs = await site.squares(TASKS, SECONDS)
            await site.run_some(random.randrange(100, 600))
            at = await site.kill_holder()
            # What it sent before it died may still arrive; nothing of it can start later than this.
            row.samples.append(await site.note_after(at + 0.05) - at)
            row.broken += await site.check_squares(jobs) + await site.emptied()
            started_twice = unexplained_starts(site.notes(), site.killed)
            twice += len(started_twice)
            row.note = f"{TASKS} tasks each time; {twice} started twice in all"
            report(f"{row.name} {number + 1}: {row.samples[-1]:.3f} s, started twice: {started_twice}")
    return [row]


async def server_killed(repetitions: int, report: Report) -> list[Row]:
    """The one nats-server dies and is started again at once: how soon does the next task start?"""
    row = Row(name="server killed: the next task starts")
    for number in range(repetitions):
        async with EmbeddedServer() as server, task_site(workers=4, url=server.url) as site:
            jobs = await site.squares(TASKS, SECONDS)
            await site.run_some(random.randrange(100, 600))
            server.kill()
            at = time.monotonic()
            await asyncio.to_thread(server.restart)
            row.samples.append(await site.note_after(at + 0.1) - at)
            row.broken += await site.check_squares(jobs)
            row.broken += unexplained_starts(site.notes(), site.killed) + await site.emptied()
            row.note = f"{TASKS} tasks each time"
            report(f"{row.name} {number + 1}: {row.samples[-1]:.3f} s")
    return [row]


async def stream_leader_killed(repetitions: int, report: Report) -> list[Row]:
    """Three nats-servers; the leader of the stream of tasks dies for good."""
    row = Row(name="leader of three killed: longest pause of starts", target=30.0)
    for number in range(repetitions):
        async with (
            EmbeddedCluster(3) as servers,
            task_site(workers=4, url=",".join(servers.urls), replicas=3) as site,
        ):
            jobs = await site.squares(TASKS, SECONDS)
            await site.run_some(random.randrange(100, 400))
            info = await site.bus.api.call(f"STREAM.INFO.{site.names.tasks_stream}", what="find the leader")
            servers.server(info["cluster"]["leader"]).kill()
            row.broken += await site.check_squares(jobs)
            starts = [note.at for note in site.notes() if note.event == "start"]
            row.samples.append(max(b - a for a, b in zip(starts, starts[1:], strict=False)))
            row.broken += unexplained_starts(site.notes(), site.killed) + await site.emptied()
            row.note = f"{TASKS} tasks each time"
            report(f"{row.name} {number + 1}: {row.samples[-1]:.3f} s")
    return [row]


async def limit_per_key(repetitions: int, report: Report) -> list[Row]:
    """At most 3 tasks of each of 10 keys at once, two dispatchers, the one that has the queue is killed."""
    row = Row(name="limit 3 per key, dispatcher killed: 1,000 tasks done")
    worst: dict[str, int] = {}
    for number in range(repetitions):
        async with task_site(workers=4, dispatchers=2, arguments=("--slots", "12")) as site:
            await _rules(site, QueueRules(per_key=PER_KEY))
            began = time.monotonic()
            jobs = []
            for key in range(KEYS):
                client = site.client.options(key=f"k{key}")
                given = [
                    {"folder": str(site.folder), "number": key * 100 + n, "seconds": SECONDS}
                    for n in range(TASKS // KEYS)
                ]
                jobs += await client.submit_many(f"{SERVED}.square", given)
            await site.run_some(random.randrange(200, 500))
            await site.kill_holder()
            row.broken += await site.check_squares(jobs)
            row.samples.append(time.monotonic() - began)
            most = most_at_once(site.notes(), site.killed)
            row.broken += [f"L1: {count} of key {key} ran at once" for key, count in most.items() if count > PER_KEY]
            row.broken += unexplained_starts(site.notes(), site.killed) + await site.emptied()
            worst = {key: max(count, worst.get(key, 0)) for key, count in most.items()}
            row.note = f"most at once: {max(worst.values())}"
            report(f"{row.name} {number + 1}: {row.samples[-1]:.3f} s, {most}")
    return [row]


async def _rules(site: TaskSite, rules: QueueRules) -> None:
    """As `nats kv put` would, and wait until the dispatcher follows."""
    bucket = await site.streams.routes()
    await bucket.put(SERVED, RouteRecord(queue=rules).model_dump_json(exclude_defaults=True).encode())
    await asyncio.sleep(1.0)  # every router follows a change within a second
