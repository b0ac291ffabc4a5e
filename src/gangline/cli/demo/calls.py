"""The demo's first part: the same work in four ways, while one worker is killed and one is drained."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...bus.rpc.requester import raise_if_error
from ...schemas.errors.base import DeadlineExceeded, Unavailable
from ...schemas.records.workers import LeaseRecord
from ...schemas.wire import codec
from ...testing.kit.journals import interrupted
from ...testing.kit.processes import PATIENCE_S, holds_within
from ..views.workers import leases_table, workers_table
from .checks import Done
from .pools import SLOTS
from .screen import Tick
from .stage import HERE, Stage

if TYPE_CHECKING:
    from ...bus.port.bus import Bus
    from ...dispatcher.client.client import Client
    from ...dispatcher.leases.lease import Lease
    from ...schemas.names import Names

AT_ONCE: Final = 32
"""Calls in flight at once: more than there are slots, so that full workers reject some and the router has to retry."""
GATEWAY_SHARE: Final = 4
"""Every n-th file is also sent through the gateway."""
POOL: Final = "squeeze"
METHOD: Final = "file"
TARGET: Final = f"{POOL}.{METHOD}"
TIMEOUT_S: Final = 60.0

One = Callable[[str], Awaitable[Any]]
Milestone = tuple[float, Callable[[], Awaitable[None]]]
"""A share of the files, and what to do when it is done."""


class Show:
    """The first part: what it does, and what it records."""

    killed: Final = "w2"
    drained: Final = "w1"

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.screen = stage.screen
        self.client = stage.client
        self.drive = Drive(stage.client, stage.bus, stage.names, stage.name_of)
        self.problems: list[str] = []

    async def cast(self) -> None:
        """One gateway, three workers."""
        self.stage.serve(POOL, SLOTS)
        self.stage.start("gateway", "gangline.cli", "gateway", role="gateway")
        for name in ("w1", "w2", "w3"):
            self.stage.worker(name=name, node=HERE)
        self.screen.show(workers_table(await self.stage.ready()))

    async def act_calls(self, files: Sequence[str]) -> None:
        """All files by `call`; halfway through, one worker is killed."""
        self.screen.title("1. call: one round trip, no token")
        self.screen.say(
            f"{AT_ONCE} calls at once on {3 * SLOTS} slots. A full worker rejects a call, which then goes elsewhere."
        )
        victim = self.stage.workers[self.killed]

        async def kill() -> None:
            await victim.until_busy()
            await self.stage.kill(victim)
            self.screen.event(
                "kill -9 w2, in the middle of its work. Its tasks are idempotent, so they run again elsewhere."
            )
            self.stage.worker(name="w4", node=HERE)
            self.screen.event("w4 replaces it and gets work as soon as it has registered.")

        await self._feed("call", [self.drive.call] * AT_ONCE, files, (0.5, kill))
        await self.stage.ready()
        again = len(interrupted(victim.journal()))
        slowest = max((one.seconds for one in self.drive.done), default=0.0)
        begun = f"{again} task{'s'[: again != 1]} had started on w2"
        self.screen.say(f"{begun}. After 3 s of silence a worker counts as dead and its calls run elsewhere:")
        self.screen.say(f"the slowest call took {slowest:.1f} s, and none failed.")

    async def act_dispatches(self, files: Sequence[str]) -> None:
        """All files by `choose_worker` and `dispatch`; halfway through, one worker drains."""
        self.screen.title("2. choose_worker, then dispatch: reserve first, then send")
        self.screen.say(
            "The reservation holds a slot, so the dispatch cannot be rejected. Leaving it unused releases it."
        )

        async def drain() -> None:
            await self.client.drain(f"{POOL}.{self.drained}")
            self.screen.event("drain w1: it grants nothing new, honours existing grants, finishes its tasks and exits.")

        await self._feed("dispatch", [self.drive.dispatch] * AT_ONCE, files, (0.5, drain))
        code = await self.stage.workers.pop(self.drained).ended(PATIENCE_S)
        self.screen.say(f"w1 has exited with code {code}." if code is not None else "w1 is still there!")

    async def act_leases(self, files: Sequence[str]) -> None:
        """All files on two leases that together hold every slot."""
        self.screen.title("3. lease: reserve once, dispatch many")
        async with (
            self.client.lease(POOL, slots=SLOTS, ttl_s=15) as one,
            self.client.lease(POOL, slots=SLOTS, ttl_s=15) as two,
        ):
            held = 2 * SLOTS
            self.screen.say(f"Two leases of {SLOTS} slots hold every slot of w3 and w4. This is the ledger:")
            await self._show_ledger(held)
            await self._refused_while_held()
            await self.stage.read()
            await self._feed("lease", [self.drive.lease(one)] * SLOTS + [self.drive.lease(two)] * SLOTS, files)

    async def _show_ledger(self, held: int) -> None:
        """The ledger, the limiters and this router's gauge must agree."""
        leases: list[LeaseRecord] = []

        async def recorded() -> bool:
            leases[:] = await self.client.leases(POOL)
            return sum(lease.slots for lease in leases) == held

        # L6: a token is visible within 50 ms of its grant, which the simulator checks; this machine may be slower.
        await holds_within(PATIENCE_S, recorded, pause_s=0.05)
        self.screen.show(leases_table(leases))
        stats = [await self.client.stats(f"{POOL}.{name}") for name in self.stage.workers]
        told = {
            "ledger": sum(lease.slots for lease in leases),
            "limiters": sum(each.load.reserved for each in stats),
            "gauge": int(self.stage.gauges.read().get("gangline.router.reserved_slots", -1)),
        }
        text = f"ledger, limiters and this router's gauge agree: {held} slots reserved"
        self._tell(set(told.values()) == {held}, text, f"{held} slots are held, but {told}")

    async def _refused_while_held(self) -> None:
        text = ""
        try:
            await self.client.options(timeout_s=0.3).call(TARGET, path=str(Path(tempfile.__file__)))
        except (Unavailable, DeadlineExceeded) as error:
            text = f"a call from outside the leases gets no slot: {type(error).__name__}"
        self._tell(bool(text), text, "a call got a slot while leases held every one")

    def _tell(self, ok: bool, good: str, bad: str) -> None:
        if ok:
            self.screen.good(good)
        else:
            self.problems.append(bad)
            self.screen.bad(bad)

    async def act_gateway(self, files: Sequence[str]) -> None:
        """Some files by plain NATS requests, as other languages send them."""
        self.screen.title("4. gateway: plain NATS requests, no SDK")
        self.screen.say(f"The same as:  nats req {self.stage.names.call(POOL, METHOD)} '{{\"path\": ...}}'")
        await self._feed("gateway", [self.drive.gateway] * AT_ONCE, files)

    async def _feed(self, way: str, ones: Sequence[One], files: Sequence[str], *milestones: Milestone) -> None:
        with self.screen.progress(way, len(files)) as tick:
            await self.drive.feed(way, ones, files, tick=tick, milestones=milestones)


