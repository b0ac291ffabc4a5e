"""The life cycle of a service: it is started once and stopped once."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from types import TracebackType
from typing import Generic, Self, TypeVar

from ..schemas.errors.base import ClosedError, GanglineError

S = TypeVar("S", bound=StrEnum)


class Service(Generic[S]):
    """Base class of what a process serves. `start` and `stop` are idempotent, `stop` ends a start in progress, and a
    stopped service cannot be started again.

    A subclass implements `_start`, which ends in a serving state, and `_stop`. Its states are `new`, `starting`,
    `closed`, and others in between.
    """

    def __init__(self, what: str, states: type[S]) -> None:
        """`what`: for people, as in "this gateway was stopped"."""
        self._what = what
        self._states = states
        self.state = states("new")
        self._closed = asyncio.Event()
        self._failure: GanglineError | None = None
        """Why it stopped by itself."""
        self._starter: asyncio.Task[object] | None = None
        """The task that is starting it."""
        self._unwound = asyncio.Event()
        """The start has ended, successfully or not."""

    async def start(self) -> None:
        """Begin to serve; the class documents further errors. If cancelled, it undoes what it has done.

        Raises:
            ClosedError: it has been stopped.
        """
        if self.state == "closed":
            raise ClosedError(f"{self._what} was stopped: make a new one")
        if self.state != "new":
            return
        self.state = self._states("starting")
        starter = self._starter = asyncio.current_task()
        try:
            try:
                await self._start()
            finally:
                stopped, self._starter = self._starter is None, None
                self._unwound.set()
        except BaseException as error:
            await asyncio.shield(self._undo_start())
            if stopped and isinstance(error, asyncio.CancelledError) and starter is not None and not starter.uncancel():
                raise ClosedError(f"{self._what} was stopped while it started: make a new one") from error
            raise

    async def stop(self) -> None:
        """Stop. Returns when that is done, even if another caller has begun it."""
        if self.state == "closed":
            await self._closed.wait()
            return
        self.state = self._states("closed")
        starter, self._starter = self._starter, None
        try:
            if starter is not None and starter is not asyncio.current_task():
                starter.cancel()
                await self._unwound.wait()
            await self._stop()
        finally:
            self._closed.set()

    async def wait_closed(self) -> None:
        """Wait until it has stopped.

        Raises:
            GanglineError: the reason why it stopped by itself; the class documents which.
        """
        await self._closed.wait()
        if self._failure is not None:
            raise self._failure

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _start(self) -> None:
        raise NotImplementedError

    async def _stop(self) -> None:
        """Also called after a start that failed or was ended at any point."""
        raise NotImplementedError

    async def _undo_start(self) -> None:
        await self.stop()
