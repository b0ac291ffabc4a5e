"""What the leader asks of workers, each request a task of its own, so that one slow worker holds up no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from ..bus.port import Bus, Message, NoResponders
from ..schemas import codec, headers
from ..schemas.codec import Format
from ..schemas.errors import GanglineError, MalformedMessage, error_from_wire
from ..schemas.frames import Load, LoadFlag
from ..schemas.gang_messages import (
    FormReply,
    HoldReply,
    KeepReply,
    MemberCause,
    PingReply,
    TeardownReply,
)
from ..schemas.messages import LoadReply
from ..schemas.names import Names, Operation, WorkerId
from ..telemetry.logs import Log
from . import effects as do
from . import events as on
from .chores import Chores
from .moment import Clock
from .settings import CoordinatorSettings
from .shell_settings import ShellSettings

M = TypeVar("M", bound=BaseModel)
TEARDOWN_MARGIN_S = 2.0
"""A teardown's answer is waited for so much longer than the grace time."""


class Witness(Protocol):
    """Sees answers as they come; for traces."""

    def held(self, worker: WorkerId, gang: str, generation: int, outcome: str) -> None: ...

    def formed(self, worker: WorkerId, gang: str, generation: int, outcome: str) -> None: ...

    def stopped(self, worker: WorkerId, gang: str, generation: int, outcome: str) -> None: ...


