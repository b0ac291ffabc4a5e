"""Requests of the leader to workers. They are sent in the turn of the event loop in which they were decided, and each
answer is processed when it arrives, so a slow worker delays no other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from pydantic import BaseModel

from ...bus.port.bus import Bus, Message, NoResponders
from ...bus.rpc.requester import error_in, parse_answer
from ...runtime.clock import EventClock
from ...schemas.errors.base import GanglineError, MalformedMessage
from ...schemas.messages.gangs import FormReply, HoldReply, KeepReply, MemberCause, PingReply, TeardownReply
from ...schemas.messages.operations import LoadReply
from ...schemas.names import Names, Operation, WorkerId
from ...schemas.wire.frames import Load, LoadFlag
from ...telemetry.logs import Log
from ..model import effects as do
from ..model import events as on
from ..settings.scheduling import CoordinatorSettings
from ..settings.service import ServiceSettings

M = TypeVar("M", bound=BaseModel)
TEARDOWN_MARGIN_S = 2.0
"""A teardown's answer is waited for so much longer than the grace time."""


class AnswerObserver(Protocol):
    """Sees answers as they come; for traces."""

    def held(self, worker: WorkerId, gang: str, generation: int, outcome: str) -> None: ...

    def formed(self, worker: WorkerId, gang: str, generation: int, outcome: str) -> None: ...

    def stopped(self, worker: WorkerId, gang: str, generation: int, outcome: str) -> None: ...


