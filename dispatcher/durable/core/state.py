"""What the parts of a queue's core share: its tasks, and what is to be done."""

from __future__ import annotations

from collections import Counter

from ....schemas.errors.base import GanglineError
from ....schemas.records.jobs import JobState
from ....schemas.records.routes import QueueRules
from ..policies.key_limits import KeyConcurrency, OrderedKeys
from ..policies.prefetch_window import PrefetchWindow
from ..policies.rate_limit import RateLimiter
from ..policies.settings import DispatcherSettings
from . import states
from .effects import Ack, Bury, Effect, EmitJobEvent, Mark, Note, Schedule, Store
from .pool_credit import PoolCredits
from .states import ADMITTED, STARTED, UNSETTLED, TaskStep
from .task import Task
from .timers import TaskTimers, TimerKind

Settling = Store | Note | Mark | Bury | Schedule | Ack


class QueueState:
    """The state of one queue. Which part changes what is said in the parts."""

    def __init__(self, endpoint: str, settings: DispatcherSettings) -> None:
        self.endpoint = endpoint
        self.settings = settings
        self.now = float("-inf")
        self.wall = 0.0
        self.draw = 0.5
        self.taken = False
        self.waiting: int | None = None
        """Messages of the queue when it was taken; None: not known."""
        self.open = False
        """What ran before the takeover is known: tasks may be started, and end without having been."""
        self.sure = True
        """The queue is ours."""
        self.rules = QueueRules()
        self.tasks: dict[int, Task] = {}
        """By sequence; all that is not GONE."""
        self.jobs: dict[str, int] = {}
        """Sequence by job, of those that are not being scheduled nor malformed."""
        self.adoptions: dict[str, tuple[int, str, str]] = {}
        """Attempt, worker and pool, of jobs that run and have not arrived."""
        self.count: dict[TaskStep, int] = dict.fromkeys(TaskStep, 0)
        """Tasks by step."""
        self.pools = PoolCredits(endpoint)
        self.concurrency: KeyConcurrency | None = None
        """None: the rules have no limit per key."""
        self.ordered_keys = OrderedKeys()
        self.gate: RateLimiter | None = None
        """None: the rules have no rate."""
        self.agenda = TaskTimers()
        self.window = PrefetchWindow(count=settings.window_tasks, bytes_=settings.window_bytes)
        self.totals: Counter[str] = Counter()
        """Since the takeover: started, done, dead, cancelled, retried, repeated."""
        self.out: list[Effect] = []
        self.held: list[Effect] = []
        """What waits until the queue is surely ours."""

    @property
    def running(self) -> int:
        """Tasks that workers have, as far as is known."""
        return self.count[TaskStep.RUNNING] + self.count[TaskStep.STOPPING]

    def move(self, task: Task, to: TaskStep) -> None:
        before, count = task.step, self.count
        states.move(task, to)
        count[before] -= 1
        count[to] += 1

    def put(self, task: Task) -> None:
        """It arrived."""
        self.tasks[task.seq] = task
        self.count[task.step] += 1
        self.window.add(task.size)

    def settle(self, effect: Settling, *told: EmitJobEvent) -> None:
        """Ask for what must not be done by one who has lost the queue."""
        (self.out if self.sure else self.held).extend((effect, *told))

    def tell(self, task: Task, state: JobState, error: GanglineError | None = None) -> tuple[EmitJobEvent, ...]:
        """What is to be told of a change, if the job asked for it."""
        if not task.submission.events:
            return ()
        return (
            EmitJobEvent(
                seq=task.seq,
                job=task.job,
                state=state,
                attempt=task.attempts,
                at=self.wall,
                error=error,
                reason=task.reason if state is JobState.DEAD else None,
            ),
        )

    def mono(self, wall: float) -> float:
        """A Unix time on the monotonic clock."""
        return self.now + (wall - self.wall)


def check(queue_state: QueueState) -> None:
    """Raises:
    AssertionError: names the task and what is wrong with it.
    """
    assert not queue_state.out, "effects were left behind"
    assert queue_state.sure or not queue_state.held or queue_state.taken, "effects are held back for nobody"
    assert not (queue_state.sure and queue_state.held), "effects are held back for nothing"
    by_step = Counter(task.step for task in queue_state.tasks.values())
    assert by_step == +Counter(queue_state.count), f"steps are miscounted: {by_step} is not {queue_state.count}"
    assert queue_state.window.held == len(queue_state.tasks), "the window is miscounted"
    assert queue_state.window.bytes == sum(task.size for task in queue_state.tasks.values()), "bytes are miscounted"
    for task in queue_state.tasks.values():
        _check_task(queue_state, task)
    _check_pools(queue_state)
    _check_keys(queue_state)
    for due, seq in queue_state.agenda:
        assert seq in queue_state.tasks, f"{due.value} of {seq}, which is gone"
        assert queue_state.tasks[seq].step in UNSETTLED, f"{due.value} of {queue_state.tasks[seq]}"
    for job, seq in queue_state.jobs.items():
        assert queue_state.tasks[seq].job == job, f"job {job} is not {seq}"
    lined = any(pool.line for pool in queue_state.pools)
    if queue_state.open and lined and queue_state.sure and not queue_state.rules.paused:
        _check_that_nothing_could_start(queue_state)


