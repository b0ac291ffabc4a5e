"""Leases: slots of one worker, reserved once and used for many tasks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Protocol, overload

from ...runtime.timers import UsualDurations, exponential_s
from ...runtime.tracebacks import FRAMES_HIDDEN, frames_hidden, hide_frames
from ...schemas.errors.base import GanglineError, LeaseExpired, SelectionUsed, WrongPool
from ...schemas.handles import NamedTask, P, R, decoded, task_of
from ...schemas.wire.frames import AnswerOp
from ...telemetry.tracing import Span
from ..calls.attempts import AttemptLoop, AttemptTarget
from ..calls.call import Call, CallOptions, fate_of, refuses_token
from ..routing.outcome import TryOutcome, error_of_fate
from ..routing.pool_core import RoutedRequest
from ..transport.channel import Outcome
from ..transport.exchange import RequestExchange
from .fast_path import LeaseFastPath
from .held_slots import HeldSlots, HeldSlotsInfo, HeldTarget
from .lease_slots import LeaseSlots

_OK: Final = int(AnswerOp.OK)
_COMES_BACK_S: Final = 3.0
"""For this long after a reconnect, a worker without a subscription may just not have reconnected yet."""
_ASK_AGAIN_S: Final = 0.05
_SHARE_S: Final = 0.02
_MOST_SHARE_S: Final = 0.5
"""How long to wait, at first and at most, before a worker is asked again whether it has a share of the task's limit:
being asked, it gets an idle one from another worker within milliseconds."""
_LOST: Final = frozenset((TryOutcome.DRAINING,))
"""A draining worker honours existing leases; one that rejects them as draining counts as lost."""


class RequestObserver(Protocol):
    """Counts and traces a request. `since`: when the fast path sent it, if it has already been counted."""

    def __call__(
        self, order: Call, since: float | None = None
    ) -> AbstractContextManager[tuple[RoutedRequest, Span]]: ...


MakeOrder = Callable[[str, tuple[Any, ...], dict[str, Any], CallOptions], Call]


class Lease(HeldSlotsInfo):
    """Reserved slots of one worker, or of one gang of a standing set, renewed automatically. Not for use after its
    `async with` block."""

    def __init__(
        self,
        hold: HeldSlots,
        *,
        caller: AttemptLoop,
        fast_path: LeaseFastPath,
        make: MakeOrder,
        observe: RequestObserver,
        options: CallOptions,
        wait: bool,
    ) -> None:
        super().__init__(hold)
        self._caller = caller
        self._fast_path = fast_path
        self._make = make
        self._observe = observe
        self._options = options
        self._wait = wait
        self._slots = LeaseSlots(hold.slots, caller.exchange.loop, UsualDurations())

    @property
    def used(self) -> int:
        """Slots in use by tasks of this lease, including cancelled tasks that have not stopped yet."""
        return self._slots.used

    @property
    def lost(self) -> GanglineError | None:
        """Why the lease can no longer be used; None while it can."""
        if self.hold.ended:
            return LeaseExpired(f"the lease on {self.worker} was released")
        return self.hold.trouble()

    # -- work -----------------------------------------------------------------------------------------------------

    @overload
    async def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any: ...

    @overload
    async def call(  # a task that yields: the list of its items
        self, method: Callable[P, AsyncIterator[R] | Iterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> list[R]: ...

    @overload
    async def call(self, method: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    async def call(self, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    async def call(self, method: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run a task on the lease and return its result. Waits while all slots of the lease are in use, and while
        the task is at a limit that it declares. Cancelling cancels the task; its slot is free again when it has
        stopped.

        Args:
            method: name of the task, or its function, as for Client.call.
            *args: positional arguments of the task.
            **kwargs: named arguments of the task.

        Raises:
            LeaseExpired, StaleEpoch, WorkerLost: the lease is lost; `may_have_started` says whether the task may have
                started.
            LeaseBusy: all slots are in use, or the task is at a limit that it declares, and the lease was made with
                `wait=False`; nothing was started.
            GanglineError: see Client.call.
        """
        try:
            if not isinstance(method, str):
                name, task = self._named(method)
                return decoded(task, await self.call(name, *args, **kwargs))
            fast_path = self._fast_path
            flight = fast_path.on_lease(self.hold, self._slots, method, args, kwargs, self._options)
            if flight is None:
                order = self._order(method, args, kwargs)
                order.span_parent = fast_path.parent
                with self._observe(order) as (request, span):
                    return await self._caller.run(self._target(order, request), span)
            try:
                outcome = await flight.future
            except BaseException as error:
                fast_path.failed(flight, error)
                raise
            if type(outcome) is not list or outcome[0] != _OK:
                order = self._order(method, args, kwargs)
                order.deadline, order.span_parent = flight.deadline, flight.trace
                with self._observe(order, since=flight.sent_at) as (request, span):
                    request.attempts = 1
                    target = self._target(order, request)
                    target.sent_at = flight.sent_at
                    return await self._caller.run(target, span, tried=(target, outcome))
            if self._caller.exchange.measured:
                fast_path.answered(flight)
            return outcome[2]
        except GanglineError as error:
            hide_frames(error)
            raise

    @overload
    def stream(self, method: str, /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]: ...

    @overload
    def stream(
        self, method: Callable[P, AsyncIterator[R] | Iterator[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[R, None]: ...

    async def stream(self, method: Any, /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        """Run a task on the lease and yield its items. Leaving the loop early cancels the task. `method` is as for
        `call`.

        Raises:
            InvalidRequest: the task does not stream; nothing was sent.
            GanglineError: as `call`; StreamBroken when items were lost.
        """
        with FRAMES_HIDDEN:
            task: NamedTask | None = None
            if not isinstance(method, str):
                method, task = self._named(method)
            order = self._order(method, args, kwargs)
            with self._observe(order) as (request, span):
                items = self._caller.stream(order, self._target(order, request), span)
                async with contextlib.aclosing(items):
                    async for item in items:
                        yield item if task is None else task.decode(item)

    def renew(self) -> None:
        """Renew the lease now instead of waiting for the next automatic renewal."""
        self.hold.renew()

    def release(self) -> None:
        """Release the slots now; those in use are released as their tasks end. Idempotent, never waits."""
        self.hold.release()
        self._slots.close()

    def __repr__(self) -> str:
        lost = self.lost
        state = f"lost: {lost.code}" if lost else "held"
        return f"Lease({self.worker}, {self.used}/{self.slots} slots used, {state})"

    # -- inside ---------------------------------------------------------------------------------------------------

    def _named(self, target: object) -> tuple[str, NamedTask]:
        task = task_of(target, (self.pool, self.endpoint))
        ours = task.full_name.partition(".")[0] in (self.pool, self.endpoint)
        return task.name if ours else task.full_name, task

    def _order(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        endpoint, dot, name = method.rpartition(".")
        if dot and endpoint not in (self.pool, self.endpoint):
            raise WrongPool(f"this lease is of pool {self.pool!r}, not of {endpoint!r}: lease a worker of that pool")
        order = self._make(f"{endpoint or self.endpoint}.{name}", args, kwargs, self._options)
        order.pool = self.pool
        return order

    def _target(self, order: Call, request: RoutedRequest) -> LeaseTarget:
        return LeaseTarget(self, order, request, self._slots, wait=self._wait, exchange=self._caller.exchange)


class LeaseTarget(HeldTarget):
    """The slots of a lease. A task that cannot have reached the worker may be sent again."""

    spans = True
    told = False
    sent_at = 0.0
    """Loop time, not after the last attempt was sent."""
    limited = 0
    """How often the worker had no share of the task's declared limit."""

    def __init__(
        self,
        lease: Lease,
        order: Call,
        request: RoutedRequest,
        slots: LeaseSlots,
        *,
        wait: bool,
        exchange: RequestExchange,
    ) -> None:
        """`request`: counts the attempts; `wait`: whether to wait while all slots are in use."""
        super().__init__(order, lease.hold, slots)
        self.usual = slots.usual
        self._slots = slots
        self._lease = lease
        self._request = request
        self._wait = wait
        self._exchange = exchange

    async def place(self, fate: TryOutcome | None) -> AttemptTarget:
        if fate is not None and not await self._may_repeat(fate):
            raise error_of_fate(fate, str(self.worker.id), attempts=1, lost=_LOST)
        self.hold.check_streams(self)
        self.routed_request = routed_request = await self._slots.enter(
            self.order, self.worker, self, wait=self._wait, check=self._check
        )
        self._request.attempts += 1
        routed_request.attempts = self._request.attempts
        self.sent_at = self._exchange.loop.time()
        return self

    def settle(self, outcome: Outcome) -> TryOutcome | None:
        fate = fate_of(outcome)
        if fate is None and not refuses_token(outcome):
            self.hold.used(self.sent_at)
        return fate

    async def failed(self, error: GanglineError) -> TryOutcome:
        lost = await self.hold.lost_by(error, self.order.deadline)
        if lost is error:
            raise error
        raise lost from error

    async def _may_repeat(self, fate: TryOutcome) -> bool:
        """Whether to send it again; waits until a retry makes sense.

        After a reconnect, a request without subscriber may be sent again: the worker may reconnect later than this
        client and still have the lease.
        """
        exchange = self._exchange
        if fate is TryOutcome.LIMITED and self._wait:
            await self._wait_for_share()
            return True
        if fate is TryOutcome.UNHEARD and exchange.loop.time() - exchange.reconnected_at < _COMES_BACK_S:
            await asyncio.sleep(_ASK_AGAIN_S)
            return True
        return fate is TryOutcome.UNSEEN

    async def _wait_for_share(self) -> None:
        """
        Raises:
            DeadlineExceeded: the task's deadline would pass meanwhile.
        """
        loop, deadline = self._exchange.loop, self.order.deadline
        delay_s = exponential_s(_SHARE_S, _MOST_SHARE_S, self.limited)
        self.limited += 1
        if deadline is not None and loop.time() + delay_s >= deadline:
            await asyncio.sleep(max(0.0, deadline - loop.time()))
            raise self.order.too_late(may_have_started=False)
        await asyncio.sleep(delay_s)

    def __str__(self) -> str:
        return f"the lease on {self.worker.id}"

    def _check(self) -> None:
        if (error := self._lease.lost) is not None:
            raise error


class LeaseAcquisition:
    """`async with router.lease(...) as lease`: reserves on entry, releases on exit."""

    def __init__(self, make: Callable[[], Awaitable[Lease]]) -> None:
        self._make = make
        self._lease: Lease | None = None

    @frames_hidden
    async def __aenter__(self) -> Lease:
        if self._lease is not None:
            raise SelectionUsed("this was entered already: call lease again")
        self._lease = await self._make()
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease is not None:
            self._lease.release()
