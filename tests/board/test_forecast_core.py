"""When a gang or a job can start: the bound is never broken, and estimates are as good as durations are regular."""

from __future__ import annotations

import random
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import exp, inf
from statistics import fmean, median, quantiles

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.board.forecast_core import (
    Durations,
    Forecast,
    ForecastStep,
    SlotHolder,
    TaskAhead,
    TaskRunning,
    WaitingLine,
    forecast,
    forecast_job,
)

from ..scale import repetitions
from ..support.rows import in_rows

NOTHING = Durations({})
EXAMPLES = settings(max_examples=repetitions(20, whole=100))


def holder(worker: str, slots: int, ends_in_s: float | None = None, **others: object) -> SlotHolder:
    return SlotHolder(worker=worker, name=f"{worker}/{ends_in_s}", slots=slots, ends_in_s=ends_in_s, **others)  # type: ignore[arg-type]


def test_it_starts_when_the_last_worker_has_enough_and_says_whom_each_waits_for():
    holders = [holder("w2", 1, 41.0), holder("w2", 2, 90.0), holder("w4", 2, 60.0), holder("w4", 1, 10.0)]
    assert forecast({"w2": 1, "w4": 3}, holders, NOTHING) == Forecast(
        bound_s=60.0,
        estimate_s=60.0,
        steps=(
            ForecastStep(worker="w2", holder="w2/41.0", in_s=41.0, estimated=False),
            ForecastStep(worker="w4", holder="w4/60.0", in_s=60.0, estimated=False),
        ),
    )


def test_nothing_missing_is_now():
    assert forecast({"w1": 0}, [], NOTHING) == Forecast(bound_s=0.0, estimate_s=0.0)


def test_a_holder_without_an_end_makes_it_unknown_only_if_it_is_waited_for():
    holders = [holder("w1", 1, 5.0), holder("w1", 3)]
    assert forecast({"w1": 1}, holders, NOTHING).bound_s == 5.0
    found = forecast({"w1": 2}, holders, NOTHING)
    assert (found.bound_s, found.estimate_s, found.unknown) == (None, None, ("w1/None",))


def test_those_behind_others_have_no_bound_but_an_estimate():
    found = forecast({"w1": 1}, [holder("w1", 1, 5.0)], NOTHING, is_head=False)
    assert (found.bound_s, found.estimate_s) == (None, 5.0)


def test_an_end_is_estimated_from_what_remained_of_those_that_became_as_old():
    durations = Durations({"etl": [10, 20, 30, 40, 50]})
    assert durations.remaining_s("etl", 0) == 30
    assert durations.remaining_s("etl", 25) == 15
    assert durations.remaining_s("etl", None) == 30
    smoothed = durations.remaining_s("etl", 45)
    assert smoothed is not None and 5 < smoothed < 30, "only one was older"
    assert durations.remaining_s("etl", 1000) is None, "nothing like it was seen"
    assert durations.remaining_s("other", 0) is None
    assert Durations({"etl": [10, 20]}).remaining_s("etl", 0) is None
    found = forecast({"w1": 1}, [holder("w1", 1, 100.0, kind="etl", age_s=25.0)], durations)
    assert (found.bound_s, found.estimate_s, found.steps[0].estimated) == (100.0, 15.0, True)
    sooner = forecast({"w1": 1}, [holder("w1", 1, 3.0, kind="etl", age_s=25.0)], durations)
    assert (sooner.estimate_s, sooner.steps[0].estimated) == (3.0, False)


seconds = st.floats(0, 1e6, allow_nan=False)
holders_of = st.lists(
    st.builds(
        lambda worker, slots, ends, kind, age: SlotHolder(
            worker=worker, name=f"{worker}-{ends}", slots=slots, ends_in_s=ends, kind=kind, age_s=age
        ),
        st.sampled_from(["a", "b", "c"]),
        st.integers(1, 4),
        st.none() | seconds,
        st.sampled_from(["x", "y"]),
        st.none() | seconds,
    ),
    max_size=12,
)
missing_of = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 8))
seen_of = st.dictionaries(st.sampled_from(["x", "y"]), st.lists(seconds, max_size=8))


