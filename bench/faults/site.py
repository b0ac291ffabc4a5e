"""A nats-server with worker, coordinator and dispatcher processes, an observer, and a client, for one scenario."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from bench.faults.trial import Trial
from gangline.bus.port.bus import Storage
from gangline.dispatcher.calls.call import CallOptions
from gangline.dispatcher.gangs.gang import GangAcquisition
from gangline.dispatcher.jobs.job import Job
from gangline.schemas.errors.base import GanglineError
from gangline.testing.kit.judge import judge
from gangline.testing.kit.processes import PATIENCE_S, ChildProcess
from gangline.testing.kit.records import NEVER, Run, SentRequest
from gangline.testing.kit.testbed import Testbed, open_testbed

SERVED = "train"
QUEUE = "work"
"""The pool of durable tasks."""
JUDGED = ("L1 capacity", "L10 durable tasks", "limits of keys", "answers are right")
"""Laws that the records of durable tasks can show."""


class Site(Testbed):
    """Created by `opened`. Every process it started is stopped when that ends."""

    def armed(self, gang: str, moment: str, nth: int = 1, accident: str = "kill", *more: str) -> ChildProcess:
        """Start a coordinator that fails at that moment of that gang; `more`: see bench.faults.leader."""
        arguments = ("--gang", gang, "--at", moment, "--nth", str(nth), "--accident", accident, *more)
        return self.start(self.new_name("coordinator"), "bench.faults.leader", *arguments)

    @property
    def read(self) -> str:
        """How much of the ledger the audit has read, for notes."""
        return f"{self.audit.revisions} revisions, {self.audit.missed} not seen"

    async def at_rest(self, expected: int = 0) -> float:
        """Wait until all workers together report this many slots in use; returns when that was.

        Every worker must have answered, including those that do not serve yet.

        Raises:
            TimeoutError: names what is still in use.
        """
        ongoing: dict[str, int | str] = {}

        async def ask(name: str) -> int | str:
            try:
                return (await self.client.stats(f"{self.pool}.{name}")).load.ongoing
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
        last: int = (await self.stream_info(f"KV_{self.names.ledger_bucket}"))["state"]["last_seq"]
        await self.until(lambda: self.audit.revision >= last, f"the audit reads revision {last}")
        return [*self.audit.broken, *self.audit.deposed]

    async def stream_info(self, stream: str) -> Mapping[str, Any]:
        """From storage. Asks again while a cluster is electing a leader."""
        found: dict[str, Any] = {}

        async def look() -> bool:
            with contextlib.suppress(GanglineError):
                found.update(await self.bus.api.call(f"STREAM.INFO.{stream}", what="look at a stream"))
            alone = found.get("cluster") is None
            return bool(found) and (alone or bool(found["cluster"].get("leader")))

        await self.until(look, f"{stream} has a leader")
        return found

    # -- gangs -------------------------------------------------------------------------------------------------------

    def gang(self, gang: str = "", **fields: Any) -> GangAcquisition:
        """As Client.gang, with a given id."""
        given = {"pool": SERVED, "strategy": "spread", "grace_s": 1.0, **fields}
        if gang:
            given["id"] = gang
        return self.client.router.gangs.gang(given, CallOptions())

    def members(self, gang: str) -> dict[int, Run]:
        """The recorded runs of the first generation, by rank."""
        return {
            run.rank: run for run in self.runs() if (run.gang, run.generation) == (gang, 1) and run.rank is not None
        }

    # -- durable tasks -----------------------------------------------------------------------------------------------

    async def squares(
        self, count: int, seconds: float, *, first: int = 0, held_from: int | None = None, key: str | None = None
    ) -> list[Job]:
        """Submit this many tasks; all are acknowledged when it returns.

        Args:
            first: the number of the first task.
            held_from: tasks from this index on do not end before `let_go`.
        """
        given = [
            {"number": first + n, "seconds": seconds}
            | ({} if held_from is None or n < held_from else {"gate": str(self.folder / "gate")})
            for n in range(count)
        ]
        return await self.client.options(key=key).submit_many(f"{QUEUE}.square", given)

    def let_go(self) -> None:
        """Let the held tasks end."""
        (self.folder / "gate").touch()

    async def started_after(self, at: float) -> float:
        """Time of the first start of a task after that time."""
        found: list[float] = []

        def look() -> bool:
            found.extend(run.began for run in self.runs() if run.began > at)
            return bool(found)

        await self.until(look, "a task's start", pause_s=0.05)
        return found[0]

    async def run_some(self, count: int) -> None:
        """Wait until this many tasks have ended."""
        some = f"{count} tasks ended"
        await self.until(lambda: sum(run.ended != NEVER for run in self.runs()) >= count, some, pause_s=0.05)

    async def check_squares(
        self, jobs: Sequence[Job], *, first: int = 0, within_s: float = 2 * PATIENCE_S, **facts: Any
    ) -> list[str]:
        """Broken laws, when all tasks have ended (or the time is over).

        Args:
            facts: of the history: see SystemHistory.
        """
        results: dict[str, tuple[str, Any]] = {}

        async def one(job: Job) -> None:
            try:
                results[job.id] = ("done", await job.result(timeout_s=within_s))
            except GanglineError as error:
                results[job.id] = (error.code, str(error))

        await asyncio.gather(*map(one, jobs))
        asked = [
            SentRequest(id=str(n), kind="submit", pid=0, asked=0.0, due=NEVER, ok=True, expected=n * n, job=job.id)
            for n, job in enumerate(jobs, first)
        ]
        verdicts = judge(self.history(requests=asked, results=results, **facts))
        return [f"{law}: {text}" for law in JUDGED for text in verdicts[law]]

    def interrupted(self, process: ChildProcess) -> list[Run]:
        """What that process has started, and not ended."""
        return [run for run in self.runs() if run.pid == process.pid and run.ended == NEVER]

    def started_twice(self) -> list[str]:
        """Jobs that were started again although the attempt before was not cut off by a kill."""
        found = []
        last: dict[str | None, Run] = {}
        for run in self.runs():
            before = last.get(run.job)
            if before is not None and (before.done or before.pid not in self.killed):
                found.append(f"{run.job} was started by {before.pid}, then by {run.pid}")
            last[run.job] = run
        return found


@asynccontextmanager
async def calling(once: Callable[[], Awaitable[None]], callers: int) -> AsyncIterator[None]:
    """Keep calling this from several callers; the last calls end before it returns."""
    done = asyncio.Event()

    async def caller() -> None:
        while not done.is_set():
            await once()

    tasks = [asyncio.ensure_future(caller()) for _ in range(callers)]
    try:
        yield
    finally:
        done.set()
        await asyncio.gather(*tasks)


@asynccontextmanager
async def opened(
    trial: Trial,
    *,
    pool: str = SERVED,
    workers: int = 0,
    coordinators: int = 1,
    dispatchers: int = 0,
    arguments: tuple[str, ...] = (),
    module: str = "gangline.cli",
    url: str = "",
    replicas: int = 1,
) -> AsyncIterator[Site]:
    """A site with processes that serve, lead and dispatch.

    Args:
        arguments: command-line arguments of every worker.
        module: the module that starts every worker.
        url: servers to use instead of the trial's; they may be killed.
        replicas: with more than one, servers may be lost, and the audit reads a bucket with history.
    """
    storage = Storage.FILE if pool == QUEUE and replicas > 1 else Storage.MEMORY
    async with open_testbed(
        Site, url=url or trial.url, replicas=replicas, storage=storage, launch=trial.launch
    ) as site:
        site.pool, site.target = pool, f"bench.faults.tasks:{'work' if pool == QUEUE else 'pool'}"
        for _ in range(coordinators):
            site.coordinator()
        for _ in range(dispatchers):
            site.dispatcher()
        for _ in range(workers):
            site.worker(*arguments, module=module)
        await site.served()
        if coordinators:
            await site.led()
        yield site


def tasks_opened(
    trial: Trial, *, workers: int = 4, dispatchers: int = 1, **more: Any
) -> AbstractAsyncContextManager[Site]:
    """A site for durable tasks; see `opened`."""
    return opened(trial, pool=QUEUE, workers=workers, coordinators=0, dispatchers=dispatchers, **more)
