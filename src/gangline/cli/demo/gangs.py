"""The demo's second part: gangs of real processes, one of which is killed, and two that compete for slots."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from ...dispatcher.gangs.gang import Gang
from ...schemas.errors.base import GangRestarted
from ...schemas.messages.gangs import GangEvent, GangQuery, GangReply, GangWhyReply
from ...schemas.names import GangOperation
from ...testing.kit.processes import PATIENCE_S
from ..console.output import Listing
from ..views.gang_follow import list_gangs
from ..views.gangs import why_lines
from .checks import CountedPart
from .pools import WORD_SLOTS, Counted, Tally, tally_files
from .stage import Stage

POOL: Final = "words"
METHOD: Final = "count"
WORKERS: Final = ("g1", "g2", "g3")
SIZE: Final = 4
"""Members of the first gang."""
PARTS: Final = 6
"""Number of its runs."""
KILL_AT: Final = 2
"""The part during which a member is killed, from 0."""
PAIR: Final = 2
"""Members of each of the two gangs that compete for slots."""


class GangShow:
    """The second part of the demo, and its records."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.screen = stage.screen
        self.client = stage.client.options(timeout_s=PATIENCE_S)
        self.expected: Tally = {}
        self.first: list[CountedPart] = []
        """Parts counted by the gang that lost a member."""
        self.pairs: list[CountedPart] = []
        """Parts counted by the two gangs that took turns."""
        self.gang = ""
        """The gang that lost a member."""
        self.turns: dict[str, float] = {}
        """The two gangs that took turns, in order, and how long each waited, in seconds."""
        self.killed_at = 0.0
        self.killed_ranks: frozenset[int] = frozenset()
        self.torn: GangEvent | None = None
        """The event that followed."""
        self.told_after_s = 0.0
        self.problems: list[str] = []

    async def cast(self, files: Sequence[str]) -> None:
        """A coordinator, three workers, and this process's own count."""
        stage = self.stage
        stage.serve(POOL, WORD_SLOTS)
        await stage.audit.start(stage.ledger)
        stage.coordinator("coordinator")
        for number, name in enumerate(WORKERS, 1):
            stage.worker(name=name, node=f"node{number}")
        counting = asyncio.create_task(asyncio.to_thread(tally_files, files))
        await stage.ready()
        await stage.led()
        self.expected = await counting

    async def act_restart(self, files: Sequence[str]) -> None:
        """One gang counts all files in parts; one of its workers is killed during one of them."""
        screen = self.screen
        screen.title(f"5. gang: {SIZE} members over {len(WORKERS)} workers, all or nothing")
        screen.say("Each member counts the words of its share; all_gather gives every member all counts.")
        asked_at = time.monotonic()
        async with self.client.gang(
            pool=POOL, size=SIZE, strategy="spread", deadline_s=PATIENCE_S, backoff_s=0.1
        ) as gang:
            self.gang = gang.id
            screen.say(f"Formed in {(time.monotonic() - asked_at) * 1000:.0f} ms:")
            screen.show(_members(gang))
            with screen.progress("gang", PARTS) as tick:
                for number in range(PARTS):
                    self.first.append(await self._counted(gang, number, files[number::PARTS], kill=number == KILL_AT))
                    tick(1)
            screen.say(f"Generation {gang.generation} has finished the work of generation 1:")
            screen.show(_members(gang))

    async def _counted(self, gang: Gang, number: int, paths: Sequence[str], *, kill: bool = False) -> CountedPart:
        """Run one part on all ranks; repeat it if the gang was torn down meanwhile."""
        run = asyncio.ensure_future(gang.run(METHOD, list(paths)))
        if kill:
            await self._kill(gang, run)
        try:
            results = await run
        except GangRestarted as error:
            self.screen.say(f"The interrupted run got: {error}")
            results = await gang.run(METHOD, list(paths))
        return CountedPart(number=number, ranks=[Counted(**one) for one in results])

    async def _kill(self, gang: Gang, run: asyncio.Future[list[Any]]) -> None:
        """SIGKILL the worker of the last rank during the run."""
        name = gang.members[-1].worker.partition(".")[2]
        victim = self.stage.workers[name]
        self.killed_ranks = frozenset(member.rank for member in gang.members if member.worker.endswith(f".{name}"))
        busy = asyncio.ensure_future(victim.until_busy())
        watched: set[asyncio.Future[Any]] = {busy, run}
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        busy.cancel()
        self.killed_at = await self.stage.kill(victim)
        ranks = " and ".join(f"rank {rank}" for rank in sorted(self.killed_ranks))
        self.screen.event(f"kill -9 {name}, which is {ranks}, in the middle of part {KILL_AT + 1} of {PARTS}.")
        at, self.torn = await self.stage.event("torn_down", gang.id)
        self.told_after_s = at - self.killed_at
        self.screen.event(
            f"{self.told_after_s * 1000:.0f} ms later generation {self.torn.generation} is torn down. "
            f"Reason: {self.torn.reason}."
        )

    async def act_turns(self, files: Sequence[str]) -> None:
        """Two gangs of two on three slots."""
        screen = self.screen
        left = list(self.stage.workers)
        screen.title("6. Two gangs of two, requested at once, on three free slots")
        await self.client.resize(f"{POOL}.{left[0]}", WORD_SLOTS - 1)
        screen.say(f"{left[0]} is resized to one slot, {left[1]} has two. Neither gang holds anything while it waits,")
        screen.say("so they cannot deadlock:")
        looked = asyncio.Event()
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            for number in range(PAIR):
                group.create_task(self._turn(number, files[number::PAIR], looked))
            _, running = await self.stage.event("formed", but=(self.gang,))
            _, waiting = await self.stage.event("queued", but=(self.gang, running.gang))
            await self._why(waiting.gang)
            looked.set()
        screen.say("The first was released, then the second was formed:")
        for number, (gang, waited_s) in enumerate(self.turns.items(), 1):
            screen.say(f"  {number}. gang {gang} was formed {waited_s * 1000:.0f} ms after it was requested")

    async def _turn(self, number: int, paths: Sequence[str], looked: asyncio.Event) -> None:
        asked_at = time.monotonic()
        async with self.client.gang(pool=POOL, size=PAIR, strategy="spread", deadline_s=PATIENCE_S) as gang:
            self.turns[gang.id] = time.monotonic() - asked_at
            await looked.wait()
            self.pairs.append(await self._counted(gang, number, paths))

    async def _why(self, gang: str) -> None:
        """Show what the waiting gang waits for, as the coordinator explains it."""
        coordinator_client = self.client.router.gangs.coordinator_client
        while True:
            why = await coordinator_client.ask_for(GangWhyReply, GangOperation.WHY, GangQuery(id=gang), PATIENCE_S)
            if (why.lacks and (why.kept or self.stage.metrics is None)) or why.step == "formed":
                break
            await asyncio.sleep(0.02)  # it is being placed; or the free slot is not kept for it yet
        await self.stage.read("gangline_gang_kept_slots{")
        gangs = await list_gangs(self.client)
        self.screen.show(_gangs(gangs.gangs))
        self.screen.say(f"$ gangline why {gang}")
        for line in why_lines(why):
            self.screen.say(f"  {line}")
        states = sorted(one.state.value for one in gangs.gangs)
        if states != ["formed", "queued"]:
            self.problems.append(f"of two gangs on three slots one must run and one must wait, but they are {states}")
        if why.place != 0 or not why.obstacles:
            self.problems.append(f"gang {gang} does not say what it waits for")


def _members(gang: Gang) -> Listing:
    rows = [(str(member.rank), member.worker, member.node, member.token) for member in gang.members]
    return Listing(("RANK", "WORKER", "NODE", "TOKEN"), rows, right=("RANK",))


def _gangs(gangs: Sequence[GangReply]) -> Listing:
    rows = [
        (gang.id, gang.state.value, str(gang.size), " ".join(sorted({seat.worker for seat in gang.seats})))
        for gang in gangs
    ]
    return Listing(("GANG", "STATE", "SIZE", "WORKERS"), rows, right=("SIZE",))