class WorkerRpc:
    """Carries out the effects that are requests to workers, and passes the answers to the core."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        clock: EventClock,
        *,
        core: CoordinatorSettings,
        shell: ServiceSettings,
        feed: Callable[[on.Happening], None],
        channel: Callable[[WorkerId], str],
        heard: Callable[[WorkerId], None],
        doubt: Callable[[WorkerId], None],
        observer: AnswerObserver,
        log: Log,
    ) -> None:
        """
        Args:
            feed: gives an event to the core.
            channel: the one that a worker's registration names; empty if it names none.
            heard: told when a worker answers.
            doubt: told when nobody listens at a worker's subject.
            witness: told of answers.
        """
        self._bus = bus
        self._names = names
        self._clock = clock
        self._core = core
        self._shell = shell
        self._feed = feed
        self._channel = channel
        self._heard = heard
        self._doubt = doubt
        self._observer = observer
        self._log = log
        self._over = False
        self._last: tuple[BaseModel, bytes] | None = None
        """The request written last: a large gang is told to form by one body, sent to many workers."""

    def close(self) -> None:
        """The leadership is over: what is still answered is no concern of ours. Idempotent."""
        self._over = True

    # -- before the commit -------------------------------------------------------------------------------------------

    def hold(self, effect: do.SendHold) -> None:
        wait_s = self._core.hold_wait_s
        self._ask(effect.worker, Operation.HOLD, effect.request, HoldReply, wait_s, partial(self._held, effect))

    def _held(self, effect: do.SendHold, reply: HoldReply | GanglineError) -> None:
        worker, request = effect.worker, effect.request
        if isinstance(reply, GanglineError):
            cause = reply.cause if isinstance(reply, _NotReached) else reply
            self._missed(worker, Operation.HOLD, cause)
            self._observer.held(worker, request.gang, request.generation, cause.code)
            self._feed(
                on.HoldUnanswered(
                    **self._clock.moment(),
                    worker=worker,
                    gang=request.gang,
                    generation=request.generation,
                    attempt=request.attempt,
                    reason=reply.message,
                )
            )
            return
        outcome = "held" if reply.accepted else reply.reason or "refused"
        self._observer.held(worker, request.gang, request.generation, outcome)
        self._feed(
            on.HoldAnswered(
                **self._clock.moment(),
                worker=worker,
                gang=request.gang,
                generation=request.generation,
                attempt=request.attempt,
                accepted=reply.accepted,
                reason=reply.reason or "",
                epoch=reply.epoch,
                reg_revision=reply.reg_revision,
                tokens=reply.tokens,
                port=reply.port,
                load=_load(reply.load),
            )
        )

    def unhold(self, effect: do.ReleaseHold) -> None:
        try:
            self._bus.publish(self._subject(effect.worker, Operation.UNHOLD), self._body(effect.request))
        except GanglineError as error:
            self._missed(effect.worker, Operation.UNHOLD, error)

    def keep(self, effect: do.SendReserve) -> None:
        wait_s = self._core.keep_renew_s
        self._ask(effect.worker, Operation.KEEP, effect.request, KeepReply, wait_s, partial(self._kept, effect))

    def _kept(self, effect: do.SendReserve, reply: KeepReply | GanglineError) -> None:
        if isinstance(reply, GanglineError):
            self._missed(effect.worker, Operation.KEEP, reply)
            return
        self._feed(
            on.KeepAnswered(
                **self._clock.moment(),
                worker=effect.worker,
                gang=effect.request.gang,
                kept=reply.kept,
                load=_load(reply.load),
            )
        )

    # -- members -----------------------------------------------------------------------------------------------------

    def form(self, effect: do.SendForm) -> None:
        self._tell(effect, self._shell.form_tries)

    def _tell(self, effect: do.SendForm, tries: int) -> None:
        wait_s = self._shell.form_wait_s
        then = partial(self._formed, effect, tries - 1)
        self._ask(effect.worker, Operation.FORM, effect.request, FormReply, wait_s, then)

    def _formed(self, effect: do.SendForm, tries: int, reply: FormReply | GanglineError) -> None:
        worker, request = effect.worker, effect.request
        if isinstance(reply, _NotReached):
            self._missed(worker, Operation.FORM, reply.cause)
            if tries > 0 and not isinstance(reply.cause, NoResponders):
                self._tell(effect, tries)
            return  # else pings find out
        if isinstance(reply, GanglineError):
            reply = FormReply(formed=False, reason=reply.message)
        outcome = "formed" if reply.formed else reply.reason or "refused"
        self._observer.formed(worker, request.gang, request.generation, outcome)
        if reply.formed and not reply.starting:
            moment = self._clock.moment()
            self._feed(on.Formed(**moment, worker=worker, gang=request.gang, generation=request.generation))
        if not reply.formed:
            self._not_formed(effect, reply.reason or "refused to form")

    def _not_formed(self, effect: do.SendForm, reason: str) -> None:
        request = effect.request
        here = {
            seat.rank
            for seat in request.seats
            if (seat.pool, seat.worker) == (effect.worker.pool, effect.worker.worker)
        }
        for rank in sorted(here):
            self._feed(
                on.MemberFailed(
                    **self._clock.moment(),
                    gang=request.gang,
                    generation=request.generation,
                    rank=rank,
                    cause=MemberCause.FAILED_AT_START,
                    detail=f"{effect.worker}: {reason}",
                )
            )

    def teardown(self, effect: do.SendTeardown) -> None:
        wait_s = effect.request.grace_s + TEARDOWN_MARGIN_S
        then = partial(self._torn_down, effect)
        self._ask(effect.worker, Operation.TEARDOWN, effect.request, TeardownReply, wait_s, then)

    def _torn_down(self, effect: do.SendTeardown, reply: TeardownReply | GanglineError) -> None:
        worker, request = effect.worker, effect.request
        if isinstance(reply, _NotReached):
            self._missed(worker, Operation.TEARDOWN, reply.cause)
            if isinstance(reply.cause, NoResponders) and request.only is None:
                self._observer.stopped(worker, request.gang, request.generation, reply.cause.code)
                self._feed(
                    on.TeardownUnanswered(
                        **self._clock.moment(), worker=worker, gang=request.gang, generation=request.generation
                    )
                )
        elif isinstance(reply, GanglineError):
            self._log.warning(
                "%s did not tear down %s: %s",
                worker,
                request.gang,
                reply.message,
                extra={"action": "gang.teardown_refused", "gang": request.gang, "worker": str(worker)},
            )
        elif request.only is None and reply.stopped:
            self._observer.stopped(worker, request.gang, request.generation, "stopped")
            self._feed(
                on.TeardownConfirmed(
                    **self._clock.moment(),
                    worker=worker,
                    gang=request.gang,
                    generation=request.generation,
                    load=_load(reply.load),
                )
            )

    def ping(self, effect: do.PingWorker) -> None:
        wait_s = self._shell.ping_wait_s
        self._ask(effect.worker, Operation.PING, effect.request, PingReply, wait_s, partial(self._pinged, effect))

    def _pinged(self, effect: do.PingWorker, reply: PingReply | GanglineError) -> None:
        if isinstance(reply, GanglineError):
            cause = reply.cause if isinstance(reply, _NotReached) else reply
            self._missed(effect.worker, Operation.PING, cause)
            if isinstance(cause, NoResponders):
                self._feed(on.PingUnanswered(**self._clock.moment(), worker=effect.worker))
            return
        behind = reply.missing.keys() | reply.starting.keys()
        started = {gang: number for gang, number in effect.request.gangs.items() if gang not in behind}
        self._feed(
            on.PingAnswered(**self._clock.moment(), worker=effect.worker, missing=reply.missing, started=started)
        )

    # -- asking ------------------------------------------------------------------------------------------------------

    def _ask(
        self,
        worker: WorkerId,
        operation: Operation,
        request: BaseModel,
        model: type[M],
        timeout_s: float,
        then: Callable[[M | GanglineError], None],
    ) -> None:
        """`then` is told the answer, the worker's own error, or _NotReached: no usable answer."""

        def answered(message: Message | GanglineError) -> None:
            if not self._over:
                then(self._read(worker, model, message))

        self._bus.ask(self._subject(worker, operation), self._body(request), timeout_s=timeout_s, then=answered)

    def _subject(self, worker: WorkerId, operation: Operation) -> str:
        return self._names.worker(worker, operation, self._channel(worker))

    def _read(self, worker: WorkerId, model: type[M], message: Message | GanglineError) -> M | GanglineError:
        if isinstance(message, GanglineError):
            return _NotReached(message)
        self._heard(worker)
        error = error_in(message)
        if error is not None:
            return error
        try:
            return parse_answer(message, model, worker)
        except MalformedMessage as problem:
            return _NotReached(problem)

    def _body(self, request: BaseModel) -> bytes:
        if self._last is None or self._last[0] is not request:
            self._last = (request, request.model_dump_json(exclude_defaults=True).encode())
        return self._last[1]

    def _missed(self, worker: WorkerId, operation: Operation, error: GanglineError) -> None:
        if isinstance(error, NoResponders):
            self._doubt(worker)
        self._log.debug(
            "%s of %s came to nothing: %s",
            operation,
            worker,
            error,
            extra={"action": "request.missed", "worker": str(worker), "operation": str(operation)},
        )


class _NotReached(GanglineError):
    """No usable answer came."""

    def __init__(self, cause: GanglineError) -> None:
        super().__init__(cause.message)
        self.cause = cause


def _load(reply: LoadReply) -> Load:
    return Load(reply.running, reply.reserved, reply.total, int(LoadFlag.DRAINING) if reply.draining else 0)
