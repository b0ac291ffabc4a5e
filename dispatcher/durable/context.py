"""What all queues of one dispatcher share."""

from __future__ import annotations

import random
from dataclasses import dataclass

from ...bus.ambient import Ambient
from ...bus.port import Bus
from ...schemas.names import Names
from ...telemetry.durable_metrics import DurableMetrics
from ...telemetry.logs import Log
from ..route_table import RouteTable
from ..router import Router
from .guard import Guard
from .rolls import KnownPools
from .settings import DispatcherSettings
from .task_streams import TaskStreams
from .vigil import Vigil


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Made by the dispatcher at its start."""

    dispatcher: str
    """Its id."""
    name: str
    """For people."""
    bus: Bus
    names: Names
    settings: DispatcherSettings
    ambient: Ambient
    streams: TaskStreams
    router: Router
    routes: RouteTable
    guard: Guard
    vigil: Vigil
    known: KnownPools
    metrics: DurableMetrics
    chance: random.Random
    """A generator of its own: the system's is a system call for every draw."""
    log: Log
