"""This process's own metrics, read as an exporter would read them."""

from __future__ import annotations

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

GAUGES = ("gangline.router.reserved_slots", "gangline.router.queue_size")


class Gauges:
    """A meter provider that keeps what it collects."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        metrics.set_meter_provider(MeterProvider([self._reader]))

    def read(self) -> dict[str, float]:
        """The sum of each gauge over all pools; one that was never moved is missing."""
        found: dict[str, float] = {}
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name in GAUGES:
                        points = [point for point in metric.data.data_points if isinstance(point, NumberDataPoint)]
                        found[metric.name] = float(sum(point.value for point in points))
        return found
