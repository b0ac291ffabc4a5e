"""Frames on their way to one worker: all of one turn of the event loop share a message, up to a point.

There is no timer: a lone frame waits for nothing. And many do not wait for each other: as soon as a message holds half
of what is under way to its worker, it leaves, so that the worker is busy with one half while we are with the other.
Were all of them in one message, each side would wait for the other all the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from ..bus.port import Bus, NotPermitted
from ..schemas.codec import pack
from ..schemas.errors import ClosedError, Disconnected, PayloadTooLarge
from ..schemas.frames import REQUEST_ENVELOPE_BYTES, Frame, Request, encode_frame, join_request
from .retry import Fate
from .view import Worker

if TYPE_CHECKING:
    from .inflight import Flight


_MIN_HALF: Final = 16
"""Fewer frames than that are not worth a message of their own."""


class Sink(Protocol):
    """What a channel needs of the exchange it belongs to."""

    bus: Bus
    sender: str
    max_kept: int

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run it at the end of this turn."""

    def lose(self, flight: Flight, fate: Fate) -> None:
        """The flight ends without an answer."""

    def refuse(self, channel: Channel, error: NotPermitted) -> None:
        """The server takes nothing for that worker, nor took what was sent before: its flights end with the error."""


class Channel:
    """The way to one worker process."""

    __slots__ = (
        "_flights",
        "_frames",
        "_kept",
        "_room",
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

    def __init__(self, sink: Sink, worker: Worker, number: int, subject: str, reply: str) -> None:
        self._sink = sink
        self.worker = worker
        self.number = number
        self.subject = subject
        self.reply = reply
        self._frames: list[bytes] = []
        self._flights: list[Flight | None] = []
        self._scheduled = False
        self._room = 0
        """`largest_frame` of this turn."""
        self._kept: deque[bytes] = deque()
        self.messages = 0
        """Messages published so far; each flight knows the number of its own."""
        self.unheard = 0
        """Answers "nobody listens" since the last doubt was settled: so many of the last messages were not received."""
        self.doubted_to = 0
        """Number of the last message that the doubt under way covers; 0: there is none."""
        self.checks = 0

    @property
    def largest_frame(self) -> int:
        """Most bytes that one frame may have, alone in its message."""
        return self._sink.bus.max_payload - REQUEST_ENVELOPE_BYTES

    def send(self, frame: Frame, flight: Flight | None = None) -> None:
        """Send with the others of this turn. Without a flight (RELEASE, CANCEL, CREDIT) it is kept while disconnected.

        Raises:
            InvalidRequest: arguments that have no form on the wire; nothing was sent.
            PayloadTooLarge: likewise.
        """
        packed = pack(frame)
        if not self._scheduled:
            self._room = self.largest_frame
        if len(packed) > self._room:
            raise PayloadTooLarge(
                f"the arguments make a message of {len(packed)} bytes, the server takes {self.largest_frame}: send a "
                "reference to the data instead, or raise the server's max_payload",
                details={"size": len(packed), "limit": self.largest_frame},
            )
        if flight is not None:
            flight.channel = self
        self._frames.append(packed)
        self._flights.append(flight)
        pending = len(self._frames)
        if pending >= _MIN_HALF and 2 * pending >= self.worker.own:
            self.flush()
            self._sink.bus.push()
        elif not self._scheduled:
            self._scheduled = True
            self._sink.call_soon(self.flush)

    def send_now(self, frame: Frame, flight: Flight) -> None:
        """Send at once, since nothing else is to be sent in this turn; as `send`."""
        scheduled, self._scheduled = self._scheduled, True
        try:
            self._room = self.largest_frame
            self.send(frame, flight)
        except BaseException:
            self._scheduled = scheduled
            raise
        self.flush()

    def unsend(self, flight: Flight) -> bool:
        """Take a frame back; True if it was still here, so that nothing was sent."""
        if flight.message or flight not in self._flights:
            return False
        index = self._flights.index(flight)
        del self._flights[index], self._frames[index]
        return True

    def flush(self) -> None:
        """Publish what is pending."""
        self._scheduled = False
        frames, flights = self._frames, self._flights
        if not frames:
            return
        self._frames, self._flights = [], []
        room = self.largest_frame
        start, size = 0, 0
        for index, frame in enumerate(frames):
            if size + len(frame) > room and index > start:
                self._publish(frames[start:index], flights[start:index])
                start, size = index, 0
            size += len(frame)
        self._publish(frames[start:], flights[start:])

    def resume(self) -> None:
        """The connection is back: send what was kept. Whatever was doubted is asked for anew."""
        self.unheard = self.doubted_to = 0
        if self._kept:
            kept, self._kept = self._kept, deque()
            for frame in kept:
                self._frames.append(frame)
                self._flights.append(None)
            self.flush()

    def doubt(self, id: int, task_ids: list[int]) -> None:
        """Ask, in a message of its own, what became of tasks. Its answer (or that there is nobody) says what became of
        all messages before it, since the server keeps the order.

        Raises:
            Disconnected: no connection; the doubt is settled after the reconnection.
        """
        self.flush()
        self.checks += 1
        self.doubted_to = self.messages
        frame = encode_frame((Request.CHECK, id, task_ids))
        data = join_request(self.worker.epoch, self._sink.sender, [frame])
        self._sink.bus.publish(self.subject, data, reply=f"{self.reply}.{self.checks}")

    def _publish(self, frames: list[bytes], flights: list[Flight | None]) -> None:
        sink = self._sink
        try:
            sink.bus.publish(self.subject, join_request(self.worker.epoch, sink.sender, frames), reply=self.reply)
        except NotPermitted as error:
            sink.refuse(self, error)
            return
        except (Disconnected, ClosedError):
            for frame, flight in zip(frames, flights, strict=True):
                if flight is not None:
                    sink.lose(flight, Fate.UNSENT)
                elif len(self._kept) < sink.max_kept:
                    self._kept.append(frame)
            return
        self.messages += 1
        for flight in flights:
            if flight is not None:
                flight.message = self.messages
                flight.epoch = self.worker.epoch

    def __repr__(self) -> str:
        return f"Channel(#{self.number} to {self.worker.id}, messages={self.messages}, pending={len(self._frames)})"
