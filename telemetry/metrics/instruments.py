"""Metric instruments, made once for the process on first use and found by every owner of numbers.

Made through the API's proxies, they start to export when a meter provider is set, whether before or after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry import metrics as _metrics
from opentelemetry.metrics import CallbackOptions, Histogram, Observation

from ..tracer_provider import ProviderProbe
from ..tracing import SCOPE
from .counts import Counts

metrics_enabled: Final = ProviderProbe(
    getattr(_metrics, "_internal", _metrics), "_METER_PROVIDER", _metrics.get_meter_provider, _metrics.NoOpMeterProvider
)
"""Whether a real meter provider is set. Only histograms ask: everything else is counted always and read on demand."""

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
"""Bucket bounds for durations: from a local round trip to a long task."""
ATTEMPTS: Final = (1, 2, 3, 4, 5, 7, 10, 15, 20)

_meter: Final = _metrics.get_meter(SCOPE)


def observe(labels: tuple[str, ...], read: Callable[[], Iterable[tuple[tuple[str, ...], float]]]) -> _Callback:
    """A callback that turns keys and numbers into observations with those attribute names."""

    def callback(_options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(number, dict(zip(labels, key, strict=True))) for key, number in read()]

    return callback


_Callback = Callable[[CallbackOptions], Iterable[Observation]]


def counter(name: str, unit: str, description: str, labels: tuple[str, ...]) -> Counts:
    """A number that only grows, exported as a counter."""
    counts = Counts(keep=True)
    _meter.create_observable_counter(name, [observe(labels, counts.total)], unit, description)
    return counts


def level(name: str, unit: str, description: str, labels: tuple[str, ...]) -> Counts:
    """A number that goes up and down, summed over the process's owners."""
    counts = Counts(keep=False)
    _meter.create_observable_up_down_counter(name, [observe(labels, counts.total)], unit, description)
    return counts


def gauge(
    name: str,
    unit: str,
    description: str,
    labels: tuple[str, ...],
    read: Callable[[], Iterable[tuple[tuple[str, ...], float]]],
) -> None:
    """A number read from its owners at each collection."""
    _meter.create_observable_gauge(name, [observe(labels, read)], unit, description)


def histogram(name: str, unit: str, description: str, bounds: tuple[float, ...]) -> Histogram:
    return _meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=list(bounds))
