"""What a queue shows: counts, one job, what a job waits for, and whether the invariants hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from ....schemas.limits import MAX_LINE_TASKS
from ....schemas.messages.jobs import (
    JobInfo,
    JobLine,
    JobObstacle,
    JobTurn,
    JobWhyReply,
    LineRunning,
    LineTask,
    QueueObstacle,
)
from ....schemas.records.jobs import JobFailure, JobState
from ....schemas.text import count_of, nearest_name, plain, rate_in_words
from ..policies.retry_policy import UNDECLARED, max_attempts, timeout_s
from ..policies.start_order import KeyConcurrency
from .pools import PoolCredit
from .scheduler import StartScheduler
from .task import ADMITTED, STARTED, TOLD, UNSETTLED, QueueState, Task, TaskStep, TimerKind

_SOME = 10
_MOST_CHARS: Final = 300
"""Of an error's message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """Counts of one queue; see schemas.records.jobs.QueueStats."""

    seen: int
    """Messages that the dispatcher has fetched."""
    running: int
    waiting: int
    """Tasks that failed and wait for their next attempt."""
    blocked: int
    """Tasks held back by the limit or the order of their key."""
    startable: int
    """Tasks waiting only for slots, a limit of the endpoint, or their turn."""
    pending: Mapping[str, int]
    """Fetched tasks that do not run and have not ended, by what they wait for; see QueueObstacle."""
    credit: int
    """Idle leased slots."""
    oldest_at: float | None
    """Unix time at which the oldest unstarted task was published."""
    started: int
    """Attempts started since the takeover; the counts below are since then, too."""
    done: int
    dead: int
    cancelled: int
    retried: int
    repeated: int
    """Messages acknowledged because their job was already in the queue or had ended before."""


def counts(queue: QueueState, scheduler: StartScheduler) -> QueueCounts:
    steps, totals = queue.count, queue.totals
    oldest = min(
        (task.submission.published_at for task in queue.tasks.values() if task.step in ADMITTED and not task.begun),
        default=None,
    )
    return QueueCounts(
        seen=len(queue.tasks),
        running=queue.running,
        waiting=steps[TaskStep.NOTING] + steps[TaskStep.WAITING],
        blocked=steps[TaskStep.BEHIND] + steps[TaskStep.CAPPED],
        startable=steps[TaskStep.LINED],
        pending=_pending(queue, scheduler),
        credit=sum(pool.free_slots for pool in scheduler.pools),
        oldest_at=oldest,
        started=totals["started"],
        done=totals["done"],
        dead=totals["dead"],
        cancelled=totals["cancelled"],
        retried=totals["retried"],
        repeated=totals["repeated"],
    )


def _pending(queue: QueueState, scheduler: StartScheduler) -> dict[str, int]:
    """From counts that are kept anyway: its cost does not depend on the number of tasks."""
    steps, found = queue.count, Counter[str]()
    found[QueueObstacle.BACKOFF] = steps[TaskStep.NOTING] + steps[TaskStep.WAITING]
    admitted = sum(steps[step] for step in ADMITTED)
    if scheduler.closed:
        found[QueueObstacle.PAUSED if queue.rules.paused else QueueObstacle.TAKEOVER] = admitted
        return +found
    found[QueueObstacle.ORDER] = steps[TaskStep.BEHIND]
    found[QueueObstacle.LIMIT] = steps[TaskStep.CAPPED]
    found[QueueObstacle.SIZE] = steps[TaskStep.PARKED]
    limited = scheduler.room() == 0
    for pool in scheduler.pools:
        if not pool.workers:
            obstacle = QueueObstacle.WORKERS
        elif limited or pool.full:
            obstacle = QueueObstacle.LIMIT
        else:
            obstacle = QueueObstacle.SLOTS
        found[obstacle] += len(pool.line)
    return +found


def info(queue: QueueState, scheduler: StartScheduler, job: str) -> JobInfo | None:
    task = queue.of_job(job)
    return None if task is None else _info(queue, scheduler, task)


