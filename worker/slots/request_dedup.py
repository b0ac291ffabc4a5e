"""What each sender has asked before: so that nothing is granted twice, started twice, or started after it was undone.

Everything is bounded: by age, by count, and answers by bytes. What was forgotten is never taken for new: ids of one
sender grow, so all up to the newest forgotten one (the *floor*) count as seen. A sender that has been silent for long
is forgotten as a whole; from then on a sender that seems new is *doubtful*: what it did before its first new id is not
known, and is not called "never seen".

Pure: no clock, no randomness; part of worker.slots.admission_core, whose laws it keeps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from .lease_table import GrantedLease, Refusal
from .timers import NEVER

RequestId = int | str
"""Of a reserve: a number in frames, text (`rid`) in requests of other languages."""

WITHDRAWN: Final = b""
"""In place of an answer: refused before it came. Cancelled, released or checked for, and from now on never started."""

SENDER_LIVES: Final = 10
"""A silent sender is remembered so many times longer than an answer: it is small, and its floor is worth much. Unless
there are more of them than answers may be."""


class TaskRecord:
    """One task that was admitted and is still on its slots."""

    # No slots: what most of them never set stands in the class, which makes one of them cheaper to make.

    queued_at = NEVER
    fence = 0
    """Of the lease that it came on; 0 without one."""
    answered = False
    """The caller has its answer. Code that cannot be stopped may still be on the slots."""
    handle: object = None
    """For whoever drives the core; not looked at in here."""

    def __init__(
        self, sender: RouterHistory, task_id: int, cost: int, lease: GrantedLease | None, due_at: float
    ) -> None:
        self.sender = sender
        self.id = task_id
        self.cost = cost
        """Slots."""
        self.lease = lease
        """The multi-use lease that its slots go back to; None: they become free."""
        self.due_at = due_at
        """The caller's deadline; NEVER when there is none or it was already acted on."""

    def __repr__(self) -> str:
        return f"<TaskRecord {self.sender.name}:{self.id} cost={self.cost}{' answered' if self.answered else ''}>"


class RouterHistory:
    """What is remembered of one router."""

    __slots__ = ("done", "doubtful", "floor", "name", "reserves", "running", "seen_at")

    def __init__(self, name: str, *, doubtful: bool) -> None:
        self.name = name
        self.doubtful = doubtful
        """It may have been here before and forgotten; until it sends a new id."""
        self.reserves: dict[RequestId, GrantedLease | Refusal] = {}
        """Answer to each reserve; EXPIRED also marks one that was released before it came."""
        self.running: dict[int, TaskRecord] = {}
        """By id of the request: admitted and not answered. Of a durable job, also those that only wait for its end."""
        self.done: dict[int, bytes] = {}
        """Answered, or WITHDRAWN."""
        self.floor = -1
        """All ids up to here were seen, even where no trace of them is left."""
        self.seen_at = 0.0
        """When it last said something."""

    def __repr__(self) -> str:
        return f"<RouterHistory {self.name}: {len(self.running)} running, {len(self.done)} done, floor {self.floor}>"

    def saw_new(self, request_id: int) -> None:
        """It sent an id for the first time: from here on all of its ids are known."""
        if self.doubtful:
            self.doubtful = False
            self.floor = max(self.floor, request_id - 1)

    @property
    def idle(self) -> bool:
        """Nothing of it runs, and nothing is remembered."""
        return not (self.running or self.done or self.reserves)


