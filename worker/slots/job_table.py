"""Durable jobs that run here, or ended recently: so that none is started twice, and every request for one gets its
outcome.

A job is the same work in all of its attempts. Each execution is one task of the core, on slots like any other. This
table has the requests that wait for it and, for a while after its end, its answer, within the limits on kept answers.

- While a job runs, no second execution of it starts. Another request for it becomes a *listener*, without a slot.
- An ended job is known as long as its answer is kept. It starts again only for a later attempt than the one that
  failed: a successful attempt is never repeated.
- If a listener has promised to confirm that it stored the end of a job, that end is *unstored* until then: it is kept
  apart from the others, for longer, and within limits of its own. A draining worker waits for it.
- If a job yields items, those that its *reader* (the newest listener that reads items) has not taken yet are kept, so
  that the next reader misses none.

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
"""The start of a listing."""
_NO_ITEMS: Final[deque[bytes]] = deque()
"""Of all jobs that keep none: an empty deque takes as much memory as all else that is known of an ended job."""


class JobKey(NamedTuple):
    """A job's identity: producers choose the ids, and may reuse one at another endpoint, or later (then in another
    message, with another sequence number)."""

    endpoint: str
    job: str
    sequence: int = 0
    """The stream sequence of its message; 0: unknown."""
    rank: int = 0
    """The rank, if it runs on all ranks of a gang: each has its own execution."""


class JobListener:
    """A request that gets the job's end. It is among its sender's running tasks until then."""

    __slots__ = ("handle", "id", "sender", "streams")

    def __init__(self, sender: RouterHistory, id: int, handle: object, *, streams: bool) -> None:
        self.sender = sender
        self.id = id
        self.handle = handle
        """For the driver of the core; not used here."""
        self.streams = streams
        """Whether it reads items."""


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
        """The number of ranks, if it runs on all ranks of a gang; else 0."""
        self.pool = pool
        """The pool or standing set that it was sent to by name; empty: none."""
        self.record = record
        """The answer is kept under its sender and id."""
        self.failed: bool | None = None
        """None while it runs."""
        self.number = number
        """Position among the starts; after its end, among the ends."""
        self.listeners = [first]
        """All that get the answer; the task belongs to the first."""
        self.reader: JobListener | None = first if first.streams else None
        """The listener whose credit counts."""
        self.read = 0
        """Number of items that the reader has taken: the index of the first one kept."""
        self.sent = 0
        """Number of items so far."""
        self.items = _NO_ITEMS
        """Frames from `read` to `sent`, as they were sent, or only the newest if there were too many to keep."""
        self.item_bytes = 0
        self.acks = acks
        """Whether the newest listener confirms that the end is stored."""
        self.kept: bytes | None = None
        """The answer of an unstored end."""

    @property
    def running(self) -> bool:
        return self.failed is None

    @property
    def answer(self) -> bytes | None:
        """The kept answer of an ended job."""
        if self.kept is not None:
            return self.kept
        frame = self.record.sender.done.get(self.record.id)
        return None if frame is None or frame == WITHDRAWN else frame

    def lost(self, start: int) -> bool:
        """Whether the item of this number, or the first untaken one after it, is no longer kept."""
        return max(start, self.read) < self.sent - len(self.items)

    @property
    def place(self) -> str:
        """Position in a listing."""
        return f"{'r' if self.failed is None else 'u' if self.kept is not None else 'e'}{self.number}"

    def __repr__(self) -> str:
        state = "running" if self.failed is None else "failed" if self.failed else "done"
        name = f"{self.key.endpoint}/{self.key.job}"
        return f"<RunningJob {name} attempt={self.attempt} {state}, {len(self.listeners)} listeners>"


class JobTable:
    """All jobs of one worker by key; only the newest execution of each."""

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
        """At most `keep` ended jobs are known, for `keep_s` seconds; items are kept up to `keep_bytes`. At most
        `unstored` unstored ends are kept, for `unstored_s` seconds and up to `unstored_bytes` of answers. The oldest is
        dropped first, and from then on is kept like the others."""
        self._keep = keep
        self._keep_bytes = keep_bytes
        self._keep_s = keep_s
        self._number = 0
        self._jobs: dict[JobKey, RunningJob] = {}
        self._running: dict[RunningJob, None] = {}
        """In start order."""
        self._ended: deque[tuple[float, RunningJob]] = deque()
        """In end order, with the time to forget them; also those that were started again."""
        self._unstored: dict[RunningJob, float] = {}
        """In end order, with the time until which they are kept."""
        self._unstored_bytes = 0
        self._unstored_keep = unstored
        self._unstored_keep_bytes = unstored_bytes
        self._unstored_keep_s = unstored_s
        self._with_items: dict[RunningJob, None] = {}
        """Jobs with kept items, oldest first."""
        self._item_bytes = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def keep_items(self, keep_bytes: int) -> None:
        """Change the limit on kept items."""
        self._keep_bytes = keep_bytes
        while self._item_bytes > self._keep_bytes:
            self._lose_items()

    @property
    def unstored(self) -> int:
        """Number of ends that wait for the confirmation that they are stored."""
        return len(self._unstored)

    def find(self, key: JobKey) -> RunningJob | None:
        """The job, if it runs, or has ended and its answer is still kept."""
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
        """An execution starts; the job must not be running. See RunningJob for the last three arguments."""
        before = self._jobs.get(key)
        if before is not None:
            assert not before.running, before
            self._drop(before)
        self._number += 1
        job = self._jobs[key] = RunningJob(key, attempt, record, self._number, first, ranks=ranks, pool=pool, acks=acks)
        self._running[job] = None
        return job

    def attach(self, job: RunningJob, listener: JobListener, items: int | None) -> Iterator[bytes]:
        """Add a listener to a running job; `items` is the number it has read already. Returns the kept items that it
        lacks, as sent to others."""
        job.listeners.append(listener)
        if not listener.streams:
            return iter(())
        job.reader = listener
        return self.items(job, items)

    def items(self, job: RunningJob, start: int | None) -> Iterator[bytes]:
        """Kept items from number `start` on; all kept items if it is None or below the first kept one."""
        kept_from = job.sent - len(job.items)
        return islice(job.items, max(0, (kept_from if start is None else start) - kept_from), None)

    def add_item(self, job: RunningJob, frame: bytes) -> None:
        """Add the next item, as sent."""
        if job.items is _NO_ITEMS:
            job.items = deque()
        job.sent += 1
        job.items.append(frame)
        job.item_bytes += len(frame)
        self._item_bytes += len(frame)
        self._with_items[job] = None
        self.keep_items(self._keep_bytes)

    def take_items(self, job: RunningJob, upto: int) -> int:
        """The reader has taken all items before number `upto`. Returns how many of them are newly taken."""
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
            if not job.running:
                job.items = _NO_ITEMS
        return more

    def end(self, job: RunningJob, answer: bytes, *, failed: bool, now: float) -> None:
        """All its listeners were answered, and its code has stopped."""
        del self._running[job]
        self._number += 1
        job.number = self._number
        job.failed = failed
        job.listeners = []
        job.reader = None
        if not job.items:
            job.items = _NO_ITEMS
        if not job.acks:
            self._note_ended(job, now)
            return
        job.kept = answer
        self._unstored[job] = now + self._unstored_keep_s
        self._unstored_bytes += len(answer)
        while len(self._unstored) > self._unstored_keep or self._unstored_bytes > self._unstored_keep_bytes:
            self._let_go(next(iter(self._unstored)), now)

    def asked(self, job: RunningJob, *, acks: bool, now: float) -> None:
        """A request attaches; `acks`: whether it will confirm that the end is stored. If not, nobody need wait for
        that."""
        job.acks = acks
        if not acks and job.kept is not None:
            self._let_go(job, now)

    def stored(self, key: JobKey, attempt: int, now: float) -> RunningJob | None:
        """The end of this attempt is stored, or no longer of interest. Returns the execution that should stop, if it
        still runs: it has a twin, on another worker, because this one was taken for lost."""
        job = self._jobs.get(key)
        if job is None or job.attempt > attempt:
            return None
        self.asked(job, acks=False, now=now)
        return job if job.running else None

    def _let_go(self, job: RunningJob, now: float) -> None:
        """From now on keep its end like any other."""
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
        """The execution did not start after all: forget it."""
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
        """At most `most` jobs of an endpoint (None: of all): running ones, then unstored ends, then other ends, newest
        first. Also returns the place after which to continue; None: there are no more. A job that ends or is stored
        between two parts of a listing may be in both."""
        found: list[RunningJob] = []
        part, ended = after[:1], after[:1] == "e"
        number = int(after[1:]) if after[1:].isdecimal() and len(after) < MAX_TOKEN_CHARS else 0
        for place, jobs in (("r", self._running), ("u", self._unstored)):
            if ended or (part == "u" and place == "r"):
                continue  # they were listed before
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
        """Whether this request listens to the job that the record runs. For checks."""
        return any(
            listener.sender is sender and listener.id == task_id
            for job in self._running
            if job.record is record
            for listener in job.listeners
        )

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert self._item_bytes == sum(job.item_bytes for job in self._jobs.values()) <= self._keep_bytes
        assert not _NO_ITEMS
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
        """Too many bytes: drop the items of the oldest job. Its next reader will miss some."""
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
        job.items = _NO_ITEMS
