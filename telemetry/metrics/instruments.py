"""Metric instruments, created once per process on first use and shared by all owners of numbers, and those numbers.

They are created through the API's proxies, so they start to export when a meter provider is set, before or after. The
numbers are plain ones, always kept and read only when somebody collects them. Counting in a dictionary costs 0.1 us,
with or without an exporter, and is right no matter when a provider is set (an OpenTelemetry up-down counter that missed
the `+1` would go negative). The numbers of an owner that was garbage-collected are added to a total, so counters never
fall.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import Final

from opentelemetry import metrics as _metrics
from opentelemetry.metrics import CallbackOptions, Observation

from ..tracing import SCOPE, ProviderProbe
from .sdk_groups import record_all

Key = tuple[str, ...]

OTHER: Final = "_other"
"""Replaces names of which there are too many to count each separately."""
MOST_NAMES: Final = 1000
"""At least this many names are counted separately."""


class Tally:
    """One number that is updated so often that looking it up each time would cost more than counting."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def __repr__(self) -> str:
        return f"Tally({self.count})"


_NONE: Final = Tally()


class Numbers(defaultdict[Key, int]):
    """The numbers of one owner. Read them with `now`, which includes tallies, and adds what all keys begin with."""

    def __init__(self, prefix: Key = ()) -> None:
        super().__init__(int)
        self._prefix = prefix
        self._tallies: dict[Key, Tally] = {}

    def tally(self, key: Key) -> Tally:
        """A counter for the key; what it counts is added to the key's number."""
        return self._tallies.setdefault(key, Tally())

    def forget(self, names: Set[str], *, keep: bool) -> None:
        """Forget names that are no longer in use. Callers can invent names; if there are too many, the numbers of
        these are added to OTHER (`keep`, for a counter), or dropped if they are 0 (for a gauge)."""
        if len(self) + len(self._tallies) <= MOST_NAMES:
            return
        for key in [key for key in (*self, *self._tallies) if not names.isdisjoint(key)]:
            if not keep and self.get(key, 0) + self._tallies.get(key, _NONE).count != 0:
                continue
            number = self.pop(key, 0) + self._tallies.pop(key, _NONE).count
            if keep and number:
                self[tuple(OTHER if label in names else label for label in key)] += number

    def now(self) -> list[tuple[Key, int]]:
        """Keys and numbers; a key may occur twice, so add them up. May be called from any thread."""
        # list() of a dictionary with tuple keys runs no Python code, so it is atomic beside a writing thread.
        numbers = list(self.items()) + [(key, tally.count) for key, tally in list(self._tallies.items())]
        return [((*self._prefix, *key), number) for key, number in numbers]

    def sum(self) -> int:
        """Of all."""
        return sum(number for _, number in self.now())


class Counts:
    """All owners' numbers of one kind, for example `requests` by (endpoint, pool)."""

    def __init__(self, *, keep: bool) -> None:
        """
        Args:
            keep: True for counters, whose numbers outlive their owner; False for gauges, which vanish with it.
        """
        self._keep = keep
        self._lock = threading.Lock()
        self._living: dict[int, Numbers] = {}
        self._orphans: deque[Numbers] = deque()
        """Of owners that were collected. The garbage collector runs at any moment of any thread, also of one that has
        the lock: whoever is next to have it folds them."""
        self._retired = Numbers()

    def of(self, owner: object, *prefix: str) -> Numbers:
        """New numbers, at home with `owner`; written by one thread only. `prefix`: the first labels of all keys."""
        numbers = Numbers(prefix)
        with self._lock:
            self._fold()
            self._living[id(numbers)] = numbers
        weakref.finalize(owner, self._orphans.append, numbers).atexit = False
        return numbers

    def total(self) -> Iterable[tuple[Key, int]]:
        """The sum over all owners. May be called from any thread."""
        with self._lock:
            self._fold()
            parts = [self._retired, *self._living.values()]
            summed: defaultdict[Key, int] = defaultdict(int)
            for part in parts:
                for key, number in part.now():
                    summed[key] += number
        return summed.items()

    def _fold(self) -> None:
        """Under the lock: take leave of owners that are no more."""
        while self._orphans:
            numbers = self._orphans.popleft()
            self._living.pop(id(numbers), None)
            if self._keep:
                for key, number in numbers.now():
                    self._retired[key] += number


metrics_enabled: Final = ProviderProbe(
    getattr(_metrics, "_internal", _metrics), "_METER_PROVIDER", _metrics.get_meter_provider, _metrics.NoOpMeterProvider
)
"""Whether a real meter provider is set. Only histograms need to know: all other numbers are always counted and read on
demand."""

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
"""Bucket bounds for durations, from a local round trip to a long task."""
ATTEMPTS: Final = (1, 2, 3, 4, 5, 7, 10, 15, 20)

