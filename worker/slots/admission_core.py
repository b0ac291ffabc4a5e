"""The worker's core: every decision about slots, leases and tasks, and nothing else.

Nothing here awaits, reads a clock, draws a random number or logs: time (`now`, the loop's monotonic seconds) and new
tokens arrive with the event; outcomes are returned, and changes of leases are collected in `changes`. State changes
only through the methods of AdmissionCore, and each of them does all that it says or nothing.

It keeps these laws, which `check()` asserts and tests and checkers quote (the numbers are those of the project's laws):

- **L1 capacity.** reserved + running slots never exceed the total, on all paths together: there is one limiter. After a
  downward resize, nothing is granted and no task without a lease starts until they fit.
- **L2 balance.** Each acquire has exactly one release, however it ends: answer, error, cancellation, expiry, release,
  drain, new epoch. A task frees its slots in `finish` and nowhere else.
- **L3 single use.** A single-use token ends with the first task that names it, even a refused one. A multi-use lease
  never has more than its slots in use. A task id starts at most once, and never after it was withdrawn. A durable job
  has at most one execution at a time (see worker.slots.job_table).
- **L4 no leak.** Every active lease ends by itself: after the claim timeout until its first use, then after its time to
  live since the last use. (A gang's seats end with the gang; see worker.slots.gang_core. A *sublease* uses slots of a
  seat: it ends like any lease, and at the latest with the seat.)
- **L5 expired is dead.** Nothing starts for an expired, unknown or older-epoch token, even if the timer has not ended
  it yet: each use checks the time itself.
- **L5 in doubt.** While it is uncertain whether the id is still ours, nothing is granted or started; after `fence`,
  never again.
- **L11 drain.** A draining core grants nothing and starts nothing without a lease. It honours what it granted, but no
  longer than the drain's grace time.
- **Declared limits.** No execution outside of gangs starts above the limits that its task declares (see
  worker.slots.method_limits).
- **L12 accounting.** The limiter counts exactly the active leases' idle slots and the admitted tasks' slots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, KeysView, Mapping
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
from .method_limits import MethodLimit

FENCE_BITS: Final = 20
"""Grants of one epoch are counted below these bits."""


def next_epoch(previous: int, wall: float) -> int:
    """The epoch after `previous`: milliseconds of Unix time, or one more if the clock was set back.

    Milliseconds, so that a worker that has lost its state (and the ledger too) still starts above its earlier epochs.
    """
    return max(previous + 1, int(wall * 1000))


class FencingTokens:
    """Fences of leases that are not written to the ledger first: `epoch * 2**20 + count`.

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
        """Continue from a later epoch."""
        self._last = max(self._last, epoch << FENCE_BITS)


_tuple = tuple.__new__


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSettings:
    """Limits on what a core remembers."""

    keep_s: float = 60.0
    """How long answers, reserves and ended tokens are remembered. Longer than any message can be in flight."""
    keep: int = 100_000
    """Maximum number of each."""
    keep_bytes: int = 64 * 1024 * 1024
    """Maximum bytes of answers."""
    item_bytes: int = 64 * 1024 * 1024
    """Maximum bytes of items of durable tasks that their readers have not taken."""
    unstored_s: float = 600.0
    """How long the end of a durable task is kept for a dispatcher that has not stored it."""
    unstored: int = 10_000
    """Maximum number of such ends."""
    unstored_bytes: int = 64 * 1024 * 1024
    """Maximum bytes of their answers."""


class DuplicateRequest(NamedTuple):
    """A task id was received again."""

    state: TaskState
    answer: bytes
    """To be sent again if `state` is ANSWERED; WITHDRAWN if it was cancelled before it arrived."""


