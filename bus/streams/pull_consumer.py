"""A pull consumer on any bus: how many messages it requests and when, what is acknowledged, and what it does when
answers stop coming.

The bus supplies a `PullTransport`, which sends for us and reports what arrives.

Requests: the application says how many messages it wants; `_asked` of them are in requests at the server. A request
ends when it has delivered all its messages, or with a status that says how many are left; only those are requested
again. After a lost connection, a lost leader or silence, the fate of the requests is unknown: then a new *generation*
begins, and everything wanted is requested again. If the old requests were only slow and deliver after all, more comes
than was wanted; the next `pull` requests that many fewer.

Messages delivered into a broken connection would be delivered again only after the acknowledgement wait. So a new
generation first asks how far the server has delivered, and refuses (negative acknowledgement) what never arrived.
Messages that were only late then come twice, the second time with a higher `delivered`. Acknowledged messages never
come again.

Messages can be lost on a connection that holds, too: between two servers of a cluster. The server numbers a consumer's
deliveries, and each delivery and heartbeat tells the last number, so a gap is noticed at the next of these.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from ...runtime.timers import Backoff
from ...schemas.errors.base import ClosedError, GanglineError, InvalidRequest, Unavailable
from ..port.bus import ConnectionEvent, ConsumerLost, ConsumerState, StreamHandler, StreamMessage
from .ack_batcher import AckBatcher, Batch

log = logging.getLogger("gangline.bus")

HEARTBEAT_S: Final = 2.0
"""How often the server confirms that an idle request is still open."""
SILENCE_S: Final = 4.5
"""Two missed heartbeats."""
EXPIRES_S: Final = 30.0
"""A request for more messages than available ends after this long, and is repeated."""
_FIRST_RETRY_S: Final = 0.1
_MOST_RETRY_S: Final = 1.0
_MOST_REFUSALS: Final = 5
_CLOSE_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatus:
    """A consumer's state on the server."""

    state: ConsumerState
    delivered: int
    """Stream sequence of the last message delivered."""
    ordinal: int
    """Consumer sequence of the last delivery."""


class Connection(Protocol):
    """What a consumer needs from its bus."""

    @property
    def connected(self) -> bool: ...

    def at_turn_end(self, callback: Callable[[], None]) -> None: ...

    def on_connection(self, listener: Callable[[ConnectionEvent], None]) -> Callable[[], None]: ...


class PullTransport(Protocol):
    """One consumer's way to the server and back. It reports to the `on_...` methods of PullConsumer."""

    def ask(self, count: int, generation: int) -> None:
        """Ask for messages.

        Raises:
            Unavailable: no connection.
        """
        ...

    def acknowledge(self, batch: Batch, number: int) -> None:
        """Send acknowledgements, and let the server confirm the last. Raises Unavailable without a connection."""
        ...

    def refuse(self, sequence: int) -> None:
        """Let the server deliver a message again that never arrived. Raises Unavailable without a connection."""
        ...

    async def look(self) -> ConsumerStatus | None:
        """The consumer's state. None: it no longer exists, or is another of the same name.

        Raises:
            Unavailable: the server does not answer.
        """
        ...

    async def stored(self, first: int, last: int) -> list[int]:
        """Sequences from `first` to `last` that match the filter and are in the stream."""
        ...

    async def remove(self) -> None:
        """Delete the consumer, if it exists."""
        ...

    def stop(self) -> None:
        """Stop delivery. Idempotent."""
        ...


class _Phase(Enum):
    OPEN = auto()
    LOST = auto()
    CLOSED = auto()


