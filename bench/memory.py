"""`python -m bench.memory`: checks that memory does not grow, before and after a million calls and 100,000 leases.

It measures the resident memory of a client, a worker and the server, each in its own process, and the size of the
ledger's stream. The first 70 s of each load are not counted: a worker keeps its answers for a minute, in case they are
requested again, and the ledger keeps deletion markers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from bench.peers.store import save
from gangline.bench.process import Child
from gangline.bench.resting import ledger_stream, resident_mb
from gangline.bench.site import Site, opened
from gangline.cli.console.session import run as run_loop

CALLS: Final = 1_000_000
LEASES: Final = 100_000
_CONCURRENCY: Final = 64
_SECONDS: Final = 5.0
"""Requests per part, so that no request of the bench waits long."""
_WARM_S: Final = 70.0
_SETTLE_S: Final = 15.0
"""Pause before each measurement. Longer than deletion markers are kept in the ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Megabytes of each process, and the ledger."""

    client_mb: float
    worker_mb: float
    server_mb: float
    ledger_messages: int
    ledger_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """One kind of load."""

    what: str
    count: int
    """Number of repetitions between the two measurements."""
    before: Footprint
    after: Footprint
    seconds: float


async def course(site: Site, what: str, count: int, report: Callable[[str], None]) -> Course:
    """Run the load this often, and for a while beforehand."""
    pool = f"memory-{what}"
    worker = await site.worker(pool, 512)
    client = await site.client(pool)
    report(f"{what}: {_WARM_S:g} s that are not counted")
    for _ in range(round(_WARM_S / _SECONDS)):
        await client.ask("closed", what=what, concurrency=_CONCURRENCY, seconds=_SECONDS)
    await asyncio.sleep(_SETTLE_S)
    before = await _footprint(site, client, worker)
    report(f"{what}: before {before}")
    done, seconds = await _do(client, what, count, report)
    await asyncio.sleep(_SETTLE_S)
    after = await _footprint(site, client, worker)
    report(f"{what}: after {after}")
    return Course(what=what, count=done, before=before, after=after, seconds=seconds)


async def _do(client: Child, what: str, count: int, report: Callable[[str], None]) -> tuple[int, float]:
    done, seconds = 0, 0.0
    while done < count:
        part = await client.ask("closed", what=what, concurrency=_CONCURRENCY, seconds=_SECONDS)
        done, seconds = done + part["count"], seconds + part["seconds"]
        report(f"{what}: {done} of {count}, {part['count'] / part['seconds']:.0f}/s")
    return done, seconds


async def _footprint(site: Site, client: Child, worker: Child) -> Footprint:
    ledger = await ledger_stream(site.monitoring)
    return Footprint(
        client_mb=round(resident_mb(client.pid), 1),
        worker_mb=round(resident_mb(worker.pid), 1),
        server_mb=round(resident_mb(site.server_pid), 1),
        ledger_messages=ledger["messages"],
        ledger_bytes=ledger["bytes"],
    )


async def run(calls: int, leases: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Both loads, one after the other on one server."""
    async with opened() as site:
        courses = [await course(site, "call", calls, report), await course(site, "lease_cycle", leases, report)]
        return {"courses": [asdict(one) for one in courses], "nats-server": site.server_version}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--leases", type=int, default=LEASES)
    given = parser.parse_args()
    found = run_loop(run(given.calls, given.leases, lambda line: print(line, flush=True)))
    save("memory", found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
