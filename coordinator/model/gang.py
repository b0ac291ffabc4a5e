"""What the coordinator remembers of one gang."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...schemas.messages.gangs import GangReply
from ...schemas.names import WorkerId
from ...schemas.records.gangs import GangSpec, GangState, Rendezvous, Seat
from ..scheduling.placement import Assignment, TrialPlacement
from .events import Cause, HoldAnswered
from .states import GangStep


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
    """One try to hold slots on all workers of a placement."""

    number: int
    wanted: dict[WorkerId, list[Assignment]]
    """Workers whose hold was sent."""
    answers: dict[WorkerId, HoldAnswered] = field(default_factory=dict[WorkerId, HoldAnswered])
    """Accepted ones. All of `wanted` have answered: held."""
    hold_until: float
    """Measured from before the first hold was sent: workers keep the slots at least so long."""

    fresh: dict[WorkerId, list[Seat]] = field(default_factory=dict[WorkerId, list[Seat]])
    """What was answered, as seats of the coming generation."""
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
    """One gang. `step` is changed only by states.move."""

    id: str
    spec: GangSpec
    owner_token: str
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

    def describe(self, *, to_owner: bool = False) -> GangReply:
        return GangReply(
            id=self.id,
            state=self.state,
            step=self.step.value,
            generation=self.generation,
            size=self.spec.size,
            sizes=self.spec.sizes if self.spec.elastic else None,
            seats=self.seats,
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
