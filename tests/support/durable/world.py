"""A model of everything around a queue's core: the stream, the buckets, workers and leases, and the shell between.

Everything that takes time is a parcel in `network`; tests deliver parcels in any order. The laws of the core that can
be observed from outside are asserted here, at the effect concerned; the oracle asserts which task starts next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gangline.dispatcher.durable.core import effects as do
from gangline.dispatcher.durable.core import events as on
from gangline.dispatcher.durable.core.effects import RecordKind
from gangline.dispatcher.durable.core.queue_core import QueueCore
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.schemas.errors.base import GanglineError, ResultLost, TaskCancelled, WorkerLost
from gangline.schemas.messages.submission import Submission
from gangline.schemas.records.jobs import JobState
from gangline.schemas.records.routes import RouteRecord
from gangline.schemas.records.workers import TaskPolicy

from .oracle import Oracle
from .transcript import said_effect, said_event


@dataclass
class Run:
    """An attempt on a worker."""

    seq: int
    job: str
    attempt: int
    worker: str
    pool: str
    cost: int
    key: str | None
    tenant: str = ""
    lease: int | None = None
    adopted: bool = False
    stop: do.StopReason | None = None
    ended: bool = False
    """Its code has stopped; the answer is kept."""
    error: GanglineError | None = None


@dataclass
class Message:
    submission: Submission
    size: int = 100
    delivered: int = 0
    nonsense: bool = False


@dataclass
class World:
    endpoint: str = "e"
    route: RouteRecord = field(default_factory=RouteRecord)
    explicit: bool = False
    settings: DispatcherSettings = field(default_factory=lambda: DispatcherSettings(node="n"))
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.stream: dict[int, Message] = {}
        self.last_seq = 0
        self.results: dict[str, JobState] = {}
        self.tries: dict[str, tuple[int, float]] = {}
        self.marked: dict[str, int] = {}
        self.replays: dict[str, int] = {}
        """By job: the most attempts that one of its messages had behind it."""
        """Sequence by job: its TryRecord says that it is cancelled."""
        self.promised: set[int] = set()
        """Sequences whose cancellation was confirmed before they had ended."""
        self.dead: list[tuple[str, str]] = []
        self.ends: Counter[str] = Counter()
        """Stored outcomes by job: in the end exactly one each."""
        self.acked: set[int] = set()
        self.scheduled: list[Submission] = []
        self.runs: list[Run] = []
        """Jobs on workers; ended ones until they are acknowledged."""
        self.started: list[tuple[str, int]] = []
        """Job and attempt of each Start."""
        self.begun_at: list[float] = []
        self.leases: dict[str, list[int]] = {}
        """Free slots of each lease, by pool; a slot stays with its lease."""
        self.told: list[do.EmitJobEvent] = []
        self.story: list[str] = []
        self.facts: dict[str, on.PoolSeen] = {}
        self.draw = 0.5
        self.ending: int | None = None
        """The job whose end is being reported to the core."""
        self.repeats = 0
        """Messages that only repeated a job."""
        self._boot()

    # -- ownership of the queue ----------------------------------------------------------------------------------------

    def _boot(self) -> None:
        self.core = QueueCore(self.endpoint, self.settings)
        self.oracle = Oracle(self.endpoint, self.settings.age_step_s)
        self.network: list[tuple[str, Callable[[], object]]] = []
        self.pulled = 0
        self.undelivered = 0
        self.boundary = 0
        self.wake_at: float | None = None
        self.wants: dict[str, do.RequestSlots] = {}
        self.attached: dict[int, Run] = {}
        self.once = False
        """Workers do not declare tasks idempotent."""
        self.acking: set[int] = set()
        self.asked: set[str] = set()
        """Jobs with a cancellation request that waits for its answer."""

    def take(self) -> None:
        """Take the queue over, up to the survey."""
        self.boundary = self.last_seq
        for pool in self.leases:
            self.leases[pool] = []
        self.tell(on.Routed, route=self.route, explicit=self.explicit)
        for facts in self.facts.values():
            self.tell(on.PoolSeen, **{name: getattr(facts, name) for name in _FACTS})
        self.tell(on.QueueTaken)

    def survey(self) -> None:
        """Ask all workers which jobs they have."""
        for run in list(self.runs):
            self.tell(on.TaskAdopted, job=run.job, worker=run.worker, attempt=run.attempt)

    def recover(self) -> None:
        """Survey, wait for the predecessor's pulled messages, and open."""
        self.survey()
        while self.pulled and self.next_undelivered() is not None:
            self.deliver_message()
        for run in list(self.runs):
            if run.seq in self.stream and not self.stream[run.seq].delivered:
                self.read_ahead(run.seq)
        self.tell(on.Recovered)

    def open(self) -> World:
        self.take()
        self.flush()
        self.recover()
        self.flush()
        return self

    def take_over(self, *, flush: bool = True) -> None:
        """The dispatcher is dead, and another one serves the queue; `flush`: and has done all that there is to do."""
        self.die()
        self.take()
        self.flush()
        self.recover()
        if flush:
            self.flush()

    def die(self, applied: Callable[[], bool] = lambda: False) -> None:
        """The dispatcher is dead. The server `applied` some of its messages in flight."""
        for name, action in self.network:
            if not name.startswith("deliver") and applied():
                self._deaf = True
                action()
                self._deaf = False
        for message in self.stream.values():
            message.delivered = 0
        self.runs = [run for run in self.runs if run.seq in self.stream]
        self.story.append("----- the dispatcher dies; another takes over")
        self._boot()

    _deaf = False
    """The answer goes to a dead dispatcher."""

    def tell(self, kind: Any, /, **fields: Any) -> list[do.Effect]:
        """Pass the event to the core, check everything, and execute its effects."""
        if self._deaf:
            return []
        event = kind(now=self.now, wall=self.now, draw=self.draw, **fields)
        self.ending = event.seq if isinstance(event, on.AttemptEnded) else None
        self.story.append(said_event(event))
        if isinstance(event, on.PoolSeen):
            self.facts[event.pool] = event
        self.oracle.event(event)
        effects = self.core.handle(event)
        for effect in effects:
            self.story.append(said_effect(effect))
            self.oracle.effect(effect)
            self._carry_out(effect)
        if not self.core._state.unclear and not self.oracle.several:
            assert self.oracle.next() is None, f"{self.oracle.next()} could start"
        self._answer_cancels(event)
        self.core.check()
        return effects

    def _answer_cancels(self, event: on.AnyEvent) -> None:
        if isinstance(event, on.Cancel):
            self.asked.add(event.job)
        for job in sorted(self.asked):
            if self.core.promised(job):
                self.asked.discard(job)
                info = self.core.info(job)
                if info is not None and info.sequence is not None:
                    self.promised.add(info.sequence)

    # -- time ----------------------------------------------------------------------------------------------------------

    def advance(self, seconds: float, *, flush: bool = True) -> None:
        """Advance the time, with a Tick whenever one was requested."""
        end = self.now + seconds
        while True:
            if flush:
                self.flush()
            if self.wake_at is None or self.wake_at > end:
                break
            self.now = max(self.now, self.wake_at)
            self.tell(on.Tick)
        self.now = end

    def deliver(self, index: int = 0) -> None:
        _, action = self.network.pop(index)
        action()

    def flush(self) -> None:
        """Deliver everything in flight."""
        while True:
            if self.network:
                self.deliver()
            elif self.pulled and self.next_undelivered() is not None:
                self.deliver_message()
            else:
                return

    def _later(self, name: str, action: Callable[[], object]) -> None:
        self.network.append((name, action))

    # -- producers -----------------------------------------------------------------------------------------------------

    def submit(self, job: str | None = None, *, size: int = 100, **fields: Any) -> int:
        """Publish a task; it is delivered when the core has pulled it. Returns its sequence."""
        self.last_seq += 1
        fields.setdefault("method", "run")
        fields.setdefault("published_at", self.now)
        submission = Submission(endpoint=self.endpoint, job=job or f"j{self.last_seq}", **fields)
        self.stream[self.last_seq] = Message(submission, size)
        return self.last_seq

    def arrive(self, *jobs: str, **fields: Any) -> int:
        """Publish tasks, one if no job is named, and deliver each at once. Returns the last sequence."""
        for job in jobs or (None,):
            seq = self.submit(job, **fields)
            while self.pulled and self.stream[seq].delivered == 0:
                self.deliver_message()
        return self.last_seq

    def next_undelivered(self) -> int | None:
        return next((seq for seq, message in self.stream.items() if not message.delivered), None)

    def deliver_message(self) -> None:
        seq = self.next_undelivered()
        assert seq is not None
        self.pulled -= 1
        self.deliver_again(seq)

    def hidden(self, tenant: str) -> int | None:
        """The oldest message of a tenant that is not known."""
        for seq, message in self.stream.items():
            if message.submission.tenant == tenant and not message.delivered and seq not in self.core._state.tasks:
                return seq
        return None

    def read_ahead(self, seq: int) -> None:
        """Read a message that the consumer has not delivered."""
        self._arrives(seq, ahead=True)

    @property
    def ahead(self) -> list[str]:
        """Jobs that were read beyond the window, and not delivered since."""
        return [task.job for task in self.core._state.tasks.values() if task.ahead]

    def deliver_again(self, seq: int) -> None:
        self.stream[seq].delivered += 1
        self._arrives(seq)

    def _arrives(self, seq: int, *, ahead: bool = False) -> None:
        message = self.stream[seq]
        job, behind = message.submission.job, message.submission.attempts
        attempts, not_before = self.tries.get(job, (behind, 0.0))
        self.replays[job] = max(behind, self.replays.get(job, 0))
        self.tell(
            on.TaskArrived,
            seq=seq,
            submission=message.submission,
            size=message.size,
            look=seq <= self.boundary or message.submission.job.startswith("i"),
            attempts=attempts,
            not_before=not_before,
            cancelled=self.marked.get(message.submission.job) == seq,
            ahead=ahead,
        )

    def reroute(self, route: RouteRecord) -> None:
        self.route = route
        self.tell(on.Routed, route=route, explicit=self.explicit)

    def malformed(self, text: str = "odd") -> int:
        self.last_seq += 1
        seq = self.last_seq
        self.stream[seq] = Message(Submission(endpoint=self.endpoint, method="", job=str(seq)), 50, 1, True)
        self.pulled -= 1
        self.tell(on.Malformed, seq=seq, size=50, error=GanglineError(text))
        return seq

    # -- workers and leases --------------------------------------------------------------------------------------------

    def pool(
        self,
        pool: str = "e",
        *,
        workers: int = 1,
        largest: int = 8,
        known: bool = True,
        policies: dict[str, TaskPolicy] | None = None,
        **costs: int,
    ) -> None:
        self.tell(
            on.PoolSeen, pool=pool, known=known, workers=workers, largest=largest, costs=costs, policies=policies or {}
        )

    def credit(self, *free: int, pool: str = "e") -> None:
        """Set the leases, with this many free slots each."""
        self.leases[pool] = list(free)
        for run in self.attached.values():
            if run.pool == pool:
                run.lease = None
        self.tell(on.SlotsGranted, pool=pool, free=free)

    def run_of(self, job: str) -> Run:
        return next(run for run in self.runs if run.job == job and not run.ended)

    def end(self, job: str, error: GanglineError | None = None, *, keep_slot: bool = True) -> None:
        """The code of a job's attempt has stopped; its slot is free for the next."""
        run = self.run_of(job)
        if run.stop is not None and error is None:
            error = TaskCancelled("stopped")
        run.ended, run.error = True, error
        if run.seq in self.attached and self.attached[run.seq] is run:
            self._answer(run, keep_slot=keep_slot)

    def settle(self, job: str, error: GanglineError | None = None, *, keep_slot: bool = True) -> None:
        """The attempt ends, and all that follows arrives."""
        self.end(job, error, keep_slot=keep_slot)
        self.flush()

    def settle_all(self) -> None:
        """All running attempts end, and all that follows arrives."""
        for run in [run for run in self.runs if not run.ended]:
            self.end(run.job)
        self.flush()

    def finish(self, job: str) -> None:
        """The code of a job's attempt succeeded, even if it was cancelled."""
        run = self.run_of(job)
        run.ended, run.error = True, None
        if self.attached.get(run.seq) is run:
            self._answer(run)

    def refuse(self, job: str, error: GanglineError) -> None:
        """The worker started nothing."""
        run = self.run_of(job)
        assert run.attempt > 0
        self.runs.remove(run)
        run.error = error
        self._answer(run)

    def kill(self, job: str) -> None:
        """The worker that runs the job dies."""
        run = self.run_of(job)
        self.runs.remove(run)
        if self.attached.get(run.seq) is run:
            run.error = WorkerLost("gone")
            self._answer(run, keep_slot=False)

    def _answer(self, run: Run, *, keep_slot: bool = True) -> None:
        del self.attached[run.seq]
        lease, run.lease = run.lease, None
        if lease is not None and keep_slot and lease < len(self.leases[run.pool]):
            self.leases[run.pool][lease] += run.cost
            self.tell(on.AttemptEnded, seq=run.seq, attempt=run.attempt, error=run.error, once=self.once)
            self.tell(on.SlotsGranted, pool=run.pool, free=tuple(self.leases[run.pool]))
        else:
            self.tell(on.AttemptEnded, seq=run.seq, attempt=run.attempt, error=run.error, once=self.once)

    # -- effects of the core -------------------------------------------------------------------------------------------

    def _carry_out(self, effect: do.Effect) -> None:
        match effect:
            case do.Fetch():
                assert effect.count > 0
                self.pulled += effect.count
            case do.LookUpResult():
                self._later(
                    f"look {effect.job}",
                    lambda: self.tell(on.Looked, seq=effect.seq, finished=effect.job in self.results),
                )
            case do.RequestSlots():
                self.wants[effect.pool] = effect
            case do.StartAttempt():
                self._start(effect)
            case do.ReattachAttempt():
                self._attach(effect)
            case do.StopAttempt():
                run = self.attached.get(effect.seq)
                if run is None:  # an attach that found nothing, or a job that ends with this very event
                    ends = any(name == f"lost {effect.job}" for name, _ in self.network) or self.ending == effect.seq
                    assert ends, f"{effect} of nothing"
                else:
                    assert run.attempt == effect.attempt
                    run.stop = effect.why
            case do.EmitJobEvent():
                self.told.append(effect)
            case do.SetQueueTimer():
                self.wake_at = effect.at
            case _:
                self._settle(effect)

    def _settle(self, effect: do.Persist | do.Ack) -> None:
        assert self.oracle.sure, f"law 7: {effect} while in doubt"
        assert effect.seq in self.stream or isinstance(effect, do.Ack), f"{effect} of what is gone"
        match effect:
            case do.Persist(kind=kind):
                assert kind is not RecordKind.TRY or effect.seq not in self.attached
                self._later(f"{kind.value} {effect.job}", lambda: self._persist(effect))
            case do.Ack():
                self._check_end(effect)
                self.acking.add(effect.seq)
                self._later(f"ack {effect.job}", lambda: self._ack(effect))

    def _persist(self, effect: do.Persist) -> None:
        match effect.kind:
            case RecordKind.TRY:
                self.tries[effect.job] = (effect.attempts, effect.not_before)
            case RecordKind.CANCELLATION:
                if effect.seq in self.stream:
                    self.tries[effect.job] = (effect.attempts, self.tries.get(effect.job, (0, 0.0))[1])
                    self.marked[effect.job] = effect.seq
            case RecordKind.RESULT | RecordKind.DEAD_LETTER:
                if effect.job not in self.results:
                    self.ends[effect.job] += 1
                    if effect.reason is not None:
                        self.dead.append((effect.job, effect.reason.value))
                self.results.setdefault(effect.job, effect.state)
            case RecordKind.SCHEDULE:
                submission = self.stream[effect.seq].submission
                if submission not in self.scheduled:
                    self.scheduled.append(submission)
        self.tell(on.Persisted, seq=effect.seq, kind=effect.kind)

    def _check_end(self, effect: do.Ack) -> None:
        """Law 1."""
        if effect.seq in self.acking:
            return
        message = self.stream.get(effect.seq)
        assert message is not None, f"{effect} of what is gone"
        others = [seq for seq, other in self.stream.items() if other.submission.job == effect.job and seq != effect.seq]
        scheduled = message.submission in self.scheduled
        if effect.end is JobState.DONE and message.submission.result_ttl_s == 0:
            self.ends[effect.job] += 1
            return
        refused_run = (
            effect.end is JobState.DEAD and message.submission.tenant and message.submission.schedule is not None
        )
        if refused_run and effect.job not in self.results:
            return
        assert effect.job in self.results or scheduled or others, f"law 1: {effect} before its end is stored"
        if others and effect.job not in self.results and not scheduled:
            self.repeats += 1

    def _ack(self, effect: do.Ack) -> None:
        self.acked.add(effect.seq)
        self.stream.pop(effect.seq, None)
        if effect.tried:
            self.tries.pop(effect.job, None)
            self.marked.pop(effect.job, None)
        self.runs = [run for run in self.runs if run.seq != effect.seq or not run.ended]
        self.tell(on.Acked, seqs=[effect.seq])

    def _start(self, effect: do.StartAttempt) -> None:
        submission = self.stream[effect.seq].submission
        living = [run for run in self.runs if not run.ended]
        assert not any(run.job == effect.job for run in living), f"law 2: {effect} while it runs"
        assert effect.seq not in self.promised, f"law 8: {effect} after it was said to be cancelled"
        tried = self.tries.get(effect.job)
        # A replayed dead letter may have met a message of its first life, which then goes on from its attempts.
        before = {tried[0]} if tried else {submission.attempts, self.replays.get(effect.job, 0)}
        assert effect.attempt - 1 in before, f"law 3: {effect} after {before}"
        rules = self.route.queue
        assert rules.max_running is None or len(living) < rules.max_running, f"law 4: {effect}"
        of_key = sum(run.key == submission.key and run.tenant == submission.tenant for run in living)
        assert submission.key is None or rules.per_key is None or of_key < rules.per_key, f"law 4: {effect}"
        assert submission.deadline_at is None or self.now < submission.deadline_at, f"law 9: {effect}"
        free = self.leases.get(effect.pool, [])
        fits = [lease for lease, slots in enumerate(free) if slots >= effect.cost]
        assert fits, f"law 4: no credit for {effect}"
        lease = min(fits, key=lambda lease: free[lease])
        free[lease] -= effect.cost
        run = Run(
            seq=effect.seq,
            job=effect.job,
            attempt=effect.attempt,
            worker=f"{effect.pool}.w{len(self.started)}",
            pool=effect.pool,
            cost=effect.cost,
            key=submission.key,
            tenant=submission.tenant,
            lease=lease,
        )
        self.runs = [other for other in self.runs if other.job != effect.job]
        self.runs.append(run)
        self.attached[effect.seq] = run
        self.started.append((effect.job, effect.attempt))
        self.begun_at.append(self.now)

    def _attach(self, effect: do.ReattachAttempt) -> None:
        run = next(
            (
                run
                for run in self.runs
                if (run.job, run.attempt, run.worker) == (effect.job, effect.attempt, effect.worker)
            ),
            None,
        )
        if run is None:
            lost = ResultLost("not known here")
            self._later(
                f"lost {effect.job}",
                lambda: self.tell(on.AttemptEnded, seq=effect.seq, attempt=effect.attempt, error=lost),
            )
            return
        self.attached[effect.seq] = run
        run.seq, run.lease, run.adopted = effect.seq, None, True
        if run.ended:
            self._later(f"kept {effect.job}", lambda: self._kept(run))

    def _kept(self, run: Run) -> None:
        if self.attached.get(run.seq) is run:
            self._answer(run)


_FACTS = ("pool", "known", "workers", "largest", "costs", "policies")
