"""Dramatiq on Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers.apps.submitting import URL, Submit
from bench.peers.board import Board

board = Board.given()
broker = RedisBroker(url=URL)
dramatiq.set_broker(broker)


@dramatiq.actor
def note(sent_at: float) -> None:
    board.ran(sent_at)


@asynccontextmanager
async def opened() -> AsyncIterator[Submit]:
    async def submit(sent_at: float) -> None:
        note.send(sent_at)  # there is no other kind

    yield submit
