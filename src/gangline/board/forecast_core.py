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
come back, if each attempt has a time limit and nobody else takes the slots. If none of them can come back, they start
in their order, and then no task starts later because another ends sooner (Kiefer and Wolfowitz, 1955): what happens if
each takes as long as it may is a second bound, often a tighter one. The estimate is what happens if each takes as long
as its kind did on average.

How good can an estimate be? The tests compare it with one that knows the distribution of the durations. Where they vary
by 10 %, even that one misses waits of a tenth of a task by far more than 20 %: what remains of a task varies by as much
as the whole task. So errors are measured in parts of the wait or of one task, whichever is longer.

Laws, which tests check:

1. The bound is never below the real start, if every holder with a bound ends by it and the gang is the head; for a job,
   if no task takes longer than it may.
2. The estimate is never above the bound.
3. A holder or a task that ends earlier never makes the bound later.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import exp, inf, log
from statistics import stdev
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
        """The median of what remained of those that became as old. If fewer than FEWEST did, it is that of the smoothed
        distribution of all. None: there were fewer than FEWEST, or none was about as old."""
        values, age_s = self._seen.get(kind, []), age_s or 0.0
        if len(values) < FEWEST:
            return None
        older = values[bisect_left(values, age_s) :]
        if len(older) < FEWEST:
            smoothed = _smoothed(values)
            older = smoothed[bisect_left(smoothed, age_s) :]
        return older[(len(older) - 1) // 2] - age_s if older else None

    def mean_s(self, kind: str) -> float | None:
        """How long they take on average: what counts where one comes after the other. None: fewer than FEWEST."""
        values = self._seen.get(kind, [])
        return None if len(values) < FEWEST else sum(values) / len(values)


_NORMAL: Final = (-1.59, -0.97, -0.59, -0.28, 0.0, 0.28, 0.59, 0.97, 1.59)
"""Values of a normal distribution that are equally likely."""
_SHORTEST_S: Final = 0.001


def _smoothed(values: Sequence[float]) -> list[float]:
    """The distribution that these were probably drawn from: a normal one around the logarithm of each, as wide as
    Scott's rule says."""
    logs = [log(max(_SHORTEST_S, each)) for each in values]
    width = 1.06 * stdev(logs) * len(logs) ** -0.2
    return sorted(exp(each + width * deviation) for each in logs for deviation in _NORMAL)


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
    return _left(durations.remaining_s(holder.kind, holder.age_s), holder.ends_in_s)


def _left(expected_s: float | None, at_most_s: float | None) -> tuple[float | None, bool]:
    if expected_s is None or (at_most_s is not None and at_most_s <= expected_s):
        return at_most_s, False
    return expected_s, True


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
    once: bool = False
    """Each starts at its place, and does not come back."""


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
    once: bool = False
    """It does not come back."""


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
    """None: there may be no end."""
    if line.slots != 1 or {*(each.slots for each in line.ahead), *(each.slots for each in line.running)} - {1}:
        return None  # slots of several workers do not add up for a task that needs two of one worker
    if any(task.leaves_in_s is not None for task in line.running if not _ends_before_drain(task)):
        return None
    bound_s = _full_until(line)
    if not (all(task.once for task in line.ahead) and all(task.once for task in line.running)):
        return bound_s
    starts = _Starts(line)
    for task in line.running:
        starts.add(task, inf if task.at_most_s is None else task.at_most_s)
    for holder in line.holders:
        starts.slots += [inf if holder.ends_in_s is None else holder.ends_in_s] * holder.slots
    in_order_s = starts.last(
        [(0.0, inf if task.at_most_s is None else task.at_most_s, 1, task.count) for task in line.ahead]
    )
    return min((each for each in (bound_s, in_order_s) if each is not None and each < inf), default=None)


def _full_until(line: WaitingLine) -> float | None:
    """The first moment at which the tasks before it cannot keep all slots busy, in whatever order they run."""
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
    starts = _Starts(line)
    waiting: list[tuple[float, float, int, int]] = []
    unknown: dict[str, None] = {}
    missing = False
    kinds = {*(task.kind for task in line.running), *(task.kind for task in line.ahead)}
    takes = {kind: durations.mean_s(kind) for kind in kinds}
    for task in line.running:
        left_s, estimated = _left(durations.remaining_s(task.kind, task.age_s), task.at_most_s)
        if task.leaves_in_s is not None and (left_s is None or left_s > task.leaves_in_s):
            starts.add(task, task.leaves_in_s)
            again_s = takes[task.kind]
            if again_s is None:
                unknown[task.kind], missing = None, True
            else:
                waiting.append((task.leaves_in_s, again_s, task.slots, 1))
        elif left_s is None:
            unknown[task.name] = None
            starts.add(task, inf)
        else:
            starts.add(task, left_s)
            ends.append(ForecastStep(worker=task.worker, holder=task.name, in_s=left_s, estimated=estimated))
    for holder in line.holders:
        end_s, estimated = _expected(holder, durations)
        if end_s is None:
            unknown[holder.name] = None
            continue
        starts.slots += [end_s] * holder.slots
        ends.append(ForecastStep(worker=holder.worker, holder=holder.name, in_s=end_s, estimated=estimated))
    for ahead in line.ahead:
        seconds = takes[ahead.kind] if takes[ahead.kind] is not None else ahead.at_most_s
        if seconds is None:
            unknown[ahead.kind], missing = None, True
        else:
            waiting.append((ahead.not_before_s, seconds, ahead.slots, ahead.count))
    found = None if missing else starts.last(waiting)
    if found is None or found == inf:
        return None, [], tuple(unknown)
    before = sorted((end for end in ends if end.in_s <= found), key=lambda step: (step.in_s, step.worker))
    return found, before[:_MOST_STEPS], ()


class _Starts:
    """Tasks start in their order, each as soon as it has its slots, and fewer than `most_running` run."""

    def __init__(self, line: WaitingLine) -> None:
        self._line = line
        self.slots = [0.0] * max(0, line.leased + line.free - sum(_stays(task) for task in line.running))
        """When each slot comes free."""
        self._turns: list[float] | None = None
        """When each of `most_running` turns comes free."""
        if line.most_running is not None:
            self._turns = [0.0] * max(0, line.most_running - len(line.running))

    def add(self, task: TaskRunning, ends_s: float) -> None:
        self.slots += [ends_s] * _stays(task)
        if self._turns is not None:
            self._turns.append(ends_s)

    def last(self, waiting: Sequence[tuple[float, float, int, int]]) -> float | None:
        """When the job can start after these: not before, how long each takes, its slots, how many. Once only. None:
        there are not enough slots."""
        slots, turns = self.slots, self._turns
        heapify(slots)
        if turns is not None:
            turns.sort()
            del turns[: max(0, len(turns) - (self._line.most_running or 0))]  # more run than may: it was lowered
        later = sorted((task for task in waiting if task[0] > 0), key=lambda task: task[0])
        ready = [task for task in waiting if task[0] <= 0]
        ready.reverse()
        while True:
            if later and later[0][0] <= max(slots[0] if slots else inf, turns[0] if turns else 0.0):
                ready.append(later.pop(0))  # it was before the job in the line, and goes first when its time comes
                continue
            needs = ready[-1][2] if ready else self._line.slots
            if len(slots) < needs or turns == []:
                return None
            free = [heappop(slots) for _ in range(needs)]
            at = free[-1]
            if turns is not None:
                at = max(at, heappop(turns))
            if not ready:
                return at
            not_before_s, seconds, count, many = ready.pop()
            if many > 1:
                ready.append((not_before_s, seconds, count, many - 1))
            for _ in free:
                heappush(slots, at + seconds)
            if turns is not None:
                heappush(turns, at + seconds)


def _stays(task: TaskRunning) -> int:
    """The slots that it gives back."""
    return task.slots if task.leaves_in_s is None else 0
