"""What the members of one run share on a worker: one copy of what is sent to all of them, and the values in it. What
all runs share: one queue of what they send."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal

from ...bus.port.bus import Bus, Message, NotPermitted
from ...bus.port.subjects import Subscription
from ...schemas.errors.base import ClosedError, Disconnected, GanglineError, MalformedMessage, PayloadTooLarge
from ...schemas.names import Names
from ...schemas.wire import codec
from .collectives_core import Chunks, PeerMessage, Send, answer_of_receiver, greeting

_BUFFERED_BYTES: Final = 256 * 1024
"""How much of what members send may wait in the connection: heartbeats and answers go out behind it."""
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

    def __init__(self, runs: SharedRuns, subject: Callable[[int | Literal["left"] | None], str]) -> None:
        """`subject`: by whom it goes to."""
        self._runs = runs
        self._subject = subject
        self._receiver = -1
        """The rank by which rank 0 knows this worker; it stays when that member leaves."""
        self._members: dict[Hear, None] = {}
        self._subscription: Subscription | None = None
        self._subscribing = asyncio.Lock()
        self._number = 0
        self._takers = 0
        """How many members here have not taken the results of collective `_number`."""
        self._values: dict[int, Any] = {}
        """Its immutable values."""

    async def join(self, hear: Hear, rank: int) -> None:
        """From now on `hear` gets each message to all members, decoded: it must not change it. Idempotent."""
        self._members[hear] = None
        async with self._subscribing:
            if self._subscription is None and self._members:
                self._receiver = rank
                self._subscription = await self._runs.bus.subscribe(self._subject(None), self._take)
                self._send(greeting(rank))
        if not self._members:  # all have left meanwhile
            await self._unsubscribe()

    async def leave(self, hear: Hear) -> None:
        """Idempotent."""
        if self._members.pop(hear, self) is None and not self._members:
            self._runs.ended(self._subject(None))
            await self._unsubscribe()

    def unpacked(self, number: int, results: list[Chunks]) -> list[Any]:
        """The results of collective `number`, for one member. Members share immutable values; each gets lists and maps
        of its own.

        No member gets results of `number + 1` before all have begun it, so only those of one number are kept.
        """
        if number != self._number:
            self._number, self._takers, self._values = number, len(self._members), {}
        shared = self._values
        values: list[Any] = []
        for index, chunks in enumerate(results):
            value = shared[index] if index in shared else codec.unpack(chunks.join())
            if type(value) in _IMMUTABLE:
                shared[index] = value
            values.append(value)
        self._takers -= 1
        if self._takers <= 0:
            self._values = {}
        return values

    def _take(self, message: Message) -> None:
        value = message_in(message.data)
        answers = answer_of_receiver(value, self._receiver)
        if answers:
            self._send(answers)
            match value:
                case [PeerMessage.MARK, *_]:
                    return  # for this worker, not for each member
        for hear in list(self._members):
            hear(value)

    def _send(self, sends: list[Send]) -> None:
        for to, message in sends:
            self._runs.send(self._subject(to), message)

    async def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()


class SharedRuns:
    """The runs that have members on one worker, and the queue of all that these members send."""

    def __init__(self, bus: Bus, names: Names) -> None:
        self.bus = bus
        self._names = names
        self._runs: dict[str, SharedRun] = {}
        self._queue: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._pump: asyncio.Task[None] | None = None

    def of(self, gang: str, generation: int, run: int) -> SharedRun:
        subject = partial(self._names.gang_talk, gang, generation, run)
        shared = self._runs.get(subject(None))
        if shared is None:
            shared = self._runs[subject(None)] = SharedRun(self, subject)
        return shared

    def ended(self, subject: str) -> None:
        """A run has no members here any more."""
        self._runs.pop(subject, None)

    def send(self, subject: str, message: tuple[Any, ...]) -> None:
        """Publish in order, as fast as the connection takes it: what others publish never waits behind much of it. If
        that cannot be done the message is lost, and who misses it asks for it."""
        self._queue.append((subject, message))
        if self._pump is None and self._flush():
            self._pump = asyncio.get_running_loop().create_task(self._keep_up(), name="gangline-gang-talk")
            self._pump.add_done_callback(self._pumped)

    def _flush(self) -> bool:
        """Publish until much of it waits in the connection; True if more is left."""
        sent = 0
        while self._queue and sent < _BUFFERED_BYTES:
            subject, message = self._queue.popleft()
            data = codec.pack(message)
            sent += len(data)
            try:
                self.bus.publish(subject, data)
            except NotPermitted:
                pass
            except (Disconnected, ClosedError):
                self._queue.clear()
        return bool(self._queue)

    async def _keep_up(self) -> None:
        while True:
            await self.bus.writable(_BUFFERED_BYTES)
            if not self._flush():
                return

    def _pumped(self, task: asyncio.Task[None]) -> None:
        self._pump = None
        if not task.cancelled() and isinstance(task.exception(), GanglineError):
            self._queue.clear()

    def __repr__(self) -> str:
        return f"SharedRuns({len(self._runs)})"
