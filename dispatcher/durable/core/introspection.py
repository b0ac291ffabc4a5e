"""What people may know of a queue: counts, one job, and what a job waits for."""

from __future__ import annotations

from dataclasses import dataclass

from ....schemas.messages.jobs import JobInfo, JobObstacle, JobWhyReply
from ....schemas.records.jobs import JobFailure, JobState
from ....schemas.text import count_of, plain
from .state import PoolCredit, QueueState, TimerKind
from .task import ADMITTED, TOLD, Task, TaskStep

_SOME = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """Of one queue; see schemas.records.jobs.QueueStats."""

    seen: int
    """Messages in hand."""
    running: int
    waiting: int
    """Failed, and wait for their next try."""
    blocked: int
    """Kept back by the limit or the order of their key."""
    startable: int
    """Wait for nothing but slots, a limit of the endpoint, or their turn."""
    credit: int
    """Slots leased and free."""
    oldest_at: float | None
    """Unix time when the oldest that has not started was published."""
    started: int
    """Counts since the takeover, likewise below; tries, not tasks."""
    done: int
    dead: int
    cancelled: int
    retried: int
    repeated: int
    """Messages that were acknowledged since their job was in the queue, or had ended before."""


def counts(queue_state: QueueState) -> QueueCounts:
    steps, totals = queue_state.count, queue_state.totals
    oldest = min(
        (
            task.submission.published_at
            for task in queue_state.tasks.values()
            if task.step in ADMITTED and not task.begun
        ),
        default=None,
    )
    return QueueCounts(
        seen=len(queue_state.tasks),
        running=queue_state.running,
        waiting=steps[TaskStep.NOTING] + steps[TaskStep.WAITING],
        blocked=steps[TaskStep.BEHIND] + steps[TaskStep.CAPPED],
        startable=steps[TaskStep.LINED],
        credit=sum(pool.free_slots for pool in queue_state.pools),
        oldest_at=oldest,
        started=totals["started"],
        done=totals["done"],
        dead=totals["dead"],
        cancelled=totals["cancelled"],
        retried=totals["retried"],
        repeated=totals["repeated"],
    )


def info(queue_state: QueueState, job: str) -> JobInfo | None:
    task = queue_state.tasks.get(queue_state.jobs.get(job, -1))
    return None if task is None else _info(queue_state, task)


def promised(queue_state: QueueState, job: str) -> bool:
    task = queue_state.tasks.get(queue_state.jobs.get(job, -1))
    return task is None or task.marked or task.step is TaskStep.ACKING


def _info(queue_state: QueueState, task: Task) -> JobInfo:
    submission, error = task.submission, task.error
    return JobInfo(
        job=task.job,
        endpoint=queue_state.endpoint,
        method=submission.method,
        state=TOLD.get(task.step) or task.end or JobState.DONE,
        attempts=task.attempts,
        worker=task.worker,
        sequence=task.seq,
        priority=submission.priority,
        key=submission.key,
        submitted_at=submission.published_at,
        started_at=task.started_at,
        next_try_at=_wall(queue_state, task.ready_at) if task.step in (TaskStep.NOTING, TaskStep.WAITING) else None,
        error=None if error is None else JobFailure(code=error.code, message=error.message, details=error.details),
        reason=task.reason,
    )


def _wall(queue_state: QueueState, mono: float) -> float:
    return queue_state.wall + (mono - queue_state.now)


def why(queue_state: QueueState, job: str) -> JobWhyReply | None:
    task = queue_state.tasks.get(queue_state.jobs.get(job, -1))
    if task is None:
        return None
    waits = task.step in ADMITTED or task.step in (TaskStep.NOTING, TaskStep.WAITING, TaskStep.LOOKING)
    ahead = [other for other in queue_state.tasks.values() if other.step in ADMITTED and other.place < task.place]
    obstacles = [*_of_queue(queue_state), *_of_task(queue_state, task)] if waits else []
    if task.step is TaskStep.LINED:
        obstacles += _of_line(queue_state, task, ahead)
    return JobWhyReply(job=_info(queue_state, task), position=len(ahead) if waits else None, obstacles=tuple(obstacles))


