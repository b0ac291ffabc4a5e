"""A worker that was selected, with a slot reserved for one task until it is dispatched.

======== =================================== ========
state    event                               becomes
======== =================================== ========
OPEN     dispatched                          USED
OPEN     the `async with` block ends         CLOSED (the slot is released)
USED     the `async with` block ends         USED (the task has the slot)
USED     dispatched                          raises SelectionUsed
CLOSED   dispatched                          raises SelectionClosed
======== =================================== ========
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Final

from ...schemas.errors.base import (
    GanglineError,
    LeaseExpired,
    SelectionClosed,
    SelectionUsed,
    WorkerLost,
    WrongPool,
)
from ...schemas.names import WorkerId
from ..calls.attempts import AttemptTarget, TaskTarget
from ..calls.call import Call, fate_of, refuses_token
from ..calls.streaming import StreamRequest
from ..routing.outcome import TryOutcome, error_of_fate
from ..routing.pool_core import RoutedRequest
from ..transport.channel import Outcome, TaskRequest
from .held_slots import HeldSlots, HeldSlotsInfo, HeldTarget


class SelectionState(Enum):
    OPEN = "open"
    USED = "used"
    CLOSED = "closed"


# Reading an enum member costs ten times as much as a module global (CPython 3.11).
OPEN: Final = SelectionState.OPEN
_USED: Final = SelectionState.USED
_CLOSED: Final = SelectionState.CLOSED


class Selection(HeldSlotsInfo):
    """A selected worker, or a selected gang of a standing set. Its slot is renewed automatically while it is held."""

    state: SelectionState = OPEN
    choice: Choice | None = None
    """Requirements on the worker, if there are any."""
    _moved: WorkerId | None = None
    _moved_to_gang: str | None = None

    @property
    def gang(self) -> str | None:
        """The selected gang of a standing set, or the gang that ran the task if it had to move; None for a plain
        pool."""
        return self._moved_to_gang or self.hold.gang

    @property
    def worker(self) -> str:
        """`<pool>.<worker>`: the selected worker, or the one that ran the task if it had to move."""
        return str(self._moved or self.hold.worker.id)

    def moved_to(self, worker: WorkerId | None, gang: str | None = None) -> None:
        """Note that the task was sent elsewhere: to this worker, which for a gang is that of rank 0."""
        self._moved, self._moved_to_gang = worker, gang

    def moving(self, fate: TryOutcome) -> None:
        """Call this before the task is sent elsewhere, with the outcome of the first attempt.

        Raises:
            WorkerLost, ResultLost: the choice forbids moving.
        """
        if self.choice is None or self.choice.move:
            return
        if fate.may_have_started:
            raise error_of_fate(fate, self.worker, attempts=1, idempotent=True)  # if it is or not: it must not move
        raise WorkerLost(
            f"{self.worker} was chosen with move=False, and the task cannot start there ({fate.value}): choose again",
            may_have_started=False,
        )

    def check_usable(self, pool: str) -> None:
        """Check, before anything is sent, that the selection can be dispatched.

        Raises:
            SelectionUsed, SelectionClosed, WrongPool, LeaseExpired: it cannot; nothing was sent.
        """
        if self.state is _USED:
            raise SelectionUsed(
                f"this selection of {self.worker} was dispatched already: choose again for another task"
            )
        if self.state is _CLOSED:
            raise SelectionClosed(f"this selection of {self.worker} was closed: dispatch inside its `async with` block")
        if pool != self.pool:
            raise WrongPool(f"this selection is of pool {self.pool!r}, not of {pool!r}: choose a worker of that pool")
        trouble = self.hold.trouble()
        if isinstance(trouble, LeaseExpired):
            raise trouble

    def mark_used(self) -> None:
        self.state = _USED

    def close(self) -> None:
        """Release the slot if it was not used. Idempotent; never fails or waits."""
        if self.state is OPEN:
            self.hold.release()
            self.state = _CLOSED

    def __repr__(self) -> str:
        return f"Selection({self.worker}, {self.state.value}, epoch={self.epoch}, fence={self.fence})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Requirements on the selected worker and on any replacement."""

    labels: Mapping[str, str] | None = None
    key: str | None = None
    move: bool = True
    """Whether another worker may replace it."""

    def put_on(self, routed_request: RoutedRequest) -> None:
        """Add these requirements to a request's own."""
        if self.labels:
            routed_request.labels = {**self.labels, **(routed_request.labels or {})}
        if routed_request.key is None:
            routed_request.key = self.key


