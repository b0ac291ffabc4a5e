"""What tasks declare is shown as it is written in the code, once for all workers that declare the same."""

from __future__ import annotations

from gangline.cli.views.workers import WorkerRow, tasks_of
from gangline.schemas.records.workers import HeldShare, LimitRecord, Registration
from gangline.worker.pool.pool import Pool


def row(worker: str, pool: Pool) -> WorkerRow:
    methods = {name: task.info() for name, task in pool.tasks.items()}
    record = Registration(pool=pool.name, worker=worker, epoch=1, instance=worker, slots=1, methods=methods)
    return WorkerRow(registration=record, heartbeat=None)


def version(**policy: object) -> Pool:
    pool = Pool("p", slots=4)

    @pool.task(**policy)  # type: ignore[call-overload]
    async def work() -> None: ...

    @pool.task(slots=2)
    async def plain() -> None: ...

    return pool


def test_each_declaration_is_one_row_with_its_options():
    old = version(idempotent=True, max_attempts=3, backoff_s=0.5, retry_on=(OSError, "Flaky"), cron="0 3 * * *")
    new = version(max_running=2, no_retry_on=ValueError, retry_on=())
    rows = tasks_of([row("w1", old), row("w2", old), row("w3", new)])
    assert [(each.method, each.workers, each.options) for each in rows] == [
        ("plain", 3, ""),
        ("work", 2, "idempotent max_attempts=3 backoff_s=0.5 retry_on=OSError,Flaky cron='0 3 * * *'"),
        ("work", 1, "retry_on=nothing no_retry_on=ValueError max_running=2"),
    ]
    told = rows[2].to_json()
    assert (told["pool"], told["task"], told["workers"]) == ("p", "work", 1)
    assert told["policy"]["max_running"] == 2  # type: ignore[index]


def test_shares_of_limits_over_all_workers_are_shown_with_what_declares_them():
    limits = {
        ("p", name): LimitRecord(
            incarnation="i", limit=5, shares={"w1": HeldShare(instance="w1", units=3)}, interval_s=interval_s
        )
        for name, interval_s in (("work", 0.0), ("work=rate", 0.1), ("plain=rate", 0.1))
    }
    plain, work = tasks_of([row("w1", version(max_running=5, rate_per_s=50))], limits)
    assert plain.options == "" and work.options.endswith("shares=w1:3 rate_shares=w1:30")
    told = work.to_json()
    assert (told["shares"], told["rate_shares"]) == ({"w1": 3}, {"w1": 30.0})
