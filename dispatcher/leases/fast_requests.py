"""Requests of the fast path that take a slot, or use one that is held."""

from __future__ import annotations

import asyncio
from typing import Any

from ...schemas.wire.frames import Frame
from ..calls.fast_requests import _GRANTED, _OK, PlainFlight, ShortFlight
from ..pools.pool import RoutedPool
from ..routing.worker_table import Worker
from ..transport.flights import Books
from .held_slots import Hold
from .lease_slots import LeaseSlots


class LeasedFlight(PlainFlight):
    """A task on a lease: it uses one of its slots."""

    cost = 1

    def __init__(self, id: int, future: asyncio.Future[Any], hold: Hold, slots: LeaseSlots) -> None:
        self.id = id
        self.worker = hold.worker
        self.future = future
        self.hold = hold
        self.pool = hold.pool
        self.slots = slots

    @property
    def books(self) -> Books:  # type: ignore[override]
        return self.slots

    @property
    def endpoint(self) -> str:
        return self.hold.endpoint

    def settle(self) -> None:
        self.slots.give(self)

    def deliver(self, frame: Frame) -> bool:
        if frame[0] != _OK:
            return self._deliver_other(frame)
        assert self.parcel is not None
        self.slots.give(self)
        self.hold.used(self.parcel.begun_at)
        if not self.future.done():
            self.future.set_result(frame[2])
        return True


class TokenFlight(PlainFlight):
    """A task on a slot that was chosen: it takes the slot over, and what counts for it."""

    def __init__(self, id: int, future: asyncio.Future[Any], hold: Hold) -> None:
        self.id = id
        self.worker = hold.worker
        self.future = future
        self.hold = hold
        self.pool = hold.pool

    @property
    def endpoint(self) -> str:
        return self.hold.endpoint

    def settle(self) -> None:
        self.hold.settle()

    def deliver(self, frame: Frame) -> bool:
        if frame[0] != _OK:
            return self._deliver_other(frame)
        charge = self.hold.charge
        if charge is None:
            self.worker.ended += 1
        else:
            self.pool.settle(charge)
            self.pool.accepted(charge)
        if not self.future.done():
            self.future.set_result(frame[2])
        return True


class PlainReserve(ShortFlight):
    """A slot of any worker. Its future ends with the frame that grants it, and then it still counts, for the Hold that
    is made of it; or with a Detour."""

    reserves = True
    _counts = True

    def __init__(self, id: int, worker: Worker, future: asyncio.Future[Any], pool: RoutedPool) -> None:
        self.id = id
        self.worker = worker
        self.future = future
        self.pool = pool

    def settle(self) -> None:
        """Idempotent: one that was too slow is given up after its end."""
        if self._counts:
            self._counts = False
            self.pool.core.end_plain(self.worker)

    def deliver(self, frame: Frame) -> bool:
        if frame[0] != _GRANTED:
            self._end(frame)
        elif not self.future.done():
            self.future.set_result(frame)
        return True
