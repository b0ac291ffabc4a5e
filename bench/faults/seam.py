"""Faults at exact moments of a coordinator's work, injected at its bus, without any change to the coordinator.

A `SeamBus` forwards everything to a real bus, and calls a `Trigger` just before (and for batches also just after)
each message that concerns one gang.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any

from gangline.bus.port.bus import Answered, BucketSettings, Bus, KeyValue, KvWrite


class Moment(StrEnum):
    HOLD = "hold"
    """Before the nth request to hold is sent."""
    BATCH = "batch"
    """Before the batch that grants the members."""
    GRANTED = "granted"
    """That batch was acknowledged, but the coordinator does not know it yet."""
    FORM = "form"
    """Before the nth request to form is sent."""
    CLOSE = "close"
    """Before the batch that ends the members."""
    CLOSED = "closed"
    """That batch was acknowledged."""
    TEARDOWN = "teardown"
    """Before the nth request to stop is sent."""


Trigger = Callable[[Moment, int], Awaitable[None]]
"""Called with the moment, and its count, from 1."""

_REQUESTS = {"hold": Moment.HOLD, "form": Moment.FORM, "teardown": Moment.TEARDOWN}
_BATCHES = {"formed": (Moment.BATCH, Moment.GRANTED), "tearing_down": (Moment.CLOSE, Moment.CLOSED)}


class Seam:
    """Counts the moments of one gang."""

    def __init__(self, gang: str, trigger: Trigger) -> None:
        self.gang = gang
        self._trigger = trigger
        self._counts = dict.fromkeys(Moment, 0)

    async def passes(self, moment: Moment) -> None:
        self._counts[moment] += 1
        await self._trigger(moment, self._counts[moment])


class SeamBus:
    """A bus.port.bus.Bus."""

    def __init__(self, bus: Bus, seam: Seam) -> None:
        self._bus = bus
        self._seam = seam
        self._passing: set[asyncio.Task[None]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    def ask(self, subject: str, data: bytes = b"", *, timeout_s: float, then: Answered) -> None:
        moment = _REQUESTS.get(subject.rpartition(".")[2])
        if moment is None or json.loads(data).get("gang") != self._seam.gang:
            self._bus.ask(subject, data, timeout_s=timeout_s, then=then)
            return

        async def passes() -> None:
            await self._seam.passes(moment)
            self._bus.ask(subject, data, timeout_s=timeout_s, then=then)

        task = asyncio.get_running_loop().create_task(passes())
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def bucket(self, name: str, settings: BucketSettings, *, make: bool = True) -> KeyValue:
        return SeamKeyValue(await self._bus.bucket(name, settings, make=make), self._seam)  # type: ignore[return-value]


class SeamKeyValue:
    """A bus.port.key_value.KeyValue."""

    def __init__(self, kv: KeyValue, seam: Seam) -> None:
        self._kv = kv
        self._seam = seam

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)

    async def commit(self, writes: Sequence[KvWrite]) -> int:
        mine = [write.value for write in writes if write.key == f"gang.{self._seam.gang}" and write.value]
        moments = _BATCHES.get(json.loads(mine[0])["state"]) if mine else None
        if moments is None:
            return await self._kv.commit(writes)
        await self._seam.passes(moments[0])
        revision = await self._kv.commit(writes)
        await self._seam.passes(moments[1])
        return revision
