"""Finds the task that should start next in the slow and obvious way: by looking at all tasks each time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gangline.dispatcher.durable.core import effects as do
from gangline.dispatcher.durable.core import events as on
from gangline.dispatcher.durable.policies.retry_policy import NotStarted, classify, refused_s
from gangline.dispatcher.traffic.route_core import choose_pool
from gangline.schemas.messages.submission import Submission
from gangline.schemas.records.routes import RouteRecord
from gangline.schemas.records.workers import TaskPolicy

HAIR = 1e-9


@dataclass
class Seen:
    """What the oracle knows of one message."""

    seq: int
    submission: Submission
    draw: float
    phase: str
    """look, ready, wait, run, note, end."""
    ready_at: float = 0.0
    begun: bool = False
    """It has been started before."""
    refusals: int = 0
    pool: str = ""


class Oracle:
    """Follows one core: receives each event and each effect, in order."""

    def __init__(self, endpoint: str, age_step_s: float) -> None:
        self.endpoint = endpoint
        self.age_step_s = age_step_s
        self.now = 0.0
        self.tenants: set[str] = set()
        self.tasks: dict[int, Seen] = {}
        self.route = RouteRecord()
        self.facts: dict[str, on.PoolSeen] = {}
        self.free: dict[str, list[int]] = {}
        self.open = False
        self.sure = True
        self.taken_at = 0.0
        self.starts: list[float] = []
        self.declared_since: dict[tuple[str, str], float] = {}
        """Since when the rate that a method of a pool declares has been the same, and at the earliest the takeover."""
        self.method_starts: dict[tuple[str, str], list[float]] = {}
        """Since then."""
        self.blocked_at: dict[str, float] = {}
        """Since when the head of that pool has not fitted while some other task needs fewer slots."""

    # -- input -------------------------------------------------------------------------------------------------------

    looked: int | None = None
    """The task whose result was looked up, while that is the event."""

    def event(self, event: on.AnyEvent) -> None:
        self.now = event.now
        self.looked = event.seq if isinstance(event, on.Looked) and event.seq in self.tasks else None
        match event:
            case on.QueueTaken():
                self._empty_bucket()
                for name in self.declared_since:
                    self.declared_since[name], self.method_starts[name] = self.now, []
            case on.Recovered():
                self.open = True
            case on.OwnershipDoubted():
                self.sure = False
            case on.OwnershipConfirmed():
                self.sure = True
            case on.Routed():
                rules = event.route.queue
                if (rules.rate_per_s, rules.burst) != (self.route.queue.rate_per_s, self.route.queue.burst):
                    self._empty_bucket()
                self.route = event.route
            case on.PoolSeen():
                self._seen(event)
            case on.SlotsGranted():
                self.free[event.pool] = sorted(slots for slots in event.free if slots)
            case on.TaskArrived() if event.seq not in self.tasks:
                self._continue_attempts(event.submission)
                self.tenants.add(event.submission.tenant)
                begun = event.attempts > event.submission.attempts
                wait = begun and event.not_before > event.wall
                self.tasks[event.seq] = Seen(
                    seq=event.seq,
                    submission=event.submission,
                    draw=event.draw,
                    phase="look" if event.look else "wait" if wait else "ready",
                    ready_at=event.now + (event.not_before - event.wall) if begun else 0.0,
                    begun=begun,
                )
            case on.Looked() if (
                not event.finished and event.seq in self.tasks and self.tasks[event.seq].phase == "look"
            ):
                task = self.tasks[event.seq]
                task.phase = "wait" if task.ready_at > event.now else "ready"
            case on.Persisted(kind=do.RecordKind.TRY) if (
                event.seq in self.tasks and self.tasks[event.seq].phase == "note"
            ):
                self.tasks[event.seq].phase = "wait"
            case on.AttemptEnded() if event.seq in self.tasks and self.tasks[event.seq].phase == "run":
                self._ended(self.tasks[event.seq], event)
            case _:
                pass

    def _seen(self, event: on.PoolSeen) -> None:
        before, self.facts[event.pool] = self.facts.get(event.pool), event
        for method, policy in event.policies.items():
            had = None if before is None else before.policies.get(method)
            if had is None or had.rate_per_s != policy.rate_per_s:
                self.declared_since[event.pool, method] = self.now
                self.method_starts[event.pool, method] = []

    def _continue_attempts(self, replay: Submission) -> None:
        for task in self.tasks.values():
            older = task.submission
            if older.job == replay.job and not task.begun and older.attempts < replay.attempts:
                task.submission = older._replace(attempts=replay.attempts)

    def _ended(self, task: Seen, event: on.AttemptEnded) -> None:
        if event.error is not None and isinstance(classify(event.error), NotStarted):
            task.phase = "wait"
            task.refusals += 1
            task.begun = event.attempt > task.submission.attempts + 1
            task.ready_at = event.now + refused_s(task.refusals)
        else:
            task.refusals = 0  # another effect will follow

    def _empty_bucket(self) -> None:
        self.taken_at, self.starts = self.now, []

    def effect(self, effect: do.Effect) -> None:
        match effect:
            case do.LookUpResult() if effect.seq == self.looked:  # once more: it was cancelled meanwhile
                self.tasks[effect.seq].phase = "look"
            case do.StartAttempt():
                expected = self.next(effect if self.several else None)
                assert expected is not None, f"{effect} though nobody may start"
                assert (effect.seq, effect.pool) == (expected.seq, expected.pool), f"{effect} and not {expected}"
                self._start(expected, effect)
            case do.ReattachAttempt():
                task = self.tasks[effect.seq]
                task.phase, task.begun, task.pool = "run", True, effect.worker.partition(".")[0]
            case do.Persist(kind=do.RecordKind.TRY):
                task = self.tasks[effect.seq]
                task.phase, task.ready_at = "note", self.now + (effect.not_before - self.now)
            case do.Persist() if effect.kind is not do.RecordKind.CANCELLATION and effect.seq in self.tasks:
                self.tasks[effect.seq].phase = "end"
            case do.Ack():
                self.tasks.pop(effect.seq, None)
            case _:
                pass

    def _start(self, task: Seen, effect: do.StartAttempt) -> None:
        task.phase, task.begun = "run", True
        self.starts.append(self.now)
        self.method_starts.setdefault((task.pool, task.submission.method), []).append(self.now)
        free = self.free[effect.pool]
        smallest = min(slots for slots in free if slots >= effect.cost)
        free.remove(smallest)
        if smallest > effect.cost:
            free.append(smallest - effect.cost)

    # -- output ------------------------------------------------------------------------------------------------------

    @property
    def several(self) -> bool:
        """Whether there are several tenants. Then it does not know whose turn it is, and whether a large task of
        another tenant may be passed."""
        return len(self.tenants) > 1

    def next(self, start: do.StartAttempt | None = None) -> Seen | None:
        """The task that must start now; `start`: if it is the turn of its tenant, in its pool."""
        started = None if start is None else self.tasks[start.seq]
        tenant = None if started is None else started.submission.tenant
        rules = self.route.queue
        running = [task for task in self.tasks.values() if task.phase == "run"]
        if not self.open or not self.sure or rules.paused or not self._rate_allows():
            return None
        if rules.max_running is not None and len(running) >= rules.max_running:
            return None
        lines: dict[str, list[Seen]] = {}
        for task in self._candidates(running, tenant):
            if started is not None and self._policy(task).limited and self._method(task) != self._method(started):
                continue  # candidates of other tenants may fill the limit of its method
            facts = self.facts.get(task.pool)
            if facts is not None and 0 < facts.largest < self._cost(task):
                continue
            lines.setdefault(task.pool, []).append(task)
        able = []
        for pool in {*lines, *self.blocked_at}:
            free = self.free.get(pool, [])
            if sum(task.pool == pool for task in running) < self.route.limits.get(pool, 10**9):
                found = self._next_in(pool, sorted(lines.get(pool, []), key=self.place), max(free, default=0))
                if found is not None:
                    able.append(found)
        if start is not None:
            able = [task for task in able if task.pool == start.pool]
        return min(able, key=self.place, default=None)

    def _next_in(self, pool: str, line: list[Seen], slots: int) -> Seen | None:
        """The head, if it fits; otherwise, every other ten seconds, the first task that fits."""
        if self.several:
            return next((task for task in line if self._cost(task) <= slots), None)
        if not line or self._cost(line[0]) <= slots:
            self.blocked_at.pop(pool, None)
            return line[0] if line else None
        if all(self._cost(task) >= self._cost(line[0]) for task in line):
            self.blocked_at.pop(pool, None)
            return None
        since = self.blocked_at.setdefault(pool, self.now)
        fitting = [task for task in line if self._cost(task) <= slots]
        return fitting[0] if fitting and int((self.now - since) / self.age_step_s + HAIR) % 2 else None

    def _candidates(self, running: list[Seen], tenant: str | None) -> list[Seen]:
        """Tasks that neither the order nor the limit of their key holds back."""
        for task in self.tasks.values():
            if task.phase == "wait" and task.ready_at <= self.now:
                task.phase = "ready"
        ready = [task for task in self.tasks.values() if task.phase == "ready" and not self._behind(task)]
        for task in ready:
            task.pool = self._pool(task)
        chosen = sorted((task for task in ready if tenant in (None, task.submission.tenant)), key=self.place)
        per_key = self.route.queue.per_key
        if per_key is not None:
            chosen = _within(chosen, running, lambda task: (per_key, _key(task)))
        chosen = _within(chosen, running, lambda task: (self._policy(task).per_key, self._method_and_key(task)))
        chosen = _within(chosen, running, lambda task: (self._policy(task).max_running, self._method(task)))
        return _within(chosen, [], lambda task: (self._starts_allowed(task), self._method(task)))

    def _policy(self, task: Seen) -> TaskPolicy:
        facts = self.facts.get(task.pool)
        return TaskPolicy() if facts is None else facts.policies.get(task.submission.method, TaskPolicy())

    def _method(self, task: Seen) -> tuple[str, str]:
        return (task.pool, task.submission.method)

    def _method_and_key(self, task: Seen) -> tuple[str, ...] | None:
        key = _key(task)
        return None if key is None else (*self._method(task), *key)

    def _starts_allowed(self, task: Seen) -> int | None:
        rate, name = self._policy(task).rate_per_s, self._method(task)
        if rate is None:
            return None
        starts, burst, count = self.method_starts.get(name, []), max(1, int(rate / 10)), 0
        while _keeps(rate, burst, self.declared_since[name], [*starts, *[self.now] * (count + 1)], self.now):
            count += 1
        return count

    def _behind(self, task: Seen) -> bool:
        if not self._ordered(task):
            return False
        others = [other for other in self.tasks.values() if self._ordered(other) and other is not task]
        others = [other for other in others if _key(other) == _key(task)]
        if any(other.begun for other in others) and not task.begun:
            return True
        return any(other.seq < task.seq and other.begun == task.begun for other in others)

    def _ordered(self, task: Seen) -> bool:
        return task.submission.key is not None and (task.submission.ordered or self.route.queue.ordered)

    def _pool(self, task: Seen) -> str:
        submission = task.submission
        return submission.pool or choose_pool(self.route, self.endpoint, submission.key, task.draw)

    def _cost(self, task: Seen) -> int:
        facts = self.facts.get(task.pool)
        return 1 if facts is None else facts.costs.get(task.submission.method, 1)

    def place(self, task: Seen) -> Any:
        submission = task.submission
        priority = self._policy(task).priority if submission.priority is None else submission.priority
        return (submission.published_at - (priority or 0) * self.age_step_s, task.seq)

    def _rate_allows(self) -> bool:
        rate, burst = self.route.queue.rate_per_s, self.route.queue.burst
        if rate is None:
            return True
        return _keeps(rate, burst, self.taken_at, [*self.starts, self.now], self.now)


def _key(task: Seen) -> tuple[str, str] | None:
    key = task.submission.key
    return None if key is None else (task.submission.tenant, key)


def _within(tasks: list[Seen], running: list[Seen], limit_of: Callable[[Seen], tuple[int | None, Any]]) -> list[Seen]:
    """The first of the tasks for which there is room, by limit and name; a name of None has no limit."""
    used = Counter(limit_of(task)[1] for task in running)
    chosen: list[Seen] = []
    for task in tasks:
        limit, name = limit_of(task)
        if limit is None or name is None or used[name] < limit:
            used[name] += 1
            chosen.append(task)
    return chosen


def _keeps(rate: float, burst: int, since: float, starts: list[float], now: float) -> bool:
    """Whether no window that ends now has more starts than the rate allows; the bucket was empty at first."""
    windows = [(len(starts), since, 0)]
    windows += [(len(starts) - number, at, burst) for number, at in enumerate(starts[:-1])]
    return all(count <= extra + rate * (now - at) + HAIR for count, at, extra in windows)
