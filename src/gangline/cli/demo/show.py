"""The demo from beginning to end."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from ...bus.embedded import EmbeddedServer
from ...bus.jetstream import connect
from ...bus.port import BucketSettings, Bus, KeyValue
from ...bus.settings import ConnectionSettings
from ...bus.temporary import TemporaryFolder
from ...dispatcher.client import Client
from ...schemas.errors import DeadlineExceeded, Unavailable
from ...schemas.names import Names
from ..registry import WorkerRow, read_workers
from ..tables import leases_table, workers_table
from . import checks
from .checks import AtRest
from .corpus import Expected, expectations, library_files
from .crew import Crew, ProcessFailed
from .drive import METHOD, POOL, TARGET, Drive
from .gauges import Gauges
from .pool import SLOTS, squeeze_bytes
from .report import final_line, print_latencies, print_work, verdicts
from .screen import Screen

AT_ONCE: Final = 32
"""Calls in flight together: more than there are slots, so that full workers refuse and the router has to look on."""
READY_S: Final = 20.0
REST_S: Final = 5.0
"""Heartbeats tell the load once a second, so that rest shows a little later than it begins."""
GATEWAY_SHARE: Final = 4
"""Every so-manieth file also goes by the gateway."""


class Show:
    """Server, processes and client of one demo."""

    def __init__(
        self, screen: Screen, crew: Crew, bus: Bus, ledger: KeyValue, client: Client, names: Names, gauges: Gauges
    ) -> None:
        self.screen = screen
        self.crew = crew
        self.bus = bus
        self.ledger = ledger
        self.client = client
        self.names = names
        self.gauges = gauges
        self.drive = Drive(client, bus, names, crew.name_of)
        self.killed: str = ""
        self.drained: str = ""
        self.problems: list[str] = []

    # -- the cast -------------------------------------------------------------------------------------------------

    async def ready(self, *workers: str) -> list[WorkerRow]:
        """Wait until these workers serve.

        Raises:
            ProcessFailed: one of them ended, or does not come up.
        """
        deadline = asyncio.get_running_loop().time() + READY_S
        while True:
            self.crew.check_alive(*workers)
            rows = await read_workers(self.ledger, self.names, POOL)
            if {row.id.worker for row in rows if row.heartbeat is not None} >= set(workers):
                return rows
            if asyncio.get_running_loop().time() > deadline:
                raise ProcessFailed(f"{', '.join(workers)} did not all come up within {READY_S:.0f} s")
            await asyncio.sleep(0.05)

    async def cast(self) -> None:
        """One gateway, three workers."""
        await self.crew.gateway("gateway")
        for name in ("w1", "w2", "w3"):
            await self.crew.worker(name)
        rows = await self.ready("w1", "w2", "w3")
        self.screen.show(workers_table(rows))

    # -- the acts -------------------------------------------------------------------------------------------------

    async def act_calls(self, files: Sequence[str]) -> None:
        """All files by `call`; half-way one worker is killed."""
        self.screen.title("1. call: one round trip, no token")
        self.screen.say(
            f"{AT_ONCE} calls at once on {3 * SLOTS} slots. A full worker says no and the call goes elsewhere."
        )

        async def kill() -> None:
            self.killed = "w2"
            await self.crew.members["w2"].until_busy()
            self.crew.kill("w2")
            self.screen.event(
                "kill -9 w2, in the middle of its work. Its tasks are idempotent: they run again elsewhere."
            )
            await self.crew.worker("w4")
            self.screen.event("w4 starts in its place and gets work as soon as it has registered.")

        with self.screen.progress("call", len(files)) as tick:
            await self.drive.feed("call", [self.drive.call] * AT_ONCE, files, tick=tick, milestones=[(0.5, kill)])
        await self.ready("w1", "w3", "w4")
        again = checks.interrupted(self.crew.members[self.killed].journal())
        slowest = max((one.seconds for one in self.drive.done), default=0.0)
        begun = f"{again} task{'s'[: again != 1]} had begun on w2"
        self.screen.say(f"{begun}. After 3 s of silence a worker counts as dead and its calls run elsewhere:")
        self.screen.say(f"the slowest call took {slowest:.1f} s, and none failed.")

    async def act_dispatches(self, files: Sequence[str]) -> None:
        """All files by `choose_worker` and `dispatch`; half-way one worker drains."""
        self.screen.title("2. choose_worker, then dispatch: reserve first, then send")
        self.screen.say(
            "The reservation holds a slot, so the dispatch cannot be refused. Leaving unused gives it back."
        )

        async def drain() -> None:
            self.drained = "w1"
            await self.client.drain(f"{POOL}.w1")
            self.screen.event("drain w1: it grants nothing new, honours what it granted, finishes and leaves.")

        with self.screen.progress("dispatch", len(files)) as tick:
            await self.drive.feed(
                "dispatch", [self.drive.dispatch] * AT_ONCE, files, tick=tick, milestones=[(0.5, drain)]
            )
        code = await self.crew.ended("w1", READY_S)
        self.screen.say(f"w1 has left with exit code {code}." if code is not None else "w1 is still there!")

    async def act_leases(self, files: Sequence[str]) -> None:
        """All files on two held leases that together are every slot there is."""
        self.screen.title("3. lease: reserve once, dispatch many")
        async with (
            self.client.lease(POOL, slots=SLOTS, ttl_s=15) as one,
            self.client.lease(POOL, slots=SLOTS, ttl_s=15) as two,
        ):
            held = 2 * SLOTS
            self.screen.say(f"Two leases of {SLOTS} slots: every slot of w3 and w4 is ours. This is the ledger:")
            await self._show_ledger(held)
            await self._refused_while_held()
            runners = [self.drive.lease(one)] * SLOTS + [self.drive.lease(two)] * SLOTS
            with self.screen.progress("lease", len(files)) as tick:
                await self.drive.feed("lease", runners, files, tick=tick)

    async def _show_ledger(self, held: int) -> None:
        """The ledger, the limiters and this router's gauge must tell the same."""
        await asyncio.sleep(0.05)  # L6: a token is visible within 50 ms of its grant
        leases = await self.client.leases(POOL)
        self.screen.show(leases_table(leases))
        limiters = await self.limiters()
        told = {
            "ledger": sum(lease.slots for lease in leases),
            "limiters": sum(reserved for _, reserved in limiters.values()),
            "gauge": int(self.gauges.read().get("gangline.router.reserved_slots", -1)),
        }
        if set(told.values()) == {held}:
            self.screen.good(f"ledger, limiters and this router's gauge agree: {held} slots reserved")
        else:
            self.problems.append(f"{held} slots are held, but {told}")
            self.screen.bad(self.problems[-1])

    async def _refused_while_held(self) -> None:
        path = str(Path(tempfile.__file__))
        try:
            await self.client.options(timeout_s=0.3).call(TARGET, path=path)
        except (Unavailable, DeadlineExceeded) as error:
            self.screen.good(f"a call from outside the leases gets no slot: {type(error).__name__}")
        else:
            self.problems.append("a call got a slot while leases held every one")
            self.screen.bad(self.problems[-1])

    async def act_gateway(self, files: Sequence[str]) -> None:
        """Some files by plain NATS requests, as any language would send them."""
        self.screen.title("4. gateway: plain NATS requests, no SDK")
        self.screen.say(f"The same as:  nats req {self.names.call(POOL, METHOD)} '{{\"path\": ...}}'")
        with self.screen.progress("gateway", len(files)) as tick:
            await self.drive.feed("gateway", [self.drive.gateway] * AT_ONCE, files, tick=tick)

    # -- the end --------------------------------------------------------------------------------------------------

    async def limiters(self) -> dict[str, tuple[int, int]]:
        """Running and reserved slots of every living worker, asked from each."""
        found = {}
        for info in await self.client.workers(POOL):
            stats = await self.client.stats(info.name)
            found[info.registration.worker] = (stats.load.running, stats.load.reserved)
        return found

    async def at_rest(self) -> AtRest:
        """Wait a little for everything to be zero, and tell how it is then."""
        deadline = asyncio.get_running_loop().time() + REST_S
        while True:
            workers = await self.client.workers(POOL)
            beats = {w.registration.worker: (w.heartbeat.running, w.heartbeat.reserved) for w in workers}
            leases = await self.client.leases(POOL)
            rest = AtRest(
                limiters=await self.limiters(),
                heartbeats=beats,
                ledger=[lease.token for lease in leases],
                gauges=self.gauges.read(),
            )
            quiet = not leases and all(load == (0, 0) for load in beats.values())
            if quiet or asyncio.get_running_loop().time() > deadline:
                return rest
            await asyncio.sleep(0.1)


