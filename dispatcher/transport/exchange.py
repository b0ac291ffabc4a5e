"""Sends frames and receives answers: one subscription for all workers, one table of flights."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Iterable
from threading import get_ident
from typing import Any, Final, Protocol

from ...bus.port.bus import Bus, ConnectionEvent, Message, NotPermitted
from ...bus.port.subjects import Subscription
from ...bus.rpc.requester import error_in
from ...runtime.clock import Environment
from ...runtime.tasks import LoopBound, TaskSet
from ...schemas.errors.base import (
    ClosedError,
    Disconnected,
    GanglineError,
    InvalidResult,
    MalformedMessage,
    PayloadTooLarge,
)
from ...schemas.limits import MAX_CHECKED
from ...schemas.names import Names, Operation
from ...schemas.wire.frames import (
    AnswerEnvelope,
    AnswerOp,
    Frame,
    Load,
    RequestOp,
    TaskState,
    UnreadableFrame,
    decode_answer,
    encode_request,
    salvage_answer,
)
from ...telemetry.logs import logger_for
from ...telemetry.metrics.instruments import metrics_enabled
from ..routing.outcome import TryOutcome
from ..routing.settings import RouterSettings
from ..routing.worker_table import WorkerEntry
from .channel import InFlightRequest, WorkerChannel

_log = logger_for("dispatcher")

_PREFIX_CHARS: Final = 8
_TOKEN_BYTES: Final = 8
"""Length of a channel's token: its secret has 84 bits."""
GAP_S: Final = 2.0
"""Silence of a worker, in seconds, after which this process may itself have been cut off. Other dispatchers take over
the queues of one that was silent for longer."""
_CHECK_MAX_S = 16.0
_CHECK_BATCH = 1000
_GONE: Final = object()
"""Link of a worker that is gone for good."""


def _nothing() -> None:
    """Does nothing."""


class AnswerListener(Protocol):
    """Receives the load and state in answers: the worker's pool."""

    def answered(self, worker: WorkerEntry, load: Load, epoch: int) -> None:
        """An answer arrived from the worker; its flights have been settled already."""

    def invited(self, worker: WorkerEntry) -> None:
        """The worker, which had rejected requests, has free slots; its load follows."""

    def unreachable(self, worker: WorkerEntry) -> None:
        """The server reported no responders."""


class StatusProbe(InFlightRequest):
    """A CHECK: reports the worker's state of tasks to the exchange."""

    __slots__ = ("exchange", "last", "refusal", "tasks")

    def __init__(
        self,
        id: int,
        worker: WorkerEntry,
        exchange: RequestExchange,
        tasks: list[int],
        refusal: GanglineError | None = None,
    ) -> None:
        """`refusal`: the worker has refused a message before; what it does not know was in there."""
        super().__init__(id, worker)
        self.exchange = exchange
        self.tasks = tasks
        self.refusal = refusal
        self.last = 0
        """Number of the last message before it, on its channel."""

    def deliver(self, frame: Frame) -> bool:
        if frame[0] == AnswerOp.CHECKED:
            self.exchange.checked(self, frame[2])
        return True

    def lose(self, fate: TryOutcome) -> None:
        pass


