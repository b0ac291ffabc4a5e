"""Asking storage for as long as it takes: a lost leader or a restarted server is no reason to give a task up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from ...bus.port.bus import Conflict, ConsumerLost, ConsumerTaken, NotPermitted, Refused
from ...schemas.errors.base import ServerUnsupported, Unavailable
from ...telemetry.logs import Log

FIRST_S: Final = 0.05
MOST_S: Final = 2.0
_LOUD_AFTER: Final = 5
_SAID_AGAIN: Final = 30

T = TypeVar("T")

FINAL: Final = (Conflict, ConsumerLost, ConsumerTaken, Refused, NotPermitted, ServerUnsupported)
"""Answers of storage, not the lack of one."""


class Patience:
    """How long to wait before the next try: 50 ms, doubling to 2 s."""

    __slots__ = ("tries",)

    def __init__(self) -> None:
        self.tries = 0

    def next_s(self) -> float:
        self.tries += 1
        return float(min(MOST_S, FIRST_S * 2 ** min(self.tries - 1, 10)))


async def until_answered(what: str, ask: Callable[[], Awaitable[T]], log: Log) -> T:
    """What `ask` returns, asked again while storage or the connection is not there. Cancelling ends it.

    Raises:
        Conflict, ConsumerLost, ConsumerTaken, Refused, NotPermitted, ServerUnsupported: storage said so.
    """
    patience = Patience()
    while True:
        try:
            return await ask()
        except FINAL:
            raise
        except Unavailable as error:
            delay_s = patience.next_s()
            say = log.warning if patience.tries == _LOUD_AFTER else log.debug
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
