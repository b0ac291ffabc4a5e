"""What the coordinator remembers of one gang, the steps of its life with the only function that changes them, and what
becomes of it when it loses a member.

Laws:

1. `Gang.step` changes in `move` and nowhere else; a move that the table does not have raises and changes nothing.
2. Members are granted in the ledger exactly in the steps GRANTED (and, for an instant, in those of a commit in flight).
3. Every step but ENDED has a way to ENDED, and no step waits for ever: each has a timer, or an answer that is bounded
   by one, or it is the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from ...runtime.state_machine import IllegalMove, Stepping, diagram
from ...runtime.timers import exponential_s
from ...schemas.messages.gangs import GangReply
from ...schemas.names import MARK, WorkerId
from ...schemas.records.gangs import GangSpec, GangState, Rendezvous, RestartPolicy, Seat
from ..scheduling.placement import Assignment, TrialPlacement
from ..settings.scheduling import CoordinatorSettings
from .events import Cause, HoldAnswered


class GangStep(StrEnum):
    """The step of a gang's life."""

    QUEUED = "queued"
    """Waits for room, and holds nothing."""
    HOLDING = "holding"
    """Holds were sent, not all are answered."""
    COMMITTING = "committing"
    """All hold; the batch that grants the members is on its way."""
    FORMED = "formed"
    REPAIRING = "repairing"
    """Some members were lost, the others go on; replacements are looked for or held."""
    REJOINING = "rejoining"
    """The batch that swaps the lost members for new ones is on its way."""
    RETIRING = "retiring"
    """Serves on for a moment, callers were told to go elsewhere."""
    CLOSING = "closing"
    """The batch that ends the members is on its way."""
    STOPPING = "stopping"
    """The members were told to stop; not all have confirmed."""
    BACKOFF = "backoff"
    """Nothing is left of the old generation; waits before the next."""
    ENDED = "ended"


class Move(StrEnum):
    """A transition from one step to another."""

    PLACED = "placed"
    HELD = "held"
    REFUSED = "refused"
    COMMITTED = "committed"
    LOST_MEMBER = "lost_member"
    RETIRE = "retire"
    CLOSE = "close"
    RESTART = "restart"
    FINISH = "finish"
    ELAPSED = "elapsed"
    DROP = "drop"


TRANSITIONS: Final[dict[tuple[GangStep, Move], GangStep]] = {
    (GangStep.QUEUED, Move.PLACED): GangStep.HOLDING,
    (GangStep.QUEUED, Move.DROP): GangStep.ENDED,
    (GangStep.HOLDING, Move.HELD): GangStep.COMMITTING,
    (GangStep.HOLDING, Move.REFUSED): GangStep.QUEUED,
    (GangStep.HOLDING, Move.DROP): GangStep.ENDED,
    (GangStep.COMMITTING, Move.COMMITTED): GangStep.FORMED,
    (GangStep.COMMITTING, Move.REFUSED): GangStep.QUEUED,
    (GangStep.FORMED, Move.LOST_MEMBER): GangStep.REPAIRING,
    (GangStep.FORMED, Move.RETIRE): GangStep.RETIRING,
    (GangStep.FORMED, Move.CLOSE): GangStep.CLOSING,
    (GangStep.REPAIRING, Move.HELD): GangStep.REJOINING,
    (GangStep.REPAIRING, Move.LOST_MEMBER): GangStep.REPAIRING,
    (GangStep.REPAIRING, Move.CLOSE): GangStep.CLOSING,
    (GangStep.REJOINING, Move.COMMITTED): GangStep.FORMED,
    (GangStep.REJOINING, Move.REFUSED): GangStep.REPAIRING,
    (GangStep.RETIRING, Move.CLOSE): GangStep.CLOSING,
    (GangStep.CLOSING, Move.COMMITTED): GangStep.STOPPING,
    (GangStep.STOPPING, Move.RESTART): GangStep.BACKOFF,
    (GangStep.STOPPING, Move.FINISH): GangStep.ENDED,
    (GangStep.BACKOFF, Move.ELAPSED): GangStep.QUEUED,
    (GangStep.BACKOFF, Move.DROP): GangStep.ENDED,
}

