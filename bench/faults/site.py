"""A nats-server, worker and coordinator processes, an observer, and a client, for one scenario."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.faults.audit import Audit
from bench.faults.crew import PATIENCE_S, Crew, Launch, Process
from bench.faults.history import kept
from bench.faults.streams import last_revision
from bench.faults.tasks import note
from bench.faults.trial import Trial
from gangline.bus.embedded.server import EmbeddedServer
from gangline.bus.nats_bus import NatsBus
from gangline.bus.nats_bus import connect as connect_bus
from gangline.bus.port.bus import BucketSettings, KeyValue, Message, StorageUnavailable
from gangline.bus.settings.connection import ConnectionSettings
from gangline.dispatcher.calls.call import CallOptions
from gangline.dispatcher.client.client import Client
from gangline.dispatcher.gangs.gang import GangAcquisition
from gangline.dispatcher.routing.settings import RouterSettings
from gangline.schemas.errors.base import GanglineError
from gangline.schemas.messages.gangs import GangEvent
from gangline.schemas.names import Names

POOL = "bench.faults.tasks:pool"
SERVED = "train"


class Site(Crew):
    """Created by `opened`. Every process it started is stopped when that ends."""

    def __init__(self, launch: Launch, url: str, namespace: str, folder: Path, bucket: BucketSettings) -> None:
        environment = {
            "NATS_URL": url,
            "GANGLINE_NAMESPACE": namespace,
            "GANGLINE_STORAGE": bucket.storage.value,
            "GANGLINE_REPLICAS": str(bucket.replicas),
        }
        super().__init__(launch, folder, environment)
        self.url = url
        self.names = Names(namespace)
        self.bucket = bucket
        self.audit = Audit()
        self.workers: dict[str, Process] = {}
        """The running workers that serve."""
        self.events: list[tuple[float, GangEvent]] = []
        """Events with the time of their arrival."""
        self.bus: NatsBus
        self.ledger: KeyValue
        self.client: Client
        self._news = asyncio.Event()
        self._numbers = itertools.count(1)

    # -- processes ---------------------------------------------------------------------------------------------------

    def worker(self, *arguments: str, module: str = "gangline.cli") -> Process:
        """Start a worker on a node of its own, with a new name. It serves some time later: see `served`."""
        name = f"w{next(self._numbers)}"
        given = ("worker", POOL, "--id", name, "--node", name, *arguments)
        self.workers[name] = made = self.start(name, module, *given)
        return made

    def coordinator(self) -> Process:
        return self.start(f"coordinator{next(self._numbers)}", "gangline.cli", "coordinator", "--log-format", "json")

    def armed(self, gang: str, moment: str, nth: int = 1, accident: str = "kill", *more: str) -> Process:
        """Start a coordinator that fails at that moment of that gang; `more`: see bench.faults.leader."""
        arguments = ("--gang", gang, "--at", moment, "--nth", str(nth), "--accident", accident, *more)
        return self.start(f"coordinator{next(self._numbers)}", "bench.faults.leader", *arguments)

    async def kill(self, process: Process) -> None:
        self.workers.pop(process.name, None)
        await super().kill(process)

    # -- waiting -----------------------------------------------------------------------------------------------------

    async def served(self) -> None:
        """Wait until all started workers are alive."""

        async def serve() -> bool:
            with contextlib.suppress(StorageUnavailable):  # a cluster that has just started
                living = {info.registration.worker for info in await self.client.workers(SERVED)}
                return set(self.workers) <= living
            return False

        await self.until(serve, "all workers serve", pause_s=0.05)

    async def led(self) -> float:
        """Wait until a coordinator leads and answers; returns when that was."""

        async def answers() -> bool:
            with contextlib.suppress(GanglineError):
                await self.bus.request(f"{self.names.namespace}.gang.list", b"", timeout_s=0.5)
                return True
            return False

        await self.until(answers, "a coordinator leads", pause_s=0.01)
        return time.monotonic()

    async def event(self, kind: str, gang: str, *, since: float = 0.0) -> tuple[float, GangEvent]:
        """Wait for the first such event of that gang since then; returns it and when it arrived."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for found in self.events:
                    if found[1].kind == kind and found[1].gang == gang and found[0] >= since:
                        return found
                self._news.clear()
                await self._news.wait()

    async def at_rest(self, expected: int = 0) -> float:
        """Wait until all workers together report this many slots in use; returns when that was.

        Every worker must have answered, including those that do not serve yet.

        Raises:
            TimeoutError: names what is still in use.
        """
        ongoing: dict[str, int | str] = {}

        async def ask(name: str) -> int | str:
            try:
                return (await self.client.stats(f"{SERVED}.{name}")).load.ongoing
            except GanglineError as error:
                return f"no answer: {error}"

        async def rest() -> bool:
            nonlocal ongoing
            names = list(self.workers)
            ongoing = dict(zip(names, await asyncio.gather(*map(ask, names)), strict=True))
            slots = [each for each in ongoing.values() if isinstance(each, int)]
            return len(slots) == len(names) and sum(slots) == expected

        try:
            await self.until(rest, "rest")
        except TimeoutError as error:
            raise TimeoutError(f"L4: {expected} slots should be in use, not {ongoing}\n{error}") from None
        return time.monotonic()

    async def judged(self) -> list[str]:
        """The findings of the audit, once it has read the whole ledger and no gang is left there.

        Raises:
            TimeoutError: it did not reach the end.
        """
        await self.until(lambda: not self.audit.left(), "no member is left in the ledger")
        last = await last_revision(self, self.bus, f"KV_{self.names.ledger_bucket}")
        await self.until(lambda: self.audit.revision >= last, f"the audit reads revision {last}")
        return self.audit.broken

    @property
    def read(self) -> str:
        """How much of the ledger the audit has read, for notes."""
        return f"{self.audit.revisions} revisions, {self.audit.missed} not seen"

    def noted(self, gang: str, generation: int, rank: int, what: str) -> float | None:
        """The records of bench.faults.tasks."""
        path = note(self.folder, gang, generation, rank, what)
        return float(path.read_text()) if path.exists() else None

    # -- gangs -------------------------------------------------------------------------------------------------------

    def gang(self, gang: str = "", **fields: Any) -> GangAcquisition:
        """As Client.gang, with a given id."""
        given = {"pool": SERVED, "strategy": "spread", "grace_s": 1.0, **fields}
        if gang:
            given["id"] = gang
        return self.client.router.gangs.gang(given, CallOptions())

    def _on_event(self, message: Message) -> None:
        self.events.append((time.monotonic(), GangEvent.model_validate_json(message.data)))
        self._news.set()


