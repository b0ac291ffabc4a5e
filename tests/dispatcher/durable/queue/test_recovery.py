"""What a queue's new holder is told by workers, put together by tries."""

from __future__ import annotations

from gangline.dispatcher.durable.queue.recovery import Try, by_try
from gangline.schemas.messages.jobs import WorkerJob
from gangline.schemas.names import WorkerId


def job(name: str, attempt: int = 1, *, running: bool = True, rank: int = 0, ranks: int = 0) -> WorkerJob:
    pool = "llm" if ranks else ""
    return WorkerJob(job=name, endpoint="llm", attempt=attempt, running=running, rank=rank, ranks=ranks, pool=pool)


def on(worker: str) -> WorkerId:
    return WorkerId("train", worker)


def test_a_rank_of_which_nobody_knows_is_left_open() -> None:
    assert by_try([(on("w2"), job("a", rank=1, ranks=3)), (on("w9"), job("a", rank=7, ranks=3))]) == [
        Try("a", 1, "llm", "train.w2", ("", "train.w2", ""))
    ]


def test_of_two_workers_with_one_rank_the_one_that_runs_counts() -> None:
    found = [(on("w1"), job("a", ranks=1)), (on("w2"), job("a", running=False, ranks=1))]
    assert by_try(found)[0].workers == by_try(found[::-1])[0].workers == ("train.w1",)


def test_of_two_workers_with_one_attempt_the_one_that_has_ended_counts() -> None:
    found = [(on("w1"), job("a")), (on("w2"), job("a", running=False))]
    assert by_try(found)[0].worker == by_try(found[::-1])[0].worker == "train.w2"
