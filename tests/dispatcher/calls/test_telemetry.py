"""What can be seen of requests: one trace from client to worker, and the router's metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gangline.schemas.errors.base import DeadlineExceeded, InvalidRequest, Saturated, UnknownMethod
from gangline.schemas.wire.frames import Load, RequestOp
from gangline.telemetry.tracing import tracer
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ...support.dispatcher.fakes import Rig, silent, turns

Read = Callable[[str], dict[tuple[str, ...], float]]


def pool_of() -> Pool:
    pool = Pool("traced", slots=2)

    @pool.task
    async def inner() -> None:
        return None

    @pool.task
    async def fails() -> None:
        raise ValueError("no")

    return pool


async def test_a_call_is_one_trace_from_client_to_worker(spans: InMemorySpanExporter) -> None:
    rig = Rig()
    await rig.start()
    async with Worker(pool_of(), bus=rig.hub.connect("w"), names=rig.names):
        with tracer.span("test.root"):
            await rig.client.call("traced.inner")
            async with rig.client.choose_worker("traced") as selection:
                await rig.client.dispatch(selection, "inner")
    await rig.stop()
    finished = spans.get_finished_spans()
    assert len({span.context.trace_id for span in finished if span.context}) == 1
    names = sorted(span.name for span in finished)
    assert names == [
        "gangline.attempt",
        "gangline.call traced.inner",
        "gangline.call traced.inner",
        "gangline.reserve",
        "gangline.task traced.inner",
        "gangline.task traced.inner",
        "test.root",
    ]
    by_id = {span.context.span_id: span.name for span in finished if span.context}
    parents = {(span.name, by_id.get(span.parent.span_id)) for span in finished if span.parent}
    assert ("gangline.attempt", "gangline.call traced.inner") in parents
    assert ("gangline.task traced.inner", "gangline.attempt") in parents
    assert ("gangline.reserve", "test.root") in parents


async def test_a_failed_call_marks_its_spans(spans: InMemorySpanExporter) -> None:
    rig = Rig()
    await rig.start()
    async with Worker(pool_of(), bus=rig.hub.connect("w"), names=rig.names):
        with pytest.raises(Exception, match="no"):
            await rig.client.call("traced.fails")
    await rig.stop()
    errors = {span.name: (span.attributes or {}).get("error.type") for span in spans.get_finished_spans()}
    assert errors["gangline.call traced.fails"] == "task_failed"


async def test_a_try_that_could_not_be_sent_has_its_span_too(spans: InMemorySpanExporter) -> None:
    rig = Rig()
    await rig.start()
    await rig.worker()
    with pytest.raises(InvalidRequest):
        await rig.client.call("images.echo", object())
    await rig.stop()
    errors = {span.name: (span.attributes or {}).get("error.type") for span in spans.get_finished_spans()}
    assert errors == {"gangline.attempt": "invalid_request", "gangline.call images.echo": "invalid_request"}


async def test_requests_errors_attempts_and_time_are_counted(read: Read) -> None:
    rig = Rig()
    await rig.start()
    await rig.worker(pool="counted")
    for _ in range(3):
        await rig.client.call("counted.echo")
    with pytest.raises(UnknownMethod):
        await rig.client.call("counted.nope")
    assert read("gangline.router.requests")["counted", "counted"] == 4
    assert read("gangline.router.errors")["unknown_method", "counted", "counted"] == 1
    assert read("gangline.router.attempts")["counted", "counted"] == 4
    assert read("gangline.router.fulfilment_time")["counted", "counted"] == 4
    await rig.stop()


async def test_queue_size_and_reserved_slots_go_up_and_come_back(read: Read) -> None:
    rig = Rig()
    await rig.start()
    worker = await rig.worker(pool="queued", slots=2)

    def now() -> tuple[float, float]:
        return (
            read("gangline.router.queue_size").get(("queued",), 0),
            read("gangline.router.reserved_slots").get(("queued",), 0),
        )

    async with rig.client.lease("queued", slots=2):
        assert now() == (0, 2)
        waiting = asyncio.ensure_future(rig.client.call("queued.echo"))
        await turns()
        assert now() == (1, 2)
        rig.hub.disconnect(rig.bus)
    assert now() == (1, 0)  # also when the release could not be sent yet
    rig.hub.reconnect(rig.bus)
    await waiting
    assert now() == (0, 0)
    async with rig.client.choose_worker("queued") as selection:
        assert now() == (0, 1)
        await rig.client.dispatch(selection, "echo")
        assert now() == (0, 0)
    worker.behave = silent
    with pytest.raises(Saturated):
        async with rig.client.options(timeout_s=3).choose_worker("queued"):
            pass
    assert now() == (0, 0)
    assert len(worker.heard_of(RequestOp.RELEASE)) == len(worker.heard_of(RequestOp.RESERVE)) - 1
    await rig.stop()


async def test_waits_after_a_refusal_are_counted(read: Read) -> None:
    rig = Rig()
    await rig.start()
    worker = await rig.worker(pool="backed", behave=lambda _, f: [(4, f[1], "full")])
    worker.load = Load(2, 0, 2)
    with pytest.raises((Saturated, DeadlineExceeded)):  # the last pause may end in the last millisecond
        await rig.client.options(timeout_s=2).call("backed.echo")
    assert read("gangline.router.backoffs")["backed",] >= 5
    await rig.stop()


async def test_tasks_on_a_lease_are_counted_and_traced(read: Read, spans: InMemorySpanExporter) -> None:
    rig = Rig()
    await rig.start()
    await rig.worker(pool="leased")
    async with rig.client.lease("leased") as lease:
        for _ in range(3):
            await lease.call("echo")
    assert read("gangline.router.requests")["leased", "leased"] == 3
    assert read("gangline.router.attempts")["leased", "leased"] == 3
    names = [span.name for span in spans.get_finished_spans()]
    assert names.count("gangline.call leased.echo") == names.count("gangline.attempt") == 3
    traced = [frame[7] for frame in rig.workers[0].heard_of(RequestOp.TASK)]
    assert all(traced) and len(set(traced)) == 3
    await rig.stop()
