"""Who starts now, what more could be used, and when to look again.

Among the next of all pools that have room, the one with the first place starts, for as long as the limits allow.
"""

from __future__ import annotations

from typing import Final

from ...schemas.jobs import JobState
from .admission import Admission
from .agenda import Due
from .books import Books
from .effects import Start, Wake, Want
from .order import Place
from .pools import PoolView
from .retry import timeout_s

LEAD_S: Final = 0.25
"""How long before a rate allows a start leases are asked for."""


class Starting:
    """Starts and wants."""

    def __init__(self, books: Books, admission: Admission) -> None:
        self._books = books
        self._admission = admission
        self._woken: float | None = None
        """What the last Wake said."""

    def pump(self) -> None:
        """Start whoever can start, in order."""
        room = self.room()
        while room > 0:
            found = self._first()
            if found is None:
                return
            self._start(*found)
            room = room - 1 if self._books.gate is None else self.room()

    def room(self) -> int:
        """How many tasks may start now, if there are slots for them."""
        books = self._books
        if not books.open or not books.sure or books.rules.paused:
            return 0
        if books.gate is not None and not books.gate.ready(books.now):
            return 0
        if books.rules.max_running is not None:
            return max(0, books.rules.max_running - books.running)
        return len(books.tasks)

    def _first(self) -> tuple[Place, PoolView] | None:
        books = self._books
        best: tuple[Place, PoolView] | None = None
        for pool in books.pools:
            place = pool.next(books.now, books.settings.age_step_s)
            if place is not None and (best is None or place < best[0]):
                best = (place, pool)
        return best

    def _start(self, place: Place, pool: PoolView) -> None:
        books = self._books
        task = books.tasks[place[1]]
        cost = pool.line.cost(task.seq)
        pool.take(cost)
        if books.gate is not None:
            books.gate.take(books.now)
        task.attempts += 1
        task.started_at, task.timeout_at, task.worker = books.wall, None, ""
        self._admission.begin(task)
        books.totals["started"] += 1
        limit_s = timeout_s(task.submission, books.rules)
        if limit_s is not None:
            task.timeout_at = books.now + limit_s
            books.agenda.set((Due.TIMEOUT, task.seq), task.timeout_at)
        books.out.append(
            Start(
                seq=task.seq,
                job=task.job,
                attempt=task.attempts,
                pool=pool.name,
                cost=cost,
                timeout_s=limit_s,
                deadline_at=task.submission.deadline_at,
            )
        )
        books.out.extend(books.tell(task, JobState.RUNNING))

    def want(self) -> None:
        """Say what more could be used, if that has changed."""
        books = self._books
        most = self._soon()
        for pool in books.pools:
            lacks = pool.lacks(most, books.now, books.settings.age_step_s)
            if lacks != pool.told:
                pool.told = lacks
                books.out.append(Want(pool=pool.name, slots=lacks[0], largest=lacks[1]))

    def _soon(self) -> int:
        """How many tasks may start within LEAD_S, if there are slots for them."""
        books = self._books
        if not books.open or not books.sure or books.rules.paused:
            return 0
        most = len(books.tasks)
        if books.rules.max_running is not None:
            most = min(most, books.rules.max_running - books.running)
        if books.gate is not None:
            most = min(most, books.gate.allowed(books.now, books.now + LEAD_S))
        return max(0, most)

    def wake(self) -> None:
        """Say when to look again, if that has changed."""
        books = self._books
        at = None
        if books.open:
            turns = (pool.turn_ends_at(books.now, books.settings.age_step_s) for pool in books.pools)
            at = min((at for at in (books.agenda.next_at, self._rate_at(), *turns) if at is not None), default=None)
        if at != self._woken:
            self._woken = at
            books.out.append(Wake(at=at))

    def _rate_at(self) -> float | None:
        """When the rate allows more, or it is time to ask for leases."""
        books = self._books
        if books.gate is None or not any(pool.line for pool in books.pools):
            return None
        next_at = books.gate.next_at
        return next((at for at in (next_at - LEAD_S, next_at) if at > books.now), None)
