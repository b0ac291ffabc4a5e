"""Gangline with defaults: `gangline worker`, `gangline dispatcher`, and a client. It has as many slots as tuned
peers run tasks at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import gangline

from ..board import Board
from .submitting import RESULTS, URL, Submit, SubmitMany

board = Board.given()
pool = gangline.Pool("bench", slots=256)


@pool.task
async def note(sent_at: float) -> float:
    board.ran(sent_at)
    return sent_at


@asynccontextmanager
async def opened() -> AsyncIterator[Submit]:
    async with gangline.connect(URL) as client:

        async def ask(sent_at: float) -> object:
            return await (await client.submit("bench.note", sent_at)).result()

        off = client.options(result_ttl_s=0)
        yield ask if RESULTS else lambda sent_at: off.submit("bench.note", sent_at)


@asynccontextmanager
async def opened_many() -> AsyncIterator[SubmitMany]:
    async with gangline.connect(URL) as client:
        off = client.options(result_ttl_s=0)
        yield lambda times: off.submit_many("bench.note", [{"sent_at": sent_at} for sent_at in times])
