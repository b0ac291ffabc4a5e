"""Those who ask for gangs, keep them and give them back."""

from __future__ import annotations

from ...schemas.errors.base import GanglineError, QueueFull
from ...schemas.errors.gangs import GangEnded, GangImpossible, GangNotFormed, NotOwner, StaleGeneration, UnknownGang
from ...schemas.messages.gangs import AcquireRequest, GangEventKind, OwnedRequest
from ...schemas.records.gangs import GangSpec
from ...schemas.text import count_of
from ..model.commits import CommitKind
from ..model.effects import AnswerRequest
from ..model.events import AcquireAsked, Cause, EndAsked, ReleaseAsked, RenewAsked
from ..model.gang import Failure, ManagedGang
from ..model.restart_policy import FINAL
from ..model.states import GRANTED, GangStep
from ..scheduling.infeasibility import lacks
from ..scheduling.placement import TrialPlacement, place
from .explain import standing
from .state import SchedulerState
from .teardown import Teardown


class OwnerRequests:
    """Answers owners. A part of the core."""

    def __init__(self, books: SchedulerState, teardown: Teardown) -> None:
        self._books = books
        self._teardown = teardown

    def acquire(self, event: AcquireAsked) -> None:
        """Queue a gang, or find the one that was asked for before."""
        books, request = self._books, event.request
        gang_id = request.id or event.new_id
        gang = books.gangs.get(gang_id)
        if gang is not None:
            self._again(gang, request, event.reply_to)
            return
        ended = books.ended.get(gang_id)
        if ended is not None:
            if request.owner_token != ended.owner_token:
                self._refuse(event.reply_to, _not_owner(gang_id))
            else:
                self._refuse(event.reply_to, _ended(gang_id, ended.reply.reason))
            return
        if len(books.queue) >= books.settings.max_queued:
            self._refuse(
                event.reply_to,
                QueueFull(f"the queue is full, with {count_of(len(books.queue), 'gang')}: ask again later"),
            )
            return
        # How many members a gang gets that has a range of sizes depends on who else waits by then.
        fit = None if request.elastic else TrialPlacement.of(request, books.inventory.free)
        error = self._impossible(request.smallest) if fit is None and not request.wait_for_workers else None
        if error is not None:
            self._refuse(event.reply_to, error)
            return
        self._queue(event, gang_id, fit)

    def _queue(self, event: AcquireAsked, gang_id: str, fit: TrialPlacement | None) -> None:
        books, request = self._books, event.request
        gang = ManagedGang(
            id=gang_id,
            spec=request.relaxed(),
            owner_token=request.owner_token or event.new_token,
            created_at=books.wall,
            queued_at=books.now,
            fit=fit,
        )
        if request.deadline_s is not None:
            gang.deadline_at = books.now + request.deadline_s
            gang.deadline_wall = books.wall + request.deadline_s
            books.agenda.set(("deadline", gang.id), gang.deadline_at)
        books.add(gang)
        # Its owner must be heard of while it waits, too: slots are kept for the head of the queue.
        books.agenda.set(("owner", gang.id), books.now + gang.spec.ttl_s)
        if request.wait:
            gang.waiters.append(event.reply_to)
        else:
            # Nobody asks again for this one, so the ledger remembers it.
            gang.queue_waiters.append(event.reply_to)
            gang.persisted = True
            books.commit(CommitKind.QUEUE, gang)
        books.tell(GangEventKind.QUEUED, gang)

    def _again(self, gang: ManagedGang, request: AcquireRequest, reply_to: int) -> None:
        if request.owner_token != gang.owner_token:
            self._refuse(reply_to, _not_owner(gang.id))
            return
        if ("owner", gang.id) in self._books.agenda:
            # As good as a renewal: whoever is answered counts the gang's time to live from when it asked.
            self._books.agenda.set(("owner", gang.id), self._books.now + gang.spec.ttl_s)
        if gang.step in (GangStep.CLOSING, GangStep.STOPPING) and gang.closing is not None and gang.closing.ends:
            self._refuse(reply_to, _ended(gang.id, gang.reason))
        elif gang.seats and gang.step in GRANTED - {GangStep.CLOSING}:
            self._books.out.append(AnswerRequest(reply_to=reply_to, reply=gang.describe(to_owner=True)))
        elif request.wait:
            gang.waiters.append(reply_to)
        elif gang.queue_waiters:
            gang.queue_waiters.append(reply_to)
        else:
            self._books.out.append(AnswerRequest(reply_to=reply_to, reply=gang.describe(to_owner=True)))

    def _impossible(self, spec: GangSpec) -> GangImpossible | None:
        """Why this gang, for which there is no room now, is not even queued. Of one that fits this is not asked: cost
        in proportion to the gang."""
        total = self._books.inventory.total
        if place(spec, total) is None:
            missing = lacks(spec, total)
            text = "; ".join(lack.text for lack in missing)
            return GangImpossible(
                f"not enough workers registered for this gang: {text}",
                details={"lacks": [lack.text for lack in missing]},
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
            self._books.agenda.set(("owner", gang.id), self._books.now + gang.spec.ttl_s)
        self._books.out.append(AnswerRequest(reply_to=event.reply_to, reply=gang.describe(to_owner=True)))

    def release(self, event: ReleaseAsked) -> None:
        """Answered when every slot is back (or was waited for long enough). Idempotent."""
        books, request = self._books, event.request
        ended = books.ended.get(request.id)
        if ended is not None and ended.owner_token == request.owner_token:
            books.out.append(AnswerRequest(reply_to=event.reply_to, reply=ended.reply))
            return
        gang = self._owned(request, event.reply_to)
        if gang is not None:
            gang.releasers.append(event.reply_to)
            self._teardown.end(gang, Failure(cause=Cause.RELEASED))

    def end(self, event: EndAsked) -> None:
        """As `release`, for an operator: no owner token is asked for."""
        books, request = self._books, event.request
        ended = books.ended.get(request.id)
        gang = books.gangs.get(request.id)
        if gang is not None:
            gang.releasers.append(event.reply_to)
            self._teardown.end(gang, Failure(cause=Cause.BY_OPERATOR, detail=request.reason))
        elif ended is not None:
            books.out.append(AnswerRequest(reply_to=event.reply_to, reply=ended.reply))
        else:
            self._refuse(event.reply_to, _unknown(request.id))

    def _owned(self, request: OwnedRequest, reply_to: int) -> ManagedGang | None:
        books = self._books
        gang = books.gangs.get(request.id)
        if gang is None:
            ended = books.ended.get(request.id)
            known = ended is not None and ended.owner_token == request.owner_token
            if ended is not None and not known:
                self._refuse(reply_to, _not_owner(request.id))
            elif ended is not None:
                self._refuse(reply_to, _ended(request.id, ended.reply.reason))
            else:
                self._refuse(reply_to, _unknown(request.id))
            return None
        if request.owner_token != gang.owner_token:
            self._refuse(reply_to, _not_owner(gang.id))
            return None
        if request.generation is not None and request.generation != gang.generation:
            text = f"gang {gang.id} is in generation {gang.generation}, not {request.generation}: get it again"
            self._refuse(reply_to, StaleGeneration(text, details={"generation": gang.generation}))
            return None
        return gang

    # -- time --------------------------------------------------------------------------------------------------------

    def silent(self, gang: ManagedGang) -> None:
        """Not renewed for its time to live, nor asked for again while it waits."""
        if gang.closing is not None and gang.closing.failure.cause in FINAL:
            return
        failure = Failure(cause=Cause.OWNER_LOST, detail=f"not renewed for {gang.spec.ttl_s:g} s")
        error: GanglineError | None = None
        if gang.step in (GangStep.QUEUED, GangStep.HOLDING) and gang.waiters:
            texts = standing(self._books, gang)
            error = GangNotFormed(
                f"gang {gang.id} waited and was not asked for again for its ttl_s of {gang.spec.ttl_s:g} s: "
                f"send the same request again while you wait, renew it, or give a longer ttl_s; "
                f"what it waited for: {'; '.join(texts)}",
                details={"lacks": texts},
            )
        self._teardown.end(gang, failure, error)

    def too_late(self, gang: ManagedGang) -> None:
        """The deadline passed before it was formed. A commit in flight decides by itself: then it is formed."""
        if gang.step not in (GangStep.QUEUED, GangStep.HOLDING):
            return
        texts = standing(self._books, gang)
        text = f"gang {gang.id} was not formed by its deadline: {'; '.join(texts)}"
        error = GangNotFormed(text, details={"lacks": texts})
        self._teardown.drop(gang, Failure(cause=Cause.DEADLINE), error)

    def _refuse(self, reply_to: int, error: GanglineError) -> None:
        self._books.out.append(AnswerRequest(reply_to=reply_to, error=error))


def _not_owner(gang: str) -> NotOwner:
    return NotOwner(f"gang {gang} belongs to somebody else: show its owner_token")


def _unknown(gang: str) -> UnknownGang:
    return UnknownGang(f"gang {gang} is not known: it was never acquired, or ended a while ago")


def _ended(gang: str, reason: str) -> GangEnded:
    return GangEnded(f"gang {gang} has ended ({reason}): acquire a new one", details={"reason": reason})
