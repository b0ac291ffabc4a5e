"""The way of a task into the line of its pool, and out of it: order of its key, then the limit of its key, then the
size of the workers."""

from __future__ import annotations

from .agenda import Due
from .books import Books
from .keys import Caps, Lanes, Shift
from .states import ADMITTED, STARTED, UNSETTLED, Step
from .task import Task


class Admission:
    """Moves tasks among the steps ADMITTED, and keeps lanes, caps and lines."""

    def __init__(self, books: Books) -> None:
        self._books = books

    # -- lanes: from arrival to the stored end ---------------------------------------------------------------------

    def enrol(self, task: Task) -> None:
        """It has arrived, or the rules have changed: it takes part in the order of its key."""
        task.ordered = task.key is not None and (task.submission.ordered or self._books.rules.ordered)
        if task.ordered and task.key is not None:
            self._demote(self._books.lanes.join(task.key, task.seq))
            if task.begun:
                self._demote(self._books.lanes.start(task.key, task.seq))

    def dismiss(self, task: Task) -> None:
        """Its end is stored: the next of its ordered key may go on."""
        if task.ordered and task.key is not None:
            self._promote(self._books.lanes.leave(task.key, task.seq))

    def unstarted(self, task: Task) -> None:
        """Its first try started nothing."""
        if task.ordered and task.key is not None:
            self._promote(self._books.lanes.unstart(task.key, task.seq))

    def _promote(self, seq: int | None) -> None:
        task = None if seq is None else self._books.tasks[seq]
        if task is not None and task.step is Step.BEHIND:
            self._cap(task)

    def _demote(self, seq: int | None) -> None:
        task = None if seq is None else self._books.tasks[seq]
        if task is not None and task.step in ADMITTED:
            self.withdraw(task)
            self._books.move(task, Step.BEHIND)

    # -- lines: while it waits for its turn --------------------------------------------------------------------------

    def admit(self, task: Task) -> None:
        """It could start."""
        if task.ordered and task.key is not None and self._books.lanes.head(task.key) != task.seq:
            self._books.move(task, Step.BEHIND)
        else:
            self._cap(task)

    def withdraw(self, task: Task) -> None:
        """It could start, and is taken out (its step is for the caller to change)."""
        self._unline(task)
        if self._books.caps is not None and task.key is not None:
            self._shift(self._books.caps.discard(task.key, task.seq))

    def begin(self, task: Task) -> None:
        """It runs from now on, whatever it did before."""
        books = self._books
        if task.step in ADMITTED:
            self._unline(task)
        books.move(task, Step.RUNNING)
        if books.agenda:
            books.agenda.cancel((Due.RETRY, task.seq))
            books.agenda.cancel((Due.UNKNOWN, task.seq))
        if task.ordered and task.key is not None:
            self._demote(books.lanes.start(task.key, task.seq))
        if books.caps is not None and task.key is not None:
            self._shift(books.caps.start(task.key, task.seq))
        books.pools[task.pool].running += 1

    def end(self, task: Task) -> None:
        """It does not run any more (its step is for the caller to change)."""
        books = self._books
        if books.agenda:
            books.agenda.cancel((Due.TIMEOUT, task.seq))
        books.pools[task.pool].running -= 1
        if books.caps is not None and task.key is not None:
            self._shift(books.caps.stop(task.key, task.seq))

    def rebuild(self) -> None:
        """Rules, weights or workers have changed: everybody who has not started is admitted anew."""
        books = self._books
        limit = books.rules.per_key
        books.caps = None if limit is None else Caps(limit)
        books.lanes = Lanes()
        waiting = [task for task in books.tasks.values() if task.step in ADMITTED]
        for task in waiting:
            self._unline(task)
        for task in books.tasks.values():
            if task.step in UNSETTLED or task.step in (Step.STORING, Step.BURYING):
                self._enrol_again(task)
            if task.step in STARTED and books.caps is not None and task.key is not None:
                books.caps.start(task.key, task.seq)
        for task in waiting:
            self.admit(task)

    def _enrol_again(self, task: Task) -> None:
        """As `enrol`, while nobody has a place."""
        task.ordered = task.key is not None and (task.submission.ordered or self._books.rules.ordered)
        if task.ordered and task.key is not None:
            self._books.lanes.join(task.key, task.seq)
            if task.begun:
                self._books.lanes.start(task.key, task.seq)

    def _cap(self, task: Task) -> None:
        books = self._books
        if books.caps is None or task.key is None:
            self._line(task)
            return
        shift = books.caps.add(task.key, task.place)
        if task.seq not in shift.promoted:
            books.move(task, Step.CAPPED)
        self._shift(shift)

    def _shift(self, shift: Shift) -> None:
        for seq in shift.demoted:
            task = self._books.tasks[seq]
            self._unline(task)
            self._books.move(task, Step.CAPPED)
        for seq in shift.promoted:
            self._line(self._books.tasks[seq])

    def _line(self, task: Task) -> None:
        books = self._books
        pool = books.pools.choose(task.submission, task.draw)
        task.pool = pool.name
        task.cost = pool.costs.get(task.submission.method, 1)
        if 0 < pool.largest < task.cost:
            books.move(task, Step.PARKED)
            if (Due.MISFIT, task.seq) not in books.agenda:
                books.agenda.set((Due.MISFIT, task.seq), books.now + books.settings.unknown_after_s)
            return
        if books.agenda:
            books.agenda.cancel((Due.MISFIT, task.seq))
        books.move(task, Step.LINED)
        pool.line.add(task.place, task.cost)

    def _unline(self, task: Task) -> None:
        if task.step is Step.LINED:
            self._books.pools[task.pool].line.discard(task.seq)
