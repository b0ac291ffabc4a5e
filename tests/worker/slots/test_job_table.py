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


def test_an_ended_job_is_found_as_long_as_its_answer_is_kept(known: KnownJobs):
    job = known.begin("j")
    known.end(job, now=10.0)
    known.table.sweep(69.9)
    assert known.table.find(job.key) is job
    assert job.answer == b"answer"
    known.table.sweep(70.0)
    assert known.table.find(job.key) is None
    again = known.begin("j")
    known.end(again, now=100.0)
    del known.sender.done[again.record.id]
    assert known.table.find(again.key) is None, "its answer went first"
    assert len(known.table) == 0


def test_a_new_attempt_takes_the_place_of_the_one_that_ended(known: KnownJobs):
    known.end(known.begin("j"), failed=True, now=0.0)
    second = known.begin("j", 2)
    known.table.sweep(1000.0)
    assert known.table.find(second.key) is second, "the end of the first one is not its own"
    assert known.names() == (["j"], None)


def test_no_more_ended_jobs_are_known_than_told():
    known = KnownJobs(keep=2)
    for name in "abc":
        known.end(known.begin(name))
    assert known.names() == (["c", "b"], None)
    known.table.check()


def test_what_did_not_start_after_all_leaves_nothing(known: KnownJobs):
    job = known.begin("j", streams=True)
    known.table.add_item(job, b"item")
    known.table.undo(job.key)
    assert len(known.table) == 0
    known.table.undo(job.key)


def test_only_items_that_nobody_took_are_kept(known: KnownJobs):
    job = known.begin("j", streams=True)
    for number in range(5):
        known.table.add_item(job, b"%d" % number)
    assert known.table.take_items(job, 2) == 2
    assert known.table.take_items(job, 1) == 0
    assert known.attach(job)[1] == [], "who reads no items gets none, and does not become the reader"
    assert job.reader is job.listeners[0]
    assert known.attach(job, streams=True)[1] == [b"2", b"3", b"4"]
    reader, items = known.attach(job, streams=True, items=4)
    assert items == [b"4"]
    assert job.reader is reader
    assert known.attach(job, streams=True, items=9)[1] == []
    assert known.table.take_items(job, 100) == 3, "no more than there were"
    assert not job.items


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


def test_a_listing_names_what_runs_and_then_what_ended_in_parts(known: KnownJobs):
    for name in ("e1", "e2", "e3"):
        known.end(known.begin(name))
    running = [known.begin(name) for name in ("r1", "r2", "r3")]
    known.begin("other", endpoint="o")
    assert known.names("e") == (["r1", "r2", "r3", "e3", "e2", "e1"], None)
    assert known.names("o") == (["other"], None)
    first, more = known.names("e", most=2)
    assert first == ["r1", "r2"]
    known.end(running[2])
    assert more is not None
    second, more = known.names("e", more, 2)
    assert second == ["r3", "e3"], "it ended meanwhile, and is named no less"
    assert more is not None
    third, more = known.names("e", more, 2)
    assert third == ["e2", "e1"]
    assert more is not None
    assert known.names("e", more, 2) == ([], None)
    assert known.names("e", "nonsense")[0] == known.names("e")[0]


# -- unstored ends ----------------------------------------------------------------------------------------------------


def test_an_end_that_nobody_has_stored_outlives_the_answer(known: KnownJobs):
    job = known.begin("j", acks=True)
    known.end(job, now=10.0)
    known.sender.done.clear()
    known.table.sweep(609.9)
    assert (known.table.find(job.key), job.answer, known.table.unstored) == (job, b"answer", 1)
    known.table.check()
    known.table.sweep(610.0)
    assert (known.table.find(job.key), known.table.unstored) == (None, 0), "nobody came for it"


def test_an_end_that_is_stored_is_known_as_any_other(known: KnownJobs):
    job = known.begin("j", 2, acks=True)
    known.end(job, now=10.0)
    known.table.stored(job.key, 1, 11.0)
    known.table.stored(JobKey("e", "other"), 2, 11.0)
    assert known.table.unstored == 1, "it was the end of another try, or of another job"
    known.table.stored(job.key, 2, 20.0)
    assert (known.table.unstored, known.table.find(job.key)) == (0, job)
    known.table.check()
    known.table.sweep(80.0)
    assert known.table.find(job.key) is None


def test_an_end_of_no_interest_is_not_kept(known: KnownJobs):
    job = known.begin("j", acks=True)
    known.table.stored(job.key, 1, 0.0)
    known.end(job)
    assert known.table.unstored == 0


def test_whoever_attaches_and_says_nothing_of_the_end_is_not_waited_for(known: KnownJobs):
    runs, ended = known.begin("runs", acks=True), known.begin("ended", acks=True)
    known.end(ended)
    for job in (runs, ended):
        known.table.asked(job, acks=False, now=1.0)
    assert (known.table.unstored, known.table.find(ended.key)) == (0, ended)
    known.table.asked(runs, acks=True, now=2.0)
    known.end(runs, now=3.0)
    assert known.table.unstored == 1, "the last word counts"


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
