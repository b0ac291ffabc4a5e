"""The server's side of an in-memory pull consumer: who asked, what is pending, what is due again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import Context
from dataclasses import dataclass
from typing import Protocol

from ..port.bus import ConsumerSettings, ConsumerState, StreamMessage
from ..port.subjects import SubjectPattern
from .faults import server_time


class ConsumedStore(Protocol):
    """What a consumer needs of its stream; implemented by StreamStore."""

    name: str
    messages: dict[int, StreamMessage]
    last_sequence: int
    running: Callable[[], bool]

    def after(self, sequence: int, pattern: SubjectPattern) -> Iterator[StreamMessage]: ...

    def acknowledged(self, sequence: int) -> None: ...

    def drop_consumer(self, name: str) -> bool: ...


class Requester(Protocol):
    """Who asked for messages; told over a connection that may lose what is said."""

    @property
    def gone(self) -> bool:
        """Its connection is no more."""
        ...

    def deliver(self, message: StreamMessage, ordinal: int) -> None:
        """`ordinal` counts this consumer's deliveries."""
        ...

    def heartbeat(self) -> None: ...

    def ended(self, left: int) -> None:
        """The request's time is over."""
        ...

    def refused(self) -> None:
        """The consumer was deleted."""
        ...


class PullRequest:
    """One request for messages."""

    __slots__ = ("ends_at", "left", "requester")

    def __init__(self, requester: Requester, count: int, ends_at: float) -> None:
        self.requester = requester
        self.left = count
        self.ends_at = ends_at


@dataclass(slots=True)
class _Pending:
    count: int
    due_at: float


class ConsumerStore:
    """One consumer of a stream.

    Invariant: `_pending` is in the order of `due_at`; a sequence in `_due` is in `_pending` too.
    """

    def __init__(self, store: ConsumedStore, name: str, settings: ConsumerSettings, context: Context) -> None:
        self.name = name
        self.settings = settings
        self.delivered = 0
        """Sequence of the last message delivered for the first time."""
        self._store = store
        self._pattern = SubjectPattern(settings.filter)
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._next = 1
        self._pending: dict[int, _Pending] = {}
        self._due: dict[int, None] = {}
        """To be delivered again, in this order."""
        self._deliveries = 0
        self._requests: deque[PullRequest] = deque()
        self._redelivery: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._used_at = server_time()
        self._idleness: asyncio.TimerHandle | None = None
        if settings.inactive_s:
            self._await_idleness(settings.inactive_s)

    def state(self) -> ConsumerState:
        pending = sum(1 for _ in self._store.after(self._next, self._pattern))
        return ConsumerState(
            name=self.name,
            filter=self.settings.filter,
            pending=pending,
            unacknowledged=len(self._pending),
            metadata=dict(self.settings.metadata or {}),
        )

    # -- asking and delivering ------------------------------------------------------------------------------------

    def ask(self, request: PullRequest, heartbeat_s: float) -> None:
        self._used_at = server_time()
        self._requests.append(request)
        if self._heartbeat is None:
            self._await_heartbeat(heartbeat_s)
        self.signal()

    def drop_requests(self, gone: Callable[[Requester], bool]) -> None:
        """Forget the requests of some, without telling them."""
        self._requests = deque(request for request in self._requests if not gone(request.requester))

    def signal(self) -> None:
        """Something may be deliverable."""
        while self._requests and self._store.running():
            request = self._requests[0]
            if request.requester.gone:
                self._requests.popleft()
                continue
            message = self._take()
            if message is None:
                return
            request.left -= 1
            self._requests.rotate(-1)  # they take turns
            if request.left == 0:
                self._requests.remove(request)
            self._deliveries += 1
            request.requester.deliver(message, self._deliveries)

    def _take(self) -> StreamMessage | None:
        """The next message to deliver: what is due again first."""
        while self._due:
            sequence = next(iter(self._due))
            del self._due[sequence]
            pending = self._pending.pop(sequence, None)
            if pending is not None:
                return self._mark(self._store.messages[sequence], pending.count + 1)
        if len(self._pending) >= self.settings.max_pending:
            return None
        message = next(self._store.after(self._next, self._pattern), None)
        if message is None:
            self._next = self._store.last_sequence + 1
            return None
        self._next = message.sequence + 1
        self.delivered = message.sequence
        return self._mark(message, 1)

    def _mark(self, message: StreamMessage, count: int) -> StreamMessage:
        self._pending[message.sequence] = _Pending(count, server_time() + self.settings.ack_wait_s)
        if self._redelivery is None:
            self._await_redelivery()
        return message._replace(delivered=count, ack=f"$JS.ACK.{self._store.name}.{self.name}.{message.sequence}")

    # -- acknowledging --------------------------------------------------------------------------------------------

    def acknowledge(self, sequence: int) -> None:
        self._used_at = server_time()
        if self._pending.pop(sequence, None) is not None:
            self._store.acknowledged(sequence)
            self.signal()

    def refuse(self, sequence: int) -> None:
        """Deliver it again."""
        if sequence in self._pending:
            self._due.setdefault(sequence)
            self.signal()

    def forget(self, sequence: int) -> None:
        """The message is no more."""
        self._pending.pop(sequence, None)

    # -- time -----------------------------------------------------------------------------------------------------

    def _await_redelivery(self) -> None:
        self._redelivery = None
        waiting = next((one for number, one in self._pending.items() if number not in self._due), None)
        if waiting is not None:
            self._redelivery = self._loop.call_at(waiting.due_at, self._redeliver, context=self._context)

    def _redeliver(self) -> None:
        now = server_time()
        late = [number for number, one in self._pending.items() if one.due_at <= now]
        for number in sorted(late):
            self._due.setdefault(number)
        self._await_redelivery()
        self.signal()

    def _await_heartbeat(self, heartbeat_s: float) -> None:
        self._heartbeat = self._loop.call_later(heartbeat_s, self._beat, heartbeat_s, context=self._context)

    def _beat(self, heartbeat_s: float) -> None:
        self._heartbeat = None
        now = server_time()
        self.drop_requests(lambda requester: requester.gone)
        over = [request for request in self._requests if request.ends_at <= now]
        for request in over:
            self._requests.remove(request)
            request.requester.ended(request.left)
        if self._requests:
            self._used_at = now
            self._await_heartbeat(heartbeat_s)
            for requester in dict.fromkeys(request.requester for request in self._requests):
                requester.heartbeat()

    def _await_idleness(self, wait_s: float) -> None:
        self._idleness = self._loop.call_later(wait_s, self._check_idleness, context=self._context)

    def _check_idleness(self) -> None:
        left_s = self._used_at + self.settings.inactive_s - server_time()
        if left_s <= 0 and not self._requests and self._store.running():
            self._store.drop_consumer(self.name)
        else:
            self._await_idleness(max(left_s, 0.1))

    def end(self) -> None:
        """It was deleted."""
        for timer in (self._redelivery, self._heartbeat, self._idleness):
            if timer is not None:
                timer.cancel()
        requests, self._requests = self._requests, deque()
        for requester in dict.fromkeys(request.requester for request in requests):
            requester.refused()
