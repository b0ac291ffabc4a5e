"""Hypothesis drives the core with everything that can happen to it, and a model of a few lines beside it.

The model knows only what the laws say: who holds what until when, and which ids were ever started. `check()` runs after
every rule.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from gangline.runtime.timers import NEVER
from gangline.schemas.wire.frames import TaskState
from gangline.worker.slots.admission_core import AdmissionCore, CoreSettings
from gangline.worker.slots.lease_table import GrantedLease, Refusal, RouterHistory, TaskRecord

from ...scale import repetitions

SENDERS = st.sampled_from(["r1", "r2"])
IDS = st.integers(0, 200)
SELDOM = st.integers(0, 9)
"""0 does it: what ends everything must not happen in every run."""
SLOTS = st.integers(1, 3)


class CoreMachine(RuleBasedStateMachine):
    leases = Bundle("leases")
    records = Bundle("records")

    @initialize(total=st.integers(1, 5), keep_s=st.sampled_from([0.2, 60.0]), keep=st.sampled_from([3, 1000]))
    def begin(self, total: int, keep_s: float, keep: int) -> None:
        self.core = AdmissionCore(total, 1, CoreSettings(keep_s=keep_s, keep=keep))
        self.total = total
        self.now = 0.0
        self.tokens = 0
        self.fence = 0
        self.epoch = 1
        self.drained = False
        self.cut_at = NEVER
        self.alive: dict[GrantedLease, float] = {}
        """Leases that have not ended, as far as the caller can know, with when they must end."""
        self.used: set[GrantedLease] = set()
        self.started: set[tuple[str, int]] = set()
        self.withdrawn: set[tuple[str, int]] = set()
        self.running: dict[TaskRecord, GrantedLease | None] = {}
        self.overdue: set[TaskRecord] = set()
        self.released_first: set[tuple[str, int]] = set()
        self.gone: set[tuple[str, int]] = set()
        """Started by senders that were forgotten since."""
        self.keep_s = keep_s
        self.heard_at: dict[str, float] = {}

    def who(self, name: str) -> RouterHistory:
        """The sender; what the model knows of one that was forgotten goes too, if that was not too early."""
        if name in self.heard_at and name not in self.core._memory.senders:
            assert self.now - self.heard_at[name] >= 10 * self.keep_s, "forgotten too early"
            self.gone |= {entry for entry in self.started if entry[0] == name}
            for known in (self.started, self.withdrawn, self.released_first):
                known -= {entry for entry in known if entry[0] == name}
        self.heard_at[name] = self.now
        return self.core.sender(name, self.now)

    def keeps_the_wire(self, sender: str, new_id: int) -> bool:
        """Ids of one sender grow: after it was forgotten, what it sends first is above all that it ever sent."""
        return not self.who(sender).doubtful or all(new_id > used for name, used in self.gone if name == sender)

    # -- what the model knows -------------------------------------------------------------------------------------

    def held(self) -> int:
        """Slots that must be in use, at least, whatever the core says."""
        return sum(record.cost for record in self.running)

    def drop_expired(self) -> None:
        self.alive = {lease: due for lease, due in self.alive.items() if due > self.now}

    def room(self) -> int:
        self.drop_expired()
        busy: dict[GrantedLease, int] = {}
        for record, lease in self.running.items():
            if lease is not None:
                busy[lease] = busy.get(lease, 0) + record.cost
        idle = sum(lease.slots - busy.get(lease, 0) for lease in self.alive)
        return self.total - idle - self.held()

    # -- rules ----------------------------------------------------------------------------------------------------

    @rule(
        target=leases, sender=SENDERS, rid=IDS, slots=SLOTS, single_use=st.booleans(), ttl=st.sampled_from([1.0, 5.0])
    )
    def reserve(self, sender: str, rid: int, slots: int, single_use: bool, ttl: float):
        if not self.keeps_the_wire(sender, rid):
            return multiple()
        self.tokens += 1
        known = self.who(sender).reserves.get(rid)
        self.core.expire(self.now)
        room = self.room()
        answer = self.core.reserve(
            self.who(sender), rid, slots=slots, ttl_s=ttl, claim_s=0.5, single_use=single_use,
            owner="", token=f"t{self.tokens}", now=self.now,
        )  # fmt: skip
        if known is not None:
            if isinstance(answer, GrantedLease):
                assert answer in self.alive, "the same grant, and only while it lives"
            return multiple()
        if isinstance(answer, Refusal):
            assert (sender, rid) in self.released_first or self.drained or slots > room, answer
            return multiple()
        assert not self.drained, "L11"
        assert slots <= room, "L1"
        assert answer.fence > self.fence, "fences grow"
        self.fence = answer.fence
        self.alive[answer] = self.now + 0.5
        return answer

    @rule(sender=SENDERS, rid=IDS)
    def release_by_request(self, sender: str, rid: int) -> None:
        known = self.who(sender).reserves.get(rid)
        self.core.release(self.who(sender), rid, None, self.now)
        if isinstance(known, GrantedLease):
            self.alive.pop(known, None)
        elif known is None:
            self.released_first.add((sender, rid))

    @rule(lease=leases)
    def release_by_token(self, lease: GrantedLease) -> None:
        self.drop_expired()
        released = self.core.release(self.who("r1"), None, lease.token, self.now)
        assert released == (lease in self.alive), "L2: once"
        self.alive.pop(lease, None)

    @rule(lease=leases, ttl=st.sampled_from([None, 1.0, 7.0]))
    def renew(self, lease: GrantedLease, ttl: float | None) -> None:
        self.drop_expired()
        answer = self.core.renew(lease.token, ttl, self.now)
        assert isinstance(answer, Refusal) == (lease not in self.alive), "L5"
        if lease in self.alive and not isinstance(answer, Refusal):
            assert answer <= lease.ttl_s + 1e-9  # a time less another loses the last bits
            assert self.now + answer <= self.cut_at, "L11"
            self.alive[lease] = self.now + answer

    @rule(
        target=records,
        sender=SENDERS,
        task_id=IDS,
        cost=SLOTS,
        lease=st.one_of(st.none(), leases),
        in_s=st.sampled_from([None, 0.0, 0.7, 3.0]),
    )  # noqa: E501
    def task(self, sender: str, task_id: int, cost: int, lease: GrantedLease | None, in_s: float | None):
        if not self.keeps_the_wire(sender, task_id):
            return multiple()
        who = self.who(sender)
        if self.core.repeated(who, task_id) is not None:
            self.core.refuse(lease.token if lease else None, self.now)
            self.drop_single_use(lease)
            return multiple()
        assert (sender, task_id) not in self.started | self.withdrawn, "L3: an id starts once, and not when withdrawn"
        self.drop_expired()
        lives = lease is not None and lease in self.alive
        room = self.room()
        deadline_at = NEVER if in_s is None else self.now + in_s
        answer = self.core.admit(
            who, task_id, cost=cost, token=lease.token if lease else None, deadline_at=deadline_at, now=self.now
        )
        if isinstance(answer, Refusal):
            self.core.settle(who, task_id, b"refused", self.now)
            self.started.add((sender, task_id))  # from now on it may not start either
            if answer is not Refusal.LEASE_BUSY:
                self.drop_single_use(lease)
            return multiple()
        assert deadline_at > self.now
        self.started.add((sender, task_id))
        if lease is None:
            assert not self.drained, "L11"
            assert cost <= room, "L1"
        else:
            assert lives, "L5: nothing starts on a dead lease"
            assert lease not in self.used, "L3"
            busy = sum(record.cost for record, of in self.running.items() if of is lease)
            assert busy + cost <= lease.slots, "L3"
            if lease.single_use:
                self.used.add(lease)
                self.alive.pop(lease)
            else:
                self.alive[lease] = lease.due_at
                assert lease.due_at <= self.now + lease.ttl_s
        self.running[answer] = None if lease is None or lease.single_use else lease
        return answer

    def drop_single_use(self, lease: GrantedLease | None) -> None:
        if lease is not None and lease.single_use:
            self.alive.pop(lease, None)

    @rule(record=records)
    def answer(self, record: TaskRecord | None) -> None:
        """As for code that cannot be stopped: its caller hears first."""
        if record is not None and record in self.running and not record.answered:
            self.core.settle(record.sender, record.id, b"early", self.now)

    @rule(record=records, size=st.integers(1, 50))
    def finish(self, record: TaskRecord | None, size: int) -> None:
        if record is None or record not in self.running:
            return
        if not record.answered:
            self.core.settle(record.sender, record.id, b"x" * size, self.now)
        self.core.finish(record)
        del self.running[record]

    @rule(sender=SENDERS, task_id=IDS)
    def cancel(self, sender: str, task_id: int) -> None:
        who = self.who(sender)
        new = self.core.repeated(who, task_id) is None
        record = self.core.withdraw(who, task_id, self.now)
        assert record is None or record in self.running
        if new:
            self.withdrawn.add((sender, task_id))

    @rule(sender=SENDERS, task_id=IDS)
    def ask_after(self, sender: str, task_id: int) -> None:
        state = self.core.look_up(self.who(sender), task_id, self.now).state
        if state is TaskState.UNKNOWN:
            assert (sender, task_id) not in self.started | self.gone, "what may have run is never called unknown"
            self.withdrawn.add((sender, task_id))

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 6.0]), punctual=st.booleans())
    def wait(self, seconds: float, punctual: bool) -> None:
        self.now += seconds
        if not punctual:
            return
        for record in self.core.expire(self.now).tasks:
            assert record in self.running
            assert record not in self.overdue, "each is named once"
            self.overdue.add(record)
        due = self.core.next_deadline()
        assert due is None or due > self.now
        self.drop_expired()
        assert set(self.core.leases.values()) == set(self.alive), "L4"

    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0]))
    def sweep(self, seconds: float) -> None:
        self.now += seconds
        self.core.sweep(self.now)

    @rule(total=st.integers(0, 6))
    def resize(self, total: int) -> None:
        self.core.resize(total)
        self.total = total

    @rule(really=SELDOM)
    def freeze(self, really: int) -> None:
        if really:
            return
        self.epoch += 1
        self.core.new_epoch(self.epoch, self.now)
        self.alive.clear()

    @rule(grace=st.sampled_from([0.0, 2.0, 10.0]), really=SELDOM)
    def drain(self, grace: float, really: int) -> None:
        if really:
            return
        self.core.drain(self.now + grace, self.now)
        self.drained = True
        self.cut_at = min(self.cut_at, self.now + grace)
        self.alive = {lease: min(due, self.now + grace) for lease, due in self.alive.items()}

    # -- always ---------------------------------------------------------------------------------------------------

    @invariant()
    def the_books_balance(self) -> None:
        if not hasattr(self, "core"):
            return
        self.core.check()
        changes = self.core.take_changes()
        assert all(lease.token for _, lease in changes)
        load = self.core.load
        assert load.running == self.held(), "L2, L12"
        assert set(self.core.tasks) == set(self.running)

    def teardown(self) -> None:
        """Whatever happened: when all has ended, nothing is held."""
        if not hasattr(self, "core"):
            return
        for record in list(self.running):
            self.finish(record, 1)
        self.core.expire(self.now + 1000.0)
        assert self.core.at_rest
        assert self.core.load[:2] == (0, 0)
        self.core.check()


TestCoreMachine = CoreMachine.TestCase
TestCoreMachine.settings = settings(max_examples=repetitions(4, whole=50), stateful_step_count=50)
