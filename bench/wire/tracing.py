"""The cost of being observed: configurations of a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

OBSERVED: Final[dict[str, tuple[float | None, bool]]] = {
    "none": (None, False),
    "off": (None, False),
    "on": (1.0, False),
    "metrics": (None, True),
    "1pct": (0.01, False),
    "production": (0.01, True),
}
"""Share of the traces that are sampled, and whether there are metrics. `none`: nothing is configured; `off`: configured
from the environment to export nothing. Spans go through OpenTelemetry's batching processor, metrics are collected each
second, and both are discarded then."""


def set_up(observed: str, service: str) -> None:
    """Set the process's providers; only once, before anything else."""
    if observed == "off":
        from ..telemetry.setup import configure

        configure(service, environ={"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"})
    ratio, metrics = OBSERVED[observed]
    if ratio is not None:
        from opentelemetry import trace as api
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

        provider = TracerProvider(ParentBasedTraceIdRatio(ratio))
        provider.add_span_processor(BatchSpanProcessor(_no_spans()))
        api.set_tracer_provider(provider)
    if metrics:
        from opentelemetry import metrics as metrics_api
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        reader = PeriodicExportingMetricReader(_no_metrics(), export_interval_millis=1000)
        metrics_api.set_meter_provider(MeterProvider([reader]))


def _no_spans() -> SpanExporter:
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class NoSpans(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    return NoSpans()


def _no_metrics() -> MetricExporter:
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult

    class NoMetrics(MetricExporter):
        def export(self, *_: Any, **__: Any) -> MetricExportResult:
            return MetricExportResult.SUCCESS

        def force_flush(self, timeout_millis: float = 0) -> bool:
            return True

        def shutdown(self, *_: Any, **__: Any) -> None:
            pass

    return NoMetrics()
