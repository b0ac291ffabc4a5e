"""A coordinator process that fails at an exact moment: `python -m bench.faults.leader --at batch ...`.

It prints `leads <seconds>` (CLOCK_MONOTONIC) when it leads, and `now <seconds>` just before it fails. Everything
that it published before has reached the server by then.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time

from bench.faults.seam import Moment, Seam, SeamBus
from gangline.bus.nats_bus import connect
from gangline.bus.port.bus import BucketSettings, Bus
from gangline.bus.settings.connection import ConnectionSettings
from gangline.cli.console.children import tied_to_parent
from gangline.cli.console.session import run
from gangline.coordinator.model.commits import CommitQueue
from gangline.coordinator.model.effects import LedgerWrite
from gangline.coordinator.service import Coordinator
from gangline.coordinator.settings.settings import CoordinatorSettings, ServiceSettings
from gangline.schemas.names import Names
from gangline.schemas.records.workers import Record
from gangline.telemetry.logs import configure_logging

ACCIDENTS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}


class Accident:
    """Happens once."""

    def __init__(self, bus: Bus, moment: Moment, nth: int, number: signal.Signals) -> None:
        self._bus = bus
        self._at = (moment, nth)
        self._number = number

    async def __call__(self, moment: Moment, nth: int) -> None:
        if (moment, nth) == self._at:
            await self._bus.flush()
            print(f"now {time.monotonic()!r}", flush=True)
            os.kill(os.getpid(), self._number)


def forget_the_fence() -> None:
    """A planted bug, to test that the scenarios find it: batches are not conditioned on `leader`."""

    def fenced(self: CommitQueue, key: str, record: Record | None, *, ttl_s: float | None = None) -> LedgerWrite:
        return LedgerWrite(key=key, record=record, ttl_s=ttl_s)

    CommitQueue.fenced = fenced  # type: ignore[method-assign]


async def serve(gang: str, moment: Moment, nth: int, number: signal.Signals, hold_s: float) -> None:
    bus = await connect(ConnectionSettings.from_environment(), name="gangline coordinator")
    seam = Seam(gang, Accident(bus, moment, nth, number))
    coordinator = Coordinator(
        bus=SeamBus(bus, seam),  # type: ignore[arg-type]
        names=Names(os.environ["GANGLINE_NAMESPACE"]),
        settings=CoordinatorSettings(hold_s=hold_s),
        shell=ServiceSettings(bucket=BucketSettings.from_environment()),
    )
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, gone.set)
    try:
        with tied_to_parent(gone.set):
            async with coordinator:
                leads = loop.create_task(coordinator.wait_leading())
                leads.add_done_callback(lambda _: print(f"leads {time.monotonic()!r}", flush=True))
                await gone.wait()
                leads.cancel()
    finally:
        await bus.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gang", required=True, help="the gang whose steps are counted")
    parser.add_argument("--at", type=Moment, required=True, choices=list(Moment))
    parser.add_argument("--nth", type=int, default=1)
    parser.add_argument("--accident", choices=sorted(ACCIDENTS), default="kill")
    parser.add_argument("--hold", type=float, default=2.0, help="seconds for which workers keep tentative slots")
    parser.add_argument("--unfenced", action="store_true", help="plant a bug: batches without a fence")
    given = parser.parse_args()
    if given.unfenced:
        forget_the_fence()
    configure_logging(level="info", fmt="json")
    run(serve(given.gang, given.at, given.nth, ACCIDENTS[given.accident], given.hold))


if __name__ == "__main__":
    main()