@EXAMPLES
@given(missing_of, holders_of, seen_of)
def test_an_estimate_is_never_above_the_bound_and_steps_are_in_the_order_of_time(missing, holders, seen):
    found = forecast(missing, holders, Durations(seen))
    if found.bound_s is not None:
        assert found.estimate_s is not None and found.estimate_s <= found.bound_s
    assert [step.in_s for step in found.steps] == sorted(step.in_s for step in found.steps)
    if found.steps and found.estimate_s is not None:
        assert found.steps[-1].in_s == found.estimate_s
    if found.unknown:
        assert found.estimate_s is None


@EXAMPLES
@given(missing_of, holders_of, st.data())
def test_a_holder_that_ends_earlier_never_makes_it_later(missing, holders, data):
    before = forecast(missing, holders, NOTHING).bound_s
    bounded = [place for place, each in enumerate(holders) if each.ends_in_s is not None]
    if before is None or not bounded:
        return
    place = data.draw(st.sampled_from(bounded))
    ends = holders[place].ends_in_s
    assert ends is not None
    sooner = replace(holders[place], ends_in_s=data.draw(st.floats(0, ends)))
    after = forecast(missing, [*holders[:place], sooner, *holders[place + 1 :]], NOTHING).bound_s
    assert after is not None and after <= before


# -- simulated histories ----------------------------------------------------------------------------------------------


class SimulatedWait:
    """Holders of the target's workers, each with its real end; those with a lease end by its expiry at the latest."""

    def __init__(self, chance: random.Random, spread: float) -> None:
        self.kinds = {f"kind{number}": chance.uniform(5, 200) for number in range(4)}
        self.seen = {
            kind: [self._lasts(chance, mean, spread) for _ in range(chance.randint(0, 60))]
            for kind, mean in self.kinds.items()
        }
        self.missing: dict[str, int] = {}
        self.holders: list[SlotHolder] = []
        self.ends: list[float] = []
        for number in range(chance.randint(1, 6)):
            worker, used = f"p.w{number}", 0
            for _ in range(chance.randint(1, 6)):
                kind = chance.choice(list(self.kinds))
                lasts_s = self._lasts(chance, self.kinds[kind], spread)
                age_s = chance.uniform(0, lasts_s)
                end_s, slots = lasts_s - age_s, chance.randint(1, 3)
                used += slots
                expiry = end_s + chance.expovariate(1 / 30) if chance.random() < 0.7 else None
                self.holders.append(
                    SlotHolder(
                        worker=worker,
                        name=f"{worker}:{len(self.holders)}",
                        slots=slots,
                        ends_in_s=expiry,
                        kind=kind,
                        age_s=age_s,
                    )
                )
                self.ends.append(end_s)
            self.missing[worker] = chance.randint(1, used)

    @staticmethod
    def _lasts(chance: random.Random, mean: float, spread: float) -> float:
        return max(0.1, chance.gauss(mean, spread * mean))

    def starts_in_s(self) -> float:
        """Event by event: slots that become free are kept, until each worker has enough."""
        left = dict(self.missing)
        for end_s, holder_ in sorted(zip(self.ends, self.holders, strict=True), key=lambda each: each[0]):
            if left[holder_.worker] > 0:
                left[holder_.worker] -= holder_.slots
            if all(slots <= 0 for slots in left.values()):
                return end_s
        raise AssertionError("all slots are free at the end")


class Errors:
    """Of estimates: in parts of the real wait, and of the wait or one task, whichever is longer. A wait of a tenth of a
    task cannot be known as well as one of ten tasks."""

    def __init__(self) -> None:
        self.of_wait: list[float] = []
        self.of_task: list[float] = []

    def add(self, estimate_s: float, real_s: float, task_s: float) -> None:
        self.of_wait.append(abs(estimate_s - real_s) / max(real_s, 1.0))
        self.of_task.append(abs(estimate_s - real_s) / max(real_s, task_s))

    @property
    def p90_of_wait(self) -> float:
        return quantiles(self.of_wait, n=10)[8]

    @property
    def p90_of_task(self) -> float:
        return quantiles(self.of_task, n=10)[8]

    def __str__(self) -> str:
        p50 = quantiles(self.of_wait, n=2)[0]
        return f"p50 {p50:.1%}, p90 {self.p90_of_wait:.1%}; of the wait or one task p90 {self.p90_of_task:.1%}"


