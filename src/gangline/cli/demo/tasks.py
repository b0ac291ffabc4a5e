"""The demo's third part: durable tasks, while the dispatcher that owns their queue and a worker are killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ...dispatcher.jobs.dead_letters import DeadLetter
from ...schemas.wire import codec, headers
from ...testing.kit.processes import PATIENCE_S, ChildProcess, holds_within
from ...testing.kit.records import NEVER, SentRequest
from ..views.jobs import letters_table
from .calls import METHOD, POOL, TARGET, Drive
from .pools import SLOTS
from .stage import HERE, Stage

if TYPE_CHECKING:
    from ...dispatcher.jobs.job import Job

WORKERS: Final = ("t1", "t2", "t3")
DISPATCHERS: Final = ("dispatcher1", "dispatcher2")
DISPATCHER_DIES_AT: Final = 0.02
"""Share of the files that are done at that time."""
WORKER_DIES_AT: Final = 0.6
SETTLED_S: Final = 0.5
"""This long after its takeover, the other dispatcher has stored the outcomes that workers kept for it. The worker must
not die earlier: outcomes not yet stored would be lost with it, and their tasks would rightly run again. (Results that
reach us prove nothing: they may have been stored long before.)"""
POISON: Final = "/no/such/file"
"""A task with this path raises on any worker."""
POISON_ATTEMPTS: Final = 2
GARBAGE: Final = b'{"path": '
"""A body that is not JSON."""


class TaskShow:
    """The third part of the demo, and its records."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.screen = stage.screen
        self.client = stage.client
        self.requests: dict[str, SentRequest] = {}
        """By job, as the judge reads them: submissions, and waits for results."""
        self.answers: dict[str, SentRequest] = {}
        self.drive = Drive(stage.client, stage.bus, stage.names, stage.name_of)
        self.letters: list[DeadLetter] = []
        self.poisoned: dict[str, str] = {}
        """By job, the expected dead letters and their reasons."""
        self.worker_killed = ""
        self.dispatcher_killed = ""
        self.pause_s = 0.0
        """The longest time without a result after the dispatcher's death."""
        self._dispatcher_died_at = 0.0
        self._takes_before = 0
        self._holder: ChildProcess
        """The dispatcher that owned the queue first."""
        self._other: ChildProcess

    async def cast(self) -> None:
        """Two dispatchers, three workers."""
        self.stage.serve(POOL, SLOTS)
        both = [self.stage.dispatcher(name) for name in DISPATCHERS]
        for name in WORKERS:
            self.stage.worker(name=name, node=HERE)
        await self.stage.ready()
        self._holder = await self.stage.holder(POOL)
        (self._other,) = (each for each in both if each is not self._holder)

    async def act_submit(self, paths: Sequence[str]) -> None:
        """All files as durable tasks; a worker and a dispatcher are killed meanwhile."""
        screen = self.screen
        screen.title("7. submit: tasks that outlive their producer")
        before = time.monotonic()
        jobs = await self.client.submit_many(TARGET, [{"path": path} for path in paths])
        for job, path in zip(jobs, paths, strict=True):
            self.requests[job.id] = SentRequest(
                id=path, kind="submit", pid=0, asked=before, due=NEVER, ok=True, expected=path, job=job.id
            )
        took_s = time.monotonic() - before
        screen.say(f"{len(jobs)} tasks are stored on disk, each acknowledged, {took_s:.1f} s after the first.")
        screen.say(f"The same as:  nats pub -J {self.stage.names.task(POOL, METHOD)} '{{\"path\": ...}}'")
        milestones = [(DISPATCHER_DIES_AT, self._kill_dispatcher), (WORKER_DIES_AT, self._kill_worker)]
        waiting = {path: job for job, path in zip(jobs, paths, strict=True)}
        with screen.progress("submit", len(jobs)) as tick:
            ones = [lambda path: self._result(waiting[path])] * len(jobs)
            await self.drive.feed("submit", ones, paths, tick=tick, milestones=milestones)
        died_at = self._dispatcher_died_at
        after = [died_at, *sorted(answer.told for answer in self.answers.values() if died_at < answer.told < NEVER)]
        self.pause_s = max(map(float.__sub__, after[1:], after), default=0.0)
        screen.say(f"The other dispatcher took over: for {self.pause_s:.1f} s there was no result.")

    async def _result(self, job: Job) -> Any:
        asked = self.requests[job.id]
        answer = SentRequest(id=f"{asked.id}/result", kind="job", pid=0, asked=asked.asked, due=NEVER)
        self.answers[job.id] = answer
        value = await job.result(timeout_s=PATIENCE_S)
        answer.told, answer.ok, answer.expected, answer.value = time.monotonic(), True, asked.id, asked.id
        return value

    async def _kill_worker(self) -> None:
        def settled() -> bool:
            over = len(self.drive.done) + len(self.drive.failures) == len(self.requests)
            return over or self.taken_over

        await holds_within(PATIENCE_S, settled, pause_s=0.05)
        await asyncio.sleep(SETTLED_S)
        victim = self.stage.workers[WORKERS[1]]
        await victim.until_busy()
        await self.stage.kill(victim)
        self.worker_killed = victim.name
        self.screen.event(f"kill -9 {victim.name}, in the middle of its work. Its tasks start again elsewhere.")

    async def _kill_dispatcher(self) -> None:
        name = self._holder.name
        self._takes_before = self._takes()
        self._dispatcher_died_at = await self.stage.kill(self._holder)
        self.dispatcher_killed = name
        self.screen.event(f"kill -9 {name}, which owns the queue. Running tasks continue, and are not started again.")

    @property
    def taken_over(self) -> bool:
        """Whether the other dispatcher has taken the queue since the first one died."""
        return self._takes() > self._takes_before

    def _takes(self) -> int:
        """How often the other dispatcher has taken over the queue of our pool so far."""
        lines = self._other.log_text().splitlines()
        return sum("queue.taken" in line and f'"{POOL}"' in line for line in lines)

    async def act_dead(self) -> None:
        """Two tasks that must fail: one that always raises, and one that cannot be parsed, both by plain publishing.
        They run after the last kill: a task whose last attempt is interrupted by a kill becomes a dead letter for
        another reason."""
        self.screen.title("8. dead letters: tasks that failed, and why")
        stream, subject = await self.stage.streams.tasks(), self.stage.names.task(POOL, METHOD)
        raises = {headers.MAX_ATTEMPTS: str(POISON_ATTEMPTS), headers.BACKOFF: "100ms"}
        stored = await stream.publish(subject, codec.to_json({"path": POISON}), headers=raises)
        self.poisoned[str(stored.sequence)] = "failed"
        stored = await stream.publish(subject, GARBAGE)
        self.poisoned[str(stored.sequence)] = "malformed"

        async def buried() -> bool:
            self.letters = await self.client.dead_letters()
            return len(self.letters) >= len(self.poisoned)

        await holds_within(PATIENCE_S, buried, pause_s=0.05)
        self.screen.say("$ gangline dead ls")
        self.screen.show(letters_table(self.letters))