@asynccontextmanager
async def opened(
    trial: Trial,
    *,
    workers: int = 0,
    coordinators: int = 1,
    arguments: tuple[str, ...] = (),
    module: str = "gangline.cli",
    url: str = "",
    replicas: int = 1,
) -> AsyncIterator[Site]:
    """A site with processes that serve and lead.

    Args:
        arguments: command-line arguments of every worker.
        module: the module that starts every worker.
        replicas: with more than one, servers may be lost, and the audit reads a bucket with history.
        url: servers to use instead of the trial's.
    """
    folder = Path(tempfile.mkdtemp(prefix="gangline-faults-"))
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        url = url or trial.url
        if not url:
            url = (await stack.enter_async_context(EmbeddedServer())).url
        namespace = f"faults-{os.getpid()}-{secrets.token_hex(3)}"
        site = Site(trial.launch, url, namespace, folder, BucketSettings(replicas=replicas))
        settings = ConnectionSettings.from_url(url, reconnect_wait_s=0.05)
        stack.push_async_callback(site.close)
        site.bus = await connect_bus(settings, name="observer")
        stack.push_async_callback(site.bus.close)
        history = await kept(site.bus, site.names.ledger_bucket, site.bucket) if replicas > 1 else None
        site.ledger = await site.bus.bucket(site.names.ledger_bucket, site.bucket)
        if history is None:
            await site.audit.start(site.ledger)
        else:
            site.audit.start_tail(history)
        stack.push_async_callback(site.audit.stop)
        await site.bus.subscribe(site.names.gang_events, site._on_event)
        bus = await connect_bus(settings, name="owner")
        site.client = Client(
            bus, names=site.names, settings=RouterSettings(node="", zone=""), bucket=site.bucket, owns_bus=True
        )
        await stack.enter_async_context(site.client)
        for _ in range(coordinators):
            site.coordinator()
        for _ in range(workers):
            site.worker(*arguments, module=module)
        await site.served()
        if coordinators:
            await site.led()
        yield site
