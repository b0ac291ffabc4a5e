"""taskiq on taskiq-nats: a JetStream work queue, pulled from or pushed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from taskiq.exceptions import ResultGetError, ResultIsReadyError
from taskiq_nats import NATSObjectStoreResultBackend, PullBasedJetStreamBroker, PushBasedJetStreamBroker

from bench.peers.apps.submitting import RESULTS, TUNED, URL, Submit
from bench.peers.board import Board

board = Board.given()
if os.environ["GANGLINE_BENCH_KIND"] == "push":
    broker = PushBasedJetStreamBroker(servers=[URL], queue="bench")
elif TUNED:
    broker = PullBasedJetStreamBroker(servers=[URL], durable="bench", pull_consume_batch=256, pull_consume_timeout=1)
else:
    broker = PullBasedJetStreamBroker(servers=[URL], durable="bench")


if RESULTS:
    broker = broker.with_result_backend(NATSObjectStoreResultBackend(servers=[URL]))


@broker.task
async def note(sent_at: float) -> float:
    board.ran(sent_at)
    return sent_at


@asynccontextmanager
async def opened() -> AsyncIterator[Submit]:
    await broker.startup()
    if isinstance(broker, PushBasedJetStreamBroker):
        # Every process that starts the broker joins the queue's consumers, even if it only submits: tasks delivered
        # here would not run.
        await broker.consumer.unsubscribe()

    async def ask(sent_at: float) -> object:
        task = await note.kiq(sent_at)
        while True:
            try:
                return (await task.wait_result(check_interval=0.005 if TUNED else 0.2, timeout=60)).return_value
            except (ResultGetError, ResultIsReadyError):
                await asyncio.sleep(0.005)  # concurrent reads of its object store fail at times

    yield ask if RESULTS else note.kiq
    await broker.shutdown()
