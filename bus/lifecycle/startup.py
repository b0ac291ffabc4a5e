"""Lets a service start while storage is unavailable: it waits for a restarting server or a cluster's election."""

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
    """Repeats the steps of one start until they succeed. Attempts start within `timeout_s` from now, plus one: the one
    before may have asked while there was no leader, and such requests are never answered."""

    def __init__(self, timeout_s: float, log: Log) -> None:
        self._loop = asyncio.get_running_loop()
        self._give_up_at = self._loop.time() + timeout_s
        self._log = log

    async def __call__(self, step: Callable[[], Awaitable[T]]) -> T:
        """Run a step, which must leave nothing behind if it fails.

        Raises:
            Unavailable: it still fails after the timeout. Errors that waiting cannot fix are raised at once.
        """
        while True:
            last = self._loop.time() >= self._give_up_at
            try:
                return await step()
            except NotOurStream:  # another component creates it
                if last:
                    raise
            except (ServerUnsupported, NotPermitted, WorkerIdTaken):
                raise
            except Unavailable as error:
                if last:
                    raise
                self._log.debug("start will be retried: %s", error, extra={"action": "start.retry"})
            await asyncio.sleep(RETRY_S)
