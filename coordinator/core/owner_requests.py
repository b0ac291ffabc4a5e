"""Requests of owners: acquire, renew and release a gang; and why a gang waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from ...schemas.errors.base import (
    GangEnded,
    GangImpossible,
    GanglineError,
    GangNotFormed,
    NotOwner,
    QueueFull,
    StaleGeneration,
    UnknownGang,
)
from ...schemas.messages.gangs import AcquireRequest, GangAhead, GangEventKind, GangObstacle, GangWhyReply, OwnedRequest
from ...schemas.names import WorkerId, is_token_of, public_id
from ...schemas.permissions.quotas import exceeded
from ...schemas.records.gangs import GangSpec
from ...schemas.text import count_of
from ..model.commits import CommitKind
from ..model.effects import AnswerRequest
from ..model.events import AcquireAsked, Cause, EndAsked, ReleaseAsked, RenewAsked
from ..model.gang import FINAL, GRANTED, Failure, GangStep, ManagedGang
from ..scheduling.placement import NoPlacement, TrialPlacement, find, lacks, place
from ..scheduling.queue import guard, target_of
from .commit_pipeline import GrantPipeline
from .members import Teardown
from .state import SchedulerState
from .tenants import not_entitled


class OwnerRequests:
    """Answers requests of owners. A part of the core."""

    def __init__(self, scheduler_state: SchedulerState, teardown: Teardown, granting: GrantPipeline) -> None:
        self._state = scheduler_state
        self._teardown = teardown
        self._granting = granting

    def acquire(self, event: AcquireAsked) -> None:
        """Queue a gang, or find the one that was requested before."""
        scheduler_state, request = self._state, event.request
        gang_id = request.id or event.new_id
        gang = scheduler_state.gangs.get(gang_id)
        if gang is not None:
            self._again(gang, request, event.reply_to)
            return
        ended = scheduler_state.ended.get(gang_id)
        if ended is not None:
            if not is_token_of(request.owner_token, ended.owner_id):
                self._refuse(event.reply_to, _not_owner(gang_id))
            else:
                self._refuse(event.reply_to, _ended(gang_id, ended.reply.reason))
            return
        if len(scheduler_state.queue) >= scheduler_state.settings.max_queued:
            self._refuse(
                event.reply_to,
                QueueFull(f"the queue is full, with {count_of(len(scheduler_state.queue), 'gang')}: ask again later"),
            )
            return
        error = self._above_quota(request, event.tenant) if event.tenant else None
        if error is not None:
            self._refuse(event.reply_to, error)
            return
        # The size of an elastic gang depends on which gangs wait when it is placed.
        fit = None if request.elastic else TrialPlacement.of(request, scheduler_state.inventory.free)
        error = self._impossible(request.smallest) if fit is None and not request.wait_for_workers else None
        if error is not None:
            self._refuse(event.reply_to, error)
            return
        self._queue(event, gang_id, fit)

    def _queue(self, event: AcquireAsked, gang_id: str, fit: TrialPlacement | None) -> None:
        scheduler_state, request = self._state, event.request
        owner_token = request.owner_token or event.new_token
        gang = ManagedGang(
            id=gang_id,
            spec=request.relaxed(),
            owner_id=public_id(owner_token),
            owner_token=owner_token,
            tenant=event.tenant,
            created_at=scheduler_state.wall,
            queued_at=scheduler_state.now,
            queued_wall=scheduler_state.wall,
            fit=fit,
        )
        if request.deadline_s is not None:
            gang.deadline_at = scheduler_state.now + request.deadline_s
            gang.deadline_wall = scheduler_state.wall + request.deadline_s
            scheduler_state.agenda.set(("deadline", gang.id), gang.deadline_at)
        scheduler_state.add(gang)
        # Its owner must renew it while it waits, too: slots are reserved for the head of the queue.
        scheduler_state.agenda.set(("owner", gang.id), scheduler_state.now + gang.spec.ttl_s)
        if request.wait:
            gang.waiters.append(event.reply_to)
        else:
            # Its owner will not send the request again, so the ledger remembers it.
            gang.queue_waiters.append(event.reply_to)
            gang.persisted = True
            scheduler_state.commit(CommitKind.QUEUE, gang)
        scheduler_state.tell(GangEventKind.QUEUED, gang)

    def _again(self, gang: ManagedGang, request: AcquireRequest, reply_to: int) -> None:
        if not self._shown(gang, request.owner_token):
            self._refuse(reply_to, _not_owner(gang.id))
            return
        if ("owner", gang.id) in self._state.agenda or gang.given_up:
            # Counts as a renewal: an owner that gets an answer counts the time to live from its request.
            self._renewed(gang)
        if gang.step in (GangStep.CLOSING, GangStep.STOPPING) and gang.closing is not None and gang.closing.ends:
            self._refuse(reply_to, _ended(gang.id, gang.reason))
        elif gang.seats and gang.step in GRANTED - {GangStep.CLOSING}:
            if self._granting.ask_tokens(gang) and request.wait:
                gang.waiters.append(reply_to)
            else:
                self._state.out.append(AnswerRequest(reply_to=reply_to, reply=gang.describe(to_owner=True)))
        elif request.wait:
            gang.waiters.append(reply_to)
        elif gang.queue_waiters:
            gang.queue_waiters.append(reply_to)
        else:
            self._state.out.append(AnswerRequest(reply_to=reply_to, reply=gang.describe(to_owner=True)))

    def _above_quota(self, request: AcquireRequest, tenant: str) -> GanglineError | None:
        found = self._state.quota_of(tenant)
        if found is None:
            return None
        quota, use = found
        if quota.gangs_waiting is not None and use.waiting >= quota.gangs_waiting:
            return exceeded(
                tenant,
                "gangs_waiting",
                quota.gangs_waiting,
                use.waiting,
                "gangs waiting",
                "ask again when one has formed",
            )
        return not_entitled(request, tenant, quota)

    def _impossible(self, spec: GangSpec) -> GangImpossible | None:
        """Why this gang, for which there is no room now, is not even queued; None if that is not proven."""
        total = self._state.inventory.total
        if find(spec, total) is NoPlacement.PROVEN:
            missing = lacks(spec, total)
            text = "; ".join(lack.text for lack in missing)
            return GangImpossible(
                f"not enough workers registered for this gang: {text}",
                details={"lacks": [lack.text for lack in missing], "pools": sorted({lack.pool for lack in missing})},
            )
        return None

    def renew(self, event: RenewAsked) -> None:
        gang = self._owned(event.request, event.reply_to)
        if gang is None:
            return
        if gang.closing is not None and gang.closing.ends:
            self._refuse(event.reply_to, _ended(gang.id, gang.reason))
            return
        if gang.gangset is None:
            self._renewed(gang)
        self._granting.ask_tokens(gang)
        self._state.out.append(AnswerRequest(reply_to=event.reply_to, reply=gang.describe(to_owner=True)))

    def _renewed(self, gang: ManagedGang) -> None:
        self._state.agenda.set(("owner", gang.id), self._state.now + gang.spec.ttl_s)
        if gang.given_up:
            gang.doom = None

    def release(self, event: ReleaseAsked) -> None:
        """Answered when every slot has been returned or the wait has timed out. Idempotent."""
        scheduler_state, request = self._state, event.request
        ended = scheduler_state.ended.get(request.id)
        if ended is not None and is_token_of(request.owner_token, ended.owner_id):
            scheduler_state.out.append(AnswerRequest(reply_to=event.reply_to, reply=ended.reply))
            return
        gang = self._owned(request, event.reply_to)
        if gang is not None:
            gang.releasers.append(event.reply_to)
            self._teardown.end(gang, Failure(cause=Cause.RELEASED))

    def end(self, event: EndAsked) -> None:
        """Like `release`, for an operator: no owner token is needed."""
        scheduler_state, request = self._state, event.request
        ended = scheduler_state.ended.get(request.id)
        gang = scheduler_state.gangs.get(request.id)
        if gang is not None:
            gang.releasers.append(event.reply_to)
            self._teardown.end(gang, Failure(cause=Cause.BY_OPERATOR, detail=request.reason))
        elif ended is not None:
            scheduler_state.out.append(AnswerRequest(reply_to=event.reply_to, reply=ended.reply))
        else:
            self._refuse(event.reply_to, _unknown(request.id))

    def _owned(self, request: OwnedRequest, reply_to: int) -> ManagedGang | None:
        scheduler_state = self._state
        gang = scheduler_state.gangs.get(request.id)
        if gang is None:
            ended = scheduler_state.ended.get(request.id)
            known = ended is not None and is_token_of(request.owner_token, ended.owner_id)
            if ended is not None and not known:
                self._refuse(reply_to, _not_owner(request.id))
            elif ended is not None:
                self._refuse(reply_to, _ended(request.id, ended.reply.reason))
            else:
                self._refuse(reply_to, _unknown(request.id))
            return None
        if not self._shown(gang, request.owner_token):
            self._refuse(reply_to, _not_owner(gang.id))
            return None
        if request.generation is not None and request.generation != gang.generation:
            text = f"gang {gang.id} is in generation {gang.generation}, not {request.generation}: get it again"
            self._refuse(reply_to, StaleGeneration(text, details={"generation": gang.generation}))
            return None
        return gang

    @staticmethod
    def _shown(gang: ManagedGang, owner_token: str | None) -> bool:
        """Whether this is the owner's token."""
        if gang.owner_token is None and is_token_of(owner_token, gang.owner_id):
            gang.owner_token = owner_token
        return owner_token is not None and owner_token == gang.owner_token

    # -- time --------------------------------------------------------------------------------------------------------

    def silent(self, gang: ManagedGang) -> None:
        """Not renewed within its time to live, nor requested again while it waits."""
        if gang.closing is not None and gang.closing.failure.cause in FINAL:
            return
        failure = Failure(cause=Cause.OWNER_LOST, detail=f"not renewed for {gang.spec.ttl_s:g} s")
        error: GanglineError | None = None
        if gang.step in (GangStep.QUEUED, GangStep.HOLDING) and gang.waiters:
            texts = standing(self._state, gang)
            error = GangNotFormed(
                f"gang {gang.id} waited and was not asked for again for its ttl_s of {gang.spec.ttl_s:g} s: "
                f"send the same request again while you wait, renew it, or give a longer ttl_s; "
                f"what it waited for: {'; '.join(texts)}",
                details={"lacks": texts},
            )
        self._teardown.end(gang, failure, error)

    def too_late(self, gang: ManagedGang) -> None:
        """The deadline passed before it was formed. A commit in flight decides: if it succeeds, the gang is formed."""
        if gang.step not in (GangStep.QUEUED, GangStep.HOLDING):
            return
        texts = standing(self._state, gang)
        text = f"gang {gang.id} was not formed by its deadline: {'; '.join(texts)}"
        error = GangNotFormed(text, details={"lacks": texts})
        self._teardown.drop(gang, Failure(cause=Cause.DEADLINE), error)

    def _refuse(self, reply_to: int, error: GanglineError) -> None:
        self._state.out.append(AnswerRequest(reply_to=reply_to, error=error))


