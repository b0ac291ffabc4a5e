"""What all parts of one dispatcher share."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ....bus.port.bus import Bus
from ....bus.streams.history_recorder import HistoryRecorder
from ....runtime.clock import Environment
from ....schemas.names import Names
from ....telemetry.logs import Log
from ....telemetry.metrics.durable import DurableMetrics
from ...jobs.storage import TaskStreams
from ...router.router import Router
from ..policies.settings import DispatcherSettings
from .failure_detector import DoubtMonitor, WorkerFailureDetector
from .pool_observer import KnownPools


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherContext:
    """Created with the dispatcher, which starts and stops everything in it."""

    dispatcher: str
    """Its id."""
    name: str
    """Display name."""
    bus: Bus
    names: Names
    settings: DispatcherSettings
    ambient: Environment
    streams: TaskStreams
    router: Router
    guard: DoubtMonitor
    failure_detector: WorkerFailureDetector
    known: KnownPools
    metrics: DurableMetrics
    history: HistoryRecorder | None
    chance: random.Random
    """A separate generator: each draw from the system's is a system call."""
    log: Log
