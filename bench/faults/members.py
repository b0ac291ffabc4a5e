"""A member's process is killed or frozen: how soon are the others told, and do all slots come back?"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from typing import Literal

from bench.faults.figures import Row
from bench.faults.site import Site, opened
from bench.faults.trial import Trial
from gangline.schemas.errors.base import GanglineError
from gangline.testing.kit.processes import PATIENCE_S, ChildProcess
from gangline.testing.kit.records import NEVER

SIZE = 4
TARGET_S = {"killed": 1.0, "frozen": 4.0}


async def member_lost(trial: Trial, how: Literal["killed", "frozen"]) -> list[Row]:
    """A gang of 4 over 4 workers; a random one is killed (frozen), at any phase of the pings."""
    told = Row(name=f"member {how}: teardown event", target=TARGET_S[how])
    stopped = Row(name=f"member {how}: last other member stopped", target=TARGET_S[how] + 1.0)
    back = Row(name=f"member {how}: every slot back", target=TARGET_S[how] + 2.0)
    async with opened(trial, workers=SIZE) as site:
        for number in range(trial.repetitions):
            times = await _once(site, f"{how}-{number}", how)
            for row, seconds in zip((told, stopped, back), times, strict=True):
                row.samples.append(seconds)
            said = f"{times[0]:.3f} s, stopped {times[1]:.3f} s, slots {times[2]:.3f} s"
            trial.report(f"{told.name} {number + 1}: {said}")
        told.broken += await site.judged()
        reasons = {event.reason.rpartition(": ")[2] for _, event in site.events if event.kind == "torn_down"}
        told.note = f"found out by: {', '.join(sorted(reasons))}; {site.read}"
    return [told, stopped, back]


async def _once(site: Site, gang_id: str, how: str) -> tuple[float, float, float]:
    async with site.gang(gang_id, size=SIZE, strategy="strict_spread", deadline_s=PATIENCE_S, restart="fail") as gang:
        running = asyncio.ensure_future(gang.run("stay"))
        await site.until(lambda: len(site.members(gang_id)) == SIZE, "all members run")
        await asyncio.sleep(random.random() * 0.6)
        rank = random.randrange(SIZE)
        victim = site.workers[gang.members[rank].worker.partition(".")[2]]
        began = time.monotonic()
        await _strike(site, victim, how)
        torn_down, event = await site.event("torn_down", gang_id)
        assert event.rank == rank and event.generation == 1, f"rank {rank} was struck, and the event is {event}"
        with contextlib.suppress(GanglineError):
            await running

        def stops() -> list[float]:
            return [run.ended for other, run in site.members(gang_id).items() if other != rank and run.ended < NEVER]

        await site.until(lambda: len(stops()) == SIZE - 1, "the others stop")
        stopped = max(stops())
        await site.event("ended", gang_id)
    if how == "frozen":
        victim.signal(signal.SIGCONT)
    rested = await site.at_rest()
    if how == "killed":
        site.worker()
        await site.served()
    return torn_down - began, stopped - began, rested - began


async def _strike(site: Site, victim: ChildProcess, how: str) -> None:
    if how == "killed":
        await site.kill(victim)
    else:
        victim.signal(signal.SIGSTOP)
