"""Slots of a standing set's gang that are held for many tasks: a lease whose tasks run on rank 0, or on every rank."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from ...schemas.errors.base import GanglineError
from ...telemetry.tracing import Span
from ..calls.call import Order
from ..leases.lease import Lease
from ..routing.request import Ticket
from ..transport.flights import Outcome
from .member_slots import GangHold
from .standing_set import for_rank, no_stream_of_all


class GangLease(Lease):
    """Some slots of one gang; of each rank as many, where the set's calls run on all. See Lease."""

    hold: GangHold

    async def stream(self, method: str, /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        """The items of rank 0; see Lease.stream.

        Raises:
            InvalidRequest: the set's calls run on all ranks; nothing was sent.
        """
        hold, order = self.hold, self._order(method, args, kwargs)
        if hold.on_all:
            raise no_stream_of_all(self.pool)
        with self._observe(order) as (_, span):
            ticket = await self._enter(order)
            (slots,) = hold.slots_for(self._slots, ticket)
            each = for_rank(order, hold.formation, 0)
            try:
                items = hold.lines[0].stream(each, span, patient=False, held=slots)
                async with contextlib.aclosing(items):
                    async for item in items:
                        yield item
            except GanglineError as error:
                lost = await hold.routed.lost_on(hold, error, order.deadline)
                if lost is error:
                    raise
                raise lost from error

    async def _run(self, order: Order, request: Ticket, span: Span, tried: tuple[Outcome, float] | None = None) -> Any:
        ticket = await self._enter(order)
        request.attempts = ticket.attempts = 1
        return await self.hold.routed.call_on(self.hold, order, self._slots, ticket, span)
