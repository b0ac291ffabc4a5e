"""What people may know of a queue: counts, one job, and what a job waits for."""

from __future__ import annotations

from dataclasses import dataclass

from ....schemas.messages.jobs import JobInfo, JobObstacle, JobWhyReply
from ....schemas.records.jobs import JobFailure, JobState
from ....schemas.text import count_of, plain
from .pool_credit import PoolCredit
from .state import QueueState
from .states import ADMITTED, TOLD, TaskStep
from .task import Task
from .timers import TimerKind

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


def counts(books: QueueState) -> QueueCounts:
    steps, totals = books.count, books.totals
    oldest = min(
        (task.submission.published_at for task in books.tasks.values() if task.step in ADMITTED and not task.begun),
        default=None,
    )
    return QueueCounts(
        seen=len(books.tasks),
        running=books.running,
        waiting=steps[TaskStep.NOTING] + steps[TaskStep.WAITING],
        blocked=steps[TaskStep.BEHIND] + steps[TaskStep.CAPPED],
        startable=steps[TaskStep.LINED],
        credit=sum(pool.free_slots for pool in books.pools),
        oldest_at=oldest,
        started=totals["started"],
        done=totals["done"],
        dead=totals["dead"],
        cancelled=totals["cancelled"],
        retried=totals["retried"],
        repeated=totals["repeated"],
    )


def info(books: QueueState, job: str) -> JobInfo | None:
    task = books.tasks.get(books.jobs.get(job, -1))
    return None if task is None else _info(books, task)


def promised(books: QueueState, job: str) -> bool:
    task = books.tasks.get(books.jobs.get(job, -1))
    return task is None or task.marked or task.step is TaskStep.ACKING


def _info(books: QueueState, task: Task) -> JobInfo:
    submission, error = task.submission, task.error
    return JobInfo(
        job=task.job,
        endpoint=books.endpoint,
        method=submission.method,
        state=TOLD.get(task.step) or task.end or JobState.DONE,
        attempts=task.attempts,
        worker=task.worker,
        sequence=task.seq,
        priority=submission.priority,
        key=submission.key,
        submitted_at=submission.published_at,
        started_at=task.started_at,
        next_try_at=_wall(books, task.ready_at) if task.step in (TaskStep.NOTING, TaskStep.WAITING) else None,
        error=None if error is None else JobFailure(code=error.code, message=error.message, details=error.details),
        reason=task.reason,
    )


def _wall(books: QueueState, mono: float) -> float:
    return books.wall + (mono - books.now)


def why(books: QueueState, job: str) -> JobWhyReply | None:
    task = books.tasks.get(books.jobs.get(job, -1))
    if task is None:
        return None
    waits = task.step in ADMITTED or task.step in (TaskStep.NOTING, TaskStep.WAITING, TaskStep.LOOKING)
    ahead = [other for other in books.tasks.values() if other.step in ADMITTED and other.place < task.place]
    obstacles = [*_of_queue(books), *_of_task(books, task)] if waits else []
    if task.step is TaskStep.LINED:
        obstacles += _of_line(books, task, ahead)
    return JobWhyReply(job=_info(books, task), position=len(ahead) if waits else None, obstacles=tuple(obstacles))


def _of_queue(books: QueueState) -> list[JobObstacle]:
    found: list[JobObstacle] = []
    if not books.open:
        found.append(JobObstacle(kind="paused", text="A dispatcher has just taken the queue over, and asks what runs."))
    elif not books.sure:
        found.append(
            JobObstacle(kind="paused", text="The dispatcher asks the server whether the queue is still its own.")
        )
    if books.rules.paused:
        found.append(JobObstacle(kind="paused", text="The route says that the queue is paused."))
    return found


def _of_task(books: QueueState, task: Task) -> list[JobObstacle]:
    key = task.key or ""
    match task.step:
        case TaskStep.BEHIND:
            head = books.lanes.head(key)
            return [
                JobObstacle(
                    kind="order",
                    text=f"Tasks of key {key!r} run in order, and an older one has not ended.",
                    jobs=() if head is None else _jobs(books, (head,)),
                )
            ]
        case TaskStep.CAPPED if books.caps is not None:
            return [
                JobObstacle(
                    kind="key",
                    text=f"At most {books.caps.limit} of key {key!r} run at once.",
                    jobs=_jobs(books, books.caps.ahead(key)),
                )
            ]
        case TaskStep.NOTING | TaskStep.WAITING:
            return [
                JobObstacle(
                    kind="backoff",
                    text=f"Attempt {task.attempts} failed; it waits for the next."
                    if task.error is None or task.error.may_have_started
                    else f"It could not be started: {task.error.message}",
                    until=_wall(books, task.ready_at),
                )
            ]
        case TaskStep.PARKED:
            largest = books.pools[task.pool].largest
            at = books.agenda.at((TimerKind.MISFIT, task.seq))
            needs = count_of(task.cost, "slot")
            text = f"It takes {needs}, and no worker of pool {task.pool!r} has more than {largest}."
            return [JobObstacle(kind="slots", text=text, until=None if at is None else _wall(books, at))]
        case _:
            return []


def _of_line(books: QueueState, task: Task, ahead: list[Task]) -> list[JobObstacle]:
    found: list[JobObstacle] = []
    pool = books.pools[task.pool]
    if not pool.workers:
        at = books.agenda.at((TimerKind.UNKNOWN, task.seq))
        until = None if at is None else _wall(books, at)
        found.append(JobObstacle(kind="no_workers", text=f"Pool {pool.name!r} has no worker.", until=until))
    most = books.rules.max_running
    if most is not None and books.running >= most:
        found.append(JobObstacle(kind="slots", text=f"At most {plain(most)} of the endpoint's tasks run at once."))
    if pool.full:
        found.append(JobObstacle(kind="pool_limit", text=f"At most {pool.limit} of them run in pool {pool.name!r}."))
    if books.gate is not None and not books.gate.ready(books.now):
        text = f"At most {plain(books.gate.rate_per_s)} tasks a second are started."
        found.append(JobObstacle(kind="rate", text=text, until=_wall(books, books.gate.next_at)))
    before = sorted((other for other in ahead if other.pool == task.pool and other.step is TaskStep.LINED), key=_place)
    if before:
        text = f"{len(before)} in line for pool {pool.name!r} go before it."
        found.append(JobObstacle(kind="position", text=text, jobs=tuple(other.job for other in before[:_SOME])))
    elif _wants_slots(books, pool):
        text = f"No lease in pool {pool.name!r} has {count_of(task.cost, 'slot')} free for it: its workers are busy."
        found.append(JobObstacle(kind="slots", text=text))
    return found


def _wants_slots(books: QueueState, pool: PoolCredit) -> bool:
    """Whether it would start if there were room: nobody leases for a queue that is paused."""
    if books.rules.paused or not books.open or not pool.workers or pool.full:
        return False
    return pool.next(books.now, books.settings.age_step_s) is None


def _place(task: Task) -> tuple[float, int]:
    return task.place


def _jobs(books: QueueState, seqs: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(books.tasks[seq].job for seq in seqs[:_SOME])
