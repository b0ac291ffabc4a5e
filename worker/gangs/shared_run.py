"""What the members of one run share on a worker: one copy of what is sent to all of them, and the values in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from ...bus.port.bus import Bus, Message
from ...bus.port.subjects import Subscription
from ...schemas.errors.base import MalformedMessage, PayloadTooLarge
from ...schemas.names import Names
from ...schemas.wire import codec

_IMMUTABLE: Final = (bytes, str, int, float, bool, type(None))

Hear = Callable[[object], None]


def message_in(data: bytes) -> object:
    """A message between members; None: it cannot be read."""
    try:
        return codec.unpack(data, budget=codec.most_containers)
    except (MalformedMessage, PayloadTooLarge):
        return None


class SharedRun:
    """One run of one generation. Ends when its last member here leaves; then `SharedRuns` makes a new one."""

    def __init__(self, bus: Bus, subject: str, end: Callable[[], object]) -> None:
        self._bus = bus
        self._subject = subject
        self._end = end
        self._members: dict[Hear, None] = {}
        self._subscription: Subscription | None = None
        self._subscribing = asyncio.Lock()
        self._number = 0
        self._takers = 0
        """How many members here have not taken the results of collective `_number`."""
        self._values: dict[int, Any] = {}
        """Its immutable values."""

    async def join(self, hear: Hear) -> None:
        """From now on `hear` gets each message to all members, decoded: it must not change it. Idempotent."""
        self._members[hear] = None
        async with self._subscribing:
            if self._subscription is None and self._members:
                self._subscription = await self._bus.subscribe(self._subject, self._take)
        if not self._members:  # all have left meanwhile
            await self._unsubscribe()

    async def leave(self, hear: Hear) -> None:
        """Idempotent."""
        if self._members.pop(hear, self) is None and not self._members:
            self._end()
            await self._unsubscribe()

    def unpacked(self, number: int, results: list[bytes]) -> list[Any]:
        """The results of collective `number`, for one member. Members share immutable values; each gets lists and maps
        of its own.

        No member gets results of `number + 1` before all have begun it, so only those of one number are kept.
        """
        if number != self._number:
            self._number, self._takers, self._values = number, len(self._members), {}
        shared = self._values
        values: list[Any] = []
        for index, data in enumerate(results):
            value = shared[index] if index in shared else codec.unpack(data)
            if type(value) in _IMMUTABLE:
                shared[index] = value
            values.append(value)
        self._takers -= 1
        if self._takers <= 0:
            self._values = {}
        return values

    def _take(self, message: Message) -> None:
        value = message_in(message.data)
        for hear in list(self._members):
            hear(value)

    async def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()


class SharedRuns:
    """The runs that have members on one worker."""

    def __init__(self, bus: Bus, names: Names) -> None:
        self._bus = bus
        self._names = names
        self._runs: dict[str, SharedRun] = {}

    def of(self, gang: str, generation: int, run: int) -> SharedRun:
        subject = self._names.gang_talk(gang, generation, run, None)
        shared = self._runs.get(subject)
        if shared is None:
            shared = self._runs[subject] = SharedRun(self._bus, subject, lambda: self._runs.pop(subject, None))
        return shared

    def __repr__(self) -> str:
        return f"SharedRuns({len(self._runs)})"
