"""Gangs for code without an event loop: the same names, plain functions."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from ...runtime.loop_thread import LoopThread, SyncContext, iterate
from ...schemas.errors.base import GanglineError
from ...schemas.messages.gangs import GangEvent
from ...schemas.records.gangs import HostPort
from ..gangs.gang import Gang, Ganging
from ..gangs.members import GangMember
from ..gangs.owner import OwnedState


class SyncGang:
    """See gang.Gang; the same attributes and methods."""

    def __init__(self, thread: LoopThread, gang: Gang) -> None:
        self._thread = thread
        self._gang = gang

    @property
    def id(self) -> str:
        return self._gang.id

    @property
    def generation(self) -> int:
        """Of the newest members; grows with each restart."""
        return self._gang.generation

    @property
    def size(self) -> int:
        """The number of ranks: the world size."""
        return self._gang.size

    @property
    def members(self) -> tuple[GangMember, ...]:
        """By rank."""
        return self._gang.members

    @property
    def rendezvous(self) -> HostPort | None:
        """Host and port at rank 0's worker, for the tasks to meet at; free when the gang was formed."""
        return self._gang.rendezvous

    @property
    def fence(self) -> int:
        """A number that grows over the whole system with each generation, for resources that refuse zombies."""
        return self._gang.fence

    @property
    def restarts(self) -> int:
        """See Gang.restarts."""
        return self._gang.restarts

    @property
    def failures(self) -> int:
        """See Gang.failures."""
        return self._gang.failures

    @property
    def state(self) -> OwnedState:
        """See Gang.state."""

        async def ask() -> OwnedState:
            return self._gang.state

        return self._thread.run(ask())

    @property
    def lost_ranks(self) -> tuple[int, ...]:
        """See Gang.lost_ranks."""
        return self._gang.lost_ranks

    @property
    def lost(self) -> GanglineError | None:
        """Why nothing can be sent now; None while it can."""

        async def ask() -> GanglineError | None:
            return self._gang.lost

        return self._thread.run(ask())

    def options(
        self,
        *,
        timeout_s: float | None = None,
        idempotent: bool | None = None,
        retries: int | None = None,
        partial: bool | None = None,
    ) -> SyncGang:
        """See Gang.options."""
        bound = self._gang.options(timeout_s=timeout_s, idempotent=idempotent, retries=retries, partial=partial)
        return SyncGang(self._thread, bound)

    def run(self, method: str, /, *args: Any, **kwargs: Any) -> list[Any]:
        """See Gang.run."""
        return self._thread.run(self._gang.run(method, *args, **kwargs))

    def run_each(self, method: str, arguments: Sequence[Any] | Callable[[int], Sequence[Any]], /) -> list[Any]:
        """See Gang.run_each."""
        return self._thread.run(self._gang.run_each(method, arguments))

    def call(self, rank: int, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """See Gang.call."""
        return self._thread.run(self._gang.call(rank, method, *args, **kwargs))

    def stream(self, rank: int, method: str, /, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
        """See Gang.stream."""
        return iterate(self._thread, self._gang.stream(rank, method, *args, **kwargs))

    def wait_formed(self) -> int:
        """See Gang.wait_formed."""
        return self._thread.run(self._gang.wait_formed())

    def ready(self) -> int:
        """See Gang.ready."""
        return self._thread.run(self._gang.ready())

    def events(self) -> Generator[GangEvent, None, None]:
        """See Gang.events. Blocks between events."""

        async def listen() -> Any:
            return self._gang.events()

        return iterate(self._thread, self._thread.run(listen()))

    def release(self) -> None:
        """See Gang.release."""
        self._thread.run(self._gang.release())

    def __repr__(self) -> str:
        return f"Sync{self._gang!r}"


class SyncGanging(SyncContext[SyncGang]):
    """See gang.Ganging."""

    def __init__(self, thread: LoopThread, ganging: Ganging) -> None:
        super().__init__(thread, ganging, lambda gang: SyncGang(thread, gang))
