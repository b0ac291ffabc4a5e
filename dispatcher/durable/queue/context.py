"""What all queues of one dispatcher share."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Self

from ....bus.port.bus import BucketSettings, Bus
from ....runtime.clock import Environment
from ....schemas.names import Names
from ....telemetry.logs import Log, logger_for
from ....telemetry.metrics.durable import DurableMetrics
from ...jobs.storage import TaskStorage, TaskStreams
from ...router.router import Router
from ...routing.settings import RouterSettings
from ...traffic.table import RouteTable
from ..policies.settings import DispatcherSettings
from ..workers.failure_detector import DoubtMonitor, WorkerFailureDetector
from ..workers.pool_observer import KnownPools


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherContext:
    """Made with the dispatcher. Nothing in it has begun: whoever has it starts and stops it."""

    dispatcher: str
    """Its id."""
    name: str
    """For people."""
    bus: Bus
    names: Names
    settings: DispatcherSettings
    ambient: Environment
    streams: TaskStreams
    router: Router
    routes: RouteTable
    guard: DoubtMonitor
    failure_detector: WorkerFailureDetector
    known: KnownPools
    metrics: DurableMetrics
    chance: random.Random
    """A generator of its own: the system's is a system call for every draw."""
    log: Log

    @classmethod
    def wired(
        cls,
        bus: Bus,
        *,
        names: Names | None,
        settings: DispatcherSettings | None,
        tasks: TaskStorage | None,
        bucket: BucketSettings | None,
        router_settings: RouterSettings | None,
        ambient: Environment | None,
        name: str,
    ) -> Self:
        """All of it, each from those it needs. The arguments are those of Dispatcher."""
        names, settings, ambient = names or Names(), settings or DispatcherSettings(), ambient or Environment()
        tasks, name, dispatcher = tasks or TaskStorage.from_environment(), name or bus.name, ambient.token()
        log = logger_for("durable", dispatcher=dispatcher)
        router = Router(
            bus,
            names,
            settings=router_settings,
            ambient=ambient,
            bucket=bucket,
            routes_bucket=tasks.bucket,
            makes_routes=True,
            name=name or "gangline-dispatcher",
        )
        guard = DoubtMonitor(bus, settings.freeze_after_s)
        router.exchange.on_gap = guard.cut_off
        gone_after_s = settings.worker_gone_after_s
        return cls(
            dispatcher=dispatcher,
            name=name,
            bus=bus,
            names=names,
            settings=settings,
            ambient=ambient,
            streams=TaskStreams(bus, names, tasks),
            router=router,
            routes=router.routes,
            guard=guard,
            failure_detector=WorkerFailureDetector(
                bus, names, router=router, guard=guard, ping_s=settings.ping_s, gone_after_s=gone_after_s, log=log
            ),
            known=KnownPools(),
            metrics=DurableMetrics(),
            chance=random.Random(ambient.random.getrandbits(64)),
            log=log,
        )
