"""Whether a request is sampled is decided once, where its trace begins; one that is not makes no span anywhere."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider, sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator

from gangline.telemetry.tracing import NewTrace, Unsampled, attach, tracer, unsampled

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOT_SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"

Install = Callable[..., InMemorySpanExporter]


class Counted(IdGenerator):
    """Trace ids spread evenly over all that a ratio divides."""

    def __init__(self) -> None:
        self.traces = (number << 64 | (number * 0x9E3779B97F4A7C15) % (1 << 64) for number in itertools.count(1))
        self.spans = itertools.count(1)

    def generate_trace_id(self) -> int:
        return next(self.traces)

    def generate_span_id(self) -> int:
        return next(self.spans)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    providers: list[TracerProvider] = []

    def with_sampler(sampler: sampling.Sampler, ids: IdGenerator | None = None) -> InMemorySpanExporter:
        exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler, id_generator=ids or RandomIdGenerator(), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        providers.append(provider)
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
        assert tracer.enabled
        return exporter

    yield with_sampler
    for provider in providers:
        provider.shutdown()


@pytest.mark.parametrize(
    "sampler", [sampling.ParentBasedTraceIdRatio(0.3), sampling.TraceIdRatioBased(0.3)], ids=["parents", "bare"]
)
@pytest.mark.parametrize("decided_before", [True, False])
def test_a_ratio_samples_just_the_traces_that_the_sdk_would(
    install: Install, sampler: sampling.Sampler, decided_before: bool
):
    exporter, ids = install(sampler, Counted()), Counted()
    expected = [
        number
        for number in itertools.islice(ids.traces, 1000)
        if sampler.should_sample(None, number, "x").decision.is_sampled()
    ]
    assert 250 < len(expected) < 350
    for _ in range(1000):
        span = tracer.start("x", parent=tracer.decide() if decided_before else None)
        assert span.traceparent()
        span.end()
    assert [span.context.trace_id for span in exporter.get_finished_spans()] == expected


@pytest.mark.parametrize("sampler", [sampling.DEFAULT_OFF, sampling.ALWAYS_OFF])
def test_what_is_never_sampled_carries_a_new_trace_on(install: Install, sampler: sampling.Sampler):
    exporter = install(sampler)
    carried = tracer.decide()
    assert type(carried) is Unsampled
    text, other = carried.traceparent, tracer.decide()
    assert type(other) is Unsampled and other.traceparent != text
    with tracer.span("outer", parent=carried) as outer:
        assert outer.traceparent() == text
        assert not outer.recording
        assert tracer.traceparent() == text
        outer.set(anything=1)
        outer.event("anything")
        inner = tracer.start("inner", parent=outer)
        assert inner.traceparent() == tracer.start("current").traceparent() == text
        inner.end(ValueError("no"))
        assert inner.traceparent() is None
    assert exporter.get_finished_spans() == ()


def test_a_parents_decision_is_respected(install: Install):
    exporter = install(sampling.ParentBasedTraceIdRatio(1 / 3))
    assert type(tracer.decide(NOT_SAMPLED)) is Unsampled
    for _ in range(50):
        tracer.start("never", parent=NOT_SAMPLED).end()
        tracer.start("always", parent=SAMPLED).end()
    spans = exporter.get_finished_spans()
    assert {span.name for span in spans} == {"always"}
    assert len(spans) == 50


def test_a_sampler_that_asks_no_parent_decides_for_each_span(install: Install):
    exporter = install(sampling.TraceIdRatioBased(1.0))
    assert type(tracer.decide(NOT_SAMPLED)) is Context
    tracer.start("x", parent=NOT_SAMPLED).end()
    assert len(exporter.get_finished_spans()) == 1


def test_spans_of_users_in_a_request_that_is_not_sampled_are_not_sampled_either(install: Install):
    exporter = install(sampling.ParentBased(sampling.ALWAYS_ON))
    context = copy_context()
    context.run(attach, unsampled(NOT_SAMPLED))

    def work() -> None:
        with trace.get_tracer("user").start_as_current_span("theirs") as span:
            assert f"{span.get_span_context().trace_id:032x}" == NOT_SAMPLED.split("-")[1]
            assert tracer.decide() is not None
        decided = tracer.decide()
        assert type(decided) is Unsampled and decided.traceparent == NOT_SAMPLED

    context.run(work)
    assert exporter.get_finished_spans() == ()
    assert tracer.decide() is None


READS: dict[str, Callable[[Context], Mapping[str, object]]] = {
    "dict": dict,
    "unpacked": lambda context: {**context},
    "updated": lambda context: {} | context,
    "copied": lambda context: context.copy(),
    "items": lambda context: dict(context.items()),
    "values": lambda context: dict(zip(context, context.values(), strict=True)),
    "keys": lambda context: {key: context[key] for key in context.keys()},  # noqa: SIM118
    "looked for": lambda context: {key: context[key] for key in _SPAN if key in context},
    "counted": lambda context: context if len(context) == 1 else {},
    "with baggage": lambda context: baggage.set_baggage("for", "it", context),
}
_SPAN = trace.set_span_in_context(trace.INVALID_SPAN, Context())


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_the_context_of_a_request_that_is_not_sampled_has_its_span_however_it_is_read(
    read: Callable[[Context], Mapping[str, object]],
):
    found = trace.get_current_span(Context(read(unsampled(NOT_SAMPLED)))).get_span_context()
    assert f"{found.trace_id:032x}" == NOT_SAMPLED[3:35]
    assert f"{found.span_id:016x}" == NOT_SAMPLED[36:52]
    assert found.is_valid and not found.trace_flags.sampled


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_forked_process_begins_other_traces_than_its_parent():
    program = """
import os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from gangline.telemetry.tracing import tracer

trace.set_tracer_provider(TracerProvider(ParentBasedTraceIdRatio(0.0)))
assert tracer.enabled
tracer.decide()
child = os.fork()
print(tracer.decide().traceparent, flush=True)
if child:
    os.waitpid(child, 0)
"""
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    of_child, of_parent = output.split()
    assert of_child[3:35] != of_parent[3:35]


@pytest.mark.parametrize(
    "malformed", ["", "00-", NOT_SAMPLED + "-more", f"00-{'0' * 32}-b7ad6b7169203331-00", f"ff{NOT_SAMPLED[2:]}"]
)
def test_a_malformed_parent_starts_a_new_trace(install: Install, malformed: str):
    exporter = install(sampling.ParentBasedTraceIdRatio(0.5), Counted())
    with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(7, 7, is_remote=False))):
        decisions = [tracer.decide(malformed) for _ in range(100)]
        kinds = {type(decision) for decision in decisions}
        assert kinds == {Unsampled, NewTrace}
        for decision in decisions:
            tracer.start("x", parent=decision).end()
    spans = exporter.get_finished_spans()
    assert 30 < len(spans) < 70
    assert all(span.parent is None for span in spans)


def test_a_sampler_that_is_replaced_counts_at_once(install: Install):
    install(sampling.DEFAULT_OFF)
    assert type(tracer.decide()) is Unsampled
    trace.get_tracer_provider().sampler = sampling.ParentBased(sampling.ALWAYS_ON)  # type: ignore[attr-defined]
    assert tracer.decide() is None
