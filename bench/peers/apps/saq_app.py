"""SAQ on Redis; a job's data is deleted when it ends, unless results are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from saq import Queue

from bench.peers.apps.submitting import RESULTS, TUNED, URL, Submit
from bench.peers.board import Board

board = Board.given()
queue = Queue.from_url(URL)


async def note(ctx: dict[str, Any], *, sent_at: float) -> float:
    board.ran(sent_at)
    return sent_at


settings: dict[str, Any] = {"queue": queue, "functions": [note]}
if TUNED:
    settings |= {"concurrency": 64, "dequeue_timeout": 1}


@asynccontextmanager
async def opened() -> AsyncIterator[Submit]:
    await queue.connect()

    async def submit(sent_at: float) -> object:
        if RESULTS:
            return await queue.apply("note", sent_at=sent_at, ttl=3600, poll_interval=0.005 if TUNED else 0.5)
        return await queue.enqueue("note", sent_at=sent_at, ttl=-1)

    yield submit
    await queue.disconnect()
