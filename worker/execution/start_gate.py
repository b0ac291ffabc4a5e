"""Tasks on seats of gangs that were admitted and may not begin yet.

Those of a call on all ranks take their slots first, and none begins before all have theirs. Others wait for their
member to begin, or for their worker to be told of their generation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ...schemas.errors.base import TaskCancelled

HOLD_S: Final = 2.0
"""How long the word is waited for. Whoever would give it may be gone, and the slots are wanted by others."""


class StartGate:
    """Keeps one task from beginning."""

    __slots__ = ("_member", "_timer", "ready")

    def __init__(
        self,
        task: str,
        cancel: Callable[[TaskCancelled], None],
        member: asyncio.Future[None] | None,
        loop: asyncio.AbstractEventLoop,
        *,
        hold: bool,
    ) -> None:
        """
        Args:
            task: its name, for people.
            cancel: ends it.
            member: done when the gang's member has begun, if it has not yet. May be that of many tasks.
            hold: until the word comes as well.
        """
        self._member = member
        self.ready: asyncio.Future[None] = loop.create_future()
        """Done when the task may begin; this task's own."""
        self._timer: asyncio.TimerHandle | None = None
        if hold:
            nobody = TaskCancelled(
                f"nobody said within {HOLD_S:g} s that {task} may begin: it did not start",
                may_have_started=False,
            )
            self._timer = loop.call_later(HOLD_S, cancel, nobody)
        else:
            self.open()

    def open(self) -> None:
        """The word has come, or none is needed. Idempotent."""
        self._silence()
        if self._member is None or self._member.done():
            self._pass(self._member)
        else:
            self._member.add_done_callback(self._pass)

    def drop(self) -> None:
        """The task was cancelled: it need not wait to be told so. Idempotent."""
        self._silence()
        self._pass(None)

    def _silence(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _pass(self, member: asyncio.Future[None] | None) -> None:
        if self.ready.done():
            return
        if member is not None and member.cancelled():
            self.ready.cancel()
        elif member is not None and (failure := member.exception()) is not None:
            self.ready.set_exception(failure)
        else:
            self.ready.set_result(None)