def _of_queue(queue_state: QueueState) -> list[JobObstacle]:
    found: list[JobObstacle] = []
    if not queue_state.open:
        found.append(JobObstacle(kind="paused", text="A dispatcher has just taken the queue over, and asks what runs."))
    elif not queue_state.sure:
        found.append(
            JobObstacle(kind="paused", text="The dispatcher asks the server whether the queue is still its own.")
        )
    if queue_state.rules.paused:
        found.append(JobObstacle(kind="paused", text="The route says that the queue is paused."))
    return found


def _of_task(queue_state: QueueState, task: Task) -> list[JobObstacle]:
    key = task.key or ""
    match task.step:
        case TaskStep.BEHIND:
            head = queue_state.ordered_keys.head(key)
            return [
                JobObstacle(
                    kind="order",
                    text=f"Tasks of key {key!r} run in order, and an older one has not ended.",
                    jobs=() if head is None else _jobs(queue_state, (head,)),
                )
            ]
        case TaskStep.CAPPED if queue_state.concurrency is not None:
            return [
                JobObstacle(
                    kind="key",
                    text=f"At most {queue_state.concurrency.limit} of key {key!r} run at once.",
                    jobs=_jobs(queue_state, queue_state.concurrency.ahead(key)),
                )
            ]
        case TaskStep.NOTING | TaskStep.WAITING:
            return [
                JobObstacle(
                    kind="backoff",
                    text=f"Attempt {task.attempts} failed; it waits for the next."
                    if task.error is None or task.error.may_have_started
                    else f"It could not be started: {task.error.message}",
                    until=_wall(queue_state, task.ready_at),
                )
            ]
        case TaskStep.PARKED:
            largest = queue_state.pools[task.pool].largest
            at = queue_state.agenda.at((TimerKind.MISFIT, task.seq))
            needs = count_of(task.cost, "slot")
            text = f"It takes {needs}, and no worker of pool {task.pool!r} has more than {largest}."
            return [JobObstacle(kind="slots", text=text, until=None if at is None else _wall(queue_state, at))]
        case _:
            return []


def _of_line(queue_state: QueueState, task: Task, ahead: list[Task]) -> list[JobObstacle]:
    found: list[JobObstacle] = []
    pool = queue_state.pools[task.pool]
    if not pool.workers:
        at = queue_state.agenda.at((TimerKind.UNKNOWN, task.seq))
        until = None if at is None else _wall(queue_state, at)
        found.append(JobObstacle(kind="no_workers", text=f"Pool {pool.name!r} has no worker.", until=until))
    most = queue_state.rules.max_running
    if most is not None and queue_state.running >= most:
        found.append(JobObstacle(kind="slots", text=f"At most {plain(most)} of the endpoint's tasks run at once."))
    if pool.full:
        found.append(JobObstacle(kind="pool_limit", text=f"At most {pool.limit} of them run in pool {pool.name!r}."))
    if queue_state.gate is not None and not queue_state.gate.ready(queue_state.now):
        text = f"At most {plain(queue_state.gate.rate_per_s)} tasks a second are started."
        found.append(JobObstacle(kind="rate", text=text, until=_wall(queue_state, queue_state.gate.next_at)))
    before = sorted((other for other in ahead if other.pool == task.pool and other.step is TaskStep.LINED), key=_place)
    if before:
        text = f"{len(before)} in line for pool {pool.name!r} go before it."
        found.append(JobObstacle(kind="position", text=text, jobs=tuple(other.job for other in before[:_SOME])))
    elif _wants_slots(queue_state, pool):
        text = f"No lease in pool {pool.name!r} has {count_of(task.cost, 'slot')} free for it: its workers are busy."
        found.append(JobObstacle(kind="slots", text=text))
    return found


def _wants_slots(queue_state: QueueState, pool: PoolCredit) -> bool:
    """Whether it would start if there were room: nobody leases for a queue that is paused."""
    if queue_state.rules.paused or not queue_state.open or not pool.workers or pool.full:
        return False
    return pool.next(queue_state.now, queue_state.settings.age_step_s) is None


def _place(task: Task) -> tuple[float, int]:
    return task.place


def _jobs(queue_state: QueueState, seqs: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(queue_state.tasks[seq].job for seq in seqs[:_SOME])