class RequestExchange(LoopBound):
    """All communication of one router with workers."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        ambient: Environment,
        settings: RouterSettings,
        listener: Callable[[str], AnswerListener | None],
    ) -> None:
        """`listener` finds the pool of a name."""
        self.bus = bus
        self.sender = ambient.token()
        self.max_kept = settings.max_releases_kept
        self._names = names
        self._settings = settings
        self._listener = listener
        token = ambient.token()
        self._prefix = f"{bus.inbox}.{token[:_PREFIX_CHARS]}"
        self._secret = token[_PREFIX_CHARS:].encode()
        """Makes the tokens of channels; each worker sees the prefix, and its own token only."""
        self.flights: dict[int, InFlightRequest] = {}
        self._unbelieved: dict[int, tuple[int, Frame]] = {}
        """By flight: rejections in epochs that their workers have not confirmed yet."""
        self._channels: dict[str, WorkerChannel] = {}
        """By token."""
        self.numbers = itertools.count(1)
        """Ids of frames, ascending. Also used as the order of arrival."""
        self.new_id: Callable[[], int] = self.numbers.__next__
        self._channel_numbers = itertools.count(1)
        """The loop it was started on."""
        self.new_future: Callable[[], asyncio.Future[Any]]
        """Creates futures of that loop."""
        self.on_gap: Callable[[], None] = _nothing
        """Called when a worker was silent for so long that this process may have been cut off; before the worker counts
        as heard from again."""
        self.measured = False
        """Whether durations of requests are recorded, as of the last message."""
        self._check_after_s = settings.check_after_s
        self._settling = TaskSet("doubts", _log)
        """One for each channel whose last messages are in doubt."""
        self._subscription: Subscription | None = None
        self._unlisten: Callable[[], None] | None = None
        self._malformed = 0
        self._lone = False
        """The only flight has just ended, and its caller is about to continue."""
        self.reconnected_at = float("-inf")
        """Loop time of the last reconnect. Workers may reconnect a moment later."""

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start listening for answers."""
        self.bind_loop()
        self.new_future = self.loop.create_future
        self._unlisten = self.bus.on_connection(self._on_connection)
        self._subscription = await self.bus.subscribe(f"{self._prefix}.>", self._on_message)

    async def stop(self) -> None:
        """Stop listening; flights end with ClosedError, and workers are told to cancel them. Safe before `start`, and
        twice."""
        for flight in list(self.flights.values()):
            sent = not self.recall(flight)
            if sent and flight.checked:
                self.post(flight.worker, (RequestOp.CANCEL, flight.id))
            elif sent and flight.reserves:
                self.post(flight.worker, (RequestOp.RELEASE, flight.id, None))
            flight.fail(ClosedError("this client was closed", may_have_started=sent))
        self.flights.clear()
        await self._settling.stop()
        for channel in self._channels.values():
            channel.flush()
        if self._unlisten is not None:
            self._unlisten()
        if self._subscription is not None:
            subscription, self._subscription = self._subscription, None
            await subscription.unsubscribe()

    def call_soon(self, callback: Callable[[], None]) -> None:
        """See channel.ChannelOwner."""
        self.bus.at_turn_end(callback)

    def statistics(self) -> dict[str, int]:
        """Flights without an answer, channels, unreadable answers."""
        return {"in_flight": len(self.flights), "channels": len(self._channels), "malformed": self._malformed}

    def __repr__(self) -> str:
        return f"RequestExchange({', '.join(f'{name}={number}' for name, number in self.statistics().items())})"

    # -- sending --------------------------------------------------------------------------------------------------

    def launch(self, flight: InFlightRequest, frame: Frame) -> None:
        """Send a frame and wait for its answer. If the worker is gone, nothing is sent and the flight is lost at once.

        Raises:
            InvalidRequest, PayloadTooLarge, ClosedError: nothing was sent.
        """
        # `check_loop`, inlined for speed.
        if get_ident() != self.thread or not self.loop_runs():
            raise self.elsewhere()
        channel = flight.worker.link
        if type(channel) is not WorkerChannel:
            if channel is _GONE:
                flight.lose(TryOutcome.GONE)
                return
            channel = self._channel(flight.worker)
        flights = self.flights
        alone = self._lone and not flights
        # Before sending, because the flight may be lost at once.
        flights[flight.id] = flight
        try:
            if alone:
                self.bus.prompt(lambda: channel.send_now(frame, flight))
            else:
                channel.send(frame, flight)
        except BaseException:
            flights.pop(flight.id, None)
            raise

    def post(self, worker: WorkerEntry, frame: Frame) -> None:
        """Send a frame without an answer. While disconnected it is kept.

        Raises:
            InvalidRequest, ClosedError: this is not the client's event loop, or not its process.
        """
        self.check_loop()
        if worker.link is not _GONE:
            self._channel(worker).send(frame)
            return
        # Believed dead, but it may only have been cut off: send it without a channel, which nothing would close.
        try:
            data = encode_request(worker.epoch, self.sender, [frame])
            self.bus.publish(self._names.worker(worker.id, Operation.FRAMES, worker.channel), data)
        except (Disconnected, NotPermitted, ClosedError):
            pass

    def recall(self, flight: InFlightRequest) -> bool:
        """Take back a frame that was not sent yet; True if that succeeded, so that nothing was sent. The flight has
        ended then, and the caller must settle it."""
        if flight.outbound is not None and flight.outbound.channel.unsend(flight):
            self.flights.pop(flight.id, None)
            return True
        return False

    def is_open(self, flight: InFlightRequest) -> bool:
        """Whether an answer is still expected."""
        return flight.id in self.flights

    def forget(self, flight: InFlightRequest) -> None:
        """Stop waiting for an answer, without settling."""
        self.flights.pop(flight.id, None)

    def lose(self, flight: InFlightRequest, fate: TryOutcome) -> None:
        """End a flight without an answer. No-op if it has ended."""
        if self.flights.pop(flight.id, None) is not None:
            flight.lose(fate)

    def refuse(self, channel: WorkerChannel, error: NotPermitted) -> None:
        """See channel.ChannelOwner."""
        sent = NotPermitted(error.message, details=error.details, may_have_started=True)
        for flight in self._flights_on(channel):
            # The worker runs durable tasks that it got before the right was lost: they are checked once it is back.
            if (not flight.message or not flight.durable) and self.flights.pop(flight.id, None) is not None:
                flight.fail(sent if flight.message else error)

    def lose_worker(self, worker: WorkerEntry) -> None:
        """The worker is gone for good: there will be no more answers."""
        channel = worker.link
        if isinstance(channel, WorkerChannel):
            channel.gone = True
            self._lose_all(channel, [flight for flight in self.flights.values() if flight.worker is worker])
        worker.link = _GONE

    def give_up(self, worker: WorkerEntry) -> None:
        """It is unknown whether the worker is gone: end its flights as lost, except durable ones."""
        channel = worker.link
        if isinstance(channel, WorkerChannel):
            flights = [one for one in self.flights.values() if one.worker is worker and not one.durable]
            self._lose_all(channel, flights)

    def lose_earlier(self, worker: WorkerEntry, epoch: int) -> None:
        """From that epoch on, another process has the worker's id: flights sent to the previous one are lost."""
        channel = worker.link
        if isinstance(channel, WorkerChannel):
            flights = [one for one in self.flights.values() if one.worker is worker and 0 < one.epoch < epoch]
            self._lose_all(channel, flights)

    def _lose_all(self, channel: WorkerChannel, flights: list[InFlightRequest]) -> None:
        """The worker will no longer answer these. Whatever was sent may have started, unless the server says that
        nobody received it. That answer may still be on its way, so wait until the server has reported all of them."""
        for flight in flights:
            if self.recall(flight):
                flight.lose(TryOutcome.GONE)
            else:
                channel.lost.append(flight)
        if channel.lost and self._doubt(channel):
            self._settling.start(self._settle_doubt(channel, channel.checks))
        else:
            self._end_lost(channel)

    async def _settle_doubt(self, channel: WorkerChannel, check: int) -> None:
        # The server answers in order: after a round trip, each "no responders" for what was sent before is here.
        try:
            await self.bus.ping()
        except GanglineError:
            pass
        if channel.checks == check:
            channel.settle()
            self._end_lost(channel)

    def _end_lost(self, channel: WorkerChannel) -> None:
        lost, channel.lost = channel.lost, []
        for flight in lost:
            self.lose(flight, TryOutcome.LOST)
        if channel.gone:
            self._channels.pop(channel.token, None)

    # -- checking tasks -------------------------------------------------------------------------------------------

    def check_due(self, now: float) -> None:
        """Check tasks that have had no answer for long; called a few times a second."""
        due: list[InFlightRequest] = []
        for flight in self.flights.values():
            if flight.checked and flight.check_at <= now:
                if flight.check_at:
                    due.append(flight)
                else:
                    # Its time starts when it is first seen here: nearly all flights are answered before, and need no
                    # times.
                    flight.check_every_s = self._check_after_s
                    flight.check_at = now + self._check_after_s
        self._check(due)

    def check_all(self) -> None:
        """Check all tasks: the connection was lost, and answers with it."""
        self._check(flight for flight in self.flights.values() if flight.checked)

    def checked(self, check: StatusProbe, states: list[int]) -> None:
        """A worker reported the state of tasks."""
        worker = check.worker
        for id, state in zip(check.tasks, states, strict=False):
            flight = self.flights.get(id)
            if flight is None or flight.worker is not worker:
                continue
            if state == TaskState.UNKNOWN:
                if check.epoch == flight.epoch or check.epoch <= worker.confirmed:
                    if check.refusal is None:
                        self.lose(flight, TryOutcome.UNSEEN)
                    else:
                        self._end_with(flight, check.refusal)
                # Otherwise it may be another process of that name that never received it. Discovery will soon find out.
            elif state == TaskState.FORGOTTEN:
                self.lose(flight, TryOutcome.FORGOTTEN)
            elif state == TaskState.RUNNING:
                flight.runs()
        if check.refusal is not None and isinstance(worker.link, WorkerChannel):
            # Reservations are answered in order, too: those that the worker has read have their answers.
            reservations = [one for one in self._flights_on(worker.link) if one.reserves]
            self._refuse(reservations, check.last, check.refusal)

    def _check(self, flights: Iterable[InFlightRequest]) -> None:
        if not self.bus.connected:
            return
        now = self.loop.time()
        by_worker: dict[WorkerEntry, list[int]] = {}
        for flight in flights:
            if flight.message:
                ids = by_worker.setdefault(flight.worker, [])
                if len(ids) == MAX_CHECKED:
                    flight.check_at = now  # checked in the next round
                    continue
                ids.append(flight.id)
            every_s = flight.check_every_s or self._check_after_s
            flight.check_at = now + every_s
            flight.check_every_s = min(_CHECK_MAX_S, 2 * every_s)
        for worker, ids in by_worker.items():
            for start in range(0, len(ids), _CHECK_BATCH):
                check = StatusProbe(self.new_id(), worker, self, ids[start : start + _CHECK_BATCH])
                self.launch(check, (RequestOp.CHECK, check.id, check.tasks))
                self.loop.call_later(self._settings.check_after_s, self.forget, check)

    def _not_alone(self) -> None:
        self._lone = False

    # -- receiving ------------------------------------------------------------------------------------------------

    def _on_message(self, message: Message) -> None:
        token, _, check = message.subject[len(self._prefix) + 1 :].partition(".")
        channel = self._channels.get(token)
        if channel is None:
            return  # from a worker that is gone (its flights have been settled), or from a process that was not asked
        if message.headers is not None:
            if not message.data and message.headers.get("Status") == "503":
                self._on_unheard(channel, check)
                return
            if (refusal := error_in(message)) is not None:
                self._on_refusal(channel, check, refusal)
                return
        unread: list[UnreadableFrame] = []
        try:
            envelope = decode_answer(message.data)
        except MalformedMessage as error:
            self._malformed += 1
            _log.warning(
                "unreadable answer from %s: %s",
                channel.worker.id,
                error,
                extra={"action": "answer.malformed", "worker": str(channel.worker.id)},
            )
            try:
                envelope, unread = salvage_answer(message.data)
            except (MalformedMessage, PayloadTooLarge):
                return
        self._take(channel, envelope)
        for _, id, problem in unread:
            self._unreadable(channel, id, problem)
        if check == str(channel.checks):
            channel.settle()
            self._end_lost(channel)

    def _on_refusal(self, channel: WorkerChannel, check: str, refusal: GanglineError) -> None:
        """The worker could not read a message, or not all of it: it says not which. What it has read of all that was
        sent before is known from its answer to a CHECK, which it processes afterwards."""
        self._malformed += 1
        if not check:
            self._doubt(channel, refusal)
        elif check == str(channel.checks):  # it cannot even read that
            unread = [one for one in self._flights_on(channel) if one.checked or one.reserves]
            self._refuse(unread, channel.doubted_to, refusal)
            channel.settle()
            self._end_lost(channel)

    def _refuse(self, flights: list[InFlightRequest], last: int, refusal: GanglineError) -> None:
        """End those that were sent in messages up to `last` with the worker's refusal."""
        for flight in flights:
            if 0 < flight.message <= last:
                if flight.reserves:
                    self.post(flight.worker, (RequestOp.RELEASE, flight.id, None))
                self._end_with(flight, refusal)

    def _unreadable(self, channel: WorkerChannel, id: int, problem: GanglineError) -> None:
        flight = self.flights.get(id)
        if flight is not None and flight.worker is channel.worker:
            if flight.checked:
                self.post(flight.worker, (RequestOp.CANCEL, id))
            text = f"an answer of {flight.worker.id} cannot be read: {problem.message}"
            self._end_with(flight, InvalidResult(text, may_have_started=True))

    def _end_with(self, flight: InFlightRequest, error: GanglineError) -> None:
        self.flights.pop(flight.id, None)
        flight.deliver([AnswerOp.ERROR, flight.id, error.code, error.message, None, error.may_have_started])

    def _take(self, channel: WorkerChannel, envelope: AnswerEnvelope) -> None:
        flights, worker = self.flights, channel.worker
        # Workers that represent gangs, and workers that are gone, do not count.
        if worker.known and 0.0 < worker.heard_at < self.loop.time() - GAP_S:
            self.on_gap()
        self.measured = metrics_enabled()
        lone = len(envelope.frames) == 1 and len(flights) == 1
        epoch = envelope.epoch
        for frame in envelope.frames:
            flight = flights.get(frame[1])
            # Unknown id: its caller gave up, and sent the worker CANCEL or RELEASE then.
            if flight is None or flight.worker is not worker:
                continue
            outbound = flight.outbound
            if (outbound is None or epoch != outbound.epoch) and self._of_another(flight, frame, epoch):
                continue
            if flight.deliver(frame):
                flights.pop(frame[1], None)
        if lone and not flights:
            # Its caller is alone and continues in the next turn. If it only sends another request then, that need not
            # wait for yet another turn, because no other frame would join it.
            self._lone = True
            self.loop.call_soon(self._not_alone)
        listener = self._listener(worker.id.pool)
        if listener is not None:
            if not envelope.frames:
                listener.invited(worker)
            listener.answered(worker, envelope.load, envelope.epoch)

    def _of_another(self, flight: InFlightRequest, frame: Frame, epoch: int) -> bool:
        """Whether an answer may be from another process than the one addressed: two may have one id for a while.

        An answer in an earlier epoch is from a previous process. One in a later epoch may be from its successor, which
        cannot know what the addressed process has started: its rejection counts only once a heartbeat has shown that it
        is the same process.
        """
        if epoch < flight.epoch:
            return True
        if frame[0] == AnswerOp.REJECTED and epoch > flight.worker.confirmed:
            self._unbelieved[flight.id] = epoch, frame
            return True
        return False

    def confirmed(self, worker: WorkerEntry) -> None:
        """The worker has confirmed its epoch: rejections in it count now."""
        for id, (epoch, frame) in list(self._unbelieved.items()):
            flight = self.flights.get(id)
            if flight is not None and (flight.worker is not worker or epoch > worker.confirmed):
                continue
            del self._unbelieved[id]
            if flight is not None and flight.deliver(frame):
                self.flights.pop(id, None)

    def _on_unheard(self, channel: WorkerChannel, check: str) -> None:
        worker = channel.worker
        if check:
            if check.isdecimal():
                self._on_unheard_check(channel, int(check))
            return
        channel.unheard += 1
        listener = self._listener(worker.id.pool)
        if listener is not None:
            listener.unreachable(worker)
        if channel.messages > channel.doubted_to:  # else the question that is on its way covers it
            self._doubt(channel)

    def _on_unheard_check(self, channel: WorkerChannel, check: int) -> None:
        if check <= channel.settled_checks:
            return
        channel.open_checks -= 1
        if check < channel.checks:
            return
        if channel.open_checks:
            # An earlier CHECK was received, but not its answer: so was what was sent around it, and nobody knows what.
            channel.settle()
            self._end_lost(channel)
        else:
            self._nobody_there(channel)

    def _doubt(self, channel: WorkerChannel, refusal: GanglineError | None = None) -> bool:
        """Ask whether anybody receives what is sent there; False if not even that can be sent. `refusal`: see
        StatusProbe."""
        worker = channel.worker
        mine = (flight.id for flight in self.flights.values() if flight.worker is worker and flight.checked)
        tasks = list(itertools.islice(mine, MAX_CHECKED))
        check_flight = StatusProbe(self.new_id(), worker, self, tasks, refusal)
        try:
            channel.doubt(check_flight, tasks)
        except (Disconnected, NotPermitted, ClosedError):
            return False
        check_flight.last = channel.messages
        self.flights[check_flight.id] = check_flight
        self.loop.call_later(self._settings.check_after_s, self._doubt_over, channel, channel.checks, check_flight)
        return True

    def _nobody_there(self, channel: WorkerChannel) -> None:
        """There was no responder for any CHECK either: the last `unheard` messages before it were not received."""
        first = channel.doubted_to - channel.unheard + 1
        last = channel.doubted_to
        channel.settle()
        for flight in self._flights_on(channel):
            if first <= flight.message <= last:
                self.lose(flight, TryOutcome.UNHEARD)
        self._end_lost(channel)

    def _doubt_over(self, channel: WorkerChannel, check: int, flight: InFlightRequest) -> None:
        self.forget(flight)
        if channel.checks == check:
            channel.settle()
            self._end_lost(channel)

    def _on_connection(self, event: ConnectionEvent) -> None:
        if event is ConnectionEvent.RECONNECTED:
            self.reconnected_at = self.loop.time()
            for channel in list(self._channels.values()):
                channel.resume()
            self.check_all()

    def _flights_on(self, channel: WorkerChannel) -> list[InFlightRequest]:
        return [one for one in self.flights.values() if one.outbound is not None and one.outbound.channel is channel]

    def _channel(self, worker: WorkerEntry) -> WorkerChannel:
        channel = worker.link
        if not isinstance(channel, WorkerChannel):
            number = next(self._channel_numbers)
            token = hashlib.blake2b(number.to_bytes(8, "big"), key=self._secret, digest_size=_TOKEN_BYTES).hexdigest()
            subject = self._names.worker(worker.id, Operation.FRAMES, worker.channel)
            channel = WorkerChannel(self, worker, number, token, subject, f"{self._prefix}.{token}")
            self._channels[token] = channel
            worker.link = channel
        return channel
