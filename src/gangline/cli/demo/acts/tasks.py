"""The demo's third part: durable tasks, while the dispatcher that owns their queue and a worker are killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ....bus.port.bus import StreamState
from ....dispatcher.jobs.dead_letters import DeadLetter
from ....dispatcher.jobs.storage import TaskStreams
from ....schemas.errors.base import GanglineError
from ....schemas.wire import codec, headers
from ...views.jobs import letters_table
from ..checks.calls import Done
from ..fixtures.crew import Crew, ProcessFailed
from ..fixtures.screen import Screen
from ..fixtures.stage import READY_S, Stage
from .calls import METHOD, POOL, TARGET

if TYPE_CHECKING:
    from ....dispatcher.jobs.job import Job

WORKERS: Final = ("t1", "t2", "t3")
DISPATCHERS: Final = ("dispatcher1", "dispatcher2")
DISPATCHER_DIES_AT: Final = 0.02
"""Share of the files that are done at that time."""
WORKER_DIES_AT: Final = 0.6
SETTLED_S: Final = 0.5
"""By this time after its takeover, the other dispatcher has stored the outcomes that workers kept for it. The worker
must not die earlier: outcomes that nobody had stored would be lost with it, and their tasks would rightly run again.
(Results that reach us prove nothing: they may have been stored long before.)"""
PATIENCE_S: Final = 60.0
POISON: Final = "/no/such/file"
"""A task with this path raises on any worker."""
POISON_ATTEMPTS: Final = 2
GARBAGE: Final = b'{"path": '
"""A body that is not JSON."""


class TaskShow:
    """What it does, and what it records."""

    def __init__(self, stage: Stage, crew: Crew) -> None:
        self.stage = stage
        self.screen: Screen = stage.screen
        self.client = stage.client
        self.crew = crew
        self.streams = TaskStreams(stage.bus, stage.names)
        self.given: dict[str, str] = {}
        """Path by job."""
        self.done: list[Done] = []
        self.answered: dict[str, str] = {}
        """By job, the worker whose answer became the result."""
        self.failures: list[str] = []
        self.letters: list[DeadLetter] = []
        self.poisoned: dict[str, str] = {}
        """By job, the expected dead letters and their reasons."""
        self.worker_killed = ""
        self.dispatcher_killed = ""
        self.pause_s = 0.0
        """The longest time without a result after the dispatcher's death."""
        self._holder = ""
        """The dispatcher that owned the queue first."""
        self._dispatcher_died_at = 0.0
        self._takes_before = 0
        self._ended = asyncio.Event()
        """All results have arrived."""
        self.left: StreamState | None = None
        """Number of messages in the task stream at the end."""

    # -- processes ------------------------------------------------------------------------------------------------

    async def cast(self) -> None:
        """Two dispatchers, three workers."""
        for name in DISPATCHERS:
            await self.crew.dispatcher(name)
        for name in WORKERS:
            await self.crew.worker(name)
        await self.stage.ready(self.crew, POOL, *WORKERS)
        self._holder = await self._find_holder()

    # -- steps ----------------------------------------------------------------------------------------------------

    async def act_submit(self, paths: Sequence[str]) -> None:
        """All files as durable tasks; a worker and a dispatcher are killed meanwhile."""
        screen = self.screen
        screen.title("7. submit: tasks that outlive their producer")
        clock = asyncio.get_running_loop().time
        before = clock()
        jobs = await self.client.submit_many(TARGET, [{"path": path} for path in paths])
        self.given = {job.id: path for job, path in zip(jobs, paths, strict=True)}
        screen.say(
            f"{len(jobs)} tasks are stored on disk, each acknowledged, {clock() - before:.1f} s after the first."
        )
        screen.say(f"The same as:  nats pub -J {self.stage.names.task(POOL, METHOD)} '{{\"path\": ...}}'")
        due: list[tuple[int, Callable[[], Any]]] = [
            (round(len(jobs) * DISPATCHER_DIES_AT), self._kill_dispatcher),
            (round(len(jobs) * WORKER_DIES_AT), self._kill_worker),
        ]
        ends: list[float] = []
        async with asyncio.TaskGroup() as group:
            with screen.progress("submit", len(jobs)) as tick:

                async def one(job: Job) -> None:
                    await self._result(job)
                    ends.append(clock())
                    tick(1)
                    while due and len(ends) >= due[0][0]:
                        group.create_task(due.pop(0)[1]())

                async with asyncio.TaskGroup() as results:
                    for job in jobs:
                        results.create_task(one(job))
            self._ended.set()
        after = [self._dispatcher_died_at, *(at for at in ends if at > self._dispatcher_died_at)]
        self.pause_s = max(map(float.__sub__, after[1:], after), default=0.0)
        screen.say(f"The other dispatcher took over: for {self.pause_s:.1f} s there was no result.")

    async def _poison(self) -> None:
        """One task that always raises, and one that cannot be parsed, both by plain publishing."""
        stream = await self.streams.tasks()
        subject = self.stage.names.task(POOL, METHOD)
        raises = {headers.MAX_ATTEMPTS: str(POISON_ATTEMPTS), headers.BACKOFF: "100ms"}
        stored = await stream.publish(subject, codec.to_json({"path": POISON}), headers=raises)
        self.poisoned[str(stored.sequence)] = "failed"
        stored = await stream.publish(subject, GARBAGE)
        self.poisoned[str(stored.sequence)] = "malformed"

    async def _result(self, job: Job) -> None:
        try:
            value = await job.result(timeout_s=PATIENCE_S)
        except GanglineError as error:  # counted, not raised: a demo with a lost task has failed, but reports all of it
            self.failures.append(f"{self.given[job.id]} by submit: {type(error).__name__}: {error}")
            return
        self.answered[job.id] = self.crew.name_of(value["pid"])
        self.done.append(Done.of(value, path=self.given[job.id], way="submit", worker=self.answered[job.id]))

    async def _kill_worker(self) -> None:
        name = WORKERS[1]
        while self._takes() <= self._takes_before and not self._ended.is_set():  # noqa: ASYNC110 - of a log file
            await asyncio.sleep(0.05)
        await asyncio.sleep(SETTLED_S)
        await self.crew.members[name].until_busy()
        self.crew.kill(name)
        self.worker_killed = name
        self.screen.event(f"kill -9 {name}, in the middle of its work. Its tasks start again elsewhere.")

    async def _kill_dispatcher(self) -> None:
        name = self._holder
        self._takes_before = self._takes()
        self.crew.kill(name)
        self._dispatcher_died_at = asyncio.get_running_loop().time()
        self.dispatcher_killed = name
        self.screen.event(f"kill -9 {name}, which owns the queue. Running tasks continue, and are not started again.")

    def _takes(self) -> int:
        """How often the other dispatcher has taken over the queue of our pool so far."""
        (other,) = set(DISPATCHERS) - {self._holder}
        lines = self.crew.members[other].log_text().splitlines()
        return sum("queue.taken" in line and f'"{POOL}"' in line for line in lines)

    async def _find_holder(self) -> str:
        """The dispatcher that owns the queue of our pool; one takes it as soon as there are workers.

        Raises:
            ProcessFailed: none of ours owns it.
        """
        deadline = asyncio.get_running_loop().time() + READY_S
        while asyncio.get_running_loop().time() < deadline:
            for queue in await self.client.queues():
                for name in DISPATCHERS:
                    log = self.crew.members[name].log_text()
                    if queue.endpoint == POOL and queue.dispatcher and queue.dispatcher in log:
                        return name
            await asyncio.sleep(0.05)
        raise ProcessFailed(f"no dispatcher owns the queue of {POOL}")

    async def act_dead(self) -> None:
        """Two tasks that must fail. They run after the last kill: a task whose last attempt is interrupted by a kill
        becomes a dead letter for another reason."""
        self.screen.title("8. dead letters: tasks that failed, and why")
        await self._poison()
        deadline = asyncio.get_running_loop().time() + READY_S
        while len(self.letters) < len(self.poisoned) and asyncio.get_running_loop().time() < deadline:
            self.letters = await self.client.dead_letters()
            await asyncio.sleep(0.05)
        self.screen.say("$ gangline dead ls")
        self.screen.show(letters_table(self.letters))

    # -- the end --------------------------------------------------------------------------------------------------

    async def emptied(self) -> None:
        """Wait briefly for the last acknowledgements, and record what is left in the stream."""
        stream = await self.streams.tasks()
        for _ in range(100):
            self.left = await stream.state()
            if not self.left.messages:
                return
            await asyncio.sleep(0.05)