def _not_owner(gang: str) -> NotOwner:
    return NotOwner(f"gang {gang} belongs to somebody else: show its owner_token")


def _unknown(gang: str) -> UnknownGang:
    return UnknownGang(f"gang {gang} is not known: it was never acquired, or ended a while ago")


def _ended(gang: str, reason: str) -> GangEnded:
    return GangEnded(f"gang {gang} has ended ({reason}): acquire a new one", details={"reason": reason})


def why(scheduler_state: SchedulerState, gang_id: str) -> GangWhyReply | None:
    """None: no such gang."""
    gang = scheduler_state.gangs.get(gang_id)
    if gang is None:
        ended = scheduler_state.ended.get(gang_id)
        return (
            None if ended is None else GangWhyReply(id=gang_id, step=GangStep.ENDED.value, lacks=(ended.reply.reason,))
        )
    head = scheduler_state.head if scheduler_state.head is not None and scheduler_state.head.gang == gang_id else None
    target: Mapping[WorkerId, int] = head.target.slots if head is not None else {}
    if not target and gang.step is GangStep.QUEUED:
        target = target_of(gang.spec, scheduler_state.inventory).slots
    return GangWhyReply(
        id=gang_id,
        step=gang.step.value,
        place=scheduler_state.queue.place_of(gang_id),
        lacks=tuple(_lacks(scheduler_state, gang)),
        target={str(worker): slots for worker, slots in target.items()},
        kept={str(worker): slots for worker, slots in head.kept.items()} if head is not None else {},
        obstacles=tuple(obstacle for worker in target for obstacle in _obstacles(scheduler_state, gang_id, worker)),
        ahead=tuple(_ahead(scheduler_state, gang_id)),
    )


