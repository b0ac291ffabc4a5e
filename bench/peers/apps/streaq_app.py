"""streaq on Redis; results off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from streaq import Worker

from bench.peers.apps.submitting import TUNED, URL, Submit
from bench.peers.board import Board

board = Board.given()
how: dict[str, Any] = {"concurrency": 256, "prefetch": 256} if TUNED else {}
worker = Worker(redis_url=URL, **how)


@worker.task(ttl=0)
async def note(sent_at: float) -> None:
    board.ran(sent_at)


@asynccontextmanager
async def opened() -> AsyncIterator[Submit]:
    async with worker:

        async def submit(sent_at: float) -> None:
            await note.enqueue(sent_at)

        yield submit
