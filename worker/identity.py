"""What all parts of one worker have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..bus.port.bus import Bus
from ..runtime.clock import Environment
from ..schemas.names import Names, WorkerId
from ..telemetry.logs import Log
from .execution.executor_registry import ExecutorRegistry
from .execution.executors.execution import MAX_COLLECTED_BYTES, ExecutorSettings
from .pool.pool import Pool
from .settings import WorkerSettings
from .slots.admission_core import AdmissionCore, CoreSettings
from .slots.epochs import next_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    """Who one worker is, what it serves, and where it lives."""

    worker: WorkerId
    instance: str
    """Unique for this object; tells two processes with one id apart."""
    channel: str
    """See Registration.channel."""
    pool: Pool
    settings: WorkerSettings
    names: Names
    bus: Bus
    ambient: Environment
    log: Log

    def new_core(self) -> AdmissionCore:
        """Empty books, in a first epoch."""
        pool, settings = self.pool, self.settings
        return AdmissionCore(
            pool.slots if settings.slots is None else settings.slots,
            next_epoch(0, self.ambient.wall()),
            CoreSettings(
                keep_s=settings.answer_retention_s,
                keep=settings.answer_retention_count,
                keep_bytes=settings.answer_retention_bytes,
                item_bytes=settings.answer_retention_bytes,
            ),
            declared=pool.slots,
        )

    def new_executors(self, on_models: Callable[[tuple[str, ...]], None]) -> ExecutorRegistry:
        """Not started. `on_models` is told the ids of all loaded models after each change."""
        return ExecutorRegistry(
            self.pool,
            settings=ExecutorSettings(
                send_tracebacks=self.settings.send_tracebacks,
                # More could not be sent; so a stream that nobody reads as one ends early.
                max_collected_bytes=min(MAX_COLLECTED_BYTES, self.bus.max_payload),
            ),
            on_models=on_models,
        )