_MOST_AHEAD: Final = 3
"""How many of the gangs ahead are named."""


def _ahead(scheduler_state: SchedulerState, gang_id: str) -> Iterator[GangAhead]:
    """The first of the gangs ahead that wait for slots of the same pools."""
    place_, pools = scheduler_state.queue.place_of(gang_id), _pools(scheduler_state.gangs[gang_id])
    before = (scheduler_state.gangs[other_id] for other_id in islice(scheduler_state.queue, place_ or 0))
    for other in islice((each for each in before if pools & _pools(each)), _MOST_AHEAD):
        yield GangAhead(
            id=other.id,
            priority=other.spec.priority,
            waiting_s=round(scheduler_state.now - other.queued_at, 3),
            size=other.spec.smallest.size,
            owner=other.spec.owner,
        )


def _pools(gang: ManagedGang) -> set[str]:
    return {part.pool for bundle in gang.spec.smallest.bundles for part in bundle.parts}


def waiting_by_obstacle(scheduler_state: SchedulerState) -> dict[tuple[str, str], tuple[int, int]]:
    """By pool and obstacle: how many gangs wait, and how many slots they need there, each at its smallest size. Looks
    at no worker, so that it costs little with many gangs."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    held_back: set[str] = set()
    head = scheduler_state.head
    for gang_id in scheduler_state.queue:
        gang = scheduler_state.gangs[gang_id]
        if gang.tenant and gang.tenant not in held_back and scheduler_state.held_back(gang):
            held_back.add(gang.tenant)
        if gang.tenant in held_back:
            obstacle = "quota"
        elif gang.not_before > scheduler_state.now:
            obstacle = "backoff"
        elif head is None or head.gang == gang_id or gang.aside:
            obstacle = "impossible" if head is not None and head.gang == gang_id and head.target.impossible else "slots"
        else:
            obstacle = "order"
        needs: Counter[str] = Counter()
        for bundle in gang.spec.smallest.bundles:
            for part in bundle.parts:
                needs[part.pool] += bundle.count * part.slots
        for pool, slots in needs.items():
            gangs, before = found.get((pool, obstacle), (0, 0))
            found[pool, obstacle] = gangs + 1, before + slots
    return found


def kept_slots(scheduler_state: SchedulerState) -> dict[str, int]:
    """By pool: slots that are kept for the head of the queue."""
    found: Counter[str] = Counter()
    for worker, slots in scheduler_state.head.kept.items() if scheduler_state.head is not None else ():
        found[worker.pool] += slots
    return dict(found)


def standing(scheduler_state: SchedulerState, gang: ManagedGang) -> list[str]:
    """What keeps a gang without members from forming, one sentence each; at least one."""
    found = _lacks(scheduler_state, gang) or ["its workers were just asked for their slots"]
    ahead = scheduler_state.queue.place_of(gang.id)
    if ahead:
        found.append(f"{count_of(ahead, 'gang')} ahead of it in the queue")
    return found


def _quota(scheduler_state: SchedulerState, gang: ManagedGang) -> str:
    """Why it waits for its tenant's quota; empty: it does not."""
    for other_id in scheduler_state.queue if gang.tenant else ():
        other = scheduler_state.gangs[other_id]
        text = scheduler_state.held_back(other) if other.tenant == gang.tenant else ""
        if text or other is gang:
            return text if not text or other is gang else f"gang {other_id} is ahead of it: {text}"
    return ""


