"""Who has which queue, in practice: lists consumers, pings their holders, and takes what the core says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, Literal, assert_never

from pydantic import ValidationError

from ....bus.port.bus import Bus, ConnectionEvent, ConsumerState, Message, NoResponders, Stream
from ....bus.port.types import Subscription
from ....runtime.clock import Environment
from ....runtime.tasks import TaskSet
from ....schemas.errors.base import GanglineError, Unavailable
from ....schemas.names import DispatcherOperation, Names
from ....schemas.records.jobs import DispatcherEvent
from ....telemetry.logs import Log
from ..policies.settings import DispatcherSettings
from ..workers.failure_detector import DoubtMonitor
from .ownership_core import (
    AnyEvent,
    ConnectionChanged,
    EndpointsFound,
    GiveUp,
    Gone,
    HandedOver,
    Here,
    Holding,
    Listed,
    NotTaken,
    OwnershipCore,
    OwnershipTick,
    PeerAlive,
    PeerSilent,
    PingPeer,
    Stalled,
    Take,
    Took,
)

LIST_S: Final = 1.0
_SPREAD_S: Final = 0.02
_AT_ONCE: Final = 32
"""Queues that nobody had are taken so many at a time. A thousand at once (a producer that mistypes endpoints is enough)
would keep storage so busy that none of them is done in time, and that tasks of other queues wait."""
_PREFIX: Final = "q-"
_NAME_CHARS: Final = 100
DISPATCHER: Final = "gangline-dispatcher"
"""Metadata of our consumers: the id of the holder."""
PRIVATELY: Final = "gangline-private"
"""Likewise: its holder is asked on its private subject, which those of earlier versions do not have."""

TakeQueue = Callable[[Take], Awaitable[str | None]]
"""Take a queue: the name of our consumer, or None."""


def consumer_name(endpoint: str, ambient: Environment) -> str:
    """A new name for a consumer of that queue."""
    return f"{_PREFIX}{endpoint[:_NAME_CHARS]}-{ambient.token()[:12]}"


class OwnershipManager:
    """One dispatcher's part in sharing the queues out."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        *,
        dispatcher: str,
        tasks: Callable[[], Awaitable[Stream]],
        settings: DispatcherSettings,
        guard: DoubtMonitor,
        ambient: Environment,
        take: TakeQueue,
        give_up: Callable[[int], None],
        log: Log,
    ) -> None:
        self._bus = bus
        self._names = names
        self._dispatcher = dispatcher
        self._tasks = tasks
        self._settings = settings
        self._guard = guard
        self._ambient = ambient
        self._take = take
        self._give_up = give_up
        self._log = log
        self._prefix = names.tasks[: -len(">")]
        self._core: OwnershipCore | None = None
        self._wake = asyncio.Event()
        self._background = TaskSet("ownership")
        self._subscription: Subscription | None = None
        self._undo: list[Callable[[], None]] = []
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._warned: frozenset[str] = frozenset()
        self._public: frozenset[str] = frozenset()
        """Holders that have no private subject."""

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to look for queues; `found` says of which endpoints."""
        loop = asyncio.get_running_loop()
        self._core = OwnershipCore(
            self._dispatcher,
            ping_s=self._settings.ping_s,
            frozen_after_s=self._settings.frozen_after_s,
            spread_s=_SPREAD_S,
            connected_at=loop.time(),
        )
        self._undo = [self._bus.on_connection(self._on_connection), self._guard.on_doubt(self._on_doubt)]
        self._subscription = await self._bus.subscribe(self._names.dispatcher_events, self._on_event)
        self._background.start(self._go_on())

    async def stop(self) -> None:
        """Take nothing more. Idempotent, safe before `start`. Queues that we have are not given up by it."""
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
        """These endpoints there are."""
        self._tell(EndpointsFound(now=self._now, endpoints=endpoints))
        self._wake.set()

    def gone(self, endpoint: str) -> None:
        """We have lost that queue."""
        self._tell(Gone(now=self._now, endpoint=endpoint))
        self._wake.set()

    def handed_over(self, endpoints: list[str]) -> None:
        """Tell the others that we gave these up."""
        self._say("handed_over", tuple(endpoints))

    def say(self, event: Literal["joined", "left"]) -> None:
        """Tell the others that we joined, or left."""
        self._say(event, ())

    @property
    def peers(self) -> int:
        """Other dispatchers that have queues."""
        return 0 if self._core is None else self._core.peers

    # -- inside ---------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _say(self, event: Literal["joined", "here", "handed_over", "left"], queues: tuple[str, ...]) -> None:
        told = DispatcherEvent(
            dispatcher=self._dispatcher,
            event=event,
            queues=queues,
            has=len(self._core.mine) if self._core is not None else 0,
            at=self._ambient.wall(),
        )
        with contextlib.suppress(GanglineError):
            self._bus.publish(self._names.dispatcher_event(self._dispatcher), told.model_dump_json().encode())

    def _tell(self, event: AnyEvent) -> None:
        if self._core is None:
            return
        for effect in self._core.handle(event):
            match effect:
                case Take():
                    self._background.start(self._take_queue(effect))
                case PingPeer():
                    self._background.start(self._ping(effect.dispatcher))
                case GiveUp():
                    self._give_up(effect.count)
                case _:
                    assert_never(effect)

    async def _go_on(self) -> None:
        core, loop = self._core, asyncio.get_running_loop()
        assert core is not None
        listed_at = float("-inf")
        while True:
            self._wake.clear()
            if self._bus.connected and (core.must_list or loop.time() - listed_at >= LIST_S):
                listed_at = loop.time()
                await self._list()
                self._say("here", ())
            self._tell(OwnershipTick(now=loop.time(), draw=self._ambient.random.random()))
            wait_s = min(0.25, self._settings.ping_s)
            if core.next_at is not None:
                wait_s = min(wait_s, max(0.001, core.next_at - loop.time()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    async def _list(self) -> None:
        try:
            stream = await self._tasks()
            consumers = await stream.consumers()
        except GanglineError as error:
            self._log.debug("consumers cannot be listed: %s", error, extra={"action": "ownership.list"})
            return
        self._guard.look()
        self._public = frozenset(
            holder for each in consumers if PRIVATELY not in each.metadata and (holder := each.metadata.get(DISPATCHER))
        )
        self._tell(Listed(now=self._now, holdings=tuple(self._holding(each) for each in consumers)))
        assert self._core is not None
        if self._core.foreign - self._warned:
            self._log.error(
                "consumers on the stream of tasks that are not ours keep its tasks from us: %s; remove them",
                ", ".join(sorted(self._core.foreign)),
                extra={"action": "ownership.foreign"},
            )
        self._warned = self._core.foreign

    def _holding(self, state: ConsumerState) -> Holding:
        endpoint, dot, rest = state.filter[len(self._prefix) :].partition(".")
        ours = state.filter.startswith(self._prefix) and dot and rest == ">" and not {"*", ">"} & set(endpoint)
        return Holding(
            consumer=state.name,
            endpoint=endpoint if ours else "",
            dispatcher=state.metadata.get(DISPATCHER, ""),
        )

    async def _take_queue(self, take: Take) -> None:
        try:
            # What a dead holder had does not wait: tasks run there, and it might come back meanwhile.
            async with contextlib.nullcontext() if take.over else self._at_once:
                consumer = await self._take(take)
        except Unavailable as error:
            consumer = None
            self._log.debug(
                "queue %s not taken: %s",
                take.endpoint,
                error,
                extra={"action": "queue.not_taken", "endpoint": take.endpoint},
            )
        except Exception:
            consumer = None
            self._log.exception("taking queue %s failed", take.endpoint, extra={"action": "ownership.bug"})
        if consumer is None:
            self._tell(NotTaken(now=self._now, endpoint=take.endpoint))
        else:
            self._tell(Took(now=self._now, endpoint=take.endpoint, consumer=consumer))

    async def _ping(self, dispatcher: str) -> None:
        subject = self._names.dispatcher(dispatcher, DispatcherOperation.PING)
        if dispatcher not in self._public:
            subject = self._names.private(subject)
        try:
            await self._bus.request(subject, timeout_s=self._settings.frozen_after_s)
        except NoResponders:
            self._guard.look()
            self._tell(PeerSilent(now=self._now, dispatcher=dispatcher))
            self._wake.set()
        except GanglineError:
            pass  # its silence speaks for itself
        else:
            self._tell(PeerAlive(now=self._now, dispatcher=dispatcher))

    # -- from outside ---------------------------------------------------------------------------------------------

    def _on_event(self, message: Message) -> None:
        self._guard.look()
        try:
            told = DispatcherEvent.model_validate_json(message.data)
        except ValidationError:
            return
        if told.dispatcher == self._dispatcher:
            return
        self._tell(PeerAlive(now=self._now, dispatcher=told.dispatcher))
        has = None if told.event == "left" else told.has
        self._tell(Here(now=self._now, dispatcher=told.dispatcher, has=has))
        if told.event == "handed_over":
            self._tell(HandedOver(now=self._now, dispatcher=told.dispatcher, endpoints=frozenset(told.queues)))
            self._wake.set()

    def _on_connection(self, event: ConnectionEvent) -> None:
        if self._core is not None:
            self._tell(ConnectionChanged(now=self._now, connected=event is ConnectionEvent.RECONNECTED))
            self._wake.set()

    def _on_doubt(self, gap_s: float) -> None:
        if gap_s:
            self._tell(Stalled(now=self._now, seconds=gap_s))

    def __repr__(self) -> str:
        return f"OwnershipManager({self._dispatcher}, {self._core!r})"