class Drive:
    """Sends files and collects the answers."""

    def __init__(self, client: Client, bus: Bus, names: Names, name_of: Callable[[int], str]) -> None:
        self._client = client.options(timeout_s=TIMEOUT_S)
        self._bus = bus
        self._names = names
        self._name_of = name_of
        self.done: list[Done] = []
        self.failures: list[str] = []
        self.given: dict[str, int] = {}
        """Number of files sent in each way."""

    async def call(self, path: str) -> Any:
        """One round trip, no token: a worker is chosen and the task is sent at once."""
        return await self._client.call(TARGET, path=path)

    async def dispatch(self, path: str) -> Any:
        """Two round trips: a slot is reserved first, so the dispatch cannot be rejected."""
        async with self._client.choose_worker(POOL) as selection:
            return await self._client.dispatch(selection, METHOD, path=path)

    async def gateway(self, path: str) -> Any:
        """The same as `nats req gangline.call.squeeze.file '{"path": ...}'`, from any language."""
        body = codec.to_json({"path": path})
        answer = await self._bus.request(self._names.call(POOL, METHOD), body, timeout_s=TIMEOUT_S)
        raise_if_error(answer)
        return codec.decode(answer.data, codec.Format.of(answer.headers))

    def lease(self, lease: Lease) -> One:
        """One round trip, on slots that are already held."""
        return lambda path: lease.call(METHOD, path=path)

    async def feed(
        self, way: str, ones: Sequence[One], paths: Sequence[str], *, tick: Tick, milestones: Sequence[Milestone] = ()
    ) -> None:
        """Send all paths, with as many in flight as there are `ones`, and run each milestone's action when it is
        reached."""
        self.given[way] = self.given.get(way, 0) + len(paths)
        due = sorted(((round(share * len(paths)), act) for share, act in milestones), key=lambda pair: pair[0])
        left = iter(paths)
        finished = 0

        async def runner(one: One) -> None:
            nonlocal finished
            for path in left:
                await self._one(way, one, path)
                finished += 1
                tick(1)
                while due and finished >= due[0][0]:
                    group.create_task(_awaited(due.pop(0)[1]))

        async with asyncio.TaskGroup() as group:
            for one in ones:
                group.create_task(runner(one))

    async def _one(self, way: str, one: One, path: str) -> None:
        before = time.monotonic()
        try:
            value = await one(path)
        except Exception as error:  # counted, not raised: a demo with a lost task has failed, but reports all of it
            self.failures.append(f"{path} by {way}: {type(error).__name__}: {error}")
            return
        worker, seconds = self._name_of(value["pid"]), time.monotonic() - before
        self.done.append(Done.of(value, path=path, way=way, worker=worker, seconds=seconds))

    def latencies(self) -> Iterator[tuple[str, list[float]]]:
        """Sorted durations in seconds, by way."""
        for way in self.given:
            yield way, sorted(one.seconds for one in self.done if one.way == way)


async def _awaited(act: Callable[[], Awaitable[None]]) -> None:
    await act()
