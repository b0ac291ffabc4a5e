"""Shares the queues among dispatchers: lists consumers, pings their owners, and takes the queues that the core
chooses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal

from pydantic import ValidationError

from ....bus.port.bus import ConnectionEvent, ConsumerState, Message, NoResponders
from ....bus.port.subjects import Subscription
from ....runtime.clock import Environment
from ....runtime.tasks import TaskSet, set_within
from ....schemas.errors.base import GanglineError, Unavailable
from ....schemas.names import DispatcherOperation
from ....schemas.records.jobs import DispatcherEvent
from ..workers.context import DispatcherContext
from .ownership_core import GiveUp, Holding, OwnershipCore, PingPeer, Take

LIST_S: Final = 1.0
_SPREAD_S: Final = 0.02
_AT_ONCE: Final = 32
"""Number of free queues taken at the same time. A thousand at once (one producer with wrong endpoint names is enough)
would keep storage so busy that none is taken in time and tasks of other queues wait."""
_PREFIX: Final = "q-"
_NAME_CHARS: Final = 100
DISPATCHER: Final = "gangline-dispatcher"
"""Metadata of our consumers: the owner's id."""
PRIVATELY: Final = "gangline-private"
"""Metadata: its owner answers on a private subject, which earlier versions do not have."""


def consumer_name(endpoint: str, ambient: Environment) -> str:
    """A new name."""
    return f"{_PREFIX}{endpoint[:_NAME_CHARS]}-{ambient.token()[:12]}"