def _lacks(scheduler_state: SchedulerState, gang: ManagedGang) -> list[str]:
    spec = gang.spec.smallest
    match gang.step:
        case GangStep.QUEUED if gang.aside:
            missing = lacks(spec, scheduler_state.inventory.free)
            return [f"beside the gang of its set that it replaces: {lack.text}" for lack in missing]
        case GangStep.QUEUED if text := _quota(scheduler_state, gang):
            return [text]
        case GangStep.QUEUED:
            if find(spec, scheduler_state.inventory.total) is NoPlacement.PROVEN:
                missing = lacks(spec, scheduler_state.inventory.total)
                return [f"{lack.text} (even if all were free)" for lack in missing]
            head = scheduler_state.head
            # What is kept for a gang is no obstacle to it.
            kept = head.kept if head is not None and head.gang == gang.id else {}
            if place(spec, scheduler_state.inventory.free, changes=kept) is None:
                return [lack.text for lack in lacks(spec, scheduler_state.inventory.free, changes=kept)]
            if gang.not_before > scheduler_state.now:
                again_s = gang.not_before - scheduler_state.now
                return [f"tried and refused {count_of(gang.refusals, 'time')}; tries again in {again_s:.2f} s"]
            return _behind_head(scheduler_state, gang)
        case GangStep.HOLDING | GangStep.REPAIRING if gang.attempt is not None:
            silent = [str(worker) for worker in gang.attempt.wanted if worker not in gang.attempt.answers]
            return [f"waits for {', '.join(silent)} to answer"]
        case GangStep.REPAIRING:
            ranks = ", ".join(str(rank) for rank in gang.lost)
            return [f"no room for the lost rank {ranks} yet; otherwise restarts as a whole"]
        case GangStep.COMMITTING | GangStep.REJOINING | GangStep.CLOSING:
            return [f"waits for the ledger; {count_of(len(scheduler_state.ledger.line), 'commit')} in line"]
        case GangStep.STOPPING if gang.closing is not None:
            return [f"waits for {', '.join(map(str, gang.closing.waiting))} to stop ({gang.reason})"]
        case GangStep.BACKOFF:
            return [f"restarts soon ({gang.reason})"]
        case _:
            return []


