"""What a member of a gang knows of its gang: `gangline.current_task().gang`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from ...schemas.messages.gangs import FormRequest
from ...schemas.records.gangs import HostPort
from .task_context import TaskContext, wait_in_thread

R = TypeVar("R")


class Collectives(Protocol):
    """Collective calls of the members in one run; see worker.gangs.collectives. Only for the worker's event loop."""

    async def barrier(self) -> None: ...

    async def broadcast(self, value: Any = None, root: int = 0) -> Any: ...

    async def all_gather(self, value: Any) -> list[Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPeer:
    """One member, as all of them see it."""

    rank: int
    pool: str
    worker: str
    """`<pool>.<worker>`, as operators name it."""
    slots: int = 1
    node: str = ""
    zone: str = ""
    address: str = ""
    """Where its worker says that it can be reached: host, or host:port."""
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GangInfo:
    """The plain facts of a GangContext; what child processes are given."""

    id: str
    generation: int
    rank: int
    members: tuple[GangPeer, ...]
    rendezvous: HostPort | None
    fence: int
    owner: str = ""
    run: int = 0


@dataclass(slots=True, kw_only=True)
class GangBinding:
    """How a context reaches its gang. `talk` and `latest` are called on `loop`; `fail` in any thread."""

    loop: asyncio.AbstractEventLoop
    talk: Callable[[GangInfo], Collectives]
    fail: Callable[[str], None]
    latest: Callable[[], GangInfo | None]


class GangContext:
    """A gang as one of its members sees it, at the generation in which its task (or hook) began.

    Attributes:
        id: the gang.
        generation: grows with each restart, and with each replaced member.
        rank: of this member, from 0.
        members: all of them, by rank.
        rendezvous: `(host, port)` where rank 0 may listen and the others can find it. The port was free when the gang
            was made; None if rank 0's worker gave none.
        fence: grows over the whole system with each generation: hand it to resources that shall refuse zombies.
        owner: who asked for the gang, for people.
        run: numbers the owner's calls in this generation; 0 in hooks and for what belongs to none.
    """

    __slots__ = (
        "_facts",
        "_link",
        "_task",
        "fence",
        "generation",
        "id",
        "members",
        "owner",
        "rank",
        "rendezvous",
        "run",
    )

    def __init__(self, facts: GangInfo) -> None:
        self._facts = facts
        self._link: GangBinding | None = None
        self._task: TaskContext | None = None
        self.id = facts.id
        self.generation = facts.generation
        self.rank = facts.rank
        self.members = facts.members
        self.rendezvous = facts.rendezvous
        self.fence = facts.fence
        self.owner = facts.owner
        self.run = facts.run

    @property
    def world_size(self) -> int:
        """How many members the gang has."""
        return len(self.members)

    @property
    def me(self) -> GangPeer:
        """This member."""
        return self.members[self.rank]

    # -- together with the others ---------------------------------------------------------------------------------

    async def barrier(self) -> None:
        """Wait until every member is here. All members must make the same collective calls in the same order.

        Raises:
            GangEnded: the gang was torn down.
            StaleGeneration: members were replaced since this task began; see `latest`.
            InvalidRequest: the members made different calls.
            LookupError: this context is not that of a running task.
        """
        await self._together(lambda talk: talk.barrier())

    async def broadcast(self, value: Any = None, root: int = 0) -> Any:
        """Give every member the value that the member of rank `root` passed; for small values. Raises as `barrier`."""
        return await self._together(lambda talk: talk.broadcast(value, root))

    async def all_gather(self, value: Any) -> list[Any]:
        """Give every member the values of all, by rank; for small values. Raises as `barrier`."""
        return await self._together(lambda talk: talk.all_gather(value))

    def barrier_blocking(self) -> None:
        """`barrier` for code that runs in a thread or a child process, as plain `def` tasks do."""
        self._blocking(lambda talk: talk.barrier())

    def broadcast_blocking(self, value: Any = None, root: int = 0) -> Any:
        """`broadcast` for code that runs in a thread."""
        return self._blocking(lambda talk: talk.broadcast(value, root))

    def all_gather_blocking(self, value: Any) -> list[Any]:
        """`all_gather` for code that runs in a thread."""
        return self._blocking(lambda talk: talk.all_gather(value))

    # -- the gang itself ------------------------------------------------------------------------------------------

    def fail(self, reason: str) -> None:
        """Declare this member failed: its gang restarts, or ends, as its policy says. From any thread; returns at once.

        A task that merely raises fails its own call, which is its owner's business, and not the member.
        """
        self._need().fail(reason)

    @property
    def latest(self) -> GangContext:
        """The gang as it is now: another object when members were replaced since (`restart_member`).

        Raises:
            LookupError: this member is no longer part of it.
        """
        facts = self._need().latest()
        if facts is None:
            raise LookupError(f"rank {self.rank} of gang {self.id} has ended")
        if facts.generation == self.generation:
            return self
        later = GangContext(facts)
        later._link, later._task = self._link, self._task
        return later

    def _need(self) -> GangBinding:
        if self._link is None:
            raise LookupError("this context was not made by a running worker, so it reaches no gang")
        return self._link

    async def _together(self, call: Callable[[Collectives], Coroutine[Any, Any, R]]) -> R:
        link = self._need()
        if asyncio.get_running_loop() is link.loop:
            return await call(link.talk(self._facts))
        # An `async def` task in a thread has a loop of its own there.
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._there(call), link.loop))

    def _blocking(self, call: Callable[[Collectives], Coroutine[Any, Any, R]]) -> R:
        link = self._need()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise RuntimeError("this would block an event loop: use the call without _blocking, and await it")
        if self._task is None:
            raise LookupError("this context is not that of a running task")
        if not link.loop.is_running():  # a child process runs plain functions between turns of its loop
            return link.loop.run_until_complete(self._there(call))
        return wait_in_thread(self._task, asyncio.run_coroutine_threadsafe(self._there(call), link.loop))

    async def _there(self, call: Callable[[Collectives], Coroutine[Any, Any, R]]) -> R:
        return await call(self._need().talk(self._facts))

    def __reduce__(self) -> tuple[type[GangContext], tuple[GangInfo]]:
        return GangContext, (self._facts,)

    def __repr__(self) -> str:
        return f"GangContext({self.id!r}, generation={self.generation}, rank={self.rank} of {self.world_size})"


# What the worker does to a context, kept off the class that tasks see.
# pyright: reportPrivateUsage=false


def link(context: GangContext, to: GangBinding, task: TaskContext | None = None) -> None:
    """Connect it to the worker's side."""
    context._link = to
    context._task = task


def facts_of(form: FormRequest, rank: int, run: int = 0) -> GangInfo:
    """The facts of one rank of a formed gang."""
    first = {seat.rank: seat for seat in form.seats if seat.part == 0}
    return GangInfo(
        id=form.gang,
        generation=form.generation,
        rank=rank,
        members=tuple(
            GangPeer(
                rank=seat.rank,
                pool=seat.pool,
                worker=f"{seat.pool}.{seat.worker}",
                slots=seat.slots,
                node=seat.node,
                zone=seat.zone,
                address=seat.address,
                labels=dict(seat.labels),
            )
            for _, seat in sorted(first.items())
        ),
        rendezvous=form.rendezvous.plain if form.rendezvous is not None else None,
        fence=form.fence,
        owner=form.owner,
        run=run,
    )