def remainders(chance: random.Random, mean: float, spread: float, age_s: float, most_s: float | None) -> list[float]:
    """DRAWS of what can remain of a holder, by one who knows the distribution, but not what was drawn."""
    step = (max(mean * (1 + 5 * spread), age_s + 0.01) - age_s) / 60
    ends = [age_s + step * (number + 0.5) for number in range(60)]
    weights = [exp(-(((end - mean) / (spread * mean)) ** 2) / 2) / end for end in ends]  # its age is anywhere in it
    if not any(weights):
        return [0.0] * DRAWS
    return [min(end - age_s, inf if most_s is None else most_s) for end in chance.choices(ends, weights, k=DRAWS)]


DRAWS = 60
WAITS, QUEUES = repetitions(1000, whole=2500), repetitions(250, whole=2500)
KNOWN = repetitions(100, whole=400)


@pytest.mark.parametrize("spread", [0.02, 0.10])
def test_in_simulated_histories_no_bound_is_broken_and_estimates_are_within_a_fifth(spread):
    chance = random.Random(f"when-{spread}")
    errors, bounds = Errors(), 0
    for _ in range(WAITS):
        wait = SimulatedWait(chance, spread)
        found = forecast(wait.missing, wait.holders, Durations(wait.seen))
        real_s = wait.starts_in_s()
        if found.bound_s is not None:
            bounds += 1
            assert real_s <= found.bound_s + 1e-9
        if found.estimate_s is not None:
            errors.add(found.estimate_s, real_s, fmean(wait.kinds.values()))
    print(f"gangs, spread {spread:.0%}: {bounds} bounds; errors of {len(errors.of_wait)} estimates: {errors}")
    assert bounds > 0.08 * WAITS and len(errors.of_wait) > 0.8 * WAITS
    assert errors.p90_of_task <= 0.20


def test_an_estimate_for_a_gang_is_nearly_as_good_as_one_that_knows_the_distribution():
    chance = random.Random("when-known")
    errors, known = Errors(), Errors()
    for _ in range(KNOWN):
        wait = SimulatedWait(chance, 0.10)
        found = forecast(wait.missing, wait.holders, Durations(wait.seen))
        real_s, task_s = wait.starts_in_s(), fmean(wait.kinds.values())
        if found.estimate_s is None:
            continue
        errors.add(found.estimate_s, real_s, task_s)
        draws = [remainders(chance, wait.kinds[h.kind], 0.10, h.age_s or 0.0, h.ends_in_s) for h in wait.holders]
        starts = []
        for wait.ends in zip(*draws, strict=True):  # type: ignore[assignment]
            starts.append(wait.starts_in_s())
        known.add(median(starts), real_s, task_s)
    print(f"gangs: {errors}\nknowing the distribution: {known}")
    assert known.p90_of_wait > 0.20, "nobody can do that"
    assert errors.p90_of_task <= 1.35 * known.p90_of_task


# -- jobs -------------------------------------------------------------------------------------------------------------


def running(name: str = "t", **facts: object) -> TaskRunning:
    return TaskRunning(worker="p.w", name=name, kind="task t", **facts)  # type: ignore[arg-type]


def ahead(count: int = 1, **facts: object) -> TaskAhead:
    return TaskAhead(kind="task t", count=count, **facts)  # type: ignore[arg-type]


def test_a_job_behind_nobody_starts_when_the_first_running_task_ends():
    line = WaitingLine(running=[running("a", at_most_s=10.0), running("b", at_most_s=100.0)], leased=2)
    found = forecast_job(line, NOTHING)
    assert (found.bound_s, found.estimate_s) == (10.0, 10.0)
    assert found.steps == (ForecastStep(worker="p.w", holder="a", in_s=10.0, estimated=False),)


def test_a_job_starts_no_later_than_when_the_tasks_before_it_cannot_fill_all_slots():
    line = WaitingLine(running=[running(at_most_s=10.0)] * 2, ahead=[ahead(4, at_most_s=10.0)], leased=2)
    assert forecast_job(line, NOTHING).bound_s == 30.0
    unlimited = WaitingLine(running=[running(), running(at_most_s=5.0)], ahead=[ahead(at_most_s=4.0)], leased=2)
    assert forecast_job(unlimited, NOTHING).bound_s == 9.0, "one slot may stay busy for ever, the other does not"
    assert forecast_job(WaitingLine(running=[running()], leased=1), NOTHING).bound_s is None
    assert forecast_job(WaitingLine(leased=1), NOTHING).bound_s == 0.0


