"""The checker's own model of each worker process: laws L1 to L5 and L11.

It is built from the worker's journal, the frames on the wire, and the tasks' code, never from the worker's own
counters, which are compared with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ....schemas.wire.frames import Load
from ..history.checker import Checker

CLAIM_SLACK_S = 0.3
LEASE_SLACK_S = 1.0
"""The second that law L4 allows."""
DEADLINE_SLACK_S = 2.5
"""The longest delay of a message (0.5 s), a freeze that the detector tolerates (1 s), and a second for scheduling."""
FREEZE_S = 1.0
"""A process that was frozen for longer must take a new epoch."""


@dataclass(slots=True)
class LeaseModel:
    """One lease."""

    token: str
    slots: int
    single_use: bool
    epoch: int
    ttl_s: float
    due_at: float
    """When it ends without further use: the latest time that the worker may assume."""
    starts: int = 0
    busy: int = 0
    consumed: bool = False
    """Whether it is single-use and its task has started; the journal's `use` may follow later."""
    ended: str | None = None
    ended_at: float = 0.0
    granted_at: float = 0.0
    claimed: bool = False
    gang: str | None = None
    """The gang of its seat. A seat ends when the gang ends here, not by time; a sublease also names the gang."""
    subleases: list[LeaseModel] = field(default_factory=list["LeaseModel"])
    """Of a seat: the subleases on its slots."""

    @property
    def taken(self) -> int:
        """Slots that a sublease takes from its seat."""
        return self.busy if self.ended or self.consumed else self.slots

    @property
    def used(self) -> int:
        """Slots used by tasks and subleases."""
        return self.busy + sum(sublease.taken for sublease in self.subleases)

    @property
    def idle(self) -> int:
        """Slots that count as reserved."""
        return 0 if self.ended or self.consumed else self.slots - self.used


