"""The whole demo: all parts on one server, then the verdict."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import AsyncExitStack
from pathlib import Path

from ...bus.embedded.server import EmbeddedServer
from ...testing.kit.testbed import open_testbed
from ..console.options import ConnectionOptions
from ..console.signals import until_signal
from .calls import GATEWAY_SHARE, Show
from .gangs import GangShow
from .metrics import DemoMetrics, exporting, own_metrics
from .pools import expectations, library_files
from .report import (
    figures,
    final_line,
    gang_verdicts,
    print_latencies,
    print_work,
    task_verdicts,
    verdicts,
)
from .screen import Screen
from .stage import STOP_S, Gauges, Stage
from .tasks import TaskShow


async def perform(
    screen: Screen,
    namespace: str,
    *,
    limit: int | None = None,
    console: bool = False,
    metrics_port: int | None = None,
) -> bool:
    """Run the whole demo; returns True if every check passed.

    Args:
        limit: use only this many files, spread over the library. None: all.
        console: serve the web console meanwhile, and go on with that until a signal.
        metrics_port: export the metrics of all processes there, and wait at some points until they were read. 0: a free
            one.

    Raises:
        InvalidSettings: the port cannot be used, or the exporter is not installed.
    """
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        own = None if metrics_port is None else own_metrics()
        gauges = Gauges() if own is None else Gauges(own[0])
        files = _spread(library_files(), limit)
        server = await stack.enter_async_context(EmbeddedServer())
        bed = open_testbed(Stage, url=server.url, namespace=namespace, owner="demo", audit=False, grace_s=STOP_S)
        stage = await stack.enter_async_context(bed)
        stage.screen, stage.gauges = screen, gauges
        screen.title(f"Gangline demo: nats-server {server.version} at {server.url}")
        if own is not None and metrics_port is not None:
            stage.environment = {**stage.environment, "GANGLINE_HEALTH_PORT": "0"}
            stage.metrics = DemoMetrics(screen, stage.running, own[1])
            await stack.enter_async_context(exporting(stage.metrics, screen, metrics_port))
        if console:
            from ..serving.console import beside

            await stack.enter_async_context(beside(ConnectionOptions(server=server.url, namespace=namespace)))
        good = await _perform(stage, files, began)
        if console:
            screen.note("The console goes on until Ctrl-C.")
            with until_signal() as stop:
                await stop.wait()
        return good


async def _perform(stage: Stage, files: list[Path], began: float) -> bool:
    screen, paths = stage.screen, [str(file) for file in files]
    size = sum(file.stat().st_size for file in files)
    screen.say(f"The work: compress and hash {len(files)} Python files of the standard library, {size / 1e6:.1f} MB,")
    screen.say("each of them by call, by dispatch and by lease, every fourth also by a plain NATS request;")
    screen.say("count their words with gangs of workers, and repeat the first task for all files as durable tasks.")

    show = Show(stage)
    await show.cast()
    screen.note(f"To watch from another terminal:  gangline workers -s {stage.url} --namespace {stage.names.namespace}")
    screen.note(f"                                 nats -s {stage.url} kv watch {stage.names.ledger_bucket}")
    local = asyncio.create_task(asyncio.to_thread(expectations, files))
    await show.act_calls(paths)
    await show.act_dispatches(paths)
    await show.act_leases(paths)
    await show.act_gateway(paths[::GATEWAY_SHARE])
    expected = await local
    facts = await stage.end_part()

    gangs = GangShow(stage)
    await gangs.cast(paths)
    await gangs.act_restart(paths)
    await gangs.act_turns(paths)
    gang_facts = await stage.end_part()
    await stage.audit.stop()

    tasks = TaskShow(stage)
    await tasks.cast()
    await tasks.act_submit(paths)
    await tasks.act_dead()
    left = await stage.emptied()
    task_facts = await stage.end_part()

    screen.title("9. Checks")
    results = [
        *verdicts(show, facts, expected),
        *gang_verdicts(gangs, gang_facts),
        *task_verdicts(tasks, task_facts, expected, left),
    ]
    for verdict in results:
        (screen.bad if verdict.findings else screen.good)(verdict.text)
    print_work(screen, show.drive, facts)
    print_latencies(screen, show.drive)
    ok = not any(verdict.findings for verdict in results)
    screen.last(final_line(figures(show, facts, gangs, tasks), results, time.monotonic() - began), ok=ok)
    return ok


def _spread(files: list[Path], limit: int | None) -> list[Path]:
    """At most `limit` files, spread evenly over the list."""
    if limit is None or limit >= len(files):
        return files
    return list(itertools.islice(files, 0, None, max(1, len(files) // limit)))[:limit]
