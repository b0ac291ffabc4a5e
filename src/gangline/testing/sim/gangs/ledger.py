"""Laws L7 and L9, and the part of L8 that concerns the ledger: a replay of every revision, as an observer with a watch
sees them.

Members and their gang's record change together, in one batch. The record comes last when members are granted, and first
when they are ended. So the checks run at each revision of the gang's record, and again at the end of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from ....bus.port.bus import KvEntry, KvOperation, KvWrite
from ....schemas.names import Names, WorkerId
from ....schemas.records.gangs import (
    GangRecord,
    GangSetRecord,
    GangSetStatus,
    GangSpec,
    GangState,
    LeaderRecord,
    MemberRecord,
    Seat,
    read_gang,
    template_of,
)
from ....schemas.records.workers import Registration
from ..history.checker import Checker

_HEARD_WITHIN_S = 2.0
"""A leader knows a declaration after this time."""
_SETTLED_AFTER_S = 5.0
"""After this time the contents of a bucket that vanished have been written again."""
STANDING = (GangState.FORMED, GangState.RETIRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A worker's answer to a hold."""

    worker: WorkerId
    gang: str
    generation: int
    reg_revision: int


@dataclass(slots=True, kw_only=True)
class History:
    """The ledger's history of one gang."""

    formed: GangRecord | None = None
    """The newest generation."""
    records: list[GangRecord] = field(default_factory=list[GangRecord])
    """What was written of it, the newest last."""
    torn: int = 0
    """The latest generation that was torn down; so were all before it."""
    torn_at: float = 0.0
    grace_s: float = 0.0
    lost: bool = False
    """Whether the bucket has vanished since."""


