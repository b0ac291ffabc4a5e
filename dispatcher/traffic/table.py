"""The routes of a namespace as one process sees them.

Without storage, the known routes stay in effect. An invalid value changes nothing: the previous route stays, and the
error is logged, published as an event, and included in `statistics()`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ...bus.key_value.informer import BucketInformer
from ...bus.port.bus import BucketSettings, Bus, KeyValue, KvEntry, Storage
from ...schemas.errors.base import GanglineError
from ...schemas.names import Names, check_name
from ...schemas.records.routes import QueueRules, RouteEvent, RouteRecord, parse_route
from ...telemetry.logs import logger_for

_log = logger_for("dispatcher")

RouteListener = Callable[[str, RouteRecord | None], None]
"""Called on the loop with an endpoint and its new route; None: the route was deleted."""

FIRST_PULL_S: Final = 5.0
"""While connected, requests proceed without routes if storage does not answer for this long."""
_NO_RULES: Final = QueueRules()


class WriteRefused(NamedTuple):
    """An invalid value."""

    revision: int
    error: str


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
        first_pull_s: float | None = FIRST_PULL_S,
    ) -> None:
        """
        Args:
            bucket: settings of the bucket if it has to be created; default: file storage.
            make: whether to create it at the start, so that `nats kv put` finds it. False: only read it.
            reconcile_s: interval at which all routes are read again, in seconds, in case a change was missed.
            first_pull_s: while connected, how long `ready` waits for storage, in seconds; then no routes are known, and
                an endpoint is the pool of its name until they are read. None: it waits for the routes.
        """
        self._bus = bus
        self._names = names
        self._settings = bucket or BucketSettings(storage=Storage.FILE)
        self._make = make
        self._routes: dict[str, RouteRecord] = {}
        self._refused: dict[str, WriteRefused] = {}
        self._listeners: list[RouteListener] = []
        self._informer = BucketInformer(
            bus,
            self._open,
            observed=">",
            parse=_parse,
            on_change=self._changed,
            on_unreadable=self._refuse,
            resync_s=reconcile_s,
            without_after_s=first_pull_s,
            kind="routes",
            what="the routes",
            owner="this table of routes",
            log=_log,
        )

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start watching the bucket.

        Raises:
            ClosedError: it was stopped.
        """
        self._informer.start()

    async def ready(self, deadline: float | None = None) -> None:
        """Wait until the routes were read, or for `first_pull_s`.

        Args:
            deadline: loop time.

        Raises:
            Disconnected, Unavailable: not read by the deadline; nothing was sent.
            ClosedError: it was stopped meanwhile.
        """
        await self._informer.ready(deadline)

    async def refresh(self, *endpoints: str) -> None:
        """Read all routes now.

        Args:
            endpoints: when this returns, the routes of these are at least as new as when it was called (the others may
                come from a replica that lags behind).

        Raises:
            Disconnected, StorageUnavailable: they could not be read.
            ClosedError: it was stopped.
        """
        await self._informer.refresh(*endpoints)

    async def stop(self) -> None:
        """Stop watching; known routes stay. Safe before `start`."""
        await self._informer.stop()

    # -- queries --------------------------------------------------------------------------------------------------

    @property
    def known(self) -> Mapping[str, RouteRecord]:
        """Routes in effect, by endpoint."""
        return self._routes

    @property
    def refused(self) -> Mapping[str, WriteRefused]:
        """Endpoints whose newest value is invalid, and why."""
        return self._refused

    @property
    def settled(self) -> bool:
        """Whether the first read has finished, so that requests need not wait for it."""
        return self._informer.settled

    def get(self, endpoint: str) -> RouteRecord | None:
        """The route; None: the endpoint is the pool of its name."""
        return self._routes.get(endpoint)

    @property
    def pulled(self) -> bool:
        """Whether all routes have ever been read."""
        return self._informer.pulled

    def revision(self, endpoint: str) -> int:
        """Revision of the endpoint's route in storage; 0: it has none."""
        return self._informer.revision(endpoint)

    def pools(self, endpoint: str) -> dict[str, float]:
        """Weights of the endpoint's pools."""
        record = self._routes.get(endpoint)
        return {endpoint: 1.0} if record is None else record.pools(endpoint)

    def rules(self, endpoint: str) -> QueueRules:
        """Rules for the endpoint's durable tasks."""
        record = self._routes.get(endpoint)
        return _NO_RULES if record is None else record.queue

    def listen(self, listener: RouteListener) -> Callable[[], None]:
        """Call `listener` at each change from now on; returns a function that unsubscribes it."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def statistics(self) -> dict[str, Any]:
        """Number of routes, invalid values (error by endpoint), and how often routes were read."""
        return {
            "pulled": self._informer.pulled,
            "pulls": self._informer.pulls,
            "routes": len(self._routes),
            "refused": {endpoint: refused.error for endpoint, refused in self._refused.items()},
        }

    def __repr__(self) -> str:
        return f"RouteTable({len(self._routes)} routes, {len(self._refused)} refused, pulled={self._informer.pulled})"

    # -- watching -------------------------------------------------------------------------------------------------

    async def _open(self) -> KeyValue:
        name = self._names.routes_bucket
        if self._make:
            try:
                return await self._bus.bucket(name, self._settings)
            except GanglineError as error:
                # Without the permission to create it, it may still be readable.
                _log.warning("cannot create bucket %s: %s", name, error, extra={"action": "routes.make"})
        return await self._bus.bucket(name, self._settings, make=False)

    def _changed(self, endpoint: str, _old: RouteRecord | None, record: RouteRecord | None) -> None:
        self._refused.pop(endpoint, None)
        if self._routes.get(endpoint) == record:
            return
        if record is not None:
            self._routes[endpoint] = record
            text = record.model_dump_json(exclude_defaults=True)
            _log.info("route of %s: %s", endpoint, text, extra={"action": "route.changed", "endpoint": endpoint})
        else:
            del self._routes[endpoint]
            _log.info("route of %s: deleted", endpoint, extra={"action": "route.deleted", "endpoint": endpoint})
        for listener in list(self._listeners):
            try:
                listener(endpoint, record)
            except Exception:
                _log.exception("a listener of routes failed", extra={"action": "routes.bug", "endpoint": endpoint})

    def _refuse(self, entry: KvEntry, error: Exception) -> None:
        key, revision, message = entry.key, entry.revision, getattr(error, "message", str(error))
        kept = key in self._routes
        self._refused[key] = WriteRefused(revision, message)
        _log.warning(
            "the new %s; %s",
            message,
            "the previous route stays in effect" if kept else "the endpoint continues without a route",
            extra={"action": "route.invalid", "endpoint": key, "revision": revision},
        )
        event = RouteEvent(endpoint=key, revision=revision, error=message, kept=kept, by=self._bus.name)
        with contextlib.suppress(GanglineError):
            self._bus.publish(self._names.route_event(key), event.model_dump_json().encode())


def _parse(entry: KvEntry) -> RouteRecord:
    return parse_route(check_name(entry.key, "endpoint"), entry.value)
