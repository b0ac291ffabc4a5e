"""A leader is frozen just before it writes, overtaken, and continued: its writes must be refused (L9).

A grant is also conditioned on the registrations of its workers. These are written again when a hold runs out, and
regularly. So holds are long here, workers write only changes, and only attempts in which no registration changed
count: then nothing but the condition on `leader` can refuse the deposed leader's writes.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from typing import Final

from bench.faults.figures import Row
from bench.faults.seam import Moment
from bench.faults.site import Site, opened
from bench.faults.trial import Trial
from gangline.bus.port.bus import KvEntry
from gangline.schemas.names import Names
from gangline.schemas.records.gangs import GangState
from gangline.testing.kit.processes import PATIENCE_S

SIZE = 4
MOMENTS: Final = {Moment.BATCH: "grants", Moment.CLOSE: "ends a gang"}
_HOLD_S: Final = 50.0
_TRIES: Final = 6
"""On a very busy machine a frozen worker writes its registration, and a leader may lose its leadership too early."""


async def two_leaders(trial: Trial, moments: Sequence[Moment] = tuple(MOMENTS), *, unfenced: bool = False) -> list[Row]:
    """The first leader's batch was decided, but not sent, when it froze. It is sent as soon as it continues.

    Args:
        unfenced: plant a bug, which must be found: the first leader's batches are not conditioned on `leader`.
    """
    rows = [Row(name=f"deposed leader {MOMENTS[moment]}: until it knows", target=5.0) for moment in moments]
    async with opened(trial, workers=SIZE, coordinators=0, module="bench.faults.steady_worker") as site:
        for number in range(trial.repetitions):
            for row, moment in zip(rows, moments, strict=True):
                for attempt in range(_TRIES):
                    seconds, broken, alone = await _once(site, f"{moment}-{number}-{attempt}", moment, unfenced)
                    row.broken += broken
                    trial.report(f"{row.name} {number + 1}: {seconds:.3f} s {broken} {'' if alone else '(once more)'}")
                    if alone:
                        break
                else:
                    row.broken.append("every attempt was disturbed, so the condition on leader was not tested")
                row.samples.append(seconds)
        rows[0].broken += await site.judged()
        rows[0].note = site.read
    return rows


async def _once(site: Site, gang_id: str, moment: Moment, unfenced: bool) -> tuple[float, list[str], bool]:
    """Seconds from its continuation until it stepped down, broken laws, and whether only the condition on `leader`
    could have refused its writes."""
    more = ("--hold", str(_HOLD_S), *(("--unfenced",) if unfenced else ()))
    first = site.armed(gang_id, moment, 1, "freeze", *more)
    await site.led()
    second = site.coordinator()
    await site.until(lambda: "coordinator.started" in second.actions(), "a standby")
    registered = await _registrations(site)
    ganging = site.gang(gang_id, size=SIZE, deadline_s=PATIENCE_S)
    tries: list[KvEntry] = []
    watch = await site.ledger.observe(Names.gang_key(gang_id), tries.append)
    try:
        gang = await ganging.__aenter__()
        if moment is Moment.CLOSE:
            await gang.release()
            await site.until(lambda: site.audit.states.get(gang_id) is GangState.ENDED, "ended by the other one")
        if first.said("now") is None:  # it no longer led at that moment: on a busy machine it may renew too late
            await ganging.__aexit__(None, None, None)
            await site.at_rest()
            return 0.0, [], False
        assert "coordinator.leads" in second.actions(), "overtaken"
        before = await site.ledger.get(Names.gang_key(gang_id))
        tries.clear()
        went_on = time.monotonic()
        first.signal(signal.SIGCONT)
        await site.until(lambda: "coordinator.yields" in first.actions(), "the first one knows")
        knew = time.monotonic() - went_on
        await site.until(lambda: tries, "the first one tries to write")

        async def written() -> bool:
            return await site.ledger.get(Names.gang_key(gang_id)) != before

        async def written_or_void() -> bool:
            return await written() or await _registrations(site) != registered

        if unfenced:
            await site.until(written_or_void, "the first one writes")
        else:
            await asyncio.sleep(0.5)  # time for its write to cause damage
        broken = [f"L9: both wrote {gang_id}"] if await written() else []
        # The end of members is conditioned only on leader.
        alone = moment is Moment.CLOSE or await _registrations(site) == registered
        await ganging.__aexit__(None, None, None)
        await site.at_rest()
    finally:
        await watch.unsubscribe()
        for process in (first, second):
            await site.kill(process)
    return knew, broken, alone


async def _registrations(site: Site) -> dict[str, int]:
    """Revisions by key."""
    return {entry.key: entry.revision for entry in await site.ledger.entries(site.names.registrations_of())}
