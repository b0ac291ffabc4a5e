"""The demo's claims about gangs, as functions of recorded facts. Each returns its violations, as in `checks`.

The ledger's revisions come from one watch, in the order of the stream.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ....bus.port.bus import KvEntry, KvOperation
from ....schemas.messages.gangs import GangEvent
from ....schemas.records.gangs import GangRecord, GangState, MemberRecord
from ....schemas.records.workers import Registration
from ..fixtures.gang_pool import ALL, Counted, Tally, added
from .calls import Record

GRANTED = (GangState.FORMED, GangState.RETIRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedPart:
    """One part of the files, counted by all ranks of a gang."""

    number: int
    gang: str
    ranks: Sequence[Counted]
    """The answer of each rank."""


def counts_are_right(expected: Tally, parts: Sequence[CountedPart], *, wanted: int, size: int) -> list[str]:
    """Every part was counted once, all its ranks agree, and the total equals what was counted here."""
    found: list[str] = []
    times = Counter(part.number for part in parts)
    found += [f"part {n} was counted {times[n]} times" for n in range(wanted) if times[n] != 1]
    for part in parts:
        ranks = [one.rank for one in part.ranks]
        if ranks != list(range(size)):
            found.append(f"part {part.number} was counted by the ranks {ranks}")
            continue
        tallies = [one.tally for one in part.ranks]
        found += [
            f"part {part.number}: rank {one.rank} gathered something else than rank 0"
            for one in part.ranks
            if one.tally != tallies[0]
        ]
        if sum(one.own for one in part.ranks) != tallies[0][ALL]:
            found.append(f"part {part.number}: the shares do not make up the sum")
        generations = {one.generation for one in part.ranks}
        if len(generations) != 1:
            found.append(f"part {part.number} was counted by the generations {sorted(generations)} together")
    total = added(part.ranks[0].tally for part in parts if part.ranks)
    wrong = [word for word in expected.keys() | total.keys() if expected.get(word, 0) != total.get(word, 0)]
    found += [f"{word!r}: {total.get(word, 0)} instead of {expected.get(word, 0)}" for word in sorted(wrong)]
    return found


# -- the ledger -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Ledger:
    """What the ledger shows at one revision."""

    members: defaultdict[str, dict[str, MemberRecord]] = field(default_factory=lambda: defaultdict(dict))
    """By gang and `pool.worker`."""
    gangs: dict[str, GangRecord] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)
    """Slots of each registered worker."""

    def take(self, entry: KvEntry) -> tuple[str, str]:
        """Apply the next revision; returns the kind of its key, and its gang, if any."""
        folder, *rest = entry.key.split(".")
        gone = entry.operation is KvOperation.DELETE
        if folder == "member":
            worker, gang = ".".join(rest[:2]), rest[2]
            if gone:
                self.members[gang].pop(worker, None)
            else:
                self.members[gang][worker] = MemberRecord.model_validate_json(entry.value)
            return folder, gang
        if folder == "gang" and not gone:
            self.gangs[rest[0]] = GangRecord.model_validate_json(entry.value)
        if folder == "reg" and not gone:
            self.slots[".".join(rest)] = Registration.model_validate_json(entry.value).slots
        return folder, rest[0] if folder == "gang" and not gone else ""


def atomic(revisions: Iterable[KvEntry]) -> list[str]:
    """L7: members are granted by one batch and ended by one batch, so no other change of a gang lies between their
    revisions. (Writes of others, such as heartbeats, may lie between those of a batch.)"""
    found: list[str] = []
    ledger = Ledger()
    batch = ""
    """The gang whose members are being granted or ended at this revision."""
    ending = ""
    for entry in revisions:
        if not entry.key.startswith(("member.", "gang.")):
            ledger.take(entry)
            continue
        if ending and not (entry.operation is KvOperation.DELETE and entry.key.endswith(f".{ending}")):
            found += _left(ledger, ending)
            ending = ""
        folder, gang = ledger.take(entry)
        if batch and gang != batch:
            found.append(f"revision {entry.revision}: gang {batch} is granted in part, and {entry.key} was written")
            batch = ""
        if folder == "member" and not ending:
            batch = gang
        elif folder == "gang" and gang:
            record = ledger.gangs[gang]
            batch = ""
            if record.state in GRANTED:
                found += _whole(ledger, record, entry.revision)
            elif record.state is GangState.TEARING_DOWN:
                ending = gang
            else:
                found += _left(ledger, gang)
    if batch:
        found.append(f"gang {batch} is granted in part, at the end")
    return found + (_left(ledger, ending) if ending else [])


def _whole(ledger: Ledger, record: GangRecord, revision: int) -> list[str]:
    here = ledger.members[record.id]
    wanted = sorted((f"{seat.pool}.{seat.worker}", seat.rank, seat.token) for seat in record.seats)
    shown = sorted((worker, seat.rank, seat.token) for worker, member in here.items() for seat in member.seats)
    generations = {member.generation for member in here.values()}
    if wanted == shown and generations == {record.generation}:
        return []
    return [f"revision {revision}: gang {record.id} is formed with {len(shown)} of {len(wanted)} members of its own"]


def _left(ledger: Ledger, gang: str) -> list[str]:
    left = sorted(ledger.members[gang])
    return [f"gang {gang} is {ledger.gangs[gang].state.value}, and has members on {', '.join(left)}"] if left else []


def fated(revisions: Iterable[KvEntry], events: Sequence[GangEvent]) -> list[str]:
    """L8: the generations of a gang follow one another, each is formed once and torn down once, and both are
    announced."""
    found: list[str] = []
    formed: Counter[tuple[str, int]] = Counter()
    ended: Counter[tuple[str, int]] = Counter()
    last: dict[str, GangRecord] = {}
    for record in _records(revisions):
        before, last[record.id] = last.get(record.id), record
        name = (record.id, record.generation)
        if record.state is GangState.FORMED:
            formed[name] += 1
            old = (record.id, record.generation - 1)
            if record.generation > 1 and not ended[old]:
                found.append(f"gang {record.id}: generation {record.generation} came before the end of the last")
        elif record.state is GangState.TEARING_DOWN:
            ended[name] += 1
        if before is not None and record.generation not in (before.generation, before.generation + 1):
            found.append(f"gang {record.id}: generation {record.generation} after {before.generation}")
    for what, counts, kind in (("formed", formed, "formed"), ("torn down", ended, "torn_down")):
        found += [
            f"gang {gang}: generation {n} was {what} {times} times" for (gang, n), times in counts.items() if times > 1
        ]
        told = {(event.gang, event.generation) for event in events if event.kind.value == kind}
        found += [
            f"gang {gang}: generation {n} was {what}, but by the ledger or by an event only"
            for gang, n in sorted(told ^ counts.keys())
        ]
    found += [
        f"gang {gang}: generation {n} was formed and never torn down"
        for gang, n in sorted(formed.keys() - ended.keys())
    ]
    found += [
        f"gang {gang} is {record.state.value} at the end"
        for gang, record in last.items()
        if record.state is not GangState.ENDED
    ]
    return found


def within_slots(revisions: Iterable[KvEntry]) -> list[str]:
    """At no revision do gangs hold more slots of a worker than it has registered."""
    found: list[str] = []
    ledger = Ledger()
    for entry in revisions:
        folder, _ = ledger.take(entry)
        if folder != "member":
            continue
        held: Counter[str] = Counter()
        for here in ledger.members.values():
            for worker, member in here.items():
                held[worker] += sum(seat.slots for seat in member.seats)
        found += [
            f"revision {entry.revision}: gangs hold {slots} of the {ledger.slots.get(worker, 0)} slots of {worker}"
            for worker, slots in held.items()
            if slots > ledger.slots.get(worker, 0)
        ]
    return found


def in_turn(revisions: Iterable[KvEntry], first: str, second: str) -> list[str]:
    """`second` was formed, but only after `first` had been formed and torn down."""
    order = [(record.id, record.state) for record in _records(revisions)]
    steps = [(first, GangState.FORMED), (first, GangState.TEARING_DOWN), (second, GangState.FORMED)]
    missing = [f"gang {gang} was never {state.value}" for gang, state in steps if (gang, state) not in order]
    if missing:
        return missing
    places = [order.index(step) for step in steps]
    return [] if places == sorted(places) else [f"gang {second} was formed before {first} had ended"]


def _records(revisions: Iterable[KvEntry]) -> Iterator[GangRecord]:
    for entry in revisions:
        if entry.key.startswith("gang.") and entry.operation is KvOperation.PUT:
            yield GangRecord.model_validate_json(entry.value)


# -- the workers ----------------------------------------------------------------------------------------------------


def dead_stay_dead(journals: Mapping[str, Sequence[Record]]) -> list[str]:
    """L8: after the teardown of a generation nothing starts on its tokens, and it is never formed again."""
    found: list[str] = []
    for worker, records in journals.items():
        seats: defaultdict[str, set[str]] = defaultdict(set)
        dead: set[str] = set()
        over: dict[str, int] = {}
        for number, record in enumerate(records, 1):
            gang, event = str(record.get("gang", "")), record["event"]
            if event == "grant" and gang:
                seats[gang].add(str(record["token"]))
            elif event == "teardown":
                dead |= seats.pop(gang, set())
                over[gang] = record["generation"]
            elif event == "form" and record["generation"] <= over.get(gang, 0):
                found.append(f"{worker} line {number}: generation {record['generation']} of {gang} after its teardown")
            elif event == "start" and record.get("token") in dead:
                found.append(f"{worker} line {number}: a task started on a seat of a generation that was torn down")
    return found


def noticed(torn: GangEvent | None, *, generation: int, ranks: frozenset[int], after_s: float) -> list[str]:
    """A member's process was killed: its generation was torn down after that, for that reason."""
    if torn is None:
        return ["no teardown event arrived"]
    found = []
    if torn.generation != generation:
        found.append(f"generation {torn.generation} was torn down, not {generation}")
    if torn.rank not in ranks:
        found.append(f"rank {torn.rank} was reported lost, but {sorted(ranks)} were killed")
    if after_s < 0:
        found.append(f"the event came {-after_s:.1f} s before the kill")
    return found


def restarted(parts: Sequence[CountedPart], *, generations: int) -> list[str]:
    """The parts were counted by these generations, in this order."""
    order = [part.ranks[0].generation for part in parts if part.ranks]
    if order != sorted(order) or set(order) != set(range(1, generations + 1)):
        return [f"the parts were counted by the generations {order}"]
    return []