async def perform(screen: Screen, namespace: str, *, limit: int | None = None) -> bool:
    """Run the whole demo; True if every check held.

    Args:
        limit: use only so many files, spread over the library. None: all.
    """
    began = time.monotonic()
    files = _spread(library_files(), limit)
    async with AsyncExitStack() as stack:
        show, url = await _stage(stack, screen, namespace)
        size = sum(file.stat().st_size for file in files)
        screen.say(
            f"The work: compress and hash {len(files)} Python files of the standard library, {size / 1e6:.1f} MB."
        )
        screen.say("Each of them by call, by dispatch and by lease; every fourth also by a plain NATS request.")
        await show.cast()
        screen.note(f"To watch from another terminal:  gangline workers -s {url} --namespace {namespace}")
        screen.note(f"                                 nats -s {url} kv watch {show.names.ledger_bucket}")
        local = asyncio.create_task(asyncio.to_thread(expectations, files, squeeze_bytes))
        paths = [str(file) for file in files]
        await show.act_calls(paths)
        await show.act_dispatches(paths)
        await show.act_leases(paths)
        await show.act_gateway(paths[::GATEWAY_SHARE])
        screen.title("5. Was it all true?")
        expected = await local
        rest = await show.at_rest()
        await show.crew.stop()
        return _judge(screen, show, expected, rest, began)