def listed(queue: QueueState, scheduler: StartScheduler, after: int) -> Iterator[JobInfo]:
    """All tasks with a sequence above `after`, in the order of publication, also those read ahead."""
    for seq in sorted(seq for seq in queue.tasks if seq > after):
        yield _info(queue, scheduler, queue.tasks[seq])


def promised(queue: QueueState, job: str) -> bool:
    task = queue.of_job(job)
    return task is None or task.marked or task.step is TaskStep.ACKING


def _info(queue: QueueState, scheduler: StartScheduler, task: Task) -> JobInfo:
    submission, error = task.submission, task.error
    state = TOLD.get(task.step) or task.end or JobState.DONE
    return JobInfo(
        job=task.job,
        endpoint=queue.endpoint,
        method=submission.method,
        state=state,
        attempts=task.attempts,
        worker=task.worker,
        sequence=task.seq,
        priority=_priority(queue, task),
        key=submission.key,
        submitted_at=submission.published_at,
        started_at=task.started_at,
        next_try_at=_wall(queue, task.ready_at) if task.step in (TaskStep.NOTING, TaskStep.WAITING) else None,
        error=None if error is None else JobFailure(code=error.code, message=error.message, details=error.details),
        reason=task.reason or _reason(queue, scheduler, task, state),
        schedule=submission.schedule,
    )


def _reason(queue: QueueState, scheduler: StartScheduler, task: Task, state: JobState) -> str | None:
    """What a task waits for, in a word: unlike `why`, its cost does not depend on the number of tasks."""
    if not queue.open and state in _MAY_RUN:
        return _TAKEOVER
    if task.step not in ADMITTED:
        return None
    if (held := _of_queue(queue)) or task.step is TaskStep.PARKED:
        return _word([*held, *_of_task(queue, scheduler, task)][0].text)
    if task.step is TaskStep.BEHIND:
        return f"an older job of key {task.submission.key!r} has not ended"
    if task.step is TaskStep.CAPPED:
        limit, key = next((limit, key) for limit, key in task.limits if limit.waits(key, task.seq))
        return _word(_limit(queue, task, limit, key).text)
    pool = scheduler.pools[task.pool]
    if not pool.workers or _lacks_method(pool, task):
        return _word(_no_worker(queue, pool, task).text)
    if pool.full or (not scheduler.closed and scheduler.room() == 0):
        return "a limit of its route is reached"
    return f"it waits for a slot of pool {pool.name!r}"


def _word(text: str) -> str:
    """A sentence as part of another one."""
    return text[0].lower() + text[1:].rstrip(".")


_MAY_RUN: Final = (JobState.QUEUED, JobState.WAITING)
_TAKEOVER: Final = "a dispatcher is taking the queue over, and does not know yet whether it runs"


def _wall(queue: QueueState, mono: float) -> float:
    return queue.wall + (mono - queue.now)


def why(queue: QueueState, scheduler: StartScheduler, job: str) -> JobWhyReply | None:
    task = queue.of_job(job)
    if task is None:
        return None
    waits = task.step in _NOT_STARTED
    waiting = [other for other in queue.tasks.values() if other.step in ADMITTED and other is not task]
    ahead = [other for other in waiting if _same_tenant(other, task) and other.place < task.place]
    obstacles = [*_of_queue(queue), *_of_task(queue, scheduler, task)] if waits else []
    if task.step is TaskStep.LINED:
        obstacles += _of_line(queue, scheduler, task, ahead)
        others = {
            other.submission.tenant for other in waiting if other.step is TaskStep.LINED and other.pool == task.pool
        }
        if others - {task.submission.tenant}:
            text = f"Other tenants have tasks in line for pool {task.pool!r}, too: tenants take turns."
            obstacles.append(JobObstacle(kind="position", text=text))
    return JobWhyReply(
        job=_info(queue, scheduler, task),
        position=len(ahead) if waits else None,
        obstacles=tuple(obstacles),
        line=_line(queue, scheduler, task) if task.step is TaskStep.LINED else None,
        turn=_turn(queue, scheduler, task),
    )


_NOT_STARTED: Final = UNSETTLED - STARTED
"""Tasks that do not run now, and may start."""


