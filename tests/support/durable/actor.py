"""Actions on a world, described by plain values that a walk draws."""

from __future__ import annotations

import random
from typing import Any

from gangline.dispatcher.durable.core import events as on
from gangline.dispatcher.durable.policies.settings import DispatcherSettings
from gangline.schemas.errors.base import GanglineError, InvalidArguments, LeaseExpired, ResultLost, TaskFailed
from gangline.schemas.permissions.quotas import parse_quotas
from gangline.schemas.records.routes import QueueRules, RouteRecord

from .world import Run, World

ERRORS: dict[str, GanglineError] = {
    "failed": TaskFailed("no"),
    "wrong": InvalidArguments("no"),
    "lost": ResultLost("no"),
}


class Actor:
    """Acts on one world. `pick` chooses among the possible actions."""

    def __init__(self, window: int = 4096, tenants: tuple[str, ...] = ("",)) -> None:
        self.tenants = tenants
        quotas = parse_quotas(["lab:weight=3", "priority=2"])
        settings = DispatcherSettings(node="n", window_tasks=window, max_attempts=3, quotas=quotas)
        self.world = World(settings=settings, explicit=True)
        self.world.open()
        self.submitted: set[str] = set()

    def runs(self) -> list[Run]:
        return [run for run in self.world.runs if not run.ended]

    def submit(self, *, deadline_s: float | None, again: int | None, draw: float, **fields: Any) -> None:
        world = self.world
        world.draw = draw
        if fields["key"] is None:
            fields["ordered"] = False
        deadline_at = None if deadline_s is None else world.now + deadline_s
        seq = world.submit(None if again is None else f"i{again}", deadline_at=deadline_at, **fields)
        self.submitted.add(world.stream[seq].submission.job)

    def submit_delayed(self, delay_s: float) -> None:
        self.world.submit(not_before=self.world.now + delay_s)

    def publish_nonsense(self) -> None:
        if self.world.pulled and self.world.next_undelivered() is None:
            self.world.malformed()

    def cancel(self, pick: int) -> None:
        jobs = sorted({message.submission.job for message in self.world.stream.values()})
        if jobs:
            self.world.tell(on.Cancel, job=jobs[pick % len(jobs)])

    def deliver_one(self, pick: int) -> None:
        if self.world.network:
            self.world.deliver(pick % len(self.world.network))

    def deliver_message(self) -> None:
        if self.world.pulled and self.world.next_undelivered() is not None:
            self.world.deliver_message()

    def read_ahead(self, tenant: str) -> None:
        seq = self.world.hidden(tenant)
        if seq is not None and self.world.core.open:
            self.world.read_ahead(seq)

    def deliver_again(self, pick: int) -> None:
        world = self.world
        there = [seq for seq, message in world.stream.items() if message.delivered and not message.nonsense]
        if there and world.pulled:
            world.pulled -= 1
            world.deliver_again(there[pick % len(there)])

    def end(self, pick: int, draw: float, how: str) -> None:
        runs = self.runs()
        if not runs:
            return
        self.world.draw = draw
        job = runs[pick % len(runs)].job
        if how == "finished anyway":
            self.world.finish(job)
        else:
            self.world.end(job, ERRORS.get(how))

    def refuse(self, pick: int) -> None:
        fresh = [run for run in self.runs() if self.world.attached.get(run.seq) is run and not run.adopted]
        if fresh:
            self.world.refuse(fresh[pick % len(fresh)].job, LeaseExpired("no"))

    def kill(self, pick: int) -> None:
        runs = self.runs()
        if runs:
            self.world.kill(runs[pick % len(runs)].job)

    def route(self, weights: dict[str, float], limits: dict[str, int], rules: dict[str, Any]) -> None:
        self.world.reroute(RouteRecord(to=weights, limits=limits, queue=QueueRules(**rules)))

    def take_over(self, seed: random.Random, early: bool) -> None:
        if not self.world.core.open:
            return
        self.world.die(applied=lambda: seed.random() < 0.5)
        self.world.take()
        if early:
            self.world.survey()

    def recover(self) -> None:
        if not self.world.core.open:
            self.world.recover()

    def doubt(self, doubted: bool) -> None:
        if self.world.oracle.sure is doubted:
            self.world.tell(on.OwnershipDoubted if doubted else on.OwnershipConfirmed)

    def heal(self) -> None:
        """No more faults: every job must now end, once."""
        world = self.world
        self.doubt(False)
        self.recover()
        world.reroute(RouteRecord())
        for pool in ("e", "f"):
            world.pool(pool, largest=8)
        for _ in range(200):
            world.flush()
            for pool in ("e", "f"):
                world.credit(8, 8, pool=pool)
            for run in self.runs():
                world.end(run.job)
            world.advance(10.0)
            if not world.stream:
                break
        assert not world.stream, f"never ended: {world.stream}"
        assert all(count == 1 for count in world.ends.values()), f"law 1: {world.ends}"
        assert self.submitted <= set(world.results), "law 1: some jobs have no end"
        counts = world.core.statistics()
        assert (counts.seen, counts.running, counts.waiting, counts.blocked) == (0, 0, 0, 0), counts
