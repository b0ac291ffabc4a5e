"""One meter provider for the whole test process: instruments bind permanently to the first provider that is set."""

from __future__ import annotations

import functools
from collections.abc import Callable

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

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