def _behind_head(scheduler_state: SchedulerState, gang: ManagedGang) -> list[str]:
    """What keeps a gang that has room from forming."""
    head, depth = scheduler_state.head, scheduler_state.settings.backfill_depth
    if head is None or head.gang == gang.id:
        return []  # it is its turn
    if place(gang.spec.smallest, scheduler_state.inventory.free, changes=guard(head.target.slots)) is None:
        return [f"there is room, but gang {head.gang} is ahead and needs it"]
    if (scheduler_state.queue.place_of(gang.id) or 0) <= depth:
        return []
    return [f"there is room, but only the first {depth} gangs behind the head of the queue may go before it"]


def _obstacles(scheduler_state: SchedulerState, gang_id: str, worker: WorkerId) -> list[GangObstacle]:
    view = scheduler_state.inventory.workers.get(worker)
    if view is None:
        return []
    found: list[GangObstacle] = []
    for other_id in scheduler_state.on.get(worker, {}):
        slots = sum(seat.slots for seat in scheduler_state.gangs[other_id].seats_by_worker[worker])
        found.append(GangObstacle(pool=worker.pool, worker=worker.worker, holder=f"gang {other_id}", slots=slots))
    head = scheduler_state.head
    kept = head.kept.get(worker, 0) if head is not None else 0
    if head is not None and kept and head.gang != gang_id:
        holder = f"gang {head.gang} (kept for it at the head of the queue)"
        found.append(GangObstacle(pool=worker.pool, worker=worker.worker, holder=holder, slots=kept))
    others = view.ongoing - view.granted - kept
    if others > 0:
        # The shell replaces this line with the leases, which it reads from the ledger.
        found.append(GangObstacle(pool=worker.pool, worker=worker.worker, holder="tasks", slots=others))
    return found
