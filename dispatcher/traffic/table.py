"""The routes of a namespace, as one process knows them: pulled from their bucket, and followed live.

Writes are seen as they pass and then read from storage, which decides; every few seconds, and at once after a
reconnect, all are read again. Without storage the routes that are known stay. A value that cannot be followed changes
nothing: the route before stays, and what is wrong is logged, told in an event, and stands in `statistics()`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ...bus.port.bus import BucketSettings, Bus, ConnectionEvent, KeyValue, KvEntry, KvOperation, Storage
from ...bus.port.types import Subscription
from ...schemas.errors.base import ClosedError, Disconnected, GanglineError, Unavailable
from ...schemas.names import Names, check_name
from ...schemas.records.routes import QueueRules, RouteEvent, RouteRecord, parse_route
from ...telemetry.logs import logger_for

_log = logger_for("dispatcher")

Listener = Callable[[str, RouteRecord | None], None]
"""Called on the loop with an endpoint and its route from now on; None: it has none any more."""

FIRST_PULL_S: Final = 5.0
"""With a connection, and without storage that answers, requests go on without routes after so long."""
_AGAIN_S: Final = 0.05
_AGAIN_MAX_S: Final = 1.0
_STORED_WITHIN_S: Final = 2.0
_LOOK_AGAIN_S: Final = 0.05
_NO_RULES: Final = QueueRules()


class Refused(NamedTuple):
    """A value that cannot be followed."""

    revision: int
    error: str


class Passed(NamedTuple):
    """A write that passed. Storage may take a moment to have it, and may have refused it."""

    value: bytes | None
    """None: a deletion."""
    until: float
    """Loop time from which storage's word counts, whatever passed."""


