"""What the parts of a queue's core share: its tasks, their timers, the pools that they go to, and what is to be done.

Laws of the pools:

1. A task stays with its pool while the weights do not change; if the pool has no room it waits for it.
2. Credit is deducted when a task is started, from the smallest lease that has room for it.
3. While the head of a pool's line takes more slots than any lease has free, it and those that take fewer have their
   turns: for `turn_s` nobody passes it, so that enough slots of one worker can become free; then for as long whoever
   fits goes by, so that a worker that never becomes free keeps nobody else waiting; and so on.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

from ....runtime.timers import TimerQueue
from ....schemas.errors.base import GanglineError
from ....schemas.messages.submission import Submission
from ....schemas.records.jobs import JobState
from ....schemas.records.routes import QueueRules, RouteRecord
from ...traffic.route_core import choose_pool
from ..policies.settings import DispatcherSettings
from ..policies.start_order import KeyConcurrency, OrderedKeys, Place, PrefetchWindow, RateLimiter, ReadyQueue
from .effects import Ack, Bury, Effect, EmitJobEvent, Mark, Note, Schedule, Store
from .events import PoolSeen
from .task import ADMITTED, STARTED, UNSETTLED, Task, TaskStep, move

_EXACT: Final = 8
_HAIR: Final = 1e-9
"""A timer that fires at the computed time must not be a rounding error too early."""
_REMEMBERED: Final = 100_000


class PoolCredit:
    """One pool."""

    __slots__ = (
        "blocked_at",
        "costs",
        "free",
        "free_slots",
        "known",
        "largest",
        "limit",
        "line",
        "name",
        "once",
        "running",
        "told",
        "workers",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.known = False
        self.workers = 0
        self.largest = 0
        """Most slots of one living worker; 0: none lives."""
        self.costs: Mapping[str, int] = {}
        self.once: frozenset[str] = frozenset()
        """Methods of tasks that may not be run twice."""
        self.limit: int | None = None
        """Most tasks of the endpoint that run there at once."""
        self.line = ReadyQueue()
        self.free: list[int] = []
        """Free slots of each lease that has any, ascending."""
        self.free_slots = 0
        """... together."""
        self.running = 0
        """Tasks."""
        self.blocked_at: float | None = None
        """Since when a head that does not fit has held up somebody who takes fewer slots; law 3."""
        self.told: tuple[int, int] | None = None
        """What the last Want said; None: nothing was said of the pool yet."""

    def __repr__(self) -> str:
        return f"PoolCredit({self.name}, {len(self.line)} in line, {self.running} running, free={self.free})"

    def credit(self, free: tuple[int, ...]) -> None:
        self.free = sorted(slots for slots in free if slots > 0)
        self.free_slots = sum(self.free)

    def take(self, cost: int) -> None:
        """Law 2."""
        at = bisect_left(self.free, cost)
        left = self.free.pop(at) - cost
        self.free_slots -= cost
        if left:
            insort(self.free, left)

    @property
    def full(self) -> bool:
        """The route allows no more of its tasks there."""
        return self.limit is not None and self.running >= self.limit

    def next(self, now: float, turn_s: float) -> Place | None:
        """Who starts next, if there is room: the head of its line, or who goes by it."""
        if self.full:
            return None
        head, most = self.line.first(), self.free[-1] if self.free else 0
        if head is None or self.line.cost(head[1]) <= most:
            self.blocked_at = None
            return head
        if self.line.smallest == self.line.cost(head[1]):
            self.blocked_at = None
        elif self.blocked_at is None:
            self.blocked_at = now
        return self.line.first(most) if self._passing(now, turn_s) else None

    def turn_ends_at(self, now: float, turn_s: float) -> float | None:
        """When others' turn comes; None: there are none."""
        if self.blocked_at is None or self.full:
            return None
        return self.blocked_at + (self._turn(now, turn_s) + 1) * turn_s

    def _turn(self, now: float, turn_s: float) -> int:
        """From 0; the even ones are the head's."""
        return 0 if self.blocked_at is None else int((now - self.blocked_at) / turn_s + _HAIR)

    def _passing(self, now: float, turn_s: float) -> bool:
        return self._turn(now, turn_s) % 2 == 1

    def lacks(self, most: int, now: float, turn_s: float) -> tuple[int, int]:
        """What more is needed: slots in all, and slots that the next takes.

        Args:
            most: so many tasks may start now, for whatever other limits there are.
        """
        head = self.line.first()
        if self.limit is not None:
            most = min(most, self.limit - self.running)
        if head is None or most <= 0:
            return (0, 0)
        largest = self.line.smallest if self._passing(now, turn_s) else self.line.cost(head[1])
        slots = min(self.line.slots, most * max(largest, -(-self.line.slots // len(self.line))))
        if self.free and largest <= self.free[-1]:
            slots -= self.free_slots
        if slots <= 0:
            return (0, 0)
        return (slots if slots <= _EXACT else 1 << (slots - 1).bit_length(), largest)


class PoolCredits:
    """All of them, by name."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._views: dict[str, PoolCredit] = {}
        self[endpoint].told = (0, 0)
        self._route = RouteRecord()
        self._weights = self._route.pools(endpoint)
        self._chosen: dict[str, str] = {}
        """Pool by key, as long as the weights last."""
        self._explicit = False

    def __iter__(self) -> Iterator[PoolCredit]:
        return iter(self._views.values())

    def __getitem__(self, name: str) -> PoolCredit:
        view = self._views.get(name)
        if view is None:
            view = self._views[name] = PoolCredit(name)
        return view

    def route(self, route: RouteRecord, explicit: bool) -> None:
        """Draw by these weights from now on."""
        self._route = route
        self._weights = route.pools(self._endpoint)
        self._explicit = explicit
        self._chosen.clear()
        for name in (*self._weights, *route.limits):
            self[name].told = self[name].told or (0, 0)
        for view in self._views.values():
            view.limit = route.limits.get(view.name)

    def seen(self, event: PoolSeen) -> bool:
        """Learn of a pool. True: tasks in line may take other slots now, or another number of workers."""
        view = self[event.pool]
        before = (view.largest, dict(view.costs))
        view.known, view.workers, view.largest = event.known, event.workers, event.largest
        view.costs, view.once = event.costs, event.once
        return before != (view.largest, dict(view.costs))

    def choose(self, task: Submission, draw: float) -> PoolCredit:
        """Law 1."""
        if task.pool is not None:
            return self[task.pool]
        if len(self._weights) == 1:
            return self[next(iter(self._weights))]
        if task.key is None or not self._route.by_key:
            return self[choose_pool(self._route, self._endpoint, None, draw)]
        chosen = self._chosen.get(task.key)
        if chosen is None:
            if len(self._chosen) > _REMEMBERED:
                self._chosen.clear()
            chosen = self._chosen[task.key] = choose_pool(self._route, self._endpoint, task.key, draw)
        return self[chosen]

    def knows(self, task: Submission) -> bool:
        """Whether there is, or was, anybody who might run it."""
        if task.pool is not None:
            return self[task.pool].known
        if self._explicit:
            return True
        if len(self._weights) == 1:
            return self[next(iter(self._weights))].known
        return any(self[name].known for name in self._weights)


class TimerKind(StrEnum):
    """What is to be done."""

    DEADLINE = "deadline"
    """The job may run no longer."""
    TIMEOUT = "timeout"
    """The try may run no longer."""
    RETRY = "retry"
    """The next try's turn has come."""
    UNKNOWN = "unknown"
    """Nobody knows the endpoint: it is dead."""
    MISFIT = "misfit"
    """No worker is large enough: it is dead."""


_ALL: Final = tuple(TimerKind)
Entry = tuple[TimerKind, int]
"""With the task's sequence."""


class TaskTimers(TimerQueue[Entry]):
    """By the monotonic clock."""

    __slots__ = ()

    def forget(self, seq: int) -> None:
        """Cancel all that is to be done about a task."""
        if self:
            for due in _ALL:
                self.cancel((due, seq))


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
        move(task, to)
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
