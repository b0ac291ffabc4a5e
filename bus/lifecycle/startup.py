"""How a service starts while storage is away: a server that restarts just now, or a cluster that holds an election, is
waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from ...schemas.errors.base import ServerUnsupported, Unavailable, WorkerIdTaken
from ...telemetry.logs import Log
from ..jetstream.stream_admin import NotOurStream
from ..port.bus import NotPermitted

T = TypeVar("T")

RETRY_S: Final = 0.25


class StartPatience:
    """Repeats the steps of one start until they succeed. No try begins later than `timeout_s` from now on, but for one:
    the one before may have asked while nobody led, and such questions are not answered later."""

    def __init__(self, timeout_s: float, log: Log) -> None:
        self._loop = asyncio.get_running_loop()
        self._give_up_at = self._loop.time() + timeout_s
        self._log = log

    async def __call__(self, step: Callable[[], Awaitable[T]]) -> T:
        """Do a step, which must leave nothing behind when it fails.

        Raises:
            Unavailable: it still failed when the time was over. Errors that no wait can mend come at once.
        """
        while True:
            last = self._loop.time() >= self._give_up_at
            try:
                return await step()
            except NotOurStream:  # somebody else makes it
                if last:
                    raise
            except (ServerUnsupported, NotPermitted, WorkerIdTaken):
                raise
            except Unavailable as error:
                if last:
                    raise
                self._log.debug("start goes on later: %s", error, extra={"action": "start.retry"})
            await asyncio.sleep(RETRY_S)