class RequestDedup:
    """All senders, with one bound over them."""

    __slots__ = (
        "_bytes",
        "_done",
        "_done_at",
        "_done_by",
        "_forgot_senders",
        "_keep",
        "_keep_bytes",
        "_keep_s",
        "_reserves",
        "_reserves_at",
        "_reserves_by",
        "senders",
    )

    def __init__(self, *, keep: int, keep_bytes: int, keep_s: float) -> None:
        """Keep each answer for `keep_s` seconds, at most `keep` answers (and as many reserves), at most `keep_bytes`
        of answers."""
        self._keep = keep
        self._keep_bytes = keep_bytes
        self._keep_s = keep_s
        self.senders: dict[str, RouterHistory] = {}
        # Three rows and not one of tuples, which the garbage collector would have to look through again and again.
        self._done: deque[int] = deque()
        self._done_by: deque[RouterHistory] = deque()
        self._done_at: deque[float] = deque()
        self._reserves: deque[RequestId] = deque()
        self._reserves_by: deque[RouterHistory] = deque()
        self._reserves_at: deque[float] = deque()
        self._bytes = 0
        self._forgot_senders = False

    def sender(self, name: str, now: float) -> RouterHistory:
        """The sender of that name, known or new."""
        sender = self.senders.get(name)
        if sender is None:
            sender = self.senders[name] = RouterHistory(name, doubtful=self._forgot_senders)
        sender.seen_at = now
        return sender

    def note_reserve(self, sender: RouterHistory, rid: RequestId, answer: GrantedLease | Refusal, now: float) -> None:
        """Remember the answer to a reserve, or EXPIRED for one that was released before it came."""
        sender.reserves[rid] = answer
        if isinstance(answer, GrantedLease):
            answer.asked = (sender, rid)
        self._reserves.append(rid)
        self._reserves_by.append(sender)
        self._reserves_at.append(now)
        if len(self._reserves) > self._keep:
            self._forget_reserve(now)

    def note_done(self, sender: RouterHistory, task_id: int, answer: bytes, now: float) -> None:
        """Remember that a task was answered (or WITHDRAWN), and the answer. It must not be among those that run."""
        assert task_id not in sender.done
        sender.done[task_id] = answer
        self._bytes += len(answer)
        self._done.append(task_id)
        self._done_by.append(sender)
        self._done_at.append(now)
        if len(self._done) > self._keep or self._bytes > self._keep_bytes:
            self._forget_done()
            while self._done and self._bytes > self._keep_bytes:
                self._forget_done()

    def sweep(self, now: float) -> None:
        """Forget what is too old."""
        noted_since = now - self._keep_s
        while self._done and self._done_at[0] <= noted_since:
            self._forget_done()
        while self._reserves and self._reserves_at[0] <= noted_since:
            self._forget_reserve(now)
        lives = SENDER_LIVES if len(self.senders) <= self._keep else 1
        silent_since = now - self._keep_s * lives
        for sender in [s for s in self.senders.values() if s.seen_at <= silent_since and s.idle]:
            del self.senders[sender.name]
            self._forgot_senders = True

    def statistics(self) -> dict[str, int]:
        """Counts of what is remembered: senders, reserves, answers, answer_bytes."""
        return {
            "senders": len(self.senders),
            "reserves": len(self._reserves),
            "answers": len(self._done),
            "answer_bytes": self._bytes,
        }

    def waiting(self) -> Iterator[tuple[RouterHistory, int, TaskRecord]]:
        """Each request that is not answered, with the task that it waits for. For checks."""
        for sender in self.senders.values():
            for task_id, record in sender.running.items():
                yield sender, task_id, record

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        assert self._bytes == sum(len(answer) for s in self.senders.values() for answer in s.done.values())
        assert len(self._done) == sum(len(s.done) for s in self.senders.values())
        assert len(self._reserves) == sum(len(s.reserves) for s in self.senders.values())
        for name, sender in self.senders.items():
            assert sender.name == name
            assert not sender.running.keys() & sender.done.keys(), sender
            assert not any(task.answered for task in sender.running.values()), sender

    def _forget_done(self) -> None:
        self._done_at.popleft()
        sender, task_id = self._done_by.popleft(), self._done.popleft()
        self._bytes -= len(sender.done.pop(task_id))
        if task_id > sender.floor:
            sender.floor = task_id

    def _forget_reserve(self, now: float) -> None:
        self._reserves_at.popleft()
        sender, rid = self._reserves_by.popleft(), self._reserves.popleft()
        answer = sender.reserves[rid]
        if isinstance(answer, GrantedLease) and answer.ended is None:
            # It can still be released by its request id. There are no more of these than slots.
            self._reserves.append(rid)
            self._reserves_by.append(sender)
            self._reserves_at.append(now)
            return
        del sender.reserves[rid]
