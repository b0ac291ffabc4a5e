"""Random histories of the core against the model world: crashes, lost messages, refused and unknown commits, leaders
that change while the old ones go on.

L7, L8 and L9 are asserted inside the world, at every write of the ledger and every start of a member, and the
core's own invariants after every event. When a history ends the network heals, and every gang that can be
formed must form.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gangline.coordinator.settings.settings import CoordinatorSettings
from gangline.schemas.messages.gangs import MemberCause
from gangline.schemas.permissions.quotas import Quota, Quotas
from gangline.schemas.records.gangs import GangState

from ...scale import repetitions
from ...support.coordinator.model import SimWorker
from ...support.coordinator.world import World

PICK = st.integers(min_value=0, max_value=1000)
GANGS = st.sampled_from(["a", "b", "c", "d"])


class Gangs(RuleBasedStateMachine):
    @initialize(slots=st.lists(st.integers(min_value=1, max_value=3), min_size=2, max_size=4))
    def begin(self, slots: list[int]) -> None:
        lab = Quota(gangs=2, gang_slots=4, priority=1, preempt=True, weight=2.0)
        shop = Quota(guaranteed=2, priority=2)
        self.world = World(CoordinatorSettings(quotas=Quotas(named={"lab": lab, "shop": shop})))
        for number, count in enumerate(slots):
            self.world.add_worker(f"w{number}", count, node=f"n{number // 2}")
        self.world.elect()
        self.world.flush()
        self.known: dict[str, dict[str, Any]] = {}

    def worker(self, pick: int):
        workers = list(self.world.workers.values())
        return workers[pick % len(workers)]

    @rule(
        gang=GANGS,
        size=st.integers(min_value=1, max_value=4),
        more=st.sampled_from([0, 0, 2, 4]),
        priority=st.integers(min_value=0, max_value=2),
        preempt=st.booleans(),
        restart=st.sampled_from(["restart_gang", "restart_member", "fail"]),
        strategy=st.sampled_from(["pack", "spread", "strict_spread", "strict_pack"]),
        deadline_s=st.sampled_from([None, None, 3.0]),
        wait=st.booleans(),
        tenant=st.sampled_from(["", "", "lab", "shop"]),
    )
    def acquire(self, gang: str, size: int, more: int, **fields) -> None:
        fields["size"] = (size, size + more)
        fields = self.known.setdefault(gang, {**fields, "ttl_s": 1000.0, "max_restarts": None})
        self.world.acquire(gang, **fields)

    @invariant()
    def within_quota(self) -> None:
        if not hasattr(self, "world"):
            return
        granted = [g for g in self.world.ledger.gangs().values() if g.tenant == "lab" and g.state is GangState.FORMED]
        slots = sum(seat.slots for gang in granted for seat in gang.seats)
        assert len(granted) <= 2 and slots <= 4, f"above the quota: {[gang.id for gang in granted]}, {slots} slots"

    @rule(gang=GANGS)
    def release(self, gang: str) -> None:
        self.world.release(gang)

    @rule(gang=GANGS)
    def renew_an_old_generation(self, gang: str) -> None:
        before = self.world.core.get(gang)
        asked = self.world.renew(gang, generation=99)
        answer = self.world.answers[asked]
        assert answer.error is not None
        assert self.world.core.get(gang) == before

    @rule(
        count=st.integers(min_value=0, max_value=2),
        size=st.integers(min_value=1, max_value=2),
        surge=st.integers(min_value=0, max_value=1),
        surge_wait_s=st.sampled_from([0.0, 0.5, 3.0]),
        min_ready_s=st.sampled_from([0.0, 1.0, 5.0]),
        roll_failures=st.sampled_from([1, 3]),
    )
    def declare(self, count: int, **fields) -> None:
        self.world.declare("s", count, **fields)

    @precondition(lambda self: self.world.network)
    @rule(pick=PICK)
    def deliver_one(self, pick: int) -> None:
        self.world.deliver(pick % min(4, len(self.world.network)))

    @rule()
    def deliver_all(self) -> None:
        self.world.flush()

    @precondition(lambda self: self.world.network)
    @rule(pick=PICK)
    def lose_one(self, pick: int) -> None:
        self.world.lose(pick % len(self.world.network))

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.6, 2.5, 12.0]), flush=st.booleans())
    def wait(self, seconds: float, flush: bool) -> None:
        self.world.advance(seconds, flush=flush)

    @rule(pick=PICK)
    def crash(self, pick: int) -> None:
        worker = self.worker(pick)
        self.world.crash(worker)
        self.world.send(
            f"{worker.id} expires",
            lambda: None if worker.alive else self.world.gone(worker),
        )

    @rule(pick=PICK)
    def restart(self, pick: int) -> None:
        self.world.restart(self.worker(pick))

    @rule(pick=PICK, grace_s=st.sampled_from([None, 1.0, 30.0]))
    def drain(self, pick: int, grace_s: float | None) -> None:
        worker = self.worker(pick)
        if worker.alive:
            self.world.drain(worker, grace_s)

    @rule(pick=PICK)
    def reregister(self, pick: int) -> None:
        worker = self.worker(pick)
        if worker.alive:
            self.world.register(worker)

    @rule(slow=st.booleans())
    def starts_take_time(self, slow: bool) -> None:
        self.world.slow_starts = lambda gang, worker: slow and worker.worker != "w0"

    @precondition(lambda self: self.world.core.gangs())
    @rule(pick=PICK)
    def hooks_end(self, pick: int) -> None:
        gangs = self.world.core.gangs()
        self.world.start_all(gangs[pick % len(gangs)].id)

    @rule(pick=PICK, cause=st.sampled_from([cause for cause in MemberCause if cause is not MemberCause.STARTED]))
    def fail_a_member(self, pick: int, cause: MemberCause) -> None:
        worker = self.worker(pick)
        for gang, member in worker.members.items():
            if member.tokens:
                self.world.report(worker, gang, cause)
                return

    @rule(pick=PICK, slots=st.integers(min_value=0, max_value=2))
    def plain_traffic(self, pick: int, slots: int) -> None:
        worker = self.worker(pick)
        if worker.alive:
            worker.plain = 0
            worker.plain = min(slots, worker.load.free)
            self.world.heartbeat(worker)

    @rule(keep_zombie=st.booleans())
    def change_the_leader(self, keep_zombie: bool) -> None:
        self.world.elect(keep_zombie=keep_zombie)

    @rule()
    def lose_the_ledger(self) -> None:
        self.world.lose_the_ledger()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.heal()

    def leave(self, worker: SimWorker) -> None:
        """A draining worker leaves, whatever it still has."""
        self.world.crash(worker)
        self.world.gone(worker)

    def heal(self) -> None:
        """Everything works again: nothing may stay half done, every slot is accounted for, and who can form forms."""
        world = self.world
        world.flush()
        for worker in world.workers.values():
            if not worker.alive or worker.draining:
                self.leave(worker)
                world.restart(worker)
            worker.plain = 0
        world.slow_starts = lambda gang, worker: False
        for _ in range(15):
            for gang in world.core.gangs():
                world.start_all(gang.id)
            for worker in world.workers.values():
                world.reconcile(worker)
                world.heartbeat(worker)
            world.to_leader_tick()
            world.advance(10.0)
        busy = {"holding", "committing", "repairing", "rejoining", "closing", "stopping", "backoff", "retiring"}
        left = {gang: step for gang, step in world.states().items() if step in busy}
        assert not left, f"never comes to rest: {left}"
        unready = [gang.id for gang in world.core.gangs() if gang.step == "formed" and not gang.ready]
        assert not unready, f"formed and never ready: {unready}"
        for worker in world.workers.values():
            assert not worker.holds, f"{worker.id} holds for ever: {worker.holds}"
            for gang, member in worker.members.items():
                record = world.ledger.gangs().get(gang)
                assert record is not None and record.generation == member.generation, f"{gang} runs on {worker.id}"
        # No replacement still waits beside what it replaces: either there was room, or the old gang made way for it
        # (or could not have made enough).
        waiting = [gang for gang, step in world.states().items() if step == "queued"]
        if waiting:
            why = world.core.why(waiting[0])
            assert why is not None and why.lacks and "there is room" not in why.lacks[0], why
        # What tenants use is counted anew from what there is, and is nothing when their gangs have ended.
        for gang in world.core.gangs():
            world.release(gang.id)
        world.declare("s", 0)
        world.advance(30.0)
        assert not world.core._state.of_tenant


Gangs.TestCase.settings = settings(
    max_examples=repetitions(2, whole=30),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestGangs = Gangs.TestCase
