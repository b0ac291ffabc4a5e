"""Requests that wait for an answer, and the channel to one worker by which they leave.

A request ends exactly once: by its answer, or by a TryOutcome. Whoever asked may be gone by then (cancelled, timed
out): it is settled nevertheless, so that the slots are counted right on every path.

On the channel all frames of one turn of the event loop share a message, up to a point. There is no timer: a lone frame
waits for nothing. And many do not wait for each other: as soon as a message holds half of all that is under way, it
leaves, so that its worker is busy with one half while we are with the other. Were all of them in one message, each side
would wait for the other all the time. (What is spread over several workers is in several messages anyhow, and one of
them rarely holds half of it.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from ...bus.port.bus import Bus, NotPermitted
from ...schemas.errors.base import ClosedError, Disconnected, GanglineError, PayloadTooLarge
from ...schemas.wire.codec import pack
from ...schemas.wire.frames import REQUEST_ENVELOPE_BYTES, AnswerOp, Frame, RequestOp, encode_frame, join_request
from ..routing.outcome import TryOutcome
from ..routing.worker_table import WorkerEntry

if TYPE_CHECKING:
    from ..routing.request import RoutedRequest

_HELD: Final = int(AnswerOp.HELD)
_GRANTED: Final = int(AnswerOp.GRANTED)
Outcome = Frame | TryOutcome
"""An answer frame, or why there is none."""


class Settlement(Protocol):
    """Where tickets are settled: a pool, or the slots of a lease."""

    def settle(self, routed_request: RoutedRequest, /) -> None:
        """The ticket no longer counts on its worker. Idempotent."""

    def pump(self) -> None:
        """Serve whoever waits, as far as there is room."""


class InFlightRequest:
    """One frame in flight."""

    # No slots: what most of them never set stands in the class, which makes one of them cheaper to make.

    checked = False
    """Whether a worker may be asked what became of it (CHECK)."""
    durable = False
    """Whether it ends as lost only when its worker is lost for certain, however long that takes."""
    reserves = False
    """Whether slots are held when it is granted, to be given back with RELEASE."""
    outbound: OutboundMessage | None = None
    """The message that carries it."""
    check_at = 0.0
    """Loop time at which its worker is asked; 0: nobody has looked at it so far."""
    check_every_s = 0.0

    def __init__(self, id: int, worker: WorkerEntry) -> None:
        self.id = id
        self.worker = worker

    @property
    def message(self) -> int:
        """Number of the message that carried it, on its channel; 0 while it was not sent."""
        return 0 if self.outbound is None else self.outbound.number

    @property
    def epoch(self) -> int:
        """The worker's epoch that this message named."""
        return 0 if self.outbound is None else self.outbound.epoch

    def deliver(self, frame: Frame) -> bool:
        """An answer came; True when that was the last."""
        raise NotImplementedError

    def runs(self) -> None:
        """Its worker was asked, and says that it runs."""

    def lose(self, fate: TryOutcome) -> None:
        """There will be no answer."""
        raise NotImplementedError

    def fail(self, error: GanglineError) -> None:
        """The router closes: whoever waits gets the error."""
        self.lose(TryOutcome.GONE)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id} at {self.worker.id}, message={self.message})"


