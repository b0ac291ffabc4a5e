"""Gangline with defaults: `gangline worker`, `gangline dispatcher`, and a client. It has as many slots as tuned
peers run tasks at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import gangline

from ..board import Board
from .submitting import URL, Submit

board = Board.given()
pool = gangline.Pool("bench", slots=256)


@pool.task
async def note(sent_at: float) -> None:
    board.ran(sent_at)


@asynccontextmanager
async def opened() -> AsyncIterator[Submit]:
    async with gangline.connect(URL) as client:
        off = client.options(result_ttl_s=0)
        yield lambda sent_at: off.submit("bench.note", sent_at)
