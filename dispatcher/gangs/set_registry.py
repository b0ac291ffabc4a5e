"""The standing sets of a namespace as one router sees them: which are declared, and which of their gangs are formed.

Gangs become known only from the ledger; events say which records to read, and end generations at once.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from ...bus.key_value.informer import Absent, BucketInformer
from ...bus.port.bus import Bus, ConnectionEvent, KeyValue, KvEntry, Message, NotPermitted
from ...bus.port.subjects import Subscription
from ...schemas.errors.base import ClosedError, GanglineError
from ...schemas.messages.gangs import GangEventKind
from ...schemas.names import Names
from ...schemas.records.gangs import GangRecord, GangSetRecord
from ...telemetry.logs import logger_for
from ...telemetry.metrics.router_and_worker import RouterMetrics
from ..routing.policy import Policy
from ..routing.settings import RouterSettings
from ..transport.exchange import RequestExchange
from .coordinator_client import read_event
from .members import MemberChannelFactory
from .standing_set import SetAsPool, StandingSetRouter

_log = logger_for("dispatcher")
_FORBIDDEN_S: Final = 5.0
"""After how long it is tried again to watch standing sets, if that was not permitted."""


class SetListener(Protocol):
    """Receives changes of standing sets."""

    def declared(self, name: str, record: GangSetRecord | None) -> None:
        """The set's declaration in the ledger; None: it has none."""

    async def seen(self, record: GangRecord, revision: int) -> None:
        """The record of a gang of some set, as in the ledger."""

    def gone(self, gang: str, generation: int, reason: str) -> None:
        """That generation, and all before it, have ended."""

    def leaving(self, gang: str, generation: int) -> None:
        """That generation must get nothing new."""

    def vanished(self, gang: str) -> None:
        """The gang's record is no longer in the ledger."""


class _GangOfSet(NamedTuple):
    record: GangRecord
    revision: int


class SetDiscovery:
    """Watches all standing sets of a namespace."""

    def __init__(
        self,
        bus: Bus,
        ledger: Callable[[], Awaitable[KeyValue]],
        names: Names,
        listener: SetListener,
        *,
        resync_s: float,
        patience_s: float | None = None,
    ) -> None:
        """For the last two arguments see BucketInformer."""
        self._bus = bus
        self._names = names
        self._listener = listener
        self.informer = BucketInformer[GangSetRecord | _GangOfSet](
            bus,
            ledger,
            observed=names.gangset_key(),
            listed=self._listed,
            subscribe=self._follow_events,
            parse=self._parse,
            on_change=self._changed,
            absent=Absent.TWICE,
            resync_s=resync_s,
            patience_s=patience_s,
            kind="gangset",
            what="the standing sets",
            log=_log,
        )

    def look_up(self, gang: str) -> None:
        """Something is wrong with a gang: read its record."""
        self.informer.look_up(self._names.gang_key(gang))

    def _listed(self) -> Iterator[str]:
        yield self._names.gangset_key()
        if len(self.informer):  # otherwise sets have no gangs
            yield self._names.gang_key()

    def _parse(self, entry: KvEntry) -> GangSetRecord | _GangOfSet | None:
        if entry.key.startswith("gangset."):
            return GangSetRecord.read(entry.value)
        gang = GangRecord.read(entry.value)
        return None if gang.gangset is None else _GangOfSet(gang, entry.revision)

    def _changed(
        self, key: str, _old: GangSetRecord | _GangOfSet | None, new: GangSetRecord | _GangOfSet | None
    ) -> Awaitable[None] | None:
        kind, _, name = key.partition(".")
        if isinstance(new, _GangOfSet):
            return self._listener.seen(new.record, new.revision)
        if kind == "gangset":
            self._listener.declared(name, new)
        else:
            self._listener.vanished(name)
        return None

    # -- events ---------------------------------------------------------------------------------------------------

    async def _follow_events(self) -> Subscription:
        return await self._bus.subscribe(self._names.gang_events, self._on_event)

    def _on_event(self, message: Message) -> None:
        event = read_event(message)
        if event is None or event.gangset is None:
            return
        match event.kind:
            case GangEventKind.TORN_DOWN | GangEventKind.ENDED:
                self._listener.gone(event.gang, event.generation, event.reason)
            case GangEventKind.RESTARTING:
                self._listener.gone(event.gang, event.generation - 1, event.reason)
            case GangEventKind.RETIRING | GangEventKind.MEMBER_LOST:
                self._listener.leaving(event.gang, event.generation)
            case GangEventKind.FORMED | GangEventKind.READY | GangEventKind.RECOVERED:
                key = self._names.gangset_key(event.gangset)
                if self.informer.get(key) is None:
                    self.informer.look_up(key)
                self.look_up(event.gang)
            case GangEventKind.QUEUED:
                pass


