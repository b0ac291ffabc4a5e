"""A pull consumer, whatever the bus: who asks for how much and when, what is acknowledged, and what is done when
answers stop coming.

The bus supplies a `PullTransport`, which sends for us and tells us what came.

How asking works: the application says how many messages it wants; `_asked` of them stand in requests at the server. A
request ends by delivering all that it asked for, or with a status that says how many are left; only those are asked for
again. After a lost connection, a lost leader or silence nobody can tell what became of the requests: then a new
*generation* begins, and all that is wanted is asked for once more. If only the news was slow, and the old requests
deliver after all, more comes than was wanted; that much less is asked for by the next `pull`.

What was delivered into a connection that broke would come again only after the acknowledgement wait. So a new
generation begins by asking how far the server has delivered, and refuses (negative acknowledgement) what never came.
What was only late then comes twice, the second time with a higher `delivered`. What is acknowledged never comes again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from ...schemas.errors.base import ClosedError, GanglineError, InvalidRequest, Unavailable
from ..port.bus import ConnectionEvent, ConsumerLost, ConsumerState, StreamHandler, StreamMessage
from .ack_batcher import AckBatcher, Batch

log = logging.getLogger("gangline.bus")

HEARTBEAT_S: Final = 2.0
"""How often the server says that an idle request still stands."""
SILENCE_S: Final = 4.5
"""Two heartbeats missed."""
EXPIRES_S: Final = 30.0
"""A request that asked for more than there is ends after so long, and is made again."""
_FIRST_RETRY_S: Final = 0.1
_MOST_RETRY_S: Final = 1.0
_MOST_REFUSALS: Final = 5
_CLOSE_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatus:
    """A consumer as the server has it."""

    state: ConsumerState
    delivered: int
    """Stream sequence of the last message delivered."""


class Connection(Protocol):
    """What a consumer needs of its bus."""

    @property
    def connected(self) -> bool: ...

    def at_turn_end(self, callback: Callable[[], None]) -> None: ...

    def on_connection(self, listener: Callable[[ConnectionEvent], None]) -> Callable[[], None]: ...


class PullTransport(Protocol):
    """One consumer's way to the server and back. What comes is told to `PullConsumer.take` and the other `on_...`."""

    def ask(self, count: int, generation: int) -> None:
        """Ask for messages.

        Raises:
            Unavailable: no connection.
        """
        ...

    def acknowledge(self, batch: Batch, number: int) -> None:
        """Send acknowledgements, and have the last of them confirmed. Raises Unavailable without a connection."""
        ...

    def refuse(self, sequence: int) -> None:
        """What was delivered and never came: deliver it again. Raises Unavailable without a connection."""
        ...

    async def look(self) -> ConsumerStatus | None:
        """None: the consumer is no more, or is another of the same name.

        Raises:
            Unavailable: the server does not say.
        """
        ...

    async def stored(self, first: int, last: int) -> list[int]:
        """Sequences from `first` to `last` that match the filter and are in the stream."""
        ...

    async def remove(self) -> None:
        """Delete the consumer, if it is there."""
        ...

    def stop(self) -> None:
        """Nothing more is to be delivered. Idempotent."""
        ...


class _Phase(Enum):
    OPEN = auto()
    LOST = auto()
    CLOSED = auto()


