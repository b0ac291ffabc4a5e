"""Ownership of one gang: renewals, events, and the generations they report."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from enum import StrEnum
from typing import Final, assert_never
from weakref import WeakSet

from ...bus.port.bus import Bus, ConnectionEvent, Message
from ...bus.port.subjects import Subscription
from ...runtime.tasks import LoopBound
from ...schemas.errors.base import ClosedError, GanglineError, GangNotFormed, Unavailable
from ...schemas.messages.gangs import AcquireRequest, GangEvent, GangReply, OwnedRequest
from ...schemas.names import GangOperation, Names
from .coordinator_client import CoordinatorClient, read_event
from .members import Formation, MemberChannelFactory, copier
from .owner_core import (
    ANSWER_S,
    Effect,
    GenerationFormed,
    GenerationLost,
    OwnerCore,
    OwnershipEnded,
    RanksLost,
    RenewOwnership,
)

_TRUST_S: Final = 1.0
"""How long after the deadline of an acquire a late answer may still be confirmed."""
_EVENTS_KEPT: Final = 10_000
"""Capacity of a listener's queue; the oldest events are dropped."""

EventQueue = asyncio.Queue[GangEvent | None]


class OwnedState(StrEnum):
    """State of a gang as its owner sees it."""

    FORMED = "formed"
    """Tasks can be sent to all ranks."""
    REPAIRING = "repairing"
    """Some ranks are lost and being replaced; the others continue (`restart_member`)."""
    RESTARTING = "restarting"
    """Its generation was torn down, and the next one is not formed yet."""
    UNCONFIRMED = "unconfirmed"
    """It could not be renewed in time and may have ended: nothing is sent until a renewal succeeds."""
    ENDED = "ended"
    """Released, or ended permanently."""


