"""Gangs that compete for slots: no deadlock, and no gang starves under a flood of single calls."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from bench.faults.figures import Row
from bench.faults.site import SERVED, calling, opened
from bench.faults.trial import Trial
from gangline.coordinator.settings.settings import CoordinatorSettings
from gangline.schemas.errors.base import GanglineError
from gangline.testing.kit.processes import PATIENCE_S

ROUNDS: Final = 100
NAP_S: Final = 0.2
FLOOD: Final = 32
HOLD_S: Final = 0.5


async def two_on_three(trial: Trial, rounds: int = ROUNDS) -> list[Row]:
    """Two gangs of 2 on 3 slots, this many rounds per repetition; in each round both are requested at once."""
    row = Row(name="two gangs of 2 on 3 slots: both had run", target=10.0)
    async with opened(trial) as site:
        site.worker("--slots", "2")
        site.worker("--slots", "1")
        await site.served()
        inside = most = 0

        async def one() -> None:
            nonlocal inside, most
            async with site.gang(size=2, deadline_s=PATIENCE_S) as gang:
                inside += 1
                most = max(most, inside)
                assert [rank for rank, _, _ in await gang.options(timeout_s=PATIENCE_S).run("where")] == [0, 1]
                inside -= 1

        for number in range(trial.repetitions):
            for _ in range(rounds):
                began = time.monotonic()
                await asyncio.gather(one(), one())
                row.samples.append(time.monotonic() - began)
            trial.report(f"{row.name} {number + 1}: worst so far {row.worst:.3f} s")
        await site.at_rest()
        row.broken += await site.judged()
        if most > 1:
            row.broken.append(f"L1: {most} gangs of 2 had formed at once on 3 slots")
        row.note = f"{len(row.samples)} rounds, {len(site.audit.formed)} gangs"
    return [row]


async def eight_under_flood(trial: Trial) -> list[Row]:
    """Four workers of 2 slots are kept full by calls of 0.2 s, four times as many as slots; a gang wants all 8.

    The bound: `starve_after_s`, then the longest task, `keep_renew_s` and one hold; here with a margin for a loaded
    machine.
    """
    settings = CoordinatorSettings()
    bound = settings.starve_after_s + NAP_S + settings.keep_renew_s + HOLD_S
    row = Row(name="gang of 8 under a flood of calls: formed", target=bound + 1.0)
    calls = Row(name="calls of the flood meanwhile", unit="calls/s")
    async with opened(trial, workers=4) as site:
        served = 0
        errors: list[str] = []

        async def flood() -> None:
            nonlocal served
            try:
                await site.client.options(timeout_s=PATIENCE_S).call(f"{SERVED}.nap", NAP_S)
                served += 1
            except GanglineError as error:
                errors.append(f"a call of the flood failed: {error}")

        async with calling(flood, FLOOD):
            for number in range(trial.repetitions):
                so_far = served
                await site.until(lambda: served >= so_far + FLOOD, "the flood")  # noqa: B023
                began, before = time.monotonic(), served
                async with site.gang(size=8, strategy="pack", deadline_s=PATIENCE_S) as gang:
                    seconds = time.monotonic() - began
                    row.samples.append(seconds)
                    calls.samples.append((served - before) / seconds)
                    assert len(await gang.options(timeout_s=PATIENCE_S).run("where")) == 8
                trial.report(f"{row.name} {number + 1}: {seconds:.3f} s")
        await site.at_rest()
        row.broken += [*(await site.judged()), *errors[:3]]
        row.note = f"stated bound {bound:.1f} s; {served} calls served, {len(errors)} failed"
    return [row, calls]
