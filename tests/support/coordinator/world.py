"""A world for the gang core: workers, a ledger and a network whose messages are delivered explicitly. No clock, no
loop.

Every state of the ledger is checked against L7, and every start of a member against L7 and L8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gangline.coordinator.core.gang_core import SchedulerCore
from gangline.coordinator.model import effects as do
from gangline.coordinator.model import events as on
from gangline.coordinator.scheduling.inventory import WorkerFacts
from gangline.coordinator.settings.settings import CoordinatorSettings
from gangline.schemas.messages.gangs import (
    AcquireRequest,
    FormRequest,
    HoldRequest,
    MemberCause,
    OwnedRequest,
    TeardownRequest,
    UnholdRequest,
)
from gangline.schemas.names import WorkerId
from gangline.schemas.records.gangs import GangSetRecord, GangSetStatus, GangState, LeaderRecord

from .model import NAMES, WALL, Ledger, Member, SimWorker
from .transcript import said_effect, said_event


class World:
    def __init__(self, settings: CoordinatorSettings | None = None) -> None:
        self.settings = settings or CoordinatorSettings()
        self.now = 0.0
        self.ledger = Ledger()
        self.workers: dict[WorkerId, SimWorker] = {}
        self.core = SchedulerCore(self.settings)
        self.zombies: list[SchedulerCore] = []
        self.term = 0
        self.wakes: dict[int, float | None] = {}
        self.network: list[tuple[str, Callable[[], None], Callable[[], None]]] = []
        """(what, deliver, lose)"""
        self.answers: dict[int, do.AnswerRequest] = {}
        self.asked = 0
        self.tokens = 0
        self.events: list[Any] = []
        self.story: list[str] = []
        self.fences: dict[str, int] = {}
        self.stopped: list[SchedulerCore] = []
        self.slow_starts: Callable[[str, WorkerId], bool] = lambda gang, worker: False
        """Whether the start functions of that gang's members run until `start_all` or `fail_starts`; otherwise they
        end at once.
        """

    # -- workers -----------------------------------------------------------------------------------------------------

    def add_worker(self, name: str, slots: int, *, pool: str = "p", node: str = "", **labels: str) -> SimWorker:
        worker = SimWorker(id=WorkerId(pool, name), total=slots, node=node or f"n-{name}", labels=labels)
        self.workers[worker.id] = worker
        self.register(worker)
        return worker

    def facts(self, worker: SimWorker) -> WorkerFacts:
        return WorkerFacts(
            id=worker.id,
            epoch=worker.epoch,
            revision=self.ledger.revision_of(NAMES.registration_key(worker.id)),
            total=worker.total,
            load=worker.load,
            node=worker.node,
            address=f"{worker.node}:7000",
            labels=worker.labels,
            draining=worker.draining,
            drain_grace_s=worker.drain_grace_s if worker.draining else None,
        )

    def worker(self, name: str) -> SimWorker:
        return self.workers[WorkerId("p", name)]

    def holder(self, gang: str = "") -> SimWorker:
        """The first worker with a member of that gang, or of any."""
        return next(worker for worker in self.workers.values() if (gang in worker.members if gang else worker.members))

    def register(self, worker: SimWorker) -> None:
        self.ledger.put(NAMES.registration_key(worker.id), ("reg", worker.epoch))
        self.send(f"{worker.id} registers", lambda: self.to_leader(on.WorkerSeen, worker=self.facts(worker)))

    def crash(self, worker: SimWorker, *, noticed: bool = False) -> None:
        worker.alive = False
        for memory in (worker.holds, worker.members, worker.tombs, worker.torn, worker.kept, worker.to_keep):
            memory.clear()
        worker.plain = 0
        if noticed:
            self.gone(worker)

    def drain(self, worker: SimWorker, grace_s: float | None = None) -> None:
        worker.draining, worker.drain_grace_s = True, grace_s
        self.register(worker)

    def restart(self, worker: SimWorker, *, flush: bool = False) -> None:
        self.crash(worker)
        worker.alive, worker.draining = True, False
        worker.epoch += 1
        self.register(worker)
        self._settle(flush)

    def gone(self, worker: SimWorker) -> None:
        self.to_leader(on.WorkerGone, worker=worker.id, reason="heartbeat expired")

    def to_leader_tick(self) -> None:
        self.to_leader(on.MembersRead, members=tuple(self.ledger.members()))

    def heartbeat(self, worker: SimWorker) -> None:
        if worker.alive:
            self.to_leader(on.LoadSeen, worker=worker.id, epoch=worker.epoch, load=worker.load)

    # -- time and network --------------------------------------------------------------------------------------------

    def send(self, what: str, deliver: Callable[[], None], lose: Callable[[], None] = lambda: None) -> None:
        self.network.append((what, deliver, lose))

    def deliver(self, index: int = 0) -> None:
        _, deliver, _ = self.network.pop(index)
        deliver()
        self.check()

    def lose(self, index: int = 0) -> None:
        _, _, lose = self.network.pop(index)
        lose()
        self.check()

    def _settle(self, flush: bool) -> None:
        if flush:
            self.flush()

    def flush(self) -> None:
        """Deliver all messages in order, including those that follow."""
        for _ in range(10_000):
            if not self.network:
                return
            self.deliver()
        raise AssertionError("the network never comes to rest: " + self.network[0][0])

    def advance(self, seconds: float, *, flush: bool = True) -> None:
        """Advance the time; timers fire in order."""
        end = self.now + seconds
        for _ in range(10_000):
            if flush:
                self.flush()
            wakes = [at for at in self.wakes.values() if at is not None]
            holds = [until for w in self.workers.values() if w.alive for until, _ in w.holds.values()]
            at = min([*wakes, *holds], default=float("inf"))
            if at > end:
                break
            self.now = max(self.now, at)
            for worker in self.workers.values():
                self.expire_holds(worker)
            for core in [self.core, *self.zombies]:
                wake = self.wakes.get(id(core))
                if wake is not None and wake <= self.now:
                    self.wakes[id(core)] = None
                    self.give(core, on.SchedulerTick(now=self.now, wall=WALL + self.now))
            self.check()
        else:
            raise AssertionError(f"time stands still at {self.now}: {self.states()}")
        self.now = end
        if flush:
            self.flush()

    def to_leader(self, kind: Any, **fields: Any) -> None:
        self.give(self.core, kind(now=self.now, wall=WALL + self.now, **fields))

    def give(self, core: SchedulerCore, event: Any) -> None:
        if core is not self.core and core not in self.zombies:
            return  # a dead process
        self.story.append(said_event(event))
        for effect in core.handle(event):
            self.story.append(said_effect(effect))
            self.carry_out(core, effect)
        core.check()

    # -- leadership --------------------------------------------------------------------------------------------------

    def elect(self, *, keep_zombie: bool = False, flush: bool = False) -> None:
        """A new coordinator takes over; the old one is dead, or still believes that it leads."""
        if not keep_zombie:
            self.wakes.pop(id(self.core), None)
        elif self.term:
            self.zombies.append(self.core)
        self.core = SchedulerCore(self.settings)
        self.term += 1
        fence = self.ledger.put("leader", LeaderRecord(term=self.term, instance=f"c{self.term}"))
        self.fences[str(id(self.core))] = fence
        self.to_leader(
            on.LeadershipGained,
            term=self.term,
            fence=fence,
            gangs=tuple(
                (record, self.ledger.revision_of(f"gang.{gang}")) for gang, record in self.ledger.gangs().items()
            ),
            members=tuple(self.ledger.members()),
            sets=self.ledger.of_sets(GangSetRecord),
            statuses=self.ledger.of_sets(GangSetStatus),
            workers=tuple(self.facts(worker) for worker in self.workers.values() if worker.alive),
        )
        self._settle(flush)

    def lose_the_ledger(self) -> None:
        """An in-memory bucket is lost with its server. The leader's shell restores its record and the sets, and
        workers restore their own keys."""
        kept = {key: record for key, (record, _) in self.ledger.keys.items() if key.startswith(("leader", "gangset."))}
        self.ledger.keys.clear()
        for key, record in kept.items():
            self.ledger.put(key, record)
        self.to_leader(on.LedgerVanished, fence=self.ledger.revision_of("leader"))
        for worker in self.workers.values():
            if worker.alive:
                self.register(worker)

    # -- owners ------------------------------------------------------------------------------------------------------

    def acquire(
        self, gang: str, size: int | tuple[int, int] = 2, *, tenant: str = "", flush: bool = False, **more: Any
    ) -> int:
        self.asked += 1
        asked = self.asked
        fields = {"id": gang, "owner_token": f"t-{gang}", **more}
        if "bundles" not in fields:
            fields = {"pool": "p", "size": size, **fields}
        self.to_leader(
            on.AcquireAsked,
            request=AcquireRequest.model_validate(fields),
            reply_to=self.asked,
            new_id="unused",
            new_token="unused",
            tenant=tenant,
        )
        self._settle(flush)
        return asked

    def renew(self, gang: str, **more: Any) -> int:
        return self._ask_as_owner(on.RenewAsked, gang, more)

    def release(self, gang: str, *, flush: bool = False, **more: Any) -> int:
        asked = self._ask_as_owner(on.ReleaseAsked, gang, more)
        self._settle(flush)
        return asked

    def _ask_as_owner(self, kind: Any, gang: str, more: dict[str, Any]) -> int:
        self.asked += 1
        request = OwnedRequest.model_validate({"id": gang, "owner_token": f"t-{gang}", **more})
        self.to_leader(kind, request=request, reply_to=self.asked)
        return self.asked

    def declare(self, name: str, gangs: int, *, flush: bool = False, **gang: Any) -> None:
        fields = {"pool": "p", "size": 2, **gang}
        more = {key: fields.pop(key) for key in _OF_SET if key in fields}
        record = GangSetRecord.model_validate({"gangs": gangs, "gang": fields, **more})
        self.ledger.put(f"gangset.{name}", record)
        self.to_leader(on.SetSeen, name=name, record=record)
        self._settle(flush)

    def undeclare(self, name: str) -> None:
        self.ledger.keys.pop(f"gangset.{name}", None)
        self.to_leader(on.SetSeen, name=name, record=None)

    def report(
        self, worker: SimWorker, gang: str, cause: MemberCause = MemberCause.CRASHED, *, flush: bool = False
    ) -> None:
        """The first member of a gang on that worker fails."""
        member = worker.members[gang]
        token, (rank, _, _) = next(iter(member.tokens.items()))
        del member.tokens[token]
        generation = member.generation
        if not member.tokens:
            del worker.members[gang]
        self.send(
            f"{worker.id} reports {gang} rank {rank}",
            lambda: self.to_leader(on.MemberFailed, gang=gang, generation=generation, rank=rank, cause=cause),
        )
        self._settle(flush)

    def start_all(self, gang: str) -> None:
        """The start functions of all its members succeed: each is reported."""
        for worker in self.workers.values():
            member = worker.members.get(gang)
            if member is None or not member.starting:
                continue
            member.starting = False
            fields = {"gang": gang, "generation": member.generation}
            for rank, part, _ in member.tokens.values():
                if part == 0:
                    self.send(
                        f"{worker.id} reports {gang} rank {rank} started",
                        lambda rank=rank, fields=fields: self.to_leader(on.MemberStarted, rank=rank, **fields),
                    )

    def fail_starts(self, gang: str) -> None:
        """A start function of its first member raises."""
        self.report(self.holder(gang), gang, MemberCause.FAILED_AT_START)

    # -- effects -----------------------------------------------------------------------------------------------------

    def carry_out(self, core: SchedulerCore, effect: do.Effect) -> None:
        match effect:
            case do.SendHold():
                lost = on.HoldUnanswered(
                    now=0, worker=effect.worker, gang=effect.request.gang, generation=effect.request.generation,
                    attempt=effect.request.attempt, reason="timeout",
                )  # fmt: skip
                self.ask(core, f"hold {effect.request.gang} at {effect.worker}", lambda: self.hold(effect), lost)
            case do.ReleaseHold():
                self.send(f"unhold {effect.request.gang} at {effect.worker}", lambda: self.unhold(effect))
            case do.SendReserve():
                self.ask(core, f"keep {effect.request.slots} at {effect.worker}", lambda: self.keep(effect), None)
            case do.Commit():
                self.send(
                    f"commit {effect.what} {effect.gang}",
                    lambda: self.commit(core, effect),
                    lambda: self.lose_commit(core, effect),
                )
            case do.WriteFence():
                self.send(
                    f"refence {effect.gang}", lambda: self.refence(core, effect), lambda: self.carry_out(core, effect)
                )
            case do.SendForm():
                self.send(f"form {effect.request.gang} at {effect.worker}", lambda: self.form(core, effect))
            case do.SendTeardown():
                gone = on.TeardownUnanswered(
                    now=0, worker=effect.worker, gang=effect.request.gang, generation=effect.request.generation
                )
                self.ask(
                    core, f"teardown {effect.request.gang} at {effect.worker}", lambda: self.teardown(effect), gone
                )
            case do.PingWorker():
                gone = on.PingUnanswered(now=0, worker=effect.worker)
                self.ask(core, f"ping {effect.worker}", lambda: self.ping(effect), gone)
            case do.Broadcast():
                self.events.append(effect.event)
            case do.AnswerRequest():
                assert effect.reply_to not in self.answers, "answered twice"
                self.answers[effect.reply_to] = effect
            case do.SetGangTimer():
                self.wakes[id(core)] = effect.at
            case do.StepDown():
                self.stopped.append(core)
                self.wakes[id(core)] = None

    def ask(self, core: SchedulerCore, what: str, serve: Callable[[], Any], gone: Any) -> None:
        """A request reaches the worker, and its answer is sent back. A dead worker means no responders."""

        def give(event: Any) -> None:
            self.give(core, replace_time(event, self.now))

        def arrive() -> None:
            answer = serve()
            if answer is not None:
                self.send(f"answer to {what}", lambda: give(answer))
            elif gone is not None:
                self.send(f"no responders to {what}", lambda: give(gone))

        self.send(what, arrive)

    def hold(self, effect: do.SendHold) -> Any:
        worker, request = self.workers[effect.worker], effect.request
        if not worker.alive:
            return None
        key = (request.gang, request.generation, request.attempt)
        fields: dict[str, Any] = {
            "now": 0, "worker": worker.id, "gang": request.gang, "generation": request.generation,
            "attempt": request.attempt,
        }  # fmt: skip
        reason = self.take(worker, request, key)
        until_tokens = worker.holds.get(key)
        return on.HoldAnswered(
            **fields,
            accepted=not reason,
            reason=reason,
            epoch=worker.epoch,
            reg_revision=self.ledger.revision_of(NAMES.registration_key(worker.id)),
            tokens=tuple(until_tokens[1]) if until_tokens is not None and not reason else (),
            port=4711,
            load=worker.load,
        )

    def take(self, worker: SimWorker, request: HoldRequest, key: tuple[str, int, int]) -> str:
        if key in worker.holds:
            return ""
        if key in worker.tombs or worker.torn.get(request.gang, 0) >= request.generation:
            return "expired"
        if worker.draining:
            return "draining"
        need = sum(seat.slots for seat in request.seats)
        kept = worker.kept.get(request.gang, 0)
        if worker.load.free + kept < need:
            return "full"
        worker.kept.pop(request.gang, None)
        worker.to_keep.pop(request.gang, None)
        tokens = {}
        for seat in request.seats:
            self.tokens += 1
            tokens[f"k{self.tokens}"] = (seat.rank, seat.part, seat.slots)
        worker.holds[key] = (self.now + request.hold_s, tokens)
        return ""

    def unhold(self, effect: do.ReleaseHold) -> None:
        worker, request = self.workers[effect.worker], effect.request
        key = (request.gang, request.generation, request.attempt)
        assert isinstance(request, UnholdRequest)
        if worker.alive:
            worker.tombs.add(key)
            worker.holds.pop(key, None)

    def keep(self, effect: do.SendReserve) -> Any:
        worker, request = self.workers[effect.worker], effect.request
        if not worker.alive:
            return None
        worker.kept.pop(request.gang, None)
        worker.to_keep[request.gang] = request.slots
        if not request.slots:
            del worker.to_keep[request.gang]
        worker.top_up()
        kept = worker.kept.get(request.gang, 0)
        return on.KeepAnswered(now=0, worker=worker.id, gang=request.gang, kept=kept, load=worker.load)

    def expire_holds(self, worker: SimWorker) -> None:
        """The worker's rule: rewrite `reg`, then look for the member record."""
        for key, (until, tokens) in list(worker.holds.items()):
            if until > self.now or not worker.alive:
                continue
            self.register(worker)
            del worker.holds[key]
            worker.tombs.add(key)
            gang, generation, _ = key
            record = self.ledger.keys.get(NAMES.member_key(worker.id, gang), (None, 0))[0]
            granted = {seat.token for seat in record.seats} if record is not None else set()
            if record is not None and record.generation == generation and granted & set(tokens):
                self.start(worker, gang, generation, tokens)

    def reconcile(self, worker: SimWorker) -> None:
        """What a worker does with members that have received no ping for long: it reads the ledger."""
        for gang, member in list(worker.members.items()):
            record = self.ledger.keys.get(NAMES.member_key(worker.id, gang), (None, 0))[0]
            granted = {seat.token for seat in record.seats} if record is not None else set()
            member.tokens = {token: seat for token, seat in member.tokens.items() if token in granted}
            if not member.tokens:
                del worker.members[gang]

    def form(self, core: SchedulerCore, effect: do.SendForm) -> None:
        worker, request = self.workers[effect.worker], effect.request
        if not worker.alive:
            return
        assert isinstance(request, FormRequest)
        assert (request.gang, request.generation) in self.ledger.granted, "L7: told to start before the commit"
        assert request.size == len({seat.rank for seat in request.seats}), f"{request.gang} is told a wrong world size"
        if worker.torn.get(request.gang, 0) >= request.generation:
            return
        mine = {seat.token for seat in request.seats if WorkerId(seat.pool, seat.worker) == worker.id}
        member = worker.members.get(request.gang)
        if member is not None and member.generation > request.generation:
            return
        for key, (_, tokens) in list(worker.holds.items()):
            if key[0] == request.gang and key[1] == request.generation and set(tokens) <= mine:
                del worker.holds[key]
                worker.tombs.add(key)
                self.start(worker, request.gang, request.generation, tokens)
        member = worker.members.get(request.gang)
        have = set(member.tokens) if member is not None else set()
        if member is not None:
            member.generation = request.generation
            member.tokens = {token: seat for token, seat in member.tokens.items() if token in mine}
        for seat in request.seats:
            if seat.token in mine - have and worker.epoch == seat.epoch:
                failed = on.MemberFailed(
                    now=0, gang=request.gang, generation=request.generation, rank=seat.rank,
                    cause=MemberCause.FAILED_AT_START,
                )  # fmt: skip
                self.send(
                    f"{worker.id} cannot form {request.gang}",
                    lambda e=failed: self.give(core, replace_time(e, self.now)),
                )
        if member is not None and mine - have == set() and not member.starting:
            done = on.Formed(now=0, worker=worker.id, gang=request.gang, generation=request.generation)
            self.send(f"{worker.id} has formed {request.gang}", lambda: self.give(core, replace_time(done, self.now)))

    def start(self, worker: SimWorker, gang: str, generation: int, tokens: dict[str, tuple[int, int, int]]) -> None:
        assert (gang, generation) in self.ledger.granted, "L7: a member started before the commit"
        assert worker.torn.get(gang, 0) < generation, "L8: a member of a generation that was torn down started"
        member = worker.members.setdefault(gang, Member(generation, {}))
        member.generation = max(member.generation, generation)
        member.tokens.update(tokens)
        member.starting = member.starting or self.slow_starts(gang, worker.id)

    def teardown(self, effect: do.SendTeardown) -> Any:
        worker, request = self.workers[effect.worker], effect.request
        if not worker.alive:
            return None
        assert isinstance(request, TeardownRequest)
        member = worker.members.get(request.gang)
        if request.only is not None:
            if member is not None:
                for token in request.only:
                    member.tokens.pop(token, None)
                if not member.tokens:
                    del worker.members[request.gang]
            return on.LoadSeen(now=0, worker=worker.id, epoch=worker.epoch, load=worker.load)
        worker.torn[request.gang] = max(worker.torn.get(request.gang, 0), request.generation)
        if member is not None and member.generation <= request.generation:
            del worker.members[request.gang]
        for key in [key for key in worker.holds if key[0] == request.gang and key[1] <= request.generation]:
            del worker.holds[key]
            worker.tombs.add(key)
        return on.TeardownConfirmed(
            now=0, worker=worker.id, gang=request.gang, generation=request.generation, load=worker.load
        )

    def ping(self, effect: do.PingWorker) -> Any:
        worker = self.workers[effect.worker]
        if not worker.alive:
            return None
        missing = {
            gang: generation
            for gang, generation in effect.request.gangs.items()
            if not (gang in worker.members and worker.members[gang].generation == generation)
            and not any(key[0] == gang for key in worker.holds)
        }
        asked = effect.request.gangs.items()
        started = {
            gang: generation
            for gang, generation in asked
            if gang in worker.members and gang not in missing and not worker.members[gang].starting
        }
        return on.PingAnswered(now=0, worker=worker.id, missing=missing, started=started)

    def commit(self, core: SchedulerCore, effect: do.Commit) -> None:
        revision = self.ledger.commit(effect.writes)
        if core is not self.core:
            assert revision is None, "L9: a deposed coordinator wrote"
        if revision is None:
            event: Any = on.CommitRefused(now=0, number=effect.number)
        else:
            event = on.Committed(now=0, number=effect.number, revision=revision)
        self.send(
            f"{'acked' if revision else 'refused'} {effect.what} {effect.gang}",
            lambda: self.give(core, replace_time(event, self.now)),
            lambda: self.give(core, on.CommitUnknown(now=self.now, number=effect.number)),
        )

    def lose_commit(self, core: SchedulerCore, effect: do.Commit) -> None:
        self.give(core, on.CommitUnknown(now=self.now, number=effect.number))

    def refence(self, core: SchedulerCore, effect: do.WriteFence) -> None:
        if core is not self.core:
            self.give(core, on.LeadershipLost(now=self.now, reason="conflict"))
            return
        record = self.ledger.keys["leader"][0]
        fence = self.ledger.put("leader", record)
        gang, revision = self.ledger.keys.get(f"gang.{effect.gang}", (None, 0))
        event = on.Refenced(now=0, number=effect.number, fence=fence, record=gang, revision=revision)
        self.send(
            f"refenced {effect.gang}",
            lambda: self.give(core, replace_time(event, self.now)),
            lambda: self.carry_out(core, effect),
        )

    # -- laws --------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        for worker in self.workers.values():
            worker.check()
        for gang in self.ledger.gangs().values():
            # One failure for each generation, and that of this one only once it is over.
            assert gang.counted <= gang.generation - (gang.state in (GangState.FORMED, GangState.QUEUED)), gang

    def states(self) -> dict[str, str]:
        return {gang.id: gang.step for gang in self.core.gangs()}

    def kinds(self, gang: str) -> list[str]:
        return [event.kind.value for event in self.events if event.gang == gang]


_OF_SET = ("surge", "surge_wait_s", "retire_s", "min_ready_s", "roll_failures")


def replace_time(event: Any, now: float) -> Any:
    return replace(event, now=now, wall=WALL + now)


def world_of(*slots: int, settings: CoordinatorSettings | None = None, nodes: int = 100) -> World:
    world = World(settings)
    for number, count in enumerate(slots):
        world.add_worker(f"w{number}", count, node=f"n{number % nodes}")
    world.elect(flush=True)
    return world


def formed(world: World) -> list[str]:
    """Gangs that are formed, by name."""
    return sorted(gang for gang, step in world.states().items() if step == "formed")


def heartbeats(world: World) -> None:
    for worker in world.workers.values():
        world.heartbeat(worker)
    world.flush()
