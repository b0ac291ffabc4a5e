"""A worker that refused a request says when it has room again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gangline.schemas.wire.frames import AnswerOp, Frame, Load, RequestOp

from ...support.dispatcher.fakes import FakeWorker, Rig, obedient, turns
from ...waiting import loop_time


def full(worker: FakeWorker, frame: Frame) -> Sequence[Frame]:
    return [(AnswerOp.REJECTED, frame[1], "full")]


@pytest.mark.router(backoff_first_s=0.4)
async def test_an_invited_request_is_sent_at_once_to_the_worker_that_refused_it(rig: Rig) -> None:
    worker = await rig.worker(behave=full)
    worker.load = Load(2, 0, 2)
    calls = [asyncio.ensure_future(rig.client.call("images.echo")) for _ in range(2)]
    await worker.hears(RequestOp.TASK)
    await turns()
    refused = len(worker.heard_of(RequestOp.TASK))
    worker.behave = obedient
    worker.load = Load(1, 0, 2)
    now = loop_time()
    worker.answer()
    done, _ = await asyncio.wait(calls, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
    assert done and loop_time() - now < 0.01
    assert len(worker.heard_of(RequestOp.TASK)) > refused
    await asyncio.gather(*calls)


async def test_an_invitation_that_nobody_needs_any_more_changes_nothing(rig: Rig) -> None:
    worker = await rig.known_worker()
    worker.answer()
    await turns()
    assert len(worker.heard_of(RequestOp.TASK)) == 1
