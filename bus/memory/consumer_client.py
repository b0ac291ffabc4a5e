"""A pull consumer's way to an in-memory hub and back, faults included; what it does there is decided in `consuming`."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..port.bus import StreamMessage
from ..port.subjects import SubjectPattern
from ..streams.ack_batcher import Batch
from ..streams.pull_consumer import EXPIRES_S, HEARTBEAT_S, ConsumerStatus, PullConsumer
from .consumer_store import ConsumerStore, PullRequest
from .faults import server_time

if TYPE_CHECKING:
    from .connection import MemoryBus
    from .stream_client import MemoryStream
    from .stream_store import StreamStore


class MemoryPullTransport:
    """Implements consuming.PullTransport."""

    def __init__(self, bus: MemoryBus, stream: MemoryStream, name: str, pattern: str, owner: PullConsumer) -> None:
        self._bus = bus
        self._hub = bus.hub
        self._stream = stream
        self._name = name
        self._pattern = SubjectPattern(pattern)
        self.owner = owner
        self._made: ConsumerStore | None = None
        self._requester: _Requester | None = None
        self._stopped = False
        self._context = contextvars.copy_context()

    def open(self, made: ConsumerStore) -> None:
        """`made` tells our consumer from another of its name."""
        self._made = made

    def stop(self) -> None:
        self._stopped = True

    # -- to the server --------------------------------------------------------------------------------------------

    def ask(self, count: int, generation: int) -> None:
        requester = self._requester
        if requester is None or (requester.generation, requester.losses) != (generation, self._bus.losses):
            requester = self._requester = _Requester(self, self._bus, generation)

        def at_server(found: ConsumerStore | None) -> None:
            if found is None:
                requester.refused()
            else:
                ends_at = server_time() + EXPIRES_S
                found.ask(PullRequest(requester, count, ends_at), HEARTBEAT_S)

        self._send(at_server)

    def acknowledge(self, batch: Batch, number: int) -> None:
        def at_server(found: ConsumerStore | None) -> None:
            if found is None:
                self.say(self.owner.on_trouble)
                return
            for sequence in batch:
                found.acknowledge(sequence)
            self.say(lambda: self.owner.on_acknowledged(number))

        self._send(at_server)

    def refuse(self, sequence: int) -> None:
        self._send(lambda found: None if found is None else found.refuse(sequence))

    def _send(self, action: Callable[[ConsumerStore | None], None]) -> None:
        """A message to the consumer at the server, which may get lost."""
        self._bus.check_open()
        losses = self._bus.losses
        fate = self._hub.storage_fate(self._bus)
        request_s = fate.request_s
        if request_s is None:
            return

        def at_server() -> None:
            if self._bus.losses == losses and self._bus.connected:
                self._hub.to_or_from_leader(self._bus, lambda: action(self._find()))

        self._bus.depart(lambda: self._hub.later(request_s, at_server))

    def _find(self) -> ConsumerStore | None:
        store = self._hub.streams.find(self._stream.name) if self._hub.storage_up else None
        return None if store is None else store.consumers.get(self._name)

    # -- from the server ------------------------------------------------------------------------------------------

    def say(self, action: Callable[[], None]) -> None:
        """The server tells us something."""
        self._hub.say(self._bus, self._stream.name, self._take, action)

    def _take(self, action: Any) -> None:
        if not self._stopped:
            asyncio.get_running_loop().call_soon(self._run, action, context=self._context)

    def _run(self, action: Callable[[], None]) -> None:
        if not self._stopped:
            action()

    # -- asking about it ------------------------------------------------------------------------------------------

    async def look(self) -> ConsumerStatus | None:
        def at_server(store: StreamStore) -> ConsumerStatus | None:
            found = store.consumers.get(self._name)
            if found is None or found is not self._made:
                return None
            return ConsumerStatus(state=found.state(), delivered=found.delivered)

        return await self._stream.at_server(at_server)

    async def stored(self, first: int, last: int) -> list[int]:
        def at_server(store: StreamStore) -> list[int]:
            return [one.sequence for one in store.after(first, self._pattern) if one.sequence <= last]

        return await self._stream.at_server(at_server)

    async def remove(self) -> None:
        await self._stream.delete_consumer(self._name)


class _Requester:
    """Who asks, for one generation of one connection; implements memory_stream_consumer.Requester."""

    def __init__(self, link: MemoryPullTransport, bus: MemoryBus, generation: int) -> None:
        self.generation = generation
        self.losses = bus.losses
        self._bus = bus
        self._link = link

    @property
    def gone(self) -> bool:
        return self._bus.losses != self.losses or not self._bus.connected or self._bus.hub.cuts_off(self._bus)

    def deliver(self, message: StreamMessage, ordinal: int) -> None:
        self._link.say(lambda: self._link.owner.on_message(message, ordinal))

    def heartbeat(self) -> None:
        self._if_current(self._link.owner.on_heartbeat)

    def ended(self, left: int) -> None:
        self._if_current(lambda: self._link.owner.on_request_ended(left))

    def refused(self) -> None:
        self._if_current(self._link.owner.on_trouble)

    def _if_current(self, action: Callable[[], None]) -> None:
        def told() -> None:
            if self._link.owner.generation == self.generation:
                action()

        self._link.say(told)
