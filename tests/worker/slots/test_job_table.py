"""What is remembered of durable jobs, by itself."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from gangline.runtime.timers import NEVER
from gangline.worker.slots.job_table import FIRST, JobKey, JobListener, JobTable, RunningJob
from gangline.worker.slots.lease_table import RouterHistory, TaskRecord

from ...support.rows import in_rows


class KnownJobs:
    """A table, and the little of a core that it looks at."""

    def __init__(self, *, keep: int = 100, keep_bytes: int = 1000, keep_s: float = 60.0) -> None:
        self.table = JobTable(
            keep=keep, keep_bytes=keep_bytes, keep_s=keep_s, unstored=3, unstored_bytes=100, unstored_s=600.0
        )
        self.sender = RouterHistory("s", doubtful=False)
        self.ids = 0

    def listener(self, *, streams: bool = False) -> JobListener:
        self.ids += 1
        return JobListener(self.sender, self.ids, None, streams=streams)

    def begin(
        self, job: str, attempt: int = 1, *, endpoint: str = "e", streams: bool = False, acks: bool = False
    ) -> RunningJob:
        first = self.listener(streams=streams)
        record = TaskRecord(self.sender, first.id, 1, None, NEVER)
        self.sender.running[first.id] = record
        return self.table.begin(JobKey(endpoint, job), attempt, record, first, acks=acks)

    def attach(
        self, job: RunningJob, *, streams: bool = False, items: int | None = None
    ) -> tuple[JobListener, list[bytes]]:
        listener = self.listener(streams=streams)
        self.sender.running[listener.id] = job.record
        return listener, list(self.table.attach(job, listener, items))

    def end(self, job: RunningJob, *, failed: bool = False, now: float = 0.0, answer: bytes = b"answer") -> None:
        for listener in job.listeners:
            del self.sender.running[listener.id]
            self.sender.done[listener.id] = answer
        self.table.end(job, answer, failed=failed, now=now)

    def names(self, endpoint: str | None = None, after: str = FIRST, most: int = 100) -> tuple[list[str], str | None]:
        found, more = self.table.listing(endpoint, after, most)
        return [job.key.job for job in found], more


@pytest.fixture
def known() -> Iterator[KnownJobs]:
    known = KnownJobs()
    yield known
    known.table.check()


def test_too_many_bytes_of_items_are_lost_oldest_job_first():
    known = KnownJobs(keep_bytes=100)
    old, young = known.begin("old", streams=True), known.begin("young", streams=True)
    known.table.add_item(old, b"x" * 60)
    known.table.add_item(young, b"y" * 40)
    known.table.check()
    known.table.add_item(young, b"z")
    assert (len(old.items), len(young.items)) == (0, 2)
    known.table.add_item(old, b"next")
    assert list(known.table.items(old, 0)) == [b"next"], "a reader sees by the numbers that some are missing"
    assert known.table.take_items(old, 1) == 1
    assert list(old.items) == [b"next"]
    known.table.add_item(young, b"w" * 101)
    assert not young.items
    assert list(old.items) == [b"next"], "what was lost before made it the younger one"
    known.table.check()


def test_an_end_that_nobody_has_stored_outlives_the_answer(known: KnownJobs):
    job = known.begin("j", acks=True)
    known.end(job, now=10.0)
    known.sender.done.clear()
    known.table.sweep(609.9)
    assert (known.table.find(job.key), job.answer, known.table.unstored) == (job, b"answer", 1)
    known.table.check()
    known.table.sweep(610.0)
    assert (known.table.find(job.key), known.table.unstored) == (None, 0), "nobody came for it"


def test_of_too_many_unstored_ends_the_oldest_go_first(known: KnownJobs):
    jobs = [known.begin(name, acks=True) for name in "abcd"]
    for job in jobs:
        known.end(job)
    assert [job.kept is not None for job in jobs] == [False, True, True, True], "so many"
    known.table.check()
    large = known.begin("large", acks=True)
    known.end(large, answer=b"x" * 90)
    assert [job.kept is not None for job in (*jobs, large)] == [False, False, False, True, True], "so many bytes"
    known.table.check()
    huge = known.begin("huge", acks=True)
    known.end(huge, answer=b"x" * 101)
    assert known.table.unstored == 0


def test_a_later_try_takes_the_place_of_an_unstored_end(known: KnownJobs):
    known.end(known.begin("j", acks=True), failed=True)
    known.begin("j", 2)
    assert known.table.unstored == 0


@in_rows("after", ["r" + "9" * 5000, "r²", "r", "x1", "e-1", "u1.5"])
def test_a_place_that_is_none_is_the_beginning(after):
    assert KnownJobs().names(after=after) == ([], None)


def test_a_listing_names_unstored_ends_before_the_others_in_parts(known: KnownJobs):
    known.end(known.begin("e1"))
    for name in ("u1", "u2", "u3"):
        known.end(known.begin(name, acks=True))
    known.begin("r1")
    assert known.names() == (["r1", "u1", "u2", "u3", "e1"], None)
    found, more = known.names(most=2)
    assert found == ["r1", "u1"] and more is not None
    found, more = known.names(after=more, most=2)
    assert found == ["u2", "u3"] and more is not None
    known.table.stored(JobKey("e", "u3"), 1, 1.0)
    assert known.names(after=more) == (["u3", "e1"], None), "stored meanwhile, and named no less"


def test_what_is_known_of_an_ended_job_takes_little_memory(known: KnownJobs):
    known.table = JobTable(keep=1000, keep_bytes=1000, keep_s=60.0)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(1000):
            known.end(known.begin(f"j{number}", streams=number % 2 == 0))
        assert tracemalloc.get_traced_memory()[0] - before < 1000 * 1200
    finally:
        tracemalloc.stop()
    streaming = known.begin("items", streams=True)
    known.table.add_item(streaming, b"1")
    assert list(known.table.items(streaming, None)) == [b"1"] and not list(known.table.items(known.begin("none"), None))
