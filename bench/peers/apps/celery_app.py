"""Celery on Redis: acknowledged before the task runs by default, after it when tuned; results off in both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from celery import Celery

from bench.peers.apps.submitting import TUNED, URL, Submit
from bench.peers.board import Board

board = Board.given()
app = Celery("bench", broker=URL)
app.conf.task_ignore_result = True
app.conf.broker_connection_retry_on_startup = True
if TUNED:
    app.conf.task_acks_late = True
    app.conf.worker_prefetch_multiplier = 256


@app.task
def note(sent_at: float) -> None:
    board.ran(sent_at)


@asynccontextmanager
async def opened() -> AsyncIterator[Submit]:
    async def submit(sent_at: float) -> None:
        note.delay(sent_at)  # there is no other kind

    yield submit
