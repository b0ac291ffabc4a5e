"""When a waiting gang or job can start: a bound from what is known, and an estimate from what was seen before. Pure.

A gang waits for slots of certain workers (its target, as the coordinator says). Slots that become free there are kept
for the head of the queue, so they add up. On each worker the gang has its slots when the holders that end first have
freed enough of them, and it starts when that is so on all workers:

    start = max over workers of the k-th smallest end of a holder

The k-th smallest of values is monotonic in each of them. So if no holder ends later than its own bound, the gang
starts no later than the same formula gives for the bounds. That is the bound; it holds only for the head of the queue,
and if nobody renews. An estimate replaces the ends that have no bound, or are expected sooner, by the median of what
remained of earlier holders of the same kind, once they were as old.

A job waits until the tasks before it leave it a slot. It starts at once when a slot is free and no task is before it.
So until then all slots of its queue are busy with these tasks, and they cannot be busy for longer than the tasks take:
up to any moment t before the start,

    sum over slots of (t - when the slot comes free from others) <= sum over tasks of min(t, the most it can take)

The first t at which that fails is the bound. It holds in whatever order the tasks run, and for those that fail and
come back, if each attempt has a time limit and nobody else takes the slots. The estimate is what happens if each takes
as long as its kind did on average.

Laws, which tests check:

1. The bound is never below the real start, if every holder with a bound ends by it and the gang is the head; for a job,
   if no task takes longer than it may.
2. The estimate is never above the bound.
3. A holder or a task that ends earlier never makes the bound later.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

FEWEST: Final = 3
"""With fewer earlier holders than this, nothing is estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHolder:
    """Somebody who has slots of a worker that the gang waits for."""

    worker: str
    """`POOL.WORKER`"""
    name: str
    """For people: `lease ~x (etl)`, `gang llama-7`, `tasks`."""
    slots: int
    ends_in_s: float | None = None
    """It ends by then. None: no end is known."""
    kind: str = ""
    """Holders of one kind last about equally long; see `Durations`."""
    age_s: float | None = None
    """How long it has had them; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastStep:
    """One reason why it is not sooner: a worker has enough slots then, when this holder ends."""

    worker: str
    holder: str
    in_s: float
    estimated: bool
    """Whether that end is an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """When it can start, in seconds from now."""

    bound_s: float | None = None
    """No later than this. None: an end is unknown."""
    estimate_s: float | None = None
    """About then. None: too little is known."""
    steps: tuple[ForecastStep, ...] = ()
    """The reasons in the order of time: of the estimate if there is one, else of the bound."""
    unknown: tuple[str, ...] = ()
    """Holders whose end is neither known nor can be estimated, and that are waited for."""


