"""Durable jobs that run here, or ended recently: so none is started twice, and every request for one gets its outcome.

A job is the same work in all of its attempts; an execution of it is one task of the core, on its slots like any other.
This table has the requests that wait for it, and for a while after its end its answer, within the limits on kept
answers.

- While a job runs, no second execution of it starts. Who sends or asks for it is one more *hearer*, without a slot.
- An ended job is known for as long as its answer is kept. It starts again only for a later attempt than the one that
  failed: an attempt that succeeded is never repeated.
- The end of a job whose hearer promised to say when it is stored is *unstored* until then: kept beside the memory, for
  longer, and within bounds of its own. A draining worker waits for it.
- Of a job that yields, items that its *reader* (the newest hearer that reads items) has not taken yet are kept, so that
  the next reader misses none.

Pure: no clock, no randomness; part of worker.slots.admission_core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from ...schemas.limits import MAX_TOKEN_CHARS
from .lease_table import WITHDRAWN, RouterHistory, TaskRecord

FIRST: Final = ""
"""Where a listing begins."""


class JobKey(NamedTuple):
    """A job's identity: ids are the producers', who may use one again at another endpoint, or later (in another message
    then, which stands elsewhere in the stream)."""

    endpoint: str
    job: str
    sequence: int = 0
    """Of its message; 0: not said."""
    rank: int = 0
    """Of the gang on all of whose ranks it runs: of each rank there is an execution of its own."""


class JobListener:
    """A request that hears how the job ends. It is among its sender's running tasks until then."""

    __slots__ = ("handle", "id", "sender", "streams")

    def __init__(self, sender: RouterHistory, id: int, handle: object, *, streams: bool) -> None:
        self.sender = sender
        self.id = id
        self.handle = handle
        """For whoever drives the core; not looked at in here."""
        self.streams = streams
        """It reads items."""


class RunningJob:
    """One execution of a job. Only the table changes it."""

    __slots__ = (
        "acks",
        "attempt",
        "failed",
        "listeners",
        "item_bytes",
        "items",
        "kept",
        "key",
        "number",
        "pool",
        "ranks",
        "read",
        "reader",
        "record",
        "sent",
    )

    def __init__(
        self,
        key: JobKey,
        attempt: int,
        record: TaskRecord,
        number: int,
        first: JobListener,
        *,
        ranks: int = 0,
        pool: str = "",
        acks: bool = False,
    ) -> None:
        self.key = key
        self.attempt = attempt
        self.ranks = ranks
        """On how many ranks of a gang it runs, if on all of them; else 0."""
        self.pool = pool
        """The pool or standing set that it was sent to by name; empty: not said."""
        self.record = record
        """Its sender and id are also where the answer is kept."""
        self.failed: bool | None = None
        """None while it runs."""
        self.number = number
        """Grows from start to start; once it has ended, from end to end."""
        self.listeners = [first]
        """All that are to be answered; the first one's task it is."""
        self.reader: JobListener | None = first if first.streams else None
        """Whose credit counts."""
        self.read = 0
        """Items that the reader is known to have taken: the index of the first one kept."""
        self.sent = 0
        """Items so far."""
        self.items: deque[bytes] = deque()
        """As they were sent: those from `read` to `sent`, or only the newest of them, if they were too many to keep."""
        self.item_bytes = 0
        self.acks = acks
        """Whoever asked last says when its end is stored."""
        self.kept: bytes | None = None
        """The answer, of an unstored end."""

    @property
    def running(self) -> bool:
        return self.failed is None

    @property
    def answer(self) -> bytes | None:
        """The kept answer of one that ended."""
        if self.kept is not None:
            return self.kept
        frame = self.record.sender.done.get(self.record.id)
        return None if frame is None or frame == WITHDRAWN else frame

    def lost(self, start: int) -> bool:
        """Whether the item of that number, or the first one after it that nobody took, is no longer kept."""
        return max(start, self.read) < self.sent - len(self.items)

    @property
    def place(self) -> str:
        """In a listing."""
        return f"{'r' if self.failed is None else 'u' if self.kept is not None else 'e'}{self.number}"

    def __repr__(self) -> str:
        state = "running" if self.failed is None else "failed" if self.failed else "done"
        name = f"{self.key.endpoint}/{self.key.job}"
        return f"<RunningJob {name} attempt={self.attempt} {state}, {len(self.listeners)} listeners>"


