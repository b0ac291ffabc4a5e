"""What a worker tells OpenTelemetry: one span for each task, in its caller's trace, and numbers that balance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gangline.schemas.deadline import current_deadline
from gangline.schemas.wire import codec
from gangline.schemas.wire.frames import Load, RequestOp, ReserveFlag
from gangline.telemetry.tracing import Span, tracer

from ...support.worker.rig import Rig, on_rig, task

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


@on_rig()
async def test_a_tasks_span_is_a_child_of_its_callers(rig: Rig, spans):
    await rig.hand.ask(*task(1, "double", [4], trace=PARENT))
    await rig.hand.quiet()
    (span,) = spans.get_finished_spans()
    assert span.name == "gangline.task images.double"
    assert f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert span.attributes["gangline.worker"] == "images.w1"


@on_rig()
async def test_spans_and_calls_inside_a_task_belong_to_it_and_inherit_its_deadline(rig: Rig, spans):
    deadlines: list[float | None] = []

    @rig.worker.pool.task
    async def nested() -> None:
        deadlines.append(current_deadline())
        with tracer.span("inner"):
            pass

    began = rig.worker._worker_server.driver.now()  # type: ignore[union-attr]
    rig.worker.pool.tasks["nested"].prepare()
    await rig.hand.ask(*task(1, "nested", trace=PARENT, deadline_ms=5000))
    await rig.hand.quiet()
    inner, outer = spans.get_finished_spans()
    assert inner.parent.span_id == outer.context.span_id
    assert deadlines == [pytest.approx(began + 5.0, abs=0.01)]


@on_rig()
async def test_a_failed_tasks_span_says_how_it_failed(rig: Rig, spans):
    await rig.hand.ask(*task(1, "fail"))
    await rig.hand.quiet()
    (span,) = spans.get_finished_spans()
    assert span.attributes["error.type"] == "task_failed"
    assert not span.status.is_ok


@on_rig()
async def test_the_plain_requests_traceparent_counts_too(rig: Rig, spans):
    token = (await rig.hand.request("reserve", {}))[0]["token"]
    await rig.hand.bus.request(
        "rig.worker.images.w1.dispatch",
        codec.to_json({"token": token, "method": "double", "arguments": [1]}),
        timeout_s=1,
        headers={"traceparent": PARENT},
    )
    (span,) = spans.get_finished_spans()
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"


@on_rig()
async def test_the_metrics_balance_at_rest(rig: Rig):
    token = await rig.hand.grant(1, flags=ReserveFlag.SINGLE_USE)
    await rig.hand.ask(*task(2, "double", [1], token=token))
    await rig.hand.grant(3, claim_ms=100)
    lease = await rig.hand.grant(4)
    rig.hand.send((int(RequestOp.RELEASE), None, lease))
    await rig.hand.ask(*task(5, "fail"))
    await rig.hand.ask(*task(6, deadline_ms=0))
    await rig.hand.quiet(0.2)
    metrics: Any = rig.worker._worker_server.metrics  # type: ignore[union-attr]
    assert metrics.load() == rig.worker.core.load == Load(0, 0, 2)
    assert metrics.statistics() == {
        "started": 2, "finished": 2, "rejected": 1, "granted": 3, "expired": 1, "released": 2,
    }  # fmt: skip


@on_rig()
async def test_without_tracing_no_task_enters_a_span(rig: Rig, monkeypatch):
    entered: list[Span] = []
    current = Span.current
    monkeypatch.setattr(Span, "current", lambda span: entered.append(span) or current(span))
    assert await rig.hand.ask(*task(1, "double", [4], deadline_ms=5000)) == [1, 1, 8]
    assert await rig.hand.ask(*task(2, "double", [4])) == [1, 2, 8]
    assert entered == []