def _line(queue: QueueState, scheduler: StartScheduler, task: Task) -> JobLine:
    """What goes before a task that waits for slots of its pool."""
    pool, rules = scheduler.pools[task.pool], queue.rules
    ahead: list[Task] = []
    running: list[LineRunning] = []
    elsewhere = turns = False
    for other in queue.tasks.values():
        if other.step in _NOT_STARTED and not _same_tenant(other, task):
            turns = True
        elif other.step in STARTED:
            if other.pool == task.pool:
                running.append(_running(queue, pool, other))
            else:
                elsewhere = True
        elif other.place < task.place and other.step in _NOT_STARTED:
            if (other.pool or task.pool) == task.pool:
                ahead.append(other)
            else:
                elsewhere = True
    ahead.sort(key=_place)
    limits = [limit for limit in (rules.max_running, pool.limit) if limit is not None]
    limited = any(other.step not in (TaskStep.LINED, TaskStep.WAITING) for other in ahead)
    return JobLine(
        pool=task.pool,
        method=task.submission.method,
        slots=task.cost,
        ahead=tuple(_groups(queue, pool, ahead)),
        running=tuple(running),
        turns=turns,
        most_running=min(limits, default=None),
        only_slots=not scheduler.closed
        and not turns
        and not limited
        and scheduler.gate is None
        and not (elsewhere and rules.max_running is not None),
    )


def _turn(queue: QueueState, scheduler: StartScheduler, task: Task) -> JobTurn | None:
    """What goes before a task that is behind the head of its ordered key, or that a limit holds back."""
    kind: Literal["key", "method", "order"]
    if task.step is TaskStep.BEHIND:
        kind, most, last = "order", 1, not scheduler.limits_of(task)
        seqs = [seq for seq in scheduler.ordered_keys.members(task.key or "") if seq < task.seq]
    elif task.step is TaskStep.CAPPED:
        limit, key = next((limit, key) for limit, key in task.limits if limit.waits(key, task.seq))
        if limit.limit is None or not limit.full(key):
            return None  # a rate holds it back
        kind, most, last = "key" if key else "method", limit.limit, (limit, key) == scheduler.limits_of(task)[-1]
        seqs = [*limit.ahead(key), *limit.waiting(key)]
    else:
        return None
    before = [queue.tasks[seq] for seq in seqs]
    ahead = [other for other in before if other.step in _NOT_STARTED and _same_tenant(other, task)]
    if kind == "order":
        ahead.sort(key=lambda other: other.seq)
    else:
        ahead = sorted((other for other in ahead if other.place < task.place), key=_place)
    return JobTurn(
        kind=kind,
        most_running=most,
        running=tuple(_running(queue, scheduler.pools[other.pool], other) for other in before if other.step in STARTED),
        ahead=tuple(_groups(queue, scheduler.pools[task.pool], ahead)),
        turns=kind != "order" and not all(_same_tenant(other, task) for other in before),
        last=last,
        line=_line(queue, scheduler, task),
    )


def _running(queue: QueueState, pool: PoolCredit, task: Task) -> LineRunning:
    limit_s = _attempt_s(queue, pool, task)
    left_s, attempts = None, _attempts_left(queue, pool, task)
    if limit_s is not None:
        left_s = limit_s * attempts
        # How much of the attempt is left is only known if this dispatcher started it.
        left_s += limit_s if task.timeout_at is None else max(0.0, task.timeout_at - queue.now)
    return LineRunning(
        seq=task.seq,
        method=task.submission.method,
        slots=task.cost,
        worker=task.worker,
        started_at=task.started_at,
        at_most_s=_by_deadline(queue, task, left_s),
        once=attempts == 0,
    )


