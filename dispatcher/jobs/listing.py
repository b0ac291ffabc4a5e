"""Lists jobs: those that dispatchers have fetched, those further down the queues, delayed ones, and ended ones as long
as their results are kept.

The list is read on demand, in this order, and each place in it has a cursor to go on from. While jobs change, one can
be missed or listed twice: between two pages it may have moved from one part to another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from ...bus.port.bus import Stream, StreamMessage
from ...runtime.clock import Environment
from ...schemas.errors.base import InvalidRequest, MalformedMessage, NoDispatcher, Unavailable, UnknownJob
from ...schemas.messages.jobs import JobInfo, ListReply, ListRequest
from ...schemas.names import Names, QueueOperation, check_job, check_name, job_endpoint
from ...schemas.records.jobs import JobState
from .queries import JobQueries, info_of_record, parse_result
from .storage import TaskStreams
from .stored import (
    JobRef,
    abbreviates,
    begins_with,
    info_of_schedule,
    info_of_task,
    job_of,
    recurring,
)

SCANNED: Final = 20_000
"""Maximum number of messages that are read for one page."""
MAX_LISTED: Final = 10_000
"""Jobs of one page."""
_PAGE: Final = 128
_RESOLVED: Final = 2000
"""How many ended jobs are looked through for an abbreviated id."""
_LEFT: Final = "left"
"""The first part of a cursor behind the end of the list: places of which the rest is missing follow."""
_UNREAD: Final = frozenset({JobState.QUEUED, JobState.SCHEDULED})
"""States of tasks that no dispatcher has read."""
_ACTIVE: Final = (JobState.QUEUED, JobState.WAITING, JobState.RUNNING)
_ENDED: Final = (JobState.DONE, JobState.DEAD, JobState.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPage:
    """A part of the list of jobs."""

    jobs: tuple[JobInfo, ...]
    """Without results, earlier attempts and tracebacks: `Client.job(...)` has those."""
    next: str | None = None
    """There may be more: the `cursor` of the next page. This page may have fewer jobs than its limit, or none: for one
    page, at most 20 000 waiting tasks of an endpoint are looked through. The rest of them follows the end of the
    list."""
    unanswered: tuple[str, ...] = ()
    """Endpoints with tasks whose queues change hands, or whose dispatcher did not answer: tasks of theirs that run are
    `queued` or `waiting` in the list."""


class JobList:
    """Lists jobs. One per client."""

    def __init__(self, queries: JobQueries, streams: TaskStreams, ambient: Environment) -> None:
        self._queries = queries
        self._streams = streams
        self._names: Names = streams.names
        self._ambient = ambient

    async def page(
        self, wanted: ListRequest, endpoint: str | None, *, limit: int, cursor: str | None, timeout_s: float
    ) -> JobPage:
        """See Client.jobs."""
        if not 1 <= limit <= MAX_LISTED:
            raise InvalidRequest(f"limit is {limit}: give 1 to {MAX_LISTED}")
        if endpoint is not None:
            check_name(endpoint, "endpoint")
        found: list[JobInfo] = []
        unanswered: dict[str, None] = {}
        # Where to go on, and then the places where parts were left. Of those, only the rest of the part is missing.
        place, *left = (cursor or "").split(",")
        again: list[str] = []
        """Left in this page."""
        if place == _LEFT:
            starts, left, only = left, [], True
        else:
            starts, only = [place], False
        for number, start in enumerate(starts):
            place = start
            listing = self._all(wanted, endpoint, start, timeout_s, unanswered, only=only)
            try:
                async for info, here in listing:
                    if info is None:
                        again.append(here)
                        place = _behind(here)
                    elif len(found) < limit:
                        found.append(info)
                        place = here
                    else:
                        rest = [_LEFT, place, *starts[number + 1 :]] if only else [place]
                        return JobPage(
                            jobs=tuple(found), next=",".join([*rest, *left, *again]), unanswered=tuple(unanswered)
                        )
            finally:
                await listing.aclose()
        more = [*left, *again]
        return JobPage(jobs=tuple(found), next=",".join([_LEFT, *more]) if more else None, unanswered=tuple(unanswered))

    async def resolve(self, text: str, endpoint: str | None, timeout_s: float) -> str:
        """The id that begins with this text.

        Raises:
            UnknownJob: there is none.
            InvalidRequest: there are several.
        """
        check_job(text)
        owner = endpoint or job_endpoint(text)
        found: dict[str, None] = {}
        ended = 0
        wanted = ListRequest(prefix=text)
        listing = self._all(wanted, owner, "", timeout_s, {}) if abbreviates(text) else None
        if listing is not None:
            try:
                async for info, _ in listing:
                    if info is None:
                        continue
                    ended += info.state.final
                    found[info.job] = None
                    if len(found) > 5:
                        break
            finally:
                await listing.aclose()
        if len(found) > 1:
            raise InvalidRequest(f"{text!r} is the beginning of several jobs: {', '.join(sorted(found))}")
        if not found:
            raise UnknownJob(f"no job has an id that begins with {text!r}", details={"job": text, "certain": False})
        return next(iter(found))

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _all(
        self,
        wanted: ListRequest,
        endpoint: str | None,
        cursor: str,
        timeout_s: float,
        unanswered: dict[str, None],
        *,
        only: bool = False,
    ) -> AsyncGenerator[tuple[JobInfo | None, str], None]:
        """Matching jobs from a place on, each with the place after it: `<part>/<endpoint>/<position>`. None: enough of
        a part was looked through; beyond that place may be more, and the next part follows, unless `only` the rest of
        this part is wanted."""
        part, _, rest = cursor.partition("/")
        owner, _, position = rest.partition("/")
        if (cursor or only) and (part not in ("active", "delayed", "ended") or not position.isdecimal()):
            raise InvalidRequest(f"{cursor!r} is not a cursor: give the `next` of the previous page")
        start = int(position or 0)
        states = frozenset(wanted.states or JobState)
        if part in ("", "active"):
            if states.intersection(_ACTIVE):
                one = (only and owner) or endpoint
                async for each, place in self._active(wanted, one, owner, start, timeout_s, unanswered):
                    yield each, f"active/{place}"
            start = 0
            if only:
                return
        if part in ("", "active", "delayed"):
            if JobState.SCHEDULED in states:
                async for each, sequence in self._delayed(wanted, endpoint, start):
                    yield each, f"delayed//{sequence}"
            start = 0
            if only:
                return
        if states.intersection(_ENDED):
            async for info, revision in self._ended(wanted, endpoint, start or None):
                if info_matches(info, wanted):
                    yield without_details(info), f"ended//{revision}"

    async def _active(
        self,
        wanted: ListRequest,
        endpoint: str | None,
        owner: str,
        start: int,
        timeout_s: float,
        unanswered: dict[str, None],
    ) -> AsyncGenerator[tuple[JobInfo | None, str], None]:
        """In the streams of tasks, endpoint by endpoint, in the order of publication."""
        depths = await self._queries.depths()
        endpoints = sorted({*depths, *await self._queries.had()})
        for name in endpoints if endpoint is None else [endpoint]:
            if name < owner:
                continue
            silent = unanswered if depths.get(name) else {}
            listing = self._active_of(name, wanted, start if name == owner else 0, timeout_s, silent)
            async for info, sequence in listing:
                yield info, f"{name}/{sequence}"

    async def _active_of(
        self, name: str, wanted: ListRequest, place: int, timeout_s: float, unanswered: dict[str, None]
    ) -> AsyncGenerator[tuple[JobInfo | None, int], None]:
        """Of one endpoint: first those that its dispatcher has read, then those in the stream beyond. Of these it may
        have read some ahead for tenants, and only it knows what they do."""
        known: dict[str, JobInfo] = {}
        ahead: dict[str, JobInfo] = {}
        try:
            following: int | None = place
            while following is not None:
                place = following
                reply = await self._ask(name, wanted, place, timeout_s, unanswered)
                ahead.update({info.job: info for info in reply.ahead})
                for info in reply.jobs:
                    known[info.job] = info
                    place = info.sequence or place
                    yield info, place
                following = reply.next
            place = max(place, reply.read_to)
            while reply.ahead_next is not None:
                reply = await self._ask(
                    name, wanted.model_copy(update={"states": ()}), reply.ahead_next, timeout_s, unanswered
                )
                # Meanwhile it may have read the stream that far.
                ahead.update({info.job: info for info in (*reply.jobs, *reply.ahead)})
        except (NoDispatcher, Unavailable, InvalidRequest):
            unanswered[name] = None  # nobody has the queue, or a dispatcher of an earlier version
        if wanted.states and _UNREAD.isdisjoint(wanted.states):
            for info in ahead.values():
                if info_matches(info, wanted):
                    yield info, info.sequence or place
            return
        known |= ahead
        looked = 0
        async for message in _following(await self._streams.tasks(make=False), self._names.tasks_of(name), place + 1):
            if looked == SCANNED:
                yield None, place
                return
            looked, place = looked + 1, message.sequence
            info = info_of_task(JobRef(id=job_of(message, self._names.tasks[:-1])), message, self._names)
            told = known.get(info.job, info)
            if told.sequence == message.sequence and info_matches(told, wanted):
                yield told, place

    async def _ask(
        self, name: str, wanted: ListRequest, after: int, timeout_s: float, unanswered: dict[str, None]
    ) -> ListReply:
        asked = wanted.model_copy(update={"after": after})
        reply = await self._queries.ask(name, QueueOperation.LIST, asked, ListReply, timeout_s)
        if reply.recovering:
            unanswered[name] = None
        return reply

    async def _delayed(
        self, wanted: ListRequest, endpoint: str | None, place: int
    ) -> AsyncGenerator[tuple[JobInfo | None, int], None]:
        """Held by the server until their time; in the order in which they were stored."""
        stream = await self._streams.schedules(make=False)
        looked = 0
        async for message in _following(stream, self._names.schedules, place + 1):
            if looked == SCANNED:
                yield None, place
                return
            looked, place = looked + 1, message.sequence
            wall = self._ambient.wall()
            if recurring(self._names, message, wall=wall) is not None:
                continue  # a schedule, each of whose runs is a job
            id = self._names.parse_schedule(message.subject)
            info = info_of_schedule(JobRef(id=id), message, self._names, wall=wall)
            if endpoint in (None, info.endpoint) and info_matches(info, wanted):
                yield info, place

    async def _ended(
        self, wanted: ListRequest, endpoint: str | None, before: int | None
    ) -> AsyncGenerator[tuple[JobInfo, int], None]:
        """Whose results are kept; the last first."""
        results = await self._streams.results(make=False)
        looked = 0
        while True:
            entries = await results.newest("result.>", limit=_PAGE, before=before)
            for entry in entries:
                looked += 1
                try:
                    record = parse_result(entry.key.partition(".")[2], entry.value)
                except MalformedMessage:
                    continue
                if wanted.since is not None and record.finished_at < wanted.since:
                    return
                if endpoint in (None, record.endpoint):
                    yield info_of_record(record), entry.revision
            if len(entries) < _PAGE or (wanted.prefix and looked >= _RESOLVED):
                return
            before = entries[-1].revision


def _behind(place: str) -> str:
    """The place at which the next part begins, which may be of another endpoint."""
    part, owner, _ = place.split("/")
    # No name comes between an endpoint's and this one.
    return f"active/{owner}-/0" if part == "active" else "ended//0"


async def _following(stream: Stream, pattern: str, start: int) -> AsyncGenerator[StreamMessage, None]:
    """Stored messages from a sequence on."""
    state = await stream.state(pattern)
    count = sum(state.subjects.values())
    place = max(start, state.first_sequence)
    while count > 0 and place <= state.last_sequence:
        step = max(1, min(_PAGE, state.last_sequence - place + 1))
        # One request for each sequence: where the stream has no gaps, as usual, each gets another message.
        asked = [stream.next(pattern, each) for each in range(place, place + step)]
        found = {message.sequence: message for message in await asyncio.gather(*asked) if message is not None}
        if not found:
            return
        for sequence in sorted(found):
            yield found[sequence]
            count -= 1
        place = max(found) + 1


def info_matches(info: JobInfo, wanted: ListRequest) -> bool:
    """Whether a job meets all conditions that are given."""
    if wanted.states and info.state not in wanted.states:
        return False
    if wanted.key is not None and info.key != wanted.key:
        return False
    if wanted.schedule is not None and info.schedule != wanted.schedule:
        return False
    if wanted.since is not None and max(info.submitted_at or 0.0, info.ended_at or 0.0) < wanted.since:
        return False
    return not wanted.prefix or begins_with(info.job, wanted.prefix)


def without_details(info: JobInfo) -> JobInfo:
    """For a list: its error without a traceback, and without earlier attempts."""
    error = info.error
    if error is not None:
        kind = error.details.get("type")
        details = {"type": kind} if isinstance(kind, str) else {}
        error = error.model_copy(update={"message": error.message[:500], "details": details})
    return info.model_copy(update={"error": error, "tries": ()})
