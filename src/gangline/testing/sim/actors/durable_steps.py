"""Plays steps of a plan that concern durable tasks, through the public client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from ....bus.memory.server import MemoryBus
from ....dispatcher.client.client import Client
from ....dispatcher.jobs.job import Job
from ....dispatcher.jobs.submitter import job_of_key
from ....schemas.errors.base import DeadlineExceeded, GanglineError, JobError, UnknownJob
from ....schemas.messages.jobs import JobInfo
from ....schemas.names import job_of_tenant
from ..plan.durable_plan import JobKind, JobStep
from ..stage.stage import Stage

PATIENCE_S = 80.0
"""Timeout for results, longer than any job takes despite faults."""
TRY_S = 1.0
TRIES = 20
PAUSE_S = 0.3
LISTED = 50
"""Jobs of one page."""


async def list_jobs(client: Client) -> list[JobInfo]:
    """All jobs, page by page."""
    found: list[JobInfo] = []
    cursor: str | None = None
    while True:
        page = await client.jobs(limit=LISTED, cursor=cursor)
        found += page.jobs
        cursor = page.next
        if cursor is None:
            return found


class JobStepRunner:
    """Plays one step for one client process."""

    def __init__(self, world: Stage, bus: MemoryBus | None, node: str, client: Client, step: JobStep) -> None:
        self._world = world
        self._jobs = world.jobs
        self._bus = bus
        self._node = node
        self._client = client
        self._step = step

    def __repr__(self) -> str:
        step = self._step
        what = [step.kind.value, f"{step.endpoint}.{step.method}", "+".join(step.endings)]
        what += [f"key {step.key}"] * (step.key is not None) + ["ordered"] * step.ordered
        return f"{step.request}: {' '.join(what) if step.bad is None else step.bad}"

    async def run(self) -> None:
        """Play the step to its end. Expected errors are handled here."""
        step = self._step
        if step.series is not None:
            await self._repeat()
            return
        if step.kind is JobKind.LIST:
            await self._list()
            return
        self._jobs.asked(step)
        if step.kind in (JobKind.PUBLISH, JobKind.BAD):
            await self._publish()
            return
        job = await self._submit()
        if job is None:
            return
        match step.kind:
            case JobKind.WATCH:
                # Where due tasks may be late in their queue, watch like a client that only knows the id.
                unseen = step.delay_s is not None and self._world.plan.elects
                await self._watch(self._client.job(job.id) if unseen else job)
            case JobKind.REPLAY:
                await self._watch(job)
                await asyncio.sleep(step.doom_after_s)
                if self._jobs.is_dead(job.id):
                    await asyncio.gather(*(self._replay(job) for _ in range(step.at_once)))
                    await self._watch(job)
            case JobKind.ITEMS:
                await self._read(job)
            case JobKind.CANCEL:
                await asyncio.sleep(step.doom_after_s)
                await self._cancel(job)
            case _:
                pass

    # -- submitting -----------------------------------------------------------------------------------------------

    async def _submit(self) -> Job | None:
        step = self._step
        client = self._client.options(
            key=step.key,
            timeout_s=step.timeout_s,
            max_attempts=step.max_attempts if step.says_attempts else None,
            priority=step.priority,
            idempotency_key=step.idempotency_key,
            deadline_s=step.deadline_s,
            delay_s=step.delay_s,
            cron=step.cron,
            ordered=step.ordered or None,
            backoff_s=step.backoff_s if step.says_attempts else None,
            result_ttl_s=None if step.keeps_result else 0.0,
        )
        try:
            job = await client.submit(f"{step.endpoint}.{step.method}", **self._arguments())
        except GanglineError as error:
            self._note(f"was not stored: {error.code}: {error.message}")
            return None
        self._note(f"is stored as {job.id}")
        self._jobs.stored(step, job.id)
        return job

    def _arguments(self) -> dict[str, Any]:
        step = self._step
        found: dict[str, Any] = {
            "request": step.request,
            "duration_s": step.duration_s,
            "endings": [str(each) for each in step.endings],
        }
        if step.method == "job_items":
            found["count"] = step.items
        if step.padding:
            found["padding"] = step.padding
        if step.msgpack and step.kind not in (JobKind.PUBLISH, JobKind.REPEAT_RAW):
            found["blob"] = b"\xff\x00"
        return found

    async def _publish(self) -> None:
        """Publish like `nats pub`, and repeat until it is acknowledged; repeating does not create a second task."""
        step, bus = self._step, self._bus
        assert bus is not None
        bad = step.bad
        subject = f"sim.task.{step.endpoint}.{step.method}" if bad is None else bad.subject
        subject = self._world.names.of_tenant(subject, step.tenant)
        body = json.dumps(self._arguments()).encode() if bad is None else bad.body.encode()
        given = self._headers() if bad is None else dict(bad.headers)
        given["Nats-Msg-Id"] = f"raw-{step.number}"
        for _ in range(TRIES):
            sequence = await self._try_publish(bus, subject, body, given)
            if sequence is not None:
                self._note(f"is stored at {sequence}")
                job = given.get("Gangline-Job", str(sequence)) if bad is None else str(sequence)
                self._jobs.stored(step, job_of_tenant(job, step.endpoint, step.tenant) if step.tenant else job)
                return
            await asyncio.sleep(PAUSE_S)
        self._note("was not stored")

    async def _try_publish(self, bus: MemoryBus, subject: str, body: bytes, given: dict[str, str]) -> int | None:
        try:
            answer = await bus.request(subject, body, headers=given, timeout_s=TRY_S)
        except GanglineError as error:
            self._note(f"was not acknowledged: {error.code}")
            return None
        told = json.loads(answer.data)
        return None if "error" in told else int(told["seq"])

    def _headers(self) -> dict[str, str]:
        step = self._step
        found = {"Gangline-Priority": str(step.priority)}
        if step.says_attempts:
            found["Gangline-Max-Attempts"] = str(step.max_attempts)
            found["gangline-backoff"] = f"{step.backoff_s:.3f}"
        for name, value in (
            ("Gangline-Job", step.named),
            ("Gangline-Cron", step.cron),
            ("Gangline-Key", step.key),
            ("Gangline-Ordered", "true" if step.ordered else None),
            ("Gangline-Deadline", step.deadline_s),
            ("Gangline-Delay", step.delay_s),
            ("Gangline-Timeout", step.timeout_s),
            ("Gangline-Result-TTL", None if step.keeps_result else "0"),
        ):
            if value is not None:
                found[name] = str(value)
        return found

    # -- its end --------------------------------------------------------------------------------------------------

    async def _watch(self, job: Job) -> None:
        try:
            value = await job.result(timeout_s=PATIENCE_S)
        except GanglineError as error:
            self._note(f"ended with {error.code}")
            self._jobs.told_error(self._step, job.id, error)
        else:
            self._note(f"gave {value}")
            self._jobs.told(self._step, job.id, value)

    async def _read(self, job: Job) -> None:
        found: list[object] = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                async for item in job.items(skip=True):
                    found.append(item)
        except GanglineError as error:
            self._note(f"ended with {error.code} after {len(found)} items")
            self._jobs.told_error(self._step, job.id, error)
        except TimeoutError:
            self._jobs.told_error(self._step, job.id, DeadlineExceeded("its items never ended"))
        else:
            self._note(f"gave {len(found)} items")
            self._jobs.told_items(self._step, job.id, found)

    async def _replay(self, job: Job) -> None:
        """Replay it, and retry until that succeeds; a replay may fail halfway."""
        for _ in range(TRIES):
            self._jobs.replays(self._step)
            try:
                await self._client.replay(job.id)
            except (UnknownJob, JobError) as error:
                self._note(f"is not replayed: {error.code}: {error.message}")
                self._jobs.not_replayed(self._step, error)
                return
            except GanglineError as error:
                self._note(f"may be replayed: {error.code}: {error.message}")
                await asyncio.sleep(PAUSE_S)
            else:
                self._note("is replayed")
                self._jobs.replayed(self._step)
                return

    async def _repeat(self) -> None:
        """Create a schedule, or remove what is left of one."""
        step, crons = self._step, self._jobs.crons
        if step.kind is JobKind.UNREPEAT:
            for _ in range(TRIES * 5):
                if all(self._world.loop.crashed(node) for node in crons.publishers(step)):
                    break
                await asyncio.sleep(PAUSE_S)
        else:
            crons.begins(step, self._node)
            try:
                await (self._publish() if step.kind is JobKind.REPEAT_RAW else self._submit())
            finally:
                crons.left(step, self._node)
            await asyncio.sleep(step.doom_after_s)
        raw = f"cron-{step.series}"
        submitted = job_of_key(f"{step.endpoint}.{step.method}", step.idempotency_key or "")
        for job in (raw, submitted):
            await self._unrepeat(self._client.job(job, step.endpoint))

    async def _unrepeat(self, job: Job) -> None:
        self._jobs.crons.dooms(self._step)
        for _ in range(TRIES):
            try:
                ended = await job.cancel()
            except UnknownJob:
                return
            except GanglineError as error:
                self._note(f"may be ended: {error.code}: {error.message}")
                await asyncio.sleep(PAUSE_S)
            else:
                self._note(f"cancel of {job.id} says {ended}")
                if ended:
                    self._jobs.crons.ended(self._step)
                return

    async def _list(self) -> None:
        unfinished = self._jobs.unfinished()
        try:
            found = await list_jobs(self._client)
        except GanglineError as error:
            self._note(f"no list: {error.code}: {error.message}")
        else:
            self._note(f"{len(found)} jobs are listed, {len(unfinished)} are unfinished")
            self._jobs.listed(unfinished, found)

    async def _cancel(self, job: Job) -> None:
        self._jobs.dooms(self._step)
        try:
            cancelled = await job.cancel()
        except GanglineError as error:
            self._note(f"is not cancelled: {error.code}: {error.message}")
            self._jobs.told_error(self._step, job.id, error)
        else:
            self._note(f"cancel says {cancelled}")
            if cancelled:
                self._jobs.cancelled(self._step)

    def _note(self, text: str) -> None:
        self._world.trace.note(self._node, f"{self._step.request} of step {self._step.number} {text}")