def _groups(queue: QueueState, pool: PoolCredit, tasks: list[Task]) -> Iterator[LineTask]:
    """Equal neighbours together; those far back in no order, and without their deadlines, so that there are not too
    many groups."""
    groups: list[tuple[_Group, int]] = []
    rest: Counter[_Group] = Counter()
    for task in tasks:
        method, limit_s, attempts = (
            task.submission.method,
            _attempt_s(queue, pool, task),
            _attempts_left(queue, pool, task),
        )
        most_s = None if limit_s is None else limit_s * attempts
        again = _wall(queue, task.ready_at) if task.step is TaskStep.WAITING else None
        group: _Group = method, task.cost, _by_deadline(queue, task, most_s), again, again is None and attempts == 1
        if groups and groups[-1][0] == group:
            groups[-1] = group, groups[-1][1] + 1
        elif len(groups) < MAX_LINE_TASKS:
            groups.append((group, 1))
        else:
            rest[method, task.cost, most_s if len(rest) < MAX_LINE_TASKS else None, None, False] += 1
    for (method, slots, most_s, again, once), count in (*groups, *rest.items()):
        yield LineTask(method=method, count=count, slots=slots, at_most_s=most_s, not_before=again, once=once)


_Group = tuple[str, int, float | None, float | None, bool]
"""Fields of LineTask."""


def _attempt_s(queue: QueueState, pool: PoolCredit, task: Task) -> float | None:
    """The most that one attempt can take; None: any time."""
    declared = pool.policies.get(task.submission.method, UNDECLARED).timeout_s
    return timeout_s(task.submission, queue.rules) or declared


def _attempts_left(queue: QueueState, pool: PoolCredit, task: Task) -> int:
    """Attempts that it may still start."""
    once = task.submission.method in pool.once
    policy = pool.policies.get(task.submission.method, UNDECLARED)
    most = max_attempts(task.submission, queue.rules, queue.settings, once=once, declared=policy)
    return max(0 if task.step in STARTED else 1, most - task.attempts)


def _by_deadline(queue: QueueState, task: Task, most_s: float | None) -> float | None:
    """Seconds, or fewer if its deadline comes before."""
    left_s = None if task.deadline is None else max(0.0, task.deadline - queue.now)
    return min((each for each in (most_s, left_s) if each is not None), default=None)


def _same_tenant(task: Task, other: Task) -> bool:
    return task.submission.tenant == other.submission.tenant


def _of_queue(queue: QueueState) -> list[JobObstacle]:
    found: list[JobObstacle] = []
    if not queue.open:
        found.append(JobObstacle(kind="paused", text="A dispatcher has just taken over the queue."))
    elif not queue.sure:
        found.append(
            JobObstacle(kind="paused", text="The dispatcher is asking the server whether it still owns the queue.")
        )
    if queue.rules.paused:
        found.append(JobObstacle(kind="paused", text="The route says that the queue is paused."))
    return found


def _of_task(queue: QueueState, scheduler: StartScheduler, task: Task) -> list[JobObstacle]:
    key = task.key or ""
    match task.step:
        case TaskStep.BEHIND:
            head = scheduler.ordered_keys.head(key)
            return [
                JobObstacle(
                    kind="order",
                    text=f"Tasks of key {task.submission.key!r} run in order, and an older one has not ended.",
                    jobs=() if head is None else _jobs(queue, (head,)),
                )
            ]
        case TaskStep.CAPPED:
            return [_of_limit(queue, task, limit, name) for limit, name in task.limits if limit.waits(name, task.seq)]
        case TaskStep.NOTING | TaskStep.WAITING:
            return [JobObstacle(kind="backoff", text=_failure(task), until=_wall(queue, task.ready_at))]
        case TaskStep.PARKED:
            largest = scheduler.pools[task.pool].largest
            at = queue.agenda.at((TimerKind.MISFIT, task.seq))
            needs = count_of(task.cost, "slot")
            text = f"It takes {needs}, and no worker of pool {task.pool!r} has more than {largest}."
            return [JobObstacle(kind="slots", text=text, until=None if at is None else _wall(queue, at))]
        case _:
            return []


def _failure(task: Task) -> str:
    """Why it waits for its next attempt."""
    error = task.error
    if error is None:
        return f"Attempt {task.attempts} failed; it waits for the next."
    text = error.message if len(error.message) <= _MOST_CHARS else f"{error.message[:_MOST_CHARS]}..."
    if error.may_have_started:
        return f"Attempt {task.attempts} failed ({error.code}: {text}); it waits for the next."
    return f"It could not be started: {text}"