GRANTED: Final = frozenset(
    {GangStep.FORMED, GangStep.REPAIRING, GangStep.REJOINING, GangStep.RETIRING, GangStep.CLOSING}
)
"""The ledger has the members' records."""

WAITING: Final = frozenset({GangStep.QUEUED, GangStep.HOLDING, GangStep.COMMITTING, GangStep.BACKOFF})
"""Not formed yet, or not formed again."""


class _Gang(Stepping[GangStep], Protocol):
    id: str


def move(gang: _Gang, what: Move) -> None:
    """Change the gang's step as the table says.

    Raises:
        IllegalMove: the table has no such move; the gang is unchanged.
    """
    found = TRANSITIONS.get((gang.step, what))
    if found is None:
        raise IllegalMove(f"gang {gang.id} cannot be {what.value} while it is {gang.step.value}")
    gang.step = found


def states_diagram() -> str:
    """The table as a mermaid state diagram, for the documentation."""
    edges = ((before.value, after.value, what.value) for (before, what), after in TRANSITIONS.items())
    return diagram(GangStep.QUEUED, edges, GangStep.ENDED)


def by_worker(seats: Iterable[Seat]) -> dict[WorkerId, list[Seat]]:
    found: dict[WorkerId, list[Seat]] = {}
    for seat in seats:
        found.setdefault(WorkerId(seat.pool, seat.worker), []).append(seat)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a generation ends."""

    cause: Cause
    ranks: tuple[int, ...] = ()
    """Of the members at fault or lost, ascending; empty when it is about the gang as a whole."""
    detail: str = ""

    @property
    def rank(self) -> int | None:
        return self.ranks[0] if self.ranks else None

    @property
    def text(self) -> str:
        return f"{self.cause.value}: {self.detail}" if self.detail else self.cause.value


@dataclass(slots=True, kw_only=True)
class HoldAttempt:
    """One attempt to hold slots on all workers of a placement."""

    number: int
    wanted: dict[WorkerId, list[Assignment]]
    """Workers whose hold was sent."""
    answers: dict[WorkerId, HoldAnswered] = field(default_factory=dict[WorkerId, HoldAnswered])
    """Accepted ones. All of `wanted` have answered: held."""
    hold_until: float
    """Measured from before the first hold was sent: workers keep the slots at least so long."""

    fresh: dict[WorkerId, list[Seat]] = field(default_factory=dict[WorkerId, list[Seat]])
    """What was answered, as seats of the coming generation."""
    tokens: dict[str, str] = field(default_factory=dict[str, str])
    """Of these seats, by public id."""
    seats: tuple[Seat, ...] = ()
    """All seats of the coming generation; gathered when the batch is made."""
    rendezvous: Rendezvous | None = None

    @property
    def held(self) -> bool:
        return len(self.answers) == len(self.wanted)


@dataclass(slots=True, kw_only=True)
class TeardownProgress:
    """The end of a generation, from the decision until the last confirmation."""

    failure: Failure
    ends: bool
    """For good; else a restart follows."""
    delay_s: float = 0.0
    """... after so long."""
    waiting: dict[WorkerId, None] = field(default_factory=dict[WorkerId, None])
    """Have not confirmed yet."""
    until: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class ManagedGang:
    """One gang. Only `move` changes its `step`."""

    id: str
    spec: GangSpec
    owner_id: str
    """Public id of the owner's token. Empty: a standing gang."""
    owner_token: str | None = None
    """Once the owner has shown it to this leader."""
    tokens: dict[str, str] = field(default_factory=dict[str, str])
    """Tokens of the seats by public id, for the owner alone. A new leader learns them from the workers."""
    gangset: str | None = None
    made: int = 0
    """Standing gangs that this leader made are numbered; those made before it have 0."""
    aside: bool = False
    """A standing gang's replacement that waits for room beside it: never the head, keeps nothing."""
    created_at: float
    """Unix time; its age in the queue, also after a restart or under another leader. That of the gang before, for one
    that came in the place of another."""
    queued_at: float
    """Monotonic; since when it waits now."""
    step: GangStep = GangStep.QUEUED
    generation: int = 1
    """Of the seats; while it waits, of those to come."""
    failures: int = 0
    """Those that count against `max_restarts`."""
    streak: int = 0
    """Failures since it was last stable."""
    waiters: list[int] = field(default_factory=list[int])
    """Acquire requests to be answered when it is formed."""
    queue_waiters: list[int] = field(default_factory=list[int])
    """Those that did not want to wait: to be answered when the ledger has its place in the queue."""
    releasers: list[int] = field(default_factory=list[int])
    """Release requests to be answered when it has ended."""
    deadline_at: float | None = None
    """Monotonic; only until it is formed for the first time."""
    deadline_wall: float | None = None
    persisted: bool = False
    """The ledger has (or is about to have) a record that must be ended."""
    lost_record: bool = False
    """The ledger vanished while a grant was on its way: if that comes to nothing, what was there before is written."""
    seats: tuple[Seat, ...] = ()
    """Granted; empty exactly in the steps before the first commit and after a teardown's end."""
    rendezvous: Rendezvous | None = None
    fence: int = 0
    starting: dict[int, None] = field(default_factory=dict[int, None])
    """Ranks of this generation that have not said that they have started."""
    ready: bool = False
    """All have started, and that was told. (Of standing gangs it is in the ledger then.)"""
    ready_at: float = 0.0
    """Monotonic."""
    formed_at: float = 0.0
    """Monotonic."""
    formed_wall: float = 0.0
    fit: TrialPlacement | None = None
    """Where it had room when it was asked for, if it had; until it is tried for the first time."""
    attempt: HoldAttempt | None = None
    """In HOLDING, COMMITTING, REJOINING, and in REPAIRING while replacements are held."""
    doom: Failure | None = None
    """Came while a grant was on its way; acted on when its fate is known."""
    lost: dict[int, None] = field(default_factory=dict[int, None])
    """Ranks to be replaced; only in REPAIRING and REJOINING."""
    not_before: float = 0.0
    """After a refusal: no new try before."""
    refusals: int = 0
    closing: TeardownProgress | None = None
    """In CLOSING, STOPPING and BACKOFF."""
    reason: str = ""
    rank: int | None = None
    _placed: tuple[tuple[Seat, ...], dict[WorkerId, list[Seat]]] = field(default=((), {}), repr=False)
    """Seats, and the same by worker; to be made anew when `seats` are others."""

    def __repr__(self) -> str:
        return f"<ManagedGang {self.id} {self.step.value} generation={self.generation} size={self.spec.size}>"

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def state(self) -> GangState:
        """As the ledger would have it."""
        match self.step:
            case GangStep.FORMED | GangStep.REPAIRING | GangStep.REJOINING:
                return GangState.FORMED
            case GangStep.RETIRING:
                return GangState.RETIRING
            case GangStep.CLOSING | GangStep.STOPPING:
                return GangState.TEARING_DOWN
            case GangStep.ENDED:
                return GangState.ENDED
            case GangStep.QUEUED | GangStep.HOLDING | GangStep.COMMITTING | GangStep.BACKOFF:
                return GangState.QUEUED

    @property
    def serves(self) -> bool:
        """Callers may be sent to it."""
        return self.ready and self.step is GangStep.FORMED

    @property
    def restarts(self) -> int:
        """How often it was formed again or repaired, for whatever reason: the generations before this one."""
        return self.generation - 1

    @property
    def next_generation(self) -> int:
        """Of the seats that an attempt is about."""
        return self.generation + 1 if self.seats else self.generation

    @property
    def seats_by_worker(self) -> Mapping[WorkerId, list[Seat]]:
        if self._placed[0] is not self.seats:
            self._placed = (self.seats, by_worker(self.seats))
        return self._placed[1]

    @property
    def untold(self) -> list[WorkerId]:
        """Workers with seats whose tokens are not known (yet)."""
        return [
            worker
            for worker, seats in self.seats_by_worker.items()
            if any(seat.token.startswith(MARK) and seat.token not in self.tokens for seat in seats)
        ]

    def describe(self, *, to_owner: bool = False) -> GangReply:
        seats = self.seats
        if to_owner and self.tokens:
            seats = tuple(seat.model_copy(update={"token": self.tokens.get(seat.token, seat.token)}) for seat in seats)
        return GangReply(
            id=self.id,
            state=self.state,
            step=self.step.value,
            generation=self.generation,
            size=self.spec.size,
            sizes=self.spec.sizes if self.spec.elastic else None,
            seats=seats,
            fence=self.fence,
            rendezvous=self.rendezvous,
            owner_token=self.owner_token if to_owner else None,
            ttl_s=self.spec.ttl_s,
            restarts=self.restarts,
            failures=self.failures,
            lost=tuple(self.lost),
            priority=self.spec.priority,
            owner=self.spec.owner,
            gangset=self.gangset,
            reason=self.reason,
            rank=self.rank,
            created_at=self.created_at,
            formed_at=self.formed_wall,
            ready=self.ready and self.step in (GangStep.FORMED, GangStep.RETIRING),
        )


