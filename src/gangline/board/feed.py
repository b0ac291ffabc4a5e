"""Feeds a board from NATS: one watch on the ledger, one on the routes, one subscription each on events and on the
states of jobs. Workers in view are asked for their statistics, dispatchers for their queues, and the coordinator why
gangs wait.

Where nobody answers, rows stay as they were, and the table `system` says since when.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from ..bus.key_value.informer import BucketInformer
from ..bus.port.bus import ConnectionEvent, KeyValue, KvEntry, KvHandler, KvOperation, Message, NotPermitted
from ..dispatcher.jobs.storage import TaskStorage
from ..schemas.errors.base import GanglineError
from ..schemas.messages.gangs import GangListReply, GangListRequest, GangQuery, GangWhyReply
from ..schemas.names import GangOperation
from ..schemas.wire.codec import from_json
from ..telemetry.logs import logger_for
from .board_core import Board, Delta

if TYPE_CHECKING:
    from ..bus.port.subjects import Subscription
    from ..dispatcher.client.client import Client

_log = logger_for("board")
TAKE_S: Final = 0.25
"""Deltas are at least this far apart."""
ASK_S: Final = 1.0
"""Time between questions to workers, dispatchers and the coordinator."""
MOST_ASKED: Final = 64
"""Number of workers, and of waiting gangs, that are asked each time."""
RESYNC_S: Final = 10.0
"""Time between lists of all keys, for users who may not watch them."""
RESYNC_FEW_S: Final = 1.0
"""Likewise, where only some of the keys are followed."""
EXPIRED_S: Final = 4.0
"""A heartbeat expires after three seconds, and may be a second late."""
SERVICES_S: Final = 5.0
"""Time between pings of the NATS services."""
PARTS: Final = frozenset({"ledger", "routes", "events", "jobs", "queues", "gangs", "why", "services"})
"""`why` is what each waiting gang waits for; it needs `gangs`."""

Seen = Callable[[Delta], None]


class BoardFeed:
    """Keeps a board up to date.

    Args:
        client: its connection is used; role `observer` is enough.
        parts: what to follow, of PARTS.
        keys: pattern of the keys of the ledger to follow.
        take_s: deltas are at least this far apart; 0: one for each change of the ledger.
        clock: Unix time.
    """

    def __init__(
        self,
        client: Client,
        parts: Collection[str] = PARTS,
        *,
        keys: str = ">",
        take_s: float = TAKE_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.board = Board(client.router.names.namespace)
        self.connected = True
        """Whether the connection to NATS stands; the board is stale without it."""
        self.in_view: Callable[[], Iterable[str]] = tuple
        """Workers (`<pool>.<worker>`) whose statistics somebody looks at."""
        self._client = client
        self._parts = parts
        self._keys = keys
        self._take_s = take_s
        self._clock = clock
        self._listeners: dict[Seen, None] = {}
        self._subscriptions: list[Subscription] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._started = False
        self._told: set[str] = set()
        self._informers: list[BucketInformer[KvEntry]] = []
        self._beats: dict[str, float] = {}
        self._services: dict[str, dict[str, object]] = {}
        self._services_before: dict[str, dict[str, object]] = {}
        """Those that answered the ping before: who is silent now is shown until the next one."""
        self._services_asked_at = float("-inf")
        self._forget: Callable[[], None] = lambda: None
        self._on_change: set[Callable[[], None]] = set()

    def listen(self, seen: Seen) -> Callable[[], None]:
        """Call `seen` with each delta from now on. Returns what ends that."""
        self._listeners[seen] = None
        return lambda: self._listeners.pop(seen, None)

    def listen_to_connection(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` whenever `connected` has changed. Returns what ends that."""
        self._on_change.add(changed)
        return lambda: self._on_change.discard(changed)

    async def start(self) -> None:
        """Read the ledger and the routes, and follow them from then on.

        Raises:
            Disconnected, StorageUnavailable, NotPermitted: the ledger could not be read.
        """
        router, names = self._client.router, self._client.router.names
        bus = router.bus
        self.board.tick(self._clock())
        self._forget = bus.on_connection(self._on_connection)
        if "events" in self._parts:
            self._subscriptions.append(await bus.subscribe(names.events, self._on_event))
        if "jobs" in self._parts:
            for subject in names.job_states:
                self._subscriptions.append(await bus.subscribe(subject, self._on_job))
        await self._follow(await router.ledger(), self._keys, self._on_entry, "the ledger")
        if "routes" in self._parts:
            routes = await bus.bucket(names.routes_bucket, TaskStorage.from_environment().routes, make=False)
            await self._follow(routes, ">", self._on_route, "the routes")
        if "services" in self._parts:
            self._subscriptions.append(await bus.subscribe(f"{bus.inbox}.board", self._on_service))
        # Each at its own pace: who does not answer must not keep the others waiting.
        asks: dict[str, Callable[[], Awaitable[None]]] = {"workers": self._ask_workers}
        if "queues" in self._parts:
            asks["queues"] = self._ask_queues
        if "gangs" in self._parts:
            asks["gangs"] = self._ask_gangs
        if "services" in self._parts:
            asks["services"] = self._ask_services
        await asyncio.gather(*(ask() for ask in asks.values()))
        self.board.take()
        self._started = True
        self._tasks = [asyncio.create_task(self._repeat(ASK_S, self._tick), name="board tick")]
        self._tasks += [
            asyncio.create_task(self._repeat(ASK_S, ask), name=f"board ask {of}") for of, ask in asks.items()
        ]
        if self._take_s > 0:
            self._tasks.append(asyncio.create_task(self._repeat(self._take_s, self._take), name="board take"))

    async def close(self) -> None:
        self._forget()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for informer in self._informers:
            await informer.stop()
        for subscription in self._subscriptions:
            with contextlib.suppress(GanglineError):
                await subscription.unsubscribe()

    async def _follow(self, bucket: KeyValue, keys: str, handler: KvHandler, what: str) -> None:
        """Call `handler` with each key of a bucket that matches, and with each change.

        Users who may not create consumers, such as observers, cannot watch: for them, writes are observed, what was
        written is read, and the keys are listed now and then.
        """
        try:
            self._subscriptions.append(await bucket.watch(keys, handler))
            return
        except NotPermitted:
            pass

        async def opened() -> KeyValue:
            return bucket

        def passing(entry: KvEntry) -> bool:
            if not entry.key.startswith("alive."):
                return False
            # Too many to read each, and the next one follows in a second. What ends is found by its silence.
            if entry.operation is KvOperation.PUT:
                self._beats[entry.key] = self._clock()
            handler(entry)
            return True

        def changed(key: str, old: KvEntry | None, new: KvEntry | None) -> None:
            if new is None:
                handler(KvEntry(key=key, value=b"", revision=0, operation=KvOperation.DELETE))
            elif old is None or new.revision != old.revision:
                if key.startswith("alive."):
                    self._beats[key] = self._clock()
                handler(new)

        informer: BucketInformer[KvEntry] = BucketInformer(
            self._client.router.bus,
            opened,
            observed=keys,
            parse=lambda entry: entry,
            on_change=changed,
            on_passing=passing,
            resync_s=RESYNC_S if keys == ">" else RESYNC_FEW_S,
            kind="board",
            what=what,
            owner="the board",
            log=_log,
        )
        self._informers.append(informer)
        await informer.ready()

    def _miss_beats(self) -> None:
        """Where nothing tells that a heartbeat has expired: it has when no other has come for so long."""
        if not self.connected:
            return
        now = self._clock()
        for key in [key for key, at in self._beats.items() if at + EXPIRED_S < now]:
            del self._beats[key]
            self.board.see_entry(key, None)

    # -- in -----------------------------------------------------------------------------------------------------------

    def _on_connection(self, event: ConnectionEvent) -> None:
        self.connected = event is ConnectionEvent.RECONNECTED
        for changed in list(self._on_change):
            changed()

    def _on_entry(self, entry: KvEntry) -> None:
        self.board.see_entry(entry.key, None if entry.operation is KvOperation.DELETE else entry.value)
        if self._started and not self._take_s:
            self._tell()

    def _on_route(self, entry: KvEntry) -> None:
        self.board.see_route(entry.key, None if entry.operation is KvOperation.DELETE else entry.value)

    def _on_event(self, message: Message) -> None:
        self.board.see_event(message.subject, message.data, self._clock())

    def _on_job(self, message: Message) -> None:
        self.board.see_job(message.data)

    async def _tick(self) -> None:
        self.board.tick(self._clock())
        self._miss_beats()

    async def _ask_services(self) -> None:
        """Ping the services: each is shown when it answers, and until it has missed the next ping."""
        now = self._clock()
        if self._services_asked_at + SERVICES_S > now:
            return
        self._services_before = self._services
        self._services, self._services_asked_at = {}, now
        self.board.answer_services(self._services_before)
        with self._passing_over("services"):
            bus = self._client.router.bus
            bus.publish("$SRV.PING", reply=f"{bus.inbox}.board")

    def _on_service(self, message: Message) -> None:
        try:
            told = from_json(message.data)
            metadata = {"namespace": self._client.router.names.namespace, **told["metadata"]}
            if told["name"].startswith("gangline-") and metadata["namespace"] == self._client.router.names.namespace:
                name, id = told["name"].removeprefix("gangline-"), str(told["id"])
                if name != "worker":
                    row = {"kind": "service", "id": id, "name": name, "version": told.get("version", "")}
                    self._services[f"service:{id}"] = row
                    self.board.answer_services({**self._services_before, **self._services})
        except (GanglineError, TypeError, KeyError, AttributeError):
            return  # another service's answer

    async def _ask_workers(self) -> None:
        await asyncio.gather(*(self._ask_worker(name) for name in list(self.in_view())[:MOST_ASKED]))

    async def _ask_worker(self, name: str) -> None:
        with self._passing_over(f"stats of {name}"):
            self.board.answer_stats(await self._client.stats(name), self._clock())

    async def _ask_queues(self) -> None:
        with self._passing_over("queues"):
            self.board.answer_queues(await self._client.queues())

    async def _ask_gangs(self) -> None:
        with self._passing_over("gangs"):
            await ask_gangs(self._client, self.board)
        if "why" in self._parts:
            await asyncio.gather(*(self._ask_why(id) for id in self.board.queued[:MOST_ASKED]))

    async def _ask_why(self, gang: str) -> None:
        with self._passing_over(f"why {gang}"):
            await ask_why(self._client, self.board, gang, self._clock)

    @contextlib.contextmanager
    def _passing_over(self, what: str) -> Iterator[None]:
        try:
            yield
        except GanglineError as error:
            self.board.miss(what, error.message)
            if what not in self._told:
                self._told.add(what)
                _log.debug("no answer to %s: %s", what, error, extra={"action": "board.unanswered", "what": what})

    # -- out ----------------------------------------------------------------------------------------------------------

    async def _take(self) -> None:
        self._tell()

    def _tell(self) -> None:
        delta = self.board.take()
        if delta is not None:
            for seen in list(self._listeners):
                seen(delta)

    async def _repeat(self, every_s: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(every_s)
            await work()


async def read_board(client: Client, keys: str, *more: str) -> Board:
    """A board of what the ledger has now under these patterns of keys. Nothing is followed; call `take` for its rows.

    Raises:
        Disconnected, StorageUnavailable, NotPermitted: the ledger could not be read.
    """
    board = Board(client.router.names.namespace)
    for entry in await (await client.router.ledger()).entries(keys, *more):
        board.see_entry(entry.key, entry.value)
    return board


@contextlib.asynccontextmanager
async def following(feed: BoardFeed) -> AsyncIterator[BoardFeed]:
    """Start a feed, and close it at the end."""
    try:
        await feed.start()
        yield feed
    finally:
        await feed.close()


async def ask_gangs(client: Client, board: Board) -> None:
    """Have coordinators tell the board of all gangs.

    Raises:
        GanglineError: no coordinator runs, or this user may not ask.
    """
    coordinator = client.router.gangs.coordinator_client
    board.answer_gangs((await coordinator.ask_for(GangListReply, GangOperation.LIST, GangListRequest(), ASK_S)).gangs)


async def ask_why(client: Client, board: Board, gang: str, clock: Callable[[], float] = time.time) -> None:
    """Likewise, what a queued gang waits for, and which slots are kept for it."""
    coordinator = client.router.gangs.coordinator_client
    why = await coordinator.ask_for(GangWhyReply, GangOperation.WHY, GangQuery(id=gang), ASK_S)
    board.answer_why(why, clock())
