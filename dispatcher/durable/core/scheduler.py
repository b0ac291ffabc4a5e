"""Which task starts next, how many more slots the queue could use, and when to check again.

A task that could start is BEHIND an older one of its ordered key, CAPPED by a limit of its key or its method, LINED up
for its pool, or PARKED. Of the first tasks of all pools with free slots, the one with the lowest place starts, as long
as the limits allow. Only pools that have changed are checked.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from ....runtime.rate import RateLimiter, burst_of
from ....schemas.records.jobs import JobState
from ....schemas.records.routes import RouteRecord
from ..policies.retry_policy import timeout_s
from ..policies.start_order import KeyConcurrency, OrderedKeys, Place, StartChanges, place_of
from .effects import RequestSlots, SetQueueTimer, StartAttempt
from .pools import PoolCredit, PoolCredits
from .task import ADMITTED, ENDING, STARTED, UNSETTLED, QueueState, Task, TaskStep, TimerKind

LEAD_S: Final = 0.25
"""How long before the rate allows a start leases are requested."""


class StartScheduler:
    """Owns the pools, the keys and the rate."""

    def __init__(self, state: QueueState) -> None:
        self._state = state
        self._quotas = state.settings.quotas
        self.pools = PoolCredits(state.endpoint, self._quotas.weight_of)
        self.ordered_keys = OrderedKeys()
        self.concurrency: KeyConcurrency | None = None
        """None: the rules have no limit per key."""
        self.declared: dict[tuple[str, str], tuple[KeyConcurrency | None, KeyConcurrency | None]] = {}
        """Limits that tasks declare, by pool and method: of each key, and of the method (under the key "")."""
        self._rates: dict[tuple[str, str], RateLimiter] = {}
        """Rates that tasks declare, likewise. They are kept while they stay the same."""
        self.gate: RateLimiter | None = None
        """None: the rules have no rate."""
        self._soon: int | None = None
        """`allowed_soon` at the last `want`."""
        self._woken: float | None = None
        """The last SetQueueTimer."""

    # -- starts ------------------------------------------------------------------------------------------------------

    def pump(self) -> Task | None:
        """Start all tasks that can start, in order. Returns the first that has less time left than it usually needs:
        end it, and call this again."""
        if not self.pools.startable:
            return None
        room = self.room()
        while room > 0:
            found = self._first()
            if found is None:
                return None
            if self._state.lacks_time(task := self._state.tasks[found[0][1]]):
                return task
            self._start(*found)
            room = room - 1 if self.gate is None else self.room()
        return None

    @property
    def closed(self) -> bool:
        """Whether nothing may start, whatever is free: the route pauses it, or the queue is not certainly ours yet."""
        queue = self._state
        return not queue.open or not queue.sure or queue.rules.paused or bool(queue.unclear)

    def room(self) -> int:
        """How many tasks may start now, given enough slots."""
        queue = self._state
        if self.closed or (self.gate is not None and not self.gate.ready(queue.now)):
            return 0
        if queue.rules.max_running is not None:
            return max(0, queue.rules.max_running - queue.running)
        return len(queue.tasks)

    def _first(self) -> tuple[Place, PoolCredit] | None:
        now, turn_s = self._state.now, self._state.settings.age_step_s
        best: tuple[Place, PoolCredit] | None = None
        for pool in tuple(self.pools.startable.values()):
            place = pool.next(now, turn_s)
            if place is None:
                if pool.blocked_at is None or pool.full:
                    del self.pools.startable[pool.name]
            elif best is None or self._goes_before(place, best[0]):
                best = (place, pool)
        return best

    def _goes_before(self, place: Place, other: Place) -> bool:
        """Which of the first tasks of two pools starts first: matters only if a limit of the queue holds one back."""
        turns = self.pools.common
        if turns is not None:
            served = turns.served(self._tenant(place)), turns.served(self._tenant(other))
            if served[0] != served[1]:
                return served[0] < served[1]
        return place < other

    def _tenant(self, place: Place) -> str:
        return self._state.tasks[place[1]].submission.tenant

    def _start(self, place: Place, pool: PoolCredit) -> None:
        queue = self._state
        task = queue.tasks[place[1]]
        cost = pool.line.cost(task.seq)
        pool.take(cost)
        pool.line.turns.take(task.submission.tenant, cost)
        if self.gate is not None:
            self.gate.take(queue.now)
        task.attempts += 1
        task.started_at, task.worker = queue.wall, ""
        self.begin(task)
        queue.totals["started"] += 1
        limit_s = self.set_timeout(task)
        queue.out.append(
            StartAttempt(
                seq=task.seq,
                job=task.job,
                attempt=task.attempts,
                pool=pool.name,
                cost=cost,
                timeout_s=limit_s,
                deadline_at=task.submission.deadline_at,
            )
        )
        if task.submission.events:
            queue.out.extend(queue.tell(task, JobState.RUNNING))

    def set_timeout(self, task: Task) -> float | None:
        """Set the time at which the attempt that starts now times out. Returns how long it may run."""
        queue = self._state
        limit_s, task.timeout_at = timeout_s(task.submission, queue.rules), None
        if limit_s is not None:
            task.timeout_at = queue.now + limit_s
            queue.agenda.set((TimerKind.TIMEOUT, task.seq), task.timeout_at)
        return limit_s

    def want(self) -> None:
        """Request slots for pools where the usable number has changed."""
        queue, pools, before = self._state, self.pools, self._soon
        most = self._soon = self.allowed_soon()
        if most is None and before is None:
            changed = (
                list((pools.untold | pools.startable).values()) if pools.startable else list(pools.untold.values())
            )
            if len(changed) > 1:
                changed.sort(key=attrgetter("name"))
        else:
            changed = list(pools)
        for pool in changed:
            lacks = pool.lacks(most, queue.now, queue.settings.age_step_s)
            if lacks != pool.told:
                pool.told = lacks
                queue.out.append(RequestSlots(pool=pool.name, slots=lacks[0], largest=lacks[1]))
        pools.untold.clear()

    def allowed_soon(self) -> int | None:
        """How many tasks may start within LEAD_S, given enough slots; None: any number."""
        queue, most = self._state, None
        if self.closed:
            return 0
        if queue.rules.max_running is not None:
            most = max(0, queue.rules.max_running - queue.running)
        if self.gate is not None:
            allowed = self.gate.allowed(queue.now, queue.now + LEAD_S)
            most = allowed if most is None else min(most, allowed)
        return most

    def wake(self) -> None:
        """Set the timer if the time of the next check has changed."""
        queue, at = self._state, None
        if queue.open:
            at = queue.agenda.next_at if queue.agenda else None
            turns = [pool.turn_ends_at(queue.now, queue.settings.age_step_s) for pool in self.pools.startable.values()]
            rates = [limit.wakes_at() for limit in self._with_rate()]
            for each in (self._rate_at(), *turns, *rates) if turns or rates or self.gate is not None else ():
                if each is not None and (at is None or each < at):
                    at = each
        if at != self._woken:
            self._woken = at
            queue.out.append(SetQueueTimer(at=at))

    def _rate_at(self) -> float | None:
        """When the rate allows more, or it is time to request leases."""
        queue = self._state
        if self.gate is None or not queue.count[TaskStep.LINED]:
            return None
        next_at = self.gate.next_at
        return next((at for at in (next_at - LEAD_S, next_at) if at > queue.now), None)

    # -- rules -------------------------------------------------------------------------------------------------------

    def route(self, route: RouteRecord, explicit: bool) -> None:
        """Follow this route from now on."""
        queue = self._state
        before, queue.rules = queue.rules, route.queue
        self.pools.route(route, explicit)
        if (before.rate_per_s, before.burst) != (queue.rules.rate_per_s, queue.rules.burst):
            self.new_gate()
        self.rebuild()

    def taken(self) -> None:
        """The queue is ours: all rates start empty, since another dispatcher may have started tasks."""
        self.new_gate()
        if self._rates:
            self._rates.clear()
            self.rebuild()

    def _keep_rates(self) -> None:
        before, self._rates = self._rates, {}
        for pool in self.pools:
            for method, policy in pool.policies.items():
                rate, name = policy.rate_per_s, (pool.name, method)
                known = before.get(name)
                if rate is not None and known is not None and known.rate_per_s == rate:
                    self._rates[name] = known
                elif rate is not None:
                    self._rates[name] = RateLimiter(rate_per_s=rate, burst=burst_of(rate), now=self._state.now)

    def new_gate(self) -> None:
        """It starts empty: starts under the earlier rate are unknown or followed another rule."""
        queue = self._state
        rate = queue.rules.rate_per_s
        self.gate = None if rate is None else RateLimiter(rate_per_s=rate, burst=queue.rules.burst, now=queue.now)

    def rebuild(self) -> None:
        """Rules, weights or workers have changed: all tasks that have not started are admitted again."""
        queue = self._state
        limit = queue.rules.per_key
        self.concurrency = None if limit is None else self._limit(limit)
        self.declared.clear()
        self._keep_rates()
        self.ordered_keys = OrderedKeys()
        waiting = [task for task in queue.tasks.values() if task.step in ADMITTED]
        for task in waiting:
            self._unline(task)
            task.limits = ()
        self.pools.share_turns(queue.rules.max_running is not None or self.gate is not None)
        for task in queue.tasks.values():
            if (task.step in UNSETTLED or task.step in ENDING) and queue.has_entered(task):
                key = self._order(task)
                if key is not None:
                    self.ordered_keys.join(key, task.seq)
                    if task.begun:
                        self.ordered_keys.start(key, task.seq)
            if task.step in STARTED:
                task.limits = self.limits_of(task)
                for passed, key in task.limits:
                    passed.start(key, task.seq)
        for task in waiting:
            self.admit(task)

    # -- ordered keys: from arrival to the stored end ------------------------------------------------------------------

    def _order(self, task: Task) -> str | None:
        """Its key, if the current rules order it."""
        task.ordered = task.key is not None and (task.submission.ordered or self._state.rules.ordered)
        return task.key if task.ordered else None

    def enrol(self, task: Task) -> None:
        """It has arrived: put it into the order of its key."""
        key = self._order(task)
        if key is not None:
            self._demote(self.ordered_keys.join(key, task.seq))
            if task.begun:
                self._demote(self.ordered_keys.start(key, task.seq))

    def dismiss(self, task: Task) -> None:
        """Its end is stored: the next task of its ordered key may start."""
        if task.ordered and task.key is not None:
            self._promote(self.ordered_keys.leave(task.key, task.seq))

    def unstarted(self, task: Task) -> None:
        """Its first attempt started nothing."""
        if task.ordered and task.key is not None:
            self._promote(self.ordered_keys.unstart(task.key, task.seq))

    def _promote(self, seq: int | None) -> None:
        task = None if seq is None else self._state.tasks[seq]
        if task is not None and task.step is TaskStep.BEHIND:
            self._cap(task)

    def _demote(self, seq: int | None) -> None:
        task = None if seq is None else self._state.tasks[seq]
        if task is not None and task.step in ADMITTED:
            self.withdraw(task)
            self._state.move(task, TaskStep.BEHIND)

    # -- lines: while a task waits for its turn ------------------------------------------------------------------------

    def admit(self, task: Task) -> None:
        """It can start."""
        pool = self.pools.choose(task.submission, task.draw)
        task.pool = pool.name
        declared = pool.policies.get(task.submission.method)
        if declared is not None or task.place[0] != task.submission.published_at:
            priority = None if declared is None else declared.priority
            task.place = place_of(task.submission, task.seq, self._state.settings.age_step_s, priority)
        if task.ordered and task.key is not None and self.ordered_keys.head(task.key) != task.seq:
            self._state.move(task, TaskStep.BEHIND)
        else:
            self._cap(task)

    def withdraw(self, task: Task) -> None:
        """It could start, and is removed (the caller changes its step)."""
        self._pass_none(task, 0)
        task.limits = ()

    def begin(self, task: Task) -> None:
        """It runs from now on, whatever it did before."""
        queue = self._state
        if task.step in ADMITTED:
            self._unline(task)
        queue.move(task, TaskStep.RUNNING)
        if queue.agenda:
            queue.agenda.cancel((TimerKind.RETRY, task.seq))
            queue.agenda.cancel((TimerKind.UNKNOWN, task.seq))
        if task.ordered and task.key is not None:
            self._demote(self.ordered_keys.start(task.key, task.seq))
        task.limits = task.limits or self.limits_of(task)
        for limit, key in task.limits:
            self._shift(limit, limit.start(key, task.seq))
        self._runs(task, 1)

    def end(self, task: Task) -> None:
        """It no longer runs (the caller changes its step)."""
        queue = self._state
        if queue.agenda:
            queue.agenda.cancel((TimerKind.TIMEOUT, task.seq))
        self._runs(task, -1)
        limits, task.limits = task.limits, ()
        for limit, key in limits:
            self._shift(limit, limit.stop(key, task.seq))

    def _runs(self, task: Task, change: int) -> None:
        pool = self.pools[task.pool]
        pool.running += change
        if pool.limit is not None:
            self.pools.touch(pool)

    # -- limits: a task that can start passes all of its limits, one after the other, before it is in line -------------

    def limits_of(self, task: Task) -> tuple[tuple[KeyConcurrency, str], ...]:
        """The limits that it has to pass in its pool, in order, and its key in each."""
        method, key = task.submission.method, task.key
        found = [] if self.concurrency is None or key is None else [(self.concurrency, key)]
        policy = self.pools[task.pool].policies.get(method)
        if policy is None or not policy.limited:
            return tuple(found)
        name = (task.pool, method)
        limits = self.declared.get(name)
        if limits is None:
            rate = self._rates.get(name)
            limits = self.declared[name] = (
                None if policy.per_key is None else self._limit(policy.per_key),
                None if policy.max_running is None and rate is None else self._limit(policy.max_running, rate),
            )
            if limits[1] is not None:
                limits[1].now = self._state.now
        if limits[0] is not None and key is not None:
            found.append((limits[0], key))
        if limits[1] is not None:
            found.append((limits[1], ""))
        return tuple(found)

    def _limit(self, limit: int | None, rate: RateLimiter | None = None) -> KeyConcurrency:
        return KeyConcurrency(limit, rate, weight_of=self._quotas.weight_of)

    def _with_rate(self) -> list[KeyConcurrency]:
        return [limit for _, limit in self.declared.values() if limit is not None and limit.rate is not None]

    def tick(self) -> None:
        """Time has passed: rates that tasks declare may allow more."""
        if self._rates:
            for limit in self._with_rate():
                for changes in limit.refresh(self._state.now):
                    self._shift(limit, changes)

    def _cap(self, task: Task) -> None:
        task.limits = self.limits_of(task)
        self._pass(task, 0)

    def _pass(self, task: Task, number: int) -> None:
        """It has passed this many limits."""
        if number == len(task.limits):
            self._line(task)
            return
        limit, key = task.limits[number]
        changes = limit.add(key, task.place, task.submission.tenant)
        if task.seq not in changes.promoted:
            self._state.move(task, TaskStep.CAPPED)
        self._shift(limit, changes)

    def _pass_none(self, task: Task, number: int) -> None:
        """It has passed only this many limits: take it out of those behind them, and out of its line."""
        self._unline(task)
        for limit, key in task.limits[number:]:
            self._shift(limit, limit.discard(key, task.seq))

    def _shift(self, limit: KeyConcurrency, changes: StartChanges) -> None:
        # Whatever this changes in other limits, they come after this one.
        for seq in changes.demoted:
            task = self._state.tasks[seq]
            self._pass_none(task, _number_of(limit, task) + 1)
            self._state.move(task, TaskStep.CAPPED)
        for seq in changes.promoted:
            task = self._state.tasks[seq]
            self._pass(task, _number_of(limit, task) + 1)

    def _line(self, task: Task) -> None:
        queue = self._state
        pool = self.pools[task.pool]
        task.cost = pool.costs.get(task.submission.method, 1)
        misfit = (TimerKind.MISFIT, task.seq)
        if 0 < pool.largest < task.cost:
            queue.move(task, TaskStep.PARKED)
            if misfit not in queue.agenda:
                queue.agenda.set(misfit, queue.now + queue.settings.unknown_after_s)
            return
        if queue.agenda:
            queue.agenda.cancel(misfit)
        queue.move(task, TaskStep.LINED)
        pool.line.add(task.place, task.cost, task.submission.tenant)
        self.pools.touch(pool)

    def _unline(self, task: Task) -> None:
        if task.step is TaskStep.LINED:
            pool = self.pools[task.pool]
            pool.line.discard(task.seq, task.submission.tenant)
            self.pools.touch(pool)


def _number_of(limit: KeyConcurrency, task: Task) -> int:
    return next(number for number, (each, _) in enumerate(task.limits) if each is limit)
