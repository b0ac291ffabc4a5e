"""Whether a queue is still ours: doubted whenever the guard says so, and then asked of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ....bus.port.bus import ConsumerLost, ConsumerState
from ....telemetry.logs import Log
from ...jobs.retry_budget import until_answered
from ..freeze_guard import Guard


class Possession:
    """Of one queue. Begins sure, since its consumer was just made."""

    def __init__(
        self,
        guard: Guard,
        state: Callable[[], Awaitable[ConsumerState]],
        *,
        doubted: Callable[[], None],
        sure: Callable[[], None],
        lost: Callable[[], None],
        log: Log,
    ) -> None:
        """
        Args:
            state: asks the server for the consumer.
            doubted, sure, lost: told of each change; after `lost` nothing more.
        """
        self._guard = guard
        self._state = state
        self._doubted = doubted
        self._sure = sure
        self._lost = lost
        self._log = log
        self._certain = asyncio.Event()
        self._certain.set()
        self._asking: asyncio.Task[None] | None = None
        self._unlisten: Callable[[], None] | None = guard.on_doubt(self._on_doubt)

    @property
    def certain(self) -> bool:
        return self._certain.is_set()

    async def wait(self) -> None:
        """Wait until it is certain that the queue is ours. Never returns when it is not."""
        self._guard.look()
        await self._certain.wait()

    async def stop(self) -> None:
        """Ask no more. Idempotent."""
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        self._certain.clear()
        asking, self._asking = self._asking, None
        if asking is not None and asking is not asyncio.current_task():
            asking.cancel()
            await asyncio.wait([asking])

    def _on_doubt(self, _gap_s: float) -> None:
        if self._certain.is_set():
            self._certain.clear()
            self._doubted()
        if self._asking is None:
            self._asking = asyncio.get_running_loop().create_task(self._ask(), name="gangline-possession")

    async def _ask(self) -> None:
        try:
            while True:
                term = self._guard.term
                await until_answered("asking after our consumer", self._state, self._log)
                if self._guard.look() == term:
                    break
        except ConsumerLost:
            self._asking = None
            self._lost()
            return
        self._asking = None
        if self._unlisten is not None:
            self._certain.set()
            self._sure()

    def __repr__(self) -> str:
        return f"Possession({'certain' if self.certain else 'in doubt'})"
