"""The state of one gang, its life cycle with the only function that changes its step, and the decision about it after a
failure.

Laws:

1. `Gang.step` changes in `move` and nowhere else; a move that is not in the table raises and changes nothing.
2. Members are granted in the ledger exactly in the steps GRANTED (and briefly in those of a commit in flight).
3. Every step except ENDED leads to ENDED, and no step waits forever: each has a timer, an answer limited by a timer, or
   is the queue.
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
from ..settings.settings import CoordinatorSettings
from .events import Cause, HoldAnswered


class GangStep(StrEnum):
    """A step in a gang's life cycle."""

    QUEUED = "queued"
    """Waits for room and holds nothing."""
    HOLDING = "holding"
    """Holds were sent; not all are answered."""
    COMMITTING = "committing"
    """All workers hold; the batch that grants the members is in flight."""
    FORMED = "formed"
    REPAIRING = "repairing"
    """Some members were lost, the others continue; looking for replacements or holding them."""
    REJOINING = "rejoining"
    """The batch that replaces the lost members is in flight."""
    RETIRING = "retiring"
    """Still serves for a moment; callers send new requests elsewhere."""
    CLOSING = "closing"
    """The batch that ends the members is in flight."""
    STOPPING = "stopping"
    """The members were asked to stop; not all have confirmed."""
    BACKOFF = "backoff"
    """The old generation is gone; waits before the next."""
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

REPLACING: Final = frozenset({GangStep.REPAIRING, GangStep.REJOINING})
"""Lost members are being replaced."""

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
    """Ranks of the members at fault or lost, ascending; empty if it concerns the whole gang."""
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
    """Accepted holds. When all of `wanted` have answered: held."""
    hold_until: float
    """Measured from before the first hold was sent: workers keep the slots at least until then."""

    fresh: dict[WorkerId, list[Seat]] = field(default_factory=dict[WorkerId, list[Seat]])
    """The accepted holds as seats of the coming generation."""
    tokens: dict[str, str] = field(default_factory=dict[str, str])
    """Tokens of these seats by public id."""
    seats: tuple[Seat, ...] = ()
    """All seats of the coming generation; collected when the batch is built."""
    placed: dict[WorkerId, list[Seat]] = field(default_factory=dict[WorkerId, list[Seat]])
    """The same by worker."""
    rendezvous: Rendezvous | None = None

    @property
    def held(self) -> bool:
        return len(self.answers) == len(self.wanted)