def test_slots_of_others_count_from_when_their_leases_end():
    line = WaitingLine(ahead=[ahead(at_most_s=5.0)], holders=[holder("p.w", 1, 20.0), holder("p.w", 1)])
    found = forecast_job(line, NOTHING)
    assert (found.bound_s, found.estimate_s) == (25.0, 25.0)
    assert forecast_job(WaitingLine(holders=[holder("p.w", 1)]), NOTHING).bound_s is None


@in_rows(
    "line",
    [
        WaitingLine(leased=1, running=[running(at_most_s=5.0)], alone=False),
        WaitingLine(leased=1, running=[running(at_most_s=5.0)], only_slots=False),
        WaitingLine(leased=2, running=[running(at_most_s=5.0)], slots=2),
        WaitingLine(leased=2, running=[running(at_most_s=5.0, leaves_in_s=4.0)]),
    ],
)
def test_a_job_has_no_bound_where_others_may_take_the_slots_or_a_drained_task_comes_back(line):
    assert forecast_job(line, NOTHING).bound_s is None


def test_a_task_that_ends_before_its_worker_leaves_does_not_come_back_but_leaves_no_slot():
    draining = running(at_most_s=3.0, leaves_in_s=4.0)
    line = WaitingLine(leased=1, running=[draining, running(at_most_s=8.0)])
    assert forecast_job(line, NOTHING).bound_s == pytest.approx(11.0)
    assert forecast_job(line, NOTHING).estimate_s == 8.0


def test_an_estimate_adds_up_what_tasks_take_on_average_and_names_those_that_are_not_known():
    durations = Durations({"task t": [8.0, 10.0, 12.0]})
    line = WaitingLine(leased=1, running=[running(age_s=4.0)], ahead=[ahead(3)])
    found = forecast_job(line, durations)
    assert (found.bound_s, found.estimate_s) == (None, 36.0)
    assert found.steps[0].estimated
    assert forecast_job(line, NOTHING).unknown == ("t", "task t")


def test_only_so_many_tasks_run_at_once_as_the_route_allows():
    durations = Durations({"task t": [10.0, 10.0, 10.0]})
    line = WaitingLine(leased=1, free=5, running=[running(at_most_s=10.0)], ahead=[ahead(2, at_most_s=10.0)])
    assert forecast_job(line, durations).bound_s == 0.0
    assert forecast_job(replace(line, most_running=1), durations).bound_s == 30.0


@pytest.mark.parametrize("once", [False, True])
def test_tasks_that_do_not_come_back_start_in_their_order_so_that_the_bound_is_tighter(once):
    tasks = [running(at_most_s=10.0, once=once), running(at_most_s=20.0, once=once)]
    line = WaitingLine(running=tasks, ahead=[ahead(at_most_s=30.0, once=once)], leased=2)
    assert forecast_job(line, NOTHING).bound_s == (20.0 if once else 30.0)
    endless = WaitingLine(running=[running(once=once), tasks[0]], ahead=[ahead(at_most_s=4.0, once=once)], leased=2)
    assert forecast_job(endless, NOTHING).bound_s == 14.0


def test_running_tasks_count_for_the_limit_although_other_slots_are_free():
    durations = Durations({"task t": [10.0, 10.0, 10.0]})
    limited = WaitingLine(leased=1, free=5, running=[running(age_s=4.0)], ahead=[ahead()], most_running=1)
    assert forecast_job(limited, durations).estimate_s == 16.0