class Durations:
    """How long holders of each kind have lasted."""

    def __init__(self, seen: Mapping[str, Sequence[float]]) -> None:
        self._seen = {kind: sorted(values) for kind, values in seen.items()}

    def remaining_s(self, kind: str, age_s: float | None) -> float | None:
        """The median of what remained of those that became as old. None: fewer than FEWEST did."""
        values = self._seen.get(kind, [])
        older = values[bisect_left(values, age_s) :] if age_s is not None else values
        if len(older) < FEWEST:
            return None
        middle = older[(len(older) - 1) // 2]
        return max(0.0, middle - (age_s or 0.0))

    def mean_s(self, kind: str) -> float | None:
        """How long they take on average: what counts where one comes after the other. None: fewer than FEWEST."""
        values = self._seen.get(kind, [])
        return None if len(values) < FEWEST else sum(values) / len(values)


def forecast(
    missing: Mapping[str, int], holders: Sequence[SlotHolder], durations: Durations, *, is_head: bool = True
) -> Forecast:
    """
    Args:
        missing: slots that it lacks, by worker; what is free or kept for it does not count.
        is_head: whether it is the first in the queue. If not, those ahead may take the slots, so nothing is bounded.
    """
    bounds: list[ForecastStep] = []
    estimates: list[ForecastStep] = []
    bounded, unknown = is_head, list[str]()
    for worker, slots in missing.items():
        if slots <= 0:
            continue
        here = [holder for holder in holders if holder.worker == worker]
        bound = _enough(worker, slots, [(holder, holder.ends_in_s, False) for holder in here])
        expected = _enough(worker, slots, [(holder, *_expected(holder, durations)) for holder in here])
        if bound is None:
            bounded = False
        else:
            bounds.append(bound)
        if expected is None:
            unknown += [holder.name for holder in here if _expected(holder, durations)[0] is None]
        else:
            estimates.append(expected)
    bound_s = max((step.in_s for step in bounds), default=0.0) if bounded else None
    estimate_s = None if unknown or len(estimates) < sum(slots > 0 for slots in missing.values()) else _last(estimates)
    steps = estimates if estimate_s is not None else bounds
    return Forecast(
        bound_s=bound_s,
        estimate_s=estimate_s,
        steps=tuple(sorted(steps, key=lambda step: (step.in_s, step.worker))),
        unknown=tuple(dict.fromkeys(unknown)),
    )


def _last(steps: Sequence[ForecastStep]) -> float:
    return max((step.in_s for step in steps), default=0.0)


def _expected(holder: SlotHolder, durations: Durations) -> tuple[float | None, bool]:
    """When it is expected to end, and whether that is an estimate."""
    remaining_s = durations.remaining_s(holder.kind, holder.age_s)
    if remaining_s is None:
        return holder.ends_in_s, False
    if holder.ends_in_s is not None and holder.ends_in_s <= remaining_s:
        return holder.ends_in_s, False
    return remaining_s, True


def _enough(worker: str, slots: int, ends: Sequence[tuple[SlotHolder, float | None, bool]]) -> ForecastStep | None:
    """The moment at which enough slots are free; None: the known ends do not free enough."""
    known = sorted((end, holder.name, holder.slots, estimated) for holder, end, estimated in ends if end is not None)
    freed = 0
    for in_s, name, count, estimated in known:
        freed += count
        if freed >= slots:
            return ForecastStep(worker=worker, holder=name, in_s=in_s, estimated=estimated)
    return None


# -- jobs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAhead:
    """Equal tasks that go before a job."""

    kind: str
    """Tasks of one kind last about equally long; see `Durations`."""
    count: int = 1
    slots: int = 1
    """Of each."""
    at_most_s: float | None = None
    """How long each can take its slots, all attempts together. None: not limited."""
    not_before_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRunning:
    """A running task of the job's queue."""

    worker: str
    """`POOL.WORKER`"""
    name: str
    """For people."""
    kind: str
    slots: int = 1
    age_s: float | None = None
    at_most_s: float | None = None
    """How long it can take slots from now on, with further attempts. None: not limited."""
    leaves_in_s: float | None = None
    """Its worker drains: its slots do not come back, and if it has not ended by then, it starts again elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingLine:
    """What a job waits for. All that it names is in the pool of the job."""

    slots: int = 1
    """Slots that the job takes."""
    ahead: Sequence[TaskAhead] = ()
    """First the next one to start."""
    running: Sequence[TaskRunning] = ()
    leased: int = 0
    """Slots that its queue has, in use or not, on workers that do not drain."""
    holders: Sequence[SlotHolder] = field(default_factory=tuple)
    """Others who have slots of these workers, so that they come free later."""
    free: int = 0
    """Slots of these workers that nobody has."""
    most_running: int | None = None
    """How many tasks may run at once. None: any number."""
    only_slots: bool = True
    """Nothing else holds the tasks back."""
    alone: bool = True
    """Nobody else waits for the slots, as far as is known."""


def forecast_job(line: WaitingLine, durations: Durations) -> Forecast:
    """When a job in line can start. With others who wait for the same slots, nothing is bounded."""
    bound_s = _job_bound(line) if line.alone and line.only_slots else None
    estimate_s, steps, unknown = _job_estimate(line, durations)
    if bound_s is not None and estimate_s is not None:
        estimate_s = min(estimate_s, bound_s)
    if estimate_s is None:
        steps = list(_bounded_ends(line, bound_s))
    return Forecast(bound_s=bound_s, estimate_s=estimate_s, steps=tuple(steps), unknown=unknown)


def _job_bound(line: WaitingLine) -> float | None:
    """The first moment at which the tasks before it cannot keep all slots busy. None: there may be none."""
    if line.slots != 1 or {*(each.slots for each in line.ahead), *(each.slots for each in line.running)} - {1}:
        return None  # slots of several workers do not add up for a task that needs two of one worker
    if any(task.leaves_in_s is not None for task in line.running if not _ends_before_drain(task)):
        return None
    comes = [0.0] * (line.leased + line.free)
    comes += [each.ends_in_s for each in line.holders if each.ends_in_s is not None for _ in range(each.slots)]
    comes = sorted(comes)[: line.most_running]
    takes = [inf if task.at_most_s is None else task.at_most_s for task in line.running]
    for ahead in line.ahead:
        takes += [inf if ahead.at_most_s is None else ahead.at_most_s] * ahead.count
    takes.sort()
    busy = 0.0  # sum of min(t, takes) less sum of t - comes: the tasks' time that is left for the slots
    at, started, ended = 0.0, 0, 0
    while True:
        while started < len(comes) and comes[started] <= at:
            started += 1
        while ended < len(takes) and takes[ended] <= at:
            ended += 1
        slope = len(takes) - ended - started
        following = min(comes[started] if started < len(comes) else inf, takes[ended] if ended < len(takes) else inf)
        if slope < 0 and busy + slope * (following - at) < 0:
            return at - busy / slope
        if following == inf:
            return None
        busy, at = max(0.0, busy + slope * (following - at)), following


def _ends_before_drain(task: TaskRunning) -> bool:
    return task.leaves_in_s is not None and task.at_most_s is not None and task.at_most_s <= task.leaves_in_s


def _bounded_ends(line: WaitingLine, bound_s: float | None) -> Iterator[ForecastStep]:
    """Whose end bounds the start, the first ones."""
    ends = [(task.at_most_s, task.worker, task.name) for task in line.running if task.at_most_s is not None]
    ends += [(each.ends_in_s, each.worker, each.name) for each in line.holders if each.ends_in_s is not None]
    for in_s, worker, name in sorted(ends)[:_MOST_STEPS]:
        if bound_s is not None and in_s <= bound_s:
            yield ForecastStep(worker=worker, holder=name, in_s=in_s, estimated=False)


_MOST_STEPS: Final = 10


def _job_estimate(line: WaitingLine, durations: Durations) -> tuple[float | None, list[ForecastStep], tuple[str, ...]]:
    """Run the line with expected durations: when the job starts, what ends before, and what is not known."""
    ends: list[ForecastStep] = []
    slots: list[float] = []
    waiting: list[tuple[float, str, int, int]] = []
    unknown: dict[str, None] = {}
    used = 0
    for task in line.running:
        left_s = durations.remaining_s(task.kind, task.age_s)
        estimated = left_s is not None
        if left_s is None or (task.at_most_s is not None and task.at_most_s < left_s):
            left_s, estimated = task.at_most_s, False
        if task.leaves_in_s is None:
            used += task.slots
        elif left_s is None or left_s > task.leaves_in_s:
            waiting.append((task.leaves_in_s, task.kind, task.slots, 1))
            left_s = None
        if left_s is None:
            if task.leaves_in_s is None:
                unknown[task.name] = None
            continue
        if task.leaves_in_s is None:
            slots += [left_s] * task.slots
        ends.append(ForecastStep(worker=task.worker, holder=task.name, in_s=left_s, estimated=estimated))
    slots += [0.0] * max(0, line.leased + line.free - used)
    for holder in line.holders:
        end_s, estimated = _expected(holder, durations)
        if end_s is None:
            unknown[holder.name] = None
            continue
        slots += [end_s] * holder.slots
        ends.append(ForecastStep(worker=holder.worker, holder=holder.name, in_s=end_s, estimated=estimated))
    waiting += [(task.not_before_s, task.kind, task.slots, task.count) for task in line.ahead]
    found = _run(line, sorted(slots)[: line.most_running], waiting, durations, unknown)
    if found is None:
        return None, [], tuple(unknown)
    before = sorted((end for end in ends if end.in_s <= found), key=lambda step: (step.in_s, step.worker))
    return found, before[:_MOST_STEPS], ()


def _run(
    line: WaitingLine,
    slots: list[float],
    waiting: Sequence[tuple[float, str, int, int]],
    durations: Durations,
    unknown: dict[str, None],
) -> float | None:
    """When the job starts if it has these slots from these moments on. None: a duration is not known."""
    takes = {kind: durations.mean_s(kind) for _, kind, _, _ in waiting}
    for task in line.ahead:
        if takes[task.kind] is None:
            takes[task.kind] = task.at_most_s
    missing = [kind for kind, seconds in takes.items() if seconds is None]
    if missing:
        unknown.update(dict.fromkeys(missing))
        return None
    heapify(slots)
    later = sorted((task for task in waiting if task[0] > 0), key=lambda task: task[0])
    ready = [task for task in waiting if task[0] <= 0]
    ready.reverse()
    while True:
        if later and (not slots or later[0][0] <= slots[0]):
            ready.append(later.pop(0))  # it was before the job in the line, and goes first when its time comes
            continue
        needs = ready[-1][2] if ready else line.slots
        if len(slots) < needs:
            return None
        free = [heappop(slots) for _ in range(needs)]
        at = free[-1]
        if not ready:
            return at
        not_before_s, kind, count, many = ready.pop()
        if many > 1:
            ready.append((not_before_s, kind, count, many - 1))
        seconds = takes[kind]
        assert seconds is not None
        for _ in free:
            heappush(slots, at + seconds)


def without_bound(holder: SlotHolder) -> SlotHolder:
    """The holder, if its end may move: it renews."""
    return replace(holder, ends_in_s=None)
