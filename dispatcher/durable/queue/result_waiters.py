"""Clients that wait for results of one queue.

A request names several jobs and is answered once: with those that have ended, as soon as there is one, or when its time
is over. Results of one turn of the event loop are answered together.

Laws:

1. A result is told only when the server has acknowledged it.
2. Each request is answered exactly once, also when the queue is lost.
3. Nothing depends on an answer: a client that gets none looks the results up. So what exceeds a limit is refused, and a
   result that is no longer at hand is left to the client to look up.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final

from ....bus.port.bus import Bus
from ....bus.rpc.responder import Responder
from ....schemas.errors.base import GanglineError, QueueFull
from ....schemas.messages.jobs import WaitReply, WaitRequest
from ....schemas.records.jobs import JobState
from ....schemas.text import count_of
from ..core.effects import Persist, RecordKind

MAX_CLIENT_JOBS: Final = 10_000
"""Jobs that one client waits for at one queue, at most."""
MAX_JOBS: Final = 100_000
"""The same for all clients together."""
_RECORD_BYTES: Final = 16 * 1024
"""A larger result is left to the client to look up."""
_ANSWER_BYTES: Final = 256 * 1024
_HEADERS_BYTES: Final = 4096
_KEPT: Final = 2048
_KEPT_BYTES: Final = 1024 * 1024
_KEPT_S: Final = 5.0
"""How many results are kept for requests that come after them, and for how long."""


_SAME: Final[Mapping[str, str]] = {}


class JobPlace(Enum):
    """What the queue knows of a job."""

    FETCHED = "fetched"
    UNSEEN = "unseen"
    """It is further down the stream, or the queue is being taken over."""
    UNKNOWN = "unknown"
    """It has ended, may be further down the stream, or was never submitted."""


class _Wait:
    """A request that is not answered. `jobs`: sequences by job; 0: not known. `asked`: what the client calls those jobs
    to which it gives other ids."""

    __slots__ = ("asked", "client", "jobs", "look_up", "records", "responder", "size", "timer", "told")

    def __init__(self, request: WaitRequest, responder: Responder, asked: Mapping[str, str]) -> None:
        self.asked = asked
        self.jobs = dict(zip(request.jobs, request.sequences or (0,) * len(request.jobs), strict=True))
        self.client = request.client
        self.responder = responder
        self.records: list[bytes] = []
        self.size = 0
        self.look_up: list[str] = []
        self.told: set[str] = set()
        """Jobs of `records` and `look_up`."""
        self.timer: asyncio.TimerHandle | None = None


class ResultWaiters:
    """See the module's docstring.

    Invariants: each wait in `_by_job[job]` has `job` in its `jobs`, and is not answered; `_clients` counts those jobs.
    """

    def __init__(self, bus: Bus, *, locate: Callable[[str, int], JobPlace]) -> None:
        """`locate`: what the queue knows of a job with this sequence (0: not known)."""
        self._bus = bus
        self._locate = locate
        self._loop = asyncio.get_running_loop()
        self._by_job: dict[str, list[_Wait]] = {}
        self._waits: dict[_Wait, None] = {}
        """In the order in which they came."""
        self._clients: Counter[str] = Counter()
        self._jobs = 0
        self._due: dict[_Wait, None] = {}
        """To be answered at the end of this turn."""
        self._kept: dict[str, tuple[int, bytes, float]] = {}
        """By job, oldest first: sequence, record, and until when it is kept."""
        self._kept_bytes = 0
        self._closed: GanglineError | None = None

    def add(self, request: WaitRequest, responder: Responder, asked: Mapping[str, str] = _SAME) -> None:
        """Answer the request as soon as one of its jobs has ended.

        Args:
            asked: what the client calls some of these jobs; the answer calls them so, too.

        Raises:
            QueueFull: the client, or all clients, wait for too many jobs.
            GanglineError: that of `close`.
        """
        if self._closed is not None:
            raise self._closed
        wait = _Wait(request, responder, asked)
        for waiting, most, who in (
            (self._clients[wait.client], MAX_CLIENT_JOBS, "this client waits"),
            (self._jobs, MAX_JOBS, "clients wait"),
        ):
            if waiting + len(wait.jobs) > most:
                told = f"{who} for {count_of(waiting, 'job')} of this queue already"
                raise QueueFull(
                    f"{told}, and {most} is the limit: look results up instead",
                    details={"waiting": waiting, "limit": most},
                )
        self._waits[wait] = None
        self._jobs += len(wait.jobs)
        self._clients[wait.client] += len(wait.jobs)
        for job, sequence in wait.jobs.items():
            self._by_job.setdefault(job, []).append(wait)
            kept = self._kept.get(job)
            if kept is not None and kept[0] == sequence and self._loop.time() < kept[2]:
                self._tell(wait, job, kept[1])
            elif self._locate(job, sequence) is JobPlace.UNKNOWN:
                self._tell(wait, job, None)
        if wait not in self._due:
            wait.timer = self._loop.call_later(request.wait_s, self._answer, wait)

    def stored(self, effect: Persist, record: bytes) -> None:
        """The server has acknowledged this result."""
        if self._closed is not None:
            return
        job = effect.job
        if effect.kind is RecordKind.RESULT and effect.state is JobState.DONE:  # a dead task may be replayed
            self._keep(job, effect.seq, record, min(_KEPT_S, effect.result_ttl_s))
        for wait in self._by_job.get(job, ()):
            if wait.jobs[job] in (0, effect.seq):
                self._tell(wait, job, record)

    def left(self, job: str) -> None:
        """It is no longer in the queue, whether with a result or not."""
        for wait in self._by_job.get(job, ()):
            self._tell(wait, job, None)

    def locate_again(self) -> None:
        """The queue is taken over: what has ended before will not end here."""
        for job, waits in self._by_job.items():
            for wait in waits:
                if self._locate(job, wait.jobs[job]) is JobPlace.UNKNOWN:
                    self._tell(wait, job, None)

    def close(self, error: GanglineError) -> None:
        """The queue is no longer ours: answer everybody with this error. Idempotent."""
        if self._closed is not None:
            return
        self._closed = error
        for wait in list(self._waits):
            self._remove(wait)
            wait.responder.fail(error)
        self._due.clear()
        self._kept.clear()
        self._kept_bytes = 0

    # -- inside ---------------------------------------------------------------------------------------------------

    def _keep(self, job: str, sequence: int, record: bytes, kept_s: float) -> None:
        kept, now = self._kept, self._loop.time()
        if (before := kept.pop(job, None)) is not None:
            self._kept_bytes -= len(before[1])
        if len(record) <= _RECORD_BYTES:
            kept[job] = (sequence, record, now + kept_s)
            self._kept_bytes += len(record)
        while kept:
            oldest = next(iter(kept))
            if len(kept) <= _KEPT and self._kept_bytes <= _KEPT_BYTES and kept[oldest][2] > now:
                break
            self._kept_bytes -= len(kept.pop(oldest)[1])

    def _tell(self, wait: _Wait, job: str, record: bytes | None) -> None:
        """Answer at the end of this turn. None: the client must look it up, unless it was told the record."""
        if job in wait.told:
            return
        wait.told.add(job)
        limit = min(_ANSWER_BYTES, self._bus.max_payload - _HEADERS_BYTES)
        called = wait.asked.get(job, job)
        if record is not None and called != job:
            record = record.replace(f'"job":"{job}"'.encode(), f'"job":"{called}"'.encode(), 1)
        if record is None or len(record) > _RECORD_BYTES or wait.size + len(record) > limit:
            wait.look_up.append(called)
        else:
            wait.records.append(record)
            wait.size += len(record)
        if not self._due:
            self._bus.at_turn_end(self._answer_due)
        self._due[wait] = None

    def _answer_due(self) -> None:
        due, self._due = self._due, {}
        for wait in due:
            self._answer(wait)

    def _answer(self, wait: _Wait) -> None:
        if self._closed is not None:
            return
        self._due.pop(wait, None)
        unseen: list[str] = []
        if not (wait.records or wait.look_up):
            found = (job for job, sequence in wait.jobs.items() if self._locate(job, sequence) is JobPlace.UNSEEN)
            unseen += (wait.asked.get(job, job) for job in found)
        self._remove(wait)
        wait.responder.reply_json(_encoded(wait.records, wait.look_up, unseen), WaitReply)

    def _remove(self, wait: _Wait) -> None:
        self._waits.pop(wait, None)
        if wait.timer is not None:
            wait.timer.cancel()
        for job in wait.jobs:
            waits = self._by_job[job]
            if len(waits) == 1:
                del self._by_job[job]
            else:
                waits.remove(wait)
        self._jobs -= len(wait.jobs)
        self._clients[wait.client] -= len(wait.jobs)
        if not self._clients[wait.client]:
            del self._clients[wait.client]

    def check(self) -> None:
        """Assert the invariants; for tests."""
        assert self._jobs == sum(len(wait.jobs) for wait in self._waits) == sum(map(len, self._by_job.values()))
        assert all(job in wait.jobs and wait in self._waits for job, waits in self._by_job.items() for wait in waits)
        assert self._clients == functools.reduce(
            lambda found, wait: found + Counter({wait.client: len(wait.jobs)}), self._waits, Counter[str]()
        )
        assert self._kept_bytes == sum(len(record) for _, record, _ in self._kept.values())

    def __repr__(self) -> str:
        return f"ResultWaiters(requests={len(self._waits)}, jobs={self._jobs})"


def _encoded(records: Iterable[bytes], look_up: list[str], unseen: list[str]) -> bytes:
    """A WaitReply in JSON. Records are JSON already."""
    parts = [b'"results":[' + b",".join(records) + b"]"]
    named = {"look_up": look_up, "unseen": unseen}
    parts += (f'"{name}":{json.dumps(jobs)}'.encode() for name, jobs in named.items() if jobs)
    return b"{" + b",".join(parts) + b"}"
