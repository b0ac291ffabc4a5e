"""Ends that workers keep until they hear, by an ACK, that they are stored.

ACKs are never answered and may get lost, and a draining worker waits for each. So workers that drain and were sent any
are asked what they still keep, as long as they keep something, and are told again what is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from pydantic import ValidationError

from ....runtime.tasks import TaskSet
from ....schemas.errors.base import GanglineError
from ....schemas.messages.jobs import WorkerJob
from ....telemetry.logs import Log
from ...routing.worker_table import WorkerEntry

_LOOK_S: Final = 1.0
"""A worker whose ends are all stored has left by then, and is not asked."""


class KeptEnds:
    """Those of one queue."""

    def __init__(
        self,
        *,
        find: Callable[[str], WorkerEntry | None],
        kept: Callable[[WorkerEntry], AsyncIterator[WorkerJob]],
        stored: Callable[[WorkerJob], bool],
        acknowledge: Callable[[str, WorkerJob], None],
        log: Log,
    ) -> None:
        """
        Args:
            find: the worker of a name, if it is known.
            kept: asks a worker what it runs and keeps of this queue.
            stored: whether an end is, or is of no interest any more.
            acknowledge: tells the worker of that name so.
        """
        self._find = find
        self._kept = kept
        self._stored = stored
        self._acknowledge = acknowledge
        self._log = log
        self._told: dict[str, int] = {}
        """Workers that were told of ends and may not have heard it, and how often they were."""
        self._asking = TaskSet("kept ends", log)
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def told(self, worker: str) -> None:
        """An ACK was sent there."""
        self._told[worker] = self._told.get(worker, 0) + 1
        self._arm()

    async def stop(self) -> None:
        """Idempotent."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._asking.cancel()
        await self._asking.rest()

    def _arm(self) -> None:
        if self._timer is None and self._told and not self._stopped:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        for name in list(self._told):
            worker = self._find(name)
            if worker is None:
                del self._told[name]
            elif worker.draining and not len(self._asking):
                self._asking.start(self._ask_all())
        self._arm()

    async def _ask_all(self) -> None:
        for name in list(self._told):
            worker = self._find(name)
            if worker is not None and worker.draining:
                await self._ask(name, worker)

    async def _ask(self, name: str, worker: WorkerEntry) -> None:
        told, keeps = self._told.get(name), False
        try:
            async for job in self._kept(worker):
                if job.unstored and not job.running:
                    keeps = True
                    if self._stored(job):
                        self._acknowledge(name, job)
        except (GanglineError, ValidationError) as error:
            extra = {"action": "kept.ask", "worker": name}
            self._log.debug("worker %s does not tell what it keeps: %s", name, error, extra=extra)
            return
        if not keeps and self._told.get(name) == told:
            self._told.pop(name, None)

    def __repr__(self) -> str:
        return f"KeptEnds(told={len(self._told)})"
