"""Three nats-servers; the leader of the ledger's stream is killed while gangs are granted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from bench.faults.figures import Row
from bench.faults.site import SERVED, Site, opened
from bench.faults.trial import Trial
from gangline.bus.embedded.cluster import EmbeddedCluster
from gangline.bus.port.bus import NoResponders, RequestTimeout, StorageUnavailable
from gangline.schemas.errors.base import Disconnected, GanglineError
from gangline.schemas.records.gangs import GangRecord, GangState

T = TypeVar("T")
WORKERS: Final = 4
SIZE: Final = 4
GANGS: Final = 100
AT_ONCE: Final = 8
_AGAIN = (NoResponders, RequestTimeout, Disconnected, StorageUnavailable)


async def stream_leader_killed(trial: Trial, gangs: int = GANGS) -> list[Row]:
    """In each repetition 100 gangs of 4 are acquired, a few at a time, and released; the stream's leader is killed
    after the first fifth. No gang may be partial, and every gang reported as granted must be in the ledger."""
    pause = Row(name="stream leader killed: longest wait for a gang", target=30.0)
    for number in range(trial.repetitions):
        async with (
            EmbeddedCluster(3) as servers,
            opened(
                trial,
                workers=WORKERS,
                coordinators=2,
                url=",".join(servers.urls),
                replicas=3,
                arguments=("--slots", "4"),
            ) as site,
        ):
            waits, broken = await _granted(site, servers, gangs)
            pause.samples.append(max(waits))
            pause.broken += [*broken, *(await site.judged())]
            never = [f"g{each}" for each in range(gangs) if not site.audit.formed.get(f"g{each}")]
            pause.broken += [f"reported as granted, and never in the ledger: {never}"] if never else []
            pause.note = f"{len(waits)} gangs reported as granted; {site.read}"
            trial.report(f"{pause.name} {number + 1}: {max(waits):.3f} s {pause.note}")
    return [pause]


async def _granted(site: Site, servers: EmbeddedCluster, gangs: int) -> tuple[list[float], list[str]]:
    granted: list[float] = []
    broken: list[str] = []
    first = gangs // 5
    room, struck = asyncio.Semaphore(AT_ONCE), asyncio.Event()

    async def one(number: int) -> None:
        if number >= first + AT_ONCE:
            await struck.wait()
        async with room:
            seconds, wrong = await _grant(site, f"g{number}")
            granted.append(seconds)
            broken.extend(wrong)

    async with asyncio.TaskGroup() as group:
        for number in range(gangs):
            group.create_task(one(number))
        await site.until(lambda: len(granted) >= first, "the first gangs")
        stream = await site.stream_info(f"KV_{site.names.ledger_bucket}")
        servers.server(stream["cluster"]["leader"]).kill()
        struck.set()
    try:
        await site.at_rest()
    except TimeoutError as error:
        broken.append(str(error))
    return granted, broken


async def _grant(site: Site, gang_id: str) -> tuple[float, list[str]]:
    """Acquire, check the ledger, release, with plain requests that are repeated until they are answered."""
    owned = {"id": gang_id, "owner_token": f"t-{gang_id}"}
    began = time.monotonic()
    wanted = {"pool": SERVED, "size": SIZE, "strategy": "spread", "ttl_s": 120, "grace_s": 1, **owned}
    gang = await _patiently(lambda: site.ask_coordinator("acquire", wanted, timeout_s=5))
    seconds = time.monotonic() - began
    entry = await _patiently(lambda: site.ledger.get(site.names.gang_key(gang_id)))
    stands = None if entry is None else GangRecord.model_validate_json(entry.value)
    wrong = []
    if stands is None or stands.state is not GangState.FORMED or stands.generation < gang["generation"]:
        wrong.append(f"{gang_id} was reported as granted, and the ledger says {stands}")
    await _patiently(lambda: site.ask_coordinator("release", owned, timeout_s=5))
    return seconds, wrong


async def _patiently(ask: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await ask()
        except GanglineError as error:
            if not isinstance(error, _AGAIN) and error.code != "no_coordinator":
                raise
            await asyncio.sleep(0.1)
