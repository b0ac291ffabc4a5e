"""What pages ask for beyond the board: one worker, gang, job or dead letter; lists of jobs, of schedules, and of dead
letters by cause; the audit trail and the history."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

from ..board.durations import DurationHistory
from ..board.feed import BoardFeed
from ..board.outlook import gang_outlook, job_outlook
from ..board.rank_readings import gang_times
from ..board.reasons import gang_sentences, job_sentences
from ..board.shares import why_job
from ..bus.port.bus import NotPermitted
from ..dispatcher.client.audit import AuditTrail
from ..dispatcher.client.client import Client
from ..dispatcher.client.history import HistoryFilter, HistoryReader
from ..dispatcher.jobs.dead_letters import DeadLetter
from ..dispatcher.jobs.stored import Schedule
from ..schemas.errors.base import InvalidRequest, UnknownJob
from ..schemas.messages.gangs import GangQuery, GangWhyReply
from ..schemas.messages.jobs import JobWhyReply
from ..schemas.names import GangOperation, WorkerId, check_job, public_id
from ..schemas.records.history import HistoryRecord
from ..schemas.records.jobs import JobFailure
from .letters import groups

Fields = Mapping[str, str]
Answer = dict[str, Any]
MOST_LETTERS: Final = 5000
MOST_ENTRIES: Final = 200
MOST_RECORDS: Final = 1000
ANSWER_S: Final = 5.0
MOST_JOBS: Final = 100
"""In one page of the list."""
SHARED_S: Final = 1.0
"""Lists this old are answered again: browsers that show the same page cause one look-up."""
VIEWED_S: Final = 5.0
"""A worker stays in view this long after it was asked for."""


class Reads:
    """Answers of the console's `/api`. With `payloads`, they have the arguments and results of tasks."""

    def __init__(self, client: Client, feed: BoardFeed, *, payloads: bool) -> None:
        self._client = client
        self._feed = feed
        self._payloads = payloads
        self._viewed: dict[str, float] = {}
        self._lists: dict[str, tuple[float, asyncio.Task[Answer]]] = {}
        self._history = HistoryReader(client.router.bus, client.router.names)
        self._durations = DurationHistory(client)
        self.by_name: dict[str, Callable[[Fields], Awaitable[Answer]]] = {
            "worker": self.worker,
            "gang": self.gang,
            "why": self.why,
            "when": self.when,
            "job": self.job,
            "jobs": self.jobs,
            "find": self.find,
            "schedules": self.schedules,
            "dead": self.dead,
            "letter": self.letter,
            "audit": self.audit,
            "history": self.history,
            "held": self.held,
        }

    async def close(self) -> None:
        """Cancel look-ups that are under way."""
        await self._durations.close()
        for _, asked in self._lists.values():
            asked.cancel()
        if self._lists:
            await asyncio.wait([asked for _, asked in self._lists.values()])
        self._lists.clear()

    def in_view(self) -> list[str]:
        """Workers that somebody looks at now."""
        now = time.monotonic()
        self._viewed = {name: at for name, at in self._viewed.items() if at > now}
        return list(self._viewed)

    async def worker(self, fields: Fields) -> Answer:
        """`name`: the worker's own statistics."""
        name = str(WorkerId.parse(_given(fields, "name")))
        self._viewed[name] = time.monotonic() + VIEWED_S
        stats = await self._client.stats(name)
        leases = [lease.model_copy(update={"token": public_id(lease.token)}) for lease in stats.leases]
        return stats.model_copy(update={"leases": leases}).model_dump(mode="json")

    async def gang(self, fields: Fields) -> Answer:
        """`id`: what its ranks have spent their time on, and which is the slowest. Empty for one that has not formed
        yet or is not known."""
        id = _given(fields, "id")
        record = self._feed.board.gangs.get(id)
        seats = () if record is None else record.seats
        workers = frozenset(f"{seat.pool}.{seat.worker}" for seat in seats if seat.part == 0)
        generation = 0 if record is None else record.generation

        async def ask() -> Answer:
            since = None if record is None else record.created_at
            return await gang_times(self._client, id, generation, workers, since=since)

        return await self._shared(f"gang {id}", ask)

    async def why(self, fields: Fields) -> Answer:
        """`gang` or `job`: what it waits for."""
        why = await self._why(fields)
        told = gang_sentences(why, time.time()) if isinstance(why, GangWhyReply) else job_sentences(why)
        return {**why.model_dump(mode="json"), "told": [sentence.row() for sentence in told]}

    async def when(self, fields: Fields) -> Answer:
        """`gang` or `job`: when it can start, and what that depends on."""
        durations = await self._durations.durations()
        why = await self._why(fields)
        if isinstance(why, GangWhyReply):
            return gang_outlook(self._feed.board, why, durations, time.time()).row()
        return job_outlook(self._feed.board, why, durations, time.time()).row()

    async def _why(self, fields: Fields) -> GangWhyReply | JobWhyReply:
        if gang := fields.get("gang"):
            query = GangQuery.model_validate({"id": gang})
            coordinator = self._client.router.gangs.coordinator_client
            return await coordinator.ask_for(GangWhyReply, GangOperation.WHY, query, ANSWER_S)
        return await why_job(self._client, self._client.job(check_job(_given(fields, "job"))), self._feed.board)

    async def job(self, fields: Fields) -> Answer:
        """`id`: its state, attempts and last error."""
        id = check_job(_given(fields, "id"))
        job = self._client.job(id)
        info = await job.status()
        told = info.model_dump(mode="json")
        if info.state == "dead":
            try:
                letter = await self._client.dead_letter(id)
            except UnknownJob:
                return told
            told["letter"] = self._letter(letter)
        elif info.state == "done" and self._payloads:
            told["result"] = _plain(await job.result())
        return told

    async def jobs(self, fields: Fields) -> Answer:
        """Unfinished, delayed and ended jobs. `state`, `endpoint`, `schedule`: only those; `cursor`: `next` of the page
        before."""
        states = tuple(filter(None, fields.get("state", "").split(",")))
        endpoint, schedule = fields.get("endpoint") or None, fields.get("schedule") or None
        cursor = fields.get("cursor") or None

        async def ask() -> Answer:
            page = await self._client.jobs(
                states=states, endpoint=endpoint, schedule=schedule, limit=MOST_JOBS, cursor=cursor
            )
            jobs = [job.model_dump(mode="json") for job in page.jobs]
            return {"jobs": jobs, "next": page.next, "unanswered": page.unanswered}

        return await self._shared(f"jobs {states} {endpoint} {schedule} {cursor}", ask)

    async def find(self, fields: Fields) -> Answer:
        """`id`: the whole id of the job whose id begins so."""
        return {"id": (await self._client.find_job(_given(fields, "id"))).id}

    async def schedules(self, fields: Fields) -> Answer:
        """All schedules."""

        async def ask() -> Answer:
            return {"schedules": [self._schedule(each) for each in await self._client.schedules()]}

        return await self._shared("schedules", ask)

    def _schedule(self, schedule: Schedule) -> Answer:
        told: Answer = {
            "id": schedule.id,
            "name": schedule.name,
            "target": schedule.target,
            "endpoint": schedule.endpoint,
            "cron": schedule.cron,
            "time_zone": schedule.time_zone or "UTC",
            "next_at": schedule.next_at,
            "paused_at": schedule.paused_at,
            "declared_at": schedule.declared_at,
            "in_code": schedule.in_code,
        }
        if self._payloads:
            told["arguments"] = _plain(schedule.arguments)
        return told

    async def _shared(self, key: str, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """The answer to a question that others may just have asked, too."""
        now = time.monotonic()
        for old in [old for old, (at, asked) in self._lists.items() if asked.done() and at + SHARED_S < now]:
            del self._lists[old]
        if key not in self._lists:
            self._lists[key] = now, (task := asyncio.create_task(ask(), name=f"console {key}"))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever asked may be gone
        return await asyncio.shield(self._lists[key][1])

    async def dead(self, fields: Fields) -> Answer:
        """Dead letters by cause; `endpoint`: only those of one."""
        endpoint = fields.get("endpoint") or None
        letters = await self._client.dead_letters(endpoint, limit=MOST_LETTERS, bodies=False)
        return {"groups": groups(letters), "count": len(letters), "most": MOST_LETTERS}

    async def letter(self, fields: Fields) -> Answer:
        """`job`: one dead letter."""
        return self._letter(await self._client.dead_letter(check_job(_given(fields, "job"))))

    async def audit(self, fields: Fields) -> Answer:
        """What operators did, newest last."""
        trail = AuditTrail(self._client.router.bus, self._client.router.names)
        try:
            entries = await trail.entries(user=fields.get("user") or None, limit=MOST_ENTRIES)
        except NotPermitted as error:  # it is no observer who asks
            return {"entries": [], "note": error.message}
        return {
            "entries": [
                {"user": entry.user, "at": entry.at, **entry.record.model_dump(mode="json", exclude={"v"})}
                for entry in entries
            ]
        }

    async def history(self, fields: Fields) -> Answer:
        """Records of the history, oldest first. `since`, `until`: Unix times; `gang`, `worker`, `job`: only of that."""
        wanted = HistoryFilter(
            since=_time(fields, "since"),
            until=_time(fields, "until"),
            gang=fields.get("gang", ""),
            worker=fields.get("worker", ""),
            job=fields.get("job", ""),
        )
        records = await self._history.records(wanted, limit=MOST_RECORDS)
        return {"records": [_record(record) for record in records]}

    async def held(self, fields: Fields) -> Answer:
        """`at`, a Unix time: who held slots then."""
        at = _time(fields, "at")
        if at is None:
            raise InvalidRequest("give at, a Unix time")
        return {"at": at, "held": [_record(record) for record in await self._history.held_at(at)]}

    def _letter(self, letter: DeadLetter) -> Answer:
        told: Answer = {
            "job": letter.job,
            "title": letter.title,
            "target": letter.target,
            "reason": letter.reason,
            "attempts": letter.attempts,
            "dead_at": letter.dead_at,
            "sequence": letter.sequence,
            "trace": letter.trace,
            "error": None if letter.error is None else self._error(letter.error),
            "tries": [each.model_dump(mode="json") for each in letter.tries],
        }
        if self._payloads:
            told["arguments"] = _plain(letter.arguments)
        return told

    def _error(self, error: JobFailure) -> Answer:
        return {
            "code": error.code,
            "message": error.message,
            "type": error.details.get("type"),
            "traceback": error.details.get("traceback"),
        }


def _given(fields: Fields, name: str) -> str:
    if not (value := fields.get(name)):
        raise InvalidRequest(f"give {name}")
    return value


def _time(fields: Fields, name: str) -> float | None:
    text = fields.get(name)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidRequest(f"{name} is {text[:40]!r}: give a Unix time in seconds")
    return value


def _record(record: HistoryRecord) -> Answer:
    return record.model_dump(mode="json", exclude_defaults=True)


def _plain(value: object) -> object:
    """As JSON can have it."""
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
