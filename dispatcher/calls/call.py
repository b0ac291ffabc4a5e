"""One task as its caller wants it done, and how its answers are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

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
from ...schemas.limits import MAX_DEADLINE_S
from ...schemas.names import check_name
from ...schemas.text import plain
from ...schemas.wire.frames import AnswerOp, Frame, RequestOp
from ..routing.outcome import TryOutcome
from ..routing.request import RoutedRequest
from ..transport.channel import Outcome
from .options import SUBMIT_ONLY, ClientOptions, SubmitOptions, check_names, submit_options

_TASK: Final = int(RequestOp.TASK)
_OK: Final = int(AnswerOp.OK)
_ERROR: Final = int(AnswerOp.ERROR)
_REJECTED: Final = int(AnswerOp.REJECTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """How a call is made, beside the task's own arguments. None leaves the default.

    Raises:
        InvalidSettings, InvalidName: a value out of its bounds.
    """

    timeout_s: float | None = None
    """The deadline, from now; travels with the task, which is cancelled when it passes. Above 0. Default:
    RouterSettings.default_timeout_s, and never later than the deadline of the task that makes the call."""
    key: str | None = None
    """Session or shard key: the same key goes to the same worker while that lives."""
    model: str | None = None
    """Model id, for pools that multiplex models."""
    idempotent: bool | None = None
    """Whether running it twice does no harm, so that it is sent again when its outcome is unknown. Default: what the
    task declares."""
    max_attempts: int | None = None
    """Most times it is sent. Default: RouterSettings.max_attempts."""
    labels: Mapping[str, str] | None = None
    """Labels that the worker must have."""
    pool: str | None = None
    """The pool to use. Default: the one that is named as the endpoint."""
    queue: bool | None = None
    """Whether to wait for a worker with room. False: Saturated at once when none has any. Default: True."""
    submit: SubmitOptions | None = None
    """What is said of submitted tasks alone."""
    plain: bool = field(init=False, repr=False, compare=False)
    """Whether calls ask for nothing but, maybe, to be done in time. Found out once, and asked at every call."""

    def __post_init__(self) -> None:
        asked = (
            *(self.key, self.model, self.labels, self.idempotent, self.max_attempts),
            *(self.pool, self.queue, self.submit),
        )
        object.__setattr__(self, "plain", all(value is None for value in asked))
        timeout_s = self.timeout_s
        if timeout_s is not None and not 0 < timeout_s <= MAX_DEADLINE_S:
            raise InvalidSettings(f"timeout_s is {timeout_s!r}, it must be above 0 and at most {plain(MAX_DEADLINE_S)}")
        if self.max_attempts is not None and self.max_attempts < 1:
            raise InvalidSettings(f"max_attempts is {self.max_attempts!r}, it must be at least 1")
        if self.pool is not None:
            check_name(self.pool, "pool")

    def changed(self, given: ClientOptions) -> CallOptions:
        """These, but what is given; None is not.

        Raises:
            TypeError: there is no such option.
            InvalidSettings, InvalidName, InvalidSchedule: a value out of its bounds.
        """
        check_names("options", given, ClientOptions)
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if not SUBMIT_ONLY.isdisjoint(changes):
            submit = {name: changes.pop(name) for name in SUBMIT_ONLY & changes.keys()}
            changes["submit"] = submit_options(self.submit, submit)
        return replace(self, **changes)

    def check_for_call(self) -> None:
        """
        Raises:
            InvalidRequest: something is said that only `submit` heeds.
        """
        if self.submit is not None:
            given = ", ".join(self.submit.given)
            raise InvalidRequest(
                f"{given}: these options are for submit alone, and a call does not heed them; nothing was sent"
            )


class Call:
    """One task to be run."""

    # No slots: what most of them never set stands in the class, which makes one of them cheaper to make.

    flags = 0
    span_parent: str | None = None
    run = 0
    """Number of the gang run that it is part of; 0: none."""
    generation = 0
    """Of the gang, as far as the sender knows; 0: not said."""
    hold = False
    """Only take the slots, and wait for BEGIN."""

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
        span_parent: str | None = None,
        run: int = 0,
    ) -> None:
        self.endpoint = endpoint
        self.pool = options.pool or endpoint
        self.method = method
        self.args = args
        self.kwargs = kwargs
        self.options = options
        self.deadline = deadline
        """Loop time; None is never."""
        if flags:
            self.flags = flags
        if span_parent is not None:
            self.span_parent = span_parent
        if run:
            self.run = run

    @property
    def target(self) -> str:
        return f"{self.endpoint}.{self.method}"

    def routed_request(self, max_attempts: int) -> RoutedRequest:
        """The order's place in a pool."""
        options = self.options
        return RoutedRequest(
            method=self.method,
            key=options.key,
            model=options.model,
            labels=options.labels,
            idempotent=options.idempotent,
            patient=self.deadline is not None,
            max_attempts=options.max_attempts or max_attempts,
            queue=options.queue,
        )

    def remaining_ms(self, now: float) -> int | None:
        """What is left, for the wire.

        Raises:
            DeadlineExceeded: nothing is, so nothing was sent.
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
        """The TASK frame of one try; `window`: items of a stream that may come ahead of our credit.

        Raises:
            DeadlineExceeded: no time is left.
        """
        options = self.options
        meta: dict[str, Any] | None = None
        if attempt > 1 or options.key is not None or options.model is not None or self.run or self.generation:
            meta = {"attempt": attempt, "key": options.key, "model": options.model}
            if self.run:
                meta["run"] = self.run
            if self.generation:
                meta["generation"] = self.generation
            if self.hold:
                meta["hold"] = True
        if window is not None:
            meta = {**(meta or {}), "window": window}
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
            meta,
        )

    def __repr__(self) -> str:
        return f"Call({self.target}, pool={self.pool})"


def too_late(target: str, *, may_have_started: bool) -> DeadlineExceeded:
    """The error for a task that had no answer in time."""
    what = "it was told to stop, and may have done some of its work" if may_have_started else "nothing was sent"
    return DeadlineExceeded(
        f"{target} did not answer by its deadline: {what}",
        may_have_started=may_have_started,
        details={"target": target},
    )


def result_of(frame: Frame) -> Any:
    """The result that an OK frame carries.

    Raises:
        GanglineError: the error that an ERROR frame carries.
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
    """Why an outcome is no answer of the task; None when it is one."""
    if type(outcome) is list and outcome[0] == _OK:
        return None  # as nearly all are; asking an enum for its instances takes long
    if isinstance(outcome, TryOutcome):
        return outcome
    if outcome[0] == _REJECTED:
        return TryOutcome.of_reason(outcome[2])
    return TryOutcome.DRAINING if _refuses(outcome, Unavailable) else None


def refuses_token(outcome: Outcome) -> bool:
    """Whether it is an error that says that the token was not good: nothing started."""
    return _refuses(outcome, (LeaseError, Unavailable))


def says_busy(outcome: Outcome) -> bool:
    """Whether it is an error that says that the slots of the token are in use: nothing started."""
    return _refuses(outcome, LeaseBusy)


def _refuses(outcome: Outcome, kind: type[GanglineError] | tuple[type[GanglineError], ...]) -> bool:
    if type(outcome) is not list or outcome[0] != _ERROR:
        return False
    return outcome[5] is False and isinstance(error_of(outcome), kind)
