"""taskiq on taskiq-nats: a JetStream work queue, pulled from or pushed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from taskiq_nats import PullBasedJetStreamBroker, PushBasedJetStreamBroker

from bench.peers.apps.submitting import TUNED, URL, Submit
from bench.peers.board import Board

board = Board.given()
if os.environ["GANGLINE_BENCH_KIND"] == "push":
    broker = PushBasedJetStreamBroker(servers=[URL], queue="bench")
elif TUNED:
    broker = PullBasedJetStreamBroker(servers=[URL], durable="bench", pull_consume_batch=256, pull_consume_timeout=1)
else:
    broker = PullBasedJetStreamBroker(servers=[URL], durable="bench")


@broker.task
async def note(sent_at: float) -> None:
    board.ran(sent_at)


@asynccontextmanager
async def opened() -> AsyncIterator[Submit]:
    await broker.startup()
    if isinstance(broker, PushBasedJetStreamBroker):
        # Every process that starts the broker joins the queue's consumers, even if it only submits: tasks delivered
        # here would not run.
        await broker.consumer.unsubscribe()
    yield note.kiq
    await broker.shutdown()