class WorkerChoice:
    """`async with router.choose_worker(...) as selection`: reserves on entry, releases on exit if it was not used."""

    selection: Selection | None = None
    """The selection, as soon as `choose` has made it."""
    _entered = False

    choice: Choice | None = None
    """Requirements to pass on to the selection."""

    def __init__(self, choose: Choose, *args: Any) -> None:
        """`choose`: called with this object and these arguments on entry."""
        self._choose = choose
        self._args = args

    def __aenter__(self) -> Coroutine[Any, Any, Selection]:
        if self._entered:
            raise SelectionUsed("this was entered already: call choose_worker again")
        self._entered = True
        return self._choose(self, *self._args)

    def chosen(self, hold: HeldSlots) -> Selection:
        """Make the selection from this slot."""
        self.selection = selection = Selection(hold)
        if self.choice is not None:
            selection.choice = self.choice
        return selection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.selection is not None:
            self.selection.close()


Choose = Callable[..., Coroutine[Any, Any, Selection]]
"""Reserves a slot. Its first argument is the WorkerChoice, which it informs with `chosen`."""


class SelectedTarget(HeldTarget):
    """The slot of a selection, or any other slot if its task cannot have started there or may be retried."""

    _next: AttemptTarget | None = None
    """The target of further attempts."""
    _token_lives = True
    """Whether the token may still hold the slot, although the task was sent with it."""

    def __init__(
        self, selection: Selection, order: Call, *, max_attempts: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(order, selection.hold, selection.hold.pool)
        self._selection = selection
        self._max_attempts = max_attempts
        self._loop = loop

    @property
    def uncertain(self) -> bool:
        return self._next is not None and self._next.uncertain

    async def place(self, fate: TryOutcome | None) -> AttemptTarget:
        selection, hold = self._selection, self.hold
        if self._next is None:
            if fate is None and hold.trouble() is None:
                self.order.remaining_ms(self._loop.time())
                hold.check_streams(self)
                self.routed_request = hold.routed_request
                self.routed_request.attempts = 1
                return self
            self._next = hold.elsewhere(self.order, self._leave(fate))
            fate = None
        at = self._next.place_nowait(fate) or await self._next.place(fate)
        assert isinstance(at, TaskTarget)
        selection.moved_to(*at.where)
        return at

    def _leave(self, fate: TryOutcome | None) -> RoutedRequest:
        """Give up the slot; returns a request for another worker or gang with the same requirements.

        Raises:
            WorkerLost, ResultLost: the choice forbids moving, or the task must not be retried.
        """
        selection, hold = self._selection, self.hold
        if fate is None:
            # The worker is lost or has a new epoch: nothing was sent, so any other will do.
            fate = TryOutcome.GONE
            selection.mark_used()
            hold.release()
        else:
            if fate.may_have_started and not hold.allows_repeat(self.order):
                raise error_of_fate(fate, selection.worker, attempts=1)
            self._give_back()
        selection.moving(fate)
        routed_request = self.order.routed_request(self._max_attempts)
        routed_request.attempts, routed_request.last = 1, hold.counts_on.id
        if selection.choice is not None:
            selection.choice.put_on(routed_request)
        if fate.may_have_started:
            routed_request.uncertain, routed_request.uncertain_at = fate, routed_request.last
        return routed_request

    def settle(self, outcome: Outcome) -> TryOutcome | None:
        fate = fate_of(outcome)
        if fate is None:
            if refuses_token(outcome):
                return TryOutcome.GONE
            self.hold.pool.accepted(self.hold.routed_request)
        return fate

    async def failed(self, error: GanglineError) -> TryOutcome:
        self._give_back()
        fate = await self.hold.fate_after(error, self.order.deadline)
        if fate is None:
            raise error
        return fate

    def sent(self, flight: TaskRequest | StreamRequest | None) -> None:
        self._selection.mark_used()
        self.hold.consume()

    def unsent(self) -> None:
        """The selection stays open and is released when its block ends."""

    def left(self, flight: TaskRequest | StreamRequest | None, error: BaseException | None) -> None:
        if error is not None:
            # Cancelled or out of time: if the task did not reach the worker, the token still holds the slot.
            self._give_back()

    def _give_back(self) -> None:
        if self._token_lives:
            self._token_lives = False
            self.hold.give_back()
