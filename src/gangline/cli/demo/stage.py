"""Shared by the demo's parts: a server with its processes, a screen, this process's own metrics."""

from __future__ import annotations

import socket
from typing import Final

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricReader, NumberDataPoint

from ...testing.kit.journals import interrupted
from ...testing.kit.judge import judge
from ...testing.kit.processes import remaining
from ...testing.kit.testbed import Testbed, still_held
from ..views.workers import WorkerRow, read_workers
from .metrics import DemoMetrics
from .screen import Screen

STOP_S: Final = 10.0
HERE: Final = socket.gethostname()
REST_S: Final = 30.0
"""Heartbeats report the load once a second, so rest becomes visible with a delay; the heartbeat of a killed worker
expires after three seconds. All of this takes longer on a busy machine."""
GAUGES: Final = ("gangline.router.reserved_slots", "gangline.router.queue_size")


class Gauges:
    """A meter provider that stores what it collects."""

    def __init__(self, *more: MetricReader) -> None:
        """`more`: others that collect."""
        self._reader = InMemoryMetricReader()
        metrics.set_meter_provider(MeterProvider([self._reader, *more]))

    def read(self) -> dict[str, float]:
        """The sum of each gauge over all pools; a gauge that was never used is missing."""
        found: dict[str, float] = {}
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name in GAUGES:
                        points = [point for point in metric.data.data_points if isinstance(point, NumberDataPoint)]
                        found[metric.name] = float(sum(point.value for point in points))
        return found


class Stage(Testbed):
    """One server for all parts."""

    journals_kept = True
    screen: Screen
    gauges: Gauges
    metrics: DemoMetrics | None = None
    """What is exported, if anything is."""
    slots = 0
    """Slots of each worker."""
    _told = 0
    """Number of lives of earlier parts."""

    def serve(self, pool: str, slots: int) -> None:
        """The next workers serve this pool of gangline.cli.demo.pools."""
        self.pool, self.target, self.slots = pool, f"gangline.cli.demo.pools:{pool}", slots

    async def ready(self) -> list[WorkerRow]:
        """Wait until all started workers serve."""
        await self.served()
        return await read_workers(self.client, self.pool)

    async def read(self, metric: str = "") -> None:
        """Wait until Prometheus has read what is now, and this metric in it, if metrics are exported."""
        if self.metrics is not None:
            await self.metrics.read(metric)

    async def end_part(self) -> Facts:
        """Wait for rest, stop all processes, and return what they recorded."""
        names = [life.name for life in self.lives[self._told :] if life.role == "worker"]
        self._told = len(self.lives)
        workers = [f"{self.pool}.{name}" for name in self.workers]
        held = await remaining(REST_S, lambda: still_held(self.client, workers), pause_s=0.1)
        gauges = self.gauges.read()
        held += [f"the gauge {name} shows {number:g}" for name, number in gauges.items() if number != 0]
        held += [] if gauges else ["no gauge could be read"]
        held += [] if self.workers else ["no worker is left to ask"]
        await self.read()
        await self.close(STOP_S)
        self.workers.clear()
        return Facts(self, names, held)


class Facts:
    """The facts about one part of the demo when it is over."""

    def __init__(self, stage: Stage, names: list[str], held: list[str]) -> None:
        self.processes = [stage.started[name] for name in names]
        self.journals = stage.journals(names)
        self.history = stage.history(*names, slots=stage.slots)
        self.held = held
        """What was still held at rest."""
        self.killed = {process.name for process in self.processes if process.life.killed}

    @property
    def interrupted(self) -> str:
        """`3 tasks`: those that killed workers had started and not finished."""
        cut = sum(len(interrupted(self.journals[name])) for name in self.killed)
        return f"{cut} task{'s'[: cut != 1]}"

    @property
    def records(self) -> int:
        """Number of records in all journals."""
        return sum(len(journal) for journal in self.journals.values())

    def broken(self, *laws: str) -> list[str]:
        """Breaches of these laws, as the tasks themselves recorded them."""
        verdicts = judge(self.history)
        return [text for law in laws for text in verdicts[law]]
