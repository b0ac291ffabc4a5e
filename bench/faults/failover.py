"""The leading coordinator is killed at each step of a grant and of a teardown, while another gang keeps running."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any, Final

from bench.faults.figures import Row
from bench.faults.seam import Moment
from bench.faults.site import Site, opened
from bench.faults.trial import Trial
from gangline.schemas.records.gangs import GangState
from gangline.testing.kit.processes import PATIENCE_S, ChildProcess

WORKERS: Final = 4
SIZE: Final = 4
BYSTANDERS: Final = 2
TARGET_S: Final = 5.0
RIGHT_S: Final = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A moment at which the leader is killed."""

    name: str
    moment: Moment
    nth: int = 1

    @property
    def ending(self) -> bool:
        """It is during the teardown of the gang."""
        return self.moment in (Moment.CLOSE, Moment.CLOSED, Moment.TEARDOWN)


DEATHS: Final = (
    Death(name="before the holds", moment=Moment.HOLD),
    Death(name="between the holds", moment=Moment.HOLD, nth=3),
    Death(name="before the batch", moment=Moment.BATCH),
    Death(name="after the batch, before the broadcast", moment=Moment.GRANTED),
    Death(name="when half of the members are told", moment=Moment.FORM, nth=3),
    Death(name="before the batch that ends it", moment=Moment.CLOSE),
    Death(name="after the batch that ends it", moment=Moment.CLOSED),
    Death(name="when half of the members are stopped", moment=Moment.TEARDOWN, nth=3),
)


async def leader_killed(trial: Trial, deaths: tuple[Death, ...] = DEATHS) -> list[Row]:
    """Kill one leader after the other, each at its own moment of its own gang; the next one is already standing by.

    A gang of two runs all the time, and its members meet fifty times a second.
    """
    over = {death: Row(name=f"leader killed {death.name}: next one serves", target=TARGET_S) for death in deaths}
    back = {death: Row(name=f"leader killed {death.name}: gang and slots right", target=RIGHT_S) for death in deaths}
    undisturbed = Row(name="a gang that runs through all of it: longest pause")
    plan = [(death, number) for number in range(trial.repetitions) for death in deaths]
    async with opened(trial, workers=WORKERS, coordinators=0) as site:
        leader = _armed(site, *plan[0])
        await site.led()
        until = site.folder / "enough"
        async with site.gang("bystander", size=BYSTANDERS, ttl_s=PATIENCE_S, deadline_s=PATIENCE_S) as bystander:
            pulse = asyncio.ensure_future(bystander.run("pulse", str(until)))
            for place, (death, number) in enumerate(plan):
                following = plan[place + 1] if place + 1 < len(plan) else None
                standby = site.coordinator() if following is None else _armed(site, *following)
                await site.until(lambda: "coordinator.started" in standby.actions(), "a standby")  # noqa: B023
                served, right = await _once(site, leader, death, f"victim-{death.moment}-{death.nth}-{number}")
                over[death].samples.append(served)
                back[death].samples.append(right)
                trial.report(f"{death.name} {number + 1}: served after {served:.3f} s, all right after {right:.3f} s")
                leader = standby
            until.touch()
            beats = await pulse
            assert bystander.generation == 1 and bystander.restarts == 0, "L8: the bystander was disturbed"
            undisturbed.samples += [worst for _, worst in beats]
            undisturbed.note = f"{beats[0][0]:.0f} meetings, generation 1"
        await site.at_rest()
        undisturbed.broken += await site.judged()
        undisturbed.note += f"; {site.read}"
    return [*over.values(), *back.values(), undisturbed]


def _armed(site: Site, death: Death, number: int) -> ChildProcess:
    return site.armed(f"victim-{death.moment}-{death.nth}-{number}", death.moment, death.nth)


async def _once(site: Site, leader: ChildProcess, death: Death, gang_id: str) -> tuple[float, float]:
    """How long until the next one served, and until the gang was as its owner wants it, with its slots."""
    owning = asyncio.ensure_future(_own(site, gang_id))
    try:
        await site.until(lambda: leader.said("now") is not None, f"the accident {death.name}")
        killed = leader.said("now") or 0.0
        await site.kill(leader)
        served = await site.led()
        right = await owning
    finally:
        owning.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await owning
    return served - killed, right - killed


async def _own(site: Site, gang_id: str) -> float:
    """Acquire it, run on it, and release it, like any owner. Returns when all was right.

    For a kill during the teardown that is when every slot was free, else when the members had answered.
    """
    async with site.gang(gang_id, size=SIZE, deadline_s=PATIENCE_S) as gang:
        results: list[Any] = await gang.options(timeout_s=PATIENCE_S, retries=1).run("where")
        assert [rank for rank, _, _ in results] == list(range(SIZE)), f"{gang_id} answered {results}"
        formed = time.monotonic()
    rested = await site.at_rest(BYSTANDERS)
    await site.until(lambda: site.audit.states.get(gang_id) is GangState.ENDED, f"{gang_id} ended")
    return rested if "teardown" in gang_id or "close" in gang_id else formed
