"""Exporters for command-line processes, from OpenTelemetry's standard environment variables.

==================================  ==============================================================================
variable                            meaning
==================================  ==============================================================================
OTEL_SDK_DISABLED                   `true`: export nothing
OTEL_TRACES_EXPORTER                `otlp`, `console`, `none`; a comma-separated list
OTEL_METRICS_EXPORTER               `otlp`, `prometheus`, `console`, `none`; a comma-separated list
OTEL_EXPORTER_OTLP_ENDPOINT, ...    address, headers, compression, timeouts: read by the exporters themselves
OTEL_EXPORTER_OTLP_PROTOCOL         `http/protobuf` (default) or `grpc`; also `..._TRACES_...`, `..._METRICS_...`
OTEL_EXPORTER_PROMETHEUS_HOST       address for Prometheus to scrape; default localhost
OTEL_EXPORTER_PROMETHEUS_PORT       default 9464
OTEL_SERVICE_NAME                   default: depends on the command (`gangline-worker`, `gangline-gateway`)
OTEL_RESOURCE_ATTRIBUTES            additional attributes of the process
==================================  ==============================================================================

One default differs from the standard: the exporter is `none`, or `otlp` if OTEL_EXPORTER_OTLP_ENDPOINT is set. The SDK
is imported only if something is to be exported.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ..schemas.errors.base import InvalidSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor

_OTLP_PACKAGES: Final = {
    "http/protobuf": ("opentelemetry.exporter.otlp.proto.http", "opentelemetry-exporter-otlp-proto-http"),
    "grpc": ("opentelemetry.exporter.otlp.proto.grpc", "opentelemetry-exporter-otlp-proto-grpc"),
}
_TRACES: Final = ("otlp", "console", "none")
_METRICS: Final = ("otlp", "prometheus", "console", "none")
_SCRAPED: Final = "scraped"
"""As `prometheus`, without a server of its own."""


def configure(service: str, *, environ: Mapping[str, str] | None = None, scraped: bool = False) -> Callable[[], None]:
    """Set the global providers as configured in the environment; do nothing if it configures none.

    Args:
        service: the service name if the environment has none.
        environ: used instead of the process's environment. (The exporters still read the latter.)
        scraped: also collect metrics for `scrape`, if Prometheus's exporter is installed.

    Returns:
        A function to call at the end: it sends buffered data (which may block for some seconds) and stops the
        exporters.

    Raises:
        InvalidSettings: an unknown exporter, an exporter whose package is not installed (the text names the package),
            or a Prometheus port that is in use.
    """
    env = os.environ if environ is None else environ
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return lambda: None
    traces = _exporters(env, "OTEL_TRACES_EXPORTER", _TRACES)
    metrics = _exporters(env, "OTEL_METRICS_EXPORTER", _METRICS)
    if scraped and "prometheus" not in metrics and scrape() is not None:
        metrics.append(_SCRAPED)
    ends: list[Callable[[], object]] = []
    if traces or metrics:
        resource = _resource(service, env)
        if traces:
            ends.append(_set_tracer_provider(traces, resource, env))
        if metrics:
            ends.append(_set_meter_provider(metrics, resource, env))

    def shutdown() -> None:
        while ends:
            ends.pop()()

    return shutdown


def scrape() -> Callable[[], bytes] | None:
    """A function that returns all metrics in Prometheus's text format; None: the exporter is not installed."""
    try:
        importlib.import_module("opentelemetry.exporter.prometheus")
        client = importlib.import_module("prometheus_client")
    except ImportError:
        return None
    read: Callable[[], bytes] = client.generate_latest
    return read


def _exporters(env: Mapping[str, str], variable: str, known: tuple[str, ...]) -> list[str]:
    default = "otlp" if env.get("OTEL_EXPORTER_OTLP_ENDPOINT") else "none"
    asked = [name.strip().lower() for name in (env.get(variable) or default).split(",") if name.strip()]
    for name in asked:
        if name not in known:
            raise InvalidSettings(f"{variable}={name} is not supported: use {', '.join(known)}")
    return [name for name in dict.fromkeys(asked) if name != "none"]


