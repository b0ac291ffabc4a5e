"""Failure detection: when a silent process is lost, whether this process itself was frozen, and which waits have timed
out. The detectors are pure: no IO, no clock, no await; the time is an argument of every call.

The cause of silence may be our own server, or the link between servers, as well as the silent process. So a silent
process is only suspected, and its heartbeat key in the ledger decides.

Laws:

1. Silence alone proves nothing. A suspect is lost when the ledger has answered twice in a row that it has no heartbeat,
   and the second question was asked at least `CONFIRM_S` after the first answer. A ledger that has just woken, or just
   elected its leader, may have expired heartbeats whose renewals it has not read yet.
2. An answer counts only if it arrived within `PROMPT_S` of its question. A later one is an old view: the server or this
   process stalled.
3. A process that sends anything is no longer suspected, and answers to earlier questions about it do not count.
4. When no answer about a suspect has counted for `unconfirmed_after_s`, callers that wait for it can be told that it is
   unreachable (`unconfirmed`). That does not make it lost.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from types import CodeType, FrameType
from typing import Any, Final, Generic, TypeVar

from ..schemas.errors.base import GanglineError
from .tasks import TaskSet

LOOK_S: Final = 0.1
"""Interval between two questions about one suspect."""
CONFIRM_S: Final = 0.25
PROMPT_S: Final = 1.0

K = TypeVar("K", bound=Hashable)


class _Suspicion:
    __slots__ = ("answered_at", "asked_at", "gone_at", "since", "why")

    def __init__(self, why: str, now: float) -> None:
        self.why = why
        self.asked_at = float("-inf")
        self.since = now
        self.answered_at = now
        """Time of the last answer that counted; initially, of the suspicion."""
        self.gone_at: float | None = None
        """Time of the first of the consecutive answers that it is gone."""


class FailureDetector(Generic[K]):
    """The suspects, and the ledger's answers about them.

    Args:
        unconfirmed_after_s: see law 4.
    """

    def __init__(self, unconfirmed_after_s: float) -> None:
        self._unconfirmed_after_s = unconfirmed_after_s
        self._suspicions: dict[K, _Suspicion] = {}

    def __len__(self) -> int:
        return len(self._suspicions)

    def __contains__(self, who: K) -> bool:
        return who in self._suspicions

    def __repr__(self) -> str:
        return f"FailureDetector(suspects={len(self)})"

    def suspect(self, who: K, why: str, now: float) -> bool:
        """It is silent. False if it is a suspect already. `why` is for people: `silent for 3 s`."""
        if who in self._suspicions:
            return False
        self._suspicions[who] = _Suspicion(why, now)
        return True

    def clear(self, who: K) -> None:
        """It was heard from, or is no longer of interest. Idempotent."""
        self._suspicions.pop(who, None)

    def clear_all(self) -> None:
        """The connection was lost, so nobody could be heard."""
        self._suspicions.clear()

    def due(self, now: float) -> K | None:
        """The suspect to ask the ledger about now: the one whose last question is the oldest, if that is long enough
        ago. Records the question."""
        if not self._suspicions:
            return None
        who = min(self._suspicions, key=lambda each: self._suspicions[each].asked_at)
        suspicion = self._suspicions[who]
        if now < suspicion.asked_at + LOOK_S:
            return None
        suspicion.asked_at = now
        return who

    def answered(self, who: K, *, asked_at: float, now: float, alive: bool) -> str | None:
        """The ledger has answered. If the suspect is now lost, returns why, and it is no longer a suspect."""
        suspicion = self._suspicions.get(who)
        if suspicion is None or now - asked_at > PROMPT_S or asked_at < suspicion.since:
            return None
        suspicion.answered_at = now
        if alive:
            suspicion.gone_at = None
        elif suspicion.gone_at is None:
            suspicion.gone_at = now
        elif asked_at - suspicion.gone_at >= CONFIRM_S:
            del self._suspicions[who]
            return f"{suspicion.why}, and its heartbeat has expired"
        return None

    def unconfirmed(self, now: float) -> list[K]:
        """Suspects without an answer from the ledger for that long."""
        limit = now - self._unconfirmed_after_s
        return [who for who, suspicion in self._suspicions.items() if suspicion.answered_at <= limit]


TICK_S: Final = 0.25
"""How often a running process records that it runs. Messages are checked more often; see FreezeDetector."""


class FreezeDetector:
    """Detects gaps in which this process did not run: it was stopped, swapped out, or something blocked its loop. What
    was true before a freeze may no longer be, and the senders of messages that piled up in the socket may have given
    up. Pure; time comes with every call.

    After a freeze asyncio runs the sockets before the timers, so check for a gap when a message arrives, not only by a
    timer.

    Args:
        after_s: a longer gap between two checks is a freeze.
    """

    __slots__ = ("_after_s", "gap_s", "last_at")

    def __init__(self, after_s: float, now: float) -> None:
        self._after_s = after_s
        self.last_at = now
        self.gap_s = 0.0
        """Time between the last two checks that ended a gap."""

    def tick(self, now: float) -> bool:
        """The timer's check: True after a freeze. Always ends the gap."""
        self.gap_s = now - self.last_at
        self.last_at = now
        return self.gap_s > self._after_s

    def frozen(self, now: float) -> bool:
        """A message's check, used where `stall_s` is needed, too: True once after a freeze. Ends no other gap."""
        return now - self.last_at > self._after_s and self.tick(now)

    def stall_s(self, now: float) -> float:
        """How long the loop may not have run, beyond the timer's own period. Messages may be older than they seem by
        this time, and their deadlines closer."""
        stall_s = now - self.last_at - TICK_S
        return stall_s if stall_s > 0.0 else 0.0

    def __repr__(self) -> str:
        return f"FreezeDetector(after_s={self._after_s:g})"


