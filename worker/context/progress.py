"""Progress of a durable task: from `current_task().progress(...)` to the readers of the job's feed.

Best effort by design: a report is a plain publish, which the jobs stream stores but does not acknowledge. Reports are
throttled to one per 50 ms (latest wins). The first is sent at once, the last before the answer.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from ...bus.port.bus import Bus
from ...runtime.clock import Environment
from ...schemas.errors.base import Disconnected, GanglineError, PayloadTooLarge
from ...schemas.names import JobFeed, Names
from ...schemas.records.jobs import JobProgress
from ...schemas.wire import codec
from ...schemas.wire.plain_values import to_wire
from ...telemetry.logs import Log

INTERVAL_S: Final = 0.05
"""Minimum interval between two reports of one task."""
MAX_BYTES: Final = 64 * 1024
"""Maximum size of one value, as JSON. Return larger data as the result or as items, or store it elsewhere."""

_NOTHING: Final = object()


class Progress(Protocol):
    """Where a task's reports go."""

    def report(self, value: Any) -> None:
        """Take a wire value. Thread-safe; returns at once and never raises."""
        ...


def written(value: Any, where: str) -> Any:
    """A report as plain wire values; a copy.

    Raises:
        InvalidResult: it cannot be serialized.
        PayloadTooLarge: over MAX_BYTES.
    """
    plain = to_wire(value, where, "progress")
    size = len(codec.to_json(plain))
    if size > MAX_BYTES:
        raise PayloadTooLarge(
            f"{where}: a progress value has {size} bytes, the limit is {MAX_BYTES}: send less, or yield items",
            details={"size": size, "limit": MAX_BYTES},
        )
    return plain


class ProgressPublisher:
    """The reports of one execution. Used only on the event loop."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        job: str,
        attempt: int,
        *,
        ambient: Environment,
        loop: asyncio.AbstractEventLoop,
        log: Log,
    ) -> None:
        self._bus = bus
        self._names = names
        self._job = job
        self._attempt = attempt
        self._ambient = ambient
        self._log = log
        self._loop = loop
        self._number = 0
        self._newest: Any = _NOTHING
        """Not sent yet."""
        self._timer: asyncio.TimerHandle | None = None
        """Set while the next report has to wait."""

    def take(self, value: Any) -> None:
        """Publish it, now or after the interval."""
        self._newest = value
        if self._timer is None:
            self._next()

    def close(self) -> None:
        """Send the newest report if it is still unsent. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._newest is not _NOTHING:
            self._send()

    def _next(self) -> None:
        self._timer = None
        if self._newest is not _NOTHING:
            self._send()
            self._timer = self._loop.call_later(INTERVAL_S, self._next)

    def _send(self) -> None:
        value = self._newest
        report = JobProgress(
            job=self._job,
            attempt=self._attempt,
            number=self._number + 1,
            at=round(self._ambient.wall(), 3),
            value=value,
            packed=codec.pack_text(value) if codec.loses_in_json(value) else None,
        )
        try:
            self._bus.publish(self._names.job(self._job, JobFeed.PROGRESS), codec.to_json(report))
        except Disconnected:
            return  # the newest one stays unsent until the connection is back
        except GanglineError as error:
            self._log.debug("progress not sent: %s", error.message[:200], extra={"action": "progress.lost"})
        else:
            self._number += 1
        self._newest = _NOTHING