class PullConsumer:
    """Implements port.Consumer.

    Args:
        on_lost, on_acknowledged: see port.Stream.consume.
        on_end: called once, when it is lost or closed.
        remembered: how many acknowledged messages are known again if they come once more.
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
        """Asked for by the application and not delivered; below 0 when more came than was wanted."""
        self._asked = 0
        """Of these, what stands in requests of this generation."""
        self._generation = 0
        self._newest = 0
        """Highest sequence that was delivered to us."""
        self._ordinal = 0
        """The consumer's delivery that came last; 0: none in this generation."""
        self._gaps: list[tuple[int, int]] = []
        """Sequences among which some were delivered and did not come."""
        self._filling: asyncio.Task[None] | None = None
        self._refused: dict[int, int] = {}
        """Refused, and not seen since; with how often. Given up after some times: then somebody else deleted it."""
        self._acks = AckBatcher(
            self._acknowledge, at_turn_end=bus.at_turn_end, on_confirmed=on_acknowledged, remembered=remembered
        )
        self._scheduled = False
        self._repairing: asyncio.Task[None] | None = None
        self._pause_s = 0.0
        """Before the next look at the server; grows while trouble goes on."""
        self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stop_listening: Callable[[], None] = bus.on_connection(self._on_connection)

    def attach(self, link: PullTransport) -> None:
        """Whom to send by."""
        self._link = link

    def open(self, delivered: int) -> None:
        """The consumer is there, and had delivered up to that stream sequence. What of it was not acknowledged (by a
        former owner of the name) comes again after the acknowledgement wait."""
        self._newest = max(self._newest, delivered)

    def abandon(self) -> None:
        """It could not be made."""
        self._end(_Phase.CLOSED, ClosedError(f"consumer {self.name!r} could not be made"))

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
        """Ask at the end of this turn, so that all that is pulled in one turn makes one request."""
        # A request for each single message would pile up at the server: at least half is asked for at once.
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
            return  # the reconnect asks
        self._asked += missing
        self._heard_at = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(SILENCE_S, self._listen_for_silence)

    # -- what comes -----------------------------------------------------------------------------------------------

    def on_message(self, message: StreamMessage, ordinal: int) -> None:
        """The link: a message was delivered; `ordinal` counts the consumer's deliveries."""
        if self._life is not _Phase.OPEN:
            return
        self._hear()
        if self._asked:
            self._asked -= 1
        sequence = message.sequence
        if ordinal > self._ordinal + 1 and self._ordinal:
            self._asked = max(self._asked - (ordinal - self._ordinal - 1), 0)
            self._fill_soon(self._newest + 1, sequence - 1)
        self._ordinal = ordinal
        if sequence > self._newest:
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

    def on_heartbeat(self) -> None:
        """The link: a request still stands."""
        self._hear()

    def _hear(self) -> None:
        self._heard_at = self._loop.time()
        self._pause_s = 0.0

    def on_request_ended(self, left: int) -> None:
        """The link: a request of this generation is over; so many messages of it did not come."""
        self._hear()
        self._asked = max(self._asked - left, 0)
        self._ask_soon()

    def on_trouble(self) -> None:
        """The link: the consumer may be gone, or without a leader; or requests were dropped, nobody knows how many."""
        if self._repairing is None:
            self._begin_again()

    def on_acknowledged(self, number: int) -> None:
        """The link: the server has that batch of acknowledgements."""
        self._acks.confirm(number)

    # -- repairing ------------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """What belongs to another is news of yesterday."""
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
        self._ordinal = 0

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
        """A new generation, once it is clear that the consumer is still there."""
        if self._life is not _Phase.OPEN:
            return
        self._forget_requests()
        self._acks.resend()
        if self._repairing is not None:
            self._repairing.cancel()
        self._repairing = self._loop.create_task(self._repair(), name=f"repair of consumer {self.name}")

    async def _repair(self) -> None:
        while True:
            if self._pause_s:  # at once the first time
                await asyncio.sleep(self._pause_s)
            self._pause_s = min(max(self._pause_s * 2, _FIRST_RETRY_S), _MOST_RETRY_S)
            if not self._bus.connected:
                return  # the reconnect begins again
            try:
                newest = self._newest
                view = await self._link.look()
                if view is None:
                    self._lose()
                    return
                await self._refuse_what_never_came(newest, view.delivered)
                break
            except ClosedError:
                return
            except GanglineError as error:
                log.debug("a consumer waits: %s", error, extra={"action": "bus.consumer_waits", "consumer": self.name})
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

    def _fill_soon(self, first: int, last: int) -> None:
        """Some of these were lost on the way, though the connection held."""
        self._gaps.append((first, last))
        if self._filling is None:
            self._filling = self._loop.create_task(self._fill(), name=f"gaps of consumer {self.name}")

    async def _fill(self) -> None:
        try:
            while self._gaps:
                first, last = self._gaps.pop()
                self._refuse(await self._link.stored(first, last))
        except GanglineError as error:
            # It comes again after the acknowledgement wait, if not before.
            log.debug("a gap stays: %s", error, extra={"action": "bus.consumer_waits", "consumer": self.name})
        finally:
            self._filling = None

    # -- the end --------------------------------------------------------------------------------------------------

    def _lose(self) -> None:
        """The server says that it is no more."""
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
            f"consumer {self.name!r} is no more: it was deleted, or another took its place; make a new one",
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
        self._life = _Phase.CLOSED  # no delivery from here on, and only one caller gets here
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
