"""FastStream on a JetStream stream, pushed to a durable queue group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from faststream import FastStream
from faststream.nats import JStream, NatsBroker

from bench.peers.apps.submitting import TUNED, URL, Submit
from bench.peers.board import Board

board = Board.given()
broker = NatsBroker(URL, apply_types=not TUNED)
app = FastStream(broker)


@broker.subscriber("bench.note", stream=JStream("bench"), queue="bench", durable="bench")
async def note(sent_at: float) -> None:
    board.ran(sent_at)


@asynccontextmanager
async def opened() -> AsyncIterator[Submit]:
    async with NatsBroker(URL) as near:
        yield lambda sent_at: near.publish(sent_at, "bench.note", stream="bench")
