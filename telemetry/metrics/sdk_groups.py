"""Records many values of a histogram at once, which OpenTelemetry's API cannot.

The values are added to the SDK's own buckets under the SDK's own locks, as its `aggregate` does with one value. Where
its parts are not as expected (another SDK, another version, another kind of aggregation), each value is recorded by
itself, which is as exact, and slower.
"""

from __future__ import annotations

import contextlib
import sys
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

from opentelemetry import metrics as _metrics
from opentelemetry.context import Context

_OUTSIDE: Final = Context()
"""No span is current: a group has no exemplar."""
_BUCKETS: Final = "_ExplicitBucketHistogramAggregation"
_MATCH: Final = "opentelemetry.sdk.metrics._internal._view_instrument_match"


def record_all(histogram: _metrics.Histogram, values: Sequence[float], attributes: dict[str, str]) -> None:
    """Record all values. May be called from any thread."""
    first, *others = values
    histogram.record(first, attributes, _OUTSIDE)  # creates what is needed for these attributes
    if others and not _added(histogram, sorted(others), attributes):
        for value in others:
            histogram.record(value, attributes, _OUTSIDE)


def _added(histogram: Any, values: list[float], attributes: dict[str, str]) -> bool:
    """Add them to the buckets of each reader and view; False: nothing was added."""
    try:
        instrument = getattr(histogram, "_real_instrument", None) or histogram
        storages = instrument._measurement_consumer._reader_storages.values()
        matches = [match for each in storages for match in each._get_or_init_view_instrument_match(instrument)]
        with contextlib.ExitStack() as locks:
            for match in matches:
                locks.enter_context(match._lock)
            found = [_buckets(match, attributes) for match in matches]
            if not all(found):
                return False
            for aggregation in found:
                with aggregation._lock:
                    _add(aggregation, values)
    except AttributeError:
        return False
    return True


def _buckets(match: Any, attributes: dict[str, str]) -> Any:
    """Where a reader counts values with these attributes. None: it is not known how to add to it."""
    kept = match._view._attribute_keys
    if kept is not None:
        attributes = {name: value for name, value in attributes.items() if name in kept}
    hashed = getattr(sys.modules.get(_MATCH), "_hash_attributes", None)
    key = frozenset(attributes.items()) if hashed is None else hashed(attributes)
    aggregation = match._attributes_aggregation.get(key)
    parts = ("_boundaries", "_lock", "_max", "_min", "_sum", "_value")
    known = type(aggregation).__name__ == _BUCKETS and all(hasattr(aggregation, part) for part in parts)
    return aggregation if known and (aggregation._value is None or type(aggregation._value) is list) else None


def _add(aggregation: Any, values: list[float]) -> None:
    bounds = aggregation._boundaries
    counts = [0] * (len(bounds) + 1) if aggregation._value is None else aggregation._value
    below = 0
    for place, bound in enumerate(bounds):
        upto = bisect_right(values, bound, below)
        counts[place] += upto - below
        below = upto
    counts[-1] += len(values) - below
    aggregation._value = counts
    aggregation._sum += sum(values)
    if getattr(aggregation, "_record_min_max", True):
        aggregation._min = min(aggregation._min, values[0])
        aggregation._max = max(aggregation._max, values[-1])
