"""A leader is frozen in the instant before it writes, overtaken, and continued: its writes must be refused (L9)."""

from __future__ import annotations

import asyncio
import signal
import time

from bench.faults.figures import Report, Row
from bench.faults.seam import Moment
from bench.faults.site import Site, opened
from gangline.bus.port import KvEntry
from gangline.schemas.gangs import GangState
from gangline.schemas.names import Names

SIZE = 4


async def two_leaders(repetitions: int, report: Report) -> list[Row]:
    """The batch of the first one was decided, and not sent, when it froze. It is sent as soon as it goes on."""
    rows = [
        Row(name="deposed leader grants: until it knows", target=5.0),
        Row(name="deposed leader ends a gang: until it knows", target=5.0),
    ]
    async with opened(workers=SIZE, coordinators=0) as site:
        for number in range(repetitions):
            for row, moment in zip(rows, (Moment.BATCH, Moment.CLOSE), strict=True):
                seconds, broken = await _once(site, f"{moment}-{number}", moment)
                row.samples.append(seconds)
                row.broken += broken
                report(f"{row.name} {number + 1}: {seconds:.3f} s {broken}")
        rows[0].broken += await site.judged()
        rows[0].note = site.read
    return rows


async def _once(site: Site, gang_id: str, moment: Moment) -> tuple[float, list[str]]:
    """Seconds from going on until it stepped down, and what was broken."""
    first = await site.armed(gang_id, moment, accident="freeze")
    await site.led()
    second = await site.coordinator()
    await site.until(lambda: "coordinator.started" in second.actions(), "a standby")
    ganging = site.gang(gang_id, size=SIZE, deadline_s=30)
    tries: list[KvEntry] = []
    watch = await site.ledger.observe(Names.gang_key(gang_id), tries.append)
    try:
        gang = await ganging.__aenter__()
        if moment is Moment.CLOSE:
            await gang.release()
            await site.until(lambda: site.audit.states.get(gang_id) is GangState.ENDED, "ended by the other one")
        assert first.told("now") is not None and "coordinator.leads" in second.actions(), "overtaken"
        before = await site.ledger.get(Names.gang_key(gang_id))
        tries.clear()
        went_on = time.monotonic()
        first.signal(signal.SIGCONT)
        await site.until(lambda: "coordinator.yields" in first.actions(), "the first one knows")
        knew = time.monotonic() - went_on
        await asyncio.sleep(0.5)
        broken = [] if await site.ledger.get(Names.gang_key(gang_id)) == before else [f"L9: both wrote {gang_id}"]
        assert tries, "the first one never tried to write, so nothing was proven"
        await ganging.__aexit__(None, None, None)
        await site.at_rest(within_s=20)
    finally:
        await watch.unsubscribe()
        for process in (first, second):
            await site.kill(process)
    return knew, broken
