"""Real SDK providers, in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

Reading = dict[tuple[str, ...], float]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Finished spans, with a tracer provider that is there for this test only."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


@pytest.fixture(scope="session")
def _reader() -> Iterator[InMemoryMetricReader]:
    # A meter provider is set once in a process, since instruments bind to it for good.
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader], shutdown_on_exit=False))
    yield reader


@pytest.fixture
def read(_reader: InMemoryMetricReader) -> Callable[[str], Reading]:
    """Numbers of one metric by attribute values (sorted by attribute name); for a histogram, how many were recorded."""

    def reading(name: str) -> Reading:
        data = _reader.get_metrics_data()
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
