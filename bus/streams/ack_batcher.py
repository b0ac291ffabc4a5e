"""Acknowledgements of one consumer: sent at the end of the turn, and kept until the server has confirmed them.

All of one turn are a *batch*, of which the server confirms the last: a connection keeps the order, so it has the others
by then. But if the consumer's leader changes in the middle of a batch, its start may be lost although its last is
confirmed; so the newest confirmed batches are sent again after trouble. The server ignores what it already knows.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from ...schemas.errors.base import ClosedError, GanglineError, Unavailable
from ..port.bus import StreamMessage

RESEND_S: Final = 2.0
"""A batch without a confirmation for this long is sent again."""
_REMEMBERED: Final = 16_384
_NEWEST: Final = 64
"""Confirmed batches that are sent again after trouble."""

Batch = dict[int, str]
"""Sequences, each with its acknowledgement subject."""
Send = Callable[[Batch, int], None]
"""Sends a batch, to be confirmed by its number; raises Unavailable without a connection."""


class AckBatcher:
    """The acknowledgements of one consumer.

    Invariant: a sequence is in `_unconfirmed` or in `_confirmed`, never in both; an unconfirmed one is pending, or in
    the batch of its number.

    A server that crashes may forget a confirmed acknowledgement and deliver the message again. So the newest confirmed
    ones are remembered (`remembered` of them, at least 16,384).
    """

    def __init__(
        self,
        send: Send,
        *,
        at_turn_end: Callable[[Callable[[], None]], None],
        on_confirmed: Callable[[list[int]], None] | None = None,
        remembered: int = 0,
    ) -> None:
        """`on_confirmed` is called with the sequences that the server has confirmed."""
        self._send = send
        self._at_turn_end = at_turn_end
        self._on_confirmed = on_confirmed
        self._loop = asyncio.get_running_loop()
        self._unconfirmed: dict[int, int] = {}
        """With the number of the batch in which it was last sent; 0: it is pending."""
        self._pending: Batch = {}
        """To be sent at the end of this turn, or after the reconnect."""
        self._scheduled = False
        self._batches: dict[int, tuple[Batch, float]] = {}
        """Sent but unconfirmed batches, with the time when they were sent."""
        self._number = 0
        self._newest: deque[Batch] = deque(maxlen=_NEWEST)
        self._confirmed: OrderedDict[int, None] = OrderedDict()
        self._most_remembered = max(remembered, _REMEMBERED)
        self._waiters: dict[asyncio.Future[None], set[int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._over: GanglineError | None = None

    def __contains__(self, sequence: int) -> bool:
        """Whether it has been acknowledged."""
        return sequence in self._confirmed or sequence in self._unconfirmed

    @property
    def unconfirmed(self) -> int:
        return len(self._unconfirmed)

    def add(self, message: StreamMessage) -> None:
        """Acknowledge a message, also when it was delivered again."""
        if self._over is not None:
            return
        sequence = message.sequence
        self._confirmed.pop(sequence, None)
        self._unconfirmed[sequence] = 0
        self._pending[sequence] = message.ack
        if not self._scheduled:
            self._scheduled = True
            self._at_turn_end(self._flush)

    def confirm(self, number: int) -> None:
        """The server has confirmed a batch."""
        batch, _ = self._batches.pop(number, ({}, 0.0))
        if not batch:
            return
        self._newest.append(batch)
        unconfirmed, confirmed = self._unconfirmed, self._confirmed
        done = [sequence for sequence in batch if unconfirmed.get(sequence) == number]
        for sequence in done:
            del unconfirmed[sequence]
            confirmed[sequence] = None
        while len(confirmed) > self._most_remembered:
            confirmed.popitem(last=False)
        for waiter, missing in list(self._waiters.items()):
            missing.difference_update(done)
            if not missing:
                del self._waiters[waiter]
                if not waiter.done():
                    waiter.set_result(None)
        if self._on_confirmed is not None and done:
            self._on_confirmed(done)

    def resend(self) -> None:
        """Send everything again: after trouble with the consumer or the connection, acknowledgements may be lost."""
        batches = [*self._newest, *(batch for batch, _ in self._batches.values()), self._pending]
        self._newest.clear()
        self._batches.clear()
        self._pending = {sequence: ack for batch in batches for sequence, ack in batch.items()}
        for sequence in self._pending:
            if sequence in self._unconfirmed:
                self._unconfirmed[sequence] = 0
        self._flush()

    async def settled(self) -> None:
        """Wait until all acknowledgements so far are confirmed.

        Raises:
            ConsumerLost, ClosedError: they will never be.
        """
        if not self._unconfirmed:
            return
        if self._over is not None:
            raise self._over
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters[waiter] = set(self._unconfirmed)
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)

    def end(self, error: GanglineError) -> None:
        """No more confirmations will come. Idempotent."""
        if self._over is not None:
            return
        self._flush()  # the acknowledgements of this turn
        self._over = error
        if self._timer is not None:
            self._timer.cancel()
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _flush(self) -> None:
        self._scheduled = False
        batch = self._pending
        if not batch or self._over is not None:
            return
        number = self._number + 1
        try:
            self._send(batch, number)
        except Unavailable:
            return  # the reconnect sends it
        except ClosedError as error:
            self._pending = {}
            self.end(error)
            return
        self._pending, self._number = {}, number
        self._batches[number] = (batch, self._loop.time())
        for sequence in batch:
            if sequence in self._unconfirmed:
                self._unconfirmed[sequence] = number
        if self._timer is None:
            self._timer = self._loop.call_later(RESEND_S, self._resend_old)

    def _resend_old(self) -> None:
        self._timer = None
        if self._over is not None or not self._batches:
            return
        before = self._loop.time() - RESEND_S
        for number, (batch, sent_at) in list(self._batches.items()):
            if sent_at <= before:
                del self._batches[number]
                self._pending = {**batch, **self._pending}
        self._flush()
        if self._timer is None:
            self._timer = self._loop.call_later(RESEND_S / 4, self._resend_old)