class OwnershipManager:
    """Decides for one dispatcher which queues to take."""

    def __init__(
        self,
        context: DispatcherContext,
        *,
        take: Callable[[Take], Awaitable[str | None]],
        give_up: Callable[[int], None],
    ) -> None:
        """
        Args:
            take: takes a queue; returns the name of our consumer, or None.
            give_up: hands over this many queues.
        """
        self._bus, self._names, self._settings = context.bus, context.names, context.settings
        self._guard, self._log = context.guard, context.log
        self._context = context
        self._take = take
        self._give_up = give_up
        self._prefix = self._names.tasks[: -len(">")]
        self._core = OwnershipCore(
            context.dispatcher,
            ping_s=self._settings.ping_s,
            frozen_after_s=self._settings.frozen_after_s,
            spread_s=_SPREAD_S,
        )
        self._wake = asyncio.Event()
        self._background = TaskSet("ownership")
        self._subscription: Subscription | None = None
        self._undo: list[Callable[[], None]] = []
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._warned: frozenset[str] = frozenset()
        self._public: frozenset[str] = frozenset()
        """Owners that have no private subject."""

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start to look for queues; `found` gives the endpoints."""
        self._core.start(self._now)
        self._undo = [self._bus.on_connection(self._on_connection), self._guard.on_doubt(self._on_doubt)]
        self._subscription = await self._bus.subscribe(self._names.dispatcher_events, self._on_event)
        self._background.start(self._go_on())

    async def stop(self) -> None:
        """Take no more queues, and keep ours. Idempotent, safe before `start`."""
        for undo in self._undo:
            undo()
        self._undo = []
        await self._background.stop()
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with contextlib.suppress(GanglineError):
                await subscription.unsubscribe()

    # -- what happens ---------------------------------------------------------------------------------------------

    def found(self, endpoints: frozenset[str]) -> None:
        """These endpoints exist."""
        self._core.found(endpoints)
        self._wake.set()

    def gone(self, endpoint: str) -> None:
        """The queue is no longer ours."""
        self._core.gone(endpoint)
        self._wake.set()

    def say(self, event: Literal["joined", "here", "handed_over", "left"], queues: Sequence[str] = ()) -> None:
        """Tell the other dispatchers."""
        told = DispatcherEvent(
            dispatcher=self._context.dispatcher,
            event=event,
            queues=tuple(queues),
            has=len(self._core.mine),
            at=self._context.ambient.wall(),
        )
        with contextlib.suppress(GanglineError):
            self._bus.publish(self._names.dispatcher_event(told.dispatcher), told.model_dump_json().encode())

    @property
    def peers(self) -> int:
        """Other dispatchers that have queues."""
        return self._core.peers

    @property
    def held(self) -> frozenset[str]:
        """Endpoints whose queues some dispatcher has."""
        return self._core.held

    # -- inside ---------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _go_on(self) -> None:
        core, loop = self._core, asyncio.get_running_loop()
        listed_at = float("-inf")
        while True:
            self._wake.clear()
            if self._bus.connected and (core.must_list or loop.time() - listed_at >= LIST_S):
                listed_at = loop.time()
                await self._list()
                self.say("here")
            for effect in core.tick(loop.time(), self._context.ambient.random.random()):
                match effect:
                    case Take():
                        self._background.start(self._take_queue(effect))
                    case PingPeer():
                        self._background.start(self._ping(effect.dispatcher))
                    case GiveUp():
                        self._give_up(effect.count)
            wait_s = min(0.25, self._settings.ping_s)
            if core.next_at is not None:
                wait_s = min(wait_s, max(0.001, core.next_at - loop.time()))
            await set_within(self._wake, wait_s)

    async def _list(self) -> None:
        try:
            consumers = await (await self._context.streams.tasks()).consumers()
        except GanglineError as error:
            self._log.debug("cannot list consumers: %s", error, extra={"action": "ownership.list"})
            return
        self._guard.look()
        self._public = frozenset(
            holder for each in consumers if PRIVATELY not in each.metadata and (holder := each.metadata.get(DISPATCHER))
        )
        self._core.listed(map(self._holding, consumers), self._now)
        if self._core.foreign - self._warned:
            self._log.error(
                "foreign consumers on the task stream keep its tasks from dispatchers: %s; remove them",
                ", ".join(sorted(self._core.foreign)),
                extra={"action": "ownership.foreign"},
            )
        self._warned = self._core.foreign

    def _holding(self, state: ConsumerState) -> Holding:
        endpoint, dot, rest = state.filter[len(self._prefix) :].partition(".")
        ours = state.filter.startswith(self._prefix) and dot and rest == ">" and not {"*", ">"} & set(endpoint)
        holder = state.metadata.get(DISPATCHER, "")
        return Holding(consumer=state.name, endpoint=endpoint if ours else "", dispatcher=holder)

    async def _take_queue(self, take: Take) -> None:
        consumer = None
        extra = {"action": "queue.not_taken", "endpoint": take.endpoint}
        try:
            # A dead owner's queue must not wait: its tasks run, and it might come back meanwhile.
            async with contextlib.nullcontext() if take.over else self._at_once:
                consumer = await self._take(take)
        except Unavailable as error:
            self._log.debug("queue %s not taken: %s", take.endpoint, error, extra=extra)
        except Exception:
            self._log.exception("taking queue %s failed", take.endpoint, extra={"action": "ownership.bug"})
        if consumer is None:
            self._core.not_taken(take.endpoint)
        else:
            self._core.took(take.endpoint, consumer)

    async def _ping(self, dispatcher: str) -> None:
        subject = self._names.dispatcher(dispatcher, DispatcherOperation.PING)
        if dispatcher not in self._public:
            subject = self._names.private(subject)
        try:
            await self._bus.request(subject, timeout_s=self._settings.frozen_after_s)
        except NoResponders:
            self._guard.look()
            self._core.silent(dispatcher, self._now)
            self._wake.set()
        except GanglineError:
            pass  # the core counts its silence
        else:
            self._core.alive(dispatcher, self._now)

    # -- from outside ---------------------------------------------------------------------------------------------

    def _on_event(self, message: Message) -> None:
        self._guard.look()
        try:
            told = DispatcherEvent.read(message.data)
        except ValidationError:
            return
        if told.dispatcher == self._context.dispatcher:
            return
        self._core.alive(told.dispatcher, self._now)
        self._core.told(told.dispatcher, None if told.event == "left" else told.has, self._now)
        if told.event == "handed_over":
            self._core.handed_over(told.dispatcher, told.queues)
            self._wake.set()

    def _on_connection(self, event: ConnectionEvent) -> None:
        self._core.connection_changed(event is ConnectionEvent.RECONNECTED, self._now)
        self._wake.set()

    def _on_doubt(self, gap_s: float) -> None:
        if gap_s:
            self._core.stalled(gap_s)

    def __repr__(self) -> str:
        return f"OwnershipManager({self._context.dispatcher}, {self._core!r})"
