"""What is remembered of durable jobs, by itself."""

from __future__ import annotations

from gangline.worker.deadlines import NEVER
from gangline.worker.job_table import FIRST, Hearer, Job, JobKey, JobTable
from gangline.worker.memory import Sender, TaskRecord


class Bench:
    """A table, and the little of a core that it looks at."""

    def __init__(self, *, keep: int = 100, keep_bytes: int = 1000, keep_s: float = 60.0) -> None:
        self.table = JobTable(keep=keep, keep_bytes=keep_bytes, keep_s=keep_s)
        self.sender = Sender("s", doubtful=False)
        self.ids = 0

    def hearer(self, *, streams: bool = False) -> Hearer:
        self.ids += 1
        return Hearer(self.sender, self.ids, None, streams=streams)

    def begin(self, job: str, attempt: int = 1, *, endpoint: str = "e", streams: bool = False) -> Job:
        first = self.hearer(streams=streams)
        record = TaskRecord(self.sender, first.id, 1, None, NEVER)
        self.sender.running[first.id] = record
        return self.table.begin(JobKey(endpoint, job), attempt, record, first)

    def attach(self, job: Job, *, streams: bool = False, items: int | None = None) -> tuple[Hearer, list[bytes]]:
        hearer = self.hearer(streams=streams)
        self.sender.running[hearer.id] = job.record
        return hearer, list(self.table.attach(job, hearer, items))

    def end(self, job: Job, *, failed: bool = False, now: float = 0.0) -> None:
        for hearer in job.hearers:
            del self.sender.running[hearer.id]
            self.sender.done[hearer.id] = b"answer"
        self.table.end(job, failed=failed, now=now)

    def names(self, endpoint: str | None = None, after: str = FIRST, most: int = 100) -> tuple[list[str], str | None]:
        found, more = self.table.listing(endpoint, after, most)
        return [job.key.job for job in found], more


def test_an_ended_job_is_found_as_long_as_its_answer_is_kept():
    bench = Bench()
    job = bench.begin("j")
    bench.end(job, now=10.0)
    bench.table.sweep(69.9)
    assert bench.table.find(job.key) is job
    assert job.answer == b"answer"
    bench.table.sweep(70.0)
    assert bench.table.find(job.key) is None
    again = bench.begin("j")
    bench.end(again, now=100.0)
    del bench.sender.done[again.record.id]
    assert bench.table.find(again.key) is None, "its answer went first"
    assert len(bench.table) == 0
    bench.table.check()


def test_a_new_attempt_takes_the_place_of_the_one_that_ended():
    bench = Bench()
    bench.end(bench.begin("j"), failed=True, now=0.0)
    second = bench.begin("j", 2)
    bench.table.sweep(1000.0)
    assert bench.table.find(second.key) is second, "the end of the first one is not its own"
    assert bench.names() == (["j"], None)
    bench.table.check()


def test_no_more_ended_jobs_are_known_than_told():
    bench = Bench(keep=2)
    for name in "abc":
        bench.end(bench.begin(name))
    assert bench.names() == (["c", "b"], None)
    bench.table.check()


def test_what_did_not_start_after_all_leaves_nothing():
    bench = Bench()
    job = bench.begin("j", streams=True)
    bench.table.add_item(job, b"item")
    bench.table.undo(job.key)
    assert len(bench.table) == 0
    bench.table.undo(job.key)
    bench.table.check()


def test_only_items_that_nobody_took_are_kept():
    bench = Bench()
    job = bench.begin("j", streams=True)
    for number in range(5):
        bench.table.add_item(job, b"%d" % number)
    assert bench.table.take_items(job, 2) == 2
    assert bench.table.take_items(job, 1) == 0
    assert bench.attach(job)[1] == [], "who reads no items gets none, and does not become the reader"
    assert job.reader is job.hearers[0]
    assert bench.attach(job, streams=True)[1] == [b"2", b"3", b"4"]
    reader, items = bench.attach(job, streams=True, items=4)
    assert items == [b"4"]
    assert job.reader is reader
    assert bench.attach(job, streams=True, items=9)[1] == []
    assert bench.table.take_items(job, 100) == 3, "no more than there were"
    assert not job.items
    bench.table.check()


def test_too_many_bytes_of_items_are_lost_oldest_job_first():
    bench = Bench(keep_bytes=100)
    old, young = bench.begin("old", streams=True), bench.begin("young", streams=True)
    bench.table.add_item(old, b"x" * 60)
    bench.table.add_item(young, b"y" * 40)
    bench.table.check()
    bench.table.add_item(young, b"z")
    assert (len(old.items), len(young.items)) == (0, 2)
    bench.table.add_item(old, b"next")
    assert list(bench.table.items(old, 0)) == [b"next"], "a reader sees by the numbers that some are missing"
    assert bench.table.take_items(old, 1) == 1
    assert list(old.items) == [b"next"]
    bench.table.add_item(young, b"w" * 101)
    assert not young.items
    assert list(old.items) == [b"next"], "what was lost before made it the younger one"
    bench.table.check()


def test_a_listing_names_what_runs_and_then_what_ended_in_parts():
    bench = Bench()
    for name in ("e1", "e2", "e3"):
        bench.end(bench.begin(name))
    running = [bench.begin(name) for name in ("r1", "r2", "r3")]
    bench.begin("other", endpoint="o")
    assert bench.names("e") == (["r1", "r2", "r3", "e3", "e2", "e1"], None)
    assert bench.names("o") == (["other"], None)
    first, more = bench.names("e", most=2)
    assert first == ["r1", "r2"]
    bench.end(running[2])
    assert more is not None
    second, more = bench.names("e", more, 2)
    assert second == ["r3", "e3"], "it ended meanwhile, and is named no less"
    assert more is not None
    third, more = bench.names("e", more, 2)
    assert third == ["e2", "e1"]
    assert more is not None
    assert bench.names("e", more, 2) == ([], None)
    assert bench.names("e", "nonsense")[0] == bench.names("e")[0]
