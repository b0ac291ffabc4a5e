"""What can be seen of requests: one trace from client to worker, and the router's metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio, Sampler

from gangline.schemas.errors.base import DeadlineExceeded, InvalidRequest, Saturated, UnknownMethod
from gangline.schemas.wire.frames import Load, Reason, RequestOp
from gangline.telemetry.tracing import tracer
from gangline.worker.execution.runner import TaskRunner
from gangline.worker.pool.pool import Pool
from gangline.worker.service import Worker

from ...support.dispatcher.fakes import Rig, give_up, rejects, silent, turns

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


async def test_a_call_is_one_trace_from_client_to_worker(spans: InMemorySpanExporter, rig: Rig) -> None:
    async with Worker(pool_of(), bus=rig.hub.connect("w"), names=rig.names):
        with tracer.span("test.root"):
            await rig.client.call("traced.inner")
            async with rig.client.choose_worker("traced") as selection:
                await rig.client.dispatch(selection, "inner")
    finished = spans.get_finished_spans()
    assert len({span.context.trace_id for span in finished if span.context}) == 1
    names = sorted(span.name for span in finished)
    assert names == [
        "gangline.call traced.inner",
        "gangline.call traced.inner",
        "gangline.reserve",
        "gangline.task traced.inner",
        "gangline.task traced.inner",
        "test.root",
    ]
    by_id = {span.context.span_id: span.name for span in finished if span.context}
    parents = {(span.name, by_id.get(span.parent.span_id)) for span in finished if span.parent}
    assert ("gangline.task traced.inner", "gangline.call traced.inner") in parents
    assert ("gangline.reserve", "test.root") in parents


def provide(monkeypatch, sampler: Sampler) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


def never(*_: object, **__: object) -> Any:
    pytest.fail("taken the general path")


async def test_what_is_not_sampled_stays_on_the_fast_path_with_its_trace(monkeypatch, read: Read, rig: Rig) -> None:
    exporter = provide(monkeypatch, ParentBasedTraceIdRatio(0.0))
    pool, seen = Pool("quiet", slots=4), []

    @pool.task
    async def inner() -> str | None:
        with trace.get_tracer("user").start_as_current_span("theirs"):
            return tracer.traceparent()

    @pool.task
    async def outer() -> tuple[str | None, str | None]:
        await asyncio.sleep(0)
        return tracer.traceparent(), await rig.client.call("quiet.inner")

    async with Worker(pool, bus=rig.hub.connect("w"), names=rig.names):
        await rig.client.call("quiet.inner")  # finds the pool
        with monkeypatch.context() as patch:
            patch.setattr(rig.client._router, "order", never)
            patch.setattr(TaskRunner, "start", never)
            seen.append(await rig.client.call("quiet.inner"))
            async with rig.client.choose_worker("quiet") as selection:
                seen.append(await rig.client.dispatch(selection, "inner"))
            async with rig.client.lease("quiet") as lease:
                seen.append(await lease.call("inner"))
        ours, theirs = await rig.client.call("quiet.outer")
    traces = [of.split("-")[1] for of in (*seen, ours)]
    assert len(set(traces)) == 4
    assert theirs.split("-")[1] == ours.split("-")[1]
    assert all(of.endswith(("-00", "-02")) for of in (*seen, ours, theirs))
    assert exporter.get_finished_spans() == ()
    assert read("gangline.router.fulfilment_time")["quiet", rig.names.namespace, "quiet"] == 6
    assert read("gangline.router.attempts")["quiet", rig.names.namespace, "quiet"] == 6
    assert sum(read("gangline.worker.task_time").values()) >= 6


async def test_what_is_sampled_is_seen_whole_and_what_is_not_is_not_seen_at_all(monkeypatch, rig: Rig) -> None:
    exporter = provide(monkeypatch, ParentBasedTraceIdRatio(0.5))
    async with Worker(pool_of(), bus=rig.hub.connect("w"), names=rig.names):
        for _ in range(64):
            await rig.client.call("traced.inner")
    by_trace: dict[int, list[str]] = {}
    for span in exporter.get_finished_spans():
        assert span.context is not None
        by_trace.setdefault(span.context.trace_id, []).append(span.name)
    assert 8 < len(by_trace) < 56  # of 64: outside once in ten thousand million runs
    assert {tuple(sorted(names)) for names in by_trace.values()} == {
        ("gangline.call traced.inner", "gangline.task traced.inner")
    }


async def test_a_call_that_could_not_be_sent_has_its_span_too(spans: InMemorySpanExporter, rig: Rig) -> None:
    await rig.worker()
    with pytest.raises(InvalidRequest):
        await rig.client.call("images.echo", object())
    errors = {span.name: (span.attributes or {}).get("error.type") for span in spans.get_finished_spans()}
    assert errors == {"gangline.call images.echo": "invalid_arguments"}


async def test_requests_errors_attempts_and_time_are_counted(read: Read, rig: Rig) -> None:
    await rig.worker(pool="counted")
    for _ in range(3):
        await rig.client.call("counted.echo")
    with pytest.raises(UnknownMethod):
        await rig.client.call("counted.nope")
    assert read("gangline.router.requests")["counted", rig.names.namespace, "counted"] == 4
    assert read("gangline.router.errors")["unknown_method", "counted", rig.names.namespace, "counted"] == 1
    assert read("gangline.router.attempts")["counted", rig.names.namespace, "counted"] == 4
    assert read("gangline.router.fulfilment_time")["counted", rig.names.namespace, "counted"] == 4


async def test_queue_size_and_reserved_slots_go_up_and_come_back(read: Read, rig: Rig) -> None:
    worker = await rig.worker(pool="queued", slots=2)

    def now() -> tuple[float, float]:
        return (
            read("gangline.router.queue_size").get((rig.names.namespace, "queued"), 0),
            read("gangline.router.reserved_slots").get((rig.names.namespace, "queued"), 0),
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


async def test_waits_after_a_refusal_are_counted(read: Read, rig: Rig) -> None:
    worker = await rig.worker(pool="backed", behave=lambda _, f: [(4, f[1], "full")])
    worker.load = Load(2, 0, 2)
    with pytest.raises((Saturated, DeadlineExceeded)):  # the last pause may end in the last millisecond
        await rig.client.options(timeout_s=2).call("backed.echo")
    assert read("gangline.router.backoffs")[rig.names.namespace, "backed"] >= 5


@pytest.mark.parametrize("first", [True, False])
async def test_the_next_attempt_of_a_refused_call_has_its_span(
    spans: InMemorySpanExporter, first: bool, rig: Rig
) -> None:
    """On the general path, which the first call of a client takes, as on the fast path."""
    worker = await rig.worker()
    if not first:
        await rig.client.call("images.echo")
        spans.clear()
    worker.behave = rejects(Reason.STALE, 1)
    await rig.client.call("images.echo")
    attempt, call = spans.get_finished_spans()
    assert (attempt.name, (attempt.attributes or {})["gangline.attempt"]) == ("gangline.attempt", 2)
    assert call.name == "gangline.call images.echo"
    assert call.context is not None and attempt.parent is not None and attempt.parent.span_id == call.context.span_id
    assert [(event.name, dict(event.attributes or {})) for event in call.events] == [
        ("gangline.refused", {"reason": "the worker has a newer epoch"})
    ]
    assert (call.attributes or {})["gangline.worker"] == "images.w1"
    sent = [frame[7].split("-")[2] for frame in worker.heard_of(RequestOp.TASK)[-2:]]
    assert sent == [f"{span.context.span_id:016x}" for span in (call, attempt) if span.context]


async def test_users_spans_are_below_ours_on_the_fast_path(monkeypatch, spans: InMemorySpanExporter, rig: Rig) -> None:
    pool = Pool("traced", slots=4)

    @pool.task
    async def at_once() -> None:
        with trace.get_tracer("user").start_as_current_span("theirs"):
            return

    @pool.task
    async def later() -> str | None:
        await asyncio.sleep(0.01)
        with trace.get_tracer("user").start_as_current_span("theirs"):
            return tracer.traceparent()

    @pool.task
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    async with Worker(pool, bus=rig.hub.connect("w"), names=rig.names):
        for task in ("at_once", "later"):
            await rig.client.call(f"traced.{task}")  # the first call of a task finds its pool
        spans.clear()
        with monkeypatch.context() as patch:
            patch.setattr(rig.client._router, "order", never)
            patch.setattr(TaskRunner, "start", never)
            await rig.client.call("traced.at_once")
            await rig.client.call("traced.later")
        with pytest.raises(Exception, match="no"):
            await rig.client.call("traced.fails")
        cancelled = asyncio.ensure_future(rig.client.call("traced.later"))
        await turns()
        await give_up(cancelled)
    finished = spans.get_finished_spans()
    by_id = {span.context.span_id: span for span in finished if span.context}
    seen = sorted(
        (
            span.name,
            by_id[span.parent.span_id].name if span.parent else "",
            str((span.attributes or {}).get("error.type", "")),
        )
        for span in finished
    )
    assert seen == [
        ("gangline.call traced.at_once", "", ""),
        ("gangline.call traced.fails", "", "task_failed"),
        ("gangline.call traced.later", "", ""),
        ("gangline.call traced.later", "", "cancelled"),
        ("gangline.task traced.at_once", "gangline.call traced.at_once", ""),
        ("gangline.task traced.fails", "gangline.call traced.fails", "task_failed"),
        ("gangline.task traced.later", "gangline.call traced.later", ""),
        ("gangline.task traced.later", "gangline.call traced.later", "task_cancelled"),
        ("theirs", "gangline.task traced.at_once", ""),
        ("theirs", "gangline.task traced.later", ""),
    ]