class Errands:
    """Carries out the effects that are requests to workers, and feeds the answers back."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        clock: Clock,
        chores: Chores,
        *,
        core: CoordinatorSettings,
        shell: ShellSettings,
        feed: Callable[[on.Happening], None],
        heard: Callable[[WorkerId], None],
        doubt: Callable[[WorkerId], None],
        witness: Witness,
        log: Log,
    ) -> None:
        """
        Args:
            feed: gives an event to the core.
            heard: told when a worker answers.
            doubt: told when nobody listens at a worker's subject.
            witness: told of answers.
        """
        self._bus = bus
        self._names = names
        self._clock = clock
        self._chores = chores
        self._core = core
        self._shell = shell
        self._feed = feed
        self._heard = heard
        self._doubt = doubt
        self._witness = witness
        self._log = log
        self._last: tuple[BaseModel, bytes] | None = None
        """The request written last: a large gang is told to form by one body, sent to many workers."""

    def hold(self, effect: do.SendHold) -> None:
        self._chores.start(self._hold(effect))

    def unhold(self, effect: do.ReleaseHold) -> None:
        self._publish(effect.worker, Operation.UNHOLD, effect.request)

    def keep(self, effect: do.SendKeep) -> None:
        self._chores.start(self._keep(effect))

    def form(self, effect: do.SendForm) -> None:
        self._chores.start(self._form(effect))

    def teardown(self, effect: do.SendTeardown) -> None:
        self._chores.start(self._teardown(effect))

    def ping(self, effect: do.Ping) -> None:
        self._chores.start(self._ping(effect))

    # -- one by one --------------------------------------------------------------------------------------------------

    async def _hold(self, effect: do.SendHold) -> None:
        worker, request = effect.worker, effect.request
        try:
            reply = await self._ask(worker, Operation.HOLD, request, HoldReply, self._core.hold_wait_s)
        except GanglineError as error:
            cause = error.cause if isinstance(error, _NotReached) else error
            self._missed(worker, Operation.HOLD, cause)
            self._witness.held(worker, request.gang, request.generation, cause.code)
            self._feed(
                on.HoldUnanswered(
                    **self._clock.moment(),
                    worker=worker,
                    gang=request.gang,
                    generation=request.generation,
                    attempt=request.attempt,
                    reason=error.message,
                )
            )
            return
        outcome = "held" if reply.accepted else reply.reason or "refused"
        self._witness.held(worker, request.gang, request.generation, outcome)
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

    async def _keep(self, effect: do.SendKeep) -> None:
        request = effect.request
        try:
            reply = await self._ask(effect.worker, Operation.KEEP, request, KeepReply, self._core.keep_renew_s)
        except GanglineError as error:
            self._missed(effect.worker, Operation.KEEP, error)
            return
        self._feed(
            on.KeepAnswered(
                **self._clock.moment(),
                worker=effect.worker,
                gang=request.gang,
                kept=reply.kept,
                load=_load(reply.load),
            )
        )

    async def _form(self, effect: do.SendForm) -> None:
        worker, request = effect.worker, effect.request
        for _ in range(self._shell.form_tries):
            try:
                reply = await self._ask(worker, Operation.FORM, request, FormReply, self._shell.form_wait_s)
            except _NotReached as error:
                self._missed(worker, Operation.FORM, error.cause)
                if isinstance(error.cause, NoResponders):
                    return  # pings find out
                continue
            except GanglineError as error:
                reply = FormReply(formed=False, reason=error.message)
            outcome = "formed" if reply.formed else reply.reason or "refused"
            self._witness.formed(worker, request.gang, request.generation, outcome)
            if not reply.formed:
                self._not_formed(effect, reply.reason or "refused to form")
            return

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

    async def _teardown(self, effect: do.SendTeardown) -> None:
        worker, request = effect.worker, effect.request
        patience_s = request.grace_s + TEARDOWN_MARGIN_S
        try:
            reply = await self._ask(worker, Operation.TEARDOWN, request, TeardownReply, patience_s)
        except _NotReached as error:
            self._missed(worker, Operation.TEARDOWN, error.cause)
            if isinstance(error.cause, NoResponders) and request.only is None:
                self._witness.stopped(worker, request.gang, request.generation, error.cause.code)
                self._feed(
                    on.TeardownUnanswered(
                        **self._clock.moment(), worker=worker, gang=request.gang, generation=request.generation
                    )
                )
            return
        except GanglineError as error:
            self._log.warning(
                "%s did not tear down %s: %s",
                worker,
                request.gang,
                error.message,
                extra={"action": "gang.teardown_refused", "gang": request.gang, "worker": str(worker)},
            )
            return
        if request.only is None and reply.stopped:
            self._witness.stopped(worker, request.gang, request.generation, "stopped")
            self._feed(
                on.TeardownConfirmed(
                    **self._clock.moment(),
                    worker=worker,
                    gang=request.gang,
                    generation=request.generation,
                    load=_load(reply.load),
                )
            )

    async def _ping(self, effect: do.Ping) -> None:
        try:
            reply = await self._ask(effect.worker, Operation.PING, effect.request, PingReply, self._shell.ping_wait_s)
        except _NotReached as error:
            self._missed(effect.worker, Operation.PING, error.cause)
            if isinstance(error.cause, NoResponders):
                self._feed(on.PingUnanswered(**self._clock.moment(), worker=effect.worker))
            return
        except GanglineError as error:
            self._missed(effect.worker, Operation.PING, error)
            return
        self._feed(on.PingAnswered(**self._clock.moment(), worker=effect.worker, missing=reply.missing))

    # -- asking ------------------------------------------------------------------------------------------------------

    async def _ask(
        self, worker: WorkerId, operation: Operation, request: BaseModel, answer: type[M], timeout_s: float
    ) -> M:
        """Raises _NotReached: no usable answer. GanglineError: the worker's own."""
        subject = self._names.worker(worker, operation)
        try:
            message = await self._bus.request(subject, self._body(request), timeout_s=timeout_s)
        except GanglineError as error:
            raise _NotReached(error) from error
        self._heard(worker)
        raise_if_error(message)
        try:
            return answer.model_validate(codec.decode(message.data, Format.of(message.headers)))
        except (ValidationError, GanglineError) as error:
            raise _NotReached(
                MalformedMessage(f"{worker} answered {operation} with what cannot be read: {error}")
            ) from error

    def _body(self, request: BaseModel) -> bytes:
        if self._last is None or self._last[0] is not request:
            self._last = (request, request.model_dump_json(exclude_none=True).encode())
        return self._last[1]

    def _publish(self, worker: WorkerId, operation: Operation, request: BaseModel) -> None:
        try:
            self._bus.publish(self._names.worker(worker, operation), self._body(request))
        except GanglineError as error:
            self._missed(worker, operation, error)

    def _missed(self, worker: WorkerId, operation: Operation, error: GanglineError) -> None:
        if isinstance(error, NoResponders):
            self._doubt(worker)
        self._log.debug(
            "%s of %s came to nothing: %s",
            operation,
            worker,
            error,
            extra={"action": "errand.missed", "worker": str(worker), "operation": str(operation)},
        )


class _NotReached(GanglineError):
    """No usable answer came."""

    def __init__(self, cause: GanglineError) -> None:
        super().__init__(cause.message)
        self.cause = cause


def raise_if_error(message: Message) -> None:
    """Raise the error that an answer carries, if it carries one."""
    fields = message.headers or {}
    text = fields.get(headers.ERROR)
    if text is None:
        return
    try:
        body = codec.decode(message.data, Format.of(fields))
    except GanglineError:
        body = None
    body = body if isinstance(body, dict) else {}
    raise error_from_wire(
        str(body.get("code", "internal")),
        str(body.get("message", text)),
        body.get("details") if isinstance(body.get("details"), dict) else None,
        bool(body.get("may_have_started", False)),
    )


def _load(reply: LoadReply) -> Load:
    return Load(reply.running, reply.reserved, reply.total, int(LoadFlag.DRAINING) if reply.draining else 0)