def _check_task(queue_state: QueueState, task: Task) -> None:
    step = task.step
    assert step not in (TaskStep.NEW, TaskStep.GONE), f"{task} is remembered"
    assert queue_state.jobs.get(task.job) == task.seq or step not in UNSETTLED or step is TaskStep.LOOKING, (
        f"{task} has no job"
    )
    assert (step is TaskStep.LINED) == any(task.seq in pool.line for pool in queue_state.pools), (
        f"{task} is (not) in line"
    )
    assert step is not TaskStep.STOPPING or task.doom is not None, f"{task} stops for no reason"
    assert step in UNSETTLED or step is TaskStep.SCHEDULING or task.end or step is TaskStep.ACKING, f"{task} has no end"
    assert step not in STARTED or task.attempts > 0, f"{task} runs without an attempt"
    assert step is not TaskStep.WAITING or (TimerKind.RETRY, task.seq) in queue_state.agenda, f"{task} waits for ever"
    assert step is not TaskStep.PARKED or (TimerKind.MISFIT, task.seq) in queue_state.agenda, (
        f"{task} is parked for ever"
    )
    assert not (queue_state.open and task.found and step is TaskStep.LOOKING), f"{task} has ended, and is not forgotten"
    if not queue_state.open:
        assert step is not TaskStep.RUNNING or task.worker, f"{task} was started before it was known what runs"
        return
    if step in ADMITTED or step is TaskStep.WAITING:
        assert task.doom is None, f"{task} is doomed and goes on waiting"
        assert task.deadline is None or queue_state.now < task.deadline, f"{task} has expired and goes on waiting"
    if step is TaskStep.RUNNING:
        assert task.doom is None, f"{task} is doomed and goes on"
        assert task.deadline is None or queue_state.now < task.deadline, f"{task} has expired and goes on"
        assert task.timeout_at is None or queue_state.now < task.timeout_at, f"{task} has timed out and goes on"


def _check_pools(queue_state: QueueState) -> None:
    running = Counter(task.pool for task in queue_state.tasks.values() if task.step in STARTED)
    for pool in queue_state.pools:
        assert pool.free == sorted(slots for slots in pool.free if slots > 0), f"{pool} has odd leases"
        assert pool.free_slots == sum(pool.free), f"{pool} has miscounted its credit"
        assert pool.running == running[pool.name], f"{pool} has miscounted what runs"
        assert pool.line.slots == sum(pool.line.cost(seq) for seq in pool.line), f"{pool} has miscounted its line"
        for seq in pool.line:
            task = queue_state.tasks[seq]
            assert pool is queue_state.pools.choose(task.submission, task.draw), f"{task} is in the line of {pool}"


def _check_keys(queue_state: QueueState) -> None:
    queue_state.ordered_keys.check()
    for task in queue_state.tasks.values():
        if task.step in UNSETTLED and task.ordered and task.key is not None:
            head = queue_state.ordered_keys.head(task.key)
            assert task.seq in queue_state.ordered_keys.members(task.key), f"{task} is not in its lane"
            assert (task.step is TaskStep.BEHIND) == (task.step in ADMITTED and head != task.seq), (
                f"{task} is (not) behind"
            )
        else:
            assert task.step is not TaskStep.BEHIND, f"{task} is behind nobody"
    if queue_state.concurrency is None:
        assert not queue_state.count[TaskStep.CAPPED], "tasks are kept back by no limit"
        return
    queue_state.concurrency.check()
    for task in queue_state.tasks.values():
        if task.key is None:
            continue
        listed = queue_state.concurrency.may_start(task.key, task.seq)
        assert listed == (task.step in (TaskStep.LINED, TaskStep.PARKED)), f"{task} is (not) a candidate of its key"
        assert (task.seq in queue_state.concurrency.running(task.key)) == (task.step in STARTED), (
            f"{task} is (not) counted by its key"
        )


def _check_that_nothing_could_start(queue_state: QueueState) -> None:
    if queue_state.gate is not None and not queue_state.gate.ready(queue_state.now):
        return
    if queue_state.rules.max_running is not None and queue_state.running >= queue_state.rules.max_running:
        return
    for pool in queue_state.pools:
        assert pool.next(queue_state.now, queue_state.settings.age_step_s) is None, (
            f"{pool} has room, and nobody was started"
        )