def _of_limit(queue: QueueState, task: Task, limit: KeyConcurrency, key: str) -> JobObstacle:
    found = _limit(queue, task, limit, key)
    if found.kind != "rate" or limit.rate is None:
        return found.model_copy(update={"jobs": _jobs(queue, limit.ahead(key))})
    if found.until is None:
        return found
    waiting = [queue.tasks[seq] for seq in limit.waiting(key)]
    before = sum(_same_tenant(other, task) and other.place < task.place for other in waiting)
    return found.model_copy(update={"until": found.until + before / limit.rate.rate_per_s})


def _limit(queue: QueueState, task: Task, limit: KeyConcurrency, key: str) -> JobObstacle:
    """Without regard to the jobs that go before it: the end of a rate is the next start."""
    if key:
        return JobObstacle(kind="key", text=f"At most {limit.limit} of key {task.submission.key!r} run at once.")
    method = f"{task.pool}.{task.submission.method}"
    if limit.rate is not None and not limit.full(key):
        at = limit.rate.more_at(queue.now)
        most, unit = rate_in_words(limit.rate.rate_per_s)
        return JobObstacle(
            kind="rate",
            text=f"{method} declares that at most {most} may start per {unit}.",
            until=None if at is None else _wall(queue, at),
        )
    return JobObstacle(kind="method", text=f"{method} declares that at most {limit.limit} may run at once.")


def _of_line(queue: QueueState, scheduler: StartScheduler, task: Task, ahead: list[Task]) -> list[JobObstacle]:
    found: list[JobObstacle] = []
    pool = scheduler.pools[task.pool]
    if not pool.workers or _lacks_method(pool, task):
        found.append(_no_worker(queue, pool, task))
    most = queue.rules.max_running
    if most is not None and queue.running >= most:
        running = tuple(
            other.seq for other in queue.tasks.values() if other.step in STARTED and _same_tenant(other, task)
        )
        text = f"At most {plain(most)} of the endpoint's tasks run at once."
        found.append(JobObstacle(kind="slots", text=text, jobs=_jobs(queue, running)))
    if pool.full:
        found.append(JobObstacle(kind="pool_limit", text=f"At most {pool.limit} of them run in pool {pool.name!r}."))
    if scheduler.gate is not None and not scheduler.gate.ready(queue.now):
        most_starts, unit = rate_in_words(scheduler.gate.rate_per_s)
        text = f"At most {most_starts} of the endpoint's tasks may start per {unit}."
        at = scheduler.gate.next_at + sum(other.step is TaskStep.LINED for other in ahead) / scheduler.gate.rate_per_s
        found.append(JobObstacle(kind="rate", text=text, until=_wall(queue, at)))
    if (starts_by := queue.starts_by(task)) is not None:
        method, usual_s = task.submission.method, queue.usual.usual_s(task.submission.method) or 0.0
        text = f"It must start some time before its deadline: {method} usually takes up to {usual_s:.3g} s."
        found.append(JobObstacle(kind="slots", text=text, until=_wall(queue, starts_by)))
    before = sorted((other for other in ahead if other.pool == task.pool and other.step is TaskStep.LINED), key=_place)
    if before:
        text = f"{len(before)} in line for pool {pool.name!r} {'goes' if len(before) == 1 else 'go'} before it."
        found.append(JobObstacle(kind="position", text=text, jobs=tuple(other.job for other in before[:_SOME])))
    if pool.workers and not pool.full and scheduler.room() and pool.next(queue.now, queue.settings.age_step_s) is None:
        found.append(_busy(queue, pool, task))
    return found


def _no_worker(queue: QueueState, pool: PoolCredit, task: Task) -> JobObstacle:
    near, at = pool.near_for(task.submission), queue.agenda.at((TimerKind.UNKNOWN, task.seq))
    if pool.workers:
        method = task.submission.method
        close = None if task.submission.tenant else nearest_name(method, pool.methods)
        hint = f" (did you mean {close!r}?)" if close else ""
        text = f"No worker of pool {pool.name!r} has a task {method!r}{hint}: it becomes a dead letter at its turn."
    elif at is not None:
        text = f"Pool {pool.name!r} does not exist{near}: it waits for a worker before it becomes a dead letter."
    else:
        text = f"Pool {pool.name!r} has no worker{near}."
    return JobObstacle(kind="no_workers", text=text, until=None if at is None else _wall(queue, at))


