"""The journal: one line of facts for each thing that happened to a worker's slots, for checkers and for people.

Its records are what law L1 is checked from after the fact: each carries the slots as they were at that instant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...runtime.clock import Environment
from ...schemas.names import WorkerId
from ..slots.admission_core import AdmissionCore
from ..slots.lease_table import GrantedLease, LeaseTransition

JournalSink = Callable[[dict[str, Any]], None]
"""Takes one record; must not block and must not raise."""

_EVENTS = {
    LeaseTransition.GRANT: "grant",
    LeaseTransition.USE: "use",
    LeaseTransition.RELEASE: "release",
    LeaseTransition.EXPIRE: "expire",
    LeaseTransition.DROP: "drop",
    LeaseTransition.TEARDOWN: "release",
}
"""Renewals are left out: they move no slot."""


class AuditJournal:
    """Writes records `{"t", "event", "worker", "epoch", "running", "reserved", "total", ...}` into a sink.

    Events: start, end (a task; of a durable one with job, endpoint and attempt); attach (one more request hears how a
    job ends); grant, use, release, expire, drop (a lease; `use`: a single-use token was consumed); reject; epoch,
    resize, drain, leave (the worker); hold, unhold, keep, form, teardown, stopped (a gang; its seats are leases that
    name it, granted when it forms; subleases name it and the token of their `seat`, whose slots they have). `t` is Unix
    time in seconds.
    """

    __slots__ = ("_ambient", "_core", "_sink", "_worker", "enabled")

    def __init__(self, sink: JournalSink | None, worker: WorkerId, core: AdmissionCore, ambient: Environment) -> None:
        self._sink = sink
        self._worker = str(worker)
        self._core = core
        self._ambient = ambient
        self.enabled = sink is not None

    def write(self, event: str, **facts: object) -> None:
        """Record one event, with the slots as they are now. Nothing happens without a sink."""
        if self._sink is None:
            return
        load = self._core.load
        self._sink(
            {
                "t": self._ambient.wall(),
                "event": event,
                "worker": self._worker,
                "epoch": self._core.epoch,
                "running": load.running,
                "reserved": load.reserved,
                "total": load.total,
                **facts,
            }
        )

    def lease(self, change: LeaseTransition, lease: GrantedLease) -> None:
        """Record what became of a lease; a grant with its terms, so that a reader can keep books of its own."""
        event = _EVENTS.get(change)
        if change is LeaseTransition.GRANT:
            seat: dict[str, object] = {} if lease.gang is None else {"gang": lease.gang}
            if lease.seat is not None:
                seat = {"gang": lease.seat.gang, "seat": lease.seat.token}
            self.write(
                "grant", token=lease.token, slots=lease.slots, single_use=lease.single_use, ttl_s=lease.ttl_s, **seat
            )
        elif event is not None:
            self.write(event, token=lease.token)
