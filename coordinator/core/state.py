"""The state of the coordinator and the effects it has decided on, shared by the parts of the core."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ...runtime.timers import TimerQueue
from ...schemas.messages.gangs import GangEvent, GangEventKind, GangReply, HoldRequest, SeatRequest, UnholdRequest
from ...schemas.names import WorkerId
from ...schemas.permissions.quotas import Quota
from ...schemas.records.gangs import GangSetRecord, GangSetStatus, GangSpec, Seat, StrictGangSpec, template_of
from ..model.commits import CommitKind, CommitQueue
from ..model.effects import AnswerRequest, Broadcast, Effect, ReleaseHold, SendHold
from ..model.events import HoldAnswered
from ..model.gang import GRANTED, REPLACING, Failure, GangStep, HoldAttempt, ManagedGang
from ..scheduling.inventory import Inventory
from ..scheduling.placement import Assignment, Placement
from ..scheduling.queue import GangQueue, QueueHead
from ..settings.settings import CoordinatorSettings
from ..sharding.shards import WHOLE, Shard
from .tenants import TenantUse, held_back, in_turn


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedGang:
    """What is kept about a gang that has ended."""

    owner_id: str
    reply: GangReply


@dataclass(slots=True, kw_only=True)
class StandingSetState:
    """A standing set: its declaration, and the state of its gangs."""

    record: GangSetRecord
    gangs: dict[str, None] = field(default_factory=dict[str, None])
    """Ids of its gangs that have not ended."""
    failures: int = 0
    """Gangs in a row that ended for good by their own fault; each makes the next one wait longer."""
    not_before: float = 0.0
    short: int = 0
    """How many gangs it may lack while it is rolled or moved with surge 1; 0 while there is room for both."""
    wait_from: float | None = None
    """Monotonic; since when old gangs have been waiting for their replacements, not counting replacements that are
    starting."""
    places: list[float] = field(default_factory=list[float])
    """`created_at` of gangs that made room, for their replacements."""
    served: bool = False
    """A gang of the declared shape has been ready for long enough: it is no longer rolled back automatically."""
    previous: StrictGangSpec | None = None
    """The previous declaration, which has served."""
    tries: int = 0
    """Failures of gangs of the declared shape since one of them was last ready for long enough."""
    trouble: str = ""
    """The last of these failures."""
    stopped: bool = False
    """The roll has failed: the set keeps its previous shape until it is declared again."""
    status: GangSetStatus | None = None
    """The status as in the ledger, or about to be written there."""

    @property
    def before(self) -> GangSpec | None:
        """The shape that served before, if it differs from the declared one."""
        spec = None if self.previous is None else template_of(self.previous)
        return None if spec == self.record.template else spec

    @property
    def template(self) -> GangSpec:
        """What its gangs should be."""
        return (self.before if self.stopped else None) or self.record.template

    def failed(self, gang: ManagedGang, failure: Failure, now: float) -> None:
        """One of its gangs has failed, by its own fault as far as is known."""
        long_ready = gang.ready and now >= gang.ready_at + self.record.min_ready_s
        gang.tried = not (self.stopped or long_ready or gang.spec != self.record.template)
        if not gang.tried:
            return
        self.tries += 1
        rank = "" if failure.rank is None else f" rank {failure.rank}"
        self.trouble = f"{gang.id}{rank}: {failure.text}"
        if not self.served and self.before is not None and self.tries >= self.record.roll_failures:
            self.stopped = True

    def take_place(self, otherwise: float) -> float:
        """`created_at` of a replacement."""
        return min(self.places.pop(0), otherwise) if self.places else otherwise


class SchedulerState:
    """The state of the core, shared by its parts."""

    def __init__(self, settings: CoordinatorSettings, shard: Shard = WHOLE) -> None:
        self.settings = settings
        self.shard = shard
        self.out: list[Effect] = []
        self.now = 0.0
        self.wall = 0.0
        self.draw = 0.5
        self.reset()

    def reset(self) -> None:
        """Forget everything: the ledger is authoritative."""
        self.term = 0
        self.leading = False
        self.gangs: dict[str, ManagedGang] = {}
        self.of_tenant: dict[str, dict[str, None]] = {}  # gangs by tenant, without our own account's
        self.queue = GangQueue()  # exactly the gangs in QUEUED
        self.head: QueueHead | None = None
        self.repairs: dict[str, None] = {}  # gangs in REPAIRING without an attempt
        self.inventory = Inventory()
        self.agenda: TimerQueue[tuple[str, ...]] = TimerQueue()
        self.ledger = CommitQueue(self.shard.leader_key)
        self.sets: dict[str, StandingSetState] = {}
        self.sets_to_look_at: dict[str, None] = {}
        self.ended: dict[str, FinishedGang] = {}
        self.on: dict[WorkerId, dict[str, None]] = {}  # gangs with seats on a worker
        self.attempts = 0
        self.made = 0
        self.look_for_room = False

    def add(self, gang: ManagedGang) -> None:
        self.gangs[gang.id] = gang
        if gang.tenant:
            self.of_tenant.setdefault(gang.tenant, {})[gang.id] = None
        if gang.gangset is not None and gang.gangset in self.sets:
            self.sets[gang.gangset].gangs[gang.id] = None
        if gang.step is GangStep.QUEUED:
            self.enqueue(gang)

    def remove(self, gang: ManagedGang) -> None:
        del self.gangs[gang.id]
        if gang.tenant:
            others = self.of_tenant[gang.tenant]
            del others[gang.id]
            if not others:
                del self.of_tenant[gang.tenant]
        self.look_for_room = True

    def quota_of(self, tenant: str, *, behind: ManagedGang | None = None) -> tuple[Quota, TenantUse] | None:
        """A tenant's quota and what it uses of it; None: our own account, which has none. `behind`: a gang that waits;
        what it needs counts as used if it is of the same tenant."""
        quota = self.settings.quotas.of(tenant)
        if quota is None:
            return None
        use = TenantUse.of(self.gangs[gang] for gang in self.of_tenant.get(tenant, ()))
        return quota, use.plus(behind.spec) if behind is not None and behind.tenant == tenant else use

    def used_by(self, tenant: str) -> int:
        """Slots in gangs that a tenant has, or our own account, without standing gangs."""
        ids = self.of_tenant.get(tenant, ()) if tenant else self.gangs
        found = (self.gangs[gang] for gang in ids)
        return TenantUse.of(gang for gang in found if gang.tenant == tenant and gang.gangset is None).slots

    def in_turn(self) -> Iterator[str]:
        """The queue in the order in which its gangs are tried; each may leave it when its turn has come."""
        queue = self.queue
        if self.of_tenant:
            queued = [self.gangs[gang] for gang in queue]
            yield from [gang.id for gang in in_turn(queued, self.used_by, self.settings.quotas.of)]
            return
        index = 0
        while index < len(queue):
            gang = queue.at(index)
            yield gang
            index += gang in self.gangs and self.gangs[gang].step is GangStep.QUEUED  # it has not left

    def held_back(self, gang: ManagedGang, *, behind: ManagedGang | None = None) -> str:
        """Why a gang in the queue waits for others of its tenant; empty: it need not."""
        found = self.quota_of(gang.tenant, behind=behind)
        return "" if found is None else held_back(gang.spec, gang.tenant, *found)

    def look_at_set(self, gang: ManagedGang) -> None:
        """Something has happened to a gang: its set, if it has one, may have to act."""
        if gang.gangset is not None:
            self.sets_to_look_at[gang.gangset] = None

    def enqueue(self, gang: ManagedGang) -> None:
        self.queue.add(gang.id, priority=gang.spec.priority, created_at=gang.created_at)
        self.look_for_room = True

    def set_place(self, gang: ManagedGang, created_at: float) -> None:
        """Change its age and so its place in the queue."""
        gang.created_at = created_at
        if gang.step is GangStep.QUEUED:
            self.queue.discard(gang.id)
            self.enqueue(gang)

    def seat(self, gang: ManagedGang) -> None:
        """The gang's seats are granted: count them."""
        for worker, seats in gang.seats_by_worker.items():
            self.on.setdefault(worker, {})[gang.id] = None
            self.inventory.grant(worker, sum(seat.slots for seat in seats))

    def unseat(self, gang: ManagedGang) -> None:
        """Inverse of `seat`, before the seats are changed."""
        for worker, seats in gang.seats_by_worker.items():
            here = self.on.get(worker, {})
            here.pop(gang.id, None)
            if not here:
                self.on.pop(worker, None)
            self.inventory.grant(worker, -sum(seat.slots for seat in seats))
        self.look_for_room = True

    def is_leaked(self, worker: WorkerId, gang_id: str) -> bool:
        """Whether that worker has no current or future member of that gang; checked again when the batch is built."""
        gang = self.gangs.get(gang_id)
        if gang is None:
            return True
        if gang.step in (GangStep.COMMITTING, GangStep.REJOINING):
            return False
        return gang.step not in GRANTED or worker not in gang.seats_by_worker

    # -- tentative slots: requested on all workers at once, and released on all at once ------------------------------

    def send_holds(self, gang: ManagedGang, placement: Placement) -> None:
        """Ask every worker of a placement to hold its seats."""
        assert gang.attempt is None
        settings = self.settings
        attempt = gang.attempt = HoldAttempt(
            number=self.next_attempt(),
            wanted=placement.by_worker(),
            hold_until=self.now + settings.hold_s,
        )
        for worker, seats in attempt.wanted.items():
            self.inventory.charge(worker, _slots(seats))
            self.out.append(
                SendHold(
                    worker=worker,
                    request=HoldRequest(
                        gang=gang.id,
                        generation=gang.next_generation,
                        attempt=attempt.number,
                        seats=tuple(SeatRequest(rank=s.rank, part=s.part, slots=s.slots) for s in seats),
                        hold_s=settings.hold_s,
                    ),
                    traceparent=gang.spec.traceparent,
                )
            )
        self.agenda.set(("hold", gang.id), self.now + settings.hold_wait_s)

    def accept_hold(self, attempt: HoldAttempt, event: HoldAnswered) -> None:
        """Record a worker's acceptance, with a token for each seat. Its seats are created now, while the others have
        not answered yet."""
        worker, wanted = event.worker, attempt.wanted[event.worker]
        facts = self.inventory.workers[worker].facts
        self.inventory.held(worker, _slots(wanted))
        attempt.answers[worker] = event
        attempt.tokens.update(zip(event.tokens, event.secrets, strict=False))
        attempt.fresh[worker] = [
            Seat(
                rank=item.rank,
                part=item.part,
                pool=worker.pool,
                worker=worker.worker,
                slots=item.slots,
                token=token,
                epoch=event.epoch,
                node=facts.node,
                zone=facts.zone,
                address=facts.address,
                labels=facts.labels,
            )
            for item, token in zip(wanted, event.tokens, strict=True)
        ]

    def abandon_holds(self, gang: ManagedGang) -> None:
        """Give up the attempt, if there is one. Every worker is notified, even if it refused or did not answer: its
        answer may have been lost. If this message is lost as well, the hold expires at the worker."""
        attempt, gang.attempt = gang.attempt, None
        self.agenda.cancel(("hold", gang.id))
        if attempt is None:
            return
        for worker, seats in attempt.wanted.items():
            if worker in attempt.answers:
                self.inventory.occupy(worker, -_slots(seats))
            else:
                self.inventory.charge(worker, -_slots(seats))
            self.release_hold(worker, gang.id, gang.next_generation, attempt.number)
        self.look_for_room = True

    def release_hold(self, worker: WorkerId, gang: str, generation: int, attempt: int) -> None:
        request = UnholdRequest(gang=gang, generation=generation, attempt=attempt)
        self.out.append(ReleaseHold(worker=worker, request=request))

    def next_attempt(self) -> int:
        """Increases across all leaders: holds of an earlier one are never taken for ours."""
        self.attempts += 1
        return self.term * 1_000_000_000 + self.attempts

    def commit(self, kind: CommitKind, gang: ManagedGang) -> None:
        self.ledger.push(kind, gang.id)

    def tell(
        self, kind: GangEventKind, gang: ManagedGang, *, unconfirmed: tuple[str, ...] = (), ends: bool = False
    ) -> None:
        self.out.append(
            Broadcast(
                event=GangEvent(
                    kind=kind,
                    gang=gang.id,
                    generation=gang.generation,
                    size=gang.spec.size,
                    rank=gang.rank,
                    reason=gang.reason,
                    fence=gang.fence,
                    restarts=gang.restarts,
                    failures=gang.failures,
                    lost=tuple(gang.lost),
                    ends=ends,
                    gangset=gang.gangset,
                    unconfirmed=unconfirmed,
                    at=self.wall,
                )
            )
        )

    def answer_waiters(self, gang: ManagedGang) -> None:
        if gang.waiters:
            reply = gang.describe(to_owner=True)
            self.out += [AnswerRequest(reply_to=waiter, reply=reply) for waiter in gang.waiters]
            gang.waiters.clear()