_LOOKS: Final = 4
"""How often it looks within the time after which a loop that stands still counts as blocked."""


class LoopWatch:
    """Sees from a thread of its own in whose code the event loop stands still. Create it on the loop's thread."""

    def __init__(self, blocked_after_s: float, named: Iterable[tuple[str, Callable[..., Any]]]) -> None:
        """
        Args:
            blocked_after_s: it looks who blocks the loop when there was no beat for this long.
            named: names of the users' functions, for the answer.
        """
        self._blocked_after_s = blocked_after_s
        self._names: dict[CodeType, str] = {}
        for name, function in named:
            code = getattr(inspect.unwrap(function), "__code__", None)
            if code is not None:
                self._names.setdefault(code, name)
        self._loops_thread = threading.get_ident()
        self._beat = time.monotonic()
        self._looked_after = 0.0
        self._found = ""
        self._over = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._watch, name="gangline-loop-watch", daemon=True).start()

    def stop(self) -> None:
        """Idempotent."""
        self._over.set()

    def beat(self) -> None:
        """The loop runs."""
        self._beat = time.monotonic()

    def take_found(self) -> str:
        """Where the loop stood when it was last blocked, such as `images.resize (resize.py:12 in scale)`; empty if it
        was in no code of a user. Each is told once."""
        found, self._found = self._found, ""
        return found

    def _watch(self) -> None:
        while not self._over.wait(self._blocked_after_s / _LOOKS):
            beat = self._beat
            if beat == self._looked_after or time.monotonic() - beat < self._blocked_after_s:
                continue
            self._looked_after = beat
            frame = sys._current_frames().get(self._loops_thread)
            if frame is not None:
                self._found = self._name(frame)

    def _name(self, innermost: FrameType) -> str:
        code = innermost.f_code
        at = f"{code.co_filename}:{innermost.f_lineno} in {code.co_name}"
        frame: FrameType | None = innermost
        while frame is not None:
            name = self._names.get(frame.f_code)
            if name is not None:
                return f"{name} ({at})"
            frame = frame.f_back
        return ""


