"""SAQ on Redis; a job's data is deleted when it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from saq import Queue

from bench.peers.apps.submitting import TUNED, URL, Submit
from bench.peers.board import Board

board = Board.given()
queue = Queue.from_url(URL)


async def note(ctx: dict[str, Any], *, sent_at: float) -> None:
    board.ran(sent_at)


settings: dict[str, Any] = {"queue": queue, "functions": [note]}
if TUNED:
    settings |= {"concurrency": 64, "dequeue_timeout": 1}


@asynccontextmanager
async def opened() -> AsyncIterator[Submit]:
    await queue.connect()
    yield lambda sent_at: queue.enqueue("note", sent_at=sent_at, ttl=-1)
    await queue.disconnect()