@dataclass(slots=True, kw_only=True)
class TeardownProgress:
    """The end of a generation, from the decision until the last confirmation."""

    failure: Failure
    ends: bool
    """The gang ends for good; otherwise a restart follows."""
    delay_s: float = 0.0
    """Delay before the restart."""
    waiting: dict[WorkerId, None] = field(default_factory=dict[WorkerId, None])
    """Workers that have not confirmed yet."""
    until: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class ManagedGang:
    """One gang. Only `move` changes its `step`."""

    id: str
    spec: GangSpec
    owner_id: str
    """Public id of the owner's token. Empty: a standing gang."""
    owner_token: str | None = None
    """Set once the owner has shown it to this leader."""
    tenant: str = ""
    """The account of its owner; empty: our own."""
    tokens: dict[str, str] = field(default_factory=dict[str, str])
    """Tokens of the seats by public id, only for the owner. A new leader learns them from the workers."""
    gangset: str | None = None
    made: int = 0
    """Number of a standing gang that this leader created; 0 for those created earlier."""
    aside: bool = False
    """A standing gang's replacement that waits for room beside it: never the head, reserves nothing."""
    created_at: float
    """Unix time; determines its age in the queue, also after a restart or under another leader. A gang that took the
    place of another has that gang's."""
    queued_at: float
    """Monotonic; start of its current wait, or of the last one."""
    queued_wall: float = 0.0
    """The same as Unix time."""
    step: GangStep = GangStep.QUEUED
    generation: int = 1
    """Generation of the seats; while it waits, of the coming seats."""
    failures: int = 0
    """Failures that count against `max_restarts`."""
    tried: bool = False
    """Whether its last failure counts against the roll of its standing set."""
    streak: int = 0
    """Failures since it was last stable."""
    waiters: list[int] = field(default_factory=list[int])
    """Acquire requests to be answered when it is formed."""
    queue_waiters: list[int] = field(default_factory=list[int])
    """Acquire requests with `wait: false`, to be answered when the ledger has its place in the queue."""
    releasers: list[int] = field(default_factory=list[int])
    """Release requests to be answered when it has ended."""
    deadline_at: float | None = None
    """Monotonic; only until it is formed for the first time."""
    deadline_wall: float | None = None
    persisted: bool = False
    """The ledger has (or is about to have) a record that must be ended."""
    lost_record: bool = False
    """The ledger vanished while a grant was in flight: if the grant fails, the previous record is written."""
    seats: tuple[Seat, ...] = ()
    """Granted seats; empty exactly in the steps before the first commit and after a teardown's end."""
    rendezvous: Rendezvous | None = None
    fence: int = 0
    starting: dict[int, None] = field(default_factory=dict[int, None])
    """Ranks of this generation that have not reported that they have started."""
    ready: bool = False
    """All have started, and that was announced. (For standing gangs the ledger has it then.)"""
    ready_at: float = 0.0
    """Monotonic. The ledger does not have it: under a new leader it begins again, so that a roll waits longer."""
    formed_wall: float = 0.0
    fit: TrialPlacement | None = None
    """Its placement at the time of the request, if there was room; until the first attempt."""
    attempt: HoldAttempt | None = None
    """In HOLDING, COMMITTING, REJOINING, and in REPAIRING while replacements are held."""
    doom: Failure | None = None
    """Failure that arrived while a grant was in flight; handled when the outcome of the grant is known."""
    lost: dict[int, None] = field(default_factory=dict[int, None])
    """Ranks to be replaced; only in REPAIRING and REJOINING."""
    not_before: float = 0.0
    """After a refusal: no new attempt before this time."""
    refusals: int = 0
    closing: TeardownProgress | None = None
    """In CLOSING, STOPPING and BACKOFF."""
    reason: str = ""
    rank: int | None = None
    _placed: tuple[tuple[Seat, ...], dict[WorkerId, list[Seat]]] = field(default=((), {}), repr=False)
    """Seats, and the same by worker; rebuilt when `seats` has changed."""

    def __repr__(self) -> str:
        return f"<ManagedGang {self.id} {self.step.value} generation={self.generation} size={self.spec.size}>"

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def state(self) -> GangState:
        """The state as in the ledger."""
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
        """Whether callers may use it."""
        return self.ready and self.step is GangStep.FORMED

    @property
    def restarts(self) -> int:
        """How often it was formed again or repaired, for whatever reason: the generations before this one."""
        return self.generation - 1

    @property
    def recorded_failures(self) -> int:
        """Failures as in the ledger, where its seats still include the lost ones while these are replaced: a new leader
        finds that loss and counts it."""
        return self.failures - (self.step in REPLACING)

    @property
    def given_up(self) -> bool:
        """Whether its owner was silent for too long while a commit was in flight: it ends after that, unless the owner
        is heard again."""
        return self.doom is not None and self.doom.cause is Cause.OWNER_LOST

    @property
    def next_generation(self) -> int:
        """Generation of the seats of an attempt."""
        return self.generation + 1 if self.seats else self.generation

    @property
    def seats_by_worker(self) -> Mapping[WorkerId, list[Seat]]:
        if self._placed[0] is not self.seats:
            self._placed = (self.seats, by_worker(self.seats))
        return self._placed[1]

    def take_seats(self, attempt: HoldAttempt) -> None:
        """They are granted."""
        self.seats, self.rendezvous = attempt.seats, attempt.rendezvous
        self._placed = (attempt.seats, attempt.placed)

    @property
    def slots(self) -> int:
        """Slots that it has or is asking workers for: what it uses of its tenant's quota."""
        if self.seats:
            return sum(seat.slots for seat in self.seats)
        attempt = self.attempt
        return 0 if attempt is None else sum(item.slots for items in attempt.wanted.values() for item in items)

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
            tenant=self.tenant,
            gangset=self.gangset,
            reason=self.reason,
            rank=self.rank,
            created_at=self.created_at,
            queued_at=self.queued_wall,
            formed_at=self.formed_wall,
            ready=self.ready and self.step in (GangStep.FORMED, GangStep.RETIRING),
        )


UNCOUNTED = frozenset({Cause.DRAINED, Cause.PREEMPTED})
"""Planned: not the gang's fault, so they do not count as failures, which `max_restarts` limits."""

FINAL = frozenset(
    {Cause.RELEASED, Cause.BY_OPERATOR, Cause.OWNER_LOST, Cause.REPLACED, Cause.DEADLINE, Cause.RESHARDED}
)
"""Nobody wants the gang any longer."""


class RestartDecision(StrEnum):
    END = "end"
    RESTART = "restart"
    REPAIR = "repair"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    fate: RestartDecision
    counted: bool = False
    """Whether it counts as a failure of the gang (one, however many members failed)."""
    delay_s: float = 0.0
    """Delay before the next generation is queued or the search for replacements begins."""


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
    """Decide what a gang does after a failure. Stateless; called for every loss.

    Args:
        failures: earlier failures that counted.
        streak: failures since the gang was last stable; the backoff doubles with each.
        draw: from [0, 1); the wait is between half of the backoff and all of it.
        some_left: not all of its members are lost.
        repairing: the search for replacements for earlier losses continues. That failure was counted, and this one is
            part of it.
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
    """Exponential with jitter: at least half of it, so that a gang that fails at once never restarts in a tight
    loop."""
    full = exponential_s(spec.backoff_s, settings.restart_max_s, streak)
    return full * (0.5 + draw / 2)
