"""Long tasks: started once, not overwritten by a frozen worker, and not hoarded."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Final

from bench.faults.figures import Row
from bench.faults.site import QUEUE, tasks_opened
from bench.faults.trial import Trial
from gangline.testing.kit.processes import PATIENCE_S

LONG_S: Final = 90.0
FROZEN_S: Final = 60.0
SHORT_S: Final = 0.5
SHORTS: Final = 7


async def long_task(trial: Trial) -> list[Row]:
    """A task of 90 s with default settings starts exactly once."""
    row = Row(name=f"a task of {LONG_S:g} s: submitted to done", target=LONG_S + 1.0)
    async with tasks_opened(trial, workers=2) as site:
        began = time.monotonic()
        jobs = await site.squares(1, LONG_S, first=7)
        row.broken += await site.check_squares(jobs, first=7)
        row.samples.append(time.monotonic() - began)
        starts = len(site.runs())
        row.broken += [f"L10: it was started {starts} times"] if starts != 1 else []
        row.note = f"started {starts} time(s)"
        trial.report(f"{row.name}: {row.samples[-1]:.3f} s, {row.note}")
    return [row]


async def frozen_worker(trial: Trial) -> list[Row]:
    """A worker is frozen for 60 s with a task, which runs elsewhere meanwhile; its answer afterwards is ignored."""
    row = Row(name="worker frozen: its task starts elsewhere", target=5.0)
    async with tasks_opened(trial, workers=2, arguments=("--slots", "1")) as site:
        job = await site.client.submit(f"{QUEUE}.who", seconds=4.0)
        await site.until(site.runs, "it runs")
        victim = site.started[site.runs()[0].worker]
        at = time.monotonic()
        victim.signal(signal.SIGSTOP)
        row.samples.append(await site.started_after(at) - at)
        first = await job.result(timeout_s=PATIENCE_S)
        await asyncio.sleep(max(0.0, at + FROZEN_S - time.monotonic()))
        victim.signal(signal.SIGCONT)
        await site.until(lambda: not site.interrupted(victim), "the zombie ends as well")
        await asyncio.sleep(1.0)  # time for its answer to cause damage
        again = await job.result(timeout_s=PATIENCE_S)
        if (first, again) != (2, 2):
            row.broken.append(f"the result was {first!r} (of attempt 2), and is {again!r} after the zombie spoke")
        row.note = f"the result is of attempt {again}, before and after {FROZEN_S:g} s"
        trial.report(f"{row.name}: {row.samples[-1]:.3f} s, {row.note}")
    return [row]


async def no_hoarding(trial: Trial, short_s: float = SHORT_S) -> list[Row]:
    """Two workers of one slot; one long task and seven short ones of a seventh each: the total time, compared with
    the best possible. The long task does not end before the short ones, so a short one queued behind it would wait
    forever."""
    row = Row(name="one long and seven short: over the ideal", unit="%", target=5.0)
    ideal = SHORTS * short_s
    for number in range(trial.repetitions):
        async with tasks_opened(trial, workers=2, arguments=("--slots", "1")) as site:
            warm = await site.squares(2, 0.01)
            row.broken += await site.check_squares(warm, slots=1)
            began = time.monotonic()
            long = await site.squares(1, ideal, first=100, held_from=0)
            short = await site.squares(SHORTS, short_s, first=101)
            row.broken += await site.check_squares(short, first=101, slots=1)
            site.let_go()
            row.broken += await site.check_squares(long, first=100, slots=1)
            row.samples.append(100 * ((time.monotonic() - began) / ideal - 1))
            row.broken += site.started_twice()
            trial.report(f"{row.name} {number + 1}: {row.samples[-1]:.1f} %")
    return [row]
