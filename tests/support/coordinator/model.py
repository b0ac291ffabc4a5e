"""A model of the ledger and the workers for the gang core; the laws are checked here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gangline.coordinator.model import effects as do
from gangline.schemas.names import Names, WorkerId
from gangline.schemas.records.gangs import GangRecord, GangState, MemberRecord
from gangline.schemas.wire.frames import Load, LoadFlag

NAMES = Names()
WALL = 1_000_000.0


class Ledger:
    """Keys with revisions; a batch is all or nothing."""

    def __init__(self) -> None:
        self.revision = 0
        self.keys: dict[str, tuple[Any, int]] = {}
        self.granted: set[tuple[str, int]] = set()
        """All (gang, generation) that have been formed."""

    def put(self, key: str, record: Any) -> int:
        self.revision += 1
        self.keys[key] = (record, self.revision)
        return self.revision

    def revision_of(self, key: str) -> int:
        return self.keys[key][1] if key in self.keys else 0

    def commit(self, writes: tuple[do.LedgerWrite, ...]) -> int | None:
        """The revision of the last write; None: refused."""
        assert 0 < len(writes) <= 1000
        for write in writes:
            if write.revision is not None and self.revision_of(write.condition_key or write.key) != write.revision:
                return None
        for write in writes:
            if write.record is None:
                self.revision += 1
                self.keys.pop(write.key, None)
            else:
                self.put(write.key, write.record)
        self.check()
        return self.revision

    def gangs(self) -> dict[str, GangRecord]:
        return {record.id: record for record, _ in self.keys.values() if isinstance(record, GangRecord)}

    def members(self) -> list[tuple[WorkerId, MemberRecord]]:
        return [
            (NAMES.parse_worker_key(key), record)
            for key, (record, _) in self.keys.items()
            if isinstance(record, MemberRecord)
        ]

    def of_sets(self, kind: type) -> tuple[tuple[str, Any], ...]:
        """Records of that kind, with the names of their sets."""
        return tuple((key.split(".")[1], record) for key, (record, _) in self.keys.items() if isinstance(record, kind))

    def check(self, leaked: frozenset[str] = frozenset()) -> None:
        """L7: the members granted are exactly those in the gang's record, or there are none."""
        found: dict[str, dict[str, str]] = {}
        for worker, member in self.members():
            for seat in member.seats:
                where = f"{worker} rank {seat.rank}.{seat.part} gen {member.generation}"
                found.setdefault(member.gang, {})[seat.token] = where
        for gang in set(self.gangs()) | set(found):
            record = self.gangs().get(gang)
            expected: dict[str, str] = {}
            if record is not None and record.state in (GangState.FORMED, GangState.RETIRING):
                ranks = {seat.rank for seat in record.seats}
                least, most = record.spec.sizes
                assert ranks == set(range(record.spec.size)), f"L7: {gang} of {record.spec.size} has ranks {ranks}"
                assert least <= len(ranks) <= most, f"L7: {gang} has {len(ranks)} of {least} to {most} members"
                self.granted.add((gang, record.generation))
                expected = {
                    seat.token: f"{seat.pool}.{seat.worker} rank {seat.rank}.{seat.part} gen {record.generation}"
                    for seat in record.seats
                }
            if gang not in leaked:
                assert found.get(gang, {}) == expected, f"L7: {gang} is granted in part"


@dataclass
class Member:
    generation: int
    tokens: dict[str, tuple[int, int, int]]
    """(rank, part, slots) by token."""
    starting: bool = False
    """Its start functions are running."""


@dataclass
class SimWorker:
    id: WorkerId
    total: int
    node: str
    labels: dict[str, str] = field(default_factory=dict)
    epoch: int = 1
    alive: bool = True
    draining: bool = False
    drain_grace_s: float | None = None
    plain: int = 0
    holds: dict[tuple[str, int, int], tuple[float, dict[str, tuple[int, int, int]]]] = field(default_factory=dict)
    tombs: set[tuple[str, int, int]] = field(default_factory=set)
    members: dict[str, Member] = field(default_factory=dict)
    torn: dict[str, int] = field(default_factory=dict)
    """By gang, the highest generation that was torn down here."""
    kept: dict[str, int] = field(default_factory=dict)
    to_keep: dict[str, int] = field(default_factory=dict)
    """Slots to keep per gang; slots that become free are reserved for these first."""

    @property
    def held(self) -> int:
        holds = sum(slots for _, tokens in self.holds.values() for _, _, slots in tokens.values())
        members = sum(slots for member in self.members.values() for _, _, slots in member.tokens.values())
        return holds + members

    @property
    def load(self) -> Load:
        kept = sum(self.kept.values())
        return Load(self.plain, self.held + kept, self.total, LoadFlag.DRAINING if self.draining else 0)

    def top_up(self) -> None:
        for gang, wanted in self.to_keep.items():
            room = max(0, self.load.free)
            self.kept[gang] = min(wanted, self.kept.get(gang, 0) + room)

    def check(self) -> None:
        assert self.load.ongoing <= self.total, f"L1: {self.id} has {self.load}"
