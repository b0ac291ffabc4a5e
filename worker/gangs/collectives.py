"""Barrier, broadcast and all-gather for the members of a gang, over a bus."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Literal

from ...bus.port.bus import Bus, ConnectionEvent, Message
from ...bus.port.subjects import Subscription
from ...runtime.tasks import TaskSet
from ...schemas.errors.base import ClosedError, GanglineError, InvalidRequest
from ...schemas.names import Names
from ...schemas.wire import codec
from .collectives_core import (
    HUB,
    TO_HUBS_SESSION,
    Chunks,
    Collective,
    CollectivesCore,
    PeerMessage,
    Send,
    answer_of_ended,
)
from .rank_timer import RankTimer
from .shared_run import SharedRun, SharedRuns, message_in

LINGER_S: Final = 30.0
"""How long a session continues after its task ended: others may still ask for the last result."""
_ENDED_RUNS: Final = 1000
"""How many runs of a member are remembered after their end."""
_HEADER_BYTES: Final = 1024
"""Room in a message for everything but the value."""
_PART_MAX_BYTES: Final = 128 * 1024
"""A small part of what may be on the way: the rest goes on when the first has arrived."""


class CollectiveSession:
    """One member's end of the session of one run.

    All members must make the same calls in the same order, one at a time; each call returns when all members have made
    it. Values are what tasks take and return (see schemas.wire.codec), of at most 4 MiB each, and 64 MiB in total for
    an all-gather. Cancelling a call leaves the others waiting; the same call again resumes it.
    """

    def __init__(
        self,
        bus: Bus,
        names: Names,
        shared: SharedRuns,
        *,
        gang: str,
        generation: int,
        run: int,
        rank: int,
        size: int,
        listen: Callable[[], Awaitable[None]],
        timer: RankTimer | None = None,
    ) -> None:
        """Nothing is subscribed before the first call. `listen`: subscribes this member's own subject; its messages
        come to `take`. `shared`: that of this worker. `timer`: measures how long this rank waits for the others."""
        self._listen = listen
        self.gang = gang
        self.generation = generation
        self.run = run
        self._timed = timer
        self._bus = bus
        self._names = names
        part_bytes = max(1, min(_PART_MAX_BYTES, bus.max_payload - _HEADER_BYTES))
        self._core = CollectivesCore(rank=rank, size=size, part_bytes=part_bytes)
        self._shared = shared
        self._here: SharedRun | None = None
        self._to_hubs_session: Subscription | None = None
        self._unlisten: Callable[[], None] | None = None
        self._opening = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._error: GanglineError | None = None

    @property
    def rank(self) -> int:
        return self._core.rank

    @property
    def size(self) -> int:
        """The world size."""
        return self._core.size

    async def barrier(self) -> None:
        """Wait until every member has called this.

        Raises:
            GangEnded, StaleGeneration: the gang was torn down or has restarted; at once.
            InvalidRequest: the members made different calls.
        """
        await self._run(Collective.BARRIER, HUB, b"")

    async def broadcast(self, value: Any = None, root: int = 0) -> Any:
        """The value of rank `root`, at every member; the values of the others are ignored.

        Raises:
            PayloadTooLarge, InvalidRequest: the value cannot be sent, or the members made different calls.
            GangEnded, StaleGeneration: the gang was torn down or has restarted; at once.
        """
        data = codec.pack(value) if root == self.rank else b""
        [value] = self._unpacked(await self._run(Collective.BROADCAST, root, data))
        return value

    async def all_gather(self, value: Any) -> list[Any]:
        """The values of all members, by rank.

        Raises:
            PayloadTooLarge, InvalidRequest: the value cannot be sent, or the members made different calls.
            GangEnded, StaleGeneration: the gang was torn down or has restarted; at once.
        """
        return self._unpacked(await self._run(Collective.ALL_GATHER, HUB, codec.pack(value)))

    def leave(self, how: str) -> None:
        """The task has ended (`how`: a verb). The others need not wait for its next call."""
        self._send(self._core.leave(how))
        self._settle()

    @property
    def calls(self) -> int:
        """How many calls were begun here."""
        return self._core.number

    def end(self, error: GanglineError) -> None:
        """End the session: waiting and later calls raise the error. Idempotent."""
        if self._error is None:
            self._error = error
            self._settle()

    async def close(self) -> None:
        """Stop listening. Idempotent; ends the session with ClosedError if it has not ended."""
        self.end(ClosedError("this session was closed"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        here, self._here = self._here, None
        subscription, self._to_hubs_session = self._to_hubs_session, None
        if here is not None:
            await here.leave(self._hear)
        if subscription is not None:
            await subscription.unsubscribe()

    def __repr__(self) -> str:
        where = f"{self.gang}/{self.generation}, run {self.run}, rank {self.rank} of {self.size}"
        return f"CollectiveSession({where}, {self._core.number} calls)"

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _run(self, kind: Collective, root: int, value: bytes) -> list[Chunks]:
        if self._waiter is not None:
            raise InvalidRequest("a member makes one collective call at a time: another one waits in this run")
        core, loop = self._core, asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        try:
            await self._open()
            self._check()
            began = loop.time()
            self._send(core.begin(kind, root, value, began))
            self._settle()
            if self._timed is not None:
                self._timed.waits(self.run, 1, began)
            try:
                await waiter
            finally:
                if self._timed is not None:
                    self._timed.waits(self.run, -1, loop.time())
            self._check()
            result = core.result()
            if self._timed is not None:
                self._timed.waited(loop.time() - began)
            return result
        finally:
            self._waiter = None

    def _unpacked(self, results: list[Chunks]) -> list[Any]:
        if self._here is None:
            return [codec.unpack(result.join()) for result in results]
        return self._here.unpacked(self._core.number, results)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._core.failure is not None:
            raise InvalidRequest(self._core.failure)

    async def _open(self) -> None:
        if self.size == 1:
            return
        async with self._opening:
            if self._unlisten is None and self._error is None:
                self._unlisten = self._bus.on_connection(self._on_connection)
            # One by one, so that a call that was cancelled here resumes where it was.
            await self._listen()
            if self._here is None:
                self._here = self._shared.of(self.gang, self.generation, self.run)
            await self._here.join(self._hear, self.rank)
            if self.rank == HUB and self._to_hubs_session is None:
                subject = self._names.gang_talk(self.gang, self.generation, self.run, TO_HUBS_SESSION)
                self._to_hubs_session = await self._bus.subscribe(subject, self.take)
            if self._error is not None:  # ended meanwhile
                await self.close()

    def take(self, message: Message) -> None:
        """A message of this run has arrived."""
        self._hear(message_in(message.data))

    def _hear(self, message: object) -> None:
        self._send(self._core.receive(message, asyncio.get_running_loop().time()))
        self._settle()

    def _on_connection(self, event: ConnectionEvent) -> None:
        if event is ConnectionEvent.RECONNECTED:
            self._send(self._core.tick(asyncio.get_running_loop().time(), at_once=True))

    def _on_timer(self) -> None:
        self._timer = None
        self._send(self._core.tick(asyncio.get_running_loop().time()))
        self._settle()

    def _settle(self) -> None:
        """After any event: wake the waiting call if it is over, and set the timer for the next `tick`."""
        core = self._core
        over = self._error is not None or core.failure is not None or not core.waiting
        if over and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        wake_at = core.wake_at if self._error is None else None
        if self._timer is not None:
            if wake_at is not None and self._wakes_at <= wake_at:
                return  # when it is over, it is set again: cheaper than once a message
            self._timer.cancel()
            self._timer = None
        if wake_at is not None:
            self._timer = asyncio.get_running_loop().call_at(wake_at, self._on_timer)
            self._wakes_at = wake_at

    def _send(self, sends: list[Send]) -> None:
        if self.size > 1 and self._error is None:
            for to, message in sends:
                self._shared.send(self._names.gang_talk(self.gang, self.generation, self.run, to), message)


class CollectiveSessions:
    """The sessions of one member of one generation, one for each run."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        shared: SharedRuns,
        *,
        gang: str,
        generation: int,
        rank: int,
        size: int,
        timer: RankTimer | None = None,
    ) -> None:
        """`shared`, `timer`: as for CollectiveSession."""
        self._make = partial(
            CollectiveSession,
            bus,
            names,
            shared,
            gang=gang,
            generation=generation,
            rank=rank,
            size=size,
            listen=self._listen,
            timer=timer,
        )
        self._bus = bus
        self._shared = shared
        self._subject = partial(names.gang_talk, gang, generation)
        self._rank = rank
        self._size = size
        self._listening: Subscription | None = None
        self._opening = asyncio.Lock()
        self._ended: dict[int, tuple[int, str]] = {}
        """By run, latest last: how many calls the task had made when it ended, and how it ended."""
        self._talks: dict[int, CollectiveSession] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._closing = TaskSet("end of a session")
        self._error: GanglineError | None = None

    def session(self, run: int = 0) -> CollectiveSession:
        """The session of a run; the same one for the same number. 0 is for tasks that belong to no run."""
        talk = self._talks.get(run)
        if talk is None:
            talk = self._talks[run] = self._make(run=run)
            if self._error is not None:
                talk.end(self._error)
        return talk

    def task_ended(self, run: int, how: str = "returned") -> None:
        """This member's task of the run is over (`how`: a verb). Its session ends a while later; that of run 0 stays.

        Those who wait for its next call learn that it does not come: at once if they listen, else when they ask.
        """
        if not run or self._size == 1 or self._error is not None:
            return
        talk = self._talks.get(run)
        self._ended[run] = (0 if talk is None else talk.calls, how)
        if len(self._ended) > _ENDED_RUNS:
            del self._ended[next(iter(self._ended))]
        if talk is not None:
            talk.leave(how)
            if run not in self._timers:
                self._timers[run] = asyncio.get_running_loop().call_later(LINGER_S, self._forget, run)
            return
        if self._listening is None:
            self._closing.start(self._listen_if_possible())
        to: Literal["left"] | None = None if self._rank == HUB else TO_HUBS_SESSION
        self._publish(run, [Send(to, (PeerMessage.LEFT, 0, self._rank, how))])

    def end(self, error: GanglineError) -> None:
        """The generation is over: every call, waiting or to come, raises the error. Idempotent, never waits."""
        if self._error is None:
            self._error = error
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()
            for run, talk in list(self._talks.items()):
                talk.end(error)
                self._forget(run, keep=True)
            if self._listening is not None:
                self._closing.start(self._deafen())

    async def close(self) -> None:
        """End, and wait until all subscriptions have ended. Idempotent."""
        self.end(ClosedError("this member has stopped"))
        await self._closing.rest()

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Hear what is sent to this member, of all runs."""
        async with self._opening:
            if self._listening is None and self._error is None:
                self._listening = await self._bus.subscribe(self._subject("*", self._rank), self._take)
        if self._error is not None:  # ended meanwhile
            await self._deafen()

    async def _listen_if_possible(self) -> None:
        try:
            await self._listen()
        except GanglineError:
            pass  # the next task that ends tries again; until then, who asks is told nothing

    async def _deafen(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            await listening.unsubscribe()

    def _take(self, message: Message) -> None:
        run = int(message.subject.split(".")[-2])
        talk = self._talks.get(run)
        if talk is not None:
            talk.take(message)
        elif run in self._ended:
            self._publish(run, answer_of_ended(message_in(message.data), self._rank, *self._ended[run]))

    def _publish(self, run: int, sends: list[Send]) -> None:
        for to, message in sends:
            self._shared.send(self._subject(run, to), message)

    def __repr__(self) -> str:
        return f"CollectiveSessions({sorted(self._talks)})"

    def _forget(self, run: int, *, keep: bool = False) -> None:
        self._timers.pop(run, None)
        talk = self._talks[run] if keep else self._talks.pop(run)
        self._closing.start(talk.close())
