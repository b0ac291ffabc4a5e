"""The worker's core: every decision about slots, leases and tasks, and nothing else.

Nothing in here awaits, reads a clock, draws a random number or logs: time (`now`, the loop's monotonic seconds) and
new tokens arrive with the event; outcomes are returned, and changes of leases are collected in `changes`. State changes
only through the methods of AdmissionCore, and each of them does either all that it says or nothing.

The laws it keeps, `check()` asserts, and tests and checkers quote (the numbers are those of the project's laws):

- **L1 capacity.** reserved + running slots never exceed the total, on all paths together: there is one limiter. After
  a resize downwards nothing is granted and no task without a lease starts until they fit.
- **L2 balance.** Each acquire meets exactly one release, whichever way it ends: answer, error, cancellation, expiry,
  release, drain, new epoch. A task leaves its slots in `finish` and nowhere else.
- **L3 single use.** A single-use token ends with the first task that names it, even one that is refused. A multi-use
  lease has at most its slots in use at once. A task id starts at most once, and never after it was withdrawn. A durable
  job is in at most one execution at once (see worker.slots.job_table).
- **L4 no leak.** Every living lease has a time at which it ends by itself: the claim timeout until the first use, then
  its time to live after the last one. (A gang's seats end with the gang; see worker.slots.gang_core. A *sublease*
  has slots of a seat: it ends like any lease, and with the seat at the latest.)
- **L5 expired is dead.** Nothing starts for an expired, unknown or older-epoch token, even before the timer came to
  end it: each use looks at the time itself.
- **L5 in doubt.** While it is not certain that the id is still ours, nothing is granted or started, and after `fence`
  never again.
- **L11 drain.** A draining core grants nothing and starts nothing without a lease; it honours what it granted, no
  longer than the drain's grace.
- **L12 accounting.** The limiter's books are exactly the living leases' idle slots and the admitted tasks' slots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, KeysView
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from ...runtime.timers import NEVER, DeadlineHeap
from ...schemas.wire.frames import Load, LoadFlag, TaskState
from .gang_core import WorkerGangCore
from .job_table import JobKey, JobListener, JobTable, RunningJob
from .lease_table import (
    WITHDRAWN,
    GrantedLease,
    LeaseChange,
    LeaseTable,
    LeaseTransition,
    Refusal,
    RequestDedup,
    RequestId,
    RouterHistory,
    TaskRecord,
)
from .limiter import SlotLimiter

FENCE_BITS: Final = 20
"""Grants of one epoch are counted below these bits."""


def next_epoch(previous: int, wall: float) -> int:
    """The epoch after `previous`: milliseconds of Unix time, or one more if the clock was set back.

    Milliseconds, since a worker that lost its memory (and the ledger with it) still starts above its past.
    """
    return max(previous + 1, int(wall * 1000))


class FencingTokens:
    """Fences of the leases that are not written to the ledger first: `epoch * 2**20 + count`.

    Comparable within one worker only. They grow within an epoch by counting and over epochs by the epoch, which grows
    by at least one per millisecond: only a worker that granted over a million leases per millisecond could overtake
    its next epoch. Below 2**63 until the year 2248, so that they fit a signed 64-bit integer everywhere.
    """

    __slots__ = ("_last",)

    def __init__(self, epoch: int) -> None:
        self._last = epoch << FENCE_BITS

    def next(self) -> int:
        self._last += 1
        return self._last

    def new_epoch(self, epoch: int) -> None:
        """Go on from a later epoch."""
        self._last = max(self._last, epoch << FENCE_BITS)


_tuple = tuple.__new__


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """Limits on what a core remembers."""

    keep_s: float = 60.0
    """How long answers, reserves and ended tokens are remembered. Longer than any message is on its way."""
    keep: int = 100_000
    """Most of each."""
    keep_bytes: int = 64 * 1024 * 1024
    """Most bytes of answers."""
    item_bytes: int = 64 * 1024 * 1024
    """Most bytes of items of durable tasks that their readers have not taken."""
    unstored_s: float = 600.0
    """How long the end of a durable task is kept for a dispatcher that has not stored it."""
    unstored: int = 10_000
    """Most such ends."""
    unstored_bytes: int = 64 * 1024 * 1024
    """Most bytes of them."""


class DuplicateRequest(NamedTuple):
    """A task id was received again."""

    state: TaskState
    answer: bytes
    """To be sent again if `state` is ANSWERED; WITHDRAWN if it was cancelled before it came."""


class ExpiredTasks(NamedTuple):
    """The tasks that `expire` found."""

    leases: int
    """How many leases ended."""
    tasks: list[TaskRecord]
    """Whose deadline passed: to be cancelled and answered. Each is named once."""


class AdmissionCore:
    """The slots, leases and tasks of one worker. `now` must never go backwards from call to call."""

    __slots__ = (
        "_cut_at",
        "_deadlines",
        "_declared",
        "_fences",
        "_leases",
        "_limiter",
        "_memory",
        "changes",
        "doubted",
        "draining",
        "epoch",
        "epochs",
        "gangs",
        "jobs",
    )

    def __init__(
        self, total: int, epoch: int, settings: CoreSettings | None = None, *, declared: int | None = None
    ) -> None:
        """
        Args:
            total: slots to begin with.
            epoch: the first epoch.
            settings: bounds of what is remembered.
            declared: slots of the pool's declaration, if the worker begins with another number.
        """
        settings = settings or CoreSettings()
        self.epoch = epoch
        """Grows with `new_epoch`; names this worker's present in every envelope."""
        self.epochs = {epoch}
        """Every epoch this process has had. Who names another one speaks to a process that is gone."""
        self.doubted = False
        """The id may be another process's: nothing is granted or started. Set by `doubt`, and by `fence` for good."""
        self.draining = False
        """Set by `drain`, never reset."""
        self._cut_at = NEVER
        """No lease lives longer than this: the end of the drain's grace."""
        self._declared = total if declared is None else declared
        """What the pool was declared with: a request for more than this can never be met, however the total moves."""
        self._fences = FencingTokens(epoch)
        self._limiter = SlotLimiter(total)
        self._leases = LeaseTable(self._limiter, keep=settings.keep, keep_s=settings.keep_s)
        self.changes = self._leases.changes
        """What became of leases since `take_changes`; not to be changed."""
        self.gangs = WorkerGangCore(self._limiter, self._leases, keep_s=settings.keep_s, keep=settings.keep)
        """What this worker has of gangs. Its decisions are made through it, with `epoch` and the time."""
        self.jobs = JobTable(
            keep=settings.keep,
            keep_bytes=settings.item_bytes,
            keep_s=settings.keep_s,
            unstored=settings.unstored,
            unstored_bytes=settings.unstored_bytes,
            unstored_s=settings.unstored_s,
        )
        """Durable jobs that run here, or ended a moment ago; to be read. Changed by the methods below."""
        self._memory = RequestDedup(keep=settings.keep, keep_bytes=settings.keep_bytes, keep_s=settings.keep_s)
        self._deadlines: DeadlineHeap[TaskRecord] = DeadlineHeap()

    def __repr__(self) -> str:
        state = " draining" if self.draining else ""
        return f"<AdmissionCore epoch={self.epoch}{state} {len(self._leases.living)} leases, {self._limiter!r}>"

    # -- what can be seen -----------------------------------------------------------------------------------------

    @property
    def senders(self) -> Collection[RouterHistory]:
        """All that are remembered."""
        return self._memory.senders.values()

    @property
    def load(self) -> Load:
        """The slots now."""
        limiter = self._limiter
        slots = limiter.running, limiter.reserved, limiter.total, LoadFlag.DRAINING if self.draining else 0
        return _tuple(Load, slots)  # as Load(*slots), of which one is made for each message, in a third of the time

    @property
    def told_load(self) -> Load:
        """What others are told of the slots: in doubt, that none is free."""
        load = self.load
        return load._replace(reserved=load.reserved + load.free) if self.doubted else load

    @property
    def has_room(self) -> bool:
        """A slot is free, and may be given away."""
        return self._limiter.free > 0 and not self.draining and not self.doubted

    @property
    def at_rest(self) -> bool:
        """Nothing is held: no lease, no task, nothing of a gang."""
        return not (self._leases.living or self.tasks or self.gangs.holding)

    @property
    def may_leave(self) -> bool:
        """At rest, and nobody is still to ask how a durable task ended."""
        return not self.jobs.unstored and self.at_rest

    @property
    def tasks(self) -> KeysView[TaskRecord]:
        """On their slots, oldest first: the limiter's running borrowers are exactly these."""
        return cast("KeysView[TaskRecord]", self._limiter.runners)

    @property
    def leases(self) -> dict[str, GrantedLease]:
        """The living leases by token; not to be changed."""
        return self._leases.living

    @property
    def most_slots(self) -> int:
        """Of this worker at its best: more can never be held."""
        return max(self._declared, self._limiter.total)

    def sender(self, name: str, now: float) -> RouterHistory:
        """What is remembered of that router."""
        return self._memory.sender(name, now)

    def take_changes(self) -> list[LeaseChange]:
        """What became of leases since the last call, in order. Must be called after every decision."""
        taken = self.changes.copy()
        self.changes.clear()
        return taken

    # -- leases ---------------------------------------------------------------------------------------------------

    def reserve(
        self,
        sender: RouterHistory,
        rid: RequestId | None,
        *,
        slots: int,
        ttl_s: float,
        claim_s: float,
        single_use: bool,
        owner: str,
        token: str,
        seat: str | None = None,
        now: float,
    ) -> GrantedLease | Refusal:
        """Grant `slots` for `claim_s`, and for `ttl_s` from each use. The same `rid` again gets the same answer.

        `token` is used if something is granted and must be new. None as `rid`: the request cannot come again. With
        `seat`, the slots are not free ones, but those that the gang's seat of this token has idle.
        Returns FULL, DRAINING, TOO_LARGE, or EXPIRED when the request was released before (or the lease has ended);
        what became of the seat if that is over.
        """
        if rid is not None and rid in sender.reserves:
            known = sender.reserves[rid]
            if not isinstance(known, GrantedLease):
                return known
            found = self._leases.find(known.token, now)
            return found if isinstance(found, GrantedLease) else Refusal.EXPIRED
        if sender.doubtful and isinstance(rid, int):
            sender.saw_new(rid)
        if seat is None:
            answer = self._grant(slots, ttl_s, claim_s, single_use, owner, token, now)
        else:
            answer = self._sublease(seat, slots, ttl_s, claim_s, single_use, owner, token, now)
        if rid is not None:
            self._memory.note_reserve(sender, rid, answer, now)
        return answer

    def _grant(
        self, slots: int, ttl_s: float, claim_s: float, single_use: bool, owner: str, token: str, now: float
    ) -> GrantedLease | Refusal:
        refusal = Refusal.STALE if self.doubted else self._no_room(slots)
        if refusal is not None:
            return refusal
        lease = GrantedLease(token, slots, ttl_s, claim_s, single_use, owner, self._fences.next(), now)
        return lease if self._leases.grant(lease) else Refusal.FULL

    def _sublease(
        self,
        seat_token: str,
        slots: int,
        ttl_s: float,
        claim_s: float,
        single_use: bool,
        owner: str,
        token: str,
        now: float,
    ) -> GrantedLease | Refusal:
        if self.doubted:
            return Refusal.STALE
        if self.draining:
            return Refusal.DRAINING
        seat = self._leases.find(seat_token, now)
        if not isinstance(seat, GrantedLease):
            # As for tasks: whoever asks may know of the commit a moment before this worker does.
            return Refusal.FULL if self.gangs.holds_token(seat_token) else seat
        if seat.gang is None:
            return Refusal.UNKNOWN_TOKEN
        if slots > seat.slots:
            return Refusal.LEASE_TOO_SMALL
        lease = GrantedLease(token, slots, ttl_s, claim_s, single_use, owner, seat.fence, now)
        return lease if self._leases.sublease(lease, seat) else Refusal.FULL

    def set_fence(self, lease: GrantedLease, fence: int) -> None:
        """Replace the fence of a lease that was written to the ledger before it was answered: by the revision."""
        lease.fence = fence

    def renew(self, token: str, ttl_s: float | None, now: float) -> float | Refusal:
        """Let a lease live `ttl_s` from now (None: its own). Returns the seconds it has, fewer near a drain's end."""
        lease = self._leases.find(token, now)
        if not isinstance(lease, GrantedLease):
            return lease
        if lease.gang is not None:
            return min(lease.ttl_s, lease.due_at - now)  # its coordinator's pings renew a seat, and nobody else
        if ttl_s is not None:
            lease.ttl_s = ttl_s
        self._leases.extend(lease, min(now + lease.ttl_s, self._cut_at))
        return lease.due_at - now

    def release(self, sender: RouterHistory, rid: RequestId | None, token: str | None, now: float) -> bool:
        """End a lease by its token, or by the request that it was granted for. True if there was one.

        A release that overtakes its reserve leaves a mark, and the reserve is refused when it comes.
        """
        if token is None and rid is not None:
            known = sender.reserves.get(rid)
            if known is None:
                self._memory.note_reserve(sender, rid, Refusal.EXPIRED, now)
                return False
            if isinstance(known, Refusal):
                # FULL was answered and may be on its way: a later copy of the reserve must not be granted either.
                return False
            token = known.token
        lease = self._leases.find(token, now) if token is not None else None
        if not isinstance(lease, GrantedLease) or lease.gang is not None:
            return False
        self._leases.end(lease, LeaseTransition.RELEASE, now)
        return True

    # -- tasks ----------------------------------------------------------------------------------------------------

    def repeated(self, sender: RouterHistory, task_id: int) -> DuplicateRequest | None:
        """What is known of a task id that comes; None: it is new."""
        if task_id in sender.running:
            return DuplicateRequest(TaskState.RUNNING, WITHDRAWN)
        answer = sender.done.get(task_id)
        if answer is not None:
            return DuplicateRequest(TaskState.ANSWERED, answer)
        if task_id <= sender.floor:
            return DuplicateRequest(TaskState.FORGOTTEN, WITHDRAWN)
        return None

    def admit(
        self, sender: RouterHistory, task_id: int, cost: int, token: str | None, deadline_at: float, now: float
    ) -> TaskRecord | Refusal:
        """Take `cost` slots for a task that starts now: from the lease of `token`, or without one from the free ones.

        A Refusal means that nothing starts and nothing more is held; the answer must be noted with `settle`.
        `deadline_at` is NEVER when there is none. The id must be new, see `repeated`.
        """
        if sender.doubtful:
            sender.saw_new(task_id)
        if self.doubted:
            self.refuse(token, now)
            return Refusal.STALE
        if deadline_at <= now:
            if token is not None:
                self._leases.spend(token, now)
            return Refusal.EXPIRED
        if token is not None:
            return self._admit_on_lease(sender, task_id, cost, token, deadline_at, now)
        if self.draining:
            return Refusal.DRAINING
        record = TaskRecord(sender, task_id, cost, None, deadline_at)
        if not self._limiter.run_nowait(record, cost):
            return self._no_room(cost) or Refusal.FULL
        return self._admitted(record)

    def refuse(self, token: str | None, now: float) -> None:
        """A task that came cannot start (unknown method, wrong arguments): its single-use token is consumed (L3)."""
        if token is not None:
            self._leases.spend(token, now)

    def settle(self, sender: RouterHistory, task_id: int, answer: bytes, now: float) -> None:
        """Note the answer to a task id, once for each: a repeated one gets it again and starts nothing."""
        record = sender.running.pop(task_id, None)
        if record is not None:
            record.answered = True
            record.due_at = NEVER
        self._memory.note_done(sender, task_id, answer, now)

    def finish(self, record: TaskRecord) -> None:
        """The task's code has stopped: its slots go back to its lease, or are free. Once for each admitted task.

        The answer may be noted before (code that cannot be stopped) or after; a task is `running` until it is.
        """
        if record.lease is None:
            self._limiter.finish(record)
        else:
            self._leases.give_back(record.lease, record)
        record.due_at = NEVER

    def complete(self, record: TaskRecord, answer: bytes, now: float) -> None:
        """`settle` and `finish` in one, for a task that has ended and is answered."""
        sender = record.sender
        del sender.running[record.id]
        record.answered = True
        self._memory.note_done(sender, record.id, answer, now)
        record.due_at = NEVER
        if record.lease is None:
            self._limiter.finish(record)
        else:
            self._leases.give_back(record.lease, record)

    def withdraw(self, sender: RouterHistory, task_id: int, now: float) -> TaskRecord | None:
        """The caller does not want this task. Returns it if it runs, to be cancelled; if it has not come yet, it will
        be refused when it does."""
        record = sender.running.get(task_id)
        if record is None and self.repeated(sender, task_id) is None:
            self._memory.note_done(sender, task_id, WITHDRAWN, now)
        return record

    def look_up(self, sender: RouterHistory, task_id: int, now: float) -> DuplicateRequest:
        """What became of a task. One that never came is from now on refused, so that it is safe to send elsewhere."""
        if sender.doubtful:
            sender.floor = max(sender.floor, task_id)
        known = self.repeated(sender, task_id)
        if known is None:
            self._memory.note_done(sender, task_id, WITHDRAWN, now)
            return DuplicateRequest(TaskState.UNKNOWN, WITHDRAWN)
        if known.state is TaskState.ANSWERED and known.answer == WITHDRAWN:
            return DuplicateRequest(TaskState.UNKNOWN, WITHDRAWN)
        return known

    # -- durable jobs ---------------------------------------------------------------------------------------------

    def known_job(self, key: JobKey, attempt: int, *, attach: bool) -> RunningJob | None:
        """The job whose answer a request for an attempt of it is to get, in place of a start: it runs; or it ended, in
        that attempt or a later one, or well (with all items that nobody took). `attach`: nothing is to start, so
        whatever is known of it will do."""
        job = self.jobs.find(key)
        ended_well = job is not None and not job.failed and not job.lost(0)
        if job is None or job.running or attach or ended_well or attempt <= job.attempt:
            return job
        return None

    def attach(self, job: RunningJob, listener: JobListener, items: int | None) -> Iterator[bytes]:
        """A request is to hear how a running job ends, and takes no slot for it. Until then its id is `running`: it can
        be withdrawn, which is to cancel the job, and looked up. See JobTable.attach. The id must be new."""
        listener.sender.saw_new(listener.id)
        listener.sender.running[listener.id] = job.record
        return self.jobs.attach(job, listener, items)

    def settle_new(self, sender: RouterHistory, task_id: int, answer: bytes, now: float) -> None:
        """Note the answer to a task id that came for the first time, and for which nothing was admitted."""
        sender.saw_new(task_id)
        self._memory.note_done(sender, task_id, answer, now)

    # -- time and operators ---------------------------------------------------------------------------------------

    def expire(self, now: float) -> ExpiredTasks:
        """End what is overdue. To be called at `next_deadline()` or later; calling it early does no harm."""
        ended = self._leases.expire(now)
        overdue = self._deadlines.pop_due(now)
        for record in overdue:
            record.due_at = NEVER
        return ExpiredTasks(ended, overdue)

    def sweep(self, now: float) -> None:
        """Forget what is too old to matter. To be called every second or so."""
        self._leases.expire(now)
        self._memory.sweep(now)
        self.jobs.sweep(now)
        self.gangs.sweep(now)

    def next_deadline(self) -> float | None:
        """When `expire` must be called next; None: nothing is due ever."""
        lease_at = self._leases.next_at()
        task_at = self._deadlines.next_at(self._limiter.running)
        if lease_at is None or task_at is None:
            return task_at if lease_at is None else lease_at
        return min(lease_at, task_at)

    def resize(self, total: int) -> None:
        """Change the number of slots; takes none away from who has them."""
        self._limiter.resize(total)

    def drain(self, cut_at: float, now: float) -> None:
        """Grant nothing more. What is granted is honoured until `cut_at`; renewals reach no further."""
        self.draining = True
        self._cut_at = min(self._cut_at, cut_at)
        for lease in list(self._leases.living.values()):
            if lease.due_at > self._cut_at:
                self._leases.cut(lease, self._cut_at)
        self.gangs.drain(self._cut_at, now)

    def doubt(self) -> None:
        """Another process may have taken our id: until `new_epoch`, grant and start nothing."""
        self.doubted = True

    def new_epoch(self, epoch: int, now: float) -> None:
        """End every lease. What runs goes on and stays counted; nothing else of the past is honoured. Ends a doubt: the
        id is ours."""
        if epoch <= self.epoch:
            raise ValueError(f"epoch {epoch} is not after {self.epoch}")
        self.epoch = epoch
        self.epochs.add(epoch)
        self._fences.new_epoch(epoch)
        self._void(now)
        self.doubted = False

    def fence(self, now: float) -> None:
        """The id is another process's: as `new_epoch`, but for ever without one. A later epoch would be taken for that
        process's."""
        self.doubted = True
        self._void(now)

    def _void(self, now: float) -> None:
        for lease in list(self._leases.living.values()):
            if lease.ended is None:  # subleases end with their seat
                self._leases.end(lease, LeaseTransition.DROP, now)
        self.gangs.new_epoch(now)

    def statistics(self) -> dict[str, int]:
        """Sizes of all that is remembered."""
        return {
            "leases": len(self._leases.living),
            "tasks": len(self.tasks),
            "jobs": len(self.jobs),
            "unstored": self.jobs.unstored,
            **self._memory.statistics(),
        }

    def check(self) -> None:
        """Raise AssertionError if a law is broken. For tests, after every event; it looks at everything."""
        self._limiter.check()
        self._leases.check()
        self._memory.check()
        self.jobs.check()
        self.gangs.check()
        held = sum(lease.slots - lease.busy for lease in self._leases.living.values()) + self.gangs.reserved
        assert self._limiter.reserved == held, self  # L12
        assert all(isinstance(runner, TaskRecord) for runner in self._limiter.runners), self  # L12
        assert self._limiter.running == sum(record.cost for record in self.tasks), self  # L12
        for record in self.tasks:
            assert self._limiter.held(record) == (0, record.cost), record  # L2
            assert record.answered or record.sender.running.get(record.id) is record, record
            assert record.lease is None or record.lease.busy >= record.cost, record
        for sender, task_id, record in self._memory.waiting():
            own = sender is record.sender and task_id == record.id
            assert own or self.jobs.hears(record, sender, task_id), record
        # A record may wait for its answer after it left its slots, never the other way about.
        borrowers = len(self._leases.living) + len(self.tasks) + self.gangs.borrowers
        assert self._limiter.statistics().borrowers <= borrowers, self

    def _no_room(self, slots: int) -> Refusal | None:
        if self.draining:
            return Refusal.DRAINING
        if slots <= self._limiter.free:
            return None
        return Refusal.TOO_LARGE if slots > self.most_slots else Refusal.FULL

    def _admit_on_lease(
        self, sender: RouterHistory, task_id: int, cost: int, token: str, deadline_at: float, now: float
    ) -> TaskRecord | Refusal:
        lease = self._leases.find(token, now)
        if not isinstance(lease, GrantedLease):
            # A gang's owner may know of the commit a moment before its members do: it tries again, as if we were full.
            return Refusal.FULL if self.gangs.holds_token(token) else lease
        seat = lease.seat
        record = TaskRecord(sender, task_id, cost, seat if lease.single_use else lease, deadline_at)
        record.fence = lease.fence if seat is None else seat.fence
        until = now + lease.ttl_s
        if lease.gang is not None or until > self._cut_at:
            until = self._cut_at
        refusal = self._leases.use(lease, record, cost, until, now)
        return self._admitted(record) if refusal is None else refusal

    def _admitted(self, record: TaskRecord) -> TaskRecord:
        running = record.sender.running
        assert record.id not in running
        running[record.id] = record
        if record.due_at != NEVER:
            self._deadlines.push(record)
        return record
