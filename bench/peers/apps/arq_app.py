"""arq on Redis; results off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from arq import create_pool, func
from arq.connections import RedisSettings

from bench.peers.apps.submitting import TUNED, URL, Submit
from bench.peers.board import Board

board = Board.given()


async def note(ctx: dict[str, Any], sent_at: float) -> None:
    board.ran(sent_at)


class WorkerSettings:
    functions = [func(note, keep_result=0)]
    redis_settings = RedisSettings.from_dsn(URL)
    if TUNED:
        max_jobs = 256
        poll_delay = 0.005


@asynccontextmanager
async def opened() -> AsyncIterator[Submit]:
    redis = await create_pool(RedisSettings.from_dsn(URL))
    yield lambda sent_at: redis.enqueue_job("note", sent_at)
    await redis.aclose()
