"""Tasks that belong together and end together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ..telemetry.logs import Log


class Chores:
    """Runs coroutines until `cancel`. One that raises is logged, and the others go on."""

    def __init__(self, name: str, log: Log) -> None:
        self._name = name
        self._log = log
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._over = False

    def __len__(self) -> int:
        return len(self._tasks)

    def __repr__(self) -> str:
        return f"<Chores {self._name} {len(self._tasks)}>"

    def start(self, chore: Coroutine[Any, Any, Any]) -> None:
        """Run it in the background; not at all after `cancel`."""
        if self._over:
            chore.close()
            return
        task = asyncio.get_running_loop().create_task(chore, name=f"gangline {self._name}")
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("%s failed", self._name, exc_info=error, extra={"action": "coordinator.bug"})

    def cancel(self) -> None:
        """End all of them; nothing new is started. Idempotent."""
        self._over = True
        for task in list(self._tasks):
            task.cancel()

    async def rest(self) -> None:
        """Wait until all have ended; for after `cancel`."""
        while self._tasks:
            await asyncio.wait(self._tasks)