class SimulatedQueue:
    """Tasks of one queue with their real durations, on slots of their own and on slots that others leave. Attempts
    fail and come back; workers drain, and what they cut off comes back, too."""

    def __init__(self, chance: random.Random, spread: float, *, drains: bool) -> None:
        self.chance = chance
        self.kinds = {f"task {number}": chance.uniform(5, 60) for number in range(3)}
        self.spread = spread
        self.seen = {kind: [self._lasts(kind) for _ in range(chance.randint(20, 60))] for kind in self.kinds}
        self.seen["lease"] = [chance.gauss(50, 50 * spread) for _ in range(30)]
        fails = 0.02 if chance.random() < 0.3 else 0.0
        again = fails > 0 or chance.random() < 0.3
        limited = chance.random() < 0.7
        own = chance.randint(1, 8)
        self.servers: list[float] = []
        """When each slot comes free, without the tasks that run."""
        self.waiting: list[tuple[float, int, list[float]]] = []
        """Tasks before the job: when they are ready, place, and how long each of their attempts takes."""
        self.running: list[tuple[float, int, list[float], bool]] = []
        """When the attempt ends, place, further attempts, and whether its slot comes back."""
        tasks: list[TaskRunning] = []
        draining = chance.randint(1, 2) if drains else 0
        for place in range(own + draining):
            kind = chance.choice(list(self.kinds))
            attempts, limit_s = self._attempts(kind, fails)
            age_s = chance.uniform(0, attempts[0])
            further_most = len(attempts) - 1 + chance.randint(0, 1) if again else 0
            at_most_s = limit_s - age_s + further_most * limit_s if limited else None
            leaves_in_s = chance.uniform(1, 60) if place >= own else None
            left_s, further = attempts[0] - age_s, attempts[1:]
            if leaves_in_s is not None and left_s > leaves_in_s:
                left_s, further = leaves_in_s, [self._lasts(kind)]
            tasks.append(
                TaskRunning(
                    worker=f"p.w{place}",
                    name=kind,
                    kind=kind,
                    age_s=age_s,
                    at_most_s=at_most_s,
                    leaves_in_s=leaves_in_s,
                    once=not again,
                )
            )
            self.running.append((left_s, place, further, leaves_in_s is None))
        groups: list[TaskAhead] = []
        place = len(tasks)
        for _ in range(chance.randint(0, 8)):
            kind, count = chance.choice(list(self.kinds)), chance.randint(1, 4)
            each = [self._attempts(kind, fails) for _ in range(count)]
            limit_s = max(limit for _, limit in each) * max(len(attempts) for attempts, _ in each)
            groups.append(TaskAhead(kind=kind, count=count, at_most_s=limit_s if limited else None, once=not again))
            self.waiting += [(0.0, place + number, attempts) for number, (attempts, _) in enumerate(each)]
            place += count
        holders: list[SlotHolder] = []
        for number in range(chance.randint(0, 3)):
            lasts_s = max(1.0, chance.gauss(50, 50 * spread))
            age_s = chance.uniform(0, lasts_s)
            expiry = lasts_s - age_s + chance.expovariate(1 / 20) if chance.random() < 0.7 else None
            holders.append(SlotHolder(worker="p.o", name=f"lease {number}", slots=1, ends_in_s=expiry, kind="lease",
                                      age_s=age_s))  # fmt: skip
            self.servers.append(lasts_s - age_s)
        self.most_running = max(1, len(tasks) + chance.randint(-1, 2)) if chance.random() < 0.3 else None
        self.line = WaitingLine(
            ahead=groups, running=tasks, leased=own, holders=holders, most_running=self.most_running
        )

    def _lasts(self, kind: str) -> float:
        mean = self.kinds[kind]
        return max(0.5, self.chance.gauss(mean, self.spread * mean))

    def _attempts(self, kind: str, fails: float) -> tuple[list[float], float]:
        """How long each takes, and how long each may take."""
        attempts = [self._lasts(kind)]
        while self.chance.random() < fails:
            attempts.append(self._lasts(kind))
        return attempts, max(attempts) * self.chance.uniform(1.0, 2.0)

    def starts_in_s(self) -> float:
        """Event by event: whenever a slot is free, the first of those that are ready takes it."""
        free, runs = 0, len(self.running)
        most = inf if self.most_running is None else self.most_running
        events = [(at, 0, number, None) for number, at in enumerate(self.servers)]
        events += [(at, 1, place, (further, back)) for at, place, further, back in self.running]  # type: ignore[misc]
        heapify(events)
        waiting = sorted(self.waiting, key=lambda each: each[1])
        while events:
            at, _, place, ended = heappop(events)
            if ended is None:
                free += 1
            else:
                further, back = ended  # type: ignore[misc]
                free, runs = free + back, runs - 1
                if further:
                    waiting.append((at, place, further))
                    waiting.sort(key=lambda each: each[1])
            while free and waiting and runs < most:
                _, place, attempts = waiting.pop(0)
                free, runs = free - 1, runs + 1
                heappush(events, (at + attempts[0], 1, place, (attempts[1:], True)))  # type: ignore[misc]
            if free and not waiting and runs < most:
                return at
        raise AssertionError("all slots are free at the end")