class SetRegistry:
    """Finds the set of a name. Nothing is read before the first call."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        settings: RouterSettings,
        *,
        exchange: RequestExchange,
        lines: MemberChannelFactory,
        policy: Callable[[str], Policy],
        metrics: RouterMetrics,
        random: random.Random,
        ledger: Callable[[], Awaitable[KeyValue]],
        numbers: Iterator[int],
        strays: Callable[[str, str], bool],
        on_change: Callable[[str], None],
    ) -> None:
        """
        Args:
            numbers, strays: see RoutedPool.
            on_change: called with a name that became a set's, or no longer is one.
        """
        self._bus = bus
        self._settings = settings
        self._exchange = exchange
        self._lines = lines
        self._policy = policy
        self._metrics = metrics
        self._random = random
        self._numbers = numbers
        self._strays = strays
        self._on_change = on_change
        self._sets: dict[str, StandingSetRouter] = {}
        self._deleted: dict[str, float] = {}
        """Sets that were deleted while gangs were still formed: when (loop time) to check again."""
        self._feed = SetDiscovery(
            bus, ledger, names, self, resync_s=settings.reconcile_s, patience_s=settings.saturated_wait_s
        )
        self._unlisten: Callable[[], None] | None = None
        self._stopped = False
        self._forbidden_until = float("-inf")
        """Loop time until which it is not tried to watch standing sets, for which the user had no permission."""
        self._reported = False

    # -- finding --------------------------------------------------------------------------------------------------

    @property
    def none(self) -> bool:
        """Whether it is certain that no set is declared."""
        return self._feed.informer.pulled and not self._sets

    async def find(self, name: str, deadline: float | None) -> StandingSetRouter | None:
        """The set of that name; None if it is a pool's name.

        Raises:
            Disconnected, Unavailable: the ledger could not be read in time.
            ClosedError: the router was stopped meanwhile.
        """
        if not self._feed.informer.settled:
            if self._unlisten is None:
                self._unlisten = self._bus.on_connection(self._on_connection)
            await self._feed.informer.ready(deadline)
        return self._sets.get(name)

    async def find_if_permitted(self, name: str, deadline: float | None) -> StandingSetRouter | None:
        """`find` for users who may lack the permission to watch standing sets: they get None, and one log line says
        so."""
        if self._exchange.loop.time() < self._forbidden_until:
            return None
        try:
            found = await self.find(name, deadline)
            self._reported = False
            return found
        except NotPermitted as error:
            self._forbidden_until = self._exchange.loop.time() + _FORBIDDEN_S
            if not self._reported:
                self._reported = True
                _log.warning("cannot serve standing sets: %s", error, extra={"action": "gangset.not_permitted"})
            return None

    def refuse(self, error: GanglineError) -> None:
        """Refuse requests that wait for a gang, and end tasks on gangs."""
        self._stopped = True
        self._feed.informer.close()
        for routed in self._sets.values():
            routed.close(error)

    async def stop(self) -> None:
        """Stop watching. Call it after `refuse`; idempotent, and safe before the first call."""
        if self._unlisten is not None:
            self._unlisten()
        await self._feed.informer.stop()

    def waiting(self) -> dict[str, int]:
        """Number of requests that wait for a gang with free slots, by set; sets without any are left out."""
        return {name: routed.pool.core.waiting for name, routed in self._sets.items() if routed.pool.core.waiting}

    def statistics(self) -> dict[str, Any]:
        """Statistics by set: its gangs, requests waiting and placed."""
        return {name: routed.statistics() for name, routed in self._sets.items()}

    def __repr__(self) -> str:
        return f"SetRegistry({', '.join(self._sets) or 'none'})"

    # -- SetListener ----------------------------------------------------------------------------------------------

    def declared(self, name: str, record: GangSetRecord | None) -> None:
        known = self._sets.get(name)
        if record is None:
            if known is not None:
                self._deleted[name] = self._exchange.loop.time()
                self._remove_deleted()
            return
        self._deleted.pop(name, None)
        if known is not None:
            known.record = record
        elif not self._stopped:
            pool = SetAsPool(
                name,
                exchange=self._exchange,
                settings=self._settings,
                policy=self._policy(name),
                metrics=self._metrics,
                draw=self._random.random,
                numbers=self._numbers,
                strays=self._strays,
            )
            self._sets[name] = StandingSetRouter(name, record, pool, self._lines, self._random)
            self._on_change(name)

    def _remove_deleted(self) -> None:
        # While gangs of it are formed, the name still belongs to the set: retiring gangs take nothing new and end soon.
        now = self._exchange.loop.time()
        for name in [name for name, at in self._deleted.items() if at <= now]:
            if self._sets[name].gangs:
                self._deleted[name] = now + self._settings.reconcile_s
                continue
            del self._deleted[name]
            known = self._sets.pop(name)
            self._on_change(name)
            known.close(ClosedError(f"standing set {name!r} was deleted"))

    def pools(self) -> list[SetAsPool]:
        """The pool of each set, in which its calls wait."""
        return [routed.pool for routed in self._sets.values()]

    def pool_of(self, name: str) -> SetAsPool | None:
        """The pool of one set; None: no set of that name is known."""
        routed = self._sets.get(name)
        return None if routed is None else routed.pool

    async def seen(self, record: GangRecord, revision: int) -> None:
        routed = self._sets.get(record.gangset or "")
        if routed is not None:
            await routed.seen(record, revision)

    def gone(self, gang: str, generation: int, reason: str) -> None:
        for routed in self._sets.values():
            routed.gone(gang, generation, reason)

    def vanished(self, gang: str) -> None:
        for routed in self._sets.values():
            routed.vanished(gang)

    def leaving(self, gang: str, generation: int) -> None:
        for routed in self._sets.values():
            routed.leaving(gang, generation)

    # -- time -----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Called a few times a second while connected."""
        for routed in self._sets.values():
            routed.pool.tick(now)
            while routed.suspected:
                self._feed.look_up(routed.suspected.popitem()[0])
        self._remove_deleted()

    def _on_connection(self, event: ConnectionEvent) -> None:
        connected = event is ConnectionEvent.RECONNECTED
        for routed in self._sets.values():
            routed.pool.connection(connected)
