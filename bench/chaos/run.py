"""One run: start the load, inject one fault after another, let everything come to rest, and judge the records."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Final

from bench.chaos.client import JOBS, KINDS, POOL, SET
from bench.chaos.faults import FAULTS, SERVER_FAULTS, order
from bench.chaos.following import Follower, save
from bench.chaos.report import Played
from bench.chaos.system import ROLES, WORKERS, System, running
from gangline.schemas.errors.base import GanglineError, JobError
from gangline.testing.kit.judge import judge
from gangline.testing.kit.processes import holds_within, remaining
from gangline.testing.kit.records import SystemHistory, read
from gangline.testing.kit.testbed import still_held

_RECOVERS_S: Final = 60.0
"""When no further kind of request has succeeded for so long, those that are missing have not recovered."""
_STEADY_S: Final = 1.0
_WHOLE_S: Final = 60.0
_RESTS_S: Final = 40.0
_CLIENTS_END_S: Final = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    played: list[Played]
    history: SystemHistory
    verdicts: dict[str, list[str]]
    notes: list[str]
    """Events worth a look that break no law: processes that exited by themselves."""

    @property
    def broken(self) -> bool:
        return any(self.verdicts.values())


class _Play:
    def __init__(self, system: System, seed: int, say: Callable[[str], None]) -> None:
        self.system = system
        self.draw = Random(f"faults {seed}")
        self.say = say
        self.follower = Follower(system.folder)
        self.played: list[Played] = []
        self.unrecovered: list[str] = []
        self.began = time.monotonic()

    async def recovered(self, since: float) -> tuple[float | None, str]:
        """Wait until each kind of request that was made after `since` has succeeded at each client.

        Returns:
            How long after `since` the last of them succeeded (None if some did not), and which one it was.
        """
        missing = {(name, kind) for name in ROLES["client"] for kind in KINDS}
        last, which = since, ""

        def nothing_is_missing() -> bool:
            nonlocal last, which
            for request in self.follower.news():
                place = (request.id.partition("-")[0], request.kind)
                if request.ok and request.asked >= since and place in missing:
                    missing.discard(place)
                    if request.told > last:
                        last, which = request.told, f"{place[1]} of {place[0]}"
            return not missing

        if await holds_within(_RECOVERS_S, nothing_is_missing, pause_s=0.05, progress=lambda: len(missing)):
            return last - since, which
        return None, ", ".join(f"{kind} of {name}" for name, kind in sorted(missing))

    async def fault(self, kind: str) -> None:
        text, act = FAULTS[kind](self.system, self.draw)
        if kind in SERVER_FAULTS and not await self._storage_whole(f"left out: {text}"):
            return
        began = time.monotonic()
        await act()
        ended = time.monotonic()
        recovery_s, which = await self.recovered(ended)
        played = Played(
            kind=kind, text=text, at_s=began - self.began, took_s=ended - began, recovery_s=recovery_s, slowest=which
        )
        self.played.append(played)
        self.say(played.line())
        if recovery_s is None:
            self.unrecovered.append(f"{which} did not succeed, and nothing new for {_RECOVERS_S:g} s, after: {text}")
        if kind in SERVER_FAULTS:
            await self._storage_whole(f"after: {text}")
            self.system.blind.append((began, time.monotonic()))
        await asyncio.sleep(_STEADY_S)

    async def _storage_whole(self, when: str) -> bool:
        missing = await self.system.storage_is_whole(_WHOLE_S)
        if missing:
            self.system.exits.append(
                f"storage is not whole, and has not changed for {_WHOLE_S:g} s, {when}: {'; '.join(missing)}"
            )
        return not missing

    async def faults(self, minutes: float, kinds: list[str]) -> None:
        until = time.monotonic() + 60 * minutes
        for kind in cycle(kinds):
            if time.monotonic() >= until:
                return
            await self.fault(kind)

    # -- the end ----------------------------------------------------------------------------------------------------

    async def end_clients(self) -> list[str]:
        """Stop all clients; returns those that did not exit in time."""
        hung = []
        for name in ROLES["client"]:
            self.system.unwanted(name)
            self.system.signal(name, signal.SIGTERM)
        until = time.monotonic() + _CLIENTS_END_S
        for name in ROLES["client"]:
            child = self.system.children.get(name)
            if child is None:
                continue
            if await child.ended(max(0.0, until - time.monotonic())) is None:
                hung.append(f"{name} still waits for answers {_CLIENTS_END_S:g} s after the last fault")
        return hung

    async def results(self, history: SystemHistory) -> None:
        """The outcome of each acknowledged job."""
        jobs = [request.job for request in history.requests if request.kind == "submit" and request.job]
        limit = asyncio.Semaphore(16)

        async def ask(job: str) -> None:
            async with limit:
                try:
                    history.results[job] = ("done", await self.system.observer.job(job, JOBS).result(60.0))
                except JobError as error:
                    history.results[job] = (error.code, str(error))
                except GanglineError as error:
                    history.results[job] = (f"not ended ({error.code})", str(error))

        await asyncio.gather(*map(ask, jobs))

    async def leaks(self) -> list[str]:
        """What is still held when there have been no requests for a while."""
        return await remaining(_RESTS_S, self._held, pause_s=0.5)

    async def _held(self) -> list[str]:
        observer = self.system.observer
        found = await still_held(observer, [f"{POOL}.{worker}" for worker in WORKERS])
        stream = self.system.names.tasks_stream
        answer = await self.system.bus.api.call(f"STREAM.INFO.{stream}", what="look at a stream")
        if left := answer["state"]["messages"]:
            found.append(f"{left} messages in {stream}")
        return found + [f"dead letter {letter.job}: {letter.reason}" for letter in await observer.dead_letters()]

    async def end(self) -> SystemHistory:
        hung = await self.end_clients()
        with contextlib.suppress(GanglineError):
            ledger = await self.system.observer.router.ledger()
            await ledger.delete(self.system.names.gangset_key(SET))
        history = read(self.system.folder)
        await self.results(history)
        leaks, results = await self.leaks(), history.results
        history = read(self.system.folder)  # by now every task has recorded its end
        history.results = results
        history.lives = self.system.lives
        history.troubles += self.system.troubles
        for life in history.lives:
            life.drains = history.drains.get(life.pid, life.drains)
        audit = self.system.audit
        history.ledger, history.deposed = list(audit.broken), list(audit.deposed)
        history.shown, history.blind = list(audit.shown.values()), [*self.system.blind, *audit.blind]
        history.leaks += [*hung, *leaks]
        history.unrecovered = self.unrecovered
        return history


async def chaos(
    seed: int,
    minutes: float,
    *,
    say: Callable[[str], None],
    only: tuple[str, ...] = (),
    keep: Path | None = None,
) -> Outcome:
    """Run one seed.

    Args:
        minutes: how long faults continue; start and end add about a minute.
        say: called with each line of progress.
        only: kinds of faults; all if empty.
        keep: folder in which all records and logs are kept.
    """
    folder = Path(tempfile.mkdtemp(prefix="gangline-chaos-"))
    try:
        async with running(folder, seed) as system:
            play = _Play(system, seed, say)
            started_s, which = await play.recovered(play.began)
            if started_s is None:
                play.unrecovered.append(f"{which} never succeeded, before any fault")
            else:
                say(f"{time.monotonic() - play.began:6.1f} s  all kinds of requests succeed")
                await play.faults(minutes, order(seed, only))
            history = await play.end()
        save(history, folder / "harness.jsonl")
        notes = [*system.exits, system.audit.summary()]
        return Outcome(played=play.played, history=history, verdicts=judge(history), notes=notes)
    finally:
        if keep is not None:
            shutil.copytree(folder, keep, dirs_exist_ok=True, ignore=shutil.ignore_patterns("data"))
        shutil.rmtree(folder, ignore_errors=True)
