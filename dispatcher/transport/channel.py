"""Requests in flight, and the channel to one worker that sends them.

A request ends exactly once: by its answer, or by a TryOutcome. Even if its caller is gone by then (cancelled, timed
out), it is settled, so that slots are counted correctly on every path.

On the channel, all frames of one turn of the event loop share a message, up to a limit. There is no timer: a lone frame
does not wait. A message is also sent as soon as it has half of all requests in flight, so that the worker processes one
half while this process handles the other. In a single message, each side would always wait for the other. (Frames for
several workers are in several messages anyway, and one of these rarely has half of them.) Frames without an answer,
such as ACK and RELEASE, do not count: nobody waits for them, and a message costs both sides much more than a frame.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from ...bus.port.bus import Bus, NotPermitted
from ...schemas.errors.base import ClosedError, Disconnected, GanglineError, PayloadTooLarge
from ...schemas.wire import codec
from ...schemas.wire.codec import ATOMS, pack, pack_atoms
from ...schemas.wire.frames import REQUEST_ENVELOPE_BYTES, AnswerOp, Frame, RequestOp, encode_frame, join_request
from ...schemas.wire.plain_values import pack_task
from ..routing.outcome import TryOutcome
from ..routing.worker_table import WorkerEntry

if TYPE_CHECKING:
    from ..routing.pool_core import RoutedRequest

_HELD: Final = int(AnswerOp.HELD)
_GRANTED: Final = int(AnswerOp.GRANTED)
_TASK: Final = int(RequestOp.TASK)
Outcome = Frame | TryOutcome
"""An answer frame, or why there is none."""


class OutcomeSink(Protocol):
    """Takes the outcome of a request as a future does, but at once, in the turn in which it is known."""

    def done(self) -> bool:
        """Whether it has an outcome or an error."""

    def get_loop(self) -> asyncio.AbstractEventLoop: ...

    def set_result(self, outcome: Outcome, /) -> None:
        """Must not raise."""

    def set_exception(self, error: Exception, /) -> None:
        """There will be no outcome, perhaps before the request has been sent. Must not raise."""


class Settlement(Protocol):
    """What settles requests: a pool, or the slots of a lease."""

    def settle(self, routed_request: RoutedRequest, /) -> None:
        """Stop counting the request on its worker. Idempotent."""

    def pump(self) -> None:
        """Serve waiting requests while there is room."""


class InFlightRequest:
    """One frame in flight."""

    # No __slots__: most flights never set these, and class attributes make flights cheaper to create.

    checked = False
    """Whether a CHECK may be sent for it."""
    durable = False
    """Whether it ends as lost only when its worker is certainly lost, however long that takes."""
    reserves = False
    """Whether a grant holds slots that must be given back with RELEASE."""
    outbound: OutboundMessage | None = None
    """The message that carries it."""
    check_at = 0.0
    """Loop time of the next CHECK; 0: not scheduled yet."""
    check_every_s = 0.0

    def __init__(self, id: int, worker: WorkerEntry) -> None:
        self.id = id
        self.worker = worker

    @property
    def message(self) -> int:
        """Number of the message that carried it, on its channel; 0: not sent."""
        return 0 if self.outbound is None else self.outbound.number

    @property
    def epoch(self) -> int:
        """The worker's epoch in that message."""
        return 0 if self.outbound is None else self.outbound.epoch

    def deliver(self, frame: Frame) -> bool:
        """An answer arrived; True if it was the last."""
        raise NotImplementedError

    def runs(self) -> None:
        """The worker reported, after a CHECK, that it is running."""

    def lose(self, fate: TryOutcome) -> None:
        """There will be no answer."""
        raise NotImplementedError

    def fail(self, error: GanglineError) -> None:
        """The router closes: the caller gets the error."""
        self.lose(TryOutcome.GONE)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id} at {self.worker.id}, message={self.message})"


class AwaitedRequest(InFlightRequest):
    """A flight with a single, awaited answer; it counts on its worker until it has ended."""

    books: Settlement
    """What accounts for it."""
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
        """Stop counting it on its worker. Called at its end, or when it is taken back before it was sent."""
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
    """A TASK: its end settles the request, whether or not the caller still waits."""

    checked = True
    on_held: Callable[[], None] | None = None
    """Called when the task holds its slots and waits for BEGIN."""

    def deliver(self, frame: Frame) -> bool:
        if frame[0] == _HELD:
            if self.on_held is not None:
                self.on_held()
            return False
        self._end(frame)
        return True


