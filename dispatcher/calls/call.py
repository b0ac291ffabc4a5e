"""One task to call or submit with its options, the errors in its answers, and its metrics and traces."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from types import TracebackType
from typing import Any, Final, TypedDict

from ...schemas.errors.base import (
    DeadlineExceeded,
    GanglineError,
    InvalidRequest,
    InvalidSettings,
    LeaseBusy,
    LeaseError,
    Unavailable,
    error_from_wire,
)
from ...schemas.limits import MAX_BACKOFF_S, MAX_DEADLINE_S, MAX_RESULT_TTL_S
from ...schemas.messages.submission import LAST_MOMENT, MAX_KEY_CHARS
from ...schemas.names import check_name
from ...schemas.records.workers import MAX_PRIORITY
from ...schemas.schedules import check_schedule
from ...schemas.text import brief, nearest_name, plain
from ...schemas.wire.frames import AnswerOp, Frame, RequestOp
from ...telemetry.metrics.router_and_worker import RouterMetrics
from ...telemetry.tracing import NO_SPAN, Parent, Span, tracer
from ..routing.outcome import TryOutcome
from ..routing.pool_core import RoutedRequest
from ..transport.channel import Outcome

_BOUNDS: Final = (
    ("delay_s", 0.0, MAX_DEADLINE_S),
    ("backoff_s", 0.0, MAX_BACKOFF_S),
    ("result_ttl_s", 0.0, MAX_RESULT_TTL_S),
)
_TIMES: Final = frozenset(("delay_s", "at", "cron"))
_RESET: Final = (*sorted(_TIMES), "time_zone")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOptions:
    """Options of `Client.options` that apply to `Client.submit` only. None: as in the endpoint's route, else the
    default.

    Raises:
        InvalidSettings: a value is out of bounds.
        InvalidSchedule: the server would not accept `cron`.
    """

    priority: int | None = None
    """Higher goes first; default 0."""
    idempotency_key: str | None = None
    """Submissions with the same key and target are one job: guaranteed for two minutes, and as long as the result is
    kept."""
    delay_s: float | None = None
    """Do not start it before this many seconds from now."""
    at: datetime | None = None
    """Do not start it before this time, which must have a time zone."""
    cron: str | None = None
    """Recurring: a cron expression of five fields (`0 3 * * *`), or of six with the seconds first; or `@every 5m`,
    `@hourly`, `@daily`. Needs nats-server 2.14 or later."""
    time_zone: str | None = None
    """Time zone of `cron`, such as `Europe/Berlin`. Default: UTC. When its clocks
    change, a run at a skipped time is left out, and a run at a repeated time happens twice."""
    ordered: bool | None = None
    """Tasks with the same `key` run one at a time, in the order of submission."""
    backoff_s: float | None = None
    """Wait before the second attempt, in seconds; doubles with each."""
    result_ttl_s: float | None = None
    """How long the result is kept, in seconds; 0: not at all."""
    events: bool | None = None
    """Whether changes of the job's state are published, for `Job.events`."""

    @property
    def given(self) -> list[str]:
        """Names of fields that are not None."""
        return [each.name for each in fields(self) if getattr(self, each.name) is not None]

    def __post_init__(self) -> None:
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and low <= value <= high):
                raise InvalidSettings(f"{name} is {value!r}, it must be between {plain(low)} and {plain(high)}")
        _check_priority(self.priority)
        _check_booleans(self, ("ordered", "events"))
        check_header_text("idempotency_key", self.idempotency_key)
        check_header_text("cron", self.cron)
        check_header_text("time_zone", self.time_zone)
        if self.cron is not None:
            check_schedule(self.cron, self.time_zone or "")
        elif self.time_zone is not None:
            raise InvalidSettings(f"time_zone is {self.time_zone!r}, but there is no cron: give both, or neither")
        if self.at is not None and (not isinstance(self.at, datetime) or self.at.tzinfo is None):
            raise InvalidSettings(f"at is {self.at!r}: give a datetime with a time zone, such as datetime.now(UTC)")
        if self.at is not None and not self.at.timestamp() < LAST_MOMENT:
            raise InvalidSettings(f"at is {self.at!r}, which is after the year 2261: give an earlier time")
        given = [name for name in ("delay_s", "at", "cron") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidSettings(f"{' and '.join(given)} exclude each other: give only one")


class ClientOptions(TypedDict, total=False):
    """Arguments of `Client.options`: the fields of CallOptions, and those of SubmitOptions, which apply to `submit`
    only. None means not given."""

    timeout_s: float | None
    deadline_s: float | None
    key: str | None
    model: str | None
    idempotent: bool | None
    max_attempts: int | None
    labels: Mapping[str, str] | None
    pool: str | None
    queue: bool | None
    priority: int | None
    idempotency_key: str | None
    delay_s: float | None
    at: datetime | None
    cron: str | None
    time_zone: str | None
    ordered: bool | None
    backoff_s: float | None
    result_ttl_s: float | None
    events: bool | None


def check_names(function: str, given: Iterable[str], options: Any) -> None:
    """Check names of options, which Python does not do for a TypedDict.

    Raises:
        TypeError: an unknown name.
    """
    for name in given:
        if name not in options.__annotations__:
            near = nearest_name(name, options.__annotations__)
            hint = f"; did you mean {near!r}?" if near else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


SUBMIT_ONLY: Final = frozenset(each.name for each in fields(SubmitOptions))


def submit_options(base: SubmitOptions | None, given: Mapping[str, Any]) -> SubmitOptions | None:
    """`base` with these changes; `base` itself if there are none, which keeps calls cheap. A given time (`delay_s`,
    `at`, `cron`) replaces the others.

    Raises:
        InvalidSettings, InvalidSchedule: see SubmitOptions.
    """
    if not given:
        return base
    times = {} if _TIMES.isdisjoint(given) else dict.fromkeys(_RESET)
    return replace(base or SubmitOptions(), **{**times, **given})


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_priority(value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not -MAX_PRIORITY <= value <= MAX_PRIORITY:
        raise InvalidSettings(
            f"priority is {value!r}, it must be a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}"
        )


def check_text(name: str, value: object) -> None:
    """Check that messages transmit this text unchanged.

    Raises:
        InvalidSettings: it is not a text, or not valid Unicode.
    """
    if value is None or (type(value) is str and value.isascii()):
        return
    try:
        if isinstance(value, str):
            value.encode()
            return
    except UnicodeEncodeError:
        pass
    raise InvalidSettings(f"{name} is {brief(value)}: give a text")


def _check_booleans(options: object, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None and not isinstance(value, bool):
            raise InvalidSettings(f"{name} is {brief(value)}: give True or False")


def check_header_text(name: str, value: object) -> None:
    """Check that a header transmits this text unchanged.

    Raises:
        InvalidSettings: empty, too long, with control characters, or with leading or trailing blanks.
    """
    if value is None:
        return
    if not isinstance(value, str) or not 0 < len(value) <= MAX_KEY_CHARS:
        raise InvalidSettings(f"{name} is {value!r:.60}: give a text of 1 to {MAX_KEY_CHARS} characters")
    if not value.isprintable() or value != value.strip():
        raise InvalidSettings(f"{name} is {value!r:.60}: it may not have control characters, nor blanks at its ends")


_TASK: Final = int(RequestOp.TASK)
_OK: Final = int(AnswerOp.OK)
_ERROR: Final = int(AnswerOp.ERROR)
_REJECTED: Final = int(AnswerOp.REJECTED)


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """Options of a call, apart from the task's arguments. None means the default.

    Raises:
        InvalidSettings, InvalidName: a value is out of bounds.
    """

    timeout_s: float | None = None
    """Limit of one attempt, in seconds, above 0: a task that takes longer is cancelled, and started again if it is
    idempotent and the deadline allows. Default: RouterSettings.default_timeout_s; for a submitted task, none."""
    deadline_s: float | None = None
    """Limit of the whole, in seconds from now: waiting, all attempts, and the pauses between them. At least 0.001. It
    is sent with the task, which is cancelled when it passes; a submitted task becomes a dead letter, `expired` (it
    counts from the scheduled time of a delayed one). Default: for calls as long as one attempt, `timeout_s`; for a
    submitted task, none. Never later than the deadline of the task that makes the call."""
    key: str | None = None
    """Session or shard key: calls with the same key go to the same worker while it lives."""
    model: str | None = None
    """Model id, for pools that multiplex models."""
    idempotent: bool | None = None
    """Whether the task may safely run twice, so that it is retried when its outcome is unknown. Default: as the task
    declares."""
    max_attempts: int | None = None
    """Maximum number of attempts. Default: RouterSettings.max_attempts."""
    labels: Mapping[str, str] | None = None
    """Labels that the worker must have."""
    pool: str | None = None
    """The pool to use. Default: the pool with the endpoint's name."""
    queue: bool | None = None
    """Whether to wait for a worker with a free slot. False: Saturated at once if there is none. Default: True."""
    submit: SubmitOptions | None = None
    """Options for submitted tasks only."""
    plain: bool = field(init=False, repr=False, compare=False)
    """Whether no option except `timeout_s` is set. Computed once, read at every call."""
    short: bool = field(init=False, repr=False, compare=False)
    """Whether no option except `timeout_s` and `key` is set."""

    def __post_init__(self) -> None:
        asked = (self.model, self.labels, self.idempotent, self.max_attempts, self.pool, self.queue, self.submit)
        short = all(value is None for value in asked) and self.deadline_s is None
        object.__setattr__(self, "short", short)
        object.__setattr__(self, "plain", short and self.key is None)
        timeout_s = self.timeout_s
        if timeout_s is not None and not (_is_number(timeout_s) and 0 < timeout_s <= MAX_DEADLINE_S):
            raise InvalidSettings(
                f"timeout_s is {timeout_s!r}, it must be a number above 0 and at most {plain(MAX_DEADLINE_S)}"
            )
        deadline_s = self.deadline_s
        if deadline_s is not None and not (_is_number(deadline_s) and 0.001 <= deadline_s <= MAX_DEADLINE_S):
            raise InvalidSettings(
                f"deadline_s is {deadline_s!r}, it must be a number between 0.001 and {plain(MAX_DEADLINE_S)}"
            )
        attempts = self.max_attempts
        if attempts is not None and (isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1):
            raise InvalidSettings(f"max_attempts is {attempts!r}, it must be a whole number, at least 1")
        if self.pool is not None:
            check_name(self.pool, "pool")
        check_text("key", self.key)
        check_text("model", self.model)
        labels: object = self.labels
        if labels is not None and not (
            isinstance(labels, Mapping) and all(isinstance(text, str) for item in labels.items() for text in item)
        ):
            raise InvalidSettings(f"labels is {brief(labels)}: give a dict of texts")
        _check_booleans(self, ("idempotent", "queue"))

    def changed(self, given: ClientOptions) -> CallOptions:
        """A copy with these changes; None means unchanged.

        Raises:
            TypeError: there is no such option.
            InvalidSettings, InvalidName, InvalidSchedule: a value is out of bounds.
        """
        key = given.get("key")
        if key is not None and len(given) == 1:
            # Often made for each call: a tenth of the time, and nothing else has to be checked again.
            check_text("key", key)
            values = self.__dict__.copy()
            values["key"], values["plain"] = key, False
            copy = object.__new__(CallOptions)
            object.__setattr__(copy, "__dict__", values)
            return copy
        check_names("options", given, ClientOptions)
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if not SUBMIT_ONLY.isdisjoint(changes):
            submit = {name: changes.pop(name) for name in SUBMIT_ONLY & changes.keys()}
            changes["submit"] = submit_options(self.submit, submit)
        return replace(self, **changes)

    def check_for_call(self) -> None:
        """
        Raises:
            InvalidRequest: an option is set that applies to `submit` only.
        """
        if self.submit is not None:
            given = ", ".join(self.submit.given)
            raise InvalidRequest(f"{given}: such options apply to submit only, not to calls; nothing was sent")


DEFAULTS: Final = CallOptions()
"""No option is set."""


class Call:
    """One task to run."""

    # No __slots__: most calls never set these, and class attributes make calls cheaper to create.

    flags = 0
    span_parent: Parent = None
    """With which its span starts, or the trace that it carries on."""
    run = 0
    """Number of the gang run that it belongs to; 0: none."""
    generation = 0
    """The gang's generation as the sender knows it; 0: not sent."""
    hold = False
    """Take only the slots, and wait for BEGIN."""
    tenant = ""
    """The account that requested it; empty: Gangline's own."""
    drawn: str | None = None
    """The pool that its route chose already."""
    attempt_s: float | None = None
    """Limit of each attempt; None: that of the whole."""

    def __init__(
        self,
        *,
        endpoint: str,
        method: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: CallOptions,
        deadline: float | None,
        flags: int = 0,
        span_parent: Parent = None,
        run: int = 0,
    ) -> None:
        self.endpoint = endpoint
        self.pool = options.pool or endpoint
        self.method = method
        self.args = args
        self.kwargs = kwargs
        self.options = options
        self.deadline = deadline
        """Loop time; None: no deadline."""
        if flags:
            self.flags = flags
        if span_parent is not None:
            self.span_parent = span_parent
        if run:
            self.run = run
        if options.deadline_s is not None and options.timeout_s is not None and options.timeout_s < options.deadline_s:
            self.attempt_s = options.timeout_s

    @property
    def target(self) -> str:
        return f"{self.endpoint}.{self.method}"

    def routed_request(self, max_attempts: int) -> RoutedRequest:
        """The routing state of this call."""
        options = self.options
        return RoutedRequest(
            method=self.method,
            key=options.key,
            model=options.model,
            labels=options.labels,
            idempotent=options.idempotent,
            deadline=self.deadline,
            max_attempts=options.max_attempts or max_attempts,
            queue=options.queue,
            tenant=self.tenant,
        )

    def remaining_ms(self, now: float) -> int | None:
        """Remaining time in ms, for the wire.

        Raises:
            DeadlineExceeded: no time is left; nothing was sent.
        """
        if self.deadline is None:
            return None
        left = int((self.deadline - now) * 1000)
        if left <= 0:
            raise self.too_late(may_have_started=False)
        return left

    def too_late(self, *, may_have_started: bool) -> DeadlineExceeded:
        return too_late(self.target, may_have_started=may_have_started)

    def frame(
        self, id: int, now: float, token: str | None, trace: str | None, attempt: int, window: int | None = None
    ) -> Frame:
        """The TASK frame of one attempt; `window`: how many items of a stream may be sent ahead of credit.

        Raises:
            DeadlineExceeded: no time is left.
        """
        options = self.options
        meta: dict[str, Any] = {}
        if attempt > 1:
            meta["attempt"] = attempt
        if options.key is not None:
            meta["key"] = options.key
        if options.model is not None:
            meta["model"] = options.model
        if self.run:
            meta["run"] = self.run
        if self.generation:
            meta["generation"] = self.generation
        if self.hold:
            meta["hold"] = True
        if window is not None:
            meta["window"] = window
        return (
            _TASK,
            id,
            self.method,
            self.args or None,
            self.kwargs or None,
            None if self.deadline is None else self.remaining_ms(now),
            token,
            trace,
            self.flags,
            meta or None,
        )

    def __repr__(self) -> str:
        return f"Call({self.target}, pool={self.pool})"


def too_late(target: str, *, may_have_started: bool) -> DeadlineExceeded:
    """The error for a task that was not answered in time."""
    what = "it was told to stop, and may have done some of its work" if may_have_started else "nothing was sent"
    return DeadlineExceeded(
        f"{target} did not answer by its deadline: {what}",
        may_have_started=may_have_started,
        details={"target": target},
    )


def result_of(frame: Frame) -> Any:
    """The result in an OK frame.

    Raises:
        GanglineError: the error in an ERROR frame.
    """
    if frame[0] == _OK:
        return frame[2]
    if frame[0] == AnswerOp.ERROR:
        raise error_of(frame)
    raise GanglineError(f"the worker answered a task with frame {frame[0]}: versions differ?", may_have_started=True)


def error_of(frame: Frame) -> GanglineError:
    """The error of an ERROR frame."""
    return error_from_wire(frame[2], frame[3], frame[4], frame[5])


def fate_of(outcome: Outcome) -> TryOutcome | None:
    """Why an outcome is not an answer of the task; None if it is."""
    if type(outcome) is list and outcome[0] == _OK:
        return None  # the usual case; isinstance of an enum is slow
    if isinstance(outcome, TryOutcome):
        return outcome
    if outcome[0] == _REJECTED:
        return TryOutcome.of_reason(outcome[2])
    return TryOutcome.DRAINING if _refuses(outcome, Unavailable) else None


def refuses_token(outcome: Outcome) -> bool:
    """Whether the outcome is an error that says that the token is invalid: nothing started."""
    return _refuses(outcome, (LeaseError, Unavailable))


def says_busy(outcome: Outcome) -> bool:
    """Whether the outcome is an error that says that the token's slots are in use: nothing started."""
    return _refuses(outcome, LeaseBusy)


def _refuses(outcome: Outcome, kind: type[GanglineError] | tuple[type[GanglineError], ...]) -> bool:
    if type(outcome) is not list or outcome[0] != _ERROR:
        return False
    return outcome[5] is False and isinstance(error_of(outcome), kind)


class RequestTelemetry:
    """`with RequestTelemetry(...) as (routed_request, span)`: counts a request on entry and exit, and traces it if
    tracing is on. A class, not a generator, because it is entered on every call."""

    __slots__ = ("_began_at", "_counted", "_loop", "_metrics", "_order", "_since", "_span", "_routed")

    def __init__(
        self,
        order: Call,
        routed_request: RoutedRequest,
        metrics: RouterMetrics,
        loop: asyncio.AbstractEventLoop,
        *,
        counted: bool = True,
        since: float | None = None,
        span: Span = NO_SPAN,
    ) -> None:
        """
        Args:
            counted: count the request on entry; False: on exit, because its pool is unknown before.
            since: when the fast path sent it, if it has already been counted.
            span: its span, if the fast path started it.
        """
        self._span = span
        self._counted = counted
        self._since = since
        self._began_at = 0.0 if since is None else since
        self._order = order
        self._routed = routed_request
        self._metrics = metrics
        self._loop = loop

    def __enter__(self) -> tuple[RoutedRequest, Span]:
        order = self._order
        if self._since is None:
            self._began_at = self._loop.time()
        span = self._span
        if span is NO_SPAN and tracer.enabled:
            span = tracer.start(
                f"gangline.call {order.target}",
                kind="client",
                parent=order.span_parent,
                attributes={"gangline.pool": order.pool, "gangline.endpoint": order.endpoint},
            )
        self._span = span
        if self._counted and self._since is None:
            self._metrics.request(order.endpoint, order.pool)
        return self._routed, span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        order = self._order
        if self._span is not NO_SPAN:
            self._span.end(error)
        if not self._counted:
            self._metrics.request(order.endpoint, order.pool)
        self._metrics.finished(
            order.endpoint,
            order.pool,
            self._loop.time() - self._began_at,
            max(1, self._routed.attempts),
            None if error is None else code_of(error),
        )


def code_of(error: BaseException) -> str:
    """The label under which an error is counted."""
    if isinstance(error, GanglineError):
        return error.code
    return "cancelled" if isinstance(error, (asyncio.CancelledError, GeneratorExit)) else "internal"