_meter: Final = _metrics.get_meter(SCOPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricInfo:
    """One metric, as it is exported."""

    name: str
    kind: str
    """`counter`, `level` (goes up and down, summed over the process), `gauge` (read at each collection) or
    `histogram`."""
    unit: str
    description: str
    attributes: tuple[str, ...]

    @property
    def prometheus(self) -> str:
        """Its name in Prometheus, as OpenTelemetry's exporter makes it; of a histogram without `_bucket`, `_sum` and
        `_count`."""
        name = self.name.replace(".", "_")
        if self.unit == "s":
            name += "_seconds"
        return f"{name}_total" if self.kind == "counter" else name


REGISTERED: Final[dict[str, MetricInfo]] = {}
"""All metrics of the modules that were imported; see telemetry.metrics.catalogue."""


def _register(name: str, kind: str, unit: str, description: str, attributes: tuple[str, ...]) -> None:
    assert name not in REGISTERED, name
    REGISTERED[name] = MetricInfo(name=name, kind=kind, unit=unit, description=description, attributes=attributes)


def observe(labels: tuple[str, ...], read: Callable[[], Iterable[tuple[tuple[str, ...], float]]]) -> _Callback:
    """A callback that turns keys and numbers into observations with those attribute names."""

    def callback(_options: CallbackOptions) -> Iterable[Observation]:
        # The SDK asks for observations before it reads its histograms.
        for distribution in _distributions:
            distribution.flush()
        return [Observation(number, dict(zip(labels, key, strict=True))) for key, number in read()]

    return callback


_Callback = Callable[[CallbackOptions], Iterable[Observation]]


def counter(name: str, unit: str, description: str, labels: tuple[str, ...]) -> Counts:
    """A number that only grows, exported as a counter."""
    _register(name, "counter", unit, description, labels)
    counts = Counts(keep=True)
    _meter.create_observable_counter(name, [observe(labels, counts.total)], unit, description)
    return counts


def level(name: str, unit: str, description: str, labels: tuple[str, ...]) -> Counts:
    """A number that goes up and down, summed over the process's owners."""
    _register(name, "level", unit, description, labels)
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
    """A value that is read from its owners at each collection."""
    _register(name, "gauge", unit, description, labels)
    _meter.create_observable_gauge(name, [observe(labels, read)], unit, description)


class Values:
    """Values of one histogram with the same attributes, on their way to the SDK."""

    __slots__ = ("_attributes", "_histogram", "_values", "add")

    def __init__(self, histogram: _metrics.Histogram, attributes: dict[str, str]) -> None:
        self._histogram = histogram
        self._attributes = attributes
        self._values: list[float] = []
        self.add: Final = self._values.append
        """Record a value: 30 ns. Have `flush` called now and then."""

    def __len__(self) -> int:
        return len(self._values)

    def flush(self) -> None:
        """Hand over what there is. May be called from any thread."""
        with _flushing:
            number = len(self._values)  # more may come meanwhile: each of these two steps is atomic
            group = self._values[:number]
            del self._values[:number]
        if group:
            record_all(self._histogram, group, self._attributes)


_flushing: Final = threading.Lock()
MOST_VALUES: Final = 4096
"""So many are handed over before the next collection."""


class Distribution:
    """A histogram whose values reach the SDK in groups, at the latest when somebody collects: recording one by one
    takes 5 us, which is as long as a whole call."""

    def __init__(self, histogram: _metrics.Histogram, labels: tuple[str, ...]) -> None:
        self._histogram = histogram
        self._labels = labels
        self._values: dict[Key, Values] = {}

    def of(self, key: Key) -> Values:
        """Where values with these labels are recorded."""
        values = self._values.get(key)
        if values is None:
            attributes = dict(zip(self._labels, key, strict=True))
            values = self._values.setdefault(key, Values(self._histogram, attributes))
        return values

    def record(self, value: float, key: Key) -> None:
        values = self.of(key)
        values.add(value)
        if len(values) >= MOST_VALUES:
            values.flush()

    def flush(self) -> None:
        for values in list(self._values.values()):
            values.flush()


_distributions: Final[list[Distribution]] = []


def histogram(
    name: str, unit: str, description: str, labels: tuple[str, ...], bounds: tuple[float, ...]
) -> Distribution:
    """A distribution of values; record them only while `metrics_enabled`."""
    _register(name, "histogram", unit, description, labels)
    instrument = _meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=list(bounds))
    distribution = Distribution(instrument, labels)
    _distributions.append(distribution)
    return distribution