class ExpiredTasks(NamedTuple):
    """The tasks that `expire` found."""

    leases: int
    """How many leases ended."""
    tasks: list[TaskRecord]
    """Tasks whose deadline has passed: to be cancelled and answered. Each is returned once."""


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
        "freed",
        "gangs",
        "jobs",
        "limits",
    )

    def __init__(
        self,
        total: int,
        epoch: int,
        settings: CoreSettings | None = None,
        *,
        declared: int | None = None,
        limits: Mapping[str, MethodLimit] | None = None,
    ) -> None:
        """
        Args:
            total: the initial number of slots.
            epoch: the first epoch.
            settings: limits on what is remembered.
            declared: the slots that the pool declares, if the worker starts with another number.
            limits: those that tasks declare, by method.
        """
        settings = settings or CoreSettings()
        self.epoch = epoch
        """Grows with `new_epoch`; every envelope names it."""
        self.epochs = {epoch}
        """Every epoch of this process. A message that names another was meant for a process that is gone."""
        self.doubted = False
        """Another process may have the id: nothing is granted or started. Set by `doubt`, and for good by `fence`."""
        self.draining = False
        """Set by `drain`, never reset."""
        self._cut_at = NEVER
        """No lease lasts longer than this: the end of the drain's grace time."""
        self._declared = total if declared is None else declared
        """The slots that the pool declares; see `most_slots`."""
        self._fences = FencingTokens(epoch)
        self._limiter = SlotLimiter(total)
        self._leases = LeaseTable(self._limiter, keep=settings.keep, keep_s=settings.keep_s)
        self.changes = self._leases.changes
        """Changes of leases since `take_changes`; read-only."""
        self.gangs = WorkerGangCore(self._limiter, self._leases, keep_s=settings.keep_s, keep=settings.keep)
        """This worker's part in gangs. Decisions about gangs are made through it, with `epoch` and the time."""
        self.jobs = JobTable(
            keep=settings.keep,
            keep_bytes=settings.item_bytes,
            keep_s=settings.keep_s,
            unstored=settings.unstored,
            unstored_bytes=settings.unstored_bytes,
            unstored_s=settings.unstored_s,
        )
        """Durable jobs that run here or ended recently. Read-only: the methods below change it."""
        self.limits = limits or {}
        """Limits that tasks declare, by method."""
        self.freed: list[str] = []
        """Reply subjects of routers that were refused because of such a limit and may try again. The driver takes
        them."""
        self._memory = RequestDedup(keep=settings.keep, keep_bytes=settings.keep_bytes, keep_s=settings.keep_s)
        self._deadlines: DeadlineHeap[TaskRecord] = DeadlineHeap()

    def __repr__(self) -> str:
        state = " draining" if self.draining else ""
        return f"<AdmissionCore epoch={self.epoch}{state} {len(self._leases.living)} leases, {self._limiter!r}>"

    # -- what can be seen -----------------------------------------------------------------------------------------

    @property
    def senders(self) -> Collection[RouterHistory]:
        """All remembered senders."""
        return self._memory.senders.values()

    @property
    def load(self) -> Load:
        """The slots now."""
        limiter = self._limiter
        slots = limiter.running, limiter.reserved, limiter.total, LoadFlag.DRAINING if self.draining else 0
        return _tuple(Load, slots)  # Load(*slots) in a third of the time; one is made for each message

    @property
    def told_load(self) -> Load:
        """The load as told to others: in doubt, no slot is free."""
        load = self.load
        return load._replace(reserved=load.reserved + load.free) if self.doubted else load

    @property
    def has_room(self) -> bool:
        """Whether a slot is free and may be granted."""
        return self._limiter.free > 0 and not self.draining and not self.doubted

    @property
    def at_rest(self) -> bool:
        """Nothing is held: no lease, no task, nothing of a gang."""
        return not (self._leases.living or self.tasks or self.gangs.holding)

    @property
    def may_leave(self) -> bool:
        """At rest, and every end of a durable task has been stored."""
        return not self.jobs.unstored and self.at_rest

    @property
    def tasks(self) -> KeysView[TaskRecord]:
        """The tasks on their slots, oldest first: exactly the limiter's running borrowers."""
        return cast("KeysView[TaskRecord]", self._limiter.runners)

    @property
    def leases(self) -> dict[str, GrantedLease]:
        """The active leases by token; read-only."""
        return self._leases.living

    @property
    def most_slots(self) -> int:
        """The most slots that this worker can ever grant at once."""
        return max(self._declared, self._limiter.total)

    def sender(self, name: str, now: float) -> RouterHistory:
        """The remembered requests of this router."""
        return self._memory.sender(name, now)

    def take_changes(self) -> list[LeaseChange]:
        """Changes of leases since the last call, in order. Must be called after every decision."""
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
        """Grant `slots` for `claim_s`, and for `ttl_s` from each use. A repeated `rid` gets the same answer.

        `token` must be new; it is used if slots are granted. If `rid` is None, the request cannot be repeated. With
        `seat`, the slots are not taken from the free ones, but from the idle ones of the gang's seat with this token.
        Returns FULL, DRAINING, TOO_LARGE, or EXPIRED if the request was released before (or the lease has ended); if
        the seat is over, the reason.
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
            # As for tasks: the caller may learn of the commit a moment before this worker does.
            return Refusal.FULL if self.gangs.holds_token(seat_token) else seat
        if seat.gang is None:
            return Refusal.UNKNOWN_TOKEN
        if slots > seat.slots:
            return Refusal.LEASE_TOO_SMALL
        lease = GrantedLease(token, slots, ttl_s, claim_s, single_use, owner, seat.fence, now)
        return lease if self._leases.sublease(lease, seat) else Refusal.FULL

    def set_fence(self, lease: GrantedLease, fence: int) -> None:
        """Replace the fence of a lease that was written to the ledger before it was answered with the revision."""
        lease.fence = fence

    def renew(self, token: str, ttl_s: float | None, now: float) -> float | Refusal:
        """Extend a lease to `ttl_s` from now (None: its own). Returns its remaining seconds, fewer near a drain's
        end."""
        lease = self._leases.find(token, now)
        if not isinstance(lease, GrantedLease):
            return lease
        if lease.gang is not None:
            return min(lease.ttl_s, lease.due_at - now)  # only its coordinator's pings renew a seat
        if ttl_s is not None:
            lease.ttl_s = ttl_s
        self._leases.extend(lease, min(now + lease.ttl_s, self._cut_at))
        return min(lease.ttl_s, self._cut_at - now)  # not `due_at - now`, which rounds

    def release(self, sender: RouterHistory, rid: RequestId | None, token: str | None, now: float) -> bool:
        """End a lease by its token or by the request that it was granted for. True if there was one.

        A release that overtakes its reserve leaves a mark, and the reserve is refused when it arrives.
        """
        if token is None and rid is not None:
            known = sender.reserves.get(rid)
            if known is None:
                self._memory.note_reserve(sender, rid, Refusal.EXPIRED, now)
                return False
            if isinstance(known, Refusal):
                # FULL was answered and may be in flight: a later copy of the reserve must not be granted either.
                return False
            token = known.token
        lease = self._leases.find(token, now) if token is not None else None
        if not isinstance(lease, GrantedLease) or lease.gang is not None:
            return False
        self._leases.end(lease, LeaseTransition.RELEASE, now)
        return True

    # -- tasks ----------------------------------------------------------------------------------------------------

    def repeated(self, sender: RouterHistory, task_id: int) -> DuplicateRequest | None:
        """What is known of a task id; None: it is new."""
        if task_id in sender.running:
            return DuplicateRequest(TaskState.RUNNING, WITHDRAWN)
        answer = sender.done.get(task_id)
        if answer is not None:
            return DuplicateRequest(TaskState.ANSWERED, answer)
        if task_id <= sender.floor:
            return DuplicateRequest(TaskState.FORGOTTEN, WITHDRAWN)
        return None

    def admit(
        self,
        sender: RouterHistory,
        task_id: int,
        cost: int,
        token: str | None,
        deadline_at: float,
        now: float,
        limit: MethodLimit | None = None,
        key: str | None = None,
    ) -> TaskRecord | Refusal:
        """Take `cost` slots for a task that starts now: from the lease of `token`, or from the free ones without a
        token. `limit`: what its method declares, see `limits`.

        A Refusal means that nothing starts and no more slots are held; the answer must be noted with `settle`.
        `deadline_at` is NEVER if there is none. The id must be new; see `repeated`.
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
            if limit is not None and not limit.allows(key, now) and not self._on_seat(token, now):
                self._leases.spend(token, now)
                return Refusal.LIMITED
            admitted = self._admit_on_lease(sender, task_id, cost, token, deadline_at, now)
            if limit is not None and isinstance(admitted, TaskRecord) and not _has_seat(admitted):
                admitted.limit = limit
                limit.begin(admitted, key, now)
            return admitted
        if self.draining:
            return Refusal.DRAINING
        if limit is not None and not limit.allows(key, now):
            return self._no_room(cost) or Refusal.LIMITED
        record = TaskRecord(sender, task_id, cost, None, deadline_at)
        if not self._limiter.run_nowait(record, cost):
            return self._no_room(cost) or Refusal.FULL
        if limit is not None:
            record.limit = limit
            limit.begin(record, key, now)
        return self._admitted(record)

    def _on_seat(self, token: str, now: float) -> bool:
        lease = self._leases.find(token, now)
        return isinstance(lease, GrantedLease) and (lease.gang is not None or lease.seat is not None)

    def refuse(self, token: str | None, now: float) -> None:
        """A task cannot start (unknown method, wrong arguments): its single-use token is consumed (L3)."""
        if token is not None:
            self._leases.spend(token, now)

    def settle(self, sender: RouterHistory, task_id: int, answer: bytes, now: float) -> None:
        """Note the answer to a task id, once for each: a repeated request gets it again and starts nothing."""
        record = sender.running.pop(task_id, None)
        if record is not None:
            record.answered = True
            record.due_at = NEVER
        self._memory.note_done(sender, task_id, answer, now)

    def finish(self, record: TaskRecord) -> None:
        """The task's code has stopped: its slots go back to its lease or become free. Call it once for each admitted
        task.

        The answer may be noted before (for code that cannot be stopped) or after this; the task is `running` until
        then.
        """
        if record.limit is not None:
            self._unlimit(record.limit, record)
        if record.lease is None:
            self._limiter.finish(record)
        else:
            self._leases.give_back(record.lease, record)
        record.due_at = NEVER

    def complete(self, record: TaskRecord, answer: bytes, now: float) -> None:
        """`settle` and `finish` in one, for a task that has ended and has an answer."""
        sender = record.sender
        del sender.running[record.id]
        record.answered = True
        self._memory.note_done(sender, record.id, answer, now)
        record.due_at = NEVER
        if record.limit is not None:
            self._unlimit(record.limit, record)
        if record.lease is None:
            self._limiter.finish(record)
        else:
            self._leases.give_back(record.lease, record)

    def _unlimit(self, limit: MethodLimit, record: TaskRecord) -> None:
        record.limit = None
        reply = limit.end(record)
        if reply is not None:
            self.freed.append(reply)

    def withdraw(self, sender: RouterHistory, task_id: int, now: float) -> TaskRecord | None:
        """The caller no longer wants this task. Returns it if it runs, to be cancelled. If it has not arrived yet, it
        will be refused."""
        record = sender.running.get(task_id)
        if record is None and self.repeated(sender, task_id) is None:
            self._memory.note_done(sender, task_id, WITHDRAWN, now)
        return record

    def look_up(self, sender: RouterHistory, task_id: int, now: float) -> DuplicateRequest:
        """The state of a task. One that never arrived is refused from now on, so it can safely be sent elsewhere."""
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
        """The job whose answer a request for this attempt gets instead of starting it: the job runs, or it ended in
        this attempt or a later one, or it succeeded (and all untaken items are kept). `attach`: nothing may start, so
        any known job will do."""
        job = self.jobs.find(key)
        ended_well = job is not None and not job.failed and not job.lost(0)
        if job is None or job.running or attach or ended_well or attempt <= job.attempt:
            return job
        return None

    def attach(self, job: RunningJob, listener: JobListener, items: int | None) -> Iterator[bytes]:
        """Let a request get the end of a running job, without a slot. Until then its id is `running`: it can be looked
        up, and withdrawn, which must cancel the job. See JobTable.attach. The id must be new."""
        listener.sender.saw_new(listener.id)
        listener.sender.running[listener.id] = job.record
        return self.jobs.attach(job, listener, items)

    def settle_new(self, sender: RouterHistory, task_id: int, answer: bytes, now: float) -> None:
        """Note the answer to a new task id for which nothing was admitted."""
        sender.saw_new(task_id)
        self._memory.note_done(sender, task_id, answer, now)

    # -- time and operators ---------------------------------------------------------------------------------------

    def expire(self, now: float) -> ExpiredTasks:
        """End what is overdue. Call it at `next_deadline()` or later; calling it early does no harm."""
        ended = self._leases.expire(now)
        overdue = self._deadlines.pop_due(now)
        for record in overdue:
            record.due_at = NEVER
        return ExpiredTasks(ended, overdue)

    def sweep(self, now: float) -> None:
        """Forget old state. Call it about every second."""
        self._leases.expire(now)
        self._memory.sweep(now)
        self.jobs.sweep(now)
        self.gangs.sweep(now)

    def next_deadline(self) -> float | None:
        """When `expire` must be called next; None: never."""
        lease_at = self._leases.next_at()
        task_at = self._deadlines.next_at(self._limiter.running)
        if lease_at is None or task_at is None:
            return task_at if lease_at is None else lease_at
        return min(lease_at, task_at)

    def resize(self, total: int) -> None:
        """Change the number of slots; nobody loses slots that they hold."""
        self._limiter.resize(total)

    def drain(self, cut_at: float, now: float) -> None:
        """Grant nothing more. Existing leases are honoured until `cut_at`; renewals do not go beyond that."""
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
        """End every lease. Running tasks continue and stay counted; nothing else of earlier epochs is honoured. Ends a
        doubt: the id is ours."""
        if epoch <= self.epoch:
            raise ValueError(f"epoch {epoch} is not after {self.epoch}")
        self.epoch = epoch
        self.epochs.add(epoch)
        self._fences.new_epoch(epoch)
        self._void(now)
        self.doubted = False

    def fence(self, now: float) -> None:
        """Another process has the id: like `new_epoch`, but for good and without a new epoch, which would be taken for
        that process's."""
        self.doubted = True
        self._void(now)

    def _void(self, now: float) -> None:
        for lease in list(self._leases.living.values()):
            if lease.ended is None:  # subleases end with their seat
                self._leases.end(lease, LeaseTransition.DROP, now)
        self.gangs.new_epoch(now)

    def statistics(self) -> dict[str, int]:
        """Sizes of what is kept in memory."""
        return {
            "leases": len(self._leases.living),
            "tasks": len(self.tasks),
            "jobs": len(self.jobs),
            "unstored": self.jobs.unstored,
            **self._memory.statistics(),
        }

    def check(self) -> None:
        """Raise AssertionError if a law is broken. For tests, after every event; it checks everything."""
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
        for limit in self.limits.values():
            limit.check()
        assert all(record.limit is None or record in record.limit.running for record in self.tasks), self  # L2
        assert sum(len(limit.running) for limit in self.limits.values()) == sum(
            record.limit is not None for record in self.tasks
        ), self  # L2
        for sender, task_id, record in self._memory.waiting():
            own = sender is record.sender and task_id == record.id
            assert own or self.jobs.hears(record, sender, task_id), record
        # A record may wait for its answer after it freed its slots, never the other way round.
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
            # A gang's owner may learn of the commit a moment before its members do: it tries again, as if we were full.
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


def _has_seat(record: TaskRecord) -> bool:
    return record.lease is not None and record.lease.in_gang is not None