class RouteTable:
    """All routes. `start` and `stop` are idempotent; nothing is read before `start`."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        *,
        bucket: BucketSettings | None = None,
        make: bool = False,
        reconcile_s: float = 5.0,
    ) -> None:
        """
        Args:
            bucket: how the bucket is made where it does not exist yet; in a file unless given.
            make: whether it is made at the start, so that `nats kv put` finds it. False: only read.
            reconcile_s: how often all routes are read again, in case a change was missed.
        """
        self._bus = bus
        self._names = names
        self._settings = bucket or BucketSettings(storage=Storage.FILE)
        self._make = make
        self._reconcile_s = reconcile_s
        self._routes: dict[str, RouteRecord] = {}
        self._seen: dict[str, KvEntry] = {}
        """Of each key that is there, what was read last, valid or not."""
        self._deleted: dict[str, int] = {}
        """Of keys that are gone: a copy that lags behind may still show them."""
        self._refused: dict[str, Refused] = {}
        self._listeners: list[Listener] = []
        self._kv: KeyValue | None = None
        self._subscription: Subscription | None = None
        self._unlisten: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._lookups: dict[str, Passed] = {}
        """What passed and was not seen in storage yet, by key."""
        self._pull_due = True
        self._asked: list[asyncio.Future[None]] = []
        """Who waits for the next pull."""
        self._wake = asyncio.Event()
        self._first = asyncio.Event()
        self._stopped = False
        self.pulled = False
        """Whether they were ever read."""
        self.pulls = 0

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to follow the bucket.

        Raises:
            ClosedError: it was stopped.
        """
        if self._stopped:
            raise ClosedError("this table of routes was stopped")
        if self._task is None:
            self._unlisten = self._bus.on_connection(self._on_connection)
            self._task = asyncio.get_running_loop().create_task(self._follow(), name="gangline-routes")

    async def ready(self, deadline: float | None = None) -> None:
        """Wait until the routes were read. Without storage that answers, only for FIRST_PULL_S: then none are known,
        and an endpoint is the pool of its name until they are.

        Args:
            deadline: loop time.

        Raises:
            Disconnected, Unavailable: not before the deadline; nothing was sent.
            ClosedError: it was stopped meanwhile.
        """
        if not self._first.is_set():
            self.start()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._first.wait()
            except TimeoutError as error:
                if not self._bus.connected:
                    raise Disconnected("no connection to the server; nothing was sent") from error
                raise Unavailable("the routes could not be read in time; nothing was sent") from error
        if self._stopped:
            raise ClosedError("this table of routes was stopped")

    async def refresh(self, endpoint: str | None = None) -> None:
        """Read all routes now.

        Args:
            endpoint: when it returns, at least the route is followed that stood for this one when it was called (the
                others may be read from a copy that lags behind).

        Raises:
            Disconnected, StorageUnavailable: they could not be read.
            ClosedError: it was stopped.
        """
        self.start()
        if self._stopped:
            raise ClosedError("this table of routes was stopped")
        loop = asyncio.get_running_loop()
        if endpoint is not None:
            self._lookups.setdefault(endpoint, Passed(None, loop.time()))
        read: asyncio.Future[None] = loop.create_future()
        self._asked.append(read)
        self._pull_due = True
        self._wake.set()
        await read

    async def stop(self) -> None:
        """Follow nothing any more; what is known stays. Safe before `start`."""
        self._stopped = True
        self._first.set()
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._refuse_asked(ClosedError("this table of routes was stopped"))
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with contextlib.suppress(GanglineError):
                await subscription.unsubscribe()

    # -- what is known --------------------------------------------------------------------------------------------

    @property
    def known(self) -> Mapping[str, RouteRecord]:
        """Routes by endpoint, as they are followed now."""
        return self._routes

    @property
    def refused(self) -> Mapping[str, Refused]:
        """Endpoints whose newest value cannot be followed, and why."""
        return self._refused

    @property
    def settled(self) -> bool:
        """Whether requests need not wait for the first reading."""
        return self._first.is_set()

    def get(self, endpoint: str) -> RouteRecord | None:
        """The route; None: the endpoint is the pool of its name."""
        return self._routes.get(endpoint)

    def pools(self, endpoint: str) -> dict[str, float]:
        """Weights of the pools that answer for the endpoint."""
        record = self._routes.get(endpoint)
        return {endpoint: 1.0} if record is None else record.pools(endpoint)

    def rules(self, endpoint: str) -> QueueRules:
        """How the endpoint's durable tasks are run."""
        record = self._routes.get(endpoint)
        return _NO_RULES if record is None else record.queue

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` at each change from now on; returns a function that ends that."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def statistics(self) -> dict[str, Any]:
        """Routes known, values refused (by endpoint, why), and how often they were read."""
        return {
            "pulled": self.pulled,
            "pulls": self.pulls,
            "routes": len(self._routes),
            "refused": {endpoint: refused.error for endpoint, refused in self._refused.items()},
        }

    def __repr__(self) -> str:
        return f"RouteTable({len(self._routes)} routes, {len(self._refused)} refused, pulled={self.pulled})"

    # -- following ------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """The one loop: pulls and look-ups one after the other, so that none undoes another."""
        loop = asyncio.get_running_loop()
        again_s = _AGAIN_S
        connected_at = loop.time()
        pull_at = connected_at
        while True:
            self._wake.clear()
            failure: GanglineError | None = None
            try:
                if self._pull_due or loop.time() >= pull_at:
                    self._pull_due = True
                    pull_at = loop.time() + self._reconcile_s
                await self._read()
                again_s = _AGAIN_S
                pause_s = _LOOK_AGAIN_S if self._lookups else max(0.0, pull_at - loop.time())
            except Unavailable as error:
                failure = error
                # Said aloud only where it matters: who has routes goes on with them.
                quiet = self.pulled or isinstance(error, Disconnected) or not self._bus.connected
                level = logging.DEBUG if quiet else logging.WARNING
                _log.log(level, "cannot read the routes: %s", error, extra={"action": "routes.pull_failed"})
                self._pull_due = True
                pause_s, again_s = again_s, min(_AGAIN_MAX_S, 2 * again_s)
                if not self._bus.connected:
                    connected_at = loop.time()
                elif loop.time() - connected_at >= FIRST_PULL_S:
                    self._first.set()
            except Exception as error:  # a bug in one step must not end the loop
                if isinstance(error, GanglineError):
                    failure = error
                    _log.warning("no routes: %s", error, extra={"action": "routes.unavailable"})
                else:
                    _log.exception("a step of the routes failed", extra={"action": "routes.bug"})
                pause_s = self._reconcile_s
                self._first.set()
            if failure is not None:
                self._refuse_asked(failure)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    def _refuse_asked(self, error: GanglineError) -> None:
        asked, self._asked = self._asked, []
        for read in asked:
            if not read.done():
                read.set_exception(error)

    async def _read(self) -> None:
        kv = await self._open()
        loop = asyncio.get_running_loop()
        for key, passed in list(self._lookups.items()):
            entry = await kv.get(key)
            self._take(entry) if entry is not None else self._drop(key)
            stored = None if entry is None else entry.value
            seen = stored == passed.value or loop.time() >= passed.until
            if seen and self._lookups.get(key) is passed:  # else another write passed meanwhile
                del self._lookups[key]
        if self._pull_due:
            self._pull_due = False  # a reconnect meanwhile sets it again
            asked, self._asked = self._asked, []
            try:
                await self._pull(kv)
            except BaseException:
                self._asked = [*asked, *self._asked]
                raise
            for read in asked:
                if not read.done():
                    read.set_result(None)

    async def _open(self) -> KeyValue:
        if self._kv is None:
            name = self._names.routes_bucket
            try:
                self._kv = await self._bus.bucket(name, self._settings, make=self._make)
            except GanglineError as error:
                if isinstance(error, Unavailable) and not self._make:
                    raise
                # Who may not make it can still read it.
                _log.warning("cannot make bucket %s: %s", name, error, extra={"action": "routes.make"})
                self._kv = await self._bus.bucket(name, self._settings, make=False)
        if self._subscription is None:
            self._subscription = await self._kv.observe(">", self._on_write)
        return self._kv

    async def _pull(self, kv: KeyValue) -> None:
        entries = {entry.key: entry for entry in await kv.entries(">")}
        doubtful = [key for key in self._seen if key not in entries]
        for key, entry in entries.items():
            seen = self._seen.get(key)
            if entry == seen:
                continue
            if entry.revision > (seen.revision if seen is not None else self._deleted.get(key, 0)):
                self._take(entry)
            else:
                doubtful.append(key)
        for key in [key for key in self._deleted if key not in entries]:
            del self._deleted[key]
        for key in doubtful:  # the list may come from a copy that lags behind: the leader knows
            found = await kv.get(key)
            self._take(found) if found is not None else self._drop(key)
        self.pulls += 1
        self.pulled = True
        self._first.set()

    def _on_write(self, entry: KvEntry) -> None:
        # What passes was not judged by storage yet, which may even answer us before it has it.
        value = None if entry.operation is KvOperation.DELETE else entry.value
        self._lookups[entry.key] = Passed(value, asyncio.get_running_loop().time() + _STORED_WITHIN_S)
        self._wake.set()

    def _on_connection(self, event: ConnectionEvent) -> None:
        if event is ConnectionEvent.RECONNECTED:
            self._pull_due = True
            self._wake.set()

    # -- taking over ----------------------------------------------------------------------------------------------

    def _take(self, entry: KvEntry) -> None:
        key = entry.key
        if entry.operation is KvOperation.DELETE:
            self._drop(key)
            return
        if self._seen.get(key) == entry:
            return
        self._seen[key] = entry
        self._deleted.pop(key, None)
        try:
            record = parse_route(check_name(key, "endpoint"), entry.value)
        except GanglineError as error:
            self._refuse(key, entry.revision, error)
            return
        self._refused.pop(key, None)
        if self._routes.get(key) != record:
            self._routes[key] = record
            _log.info("route of %s: %s", key, _text(record), extra={"action": "route.changed", "endpoint": key})
            self._tell(key, record)

    def _drop(self, key: str) -> None:
        seen = self._seen.pop(key, None)
        if seen is not None:
            self._deleted[key] = seen.revision
        self._refused.pop(key, None)
        if self._routes.pop(key, None) is not None:
            _log.info("route of %s: deleted", key, extra={"action": "route.deleted", "endpoint": key})
            self._tell(key, None)

    def _refuse(self, key: str, revision: int, error: GanglineError) -> None:
        kept = key in self._routes
        self._refused[key] = Refused(revision, error.message)
        _log.warning(
            "the new %s; %s",
            error.message,
            "the route before stays" if kept else "the endpoint goes on without a route",
            extra={"action": "route.invalid", "endpoint": key, "revision": revision},
        )
        event = RouteEvent(endpoint=key, revision=revision, error=error.message, kept=kept, by=self._bus.name)
        with contextlib.suppress(GanglineError):
            self._bus.publish(self._names.route_event(key), event.model_dump_json().encode())

    def _tell(self, endpoint: str, record: RouteRecord | None) -> None:
        for listener in list(self._listeners):
            try:
                listener(endpoint, record)
            except Exception:
                _log.exception("a listener of routes failed", extra={"action": "routes.bug", "endpoint": endpoint})


def _text(record: RouteRecord) -> str:
    return record.model_dump_json(exclude_defaults=True)