UNCOUNTED = frozenset({Cause.DRAINED, Cause.PREEMPTED})
"""Planned: no fault of the gang, so they are no failures, which `max_restarts` bounds."""

FINAL = frozenset(
    {Cause.RELEASED, Cause.BY_OPERATOR, Cause.OWNER_LOST, Cause.REPLACED, Cause.DEADLINE, Cause.RESHARDED}
)
"""Nobody wants it any more."""


class RestartDecision(StrEnum):
    END = "end"
    RESTART = "restart"
    REPAIR = "repair"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    fate: RestartDecision
    counted: bool = False
    """As one failure of the gang, however many members failed."""
    delay_s: float = 0.0
    """Before the next generation is queued, or replacements are looked for."""


def decide(
    spec: GangSpec,
    cause: Cause,
    *,
    failures: int,
    streak: int,
    draw: float,
    settings: CoordinatorSettings,
    some_left: bool = True,
    repairing: bool = False,
) -> Verdict:
    """What a gang does after a failure: a decision, without state. Every loss comes here.

    Args:
        failures: those before this one that counted.
        streak: failures since the gang was last stable; the backoff doubles with each.
        draw: from [0, 1); the wait is between half of the backoff and all of it.
        some_left: not all of its members are lost.
        repairing: replacements for earlier losses are being looked for. That failure was counted, and this one is part
            of it.
    """
    if cause in FINAL:
        return Verdict(fate=RestartDecision.END)
    if repairing and cause is not Cause.PREEMPTED:
        if some_left and cause is not Cause.NOT_REPAIRED:
            return Verdict(fate=RestartDecision.REPAIR)
        return Verdict(fate=RestartDecision.RESTART, delay_s=backoff_s(spec, max(streak - 1, 0), draw, settings))
    counted = cause not in UNCOUNTED
    if spec.restart is RestartPolicy.FAIL:
        return Verdict(fate=RestartDecision.END, counted=counted)
    if counted and spec.max_restarts is not None and failures >= spec.max_restarts:
        return Verdict(fate=RestartDecision.END)
    if not counted:
        return Verdict(fate=RestartDecision.RESTART)
    if spec.restart is RestartPolicy.RESTART_MEMBER and some_left:
        # The first loss since the gang was stable is repaired at once.
        delay_s = backoff_s(spec, streak - 1, draw, settings) if streak else 0.0
        return Verdict(fate=RestartDecision.REPAIR, counted=True, delay_s=delay_s)
    return Verdict(fate=RestartDecision.RESTART, counted=counted, delay_s=backoff_s(spec, streak, draw, settings))


def backoff_s(spec: GangSpec, streak: int, draw: float, settings: CoordinatorSettings) -> float:
    """Exponential with jitter: half of it is certain, so that a gang which fails at once never restarts in a loop."""
    full = exponential_s(spec.backoff_s, settings.restart_max_s, streak)
    return full * (0.5 + draw / 2)
