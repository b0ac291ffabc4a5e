"""Holding slots for a router's requests: where, by which way, and what is held now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...schemas.errors.base import ClosedError, NoWorkers
from ...schemas.wire.frames import ReserveFlag
from ...telemetry.tracing import tracer
from ..calls.call import CallOptions
from ..calls.fast_requests import Detour
from ..gangs.set_registry import GangSets
from ..gangs.standing_set import RoutedSet
from ..leases.fast_path import HeldExpress
from ..leases.fast_requests import PlainReserve
from ..leases.held_slots import Hold, Holds, Reserver
from ..leases.selection import Choosing, Selection
from ..pools.pool import Moved, RoutedPool
from ..pools.registry import Pools
from ..routing.outcome import Fate
from ..routing.request import Ticket
from ..routing.settings import RouterSettings
from ..routing.worker_table import Worker
from ..transport.flights import Outcome
from .traffic_director import Traffic

_DEFAULTS = CallOptions()


class Reserving:
    """Makes holds, and knows all that live."""

    def __init__(
        self,
        reserver: Reserver,
        express: HeldExpress,
        traffic: Traffic,
        following: Pools,
        sets: GangSets,
        *,
        check_open: Callable[[], None],
        deadline: Callable[[CallOptions], float | None],
        settings: RouterSettings,
    ) -> None:
        """
        Args:
            check_open: raises when the router does not run.
            deadline: of a request that is made now.
        """
        self._reserver = reserver
        self._express = express
        self._traffic = traffic
        self._following = following
        self._sets = sets
        self._check_open = check_open
        self._deadline = deadline
        self._max_attempts = settings.max_attempts
        self._holds = Holds()

    def __len__(self) -> int:
        return len(self._holds)

    def release_all(self) -> None:
        """The router stops."""
        self._holds.release_all()
        self._express.close()

    async def choose(self, choosing: Choosing, endpoint: str, options: CallOptions) -> Selection:
        """Hold one slot for one task, the short way if there is nothing special about it; as `reserve`."""
        express, holds = self._express, self._holds
        asked = None if holds.closed else express.reserve(endpoint, options)
        if asked is None:
            self._check_open()
            flags, deadline, ttl_s = ReserveFlag.SINGLE_USE, self._deadline(options), express.terms.ttl_s
            return choosing.chosen(
                await self.reserve(endpoint, None, 1, ttl_s=ttl_s, flags=flags, options=options, deadline=deadline)
            )
        try:
            outcome = await asked.future
        except asyncio.CancelledError:
            self._reserver.undo(asked)
            raise
        finally:
            express.reserved(asked)
        if type(outcome) is Detour:
            return choosing.chosen(self._held(await self._go_on(endpoint, asked, outcome.outcome)))
        hold = express.granted(asked, outcome)
        holds.keep_briefly(hold)
        if holds.closed:
            self._check_held(hold)
        return choosing.chosen(hold)

    async def _go_on(self, endpoint: str, asked: PlainReserve, outcome: Outcome) -> Hold:
        """What was asked for the short way was not granted: from here on it goes the general way."""
        fate = self._reserver.refused(asked, outcome)
        ticket = Ticket(method=None, slots=1, max_attempts=self._max_attempts)
        asked.pool.core.tried_plain(ticket, asked.worker, asked.id, asked.sent_at)
        tried = (asked.pool, (asked.worker, fate))
        flags = ReserveFlag.SINGLE_USE
        return await self._somewhere(endpoint, ticket, self._express.terms.ttl_s, flags, None, _DEFAULTS, tried)

    async def reserve(
        self,
        endpoint: str,
        method: str | None,
        slots: int | None,
        *,
        ttl_s: float,
        flags: ReserveFlag,
        options: CallOptions,
        deadline: float | None,
        sets: bool = False,
    ) -> Hold:
        """Hold slots of one worker, or of one gang of a standing set.

        Args:
            endpoint: or the pool.
            method: the task that they are for, if that matters; `slots` None: what it costs.
            sets: the pool that the options name may be a standing set.

        Raises:
            GanglineError: see Reserver.reserve.
        """
        ticket = Ticket(
            method=method,
            slots=slots,
            key=options.key,
            model=options.model,
            labels=options.labels,
            patient=deadline is not None,
            max_attempts=options.max_attempts or self._max_attempts,
            queue=options.queue,
        )
        with tracer.span("gangline.reserve", kind="client", attributes={"gangline.pool": endpoint}) as span:
            hold = await self._somewhere(endpoint, ticket, ttl_s, flags, deadline, options, sets=sets)
            span.set(gangline__worker=str(hold.worker.id), gangline__pool=hold.pool.name)
        return self._held(hold)

    def _held(self, hold: Hold) -> Hold:
        self._holds.keep(hold)
        self._check_held(hold)
        return hold

    def _check_held(self, hold: Hold) -> None:
        """It was granted; but the router may have stopped since."""
        try:
            self._check_open()
        except ClosedError:
            hold.release()
            raise

    async def _somewhere(
        self,
        endpoint: str,
        ticket: Ticket,
        ttl_s: float,
        flags: ReserveFlag,
        deadline: float | None,
        options: CallOptions,
        tried: tuple[RoutedPool, tuple[Worker, Fate]] | None = None,
        *,
        sets: bool = False,
    ) -> Hold:
        """Hold slots in a pool (or standing set) of the endpoint's route, or in the pool that the options name.

        Args:
            tried: where a first try, made elsewhere, came to nothing, and why.
        """
        failed: tuple[Worker, Fate] | None = None
        pool: RoutedPool | RoutedSet
        try:
            while True:
                self._check_open()
                if tried is not None:
                    (pool, failed), tried = tried, None
                    ticket.endpoint = endpoint
                elif options.pool is None:
                    pool = await self._traffic.find(endpoint, ticket, deadline)
                else:
                    routed = await self._sets.find_if_permitted(endpoint, deadline) if sets else None
                    pool = routed or await self._following.get(endpoint, deadline)
                there, failed = failed, None
                try:
                    hold: Hold
                    if isinstance(pool, RoutedSet):
                        hold = await pool.hold(self._reserver, ticket, ttl_s=ttl_s, flags=flags, deadline=deadline)
                    else:
                        hold = await self._reserver.reserve(
                            pool, ticket, ttl_s=ttl_s, flags=flags, deadline=deadline, tried=there
                        )
                except Moved:
                    continue
                except NoWorkers:
                    if not self._traffic.elsewhere(ticket):
                        raise
                else:
                    hold.endpoint = endpoint
                    return hold
        finally:
            if ticket.visit is not None:
                self._traffic.over(ticket)  # one that is held counts until it is given back
