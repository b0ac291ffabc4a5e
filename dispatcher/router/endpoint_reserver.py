"""Holding slots for a router's requests: where, by which way, and what is held now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ...schemas.errors.base import ClosedError
from ...schemas.wire.frames import AnswerOp, ReserveFlag
from ...telemetry.tracing import tracer
from ..calls.attempts import AttemptLoop, AttemptTarget
from ..calls.call import CallOptions
from ..gangs.set_registry import SetRegistry
from ..gangs.standing_set import StandingSetRouter
from ..leases.fast_path import LeaseFastPath, PlainReserve
from ..leases.held_slots import HeldSlots, RenewalSet, ReserveTarget, SlotRequest, SlotReserver
from ..leases.selection import Selection, WorkerChoice
from ..pools.pool import RoutedPool
from ..pools.registry import PoolRegistry
from ..routing.outcome import TryOutcome
from ..routing.request import RoutedRequest
from ..routing.settings import RouterSettings
from ..transport.channel import Outcome
from .traffic_director import EndpointTarget, TrafficDirector

_DEFAULTS = CallOptions()


class EndpointReserver:
    """Makes holds, and knows all that live."""

    def __init__(
        self,
        caller: AttemptLoop,
        reserver: SlotReserver,
        fast_path: LeaseFastPath,
        traffic: TrafficDirector,
        following: PoolRegistry,
        sets: SetRegistry,
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
        self._caller = caller
        self._reserver = reserver
        self._fast_path = fast_path
        self.traffic = traffic
        self._following = following
        self._sets = sets
        self._check_open = check_open
        self._deadline = deadline
        self._max_attempts = settings.max_attempts
        self._holds = RenewalSet()

    def __len__(self) -> int:
        return len(self._holds)

    def release_all(self) -> None:
        """The router stops."""
        self._holds.release_all()
        self._fast_path.close()

    async def choose(self, choosing: WorkerChoice, endpoint: str, options: CallOptions) -> Selection:
        """Hold one slot for one task, the short way if there is nothing special about it; as `reserve`."""
        fast_path, holds = self._fast_path, self._holds
        asked = None if holds.closed else fast_path.reserve(endpoint, options)
        if asked is None:
            self._check_open()
            flags, deadline, ttl_s = ReserveFlag.SINGLE_USE, self._deadline(options), fast_path.terms.ttl_s
            return choosing.chosen(
                await self.reserve(endpoint, None, 1, ttl_s=ttl_s, flags=flags, options=options, deadline=deadline)
            )
        try:
            outcome = await asked.future
        except asyncio.CancelledError:
            self._reserver.undo(asked)
            raise
        finally:
            fast_path.reserved(asked)
        if type(outcome) is not list or outcome[0] != AnswerOp.GRANTED:
            return choosing.chosen(self._held(await self._go_on(endpoint, asked, outcome)))
        hold = fast_path.granted(asked, outcome)
        holds.keep_briefly(hold)
        if holds.closed:
            self._check_held(hold)
        return choosing.chosen(hold)

    async def _go_on(self, endpoint: str, asked: PlainReserve, outcome: Outcome) -> HeldSlots:
        """What was asked for the short way was not granted: from here on it goes the general way."""
        fate = self._reserver.refused(asked, outcome)
        routed_request = RoutedRequest(method=None, slots=1, max_attempts=self._max_attempts)
        asked.pool.core.tried_plain(routed_request, asked.worker, asked.id, asked.sent_at)
        routed_request.endpoint = endpoint
        wanted = SlotRequest(routed_request, self._fast_path.terms.ttl_s, ReserveFlag.SINGLE_USE, None)
        at = ReserveTarget(self._reserver, asked.pool, wanted)
        at.worker = asked.worker
        return await self._somewhere(_HeldEndpoint(self, endpoint, wanted, _DEFAULTS, at=at), tried=(at, fate))

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
    ) -> HeldSlots:
        """Hold slots of one worker, or of one gang of a standing set.

        Args:
            endpoint: or the pool.
            method: the task that they are for, if that matters; `slots` None: what it costs.
            sets: the pool that the options name may be a standing set.

        Raises:
            Unavailable: see RoutedPool.place.
            GanglineError: what the worker answered.
        """
        routed_request = RoutedRequest(
            method=method,
            slots=slots,
            key=options.key,
            model=options.model,
            labels=options.labels,
            patient=deadline is not None,
            max_attempts=options.max_attempts or self._max_attempts,
            queue=options.queue,
        )
        target = _HeldEndpoint(self, endpoint, SlotRequest(routed_request, ttl_s, flags, deadline), options, sets=sets)
        with tracer.span("gangline.reserve", kind="client", attributes={"gangline.pool": endpoint}) as span:
            hold = await self._somewhere(target)
            span.set(gangline__worker=str(hold.worker.id), gangline__pool=hold.pool.name)
        return self._held(hold)

    def _held(self, hold: HeldSlots) -> HeldSlots:
        self._holds.keep(hold)
        self._check_held(hold)
        return hold

    def _check_held(self, hold: HeldSlots) -> None:
        """It was granted; but the router may have stopped since."""
        try:
            self._check_open()
        except ClosedError:
            hold.release()
            raise

    async def _somewhere(
        self, target: _HeldEndpoint, tried: tuple[AttemptTarget, TryOutcome] | None = None
    ) -> HeldSlots:
        """`tried`: a first try, made elsewhere, that came to nothing."""
        try:
            hold: HeldSlots = await self._caller.run(target, tried=tried)
            hold.endpoint = target.endpoint
            return hold
        finally:
            target.over()

    async def target(self, of: _HeldEndpoint) -> AttemptTarget:
        """A pool (or standing set) of an endpoint's route, or the pool that the options name, to hold slots of."""
        self._check_open()
        endpoint, asked = of.endpoint, of.asked
        pool: RoutedPool | StandingSetRouter
        if of.options.pool is None:
            pool = await self.traffic.find(endpoint, asked.routed_request, asked.deadline)
        else:
            routed = await self._sets.find_if_permitted(endpoint, asked.deadline) if of.sets else None
            pool = routed or await self._following.get(endpoint, asked.deadline)
        if isinstance(pool, StandingSetRouter):
            return pool.reserve_target(self._reserver, asked)
        return ReserveTarget(self._reserver, pool, asked)


class _HeldEndpoint(EndpointTarget):
    """Slots of whoever serves an endpoint."""

    def __init__(
        self,
        reserving: EndpointReserver,
        endpoint: str,
        asked: SlotRequest,
        options: CallOptions,
        *,
        sets: bool = False,
        at: AttemptTarget | None = None,
    ) -> None:
        """See EndpointReserver.reserve."""
        super().__init__(reserving.traffic, asked.routed_request, at)
        self.endpoint = endpoint
        self.asked = asked
        self.options = options
        self.sets = sets
        self._reserving = reserving

    def find(self) -> Coroutine[Any, Any, AttemptTarget]:
        return self._reserving.target(self)
