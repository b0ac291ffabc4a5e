"""A call on all ranks of a gang starts on all of them or on none.

Several routers may send to one gang, so each rank may be taken by another call when ours comes. Therefore every rank
first takes its slots and says so (HELD), and when all have, all are told to begin (BEGIN). One that has no room, or
does not answer in time, ends the try: the others are cancelled, nothing has started anywhere, and it may be tried again
here or on another gang.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ...schemas.errors.base import LeaseBusy
from ...schemas.wire.frames import RequestOp
from ..transport.channel import TaskRequest
from .attempts import AttemptLoop

HELD_WITHIN_S: Final = 1.0
"""Half of what workers hold for: no rank gives up while another may yet be told to begin."""


class TwoPhaseStart:
    """One try to begin on all ranks."""

    def __init__(self, caller: AttemptLoop, size: int) -> None:
        self._caller = caller
        self._size = size
        self._flights: dict[TaskRequest, bool] = {}
        """Whether it holds its slots."""
        self._first: asyncio.Future[None] = caller.exchange.loop.create_future()
        self._timer = caller.exchange.loop.call_later(HELD_WITHIN_S, self._give_up)
        self.begun = False
        """All were told to begin. Before that nothing has started."""

    def __repr__(self) -> str:
        return f"TwoPhaseStart({sum(self._flights.values())} of {self._size} held, begun={self.begun})"

    async def first_held(self) -> None:
        """Wait until one rank holds its slots. In a cancelled try nobody comes by."""
        await self._first

    def sent(self, flight: TaskRequest) -> None:
        """The task of one rank was sent."""
        self._flights[flight] = False
        flight.on_held = lambda: self._held(flight)

    def _held(self, flight: TaskRequest) -> None:
        if flight.future.done():
            return
        self._flights[flight] = True
        if not self._first.done():
            self._first.set_result(None)
        if not self.begun and sum(self._flights.values()) == self._size:
            self.begun = True
            self._timer.cancel()
            for one in self._flights:
                self._caller.exchange.post(one.worker, (RequestOp.BEGIN, one.id))

    def _give_up(self) -> None:
        for flight, held in self._flights.items():
            if not held and not flight.future.done():
                self._caller.abandon(flight)
                flight.future.set_exception(
                    LeaseBusy(f"{flight.worker.id} did not say within {HELD_WITHIN_S:g} s that it has room")
                )

    def close(self) -> None:
        """The try is over. Idempotent."""
        self._timer.cancel()
        if not self._first.done():
            self._first.cancel()
