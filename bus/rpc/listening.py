"""One handler on several subjects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from ..port.bus import Bus, Handler
from ..port.types import Subscription


class Listening:
    """Several subscriptions that live and end together."""

    def __init__(self) -> None:
        self._subscriptions: list[Subscription] = []

    async def unsubscribe(self) -> None:
        """See port.Subscription."""
        subscriptions, self._subscriptions = self._subscriptions, []
        await asyncio.gather(*(subscription.unsubscribe() for subscription in subscriptions))

    async def add(self, bus: Bus, subject: str, handler: Handler, queue: str) -> None:
        self._subscriptions.append(await bus.subscribe(subject, handler, queue=queue))

    def __repr__(self) -> str:
        return f"Listening({self._subscriptions})"


async def listen(bus: Bus, subjects: Iterable[str], handler: Handler, *, queue: str = "") -> Subscription:
    """Deliver what comes on any of `subjects`; otherwise as Bus.subscribe. All of them, or none."""
    listening = Listening()
    try:
        for subject in subjects:
            await listening.add(bus, subject, handler, queue)
    except BaseException:
        await listening.unsubscribe()
        raise
    return listening
