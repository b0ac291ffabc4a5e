"""How a client waits for results: it asks the dispatchers that store them, with one request for all jobs of an endpoint
that begin to wait in one turn of the event loop.

A dispatcher answers when some of these jobs have ended, or after a while; then the rest is asked for again. Nothing
depends on its answers: without one, whoever waits looks for the result in storage.
"""

from __future__ import annotations

import asyncio
import functools
import json
from enum import Enum
from typing import Final

from ...bus.port.bus import Bus, Message, NotPermitted
from ...bus.rpc.requester import read_answer
from ...schemas.errors.base import GanglineError, InvalidRequest
from ...schemas.limits import MAX_WAITED_JOBS
from ...schemas.messages.jobs import WaitReply
from ...schemas.names import Names, QueueOperation, public_id
from ...schemas.records.jobs import ResultRecord

LOOK_S: Final = 10.0
"""How often a waiting reader checks without a notification, since that may be lost."""
WAIT_S: Final = 2.0
"""How long a dispatcher may wait before it answers. If it dies, its clients notice after that time."""
_LATE_S: Final = 1.0
"""How much longer the answer may take."""
_PAUSE_S: Final = 1.0
"""How long nobody is asked after a failure."""
_LONG_PAUSE_S: Final = 60.0
"""The same after a failure that will not go away: an old dispatcher, or a missing permission."""
_MAX_JOBS: Final = 5000
"""Jobs of one endpoint that are waited for in this way; any others are watched in storage. Less than the limit of
dispatchers, which count both requests if one was repeated."""


class NotQueued(Enum):
    """What is known of a job that has no record to tell."""

    NOT_QUEUED = "not queued"
    """Its dispatcher says that it is not in the queue: it has ended, or never was."""


Told = ResultRecord | NotQueued | None
"""None: no dispatcher says anything."""


class _Job:
    __slots__ = ("asked", "futures", "sequence", "since")

    def __init__(self, sequence: int, since: float) -> None:
        self.sequence = sequence
        self.since = since
        self.futures: list[asyncio.Future[Told]] = []
        self.asked: object = None
        """The newest request that names it."""


class _EndpointWaits:
    """The jobs of one endpoint whose results are waited for."""

    def __init__(self, bus: Bus, names: Names, endpoint: str) -> None:
        self._bus = bus
        self._endpoint = endpoint
        self._subject = names.private(names.queue(endpoint, QueueOperation.WAIT))
        self._client = public_id(bus.inbox)
        self._loop = asyncio.get_running_loop()
        self._jobs: dict[str, _Job] = {}
        self._due: dict[str, None] = {}
        """To be asked for at the end of this turn."""
        self._paused_until = float("-inf")

    async def wait(self, name: str, sequence: int) -> Told:
        if len(self._jobs) >= _MAX_JOBS or self._loop.time() < self._paused_until:
            return None
        job = self._jobs.get(name)
        if job is None or job.sequence != sequence:
            self._settle(name, None)
            job = self._jobs[name] = _Job(sequence, self._loop.time())
            self._ask_for(name)
        future: asyncio.Future[Told] = self._loop.create_future()
        job.futures.append(future)
        try:
            return await future
        finally:
            job.futures.remove(future)
            if not job.futures and self._jobs.get(name) is job:
                del self._jobs[name]

    def _ask_for(self, name: str) -> None:
        if not self._due:
            self._bus.at_turn_end(self._ask)
        self._due[name] = None

    def _ask(self) -> None:
        names = [name for name in self._due if name in self._jobs]
        self._due.clear()
        for start in range(0, len(names), MAX_WAITED_JOBS):
            asked = names[start : start + MAX_WAITED_JOBS]
            request = object()
            sequences = []
            for name in asked:
                job = self._jobs[name]
                job.asked = request
                sequences.append(job.sequence)
            body = {"jobs": asked, "sequences": sequences, "wait_s": WAIT_S, "client": self._client}
            then = functools.partial(self._answered, asked, request, self._loop.time())
            self._bus.ask(self._subject, json.dumps(body).encode(), timeout_s=WAIT_S + _LATE_S, then=then)

    def _answered(self, names: list[str], request: object, asked_at: float, answer: Message | GanglineError) -> None:
        mine = [name for name in names if (job := self._jobs.get(name)) is not None and job.asked is request]
        now = self._loop.time()
        try:
            if isinstance(answer, GanglineError):
                raise answer
            reply = read_answer(answer, WaitReply, f"the dispatcher of {self._endpoint}")
        except GanglineError as error:
            lasting = isinstance(error, (NotPermitted, InvalidRequest))
            self._give_up(mine, _LONG_PAUSE_S if lasting else _PAUSE_S)
            return
        ended: dict[str, Told] = dict.fromkeys(reply.look_up, NotQueued.NOT_QUEUED)
        ended.update((record.job, record) for record in reply.results)
        # Perhaps they will never be seen: somebody may have removed them.
        ended.update((name, None) for name in reply.unseen if name in mine and self._jobs[name].since + LOOK_S < now)
        left = [name for name in mine if name not in ended]
        if len(left) == len(mine) and now - asked_at < WAIT_S / 2:
            self._give_up(left, _LONG_PAUSE_S)  # it says nothing, again and again
            return
        for name in left:
            self._ask_for(name)
        for name in mine:
            if name in ended:
                self._settle(name, ended[name])

    def _give_up(self, names: list[str], pause_s: float) -> None:
        self._paused_until = self._loop.time() + pause_s
        for name in names:
            self._settle(name, None)

    def _settle(self, name: str, told: Told) -> None:
        job = self._jobs.pop(name, None)
        for future in () if job is None else job.futures:
            if not future.done():
                future.set_result(told)

    def __repr__(self) -> str:
        return f"_EndpointWaits({self._endpoint}, jobs={len(self._jobs)})"


class ResultWaits:
    """See the module's docstring. One per client; it needs no close, since its requests end with the connection."""

    def __init__(self, bus: Bus, names: Names) -> None:
        self._bus = bus
        self._names = names
        self._endpoints: dict[str, _EndpointWaits] = {}

    async def wait(self, endpoint: str, job: str, sequence: int) -> Told:
        """The record of the job's end, when it has ended. Otherwise no dispatcher tells it, so look for it in storage.
        That comes at once after a failure, and for too many jobs.

        Args:
            sequence: of its message in the stream; 0: not known.
        """
        found = self._endpoints.get(endpoint)
        if found is None:
            found = self._endpoints[endpoint] = _EndpointWaits(self._bus, self._names, endpoint)
        return await found.wait(job, sequence)

    def __repr__(self) -> str:
        return f"ResultWaits({list(self._endpoints.values())})"
