"""Standing gangs under load: a member dies, and all gangs are replaced one by one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from bench.faults.figures import Row
from bench.faults.site import Site, calling, opened
from bench.faults.trial import Trial
from gangline.schemas.errors.base import GanglineError
from gangline.schemas.records.gangs import GangRecord, GangState
from gangline.testing.kit.processes import PATIENCE_S, ChildProcess

SET: Final = "llm"
GANGS: Final = 3
CALLERS: Final = 6
NAP_S: Final = 0.01


@dataclass(slots=True, kw_only=True)
class Load:
    """The results of callers of the set."""

    times: list[tuple[float, float]] = field(default_factory=list)
    """End and duration of each successful call."""
    errors: list[tuple[float, GanglineError]] = field(default_factory=list)

    def between(self, since: float, until: float) -> list[float]:
        return [seconds for at, seconds in self.times if since <= at < until]


async def member_killed(trial: Trial, watched_s: float = 5.0) -> list[Row]:
    """Three gangs of 2 serve calls; a worker of one of them is killed. Only calls on that gang may fail.

    The gangs have no backoff, because it would grow with the repetitions.

    Args:
        watched_s: minimum time after each kill during which calls are counted.
    """
    before = Row(name="standing gangs: call before a member dies", target=1.0)
    after = Row(name="standing gangs: call in the seconds after", target=2.0)
    again = Row(name="standing gangs: all gangs stand again", target=10.0)
    failed = 0
    async with opened(trial, workers=8) as site:
        async with _under_load(site) as load:
            for number in range(trial.repetitions):
                began, so_far = time.monotonic(), len(load.times)
                await site.until(lambda: len(load.times) >= so_far + 10 * CALLERS, "calls")  # noqa: B023
                victim, gang = await _member(site)
                killed = time.monotonic()
                await site.kill(victim)
                site.worker()
                _, torn_down = await site.event("torn_down", gang, since=killed)
                stood, formed = await site.event("formed", gang, since=killed)
                assert formed.generation > torn_down.generation, f"L8: {formed} after {torn_down}"
                again.samples.append(stood - killed)
                await _all_stand(site)
                await asyncio.sleep(max(0.0, killed + watched_s - time.monotonic()))
                before.samples += load.between(began, killed)
                after.samples += load.between(killed, time.monotonic())
                wrong = [error for at, error in load.errors if at >= killed]
                failed += len(wrong)
                foreign = [str(error) for error in wrong if gang not in str(error) and victim.name not in str(error)]
                after.broken += [f"a caller of another gang than {gang} saw: {text}" for text in foreign[:3]]
                if len(wrong) > CALLERS:
                    after.broken.append(f"{len(wrong)} calls failed, more than could run on one gang")
                said = f"{again.samples[-1]:.3f} s, {len(wrong)} calls of its own failed"
                trial.report(f"{again.name} {number + 1}: {said}")
        after.broken += await site.judged()
        after.note = f"{len(load.times)} calls; {failed} failed, all of the gang that died" if not after.broken else ""
    return [before, after, again]


async def all_replaced(trial: Trial) -> list[Row]:
    """The declaration changes, so every gang is replaced by a new one; no call may fail."""
    row = Row(name="standing gangs: all replaced under load", target=60.0)
    calls = Row(name="standing gangs: call meanwhile", target=2.0)
    async with opened(trial, workers=8) as site:
        async with _under_load(site) as load:
            for number in range(trial.repetitions):
                old = {record.id for record in await _gangs(site)}
                began = time.monotonic()
                await _declare(site, number + 1)

                async def gone() -> bool:
                    return not {record.id for record in await _gangs(site)} & old  # noqa: B023

                await site.until(gone, "the old gangs are gone")
                await _all_stand(site)
                row.samples.append(time.monotonic() - began)
                calls.samples += load.between(began, time.monotonic())
                trial.report(f"{row.name} {number + 1}: {row.samples[-1]:.3f} s, {len(load.errors)} errors")
        calls.broken += [*(await site.judged()), *(f"a call failed: {error!r}" for _, error in load.errors[:3])]
        calls.note = f"{len(load.times)} calls, {len(load.errors)} failed"
    return [row, calls]


@contextlib.asynccontextmanager
async def _under_load(site: Site) -> AsyncIterator[Load]:
    """The set is declared and ready; callers call it without a pause."""
    await _declare(site, 0)
    await _all_stand(site)
    load, client = Load(), site.client.options(timeout_s=PATIENCE_S, idempotent=False)

    async def once() -> None:
        began = time.monotonic()
        try:
            await client.call(f"{SET}.nap", NAP_S)
            load.times.append((time.monotonic(), time.monotonic() - began))
        except GanglineError as error:
            load.errors.append((time.monotonic(), error))

    try:
        async with calling(once, CALLERS):
            yield load
    finally:
        await site.ledger.delete(site.names.gangset_key(SET))
        await site.at_rest()


async def _declare(site: Site, priority: int) -> None:
    text = (
        f'{{"gangs": {GANGS}, "retire_s": 0.5, "gang": {{"pool": "train", "size": 2, "strategy": "spread",'
        f' "grace_s": 2.0, "backoff_s": 0, "priority": {priority}}}}}'
    )
    await site.ledger.put(site.names.gangset_key(SET), text.encode())


async def _gangs(site: Site) -> list[GangRecord]:
    records = [
        GangRecord.model_validate_json(entry.value) for entry in await site.ledger.entries(site.names.gang_key())
    ]
    return [record for record in records if record.gangset == SET and record.state is not GangState.ENDED]


async def _all_stand(site: Site) -> None:
    async def stand() -> bool:
        return [record.state for record in await _gangs(site)] == [GangState.FORMED] * GANGS

    await site.until(stand, "all gangs stand", pause_s=0.05)


async def _member(site: Site) -> tuple[ChildProcess, str]:
    """The worker of a member of some gang that no other gang shares."""
    records = await _gangs(site)
    for record in records:
        others = {seat.worker for other in records if other.id != record.id for seat in other.seats}
        for seat in record.seats:
            if seat.worker not in others:
                return site.workers[seat.worker], record.id
    raise AssertionError("every worker has members of several gangs")
