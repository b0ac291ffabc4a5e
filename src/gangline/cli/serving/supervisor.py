"""`gangline worker --processes N`: several worker processes under one that restarts those which die."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Sequence
from typing import Final

from ...bus.lifecycle import on_signals
from ...runtime.tasks import set_within
from ...runtime.timers import Backoff
from ...telemetry.logs import logger_for
from ..console.children import end, how_it_ended, spawn, terminate
from ..console.exits import Exit

RESTART_FIRST_S: Final = 0.5
"""Wait before the first restart; doubles up to RESTART_MAX_S with each process that dies soon after its start."""
RESTART_MAX_S: Final = 30.0
STEADY_S: Final = 60.0
"""A process that ran for longer starts with the first wait again."""


class WorkerSupervisor:
    """Keeps worker processes running. A process that was drained, and so exits with code 0, is not replaced; one that
    rejects its options ends all.

    Args:
        arguments: of `gangline worker`, one list for each process.
        environment: of the processes.
    """

    def __init__(self, arguments: Sequence[Sequence[str]], environment: dict[str, str]) -> None:
        self._arguments = arguments
        self._environment = environment
        self._log = logger_for("supervisor")
        self._stopping = asyncio.Event()
        self._running: set[asyncio.subprocess.Process] = set()
        self._worst = 0

    async def run(self) -> int:
        """Run until all processes have exited for good, and return their worst exit code. The first SIGTERM or SIGINT
        drains them, the second stops them at once."""
        with on_signals(self.drain, self._terminate):
            try:
                await asyncio.gather(*(self._keep(number) for number in range(len(self._arguments))))
            finally:
                await asyncio.gather(*(end(process, 0.0) for process in self._running))
        return self._worst

    def drain(self) -> None:
        """Let every process finish its tasks and exit. Idempotent."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._terminate()

    def _terminate(self) -> None:
        for process in self._running:
            terminate(process)

    async def _keep(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(RESTART_FIRST_S, RESTART_MAX_S)
        while not self._stopping.is_set():
            began = loop.time()
            code = await self._once(number)
            if code == -signal.SIGTERM and self._stopping.is_set():
                code = Exit.OK  # it had not yet begun to handle signals
            if code == Exit.OK or self._stopping.is_set():
                self._worst = max(self._worst, code if code >= 0 else 128 - code)
                return
            if code == Exit.USAGE:
                self._worst = code
                self.drain()
                return
            if loop.time() - began > STEADY_S:
                backoff.reset()
            wait_s = backoff.next_s(random.random())
            self._log.warning(
                "worker process %d %s: it is restarted in %.1f s",
                number + 1,
                how_it_ended(code),
                wait_s,
                extra={"action": "supervisor.restart", "worker_process": number + 1, "code": code},
            )
            await set_within(self._stopping, wait_s)

    async def _once(self, number: int) -> int:
        process = await spawn("worker", *self._arguments[number], environment=self._environment)
        self._running.add(process)
        if self._stopping.is_set():
            terminate(process)
        try:
            return await process.wait()
        finally:
            if process.returncode is not None:
                self._running.discard(process)
