"""One meter provider for the whole test process: instruments bind permanently to the first provider that is set."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

Reading = dict[tuple[str, ...], float]


@functools.cache
def memory_reader() -> InMemoryMetricReader:
    """The reader of all metrics of this process; sets the provider on first use."""
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader], shutdown_on_exit=False))
    return reader


def reading_of(reader: InMemoryMetricReader) -> Callable[[str], Reading]:
    """Numbers of one metric by attribute values (sorted by attribute name); for a histogram, how many were recorded."""

    def reading(name: str) -> Reading:
        data = reader.get_metrics_data()
        found: Reading = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name == name:
                        for point in metric.data.data_points:
                            key = tuple(str(value) for _, value in sorted((point.attributes or {}).items()))
                            found[key] = point.value if isinstance(point, NumberDataPoint) else point.count
        return found

    return reading


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Finished spans, with a tracer provider that is there for this test only."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


@pytest.fixture
def read() -> Callable[[str], Reading]:
    """See otel.reading_of."""
    return reading_of(memory_reader())
