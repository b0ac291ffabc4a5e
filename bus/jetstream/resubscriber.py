"""A subscription that is opened again whenever it breaks: after reconnects, gaps and losses."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ...runtime.backoff import Backoff
from ..port.bus import ConnectionEvent, StorageUnavailable

if TYPE_CHECKING:
    from .transport import Transport

_FIRST_RETRY_S: Final = 0.1
_MOST_RETRY_S: Final = 1.0


class Resubscriber:
    """What a watch and a reader have in common: their start, their end, and the pauses between.

    A subclass implements `_run`, which settles `_ready` when it delivers for the first time (or cannot), and `stop`.
    """

    def __init__(self, bus: Transport) -> None:
        self._bus = bus
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._broken = asyncio.Event()
        """It must be opened again."""
        self._backoff = Backoff(_FIRST_RETRY_S, _MOST_RETRY_S)
        self._task: asyncio.Task[None] | None = None

    async def _begin(self, what: str) -> None:
        """Return when it is ready; `what` completes "JetStream did not ... in time".

        Raises:
            GanglineError: it does not get ready; nothing is left running.
        """
        stop_listening = self._bus.on_connection(self._on_connection)
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(lambda _: stop_listening())
        try:
            async with asyncio.timeout(self._bus.api.timeout_s):
                await asyncio.shield(self._ready)
        except TimeoutError:
            self.stop()
            raise StorageUnavailable(f"JetStream did not {what} in time: try again", may_have_started=False) from None
        except BaseException:
            self.stop()
            raise

    async def unsubscribe(self) -> None:
        self.stop()

    def stop(self) -> None:
        """End delivery. Idempotent."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        raise NotImplementedError

    def _on_connection(self, event: ConnectionEvent) -> None:
        # A consumer may survive a short loss, but what it delivered meanwhile did not reach us.
        self._broken.set()

    async def _pause(self) -> None:
        """Wait until the connection is back, else a while, and longer each time."""
        try:
            async with asyncio.timeout(self._backoff.delay_s):
                await self._broken.wait()
        except TimeoutError:
            self._backoff.failures += 1
