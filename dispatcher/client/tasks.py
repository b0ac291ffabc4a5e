"""What clients do with durable tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...bus.port.bus import Bus
from ...runtime.clock import Environment
from ...schemas.errors.base import GanglineError
from ...schemas.messages.jobs import QueueStats
from ...schemas.names import Names
from ..calls.call import CallOptions
from ..jobs.dead_letters import DeadLetter, DeadLetters
from ..jobs.job import ASK_TIMEOUT_S, Job
from ..jobs.queries import JobQueries
from ..jobs.storage import TaskStorage, TaskStreams
from ..jobs.stored import JobRef
from ..jobs.submitter import Submitted, Submitter, at_once
from .hooks import ClientRequest, HookChain


class DurableTasks:
    """The part of Client that is about tasks which outlive it."""

    _options: CallOptions
    _hooks: HookChain | None

    def _use_storage(self, bus: Bus, names: Names, storage: TaskStorage | None, ambient: Environment) -> None:
        self._streams = streams = TaskStreams(bus, names, storage)
        self._queries = JobQueries(bus, streams, ambient)
        self._submitter = Submitter(streams, ambient)
        self._letters = DeadLetters(streams, ambient, self._queries)

    def _check_open(self) -> None:
        raise NotImplementedError

    async def submit(self, target: str, /, *args: Any, **kwargs: Any) -> Job:
        """Submit a durable task: it runs now or later, even if this process exits. Returns when it is stored.

        The task is not lost, not started twice while it runs, and retried when it fails; it ends as done, as a dead
        letter, or cancelled. Its result is kept for an hour. `options` has all settings.

        A standing set runs it on rank 0 of one of its gangs, or on all ranks if its calls run on all; then the result
        is the list of theirs. An attempt whose gang is torn down counts as one whose worker died.

        Args:
            target: `ENDPOINT.METHOD`, for example `images.thumbnail`; the endpoint may be a standing set.
            args, kwargs: the task's own arguments: named or positional ones, not both.

        Not acknowledged at once, it is tried again for up to 30 s, without ever making two tasks of it. Cancelling may
        leave it stored.

        Raises:
            InvalidName, InvalidRequest, InvalidArguments, InvalidSettings, PayloadTooLarge: nothing was sent.
            InvalidSchedule: the server does not understand `cron`; says why.
            StorageUnavailable: not acknowledged; `may_have_started` says whether it may be stored all the same.
            ClosedError: this client was closed.
        """
        self._check_open()
        request = ClientRequest(kind="submit", target=target, args=args, kwargs=kwargs, options=self._options)
        if self._hooks is not None and self._hooks.submits:
            return await self._hooks.submit(request, self._submit_now)
        return await self._submit_now(request)

    async def submit_many(self, target: str, arguments: Sequence[Mapping[str, Any]], /) -> list[Job]:
        """Submit a task for each of these named arguments concurrently; jobs are returned in order. With an
        `idempotency_key`, each uses that key with its index in the list.

        Raises:
            GanglineError: the first failure, as `submit`; all others were attempted: `details["jobs"]` has the ids in
                order, None for those that failed.
        """
        self._check_open()
        found: Sequence[Job | GanglineError]
        if self._hooks is not None and self._hooks.submits:
            found = await at_once(len(arguments), lambda part: self._submit_part(target, arguments[part], part))
        else:
            stored = await self._submitter.many(target, arguments, self._options)
            found = [item if isinstance(item, GanglineError) else self._job_of(item, self._options) for item in stored]
        for item in found:
            if isinstance(item, GanglineError):
                ids = [None if isinstance(each, GanglineError) else each.id for each in found]
                item.details = {**item.details, "jobs": ids}
                raise item
        return [item for item in found if isinstance(item, Job)]

    def job(self, id: str, /, endpoint: str | None = None) -> Job:
        """A handle to the job with this id. Sends nothing.

        Args:
            id: `Job.id`; for a task published without the client, its sequence in the stream.
            endpoint: endpoint of its task; finds it faster, and is needed to find one far down a long queue.

        Raises:
            InvalidName: no id, or no name.
        """
        return Job(self._queries, JobRef(id=id, endpoint=endpoint))

    async def queues(self) -> list[QueueStats]:
        """Queues of all endpoints with waiting or running tasks, or a dispatcher: depth, oldest, running, idle slots.

        Raises:
            Disconnected, StorageUnavailable: the stream could not be read.
        """
        self._check_open()
        return await self._queries.queues(self._options.timeout_s or ASK_TIMEOUT_S)

    async def dead_letters(
        self, endpoint: str | None = None, *, limit: int | None = 1000, bodies: bool = True
    ) -> list[DeadLetter]:
        """Tasks that will not be retried, of all endpoints or one: the newest `limit`, oldest first.

        Args:
            limit: None: all of them.
            bodies: whether to return bodies; without them, thousands of large dead letters take little memory.

        Raises:
            Disconnected, StorageUnavailable: the stream could not be read.
        """
        self._check_open()
        return await self._letters.newest(endpoint, limit=limit, bodies=bodies)

    async def dead_letter(self, job: str) -> DeadLetter:
        """The dead letter of one job.

        Raises:
            UnknownJob: there is none.
        """
        self._check_open()
        return await self._letters.find(job)

    async def replay(self, job: str | DeadLetter) -> Job:
        """Requeue a dead letter under its job id with a fresh set of attempts.

        `delay_s` does not apply again, and a deadline that has passed is dropped.

        Args:
            job: its id, or one of its dead letters, which is faster.

        Raises:
            UnknownJob: there is no such letter.
            JobError: the job has ended otherwise since, or somebody else replays it just now.
        """
        self._check_open()
        return Job(self._queries, await self._letters.replay(job))

    async def drop(self, job: str | DeadLetter) -> None:
        """Delete a dead letter.

        Args:
            job: its id, or one of its dead letters.

        Raises:
            UnknownJob: there is no such letter.
        """
        self._check_open()
        await self._letters.drop(job)

    async def _submit_now(self, request: ClientRequest, part: int | None = None) -> Job:
        stored = await self._submitter.one(request.target, request.args, request.kwargs, request.options, part=part)
        return self._job_of(stored, request.options)

    async def _submit_part(self, target: str, kwargs: Mapping[str, Any], part: int) -> Job | GanglineError:
        assert self._hooks is not None
        request = ClientRequest(kind="submit", target=target, kwargs=kwargs, options=self._options)
        try:
            return await self._hooks.submit(request, lambda changed: self._submit_now(changed, part))
        except GanglineError as error:
            return error

    def _job_of(self, submitted: Submitted, options: CallOptions) -> Job:
        message = submitted.message
        submit = options.submit
        return Job(
            self._queries,
            JobRef(
                id=message.job,
                endpoint=message.endpoint,
                method=message.method,
                sequence=submitted.sequence,
                scheduled=message.scheduled,
                repeats=message.repeats,
                result_kept=message.result_kept,
                events=bool(submit is not None and submit.events),
                submitted=True,
            ),
        )
