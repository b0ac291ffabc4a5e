"""The whole demo: all parts on one server, then the verdict."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from pathlib import Path

from .acts.calls import GATEWAY_SHARE, POOL, Show
from .acts.gangs import GangShow
from .acts.tasks import TaskShow
from .checks.calls import AtRest
from .checks.rest import at_rest
from .fixtures.corpus import Expected, expectations, library_files
from .fixtures.pool import squeeze_bytes
from .fixtures.screen import Screen
from .fixtures.stage import Stage, open_stage
from .report import (
    Verdict,
    figures,
    final_line,
    gang_verdicts,
    print_latencies,
    print_work,
    task_verdicts,
    verdicts,
)


async def perform(screen: Screen, namespace: str, *, limit: int | None = None) -> bool:
    """Run the whole demo; returns True if every check passed.

    Args:
        limit: use only this many files, spread over the library. None: all.
    """
    began = time.monotonic()
    files = _spread(library_files(), limit)
    async with open_stage(screen, namespace) as stage:
        size = sum(file.stat().st_size for file in files)
        screen.say(
            f"The work: compress and hash {len(files)} Python files of the standard library, {size / 1e6:.1f} MB,"
        )
        screen.say("each of them by call, by dispatch and by lease, every fourth also by a plain NATS request;")
        screen.say("count their words with gangs of workers, and repeat the first task for all files as durable tasks.")
        paths = [str(file) for file in files]
        show, expected, rest = await _calls(stage, files, paths)
        gangs, gang_rest = await _gangs(stage, paths)
        tasks, task_rest = await _tasks(stage, paths)
        screen.title("9. Checks")
        results = [
            *verdicts(show, expected, rest),
            *gang_verdicts(gangs, gang_rest),
            *task_verdicts(tasks, expected, task_rest),
        ]
        return _judge(screen, show, figures(show, gangs, tasks), results, began)


async def _calls(stage: Stage, files: list[Path], paths: Sequence[str]) -> tuple[Show, dict[str, Expected], AtRest]:
    """The first part: single calls, dispatches and leases."""
    async with stage.crew() as crew:
        show = Show(stage, crew)
        await show.cast()
        stage.screen.note(
            f"To watch from another terminal:  gangline workers -s {stage.url} --namespace {stage.names.namespace}"
        )
        stage.screen.note(f"                                 nats -s {stage.url} kv watch {stage.names.ledger_bucket}")
        local = asyncio.create_task(asyncio.to_thread(expectations, files, squeeze_bytes))
        await show.act_calls(paths)
        await show.act_dispatches(paths)
        await show.act_leases(paths)
        await show.act_gateway(paths[::GATEWAY_SHARE])
        expected = await local
        return show, expected, await at_rest(stage, POOL)


async def _gangs(stage: Stage, paths: Sequence[str]) -> tuple[GangShow, AtRest]:
    """The second part: gangs."""
    async with stage.crew() as crew:
        show = GangShow(stage, crew)
        await show.cast(paths)
        await show.act_restart(paths)
        await show.act_turns(paths)
        return show, await at_rest(stage, show.pool)


async def _tasks(stage: Stage, paths: Sequence[str]) -> tuple[TaskShow, AtRest]:
    """The third part: durable tasks."""
    async with stage.crew() as crew:
        show = TaskShow(stage, crew)
        await show.cast()
        await show.act_submit(paths)
        await show.act_dead()
        await show.emptied()
        return show, await at_rest(stage, POOL)


def _judge(screen: Screen, show: Show, told: str, results: Sequence[Verdict], began: float) -> bool:
    for verdict in results:
        (screen.bad if verdict.findings else screen.good)(verdict.text)
    print_work(screen, show.drive.done, show.crew)
    print_latencies(screen, show.drive)
    ok = not any(verdict.findings for verdict in results)
    screen.last(final_line(told, results, time.monotonic() - began), ok=ok)
    return ok


def _spread(files: list[Path], limit: int | None) -> list[Path]:
    """At most `limit` files, spread evenly over the list."""
    if limit is None or limit >= len(files):
        return files
    return list(itertools.islice(files, 0, None, max(1, len(files) // limit)))[:limit]