def _judge(screen: Screen, show: Show, expected: dict[str, Expected], rest: AtRest, began: float) -> bool:
    results = verdicts(show, expected, rest)
    for verdict in results:
        (screen.bad if verdict.findings else screen.good)(verdict.text)
    print_work(screen, show.drive.done, show.crew)
    print_latencies(screen, show.drive)
    ok = not any(verdict.findings for verdict in results)
    screen.last(final_line(show, results, time.monotonic() - began), ok=ok)
    return ok


async def _stage(stack: AsyncExitStack, screen: Screen, namespace: str) -> tuple[Show, str]:
    """Server, connection, client and an empty crew; all of it goes when the stack closes."""
    server = await stack.enter_async_context(EmbeddedServer())
    screen.title(f"Gangline demo: nats-server {server.version} at {server.url}, one gateway, three workers")
    folder = stack.enter_context(TemporaryFolder("gangline-demo-")).path
    names = Names(namespace)
    bus = await connect(ConnectionSettings(urls=(server.url,)), name="gangline demo")
    stack.push_async_callback(bus.close)
    crew = Crew(server.url, namespace, folder)
    stack.push_async_callback(crew.stop)
    client = await stack.enter_async_context(Client(bus, names=names, name="demo"))
    ledger = await bus.bucket(names.ledger_bucket, BucketSettings())
    return Show(screen, crew, bus, ledger, client, names, Gauges()), server.url


def _spread(files: list[Path], limit: int | None) -> list[Path]:
    """At most `limit` files, evenly over the list."""
    if limit is None or limit >= len(files):
        return files
    return list(itertools.islice(files, 0, None, max(1, len(files) // limit)))[:limit]