class GangLedger:
    """Replays the ledger's gangs, members and leaders."""

    def __init__(
        self,
        checker: Checker,
        names: Names,
        *,
        instance_of: Callable[[str], str | None],
        on_torn: Callable[[GangRecord], None],
    ) -> None:
        """
        Args:
            instance_of: returns the instance of the coordinator with that bus name, if it is one.
            on_torn: called with each generation whose end is written.
        """
        self._fail = checker.fail
        self._clock = checker.clock
        self._names = names
        self._instance_of = instance_of
        self._on_torn = on_torn
        self._revision = 0
        self._leader: tuple[int, LeaderRecord] | None = None
        self._leader_before = 0
        """Its revision before the batch in progress."""
        self._members: dict[tuple[WorkerId, str], MemberRecord] = {}
        self._gangs: dict[str, GangRecord] = {}
        self._registrations: dict[WorkerId, tuple[int, int]] = {}
        """Revision and epoch."""
        self._touched: dict[str, None] = {}
        """Gangs with writes in the batch in progress."""
        self._draining: dict[WorkerId, bool] = {}
        self._sets: dict[str, tuple[float, GangSetRecord]] = {}
        """The declared sets, and since when."""
        self._rolls: dict[str, dict[tuple[str, int], GangSpec]] = {}
        """By set: the generations that its gangs have formed, without those that ended while its status told no
        failure."""
        self._unsettled_until = 0.0
        """After the bucket vanished: until then, not everything may have been written again."""
        self.held: dict[str, Held] = {}
        """By public id of the token; from the wire."""
        self.granted: dict[str, str] = {}
        """By public id of the token: what it was granted for. Never removed."""
        self.history: dict[str, History] = {}
        self.commits = 0

    # -- revisions ------------------------------------------------------------------------------------------------

    def on_change(self, bucket: str, entry: KvEntry) -> None:
        """One revision, or a key that expires."""
        if bucket != self._names.ledger_bucket:
            return
        if entry.revision:
            self._follow(entry)
        value = None if entry.operation is KvOperation.DELETE else entry.value
        match entry.key.partition(".")[0]:
            case "leader" if value is not None:
                self._lead(entry.revision, LeaderRecord.model_validate_json(value))
            case "reg":
                worker = self._names.parse_worker_key(entry.key)
                if value is None:
                    self._registrations.pop(worker, None)
                else:
                    registration = Registration.model_validate_json(value)
                    self._registrations[worker] = (entry.revision, registration.epoch)
                    self._draining[worker] = registration.state == "draining"
            case "member":
                self._member(entry.key, value)
            case "gangset" if value is not None:
                declared = GangSetRecord.model_validate_json(value)
                self._sets[entry.key.partition(".")[2]] = (self._clock(), declared)
            case "gangset":
                self._sets.pop(entry.key.partition(".")[2], None)
            case "gang":
                self._gang(entry.key.partition(".")[2], value)
            case "gangset_status" if value is not None:
                self._status(entry.key.partition(".")[2], GangSetStatus.model_validate_json(value))
            case _:
                pass

    def drains(self, worker: str) -> None:
        """A worker has announced that it drains; its registration may follow later, when storage accepts it."""
        for known in self._registrations:
            if known.worker == worker:
                self._draining[known] = True

    def _follow(self, entry: KvEntry) -> None:
        if self._revision and entry.revision != self._revision + 1:
            self._vanished()
        if entry.revision <= self._revision:
            self._fail(
                "fence", f"{entry.key} is written at {entry.revision}: the ledger was at {self._revision} before"
            )
        self._revision = entry.revision

    def on_write(self, writer: str, bucket: str, writes: Sequence[KvWrite]) -> None:
        """The end of a write or batch."""
        if bucket != self._names.ledger_bucket:
            return
        touched, self._touched = list(self._touched), {}
        for gang in touched:
            self._judge(gang, "after the batch")
        if any(write.key.startswith(("gang.", "member.")) for write in writes):
            self.commits += 1
            self._check_fence(writer, writes)
        if any(write.key == Names.leader_key for write in writes):
            self._check_leader(writer)
        self._leader_before = 0 if self._leader is None else self._leader[0]

    def _vanished(self) -> None:
        """The bucket vanished, and a new one begins."""
        self._leader, self._leader_before = None, 0
        self._members.clear()
        self._gangs.clear()
        self._registrations.clear()
        self._touched.clear()
        self._sets.clear()
        self._unsettled_until = self._clock() + _SETTLED_AFTER_S
        for history in self.history.values():
            history.lost = True

    # -- L9 -------------------------------------------------------------------------------------------------------

    def _lead(self, revision: int, record: LeaderRecord) -> None:
        before = self._leader[1] if self._leader is not None else None
        same = before is not None and (before.term, before.instance) == (record.term, record.instance)
        if before is not None and not same and record.term <= before.term:
            self._fail("L9", f"{record.instance} leads in term {record.term} after {before.instance} in {before.term}")
        self._leader = (revision, record)

    def _check_leader(self, writer: str) -> None:
        if self._leader is not None and self._instance_of(writer) != self._leader[1].instance:
            self._fail("L9", f"{writer} wrote that {self._leader[1].instance} leads")

    def _check_fence(self, writer: str, writes: Sequence[KvWrite]) -> None:
        """Called at the end of a batch; batches of gangs do not write `leader`."""
        keys = [write.key for write in writes]
        instance = self._instance_of(writer)
        leader = self._leader[1].instance if self._leader is not None else None
        if instance is None or instance != leader:
            self._fail("L9", f"{writer} ({instance}) wrote {keys} while {leader} leads")
        fences = [write.revision for write in writes if write.condition_key == Names.leader_key]
        if not fences or any(fence != self._leader_before for fence in fences):
            self._fail("L9", f"{writer} wrote {keys} conditioned on {fences}; `leader` is at {self._leader_before}")

    # -- L7 -------------------------------------------------------------------------------------------------------

    def _member(self, key: str, value: bytes | None) -> None:
        worker, gang = self._names.parse_worker_key(key), key.rpartition(".")[2]
        if value is None:
            self._members.pop((worker, gang), None)
        else:
            record = MemberRecord.model_validate_json(value)
            if record.gang != gang:
                self._fail("L7", f"{key} is a member of gang {record.gang}")
            self._members[worker, gang] = record
        self._touched[gang] = None

    def _gang(self, gang: str, value: bytes | None) -> None:
        history = self.history.setdefault(gang, History())
        self._touched[gang] = None
        if value is None:
            self._gangs.pop(gang, None)
            return
        try:
            record = GangRecord.model_validate_json(value)
        except ValidationError as error:
            self._fail("L7", f"the record of {gang} is invalid: {error}")
            return
        before = self._gangs.get(gang)
        self._gangs[gang] = record
        ended = record.state in (GangState.TEARING_DOWN, GangState.ENDED)
        if record.restarts != record.generation - 1 or record.counted > record.generation - (not ended):
            self._fail("L8", f"{record.id} counts {record.restarts} restarts and {record.counted} failures")
        self._retires(record, before)
        if record.state in STANDING:
            self._judge(gang, "at its record")
            self._granted(record, history)
        elif record.state is GangState.TEARING_DOWN:
            history.torn, history.torn_at = max(history.torn, record.generation), self._clock()
            history.grace_s = record.spec.grace_s
            self._on_torn(record)

    def _judge(self, gang: str, when: str) -> None:
        """Check what an observer sees: all members that the record names, or none."""
        record = self._gangs.get(gang)
        seen = {worker: member for (worker, of), member in self._members.items() if of == gang}
        wanted: dict[WorkerId, set[tuple[int, int, int, str]]] = {}
        if record is not None and record.state in STANDING:
            for seat in record.seats:
                place = (seat.rank, seat.part, seat.slots, seat.token)
                wanted.setdefault(WorkerId(seat.pool, seat.worker), set()).add(place)
            self._check_spec(record)
        state = "absent" if record is None else f"{record.state.value} in generation {record.generation}"
        if set(seen) != set(wanted):
            there = sorted(map(str, seen))
            self._fail("L7", f"{when}, gang {gang} is {state} with {sorted(map(str, wanted))}, the ledger has {there}")
            return
        for worker, member in seen.items():
            has = {(seat.rank, seat.part, seat.slots, seat.token) for seat in member.seats}
            if record is not None and (has != wanted[worker] or member.generation != record.generation):
                self._fail("L7", f"{when}, gang {gang} is {state}; of {worker} the ledger has {member}")

    def _check_spec(self, record: GangRecord) -> None:
        """Check that the spec is as requested, with a number of members within its range."""
        first = record.spec.bundles[0]
        if not (first.min_count or first.count) <= first.count <= (first.max_count or first.count):
            self._fail("L7", f"gang {record.id} has {first.count} members, not {first.min_count} to {first.max_count}")
        has = sorted((seat.rank, seat.part, seat.pool, seat.slots) for seat in record.seats)
        parts = enumerate(record.spec.ranks)
        wants = sorted((r, p, part.pool, part.slots) for r, rank in parts for p, part in enumerate(rank))
        if has != wants:
            self._fail("L7", f"gang {record.id} was asked for as {wants} and stands as {has}")

    def _retires(self, record: GangRecord, before: GangRecord | None) -> None:
        """A gang retires because of a roll, a move, or a smaller set: another one must serve the callers. (A set of one
        gang may have no room for two, and gangs on a draining worker have to go.)"""
        name = record.gangset or ""
        if record.state is not GangState.RETIRING or before is None or before.state is not GangState.FORMED:
            return
        if not before.ready or self._clock() < self._unsettled_until:
            return
        declared_at, declared = self._sets.get(name, (0.0, None))
        if declared is None or declared.gangs < 2 or self._clock() - declared_at < _HEARD_WITHIN_S:
            return
        if any(self._draining.get(WorkerId(seat.pool, seat.worker)) for seat in record.seats):
            return
        if not any(
            other.gangset == name and other.state is GangState.FORMED and other.ready for other in self._gangs.values()
        ):
            self._fail("roll", f"gang {record.id} retires, and no other of the {declared.gangs} of {name} is ready")

    def _status(self, name: str, status: GangSetStatus) -> None:
        """Check that a failure counts once against a roll: a generation fails at most once, however many of its members
        are lost, and however many leaders find that."""
        formed = self._rolls.setdefault(name, {})
        current = read_gang(status.current)
        template = None if current is None else template_of(current)
        most = sum(spec == template for spec in formed.values())
        if status.failures > most:
            self._fail("roll", f"set {name} counts {status.failures} failures of {most} generations")
        if not status.failures:
            stand = {(id, gang.generation) for id, gang in self._gangs.items() if gang.state in STANDING}
            self._rolls[name] = {each: spec for each, spec in formed.items() if each in stand}

    def _granted(self, record: GangRecord, history: History) -> None:
        """A generation is formed: check that it is the next one, with new tokens."""
        if record.gangset is not None:
            self._rolls.setdefault(record.gangset, {})[record.id, record.generation] = record.spec
        before, history.formed = history.formed, record
        earlier = history.records[:] if history.lost else history.records[-1:]
        history.records.append(record)
        if any((each.generation, each.seats) == (record.generation, record.seats) for each in earlier):
            # What is written back may be older than its teardown, or than a generation that was formed in the moment
            # of the loss; its members know better.
            if history.lost:
                history.lost, history.torn = False, min(history.torn, record.generation - 1)
            if history.torn >= record.generation:
                self._fail("L8", f"gang {record.id}: generation {record.generation} stands again after its teardown")
            return  # written again, or retiring
        lost, history.lost = history.lost, False
        if lost:
            history.torn = 0
        else:
            last = max(history.torn, before.generation if before is not None else 0)
            if record.generation != last + 1:
                self._fail("L8", f"gang {record.id}: generation {record.generation} follows {last}")
        stays = before.seats if before is not None and history.torn < before.generation else ()
        for seat in record.seats:
            if seat in stays:
                continue
            known = self.granted.get(seat.token)
            if known is not None:
                self._fail("L8", f"gang {record.id}: {seat} has the token of {known}")
            self.granted[seat.token] = f"gang {record.id}, generation {record.generation}: {seat}"
            self._check_hold(record, seat)

    def _check_hold(self, record: GangRecord, seat: Seat) -> None:
        """Check that the worker is still bound by its hold: if it gave that up, it wrote a new registration first."""
        held, worker = self.held.get(seat.token), WorkerId(seat.pool, seat.worker)
        if held is None or (held.worker, held.gang, held.generation) != (worker, record.id, record.generation):
            self._fail("L7", f"gang {record.id} was granted {seat}, which was held as {held}")
            return
        # Its epoch may be newer than in its registration.
        revision, epoch = self._registrations.get(worker, (0, 0))
        if revision != held.reg_revision or epoch > seat.epoch:
            self._fail(
                "L7",
                f"gang {record.id} was granted rank {seat.rank} of {worker}, held at registration {held.reg_revision} "
                f"in epoch {seat.epoch}; it is now at {revision} in epoch {epoch}",
            )

    # -- for other checks -----------------------------------------------------------------------------------------

    def stood(self, gang: str, generation: int) -> bool:
        """Whether that generation was ever committed."""
        history = self.history.get(gang)
        return history is not None and history.formed is not None and history.formed.generation >= generation

    def stands(self, gang: str, generation: int, worker: WorkerId) -> bool:
        """Whether that generation has not ended and has members on the worker. (A worker that loses its member in a
        swap is told to end it.)"""
        history = self.history.get(gang)
        if history is None or history.lost or history.formed is None or history.torn >= generation:
            return False
        here = any(WorkerId(seat.pool, seat.worker) == worker for seat in history.formed.seats)
        return here and history.formed.generation <= generation

    def standing(self, gangset: str) -> int:
        """Number of formed gangs of a set in the ledger."""
        return sum(each.gangset == gangset and each.state is GangState.FORMED for each in self._gangs.values())

    def at_rest(self, sets: Sequence[str]) -> list[str]:
        """Records that should not be left at rest: all but those of declared sets."""
        gangs = [
            f"gang.{gang} ({record.state.value})"
            for gang, record in self._gangs.items()
            if record.state is not GangState.ENDED and record.gangset not in sets
        ]
        standing = {gang for gang, record in self._gangs.items() if record.gangset in sets}
        return gangs + [f"member.{worker}.{gang}" for worker, gang in self._members if gang not in standing]