def _resource(service: str, env: Mapping[str, str]) -> Resource:
    sdk = _module("opentelemetry.sdk.resources", "opentelemetry-sdk", "OTEL_TRACES_EXPORTER")
    named = "service.name" in env.get("OTEL_RESOURCE_ATTRIBUTES", "")
    name = env.get("OTEL_SERVICE_NAME") or (None if named else service)
    resource: Resource = sdk.Resource.create({"service.name": name} if name else {})
    return resource


def _set_tracer_provider(names: list[str], resource: Resource, env: Mapping[str, str]) -> Callable[[], object]:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    processors = [_span_processor(name, env) for name in names]
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for processor in processors:
        provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _span_processor(name: str, env: Mapping[str, str]) -> SpanProcessor:
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor

    if name == "console":
        return SimpleSpanProcessor(ConsoleSpanExporter())
    module = _otlp("trace_exporter", "OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", env)
    return BatchSpanProcessor(module.OTLPSpanExporter())


def _set_meter_provider(names: list[str], resource: Resource, env: Mapping[str, str]) -> Callable[[], object]:
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider

    ends: list[Callable[[], object]] = []
    readers = [_metric_reader(name, env, ends) for name in names]
    provider = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
    metrics.set_meter_provider(provider)

    def shutdown() -> None:
        provider.shutdown()
        for end in ends:
            end()

    return shutdown


def _metric_reader(name: str, env: Mapping[str, str], ends: list[Callable[[], object]]) -> MetricReader:
    from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader

    if name == "prometheus":
        return _prometheus(env, ends)
    if name == _SCRAPED:
        collected: MetricReader = importlib.import_module("opentelemetry.exporter.prometheus").PrometheusMetricReader()
        return collected
    if name == "console":
        return PeriodicExportingMetricReader(ConsoleMetricExporter())
    module = _otlp("metric_exporter", "OTEL_METRICS_EXPORTER", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", env)
    return PeriodicExportingMetricReader(module.OTLPMetricExporter())


def _prometheus(env: Mapping[str, str], ends: list[Callable[[], object]]) -> MetricReader:
    package = "opentelemetry-exporter-prometheus"
    exporter = _module("opentelemetry.exporter.prometheus", package, "OTEL_METRICS_EXPORTER=prometheus")
    client = _module("prometheus_client", package, "OTEL_METRICS_EXPORTER=prometheus")
    host = env.get("OTEL_EXPORTER_PROMETHEUS_HOST") or "localhost"
    port = env.get("OTEL_EXPORTER_PROMETHEUS_PORT") or "9464"
    try:
        server, thread = client.start_http_server(port=int(port), addr=host)
    except ValueError as error:
        raise InvalidSettings(f"OTEL_EXPORTER_PROMETHEUS_PORT={port} is not a port number") from error
    except (OSError, OverflowError) as error:
        raise InvalidSettings(
            f"Prometheus metrics cannot be served on {host}:{port} ({error}): "
            "set OTEL_EXPORTER_PROMETHEUS_PORT to a free port, one for each process"
        ) from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    ends.append(stop)
    reader: MetricReader = exporter.PrometheusMetricReader()
    return reader


def _otlp(part: str, asked_by: str, own_protocol: str, env: Mapping[str, str]) -> Any:
    protocol = env.get(own_protocol) or env.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "http/protobuf"
    if protocol not in _OTLP_PACKAGES:
        raise InvalidSettings(
            f"OTLP protocol {protocol!r} is not supported: set OTEL_EXPORTER_OTLP_PROTOCOL to "
            f"{' or '.join(_OTLP_PACKAGES)}"
        )
    module, package = _OTLP_PACKAGES[protocol]
    return _module(f"{module}.{part}", package, f"{asked_by}=otlp")


def _module(name: str, package: str, asked_by: str) -> Any:
    """Import the module, or raise an error that names the missing package."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InvalidSettings(
            f"{asked_by} needs a package that is not installed: pip install {package} ({error})"
        ) from error