class ReservationRequest(AwaitedRequest):
    """A RESERVE. If granted, it stays charged while the slot is held."""

    reserves = True

    def deliver(self, frame: Frame) -> bool:
        if frame[0] != _GRANTED:
            self._end(frame)
        elif not self.future.done():
            self.future.set_result(frame)
        return True


_LEAST_SPARE: Final = 1024
"""A message in which less than this is left for lists and maps is full."""
_MIN_HALF: Final = 16
"""Fewer frames are not worth a separate message."""


def _pack_task(frame: Frame) -> bytes:
    """Encode a TASK frame so that its worker can read it.

    Raises:
        InvalidArguments: it cannot; names the argument.
    """
    # For as few values as there usually are, loops are faster than sets.
    for value in frame[3] or ():
        if type(value) not in ATOMS:
            return pack_task(frame)
    for value in frame[4].values() if frame[4] else ():
        if type(value) not in ATOMS:
            return pack_task(frame)
    return pack_atoms(frame) or pack_task(frame)


class ChannelOwner(Protocol):
    """The interface of the exchange that channels use."""

    bus: Bus
    loop: asyncio.AbstractEventLoop
    sender: str
    max_kept: int
    flights: dict[int, InFlightRequest]
    """Those to all workers whose frames are not answered yet, by id."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run it at the end of this turn of the loop."""

    def lose(self, flight: InFlightRequest, fate: TryOutcome) -> None:
        """End the flight without an answer."""

    def refuse(self, channel: WorkerChannel, error: NotPermitted) -> None:
        """The server permits no messages to that worker, and may have dropped those before: its flights end with the
        error, except durable ones that were sent."""


class OutboundMessage:
    """One message, while it is filled and until its flights are answered."""

    __slots__ = ("begun_at", "channel", "epoch", "flat", "flights", "frames", "number", "requests", "room", "size")

    def __init__(self, channel: WorkerChannel) -> None:
        self.channel = channel
        self.frames: list[bytes] = []
        self.flights: list[InFlightRequest | None] = []
        """The flight of each frame; None: no answer is expected. Both lists are emptied when it is sent."""
        self.requests = 0
        """Number of frames that expect an answer."""
        self.size = 0
        """Bytes of all frames."""
        self.flat = 0
        """How many of these bytes begin no list or map, as far as that was counted."""
        self.room = 0
        """Another frame may be added up to this total size in bytes; 0 before the first."""
        self.begun_at = 0.0
        """Loop time when its first frame was added: it is sent in the same turn."""
        self.number = 0
        """Its number on its channel; 0: not sent (yet)."""
        self.epoch = 0
        """The worker's epoch in the message."""

    def __repr__(self) -> str:
        return f"OutboundMessage(#{self.number} to {self.channel.worker.id}, pending={len(self.frames)})"


