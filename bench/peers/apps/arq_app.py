"""arq on Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from arq import create_pool, func
from arq.connections import RedisSettings

from bench.peers.apps.submitting import RESULTS, TUNED, URL, Submit
from bench.peers.board import Board

board = Board.given()


async def note(ctx: dict[str, Any], sent_at: float) -> float:
    board.ran(sent_at)
    return sent_at


class WorkerSettings:
    functions = [func(note, keep_result=3600 if RESULTS else 0)]
    redis_settings = RedisSettings.from_dsn(URL)
    if TUNED:
        max_jobs = 256
        poll_delay = 0.005


@asynccontextmanager
async def opened() -> AsyncIterator[Submit]:
    redis = await create_pool(RedisSettings.from_dsn(URL))

    async def submit(sent_at: float) -> object:
        job = await redis.enqueue_job("note", sent_at)
        return await job.result(poll_delay=0.005 if TUNED else 0.5) if RESULTS else job

    yield submit
    await redis.aclose()