def _lacks_method(pool: PoolCredit, task: Task) -> bool:
    return bool(pool.methods) and task.submission.method not in pool.methods


def _busy(queue: QueueState, pool: PoolCredit, task: Task) -> JobObstacle:
    """Who has the slots that it waits for, and until when at most: the first of them to end."""
    holders = [other for other in queue.tasks.values() if other.step in STARTED and other.pool == pool.name]
    text = f"No lease in pool {pool.name!r} has {count_of(task.cost, 'slot')} free for it: "
    if holders:
        text += f"{count_of(len(holders), 'task')} of this queue {'runs' if len(holders) == 1 else 'run'} there."
    else:
        text += "its workers are busy with other work."
    ends = [other.timeout_at for other in holders if other.timeout_at is not None]
    return JobObstacle(
        kind="slots",
        text=text,
        jobs=tuple(other.job for other in holders[:_SOME] if _same_tenant(other, task)),
        until=_wall(queue, min(ends)) if ends else None,
    )


def _priority(queue: QueueState, task: Task) -> int:
    """The priority that its place follows."""
    return round((task.submission.published_at - task.place[0]) / queue.settings.age_step_s)


def _place(task: Task) -> tuple[float, int]:
    return task.place


def _jobs(queue: QueueState, seqs: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(queue.tasks[seq].job for seq in seqs[:_SOME])


def check(queue: QueueState, scheduler: StartScheduler) -> None:
    """Raises:
    AssertionError: names the task and what is wrong with it.
    """
    assert not queue.out, "effects were left behind"
    assert queue.sure or not queue.held or queue.taken, "effects are held back for nobody"
    assert not (queue.sure and queue.held), "effects are held back for nothing"
    by_step = Counter(task.step for task in queue.tasks.values())
    assert by_step == +Counter(queue.count), f"steps are miscounted: {by_step} is not {queue.count}"
    held = [task for task in queue.tasks.values() if not task.ahead]
    assert queue.window.held == len(held), "the window is miscounted"
    assert queue.window.bytes == sum(task.size for task in held), "bytes are miscounted"
    for task in queue.tasks.values():
        _check_task(queue, scheduler, task)
    _check_pools(queue, scheduler)
    _check_keys(queue, scheduler)
    for due, seq in queue.agenda:
        assert seq in queue.tasks, f"{due.value} of {seq}, which is gone"
        assert queue.tasks[seq].step in UNSETTLED, f"{due.value} of {queue.tasks[seq]}"
    for job, seq in queue.jobs.items():
        assert queue.tasks[seq].job == job, f"job {job} is not {seq}"
    lined = any(pool.line for pool in scheduler.pools)
    if queue.open and lined and queue.sure and not queue.rules.paused:
        _check_that_nothing_could_start(queue, scheduler)


def _check_task(queue: QueueState, scheduler: StartScheduler, task: Task) -> None:
    step = task.step
    assert step not in (TaskStep.NEW, TaskStep.GONE), f"{task} is remembered"
    assert queue.has_entered(task) or step not in UNSETTLED or step is TaskStep.LOOKING, f"{task} has no job"
    assert (step is TaskStep.LINED) == any(task.seq in pool.line for pool in scheduler.pools), (
        f"{task} is (not) in line"
    )
    assert step is not TaskStep.STOPPING or task.doom is not None, f"{task} stops for no reason"
    assert step in UNSETTLED or step is TaskStep.SCHEDULING or task.end or step is TaskStep.ACKING, f"{task} has no end"
    assert step not in STARTED or task.attempts > 0, f"{task} runs without an attempt"
    assert step is not TaskStep.WAITING or (TimerKind.RETRY, task.seq) in queue.agenda, f"{task} waits for ever"
    assert step is not TaskStep.PARKED or (TimerKind.MISFIT, task.seq) in queue.agenda, f"{task} is parked for ever"
    assert not (queue.open and task.found and step is TaskStep.LOOKING), f"{task} has ended, and is not forgotten"
    if not queue.open:
        assert step is not TaskStep.RUNNING or task.worker, f"{task} was started before it was known what runs"
        return
    if step in ADMITTED or step is TaskStep.WAITING:
        assert task.doom is None, f"{task} is doomed and goes on waiting"
        assert task.deadline is None or queue.now < task.deadline, f"{task} has expired and goes on waiting"
    if step is TaskStep.RUNNING:
        assert task.doom is None, f"{task} is doomed and goes on"
        assert task.deadline is None or queue.now < task.deadline, f"{task} has expired and goes on"
        assert task.timeout_at is None or queue.now < task.timeout_at, f"{task} has timed out and goes on"


def _check_pools(queue: QueueState, scheduler: StartScheduler) -> None:
    running = Counter(task.pool for task in queue.tasks.values() if task.step in STARTED)
    for pool in scheduler.pools:
        assert pool.free == sorted(slots for slots in pool.free if slots > 0), f"{pool} has odd leases"
        assert pool.free_slots == sum(pool.free), f"{pool} has miscounted its credit"
        assert pool.running == running[pool.name], f"{pool} has miscounted what runs"
        lacks = pool.lacks(scheduler.allowed_soon(), queue.now, queue.settings.age_step_s)
        assert pool.told == lacks, f"{pool} lacks {lacks}, and {pool.told} was requested"
        assert pool.line.slots == sum(pool.line.cost(seq) for seq in pool.line), f"{pool} has miscounted its line"
        for seq in pool.line:
            task = queue.tasks[seq]
            assert pool is scheduler.pools.choose(task.submission, task.draw), f"{task} is in the line of {pool}"


def _check_keys(queue: QueueState, scheduler: StartScheduler) -> None:
    scheduler.ordered_keys.check()
    for task in queue.tasks.values():
        if task.step in UNSETTLED and task.ordered and task.key is not None:
            head = scheduler.ordered_keys.head(task.key)
            assert task.seq in scheduler.ordered_keys.members(task.key), f"{task} is not in its lane"
            assert (task.step is TaskStep.BEHIND) == (task.step in ADMITTED and head != task.seq), (
                f"{task} is (not) behind"
            )
        else:
            assert task.step is not TaskStep.BEHIND, f"{task} is behind nobody"
    declared = [limit for limits in scheduler.declared.values() for limit in limits if limit is not None]
    for limit in (*declared, *([] if scheduler.concurrency is None else [scheduler.concurrency])):
        limit.check()
    for task in queue.tasks.values():
        passed = [limit.may_start(key, task.seq) for limit, key in task.limits]
        waits = [limit.waits(key, task.seq) for limit, key in task.limits]
        match task.step:
            case TaskStep.CAPPED:
                assert True in waits, f"{task} waits for no limit"
                number = waits.index(True)
                assert all(passed[:number]) and not any(passed[number:]), f"{task} has passed a limit behind another"
                assert not any(waits[number + 1 :]), f"{task} waits for several limits"
            case TaskStep.LINED | TaskStep.PARKED:
                assert all(passed), f"{task} is in line and has not passed its limits"
            case step if step in STARTED:
                assert all(task.seq in limit.running(key) for limit, key in task.limits), f"{task} is not counted"
                assert len(task.limits) == len(scheduler.limits_of(task)), f"{task} does not count for a limit"
            case _:
                assert not task.limits, f"{task} counts for limits, and neither waits for them nor runs"


def _check_that_nothing_could_start(queue: QueueState, scheduler: StartScheduler) -> None:
    if queue.unclear or (scheduler.gate is not None and not scheduler.gate.ready(queue.now)):
        return
    if queue.rules.max_running is not None and queue.running >= queue.rules.max_running:
        return
    for pool in scheduler.pools:
        assert pool.next(queue.now, queue.settings.age_step_s) is None, f"{pool} has room, and nobody was started"