class JobTable:
    """All jobs of one worker, by key; of each only its newest execution."""

    __slots__ = (
        "_ended",
        "_item_bytes",
        "_jobs",
        "_keep",
        "_keep_bytes",
        "_keep_s",
        "_number",
        "_running",
        "_unstored",
        "_unstored_bytes",
        "_unstored_keep",
        "_unstored_keep_bytes",
        "_unstored_keep_s",
        "_with_items",
    )

    def __init__(
        self,
        *,
        keep: int,
        keep_bytes: int,
        keep_s: float,
        unstored: int = 0,
        unstored_bytes: int = 0,
        unstored_s: float = 0.0,
    ) -> None:
        """Ended jobs are known for `keep_s` seconds and at most `keep` of them; items are kept up to `keep_bytes`. Ends
        that are not stored are kept for `unstored_s` seconds, at most `unstored` of them, and up to `unstored_bytes` of
        answers: the oldest goes first, and is known from then on as the others are."""
        self._keep = keep
        self._keep_bytes = keep_bytes
        self._keep_s = keep_s
        self._number = 0
        self._jobs: dict[JobKey, RunningJob] = {}
        self._running: dict[RunningJob, None] = {}
        """In the order of their starts."""
        self._ended: deque[tuple[float, RunningJob]] = deque()
        """In the order of their ends, with when to forget; those that were started again are in here no less."""
        self._unstored: dict[RunningJob, float] = {}
        """In the order of their ends, with until when they are kept."""
        self._unstored_bytes = 0
        self._unstored_keep = unstored
        self._unstored_keep_bytes = unstored_bytes
        self._unstored_keep_s = unstored_s
        self._with_items: dict[RunningJob, None] = {}
        """That keep items, oldest first."""
        self._item_bytes = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def keep_items(self, keep_bytes: int) -> None:
        """From now on, keep up to so many bytes of items."""
        self._keep_bytes = keep_bytes
        while self._item_bytes > self._keep_bytes:
            self._lose_items()

    @property
    def unstored(self) -> int:
        """Ends of which nobody has said that they are stored, though somebody will."""
        return len(self._unstored)

    def find(self, key: JobKey) -> RunningJob | None:
        """The job, if it runs, or ended and its answer is still kept."""
        job = self._jobs.get(key)
        if job is not None and not job.running and job.answer is None:
            self._drop(job)
            return None
        return job

    def begin(
        self,
        key: JobKey,
        attempt: int,
        record: TaskRecord,
        first: JobListener,
        *,
        ranks: int = 0,
        pool: str = "",
        acks: bool = False,
    ) -> RunningJob:
        """An execution starts. The job must not run. See RunningJob for the last three."""
        before = self._jobs.get(key)
        if before is not None:
            assert not before.running, before
            self._drop(before)
        self._number += 1
        job = self._jobs[key] = RunningJob(key, attempt, record, self._number, first, ranks=ranks, pool=pool, acks=acks)
        self._running[job] = None
        return job

    def attach(self, job: RunningJob, listener: JobListener, items: int | None) -> Iterator[bytes]:
        """A running job is to be answered to one more, before whom `items` were read. Returns the items that it lacks
        and that are kept, as they were sent to another."""
        job.listeners.append(listener)
        if not listener.streams:
            return iter(())
        job.reader = listener
        return self.items(job, items)

    def items(self, job: RunningJob, start: int | None) -> Iterator[bytes]:
        """Kept items from number `start` on; all that are kept if it is not said, or less than is kept."""
        kept_from = job.sent - len(job.items)
        return islice(job.items, max(0, (kept_from if start is None else start) - kept_from), None)

    def add_item(self, job: RunningJob, frame: bytes) -> None:
        """The next item, as it is sent."""
        job.sent += 1
        job.items.append(frame)
        job.item_bytes += len(frame)
        self._item_bytes += len(frame)
        self._with_items[job] = None
        self.keep_items(self._keep_bytes)

    def take_items(self, job: RunningJob, upto: int) -> int:
        """The reader has taken all items before number `upto`. Returns how many more that are than was known."""
        more = min(upto, job.sent) - job.read
        if more <= 0:
            return 0
        job.read += more
        while len(job.items) > job.sent - job.read:
            size = len(job.items.popleft())
            job.item_bytes -= size
            self._item_bytes -= size
        if not job.items:
            self._with_items.pop(job, None)
        return more

    def end(self, job: RunningJob, answer: bytes, *, failed: bool, now: float) -> None:
        """All its hearers were answered, and its code has stopped."""
        del self._running[job]
        self._number += 1
        job.number = self._number
        job.failed = failed
        job.listeners = []
        job.reader = None
        if not job.acks:
            self._note_ended(job, now)
            return
        job.kept = answer
        self._unstored[job] = now + self._unstored_keep_s
        self._unstored_bytes += len(answer)
        while len(self._unstored) > self._unstored_keep or self._unstored_bytes > self._unstored_keep_bytes:
            self._let_go(next(iter(self._unstored)), now)

    def asked(self, job: RunningJob, *, acks: bool, now: float) -> None:
        """Somebody attaches, and will say when the end is stored, or will not: then nobody need wait for that."""
        job.acks = acks
        if not acks and job.kept is not None:
            self._let_go(job, now)

    def stored(self, key: JobKey, attempt: int, now: float) -> None:
        """Somebody says that the end of that attempt is stored, or of no interest any more. No-op if it is unknown."""
        job = self._jobs.get(key)
        if job is not None and job.attempt <= attempt:
            self.asked(job, acks=False, now=now)

    def _let_go(self, job: RunningJob, now: float) -> None:
        """Its end is kept no more than any other."""
        assert job.kept is not None
        del self._unstored[job]
        self._unstored_bytes -= len(job.kept)
        job.kept, job.acks = None, False
        self._number += 1
        job.number = self._number
        self._note_ended(job, now)

    def _note_ended(self, job: RunningJob, now: float) -> None:
        self._ended.append((now + self._keep_s, job))
        if len(self._ended) > self._keep:
            self._drop(self._ended.popleft()[1])

    def undo(self, key: JobKey) -> None:
        """The execution that was begun did not start after all: nothing is known of it any more."""
        job = self._jobs.get(key)
        if job is not None and job.running:
            del self._running[job]
            self._drop(job)

    def sweep(self, now: float) -> None:
        """Forget what is too old."""
        while self._unstored and next(iter(self._unstored.values())) <= now:
            self._let_go(next(iter(self._unstored)), now)
        while self._ended and self._ended[0][0] <= now:
            self._drop(self._ended.popleft()[1])

    def listing(self, endpoint: str | None, after: str, most: int) -> tuple[list[RunningJob], str | None]:
        """Jobs of an endpoint (None: of all), at most so many: what runs, then unstored ends, then others, the newest
        first. With them the place after which to go on; None: there are no more. One that ends between two parts of a
        listing, or is stored then, may be named in both."""
        found: list[RunningJob] = []
        part, ended = after[:1], after[:1] == "e"
        number = int(after[1:]) if after[1:].isdecimal() and len(after) < MAX_TOKEN_CHARS else 0
        for place, jobs in (("r", self._running), ("u", self._unstored)):
            if ended or (part == "u" and place == "r"):
                continue  # they were named before
            since = number if part == place else 0
            for job in jobs:
                if job.number > since and endpoint in (None, job.key.endpoint):
                    found.append(job)
                    if len(found) == most:
                        return found, job.place
        for _, job in reversed(self._ended):
            if ended and job.number >= number:
                continue
            if endpoint in (None, job.key.endpoint) and self._jobs.get(job.key) is job and job.answer is not None:
                found.append(job)
                if len(found) == most:
                    return found, job.place
        return found, None

    def hears(self, record: TaskRecord, sender: RouterHistory, task_id: int) -> bool:
        """Whether that request hears of the job that the record runs. For checks."""
        return any(
            listener.sender is sender and listener.id == task_id
            for job in self._running
            if job.record is record
            for listener in job.listeners
        )

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert self._item_bytes == sum(job.item_bytes for job in self._jobs.values()) <= self._keep_bytes
        assert len(self._ended) <= self._keep
        assert len(self._unstored) <= self._unstored_keep
        assert self._unstored_bytes == sum(len(job.kept or b"") for job in self._unstored) <= self._unstored_keep_bytes
        for job in self._unstored:
            assert self._jobs.get(job.key) is job and not job.running and job.kept is not None, job
        for job in self._running:
            assert self._jobs.get(job.key) is job and job.running, job
            assert job.listeners, job
            for listener in job.listeners:
                assert listener.sender.running.get(listener.id) is job.record, (job, listener.sender, listener.id)
        for key, job in self._jobs.items():
            assert job.key == key and job.running == (job in self._running), job
            assert (job.kept is not None) == (job in self._unstored), job
            assert len(job.items) <= job.sent - job.read, job
            assert job.item_bytes == sum(map(len, job.items)), job
            assert (job in self._with_items) == bool(job.items), job

    def _lose_items(self) -> None:
        """Too many bytes: the job that is oldest here loses what it keeps. Its next reader will miss some."""
        self._forget_items(next(iter(self._with_items)))

    def _drop(self, job: RunningJob) -> None:
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]
            self._forget_items(job)
            if job.kept is not None:
                del self._unstored[job]
                self._unstored_bytes -= len(job.kept)
                job.kept = None

    def _forget_items(self, job: RunningJob) -> None:
        self._with_items.pop(job, None)
        self._item_bytes -= job.item_bytes
        job.item_bytes = 0
        job.items.clear()
