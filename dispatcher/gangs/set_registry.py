"""The standing sets of a namespace, as one router knows them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from ...bus.port.bus import Bus, ConnectionEvent, KeyValue, NotPermitted
from ...schemas.errors.base import ClosedError, Disconnected, GanglineError, ServerUnsupported, Unavailable
from ...schemas.names import Names
from ...schemas.records.gangs import GangRecord, GangSetRecord
from ...telemetry.logs import logger_for
from ...telemetry.metrics.router_and_worker import RouterMetrics
from ..routing.policy import Policy
from ..routing.settings import RouterSettings
from ..transport.exchange import Exchange
from .members import LineMaker
from .set_discovery import SetFeed
from .standing_set import RoutedSet, SetPool

_log = logger_for("dispatcher")

_TICK_S: Final = 0.5
_OPEN_AGAIN_S: Final = 1.0


class GangSets:
    """Finds the set that a name stands for. Nothing is read before the first call."""

    def __init__(
        self,
        bus: Bus,
        names: Names,
        settings: RouterSettings,
        *,
        exchange: Exchange,
        lines: LineMaker,
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
            on_change: called with a name that is a set's from now on, or no longer.
        """
        self._bus = bus
        self._names = names
        self._settings = settings
        self._exchange = exchange
        self._lines = lines
        self._policy = policy
        self._metrics = metrics
        self._random = random
        self._ledger = ledger
        self._numbers = numbers
        self._strays = strays
        self._on_change = on_change
        self._sets: dict[str, RoutedSet] = {}
        self._feed: SetFeed | None = None
        self._opening: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._pull_now = asyncio.Event()
        self._unlisten: Callable[[], None] | None = None
        self._pulled = False
        self._stopped = False
        self._forbidden = False
        """Our user may not follow them; it has to connect anew when that is changed."""

    # -- finding --------------------------------------------------------------------------------------------------

    @property
    def none(self) -> bool:
        """Known for certain: no set is declared."""
        return self._pulled and not self._sets

    async def find(self, name: str, deadline: float | None) -> RoutedSet | None:
        """The set of that name; None when the name is a pool's.

        Raises:
            Disconnected, Unavailable: the ledger could not be read in time.
            ClosedError: the router was stopped meanwhile.
        """
        if not self._pulled:
            await self._open_by(deadline)
        return self._sets.get(name)

    async def find_if_permitted(self, name: str, deadline: float | None) -> RoutedSet | None:
        """`find`, for who may not be allowed to follow standing sets: there are none then, and the log says so once."""
        if self._forbidden:
            return None
        try:
            return await self.find(name, deadline)
        except NotPermitted as error:
            if not self._forbidden:
                self._forbidden = True
                _log.warning("standing sets are not served: %s", error, extra={"action": "gangset.not_permitted"})
            return None

    async def _open_by(self, deadline: float | None) -> None:
        loop = asyncio.get_running_loop()
        if self._stopped:
            raise ClosedError("this router was stopped")
        if self._opening is None or self._opening.done():
            self._opening = loop.create_task(self._open(), name="gangline-open-gangsets")
        limit = loop.time() + self._settings.saturated_wait_s
        try:
            async with asyncio.timeout_at(limit if deadline is None else min(limit, deadline)):
                await asyncio.shield(self._opening)
        except TimeoutError as error:
            if not self._bus.connected:
                raise Disconnected("no connection to the server; nothing was sent") from error
            raise Unavailable("the ledger could not be read in time; nothing was sent") from error
        except asyncio.CancelledError:
            if self._opening.cancelled():
                raise ClosedError("this router was stopped") from None
            raise

    async def _open(self) -> None:
        delay_s = 0.05
        while True:
            try:
                if self._feed is None:
                    feed = SetFeed(self._bus, await self._ledger(), self._names, self)
                    await feed.start()
                    self._feed = feed
                await self._feed.pull()
                break
            except (ServerUnsupported, NotPermitted):
                raise
            except Unavailable as error:
                _pull_failed(error)
                await asyncio.sleep(delay_s)
                delay_s = min(_OPEN_AGAIN_S, 2 * delay_s)
        self._pulled = True
        self._unlisten = self._bus.on_connection(self._on_connection)
        self._following = asyncio.get_running_loop().create_task(self._follow(), name="gangline-gangsets")

    def refuse(self, error: GanglineError) -> None:
        """Tell whoever waits for a gang, or has something under way on one."""
        self._stopped = True
        for routed in self._sets.values():
            routed.close(error)

    async def stop(self) -> None:
        """Follow nothing any more. After `refuse`; idempotent, and safe before the first call."""
        self._stopped = True
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        tasks = [task for task in (self._opening, self._following) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._feed is not None:
            with contextlib.suppress(GanglineError):
                await self._feed.stop()

    def waiting(self) -> dict[str, int]:
        """Requests that wait for a gang with room, by set; of those for which any does."""
        return {name: routed.pool.core.waiting for name, routed in self._sets.items() if routed.pool.core.waiting}

    def statistics(self) -> dict[str, Any]:
        """By set: its gangs, requests waiting and placed."""
        return {name: routed.statistics() for name, routed in self._sets.items()}

    def __repr__(self) -> str:
        return f"GangSets({', '.join(self._sets) or 'none'})"

    # -- gangset_feed.SetCensus -----------------------------------------------------------------------------------

    def declared(self, name: str, record: GangSetRecord | None) -> None:
        known = self._sets.get(name)
        if record is None:
            # While a gang still stands the name is the set's: what retires takes nothing new, and then it is over.
            if known is not None and not known.gangs:
                del self._sets[name]
                self._on_change(name)
                known.close(ClosedError(f"standing set {name!r} was deleted"))
        elif known is not None:
            known.record = record
        elif not self._stopped:
            pool = SetPool(
                name,
                exchange=self._exchange,
                settings=self._settings,
                policy=self._policy(name),
                metrics=self._metrics,
                draw=self._random.random,
                numbers=self._numbers,
                strays=self._strays,
            )
            self._sets[name] = RoutedSet(name, record, pool, self._lines, self._random)
            self._on_change(name)

    def pools(self) -> list[SetPool]:
        """Of each set, what its calls wait in."""
        return [routed.pool for routed in self._sets.values()]

    def pool_of(self, name: str) -> SetPool | None:
        """The same of one set; None: there is none of that name, so far as is known."""
        routed = self._sets.get(name)
        return None if routed is None else routed.pool

    def names(self) -> list[str]:
        return list(self._sets)

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

    def known(self) -> list[str]:
        return [gang for routed in self._sets.values() for gang in (*routed.gangs, *routed.starting)]

    # -- time -----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        pull_at = loop.time() + self._settings.reconcile_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S if self._sets else self._settings.reconcile_s):
                    await self._pull_now.wait()
            try:
                now = loop.time()
                self._tick(now)
                if self._pull_now.is_set() or now >= pull_at:
                    self._pull_now.clear()
                    pull_at = now + self._settings.reconcile_s
                    await self._pull()
            except Exception:
                # A bug in one step must not end the loop.
                _log.exception("a step of the router failed", extra={"action": "router.bug"})

    def _tick(self, now: float) -> None:
        for routed in self._sets.values():
            routed.pool.tick(now)
            while routed.suspected and self._feed is not None:
                self._feed.look_up(routed.suspected.popitem()[0])

    async def _pull(self) -> None:
        assert self._feed is not None
        try:
            await self._feed.pull()
        except Unavailable as error:
            _pull_failed(error)  # a query that fails removes nothing

    def _on_connection(self, event: ConnectionEvent) -> None:
        connected = event is ConnectionEvent.RECONNECTED
        for routed in self._sets.values():
            routed.pool.connection(connected)
        if connected:
            self._pull_now.set()


def _pull_failed(error: Unavailable) -> None:
    _log.warning("cannot read the standing sets: %s", error, extra={"action": "gangset.pull_failed"})