class WorkerChannel:
    """Sends messages to one worker process."""

    __slots__ = (
        "_kept",
        "_message",
        "_scheduled",
        "_sink",
        "checks",
        "doubted_to",
        "gone",
        "lost",
        "messages",
        "number",
        "open_checks",
        "reply",
        "settled_checks",
        "subject",
        "token",
        "unheard",
        "worker",
    )

    def __init__(
        self, sink: ChannelOwner, worker: WorkerEntry, number: int, token: str, subject: str, reply: str
    ) -> None:
        """`token` is in the `reply` subject: only this worker knows it, so no other one can answer in its place."""
        self._sink = sink
        self.worker = worker
        self.number = number
        self.token = token
        self.subject = subject
        self.reply = reply
        self._message = OutboundMessage(self)
        """The message to send next."""
        self._scheduled = False
        self._kept: deque[bytes] = deque()
        self.messages = 0
        """Messages published so far."""
        self.unheard = 0
        """"No responders" answers since the last doubt was settled: this many of the last messages were not
        received."""
        self.doubted_to = 0
        """Number of the last message covered by the current doubt; 0: there is none."""
        self.checks = 0
        self.open_checks = 0
        """How many CHECKs of the current doubt nobody has reported as not received."""
        self.settled_checks = 0
        """Number of the last CHECK of earlier doubts."""
        self.lost: list[InFlightRequest] = []
        """Flights that end as lost when the doubt is settled, unless it shows that they were not received."""
        self.gone = False
        """The worker is gone for good: nothing more is sent."""

    @property
    def largest_frame(self) -> int:
        """Maximum size of one frame, alone in its message, in bytes."""
        return self._sink.bus.max_payload - REQUEST_ENVELOPE_BYTES

    def send(self, frame: Frame, flight: InFlightRequest | None = None) -> None:
        """Send a frame with the others of this turn. Without a flight (RELEASE, CANCEL, CREDIT) it is kept while
        disconnected.

        Raises:
            InvalidArguments: an argument cannot be sent so that the worker reads it; nothing was sent.
            PayloadTooLarge: the frame is too large; nothing was sent.
        """
        packed = _pack_task(frame) if frame[0] == _TASK else pack(frame)
        outbound = self._message
        size = outbound.size + len(packed)
        if size > outbound.room:
            outbound = self._parcel_for(packed, frame)
            size = outbound.size + len(packed)
        outbound.size = size
        outbound.flights.append(flight)
        outbound.frames.append(packed)
        if flight is not None:
            flight.outbound = outbound
            outbound.requests = pending = outbound.requests + 1
            if pending >= _MIN_HALF and 2 * pending >= len(self._sink.flights):
                self.flush()
                self._sink.bus.push()
                return
        if not self._scheduled:
            self._scheduled = True
            self._sink.call_soon(self.flush)

    def send_now(self, frame: Frame, flight: InFlightRequest) -> None:
        """Send at once, because nothing else will be sent in this turn; otherwise like `send`."""
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
        outbound.flat = outbound.room = 0
        outbound.requests -= 1
        del outbound.flights[index], outbound.frames[index]
        return True

    def flush(self) -> None:
        """Publish the pending message."""
        self._scheduled = False
        outbound = self._message
        if outbound.frames:
            self._message = OutboundMessage(self)
            self._publish(outbound)
        else:
            outbound.room = 0  # all frames were taken back

    def resume(self) -> None:
        """The connection is back: send kept frames. Doubts are dropped, because the exchange checks all tasks again."""
        self.settle()
        if self._kept:
            kept, self._kept = self._kept, deque()
            for frame in kept:
                outbound = self._parcel_for(frame, ())
                outbound.size += len(frame)
                outbound.frames.append(frame)
                outbound.flights.append(None)
            self.flush()

    def settle(self) -> None:
        """The current doubt is over."""
        self.unheard = self.doubted_to = self.open_checks = 0
        self.settled_checks = self.checks

    def doubt(self, check: InFlightRequest, task_ids: list[int]) -> None:
        """Send a CHECK for these tasks in a separate message. Its answer (or "no responders") settles the fate of all
        messages before it, because the server keeps their order.

        Raises:
            Disconnected: no connection; the doubt is settled after the reconnect.
        """
        self.flush()
        check.outbound = OutboundMessage(self)
        check.outbound.epoch = self.worker.epoch
        frame = encode_frame((RequestOp.CHECK, check.id, task_ids))
        data = join_request(self.worker.epoch, self._sink.sender, [frame])
        self._sink.bus.publish(self.subject, data, reply=f"{self.reply}.{self.checks + 1}")
        self.checks += 1
        self.open_checks += 1
        self.doubted_to = self.messages

    def _parcel_for(self, frame: bytes, values: Frame) -> OutboundMessage:
        """The message for an encoded frame: the current one, unless it would become too large, or might have more lists
        and maps than the worker takes. A message has no more of them than bytes; frames beyond that are counted.

        Raises:
            PayloadTooLarge: the frame is too large for any message, or has too many lists and maps.
        """
        room, size = self.largest_frame, len(frame)
        if size > room:
            raise PayloadTooLarge(
                f"the arguments make a message of {size} bytes, the server takes {room}: send a reference to the data "
                "instead, or raise the server's max_payload",
                details={"size": size, "limit": room},
            )
        budget, outbound, flat = codec.most_containers, self._message, 0
        total = outbound.size + size
        spare = budget - total + outbound.flat
        if spare < _LEAST_SPARE:
            flat = size - codec.count_containers(values, frame)
            spare += flat
        if outbound.frames and (total > room or spare < _LEAST_SPARE):
            self.flush()
            outbound, total, spare = self._message, size, budget - size + flat
        if not outbound.room:
            outbound.begun_at = self._sink.loop.time()
        outbound.flat += flat
        outbound.room = min(room, total + max(0, spare))  # so many bytes more have no more lists and maps than that
        return outbound

    def _publish(self, outbound: OutboundMessage) -> None:
        sink, epoch = self._sink, self.worker.epoch
        frames, flights = outbound.frames, outbound.flights
        outbound.frames, outbound.flights = [], []  # the object outlives its sending; the frames need not
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