@dataclass(slots=True)
class Asked:
    """A delivered TASK frame."""

    epoch: int
    at: float
    token: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The request in a RESERVE frame."""

    slots: int
    ttl_s: float
    claim_s: float
    single_use: bool


@dataclass(slots=True)
class WorkerModel:
    """One worker process from its start to its end."""

    node: str
    checker: Checker
    clock: Callable[[], float]
    load: Callable[[], Load | None]
    """The worker's own counters; None while it has none."""
    drain_grace_s: float
    aside: Callable[[], int] = lambda: 0
    """Slots reserved for waiting gangs, or for hooks of ended seats; the journal does not record these."""
    holds: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """Slots held for commits in progress, by gang and generation."""
    slots: int = 0
    """Its current number of slots; set by the first record."""
    epoch: int = 0
    leases: dict[str, LeaseModel] = field(default_factory=dict[str, LeaseModel])
    tasks: dict[str, tuple[int, str | None]] = field(default_factory=dict[str, tuple[int, str | None]])
    """Cost and token of each running task, by id."""
    asked: dict[str, Asked] = field(default_factory=dict[str, Asked])
    """Delivered TASK frames, by id."""
    reserves: tuple[int, list[Terms]] = (0, [])
    """A turn of the loop, and the RESERVE frames delivered in it."""
    bodies: dict[int, tuple[int, str]] = field(default_factory=dict[int, tuple[int, str]])
    """Cost and request of each running task body."""
    body_starts_by_token: dict[str, int] = field(default_factory=dict[str, int])
    draining_since: float | None = None
    successor: WorkerModel | None = None
    """The process that took over its id."""
    has_id: Callable[[], bool] = lambda: True
    """Whether the ledger says so."""
    left: bool = False
    dead: bool = False
    frozen_at: float | None = None
    froze_serving: bool = False
    thawed_at: float = 0.0
    guard_due: bool = False
    """Whether it was frozen for longer than FREEZE_S and has not taken a new epoch since."""
    turn: int = 0
    """The loop's turn of the last record."""
    used_before: int = 0
    """Slots in use when that turn began."""
    last_event: str = ""

    # -- the journal ----------------------------------------------------------------------------------------------

    @property
    def reserved(self) -> int:
        return sum([lease.idle for lease in self.leases.values() if not lease.ended]) + sum(self.holds.values())

    @property
    def running(self) -> int:
        return sum(cost for cost, _ in self.tasks.values())

    @property
    def living(self) -> list[LeaseModel]:
        return [lease for lease in self.leases.values() if lease.ended is None and not lease.consumed]

    @property
    def busy(self) -> bool:
        """Whether it has anything that must be gone at rest."""
        return bool(self.living or self.holds or self.running or self.bodies)

    def record(self, record: dict[str, Any], turn: int) -> None:
        """Process one line of the worker's journal, written in that turn of the loop."""
        if turn != self.turn:
            self.check_turn()
            self.turn = turn
        self.epoch, self.last_event = record["epoch"], record["event"]
        match record["event"]:
            case "grant":
                self._grant(record)
            case "start":
                self._start(record)
            case "end":
                self._end(record)
            case "use" | "release" | "expire" | "drop" as how:
                self._ended(record["token"], how)
            case "epoch" | "fence" as how:
                self._void(how)
            case "hold":
                if self.draining_since is not None:
                    self._fail("L11", f"holds slots for gang {record['gang']} while draining")
                self._must_be_alone(f"holds slots for gang {record['gang']}")
                self.holds[record["gang"], record["generation"]] = record["slots"]
            case "form" | "unhold":
                self._unhold(record)
            case "resize":
                self.slots = record["total"]
            case "drain":
                if self.draining_since is None:
                    self.draining_since = self.clock()
            case "leave":
                self._leave()
            case _:
                pass  # a reject does not change slots

    def _unhold(self, record: dict[str, Any]) -> None:
        hold = record["gang"], record["generation"]
        self.holds.pop(hold, None)
        if "left" in record:
            self.holds[hold] = record["left"]

    def check_turn(self) -> None:
        """L1 and L5 at the end of a turn: within one, the journal may name a grant before the release that made room
        for it, and the new epoch before the leases that it ends."""
        used = self.reserved + self.running
        if used > self.slots and used > self.used_before:
            self._fail("L1", f"{used} slots are reserved or running, of {self.slots} (after {self.last_event})")
        self.used_before = used
        for lease in self.living:
            if lease.epoch != self.epoch:
                self._fail("L5", f"lease {lease.token} of epoch {lease.epoch} lives on in epoch {self.epoch}")

    def _grant(self, record: dict[str, Any]) -> None:
        token, now = record["token"], self.clock()
        if token in self.leases:
            self._fail("L3", f"token {token} was granted twice")
        self._must_be_alone(f"granted {token}")
        gang = record.get("gang")
        if self.draining_since is not None and (gang is None or "seat" in record):
            self._fail("L11", f"granted {token} while draining")
        delivered_in, terms = self.reserves
        # The answer will show which request of this turn it is for; until then assume the most generous one.
        claim_s = max((each.claim_s for each in terms if delivered_in == self.turn), default=record["ttl_s"])
        seat = self.leases.get(record.get("seat", ""))
        lease = self.leases[token] = LeaseModel(
            token=token,
            slots=record["slots"],
            single_use=record["single_use"],
            epoch=record["epoch"],
            ttl_s=record["ttl_s"],
            due_at=now + claim_s if gang is None or seat is not None else float("inf"),
            granted_at=now,
            gang=gang,
        )
        if seat is not None:
            seat.subleases.append(lease)
            if seat.ended or seat.used > seat.slots:
                self._fail("L1", f"granted {token}, {lease.slots} slots of seat {seat.token} that it has not idle")

    def _start(self, record: dict[str, Any]) -> None:
        task_id, token, cost = record["id"], record["token"], record["cost"]
        if task_id in self.tasks:
            self._fail("L2", f"task {task_id} started twice")
        asked = self.asked.get(task_id)
        if asked is None:
            self._fail("outcome", f"task {task_id} started though nobody asked for it")
        elif asked.epoch != record["epoch"]:
            self._fail("L5", f"task {task_id} was sent to epoch {asked.epoch} and started in epoch {record['epoch']}")
        if self.guard_due:
            self._fail("L5", f"task {task_id} started after a freeze without a new epoch")
        self._must_be_alone(f"task {task_id} started")
        self.tasks[task_id] = (cost, token)
        if token is None:
            if self.draining_since is not None:
                self._fail("L11", f"task {task_id} started without a lease while draining")
            return
        lease = self.leases.get(token)
        if lease is None:
            self._fail("L5", f"task {task_id} started with the unknown token {token}")
            return
        self._check_use(lease, task_id, cost)
        lease.starts += 1
        lease.busy += cost
        if lease.single_use:
            lease.consumed = True
        else:
            lease.due_at = max(lease.due_at, self.clock() + lease.ttl_s)
            lease.claimed = True

    def _must_be_alone(self, what: str) -> None:
        if self.successor is not None and self.successor.alive and self.successor.has_id():
            self._fail("L1", f"{what} beside {self.successor.node}, which has its id")

    def _check_use(self, lease: LeaseModel, task_id: str, cost: int) -> None:
        now = self.clock()
        if lease.single_use and lease.starts:
            self._fail("L3", f"task {task_id} is the second on the single-use token {lease.token}")
        elif not lease.single_use and lease.used + cost > lease.slots:
            self._fail("L3", f"task {task_id} makes {lease.used + cost} slots busy on a lease of {lease.slots}")
        elif lease.ended is not None and not (lease.ended == "use" and lease.ended_at == now):
            self._fail("L5", f"task {task_id} started on token {lease.token}, ended by {lease.ended}")
        elif now > lease.due_at + 1e-6:
            self._fail("L5", f"task {task_id} started {now - lease.due_at:.3f} s after its lease had expired")
        elif lease.epoch != self.epoch:
            self._fail("L5", f"task {task_id} started on a token of epoch {lease.epoch}, it is {self.epoch}")

    def _end(self, record: dict[str, Any]) -> None:
        started = self.tasks.pop(record["id"], None)
        if started is None:
            self._fail("L2", f"task {record['id']} ended without having started, or twice")
            return
        cost, token = started
        if token is not None and token in self.leases:
            self.leases[token].busy -= cost

    def _ended(self, token: str, how: str) -> None:
        lease = self.leases.get(token)
        if lease is None or lease.ended is not None:
            self._fail("L2", f"token {token} ended by {how}, but it was {lease.ended if lease else 'never granted'}")
            return
        lease.ended, lease.ended_at = how, self.clock()

    def _void(self, how: str) -> None:
        self.guard_due &= how != "epoch"
        self.holds.clear()

    def _leave(self) -> None:
        if self.reserved or self.running:
            self._fail("L11", f"left with {self.reserved} slots reserved and {self.running} running")
        if self.bodies:
            self._fail("L11", f"left while tasks run: {sorted(request for _, request in self.bodies.values())}")
        self.left = True

    # -- frames ---------------------------------------------------------------------------------------------------

    def task_delivered(self, task_id: str, epoch: int, token: str | None) -> None:
        """A TASK frame has reached the process."""
        self.asked[task_id] = Asked(epoch=epoch, at=self.clock(), token=token)

    def reserve_delivered(self, terms: Terms, turn: int) -> None:
        """A RESERVE frame has reached the process."""
        if self.reserves[0] != turn:
            self.reserves = (turn, [])
        self.reserves[1].append(terms)

    def granted(self, token: str, terms: Terms) -> None:
        """The worker has answered GRANTED, with these terms."""
        lease = self.leases.get(token)
        if lease is None:
            self._fail("L2", f"answered with token {token}, which its journal never granted")
        elif (lease.slots, lease.single_use, lease.ttl_s) != (terms.slots, terms.single_use, terms.ttl_s):
            self._fail("L1", f"granted {lease.slots} slots for {lease.ttl_s} s where {terms} was asked")
        elif not lease.claimed:
            lease.due_at = lease.granted_at + terms.claim_s

    def renewal_delivered(self, token: str, ttl_s: float) -> bool:
        """A RENEW frame has reached the process. If the worker accepts it, the lease lives until then. False: it came
        too late, or for a token that was never granted or is over, and must not be accepted."""
        lease = self.leases.get(token)
        if lease is None or lease.ended is not None or self.clock() > lease.due_at + 1e-6:
            return False
        lease.ttl_s = max(lease.ttl_s, ttl_s)
        lease.due_at = max(lease.due_at, self.clock() + ttl_s)
        lease.claimed = True
        return True

    def renewed(self, token: str) -> None:
        """The worker has answered RENEWED to a renewal that it should have refused."""
        self._fail("L5", f"renewed token {token}, which had expired or ended")

    def refused(self, task_id: str, reason: str) -> None:
        """The worker has answered REJECTED to a task."""
        asked = self.asked.get(task_id)
        if reason != "draining" or asked is None or asked.token is None:
            return
        lease = self.leases.get(asked.token)
        if lease is not None and lease.starts == 0 and lease.ended is None and asked.at < lease.due_at:
            self._fail("L11", f"task {task_id} was refused by the drain, on a lease granted before")

    # -- bodies ---------------------------------------------------------------------------------------------------

    def body_started(self, number: int, request: str, cost: int, token: str | None, late_s: float | None) -> None:
        """A task's code starts in this process, this long after its caller's deadline (below 0: before it)."""
        self.bodies[number] = (cost, request)
        running = sum(each for each, _ in self.bodies.values())
        if running > max(self.slots, self.running):
            self._fail("L1", f"task code uses {running} slots of {self.slots}")
        if token is not None:
            lease = self.leases.get(token)
            times = self.body_starts_by_token[token] = self.body_starts_by_token.get(token, 0) + 1
            if lease is not None and lease.single_use and times > 1:
                self._fail("L3", f"task code of {request} is the second on the single-use token {token}")
        if late_s is not None and late_s > DEADLINE_SLACK_S:
            self._fail("L5", f"{request} started {late_s:.3f} s after its caller's deadline")

    def body_ended(self, number: int) -> None:
        self.bodies.pop(number, None)

    # -- time -----------------------------------------------------------------------------------------------------

    def froze(self, *, serving: bool) -> None:
        """It is frozen from now on. A process that does not serve yet keeps its epoch, because nobody knows it."""
        self.frozen_at, self.froze_serving = self.clock(), serving

    def thawed(self) -> None:
        if self.frozen_at is not None:
            # A second freeze may come before the first was noticed.
            self.guard_due |= self.froze_serving and self.clock() - self.frozen_at > FREEZE_S
            self.frozen_at, self.thawed_at = None, self.clock()

    @property
    def alive(self) -> bool:
        return not self.dead and not self.left

    def look(self, *, reachable: bool) -> None:
        """Compare with the worker's own counters, and find what should have ended by now (L4, L11)."""
        if not self.alive or self.frozen_at is not None or not self.slots_known:
            return
        self.check_turn()
        load = self.load()
        reserved = self.reserved + self.aside()
        if load is not None and (load.running, load.reserved) != (self.running, reserved):
            self._fail(
                "L2",
                f"the worker counts {load.running} running and {load.reserved} reserved slots, its journal says "
                f"{self.running} and {reserved}",
            )
        now = self.clock()
        for lease in self.living:
            slack = LEASE_SLACK_S if lease.claimed else CLAIM_SLACK_S
            if now > max(lease.due_at, self.thawed_at) + slack:
                kind = "lease" if lease.claimed else "unclaimed grant"
                self._fail(
                    "L4", f"{kind} {lease.token} still holds {lease.idle} slots {now - lease.due_at:.2f} s too long"
                )
        if self.draining_since is not None and reachable:
            since = now - max(self.draining_since, self.thawed_at)
            if since > self.drain_grace_s + 12.0:
                self._fail("L11", f"drains for {since:.1f} s and has not left")

    @property
    def slots_known(self) -> bool:
        return self.epoch > 0

    def _fail(self, law: str, text: str) -> None:
        self.checker.fail(law, f"{self.node}: {text}")
