"""All that one queue writes: results and tries, events and items of jobs, dead letters and schedules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ...telemetry.logs import Log
from .context import Context
from .job_feed import JobFeed
from .outcomes import Outcomes
from .scribe import Scribe


class Writing:
    """See the module."""

    def __init__(self, context: Context, *, sure: Callable[[], Awaitable[None]], log: Log) -> None:
        """`sure` waits until it is certain that what is written is ours to write."""
        bus, names, streams = context.bus, context.names, context.streams
        self.scribe = Scribe(streams.results, sure=sure, log=log)
        self.feed = JobFeed(streams.jobs, names, limit_bytes=lambda: bus.max_payload, sure=sure, log=log)
        self.outcomes = Outcomes(
            bus,
            names,
            streams,
            scribe=self.scribe,
            settings=context.settings,
            ambient=context.ambient,
            sure=sure,
            log=log,
        )

    def start(self) -> None:
        """Idempotent."""
        self.scribe.start()
        self.feed.start()

    async def stop(self) -> None:
        """Write nothing more; what is under way is dropped. Idempotent, safe before `start`."""
        await self.outcomes.stop()
        await self.feed.stop()
        await self.scribe.stop()

    def __repr__(self) -> str:
        return f"Writing({self.scribe!r}, {self.outcomes!r})"
