"""Asks the ledger about those who have fallen silent, until each of them is heard of again or lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic

from ..schemas.errors.base import GanglineError
from .failure_detector import LOOK_S, PROMPT_S, FailureDetector, K
from .tasks import TaskSet


class SuspectProber(Generic[K]):
    """A failure detector, and the loop that asks for it. One question at a time: a ledger that does not answer need not
    be asked about everybody. A question that takes too long goes on beside the next; its answer does not count."""

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
            on_lost: told why, too.
            on_failed: the ledger could not be asked; it is asked again.
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
        """Nothing is heard of it: ask until it is cleared, or lost. False if that was known."""
        news = self._detector.suspect(who, why, asyncio.get_running_loop().time())
        self._run()
        return news

    def look_up(self, who: K) -> None:
        """Ask once, soon, whether it is suspected or not; `ask` says what follows."""
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
