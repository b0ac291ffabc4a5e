"""Finds the task that should start next in the slow and obvious way: by looking at all tasks each time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gangline.dispatcher.durable.core import effects as do
from gangline.dispatcher.durable.core import events as on
from gangline.dispatcher.durable.policies.retry_policy import NotStarted, classify, refused_s
from gangline.dispatcher.traffic.route_core import choose_pool
from gangline.schemas.messages.submission import Submission
from gangline.schemas.records.routes import RouteRecord

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
        self.tasks: dict[int, Seen] = {}
        self.route = RouteRecord()
        self.facts: dict[str, on.PoolSeen] = {}
        self.free: dict[str, list[int]] = {}
        self.open = False
        self.sure = True
        self.taken_at = 0.0
        self.starts: list[float] = []
        self.blocked_at: dict[str, float] = {}
        """Since when the head of that pool has not fitted while some other task needs fewer slots."""

    # -- input -------------------------------------------------------------------------------------------------------

    def event(self, event: on.AnyEvent) -> None:
        self.now = event.now
        match event:
            case on.QueueTaken():
                self._empty_bucket()
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
                self.facts[event.pool] = event
            case on.SlotsGranted():
                self.free[event.pool] = sorted(slots for slots in event.free if slots)
            case on.TaskArrived() if event.seq not in self.tasks:
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
            case do.StartAttempt():
                expected = self.next()
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
        free = self.free[effect.pool]
        smallest = min(slots for slots in free if slots >= effect.cost)
        free.remove(smallest)
        if smallest > effect.cost:
            free.append(smallest - effect.cost)

    # -- output ------------------------------------------------------------------------------------------------------

    def next(self) -> Seen | None:
        """The task that must start now."""
        rules = self.route.queue
        running = [task for task in self.tasks.values() if task.phase == "run"]
        if not self.open or not self.sure or rules.paused or not self._rate_allows():
            return None
        if rules.max_running is not None and len(running) >= rules.max_running:
            return None
        lines: dict[str, list[Seen]] = {}
        for task in self._candidates(running):
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
        return min(able, key=self.place, default=None)

    def _next_in(self, pool: str, line: list[Seen], slots: int) -> Seen | None:
        """The head, if it fits; otherwise, every other ten seconds, the first task that fits."""
        if not line or self._cost(line[0]) <= slots:
            self.blocked_at.pop(pool, None)
            return line[0] if line else None
        if all(self._cost(task) >= self._cost(line[0]) for task in line):
            self.blocked_at.pop(pool, None)
            return None
        since = self.blocked_at.setdefault(pool, self.now)
        fitting = [task for task in line if self._cost(task) <= slots]
        return fitting[0] if fitting and int((self.now - since) / self.age_step_s + HAIR) % 2 else None

    def _candidates(self, running: list[Seen]) -> list[Seen]:
        """Tasks that neither the order nor the limit of their key holds back."""
        for task in self.tasks.values():
            if task.phase == "wait" and task.ready_at <= self.now:
                task.phase = "ready"
        ready = [task for task in self.tasks.values() if task.phase == "ready" and not self._behind(task)]
        limit = self.route.queue.per_key
        chosen: list[Seen] = []
        for task in sorted(ready, key=self.place):
            task.pool = self._pool(task)
            key = task.submission.key
            if key is not None and limit is not None:
                taken = sum(other.submission.key == key for other in (*running, *chosen))
                if taken >= limit:
                    continue
            chosen.append(task)
        return chosen

    def _behind(self, task: Seen) -> bool:
        if not self._ordered(task):
            return False
        others = [other for other in self.tasks.values() if self._ordered(other) and other is not task]
        others = [other for other in others if other.submission.key == task.submission.key]
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
        return (submission.published_at - submission.priority * self.age_step_s, task.seq)

    def _rate_allows(self) -> bool:
        rate, burst = self.route.queue.rate_per_s, self.route.queue.burst
        if rate is None:
            return True
        windows = [(1 + len(self.starts), self.taken_at, 0)]
        windows += [(1 + len(self.starts) - number, at, burst) for number, at in enumerate(self.starts)]
        return all(count <= extra + rate * (self.now - at) + HAIR for count, at, extra in windows)
