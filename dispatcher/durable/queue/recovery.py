"""What a queue's new owner must know before it starts anything: failed attempts, and which tasks run or have ended on
which worker.

Every live worker of every pool is asked, since tasks may name their pool, and routes change. It waits for a worker that
does not answer until its heartbeat expires.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterable
from typing import Final, NamedTuple

from pydantic import ValidationError

from ....bus.key_value.wire import made_at
from ....bus.port.bus import Bus, KeyValue, NoResponders
from ....bus.rpc.requester import error_in, parse_answer
from ....schemas.errors.base import GanglineError, InvalidName
from ....schemas.messages.jobs import JobsReply, JobsRequest, WorkerJob
from ....schemas.names import Names, Operation, WorkerId
from ....schemas.records.jobs import TryRecord
from ....schemas.records.workers import Registration, complaint
from ....telemetry.logs import Log
from ...jobs.storage import until_answered
from ..workers.context import DispatcherContext

_ASK_S: Final = 1.0
_PAUSE_S: Final = 0.1
_AT_ONCE: Final = 64


class Try(NamedTuple):
    """An attempt that workers have."""

    job: str
    attempt: int
    pool: str
    """Where it was sent to, if known."""
    worker: str
    """`<pool>.<worker>`; if on several, that of the lowest rank."""
    workers: tuple[str, ...] = ()
    """By rank, if it runs on all ranks of a gang; an empty name: unknown."""


def by_try(found: Iterable[tuple[WorkerId, WorkerJob]]) -> list[Try]:
    """The attempts found; one on all ranks of a gang counts once. Those that have ended come first: of several
    executions of one attempt, the first counts."""
    alone: list[Try] = []
    jointly: dict[tuple[str, int], tuple[WorkerJob, dict[int, tuple[bool, str]]]] = {}
    for worker, job in sorted(found, key=lambda one: one[1].running):
        if not job.ranks:
            alone.append(Try(job.job, job.attempt, job.pool, str(worker)))
            continue
        _, ranks = jointly.setdefault((job.job, job.attempt), (job, {}))
        if job.rank < job.ranks and not (job.rank in ranks and ranks[job.rank][0]):
            ranks[job.rank] = (job.running, str(worker))
    for job, ranks in jointly.values():
        workers = tuple(ranks[rank][1] if rank in ranks else "" for rank in range(job.ranks))
        alone.append(Try(job.job, job.attempt, job.pool, next(filter(None, workers)), workers))
    return alone


async def jobs_on(
    bus: Bus, names: Names, worker: WorkerId, channel: str, endpoint: str | None, log: Log
) -> AsyncIterator[WorkerJob]:
    """The jobs of an endpoint (None: of all) that one worker runs and keeps, asked once.

    Raises:
        GanglineError, ValidationError: no answer, or an incomplete one.
    """
    after: str | None = None
    while True:
        body = JobsRequest(endpoint=endpoint, after=after).model_dump_json(exclude_none=True).encode()
        answer = await bus.request(names.worker(worker, Operation.JOBS, channel), body, timeout_s=_ASK_S)
        if (error := error_in(answer)) is not None:
            extra = {"action": "recovery.refused", "worker": str(worker)}
            log.warning("worker %s cannot report its durable tasks: %s", worker, error, extra=extra)
            return
        reply = parse_answer(answer, JobsReply, worker)
        for job in reply.jobs:
            yield job
        after = reply.next
        if after is None:
            return


class QueueRecovery:
    """Reads for one queue."""

    def __init__(self, context: DispatcherContext, endpoint: str, *, log: Log) -> None:
        self._endpoint = endpoint
        self._bus, self._names = context.bus, context.names
        self._streams, self._router = context.streams, context.router
        self._log = log
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._channels: dict[WorkerId, str] = {}
        """Of live workers; see Registration.channel."""

    async def tries(self) -> dict[str, TryRecord]:
        """Failed attempts, by job."""

        async def read() -> dict[str, TryRecord]:
            results = await self._streams.results()
            found: dict[str, TryRecord] = {}
            for entry in await results.entries(self._names.tries_of(self._endpoint)):
                try:
                    record = TryRecord.read(entry.value)
                    named = self._names.try_key(self._endpoint, record.job) == entry.key
                    wrong = "" if named else "it names another job"
                except InvalidName as error:
                    wrong = error.message
                except ValidationError as error:
                    wrong = complaint(error)
                if wrong:
                    extra = {"action": "try.unreadable", "key": entry.key}
                    self._log.warning("unreadable try %s: %s", entry.key, wrong, extra=extra)
                else:
                    found[record.job] = record
            return found

        return await until_answered("reading tries", read, self._log)

    async def ledger_age(self, wall: float) -> float:
        """Seconds since the ledger was created, judging by its heartbeats; 0 if there are none. A ledger in memory is
        recreated after a server restart, and workers write to it when they have reconnected."""

        async def read() -> list[int]:
            ledger: KeyValue = await self._router.ledger()
            return [entry.revision for entry in await ledger.entries(self._names.alive_of())]

        revisions = await until_answered("reading heartbeats", read, self._log)
        return max(0.0, wall - made_at(min(revisions))) if revisions else 0.0

    async def jobs(self) -> list[tuple[WorkerId, WorkerJob]]:
        """The endpoint's jobs on workers."""
        found: list[tuple[WorkerId, WorkerJob]] = []
        asked: dict[WorkerId, asyncio.Task[list[WorkerJob] | None]] = {}
        try:
            while True:
                alive = await until_answered("reading heartbeats", self._alive, self._log)
                for worker in sorted(alive, key=str):
                    if worker not in asked:
                        asked[worker] = asyncio.get_running_loop().create_task(self._ask(worker))
                waiting = [task for worker, task in asked.items() if not task.done() and worker in alive]
                if not waiting:
                    break
                await asyncio.wait(waiting, timeout=_PAUSE_S)
            for worker, task in asked.items():
                if task.done() and (jobs := task.result()):
                    found.extend((worker, job) for job in jobs)
        finally:
            for task in asked.values():
                task.cancel()
            if asked:
                await asyncio.wait(asked.values())
        await self._know({worker for worker, _ in found})
        return found

    async def _alive(self) -> set[WorkerId]:
        ledger: KeyValue = await self._router.ledger()
        alive: set[WorkerId] = set()
        for entry in await ledger.entries(self._names.alive_of(), self._names.registrations_of()):
            try:
                worker = self._names.parse_worker_key(entry.key)
                if entry.key.startswith("alive."):
                    alive.add(worker)
                else:
                    self._channels[worker] = Registration.read(entry.value).channel
            except (InvalidName, ValidationError):
                continue
        return alive

    async def _ask(self, worker: WorkerId) -> list[WorkerJob] | None:
        """A worker's jobs; asks until it answers."""
        async with self._at_once:
            while True:
                try:
                    return [job async for job in self.pages(worker, self._channels.get(worker, ""))]
                except NoResponders:
                    await asyncio.sleep(_PAUSE_S)  # it reconnects, or its heartbeat expires
                except GanglineError as error:
                    self._log.debug(
                        "worker %s does not report its jobs: %s",
                        worker,
                        error,
                        extra={"action": "recovery.ask", "worker": str(worker)},
                    )
                    await asyncio.sleep(_PAUSE_S)

    def pages(self, worker: WorkerId, channel: str) -> AsyncIterator[WorkerJob]:
        """This queue's jobs on a worker; see jobs_on."""
        return jobs_on(self._bus, self._names, worker, channel, self._endpoint, self._log)

    async def _know(self, workers: set[WorkerId]) -> None:
        """Let the router discover these workers, so that the dispatcher can attach to their jobs."""
        for name in sorted({worker.pool for worker in workers}):
            pool = await until_answered("opening a pool", functools.partial(self._router.pool, name), self._log)
            ours = {worker.worker for worker in workers if worker.pool == name}
            if ours - set(pool.core.view.workers) and pool.discovery is not None:
                await until_answered("reading a pool", pool.discovery.informer.refresh, self._log)
