"""The cost of tracing: three configurations of a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

TRACES: Final = ("none", "off", "on")
"""Not configured; configured from the environment to export nothing; every call traced, with OpenTelemetry's
batching processor and an exporter that discards the spans."""


def set_up(trace: str, service: str) -> None:
    """Set the process's providers; only once, before anything else."""
    if trace == "off":
        from ..telemetry.setup import configure

        configure(service, environ={"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"})
    elif trace == "on":
        from opentelemetry import trace as api
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(_discarding()))
        api.set_tracer_provider(provider)


def _discarding() -> SpanExporter:
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Discarding(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    return Discarding()