class AwaitedRequest(InFlightRequest):
    """A flight whose single answer somebody awaits, and which counts on its worker until it has ended."""

    books: Settlement
    """Where it counts."""
    future: asyncio.Future[Outcome]

    def __init__(
        self,
        id: int,
        worker: WorkerEntry,
        loop: asyncio.AbstractEventLoop,
        books: Settlement,
        routed_request: RoutedRequest,
    ) -> None:
        self.id = id
        self.worker = worker
        self.future = loop.create_future()
        self.books = books
        self.routed_request = routed_request

    def settle(self) -> None:
        """It no longer counts on its worker. At its end, or by whoever takes it back before it was sent."""
        self.books.settle(self.routed_request)

    def deliver(self, frame: Frame) -> bool:
        self._end(frame)
        return True

    def lose(self, fate: TryOutcome) -> None:
        self._end(fate)

    def fail(self, error: GanglineError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
        self._end(TryOutcome.GONE)

    def _end(self, outcome: Outcome) -> None:
        self.settle()
        if not self.future.done():
            self.future.set_result(outcome)


class TaskRequest(AwaitedRequest):
    """A TASK: its end settles the ticket, whether or not the caller still waits."""

    checked = True
    on_held: Callable[[], None] | None = None
    """Told that the task has its slots and waits for BEGIN, where it is to be held."""

    def deliver(self, frame: Frame) -> bool:
        if frame[0] == _HELD:
            if self.on_held is not None:
                self.on_held()
            return False
        self._end(frame)
        return True


class ReservationRequest(AwaitedRequest):
    """A RESERVE. Granted, it stays charged for as long as the slot is held."""

    reserves = True

    def deliver(self, frame: Frame) -> bool:
        if frame[0] != _GRANTED:
            self._end(frame)
        elif not self.future.done():
            self.future.set_result(frame)
        return True


_MIN_HALF: Final = 16
"""Fewer frames than that are not worth a message of their own."""


class ChannelOwner(Protocol):
    """What a channel needs of the exchange it belongs to."""

    bus: Bus
    loop: asyncio.AbstractEventLoop
    sender: str
    max_kept: int

    @property
    def in_flight(self) -> int:
        """Frames under way to all workers whose answers are missing."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run it at the end of this turn."""

    def lose(self, flight: InFlightRequest, fate: TryOutcome) -> None:
        """The flight ends without an answer."""

    def refuse(self, channel: WorkerChannel, error: NotPermitted) -> None:
        """The server takes nothing for that worker, nor took what was sent before: its flights end with the error."""


class OutboundMessage:
    """One message, while it is filled and as long as answers to it are missing."""

    __slots__ = ("begun_at", "channel", "epoch", "flights", "frames", "number", "room", "size")

    def __init__(self, channel: WorkerChannel) -> None:
        self.channel = channel
        self.frames: list[bytes] = []
        self.flights: list[InFlightRequest | None] = []
        """Whose frame each is; None: nobody waits for its answer. Both lists are empty again once it was sent."""
        self.size = 0
        """Bytes of all frames."""
        self.room = 0
        """Most bytes that its frames may have together; 0 before the first."""
        self.begun_at = 0.0
        """Loop time at which its first frame was put in: it is sent in the same turn."""
        self.number = 0
        """How manieth message of its channel it is; 0: it was not sent, or not yet."""
        self.epoch = 0
        """The worker's epoch that it names."""

    def __repr__(self) -> str:
        return f"OutboundMessage(#{self.number} to {self.channel.worker.id}, pending={len(self.frames)})"


class WorkerChannel:
    """The way to one worker process."""

    __slots__ = (
        "_kept",
        "_message",
        "_scheduled",
        "_sink",
        "checks",
        "doubted_to",
        "messages",
        "number",
        "reply",
        "subject",
        "unheard",
        "worker",
    )

    def __init__(self, sink: ChannelOwner, worker: WorkerEntry, number: int, subject: str, reply: str) -> None:
        self._sink = sink
        self.worker = worker
        self.number = number
        self.subject = subject
        self.reply = reply
        self._message = OutboundMessage(self)
        """What leaves next."""
        self._scheduled = False
        self._kept: deque[bytes] = deque()
        self.messages = 0
        """Messages published so far."""
        self.unheard = 0
        """Answers "nobody listens" since the last doubt was settled: so many of the last messages were not received."""
        self.doubted_to = 0
        """Number of the last message that the doubt under way covers; 0: there is none."""
        self.checks = 0

    @property
    def largest_frame(self) -> int:
        """Most bytes that one frame may have, alone in its message."""
        return self._sink.bus.max_payload - REQUEST_ENVELOPE_BYTES

    def send(self, frame: Frame, flight: InFlightRequest | None = None) -> None:
        """Send with the others of this turn. Without a flight (RELEASE, CANCEL, CREDIT) it is kept while disconnected.

        Raises:
            InvalidRequest: arguments that cannot be serialized; nothing was sent.
            PayloadTooLarge: likewise.
        """
        packed = pack(frame)
        outbound = self._message
        size = outbound.size + len(packed)
        if size > outbound.room:
            outbound = self._parcel_for(len(packed))
            size = outbound.size + len(packed)
        outbound.size = size
        if flight is not None:
            flight.outbound = outbound
        outbound.flights.append(flight)
        outbound.frames.append(packed)
        pending = len(outbound.frames)
        if pending >= _MIN_HALF and 2 * pending >= self._sink.in_flight:
            self.flush()
            self._sink.bus.push()
        elif not self._scheduled:
            self._scheduled = True
            self._sink.call_soon(self.flush)

    def send_now(self, frame: Frame, flight: InFlightRequest) -> None:
        """Send at once, since nothing else is to be sent in this turn; as `send`."""
        scheduled, self._scheduled = self._scheduled, True
        try:
            self.send(frame, flight)
        except BaseException:
            self._scheduled = scheduled
            raise
        self.flush()

    def unsend(self, flight: InFlightRequest) -> bool:
        """Take a frame back; True if it was still here, so that nothing was sent."""
        outbound = self._message
        if flight.outbound is not outbound:
            return False
        index = outbound.flights.index(flight)
        outbound.size -= len(outbound.frames[index])
        del outbound.flights[index], outbound.frames[index]
        return True

    def flush(self) -> None:
        """Publish what is pending."""
        self._scheduled = False
        outbound = self._message
        if outbound.frames:
            self._message = OutboundMessage(self)
            self._publish(outbound)
        else:
            outbound.room = 0  # all was taken back: it begins anew

    def resume(self) -> None:
        """The connection is back: send what was kept. Whatever was doubted is asked for anew."""
        self.unheard = self.doubted_to = 0
        if self._kept:
            kept, self._kept = self._kept, deque()
            for frame in kept:
                outbound = self._parcel_for(len(frame))
                outbound.size += len(frame)
                outbound.frames.append(frame)
                outbound.flights.append(None)
            self.flush()

    def doubt(self, check: InFlightRequest, task_ids: list[int]) -> None:
        """Ask, in a message of its own, what became of tasks. Its answer (or that there is nobody) says what became of
        all messages before it, since the server keeps the order.

        Raises:
            Disconnected: no connection; the doubt is settled after the reconnection.
        """
        self.flush()
        self.checks += 1
        self.doubted_to = self.messages
        check.outbound = OutboundMessage(self)
        check.outbound.epoch = self.worker.epoch
        frame = encode_frame((RequestOp.CHECK, check.id, task_ids))
        data = join_request(self.worker.epoch, self._sink.sender, [frame])
        self._sink.bus.publish(self.subject, data, reply=f"{self.reply}.{self.checks}")

    def _parcel_for(self, size: int) -> OutboundMessage:
        """The message that takes a frame of so many bytes: the one that is filled now, unless that would be too large.

        Raises:
            PayloadTooLarge: no message takes it.
        """
        room = self.largest_frame
        if size > room:
            raise PayloadTooLarge(
                f"the arguments make a message of {size} bytes, the server takes {room}: send a reference to the data "
                "instead, or raise the server's max_payload",
                details={"size": size, "limit": room},
            )
        if self._message.size + size > room:
            self.flush()
        outbound = self._message
        if not outbound.room:
            outbound.begun_at = self._sink.loop.time()
        outbound.room = room
        return outbound

    def _publish(self, outbound: OutboundMessage) -> None:
        sink, epoch = self._sink, self.worker.epoch
        frames, flights = outbound.frames, outbound.flights
        outbound.frames, outbound.flights = [], []  # it outlives its sending, and they need not
        try:
            sink.bus.publish(self.subject, join_request(epoch, sink.sender, frames), reply=self.reply)
        except NotPermitted as error:
            sink.refuse(self, error)
            return
        except (Disconnected, ClosedError):
            for frame, flight in zip(frames, flights, strict=True):
                if flight is not None:
                    sink.lose(flight, TryOutcome.UNSENT)
                elif len(self._kept) < sink.max_kept:
                    self._kept.append(frame)
            return
        self.messages += 1
        outbound.number, outbound.epoch = self.messages, epoch

    def __repr__(self) -> str:
        pending = len(self._message.frames)
        return f"WorkerChannel(#{self.number} to {self.worker.id}, messages={self.messages}, pending={pending})"