@pytest.mark.parametrize("drains", [False, True])
@pytest.mark.parametrize("spread", [0.02, 0.10])
def test_in_simulated_queues_no_bound_is_broken_and_estimates_are_within_a_fifth(spread, drains):
    chance = random.Random(f"when-job-{spread}-{drains}")
    errors, tight, once = Errors(), list[float](), list[float]()
    for _ in range(QUEUES):
        queue = SimulatedQueue(chance, spread, drains=drains)
        found = forecast_job(queue.line, Durations(queue.seen))
        real_s = queue.starts_in_s()
        if found.bound_s is not None:
            assert real_s <= found.bound_s + 1e-9
            tight.append(found.bound_s / max(real_s, 1.0))
            if queue.line.running[0].once:
                once.append(tight[-1])
        assert found.estimate_s is not None and found.estimate_s <= (found.bound_s or inf)
        errors.add(found.estimate_s, real_s, fmean(queue.kinds.values()))
    medians = quantiles(tight, n=2)[0], quantiles(once, n=2)[0]
    print(f"jobs, spread {spread:.0%}, drains {drains}: {len(tight)} bounds, median {medians[0]:.2f} times the start,"
          f" {medians[1]:.2f} where tasks start once; errors of estimates: {errors}")  # fmt: skip
    assert len(tight) > (0.02 if drains else 0.4) * QUEUES
    assert errors.p90_of_task <= 0.20


def test_an_estimate_for_a_job_is_nearly_as_good_as_one_that_knows_the_distribution():
    chance = random.Random("when-job-known")
    errors, known = Errors(), Errors()
    for _ in range(KNOWN):
        queue = SimulatedQueue(chance, 0.10, drains=False)
        found = forecast_job(queue.line, Durations(queue.seen))
        real_s, task_s = queue.starts_in_s(), fmean(queue.kinds.values())
        assert found.estimate_s is not None
        errors.add(found.estimate_s, real_s, task_s)
        line, starts = queue.line, list[float]()
        running = [remainders(chance, queue.kinds[task.kind], 0.10, task.age_s or 0.0, None) for task in line.running]
        leases = [remainders(chance, 50.0, 0.10, each.age_s or 0.0, each.ends_in_s) for each in line.holders]
        for number in range(DRAWS):
            queue.servers = [draws[number] for draws in leases]
            queue.running = [(draws[number], place, [], True) for place, draws in enumerate(running)]
            ahead = [task.kind for task in line.ahead for _ in range(task.count)]
            queue.waiting = [(0.0, len(running) + place, [queue._lasts(kind)]) for place, kind in enumerate(ahead)]
            starts.append(queue.starts_in_s())
        known.add(median(starts), real_s, task_s)
    print(f"jobs: {errors}\nknowing the distribution: {known}")
    assert known.p90_of_wait > 0.20, "nobody can do that"
    assert errors.p90_of_task <= 1.25 * known.p90_of_task


@EXAMPLES
@given(
    st.lists(st.none() | st.floats(0, 1e4), max_size=6),
    st.lists(st.floats(0, 1e4), max_size=4),
    st.integers(0, 4),
    st.data(),
)
def test_a_task_that_may_take_less_never_makes_the_bound_of_a_job_later(takes, comes, leased, data):
    def bound(tasks: list[float | None]) -> float | None:
        holders = [holder("p.w", 1, at) for at in comes]
        return forecast_job(
            WaitingLine(leased=leased, holders=holders, ahead=[ahead(at_most_s=most) for most in tasks]), NOTHING
        ).bound_s

    before = bound(takes)
    limited = [place for place, most in enumerate(takes) if most is not None]
    if before is None or not limited:
        return
    place = data.draw(st.sampled_from(limited))
    most = takes[place]
    assert most is not None
    after = bound([*takes[:place], data.draw(st.floats(0, most)), *takes[place + 1 :]])
    assert after is not None and after <= before + 1e-6 * max(1.0, before)