class PullConsumer:
    """Implements port.Consumer.

    Args:
        on_lost, on_acknowledged: see port.Stream.consume.
        on_end: called once when it is lost or closed.
        remembered: how many acknowledged messages are recognised if they are delivered again.
    """

    def __init__(
        self,
        bus: Connection,
        name: str,
        handler: StreamHandler,
        *,
        on_lost: Callable[[], None] | None,
        on_acknowledged: Callable[[list[int]], None] | None = None,
        remembered: int,
        on_end: Callable[[PullConsumer], None],
    ) -> None:
        self.name = name
        self._bus = bus
        self._handler = handler
        self._on_lost = on_lost
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._link: PullTransport
        self._life = _Phase.OPEN
        self._wanted = 0
        """Wanted by the application and not delivered; below 0 if more came than was wanted."""
        self._asked = 0
        """How many of these are in requests of this generation."""
        self._generation = 0
        self._newest = 0
        """Highest sequence delivered to us."""
        self._ordinal: int | None = None
        """Consumer sequence of the last delivery that is known; None: unknown in this generation."""
        self._missed = 0
        """Deliveries that did not arrive, as far as their numbers tell. Which messages these were is not known yet."""
        self._gaps: list[tuple[int, int, int]] = []
        """How many deliveries did not arrive, and the first and last sequence that new messages among them can have."""
        self._filling: asyncio.Task[None] | None = None
        self._refused: dict[int, int] = {}
        """Refused and not seen since, with how often. Given up after a few times: then the message was deleted."""
        self._acks = AckBatcher(
            self._acknowledge, at_turn_end=bus.at_turn_end, on_confirmed=on_acknowledged, remembered=remembered
        )
        self._scheduled = False
        self._repairing: asyncio.Task[None] | None = None
        self._pause_s = 0.0
        """Pause before the next request to the server; grows while the trouble continues."""
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stop_listening: Callable[[], None] = bus.on_connection(self._on_connection)

    def attach(self, link: PullTransport) -> None:
        """Set the transport."""
        self._link = link

    def open(self, delivered: int, ordinal: int) -> None:
        """The consumer exists, and has delivered up to this stream sequence, with this consumer sequence. Messages that
        a former user of the name did not acknowledge come again after the acknowledgement wait."""
        self._newest = max(self._newest, delivered)
        self._ordinal = ordinal

    def abandon(self) -> None:
        """The consumer could not be created."""
        self._end(_Phase.CLOSED, ClosedError(f"consumer {self.name!r} could not be created"))

    def __repr__(self) -> str:
        return (
            f"<PullConsumer {self.name!r} {self._life.name.lower()}, {self.wanted} wanted, "
            f"{self._acks.unconfirmed} acknowledgements unconfirmed>"
        )

    # -- asking ---------------------------------------------------------------------------------------------------

    def pull(self, count: int) -> None:
        if count < 0:
            raise InvalidRequest(f"pull({count}): a number of messages is not negative")
        self._wanted += count
        self._ask_soon()

    @property
    def wanted(self) -> int:
        return max(self._wanted, 0)

    def _ask_soon(self) -> None:
        """Ask at the end of this turn, so that all pulls of one turn make one request."""
        # A request for each message would pile up at the server: ask for at least half at once.
        if not self._scheduled and self._asked * 2 <= self._wanted and self._wanted > self._asked:
            self._scheduled = True
            self._bus.at_turn_end(self._ask)

    def _ask(self) -> None:
        self._scheduled = False
        missing = self._wanted - self._asked
        if self._life is not _Phase.OPEN or self._repairing is not None or missing <= 0:
            return
        try:
            self._link.ask(missing, self._generation)
        except (Unavailable, ClosedError):
            return  # the reconnect asks again
        self._asked += missing
        self._heard_at = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(SILENCE_S, self._listen_for_silence)

    # -- what comes -----------------------------------------------------------------------------------------------

    def on_message(self, message: StreamMessage, ordinal: int) -> None:
        """Called by the transport: a message was delivered; `ordinal` counts the consumer's deliveries."""
        if self._life is not _Phase.OPEN:
            return
        self._hear()
        if self._asked:
            self._asked -= 1
        sequence = message.sequence
        self._count(ordinal - 1)
        self._ordinal = ordinal
        if sequence > self._newest:
            self._fill_soon(sequence - 1)
            self._newest = sequence
        if self._refused:
            self._refused.pop(sequence, None)
        if sequence in self._acks:
            self._acks.add(message)
            self._ask_soon()
            return
        self._wanted -= 1
        try:
            self._handler(message)
        except Exception:
            log.exception(
                "the handler of consumer %s failed on message %d",
                self.name,
                sequence,
                extra={"action": "bus.handler_failed", "subject": message.subject, "consumer": self.name},
            )
        self._ask_soon()

    def on_heartbeat(self, ordinal: int, sequence: int) -> None:
        """Called by the transport: a request is still open, and these are the consumer and stream sequences of the last
        delivery."""
        self._hear()
        self._count(ordinal)
        self._ordinal = ordinal
        if self._refused and self._bus.connected:
            self._refuse(list(self._refused))  # these refusals were lost, or what was delivered again
        self._fill_soon(sequence)
        self._newest = max(self._newest, sequence)
        self._ask_soon()

    def _count(self, ordinal: int) -> None:
        """The server has made so many deliveries."""
        if self._ordinal is not None and ordinal > self._ordinal:
            self._missed += ordinal - self._ordinal
            self._asked = max(self._asked - (ordinal - self._ordinal), 0)

    def _hear(self) -> None:
        self._heard_at = self._loop.time()
        self._pause_s = 0.0

    def on_request_ended(self, left: int) -> None:
        """Called by the transport: a request of this generation has ended with `left` undelivered messages."""
        self._hear()
        self._asked = max(self._asked - left, 0)
        self._ask_soon()

    def on_trouble(self) -> None:
        """Called by the transport: the consumer may be gone or have no leader, or an unknown number of requests was
        dropped."""
        if self._repairing is None:
            self._begin_again()

    def on_acknowledged(self, number: int) -> None:
        """Called by the transport: the server has confirmed a batch of acknowledgements."""
        self._acks.confirm(number)

    # -- repairing ------------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The current generation; statuses of another are outdated."""
        return self._generation

    def _on_connection(self, event: ConnectionEvent) -> None:
        if self._life is not _Phase.OPEN:
            return
        if event is ConnectionEvent.RECONNECTED:
            self._pause_s = 0.0
            self._begin_again()
        elif event is ConnectionEvent.CLOSED:
            self._end(_Phase.CLOSED, ClosedError("this connection was closed"))
        else:
            self._forget_requests()

    def _forget_requests(self) -> None:
        self._generation += 1
        self._asked = 0
        self._ordinal = None
        self._missed = 0

    def _listen_for_silence(self) -> None:
        self._timer = None
        if self._life is not _Phase.OPEN or not self._asked or not self._bus.connected:
            return
        ends_at = self._heard_at + SILENCE_S
        if self._loop.time() >= ends_at:
            self._begin_again()
            return
        self._timer = self._loop.call_at(ends_at, self._listen_for_silence)

    def _begin_again(self) -> None:
        """Start a new generation, once it is clear that the consumer still exists."""
        if self._life is not _Phase.OPEN:
            return
        self._forget_requests()
        self._acks.resend()
        if self._repairing is not None:
            self._repairing.cancel()
        self._repairing = self._loop.create_task(self._repair(), name=f"repair of consumer {self.name}")

    async def _repair(self) -> None:
        while True:
            if self._pause_s:  # none the first time
                await asyncio.sleep(self._pause_s)
            self._pause_s = min(max(self._pause_s * 2, _FIRST_RETRY_S), _MOST_RETRY_S)
            if not self._bus.connected:
                return  # the reconnect starts again
            try:
                newest = self._newest
                view = await self._link.look()
                if view is None:
                    self._lose()
                    return
                await self._refuse_what_never_came(newest, view.delivered)
                self._ordinal = max(self._ordinal or 0, view.ordinal)
                break
            except ClosedError:
                return
            except GanglineError as error:
                log.debug(
                    "a consumer is waiting: %s", error, extra={"action": "bus.consumer_waits", "consumer": self.name}
                )
        self._repairing = None
        self._ask_soon()

    async def _refuse_what_never_came(self, newest: int, delivered: int) -> None:
        lost = await self._link.stored(newest + 1, delivered) if delivered > newest else []
        self._newest = max(self._newest, delivered)
        self._refuse([*self._refused, *lost])

    def _refuse(self, lost: list[int]) -> None:
        for sequence in lost:
            self._link.refuse(sequence)
            times = self._refused.get(sequence, 0) + 1
            if times < _MOST_REFUSALS:
                self._refused[sequence] = times
            else:
                self._refused.pop(sequence, None)

    def _fill_soon(self, last: int) -> None:
        """The server has delivered messages up to this sequence: if some were lost in transit, although the connection
        held, they can be named now."""
        if not self._missed:
            return
        self._gaps.append((self._missed, self._newest + 1, last))
        self._missed = 0
        if self._filling is None:
            self._filling = self._loop.create_task(self._fill(), name=f"gaps of consumer {self.name}")

    async def _fill(self) -> None:
        backoff = Backoff(_FIRST_RETRY_S, _MOST_RETRY_S)
        try:
            while self._gaps:
                count, first, last = gap = self._gaps[0]
                try:
                    lost = await self._link.stored(first, last)
                    # Others were delivered again, since they had been refused, and lost again.
                    self._refuse(lost if len(lost) >= count else [*self._refused, *lost])
                except ClosedError:
                    return
                except GanglineError as error:
                    extra = {"action": "bus.consumer_waits", "consumer": self.name}
                    log.debug("a gap is not filled yet: %s", error, extra=extra)
                    await asyncio.sleep(backoff.next_s())
                else:
                    self._gaps.remove(gap)
        finally:
            self._filling = None

    # -- the end --------------------------------------------------------------------------------------------------

    def _lose(self) -> None:
        """The server says that the consumer no longer exists."""
        if self._life is not _Phase.OPEN:
            return
        self._end(_Phase.LOST, self._lost_error())
        if self._on_lost is not None:
            try:
                self._on_lost()
            except Exception:
                log.exception("on_lost of consumer %s failed", self.name, extra={"action": "bus.handler_failed"})

    def _lost_error(self) -> ConsumerLost:
        return ConsumerLost(
            f"consumer {self.name!r} no longer exists: it was deleted or replaced; create a new one",
            details={"consumer": self.name},
        )

    def _end(self, life: _Phase, error: GanglineError) -> None:
        self._life = life
        self._stop_listening()
        self._link.stop()
        self._acks.end(error)
        if self._timer is not None:
            self._timer.cancel()
        repairing, self._repairing = self._repairing, None
        if repairing is not None and repairing is not asyncio.current_task():
            repairing.cancel()
        if self._filling is not None:
            self._filling.cancel()
        self._on_end(self)

    # -- for the application --------------------------------------------------------------------------------------

    def ack(self, message: StreamMessage) -> None:
        if message.ack:
            self._acks.add(message)

    def _acknowledge(self, batch: Batch, number: int) -> None:
        self._link.acknowledge(batch, number)

    async def settled(self) -> None:
        await self._acks.settled()

    async def state(self) -> ConsumerState:
        if self._life is _Phase.CLOSED:
            raise ClosedError(f"consumer {self.name!r} was closed")
        view = await self._link.look() if self._life is _Phase.OPEN else None
        if view is None:
            self._lose()
            raise self._lost_error()
        return view.state

    async def close(self, *, delete: bool = False) -> None:
        if self._life is not _Phase.OPEN:
            return
        self._life = _Phase.CLOSED  # no delivery from here on; only one caller gets here
        try:
            if self._bus.connected and self._acks.unconfirmed:
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._acks.settled()
        except (TimeoutError, Unavailable):
            pass
        finally:
            self._end(_Phase.CLOSED, ClosedError(f"consumer {self.name!r} was closed"))
        if delete:
            await self._link.remove()
