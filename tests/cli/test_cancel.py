"""cancel: many jobs at once."""

from __future__ import annotations

import asyncio

import pytest

from gangline import Pool
from gangline.cli.commands.tasks.cancel import _summary, cancel_each, unfinished
from gangline.testing import cluster

POOL = Pool("train", slots=4)


@POOL.task
async def wait() -> None:
    await asyncio.Event().wait()


@POOL.task
async def end() -> None:
    pass


async def test_all_jobs_of_a_kind_are_cancelled_and_no_others():
    async with cluster(POOL, dispatcher=True) as client:
        first = [await client.options(key=key).submit("train.wait") for key in ("a", "b") for _ in range(4)]
        ended = await client.options(key="c").submit("train.end")
        await ended.cancel()
        await asyncio.sleep(100)
        of_a = [job.id for job in first[:4]]
        assert sorted(await unfinished(client, key="a")) == sorted(of_a)
        assert await unfinished(client, endpoint="other") == []
        new = await client.options(key="a").submit("train.wait")
        await asyncio.sleep(1)
        submitted_at = (await new.status()).submitted_at or 0.0
        assert sorted(await unfinished(client, key="a", before=submitted_at - 50)) == sorted(of_a)
        queued = await unfinished(client, states=("running",))
        assert 0 < len(queued) <= 4
        rows = await cancel_each(client, [*of_a, ended.id, "train.junknown"])
        assert _summary(rows).startswith("4 jobs cancelled, ")
        assert len(rows) == 6 and sum("error" in row for row in rows) + sum(bool(row["cancelled"]) for row in rows) >= 5
        assert [(await job.status()).state.value for job in first[:4]] == ["cancelled"] * 4
        assert not (await new.status()).state.final
        assert not any([(await job.status()).state.final for job in first[4:]])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "give a job's id, or --all"),
        (["train.j1", "--all"], "give a job's id, or --all"),
        (["train.j1", "--key", "a"], "--key needs --all"),
        (["train.j1", "--older-than", "1h"], "--older-than needs --all"),
    ],
)
def test_conditions_are_for_all_jobs(invoke, arguments, why):
    done = invoke("cancel", *arguments)
    assert done.exit_code == 2 and why in done.output
