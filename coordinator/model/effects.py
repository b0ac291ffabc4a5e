"""Effects that the gang core requests. The effects of one event are started in order; a later one does not wait for an
earlier one to finish.

The order of events ensures what must come first: nothing that reveals a commit (Form, Teardown of a whole gang,
Broadcast, AnswerRequest) is sent before the Committed event of that commit, and at most one Commit is in flight.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...schemas.errors.base import GanglineError
from ...schemas.messages.gangs import (
    FormRequest,
    GangEvent,
    GangReply,
    HoldRequest,
    KeepRequest,
    PingRequest,
    TeardownRequest,
    UnholdRequest,
)
from ...schemas.names import WorkerId
from ...schemas.records.workers import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerWrite:
    """One write of an atomic batch; as bus.port.KvWrite, but of a record."""

    key: str
    record: Record | None
    """None deletes."""
    ttl_s: float | None = None
    condition_key: str | None = None
    revision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendHold:
    """Ask; answer with HoldAnswered or HoldUnanswered."""

    worker: WorkerId
    request: HoldRequest
    traceparent: str | None = None
    """Parent of the gang's trace, also under a leader that did not receive the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseHold:
    """Publish; no answer is expected."""

    worker: WorkerId
    request: UnholdRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class SendReserve:
    """Ask; answer with KeepAnswered, or nothing if it fails."""

    worker: WorkerId
    request: KeepRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Write all or nothing; answer with Committed, CommitRefused or CommitUnknown."""

    number: int
    what: str
    gang: str
    writes: tuple[LedgerWrite, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFence:
    """Write the `leader` record again at its own revision (which voids what is in flight), then read the gang's record
    from the stream's leader; answer with Refenced. A conflict is LeadershipLost. Repeat until one or the other."""

    number: int
    gang: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendForm:
    """Ask, a few times. An answer that nothing is still starting becomes Formed. A refusal becomes MemberFailed
    (failed_at_start) for each of the worker's ranks; no answer is left to pings."""

    worker: WorkerId
    request: FormRequest
    untold: bool = False
    """Not all tokens of the gang's seats are known: those in the answer become SeatsShown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTeardown:
    """Ask, with a timeout longer than the grace; answer with TeardownConfirmed or TeardownUnanswered. `only`: no
    event."""

    worker: WorkerId
    request: TeardownRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class PingWorker:
    """Ask; answer with PingAnswered or, on no responders, PingUnanswered."""

    worker: WorkerId
    request: PingRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    event: GangEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """Answer the request with that number: a reply or an error."""

    reply_to: int
    reply: GangReply | None = None
    error: GanglineError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGangTimer:
    """Send a Tick at this time; replaces the previous SetGangTimer. None: no Tick is needed."""

    at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDown:
    """No longer leader: cancel every request, timer and commit in progress; unsubscribe. Owners ask another leader."""

    reason: str


Effect = (
    SendHold
    | ReleaseHold
    | SendReserve
    | Commit
    | WriteFence
    | SendForm
    | SendTeardown
    | PingWorker
    | Broadcast
    | AnswerRequest
    | SetGangTimer
    | StepDown
)
