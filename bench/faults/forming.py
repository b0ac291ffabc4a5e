"""The time to form a gang, compared with one plain request and its answer in the same run."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from typing import Any, Final

from bench.faults.crowd import crowd
from bench.faults.echo import SUBJECT
from bench.faults.figures import Row
from bench.faults.site import SERVED, Site, opened
from bench.faults.trial import Trial
from gangline.bus.port.bus import NoResponders, StorageUnavailable
from gangline.testing.kit.processes import PATIENCE_S

PLAIN: Final = 20
"""Plain requests before each gang; their median is the unit."""
CROWD: Final = 1000
WORKERS: Final = 16
SETTLE_S: Final = 3.0
OURS: Final = {"ours": "yes"}


async def time_to_form(
    trial: Trial, more: int = CROWD, workers: int = WORKERS, settle_s: float = SETTLE_S
) -> list[Row]:
    """8 members over 4 workers, the same with 1,000 more workers that it cannot use, and 64 members over 16.

    Args:
        more: number of additional workers, instead of 1,000.
        workers: number of workers instead of 16, with 4 members each.
        settle_s: time until a coordinator knows all of them.
    """
    rows: list[Row] = []
    async with _site(trial, 4, 2) as site:
        await _echo(site)
        rows += await _measured(site, "8 over 4", 8, 4, trial)
        async with crowd(site.ledger, site.names, SERVED, more):

            async def heard() -> bool:
                with contextlib.suppress(StorageUnavailable):
                    return len(await site.client.workers(SERVED)) == more + 4
                return False

            await site.until(heard, "all workers are known", pause_s=0.2)
            await asyncio.sleep(settle_s)
            rows += await _measured(site, f"8 over 4 among {more} more", 8, 4, trial)
        rows[0].broken += await site.judged()
    async with _site(trial, workers, 4) as site:
        await _echo(site)
        rows += await _measured(site, f"{4 * workers} over {workers}", 4 * workers, workers, trial)
        rows[-1].broken += await site.judged()
    return rows


def _site(trial: Trial, workers: int, slots: int) -> Any:
    return opened(trial, workers=workers, arguments=("--slots", str(slots), "--label", "ours=yes"))


async def _echo(site: Site) -> None:
    site.start("echo", "bench.faults.echo")

    async def answers() -> bool:
        with contextlib.suppress(NoResponders):
            await site.bus.request(f"{site.names.namespace}.{SUBJECT}", b"x", timeout_s=PATIENCE_S)
            return True
        return False

    await site.until(answers, "the echo answers")


async def _measured(site: Site, name: str, size: int, over: int, trial: Trial) -> list[Row]:
    times, ratios = Row(name=f"form {name}"), Row(name=f"form {name}, in plain round trips", unit="x")
    units = []
    for number in range(trial.repetitions):
        unit = statistics.median([await _plain(site) for _ in range(PLAIN)])
        seconds = await _form(site, size, over)
        units.append(unit)
        times.samples.append(seconds)
        ratios.samples.append(seconds / unit)
        trial.report(f"{times.name} {number + 1}: {seconds * 1000:.2f} ms, plain {unit * 1000:.2f} ms")
    times.note = f"one plain round trip {statistics.median(units) * 1000:.2f} ms"
    return [times, ratios]


async def _plain(site: Site) -> float:
    began = time.perf_counter()
    await site.bus.request(f"{site.names.namespace}.{SUBJECT}", b"x" * 100, timeout_s=PATIENCE_S)
    return time.perf_counter() - began


async def _form(site: Site, size: int, over: int) -> float:
    """The time from the request to the answer `formed`; the gang is then released."""
    wanted = {"pool": SERVED, "size": size, "strategy": "spread", "labels": OURS, "grace_s": 1}
    began = time.perf_counter()
    gang = await site.ask_coordinator("acquire", {**wanted, "deadline_s": PATIENCE_S})
    seconds = time.perf_counter() - began
    assert gang["state"] == "formed" and len({seat["worker"] for seat in gang["seats"]}) == over, gang
    await site.ask_coordinator("release", {"id": gang["id"], "owner_token": gang["owner_token"]})
    return seconds