def _slots(seats: list[Assignment]) -> int:
    return sum(seat.slots for seat in seats)


def check(scheduler_state: SchedulerState) -> None:
    """Raises:
    AssertionError: names the gang and what is wrong with it.
    """
    assert not scheduler_state.out, "effects were left behind"
    if not scheduler_state.leading:
        assert not scheduler_state.gangs and scheduler_state.agenda.next_at is None, (
            "a coordinator that does not lead remembers gangs"
        )
        return
    queued = {gang.id for gang in scheduler_state.gangs.values() if gang.step is GangStep.QUEUED}
    assert set(scheduler_state.queue) == queued, "the queue is not exactly the queued gangs"
    for gang in scheduler_state.gangs.values():
        _check_gang(scheduler_state, gang)
    listed = {(tenant, gang_id) for tenant, its in scheduler_state.of_tenant.items() for gang_id in its}
    tenants = {(gang.tenant, gang.id) for gang in scheduler_state.gangs.values() if gang.tenant}
    assert listed == tenants, f"the gangs of tenants are {tenants}, counted are {listed}"
    for worker, here in scheduler_state.on.items():
        assert here, f"{worker} is listed without gangs"
        for gang_id in here:
            assert worker in scheduler_state.gangs[gang_id].seats_by_worker, f"{gang_id} is listed on {worker}"
    if scheduler_state.head is not None:
        assert scheduler_state.head.gang in scheduler_state.queue, "the head does not wait"
        waiting = scheduler_state.gangs[scheduler_state.head.gang]
        assert not waiting.aside, "the head is one that stands aside"
        assert not scheduler_state.held_back(waiting), "the head waits for its tenant's quota"
    assert not (scheduler_state.ledger.line and not scheduler_state.ledger.busy), "commits wait, and none is in flight"
    for worker, view in scheduler_state.inventory.workers.items():
        assert view.free == scheduler_state.inventory.free.get(worker) or view.draining, f"free slots of {worker}"
        held = [gang.attempt for gang in scheduler_state.gangs.values() if gang.attempt is not None]
        charged = sum(
            sum(seat.slots for seat in attempt.wanted[worker])
            for attempt in held
            if worker in attempt.wanted and worker not in attempt.answers
        )
        assert view.charged <= charged, f"{worker} is charged for {view.charged} slots, asked for {charged}"


