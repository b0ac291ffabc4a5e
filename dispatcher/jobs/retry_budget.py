"""Asking storage for as long as it takes: a lost leader or a restarted server is no reason to give a task up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from ...bus.port.bus import Conflict, ConsumerLost, ConsumerTaken, NotPermitted, PublishRefused
from ...runtime.timers import Backoff
from ...schemas.errors.base import ServerUnsupported, Unavailable
from ...telemetry.logs import Log

FIRST_S: Final = 0.05
MOST_S: Final = 2.0
LOUD_AFTER: Final = 5
"""Tries in vain before people are told."""
_SAID_AGAIN: Final = 30

T = TypeVar("T")

FINAL: Final = (Conflict, ConsumerLost, ConsumerTaken, PublishRefused, NotPermitted, ServerUnsupported)
"""Answers of storage, not the lack of one."""


def storage_backoff() -> Backoff:
    """Between two tries: 50 ms, doubling to 2 s."""
    return Backoff(FIRST_S, MOST_S)


async def until_answered(what: str, ask: Callable[[], Awaitable[T]], log: Log) -> T:
    """What `ask` returns, asked again while storage or the connection is not there. Cancelling ends it.

    Raises:
        Conflict, ConsumerLost, ConsumerTaken, PublishRefused, NotPermitted, ServerUnsupported: storage said so.
    """
    backoff = storage_backoff()
    while True:
        try:
            return await ask()
        except FINAL:
            raise
        except Unavailable as error:
            delay_s = backoff.next_s()
            say = log.warning if backoff.failures == LOUD_AFTER else log.debug
            say("%s: %s; asking again", what, error, extra={"action": "storage.retry", "what": what})
            await asyncio.sleep(delay_s)


async def until_taken(what: str, ask: Callable[[], Awaitable[T]], log: Log) -> T:
    """What `ask` returns, asked again whatever storage says: the end of a task has nowhere else to go, and an operator
    can give back a permission, or room. Cancelling ends it.

    Raises:
        GanglineError: what is no answer of storage.
    """
    tries = 0
    while True:
        try:
            return await until_answered(what, ask, log)
        except FINAL as error:
            if tries % _SAID_AGAIN == 0:
                log.error("%s: %s; asking again", what, error, extra={"action": "storage.refused", "what": what})
            tries += 1
            await asyncio.sleep(MOST_S)