class SuspectProber(Generic[K]):
    """A failure detector with the loop that asks its questions, one at a time: a ledger that does not answer need not
    be asked about every suspect. A question that takes too long continues beside the next one, but its answer does not
    count."""

    def __init__(
        self,
        tasks: TaskSet,
        *,
        ask: Callable[[K], Awaitable[bool]],
        on_lost: Callable[[K, str], None],
        on_failed: Callable[[K, GanglineError], None],
        unconfirmed_after_s: float,
    ) -> None:
        """
        Args:
            tasks: runs the loop; the owner ends it.
            ask: whether the ledger has its heartbeat.
            on_lost: called with the reason as well.
            on_failed: called when the ledger could not be asked; the question is repeated.
            unconfirmed_after_s: see FailureDetector.
        """
        self._tasks = tasks
        self._ask = ask
        self._on_lost = on_lost
        self._on_failed = on_failed
        self._detector: FailureDetector[K] = FailureDetector(unconfirmed_after_s)
        self._once: dict[K, None] = {}
        self._running = False
        self.clear = self._detector.clear
        self.clear_all = self._detector.clear_all
        self.unconfirmed = self._detector.unconfirmed

    def __repr__(self) -> str:
        return f"SuspectProber({self._detector!r}, once={len(self._once)})"

    def __len__(self) -> int:
        """Suspects."""
        return len(self._detector)

    def suspect(self, who: K, why: str) -> bool:
        """It is silent: ask until it is cleared or lost. False if it is a suspect already."""
        news = self._detector.suspect(who, why, asyncio.get_running_loop().time())
        self._run()
        return news

    def look_up(self, who: K) -> None:
        """Ask once, soon, even if it is not a suspect; `ask` decides what follows."""
        self._once[who] = None
        self._run()

    def _run(self) -> None:
        if not self._running:
            self._running = True
            self._tasks.start(self._go_on())

    async def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._once or self._detector:
                who = next(iter(self._once)) if self._once else self._detector.due(loop.time())
                if who is None:
                    await asyncio.sleep(LOOK_S)
                    continue
                self._once.pop(who, None)
                answered: asyncio.Future[None] = loop.create_future()
                self._tasks.start(self._question(who, answered))
                await asyncio.wait([answered], timeout=PROMPT_S)
        finally:
            self._running = False

    async def _question(self, who: K, answered: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        try:
            alive = await self._ask(who)
        except GanglineError as error:
            self._on_failed(who, error)
        else:
            why = self._detector.answered(who, asked_at=asked_at, now=loop.time(), alive=alive)
            if why is not None:
                self._on_lost(who, why)
        finally:
            answered.set_result(None)


T = TypeVar("T")


class TimeoutQueue(Generic[T]):
    """Calls `ring` once for each item, some time after `add`, unless the item is dropped first. Most are, so an item
    costs two dictionary operations and no timer.

    Items are added in about the order of their times. One that is out of order rings together with the items before it.
    """

    __slots__ = ("_due", "_loop", "_ring", "_timer")

    def __init__(self, ring: Callable[[T], None]) -> None:
        self._ring = ring
        self._due: dict[T, float] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def add(self, item: T, at: float) -> None:
        """Ring for it at that time of the running loop's clock, or soon after."""
        self._due[item] = at
        if self._timer is None:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._timer = self._loop.call_at(at, self._look)

    def __iter__(self) -> Iterator[T]:
        return iter(self._due)

    def drop(self, item: T) -> bool:
        """Do not ring for it; False if it was not there."""
        return self._due.pop(item, None) is not None

    def close(self) -> None:
        """Drop all items. Idempotent."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        loop = self._loop
        assert loop is not None
        now = loop.time()
        due: list[T] = []
        next_at: float | None = None
        for item, at in self._due.items():
            if at > now:
                next_at = at
                break
            due.append(item)
        for item in due:
            del self._due[item]
        if next_at is not None:
            self._timer = loop.call_at(next_at, self._look)
        for item in due:
            self._ring(item)

    def __repr__(self) -> str:
        return f"TimeoutQueue({len(self._due)})"