def _check_gang(scheduler_state: SchedulerState, gang: ManagedGang) -> None:
    granted = gang.step in GRANTED
    assert gang.step is not GangStep.ENDED, f"{gang} is remembered"
    assert bool(gang.seats) == (granted or gang.step is GangStep.STOPPING), f"{gang} has {len(gang.seats)} seats"
    listed = all(gang.id in scheduler_state.on.get(worker, {}) for worker in gang.seats_by_worker)
    assert not granted or listed, f"{gang} is granted and not listed on its workers"
    assert granted or not (gang.starting or gang.ready), f"{gang} starts, or is ready, and is not granted"
    assert not (gang.starting and gang.ready), f"{gang} is ready, and {list(gang.starting)} have not started"
    ranks = [seat.rank for seat in gang.seats if seat.part == 0]
    assert not ranks or ranks == list(range(gang.spec.size)), f"{gang} has the ranks {ranks}"
    least, most = gang.spec.sizes
    assert least <= gang.spec.size <= most, f"{gang} has {gang.spec.size} members, and {least} to {most} were asked for"
    assert bool(gang.lost) == (gang.step in REPLACING), f"{gang} has lost {list(gang.lost)}"
    closing = gang.step in (GangStep.CLOSING, GangStep.STOPPING, GangStep.BACKOFF)
    assert (gang.closing is not None) == closing, f"{gang} closes: {gang.closing}"
    must_hold = gang.step in (GangStep.HOLDING, GangStep.COMMITTING, GangStep.REJOINING)
    assert (gang.attempt is not None) == must_hold or gang.step is GangStep.REPAIRING, f"{gang} holds: {gang.attempt}"
    waits = gang.step is GangStep.REPAIRING and gang.attempt is None
    assert (gang.id in scheduler_state.repairs) == waits, f"{gang} waits for repair"
    timers = {
        GangStep.HOLDING: "hold",
        GangStep.REPAIRING: "repair",
        GangStep.REJOINING: "repair",
        GangStep.STOPPING: "stop",
        GangStep.BACKOFF: "backoff",
    }
    timer = timers.get(gang.step)
    assert timer is None or (timer, gang.id) in scheduler_state.agenda, f"{gang} waits without the timer {timer!r}"
    commits = [
        *scheduler_state.ledger.line,
        *([scheduler_state.ledger.in_flight] if scheduler_state.ledger.in_flight else []),
    ]
    on_its_way = any(pending.gang == gang.id for pending in commits)
    writing = gang.step in (GangStep.COMMITTING, GangStep.REJOINING, GangStep.CLOSING)
    assert not writing or on_its_way, f"{gang} waits for a commit that is not in line"
