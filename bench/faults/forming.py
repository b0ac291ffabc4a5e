"""How long it takes to form a gang, against one plain request and its answer in the same run."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any, Final

from bench.faults.crowd import crowd
from bench.faults.echo import SUBJECT
from bench.faults.figures import Report, Row
from bench.faults.site import SERVED, Site, opened
from gangline.bus.port import NoResponders
from gangline.dispatcher.operators import raise_if_error
from gangline.schemas import codec

PLAIN: Final = 20
"""Plain requests before each gang; their median is the unit."""
CROWD: Final = 1000
OURS: Final = {"ours": "yes"}


async def time_to_form(repetitions: int, report: Report) -> list[Row]:
    """8 members over 4 workers, the same among 1,000 more that it cannot use, and 64 members over 16."""
    rows: list[Row] = []
    async with _site(4, 2) as site:
        await _echo(site)
        rows += await _measured(site, "8 over 4", 8, 4, repetitions, report)
        async with crowd(site.ledger, site.names, SERVED, CROWD):
            await asyncio.sleep(3.0)  # until the coordinator has heard of all of them
            assert len(await site.client.workers(SERVED)) == CROWD + 4
            rows += await _measured(site, f"8 over 4 among {CROWD} more", 8, 4, repetitions, report)
        rows[0].broken += await site.judged()
    async with _site(16, 4) as site:
        await _echo(site)
        rows += await _measured(site, "64 over 16", 64, 16, repetitions, report)
        rows[-1].broken += await site.judged()
    return rows


def _site(workers: int, slots: int) -> Any:
    return opened(workers=workers, arguments=("--slots", str(slots), "--label", "ours=yes"))


async def _echo(site: Site) -> None:
    await site.start("echo", "bench.faults.echo")
    async with asyncio.timeout(30):
        while True:
            try:
                await site.bus.request(f"{site.names.namespace}.{SUBJECT}", b"x", timeout_s=1)
                return
            except NoResponders:
                await asyncio.sleep(0.05)


async def _measured(site: Site, name: str, size: int, over: int, repetitions: int, report: Report) -> list[Row]:
    times, ratios = Row(name=f"form {name}"), Row(name=f"form {name}, in plain round trips", unit="x")
    units = []
    for number in range(repetitions):
        unit = statistics.median([await _plain(site) for _ in range(PLAIN)])
        seconds = await _form(site, size, over)
        units.append(unit)
        times.samples.append(seconds)
        ratios.samples.append(seconds / unit)
        report(f"{times.name} {number + 1}: {seconds * 1000:.2f} ms, plain {unit * 1000:.2f} ms")
    times.note = f"one plain round trip {statistics.median(units) * 1000:.2f} ms"
    return [times, ratios]


async def _plain(site: Site) -> float:
    began = time.perf_counter()
    await site.bus.request(f"{site.names.namespace}.{SUBJECT}", b"x" * 100, timeout_s=5)
    return time.perf_counter() - began


async def _form(site: Site, size: int, over: int) -> float:
    """From the request to the answer that says formed; then given back."""
    wanted = {"pool": SERVED, "size": size, "strategy": "spread", "labels": OURS, "deadline_s": 20, "grace_s": 1}
    began = time.perf_counter()
    gang = await _ask(site, "acquire", wanted)
    seconds = time.perf_counter() - began
    assert gang["state"] == "formed" and len({seat["worker"] for seat in gang["seats"]}) == over, gang
    await _ask(site, "release", {"id": gang["id"], "owner_token": gang["owner_token"]})
    return seconds


async def _ask(site: Site, operation: str, body: dict[str, Any]) -> Any:
    subject = f"{site.names.namespace}.gang.{operation}"
    answer = await site.bus.request(subject, codec.to_json(body), timeout_s=30)
    raise_if_error(answer)
    return codec.from_json(answer.data)
