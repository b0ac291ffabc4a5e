"""Celery on Redis: acknowledged before the task runs by default, after it when tuned."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from celery import Celery

from bench.peers.apps.submitting import RESULTS, TUNED, URL, Submit
from bench.peers.board import Board

board = Board.given()
app = Celery("bench", broker=URL, backend=URL if RESULTS else None)
app.conf.task_ignore_result = not RESULTS
app.conf.broker_connection_retry_on_startup = True
if TUNED:
    app.conf.task_acks_late = True
    app.conf.worker_prefetch_multiplier = 256


@app.task
def note(sent_at: float) -> float:
    board.ran(sent_at)
    return sent_at


@asynccontextmanager
async def opened() -> AsyncIterator[Submit]:
    async def submit(sent_at: float) -> None:
        note.delay(sent_at)  # there is no other kind

    def ask(sent_at: float) -> object:
        return note.delay(sent_at).get(timeout=60)

    with ThreadPoolExecutor(64) as threads:  # results are waited for by threads

        async def result(sent_at: float) -> object:
            return await asyncio.get_running_loop().run_in_executor(threads, ask, sent_at)

        yield result if RESULTS else submit
