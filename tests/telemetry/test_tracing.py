"""Spans that cost nothing when off, and join one trace over the wire when on."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gangline.schemas.errors.base import Saturated, WorkerLost
from gangline.telemetry.tracing import NO_SPAN, tracer

from ..support.rows import case

REMOTE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_tracing_is_off_until_a_provider_is_set(monkeypatch):
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    assert not tracer.enabled
    assert tracer.start("x") is NO_SPAN
    assert tracer.traceparent() is None
    with tracer.span("x", parent=REMOTE) as span:
        assert span is NO_SPAN
        assert tracer.traceparent(span) is None


def test_tracing_turns_on_when_a_provider_is_set_later(monkeypatch, request):
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    assert not tracer.enabled
    exporter = request.getfixturevalue("spans")
    assert tracer.enabled
    tracer.start("later").end()
    assert [span.name for span in exporter.get_finished_spans()] == ["later"]


def test_a_provider_that_does_nothing_counts_as_none(monkeypatch):
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", trace.NoOpTracerProvider())
    assert not tracer.enabled


def test_the_public_function_serves_an_api_without_the_module_variable(monkeypatch, spans):
    provider = trace.get_tracer_provider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    monkeypatch.setattr(tracer._probe, "_get", lambda: provider)
    monkeypatch.delattr(trace, "_TRACER_PROVIDER")
    assert tracer.enabled


def test_a_span_continues_the_trace_of_the_wire(spans: InMemorySpanExporter):
    with tracer.span("gangline.task images.thumbnail", kind="server", parent=REMOTE) as span:
        assert span.traceparent() == tracer.traceparent()
    (done,) = spans.get_finished_spans()
    assert f"{done.context.trace_id:032x}" == REMOTE[3:35]
    assert done.parent is not None and done.parent.is_remote and f"{done.parent.span_id:016x}" == REMOTE[36:52]
    assert done.kind is SpanKind.SERVER


def test_a_span_may_be_started_under_another_of_this_process_without_making_that_current(spans: InMemorySpanExporter):
    outer = tracer.start("outer")
    inner = tracer.start("inner", parent=outer)
    outer.end()
    orphan = tracer.start("orphan", parent=outer)
    inner.end()
    orphan.end()
    found = {span.name: span for span in spans.get_finished_spans()}
    assert found["inner"].parent is not None and found["inner"].parent.span_id == found["outer"].context.span_id
    assert not found["inner"].parent.is_remote
    assert found["orphan"].parent is None


def test_client_and_worker_spans_are_one_trace_through_traceparent(spans: InMemorySpanExporter):
    with tracer.span("client") as client:
        router = tracer.start("router", kind="client")
        wire = tracer.traceparent(router)
        router.end()
    worker = tracer.start("worker", kind="server", parent=wire)
    worker.end()
    by_name = {span.name: span for span in spans.get_finished_spans()}
    assert len({span.context.trace_id for span in by_name.values()}) == 1
    assert by_name["worker"].parent.span_id == by_name["router"].context.span_id
    assert by_name["router"].parent.span_id == by_name["client"].context.span_id
    assert client.traceparent() is None, "an ended span has no place any more"


def test_a_malformed_traceparent_starts_a_new_trace(spans: InMemorySpanExporter):
    zeros = f"00-{'0' * 32}-b7ad6b7169203331-01"
    for broken in ("", "x", REMOTE + "-00", "ff" + REMOTE[2:], REMOTE.upper(), zeros, REMOTE[:-1]):
        with case(broken):
            with tracer.span("current"):
                tracer.start("x", parent=broken).end()
            span = next(span for span in spans.get_finished_spans() if span.name == "x")
            assert span.parent is None or not span.parent.is_valid
            assert f"{span.context.trace_id:032x}" != REMOTE[3:35]


def test_a_later_version_of_traceparent_may_have_more_fields(spans: InMemorySpanExporter):
    tracer.start("x", parent="01" + REMOTE[2:] + "-future").end()
    assert f"{spans.get_finished_spans()[0].context.trace_id:032x}" == REMOTE[3:35]


@pytest.mark.parametrize(
    ("error", "kind"),
    [(Saturated("all full"), "saturated"), (ValueError("no"), "ValueError"), (asyncio.CancelledError(), "cancelled")],
)
def test_an_error_marks_the_span_with_its_stable_code(spans: InMemorySpanExporter, error: BaseException, kind: str):
    with pytest.raises(type(error)), tracer.span("x"):
        raise error
    (span,) = spans.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == kind
    assert [event.name for event in span.events] == ["exception"]


def test_an_error_says_on_the_span_whether_the_task_may_have_started(spans: InMemorySpanExporter):
    tracer.start("x").end(WorkerLost("gone"))
    assert spans.get_finished_spans()[0].attributes["gangline.may_have_started"] is True


def test_a_span_ends_once(spans: InMemorySpanExporter):
    span = tracer.start("x", attributes={"pool": "p"})
    span.set(gangline__worker="p.w1")
    span.event("rejected", {"reason": "full"})
    assert span.recording
    span.end()
    span.end(ValueError("too late"))
    span.set(ignored=1)
    (done,) = spans.get_finished_spans()
    assert dict(done.attributes) == {"pool": "p", "gangline.worker": "p.w1"}
    assert done.status.status_code is StatusCode.UNSET
    assert not span.recording


async def test_a_span_is_current_in_its_own_task_only(spans: InMemorySpanExporter):
    inside = asyncio.Event()
    leave = asyncio.Event()

    async def hold() -> None:
        with tracer.span("held"):
            inside.set()
            await leave.wait()

    task = asyncio.create_task(hold())
    await inside.wait()
    assert tracer.traceparent() is None
    leave.set()
    await task