class GangOwner(LoopBound):
    """Keeps one gang alive and tracks its current generation. Begin with `acquire`, end with `release`, `abandon` or
    `stop`."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        request: AcquireRequest,
        *,
        coordinator_client: CoordinatorClient,
        lines: MemberChannelFactory,
    ) -> None:
        """`request` has the ids of the gang and its owner token."""
        self.on_released: Callable[[GangOwner], object] = _nothing
        """Called once when the gang has been released and nothing is left to do."""
        assert request.id is not None and request.owner_token is not None
        self.request = request
        self.id = request.id
        self.core = OwnerCore(request.id, request.ttl_s)
        self.formation: Formation | None = None
        """The newest generation received; it may be down."""
        self._bus = bus
        self._names = names
        self._coordinator = coordinator_client
        self._lines = lines
        self._owned = OwnedRequest(id=request.id, owner_token=request.owner_token)
        self.bind_loop()
        self._news = asyncio.Event()
        self._listeners: WeakSet[EventQueue] = WeakSet()
        self._subscription: Subscription | None = None
        self._unlisten: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._over: Callable[[], GanglineError] | None = None
        self._released: asyncio.Task[None] | None = None
        self._runs = itertools.count(1)
        self._asking: asyncio.Timeout | None = None
        """Ends the wait for the answer to the acquire once an event has made it redundant."""

    # -- life -----------------------------------------------------------------------------------------------------

    async def acquire(self, deadline: float | None, patience_s: float) -> None:
        """Wait until the gang is formed. If this is interrupted, the gang is released."""
        try:
            self._subscription = await self._bus.subscribe(self._names.gang_event(self.id), self._on_event)
            self._unlisten = self._bus.on_connection(self._on_connection)
            await self._first(deadline, patience_s)
            if self.core.over is not None:
                raise self.core.over
        except BaseException:
            self._coordinator.release_unheard(self._owned)
            await self.stop(ClosedError(f"gang {self.id} was not acquired"))
            raise

    async def _first(self, deadline: float | None, patience_s: float) -> None:
        """Wait for the answer, or for the event that replaces it: the answer may be lost with the leader."""
        try:
            async with asyncio.timeout(None) as self._asking:
                await self._asked(deadline, patience_s)
        except TimeoutError:
            pass  # an event came first
        finally:
            self._asking = None
        if self.formation is not None or self.core.over is not None:
            return
        # Formed, but torn down before this could be confirmed: use the next generation.
        try:
            async with asyncio.timeout_at(deadline):
                await self.formed()
        except TimeoutError:
            text = f"gang {self.id} was formed and torn down, and not formed again by its deadline"
            raise GangNotFormed(text) from None

    async def _asked(self, deadline: float | None, patience_s: float) -> None:
        reply, asked_at = await self._coordinator.acquire(self.request, deadline, patience_s)
        if self.loop.time() - asked_at > self.core.ttl_s / 6:
            # It may have been formed long before this answer came: renew, so that trust is measured from a known time.
            reply, asked_at = await self._trust(deadline, patience_s)
        self._asking = None
        self._carry_out(self.core.answered(reply, asked_at, self.loop.time()))

    async def _trust(self, deadline: float | None, patience_s: float) -> tuple[GangReply, float]:
        """Renew the gang before it is used. If the caller's deadline has passed, this waits only a little longer."""
        now = self.loop.time()
        limit = now + min(patience_s, self.core.ttl_s)
        if deadline is not None:
            limit = min(limit, max(deadline, now) + _TRUST_S)
        while True:
            asked_at = self.loop.time()
            try:
                renewed = await self._coordinator.ask(GangOperation.RENEW, self._owned, max(0.1, limit - asked_at))
                return renewed, asked_at
            except Unavailable:
                if self.loop.time() + 0.2 > limit:
                    raise
                await asyncio.sleep(0.2)

    def release(self) -> asyncio.Task[None]:
        """Release the gang; the task ends when its members have stopped. Idempotent, never fails."""
        if self._released is None:
            wanted = self.core.over is None
            self._carry_out(self.core.close(ClosedError(f"gang {self.id} was released")))
            self._released = self.loop.create_task(self._give_back(wanted), name=f"gangline-release-{self.id}")
        return self._released

    async def _give_back(self, wanted: bool) -> None:
        if wanted:
            await self._coordinator.release(self._owned, self.request.grace_s)
        await self.stop()
        self.on_released(self)

    async def abandon(self, error: GanglineError) -> None:
        """Release the gang without waiting for its members (the router stops); calls in progress end with the error.
        Idempotent."""
        releasing = self._released
        if releasing is not None and not releasing.done():
            # The release may not have been sent yet; the coordinator accepts it twice.
            releasing.cancel()
            await asyncio.wait([releasing])
            self._coordinator.release_unheard(self._owned)
        elif releasing is None and self.core.over is None:
            self._coordinator.release_unheard(self._owned)
        await self.stop(error)

    async def stop(self, error: GanglineError | None = None) -> None:
        """Stop listening and renewing. Idempotent."""
        self._carry_out(self.core.close(error or ClosedError(f"gang {self.id} was released")))
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        if self._renewal is not None:
            self._renewal.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewal
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()

    # -- generations ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that tasks may be sent to members now.

        Raises:
            LeaseExpired: not renewed in time.
            GangEnded, GangFailed, ClosedError: it has ended.
        """
        self.check_loop()
        if self._over is not None:
            raise self._over()
        trouble = self.core.trouble(self.loop.time())
        if trouble is not None:
            raise trouble

    @property
    def state(self) -> OwnedState:
        if self._over is not None:
            return OwnedState.ENDED
        if self.formation is None or self.formation.down is not None:
            return OwnedState.RESTARTING
        if self.core.trouble(self.loop.time()) is not None:
            return OwnedState.UNCONFIRMED
        return OwnedState.REPAIRING if self.formation.lost else OwnedState.FORMED

    async def formed(self, rank: int | None = None) -> Formation:
        """The current generation; waits for the next one while it is down or has lost ranks (or has lost `rank`).

        Raises:
            GangEnded, GangFailed, ClosedError: there will be none.
        """
        self.check_loop()
        while True:
            if self._over is not None:
                raise self._over()
            if self.formation is not None and self.formation.fate(rank) is None:
                return self.formation
            self._news.clear()
            await self._news.wait()

    async def ready(self) -> Formation:
        """The current generation, once all its members have started.

        Raises:
            GangEnded, GangFailed, ClosedError: there will be none.
        """
        while True:
            formation = await self.formed()
            if self.core.ready >= formation.generation:
                return formation
            self._news.clear()
            await self._news.wait()

    def next_run(self) -> int:
        """A number for one run on all ranks, unlike that of any other run of this owner. A task of one generation may
        reach a member that is already in the next one, where it must not meet the tasks of another run."""
        return next(self._runs)

    def listen(self) -> EventQueue:
        """A queue of events from now on; None marks the end. To unsubscribe, drop the reference."""
        self.check_loop()
        queue: EventQueue = asyncio.Queue(_EVENTS_KEPT)
        if self._over is not None:
            queue.put_nowait(None)
        self._listeners.add(queue)
        return queue

    def suspect(self) -> None:
        """A member seems to be lost: renew now instead of when it is due."""
        self._carry_out(self.core.tick(self.loop.time()))

    # -- inside ---------------------------------------------------------------------------------------------------

    def _on_event(self, message: Message) -> None:
        event = read_event(message)
        if event is None:
            return
        self._pass_on(event)
        ready = self.core.ready
        self._carry_out(self.core.told(event, self.loop.time()))
        if self.core.ready > ready:
            self._news.set()

    def _pass_on(self, event: GangEvent | None) -> None:
        if self._listeners:  # walking over an empty WeakSet takes longer than asking
            for queue in self._listeners:
                _put(queue, event)

    def _on_connection(self, event: ConnectionEvent) -> None:
        if event is ConnectionEvent.RECONNECTED and self.formation is not None:
            self.suspect()  # events may have been missed

    def _on_timer(self) -> None:
        self._timer = None
        self._carry_out(self.core.tick(self.loop.time()))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case GenerationFormed():
                    self._came(effect)
                case GenerationLost():
                    if self.formation is not None:
                        self.formation.end(effect.error)
                case RanksLost():
                    if self.formation is not None:
                        self.formation.lose(effect.ranks, effect.error)
                case OwnershipEnded():
                    self._over = copier(effect.error)
                    self._tell()
                    self._pass_on(None)
                case RenewOwnership():
                    self._renew()
                case _:
                    assert_never(effect)
        self._arm()

    def _came(self, came: GenerationFormed) -> None:
        before, reply = self.formation, came.reply
        self.formation = Formation(
            reply.id,
            reply.generation,
            reply.seats,
            self._lines.lines(reply.id, reply.seats, before),
            fence=reply.fence,
            rendezvous=reply.rendezvous,
        )
        if before is not None and came.instead is not None:
            before.end(came.instead, {seat.token for seat in reply.seats})
        self._tell()

    def _tell(self) -> None:
        """Wake everything that waits for news of the gang."""
        self._news.set()
        asking, self._asking = self._asking, None
        if asking is not None:
            # The answer with the error follows shortly and says more than the event.
            asking.reschedule(self.loop.time() + (0.0 if self._over is None else ANSWER_S))

    def _renew(self) -> None:
        if self._renewal is None:
            self._renewal = self.loop.create_task(self._ask(), name=f"gangline-renew-{self.id}")

    async def _ask(self) -> None:
        asked_at = self.loop.time()
        timeout_s = max(0.25, self.core.ttl_s / 4)
        effects: list[Effect] = []
        ready = self.core.ready
        try:
            reply = await self._coordinator.ask(GangOperation.RENEW, self._owned, timeout_s)
            effects = self.core.answered(reply, asked_at, self.loop.time())
        except GanglineError as error:
            effects = self.core.refused(error, self.loop.time())
        finally:
            self._renewal = None
        self._carry_out(effects)
        if self.core.ready > ready:
            self._news.set()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at = self.core.renew_at
        if at is not None:
            self._timer = self.loop.call_at(at, self._on_timer)


def _put(queue: EventQueue, event: GangEvent | None) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(event)


def _nothing(_: GangOwner) -> None:
    """Does nothing."""
