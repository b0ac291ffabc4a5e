"""Acknowledgements of one consumer: sent at once, kept until the server has confirmed them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from ..schemas.errors import ClosedError, GanglineError, Unavailable
from .port import StreamMessage

RESEND_S: Final = 2.0
"""An acknowledgement without a confirmation for so long is sent again."""
_REMEMBERED: Final = 16_384

Send = Callable[[int, str], None]
"""Sends the acknowledgement of a sequence to a subject; raises Unavailable without a connection."""


class Acknowledgements:
    """What we are done with.

    Invariant: a sequence is in `_unconfirmed` or in `_confirmed`, never in both.

    A server that dies may forget an acknowledgement that it has confirmed, and deliver the message again. So the newest
    confirmed ones are remembered (as many as `remembered`, at least 16,384).
    """

    def __init__(self, send: Send, *, remembered: int = 0) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._unconfirmed: dict[int, tuple[str, float]] = {}
        """Where to acknowledge, and when that was last sent (-inf: not at all)."""
        self._confirmed: OrderedDict[int, None] = OrderedDict()
        self._most_remembered = max(remembered, _REMEMBERED)
        self._waiters: dict[asyncio.Future[None], set[int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._over: GanglineError | None = None

    def __contains__(self, sequence: int) -> bool:
        """Whether we are done with it."""
        return sequence in self._unconfirmed or sequence in self._confirmed

    @property
    def unconfirmed(self) -> int:
        return len(self._unconfirmed)

    def add(self, message: StreamMessage) -> None:
        """Acknowledge; also again, when it was delivered once more."""
        if self._over is not None:
            return
        self._confirmed.pop(message.sequence, None)
        self._emit(message.sequence, message.ack)
        if self._timer is None:
            self._timer = self._loop.call_later(RESEND_S, self._resend_old)

    def confirm(self, sequence: int) -> None:
        """The server has it."""
        if self._unconfirmed.pop(sequence, None) is None:
            return
        self._confirmed[sequence] = None
        if len(self._confirmed) > self._most_remembered:
            self._confirmed.popitem(last=False)
        for waiter, missing in list(self._waiters.items()):
            missing.discard(sequence)
            if not missing:
                del self._waiters[waiter]
                if not waiter.done():
                    waiter.set_result(None)

    def resend(self) -> None:
        """The connection is back, and what was under way may be lost."""
        for sequence, (subject, _) in list(self._unconfirmed.items()):
            self._emit(sequence, subject)

    async def settled(self) -> None:
        """Wait until all so far are confirmed.

        Raises:
            ConsumerLost, ClosedError: they never will be.
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
        """No confirmation will come any more. Idempotent."""
        if self._over is not None:
            return
        self._over = error
        if self._timer is not None:
            self._timer.cancel()
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _emit(self, sequence: int, subject: str) -> None:
        sent_at = self._loop.time()
        try:
            self._send(sequence, subject)
        except Unavailable:
            sent_at = float("-inf")  # the reconnect sends it
        except ClosedError as error:
            self.end(error)
            return
        self._unconfirmed[sequence] = (subject, sent_at)

    def _resend_old(self) -> None:
        self._timer = None
        if self._over is not None or not self._unconfirmed:
            return
        before = self._loop.time() - RESEND_S
        for sequence, (subject, sent_at) in list(self._unconfirmed.items()):
            if sent_at <= before:
                self._emit(sequence, subject)
        self._timer = self._loop.call_later(RESEND_S / 4, self._resend_old)
