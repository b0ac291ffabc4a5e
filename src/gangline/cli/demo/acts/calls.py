"""The demo from beginning to end."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ....schemas.errors.base import DeadlineExceeded, Unavailable
from ...views.workers import leases_table, workers_table
from ..checks import calls as checks
from ..checks.calls import AtRest
from ..checks.rest import at_rest, limiters
from ..fixtures.crew import Crew
from ..fixtures.gauges import Gauges
from ..fixtures.pool import SLOTS
from ..fixtures.stage import READY_S, Stage
from .drive import METHOD, POOL, TARGET, Drive

AT_ONCE: Final = 32
"""Calls in flight together: more than there are slots, so that full workers refuse and the router has to look on."""
GATEWAY_SHARE: Final = 4
"""Every so-manieth file also goes by the gateway."""


class Show:
    """The first part: what happens, and what is recorded of it."""

    def __init__(self, stage: Stage, crew: Crew, gauges: Gauges) -> None:
        self.stage = stage
        self.screen = stage.screen
        self.client = stage.client
        self.names = stage.names
        self.crew = crew
        self.gauges = gauges
        self.drive = Drive(stage.client, stage.bus, stage.names, crew.name_of)
        self.killed: str = ""
        self.drained: str = ""
        self.problems: list[str] = []

    # -- the cast -------------------------------------------------------------------------------------------------

    async def cast(self) -> None:
        """One gateway, three workers."""
        await self.crew.gateway("gateway")
        for name in ("w1", "w2", "w3"):
            await self.crew.worker(name)
        rows = await self.stage.ready(self.crew, POOL, "w1", "w2", "w3")
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
        await self.stage.ready(self.crew, POOL, "w1", "w3", "w4")
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
        asked = await limiters(self.client, POOL)
        told = {
            "ledger": sum(lease.slots for lease in leases),
            "limiters": sum(reserved for _, reserved in asked.values()),
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

    async def at_rest(self) -> AtRest:
        """Wait a little for everything to be zero, and tell how it is then."""
        return await at_rest(self.client, self.stage.ledger, self.names, POOL, self.gauges.read)
