"""Values that are recorded in groups come out of the SDK as if each had been recorded by itself."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.metrics.view import (
    DropAggregation,
    ExplicitBucketHistogramAggregation,
    ExponentialBucketHistogramAggregation,
    View,
)

from gangline.telemetry.metrics import sdk_groups

from ...support.rows import case

BOUNDS = (0.001, 0.01, 0.1, 1)
DELTA = {Histogram: AggregationTemporality.DELTA}
VIEWS: dict[str, list[View]] = {
    "plain": [],
    "other buckets": [View(instrument_name="t", aggregation=ExplicitBucketHistogramAggregation((0.5,)))],
    "without extremes": [
        View(instrument_name="t", aggregation=ExplicitBucketHistogramAggregation((0.5,), record_min_max=False))
    ],
    "exponential": [View(instrument_name="t", aggregation=ExponentialBucketHistogramAggregation())],
    "fewer attributes": [View(instrument_name="t", attribute_keys={"a"})],
    "no attributes": [View(instrument_name="t", attribute_keys=set())],
    "two of one": [
        View(instrument_name="t", name="one"),
        View(instrument_name="t", name="two", aggregation=ExplicitBucketHistogramAggregation((2,))),
    ],
    "dropped": [View(instrument_name="t", aggregation=DropAggregation())],
}


class ReadHistogram:
    """A provider with a histogram, and what its readers have seen."""

    def __init__(self, views: Sequence[View], temporalities: Sequence[dict[type, AggregationTemporality]]) -> None:
        self.readers = [InMemoryMetricReader(preferred_temporality=each) for each in temporalities]
        provider = MeterProvider(self.readers, views=views, shutdown_on_exit=False)
        self.histogram = provider.get_meter("m").create_histogram("t", explicit_bucket_boundaries_advisory=BOUNDS)

    def seen(self) -> list[Any]:
        return [_points(reader) for reader in self.readers]


def _points(reader: InMemoryMetricReader) -> Any:
    data = reader.get_metrics_data()
    metrics = [m for r in (data.resource_metrics if data else ()) for s in r.scope_metrics for m in s.metrics]
    found = []
    for metric in metrics:
        for point in metric.data.data_points:
            facts = {
                name: value
                for name in ("count", "bucket_counts", "explicit_bounds", "min", "max", "scale", "positive")
                if (value := getattr(point, name, None)) is not None
            }
            total = getattr(point, "sum", 0.0)
            found.append((metric.name, sorted((point.attributes or {}).items()), facts, round(total, 9)))
    return sorted(found, key=repr)


def test_groups_and_single_values_come_to_the_same():
    for temporalities in [[{}], [DELTA], [{}, DELTA]]:
        for views in VIEWS:
            with case(temporalities, views):
                one_by_one, in_groups = (
                    ReadHistogram(VIEWS[views], temporalities),
                    ReadHistogram(VIEWS[views], temporalities),
                )
                random = Random(views)
                for _ in range(4):
                    for a, b in (("x", "1"), ("x", "2"), ("y", "1")):
                        values = [
                            random.choice([*BOUNDS, random.expovariate(5), 0.0]) for _ in range(random.randrange(1, 40))
                        ]
                        for value in values:
                            one_by_one.histogram.record(value, {"a": a, "b": b})
                        sdk_groups.record_all(in_groups.histogram, values, {"a": a, "b": b})
                    assert in_groups.seen() == one_by_one.seen()


@pytest.mark.parametrize("part", ["_sum", "_boundaries"])
def test_an_sdk_with_other_parts_gets_each_value_by_itself(monkeypatch: pytest.MonkeyPatch, part: str):
    one_by_one, in_groups = ReadHistogram([], [{}]), ReadHistogram([], [{}])
    real = sdk_groups._buckets

    def strange(match: Any, attributes: dict[str, str]) -> Any:
        return None if hasattr(real(match, attributes), part) else pytest.fail("there is such a part")

    monkeypatch.setattr(sdk_groups, "_buckets", strange)
    for value in (0.1, 0.2, 3.0):
        one_by_one.histogram.record(value, {"a": "x"})
    sdk_groups.record_all(in_groups.histogram, (0.1, 0.2, 3.0), {"a": "x"})
    assert in_groups.seen() == one_by_one.seen()


def test_this_sdk_has_the_expected_parts(monkeypatch: pytest.MonkeyPatch):
    """Or else everything would be as slow as one by one, and nobody would notice."""
    setup = ReadHistogram([], [{}, DELTA])
    recorded: list[float] = []
    record = type(setup.histogram).record
    monkeypatch.setattr(
        type(setup.histogram), "record", lambda self, value, *rest: (recorded.append(value), record(self, value, *rest))
    )
    sdk_groups.record_all(setup.histogram, (0.1, 0.2, 3.0), {"a": "x"})
    assert recorded == [0.1]
