"""A reader of every revision of the ledger. It checks laws L1, L7, L8 and L9, and records the tokens it shows (L6).

While servers are lost, a watch misses revisions that are overwritten before it is restored; a tail of a bucket with
history (`kept`) misses only expired ones. A bucket with history behaves differently, though: when the marker of a
deleted key expires, the value before it would be the newest again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ...bus.jetstream.api import NO_MESSAGE, ApiError
from ...bus.key_value.wire import stored_from_api, stream_configuration
from ...bus.nats_bus import NatsBus
from ...bus.port.bus import BucketSettings, KeyValue, KvEntry, KvOperation, StorageUnavailable
from ...bus.port.subjects import Subscription
from ...schemas.errors.base import GanglineError
from ...schemas.messages.gangs import GangEvent
from ...schemas.names import MARK
from ...schemas.records.gangs import GangRecord, GangState, LeaderRecord, MemberRecord
from ...schemas.records.workers import LeaseRecord, Registration
from .processes import PATIENCE_S
from .records import ShownToken

SLACK: Final = 3
"""Maximum number of revisions of other writers within one batch."""
SLACK_S: Final = 1.0
"""Maximum time in which a batch is delivered. A batch counts as incomplete only when both limits are exceeded: the
watch itself may stall when a server dies, and the server may put many writes between those of one batch."""
REVISIONS: Final = 64
"""Revisions per key in a bucket with history; the maximum for a bucket."""
_OVER: Final = (GangState.TEARING_DOWN, GangState.ENDED)
_BATCH: Final = 50
"""A batch that was in progress at a gap has been written completely after this many more revisions."""


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """A batch in progress must be complete after this revision and this time."""

    revision: int
    at: float

    @classmethod
    def after(cls, revision: int) -> BatchLimit:
        return cls(revision + SLACK, time.monotonic() + SLACK_S)


class LedgerTail:
    """Reads one revision after the other. Created by `kept`, before any other process opens the bucket."""

    def __init__(self, bus: NatsBus, bucket: str) -> None:
        self._bus = bus
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."

    async def after(self, revision: int) -> KvEntry | None:
        """The first revision after this one; None: there is none yet.

        Raises:
            Unavailable: storage has no leader, or there is no connection.
        """
        wanted = {"seq": revision + 1, "next_by_subj": f"{self._prefix}>"}
        try:
            answer = await self._bus.api.call(f"STREAM.MSG.GET.{self._stream}", wanted, what="read", timeout_s=1.0)
        except ApiError as error:
            if error.number == NO_MESSAGE:
                return None
            raise
        return stored_from_api(self._prefix, answer["message"]).entry()


async def kept(bus: NatsBus, bucket: str, settings: BucketSettings) -> LedgerTail:
    """Create the bucket with a history; servers that have just started may not know each other yet."""
    configuration = {**stream_configuration(bucket, settings), "max_msgs_per_subject": REVISIONS}
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await bus.api.call(f"STREAM.CREATE.KV_{bucket}", configuration, what=f"make the bucket {bucket}")
                return LedgerTail(bus, bucket)
            except StorageUnavailable:
                await asyncio.sleep(0.1)


class LedgerAudit:
    """Checks each gang's record, in the order of revisions (marked *: not if servers are lost meanwhile):

    - one with `formed` or `retiring` follows the records of exactly its members, all of its generation;
    - a member's record is followed by such a record, as part of the same batch, and * by no record of another gang;
    - one with `tearing_down` is followed by the deletion of all its members, in the same way;
    - one with `queued` or `ended` has no members, and * one with `formed` loses none;
    - members never have more slots of a worker than it has registered;
    - generations follow one another, nothing changes one that is over, and each term has one leader.

    The server keeps the order of a batch, but may put other writers' messages between its messages.
    """

    def __init__(self, *, lossy: bool = False) -> None:
        """`lossy`: servers are lost meanwhile; leave out gangs that may not have been seen completely."""
        self._lossy = lossy
        self.broken: list[str] = []
        """Breaches of L1 and L7."""
        self.deposed: list[str] = []
        """Breaches of L8 and L9."""
        self.formed: dict[str, set[int]] = {}
        """Formed generations, by gang."""
        self.history: list[tuple[str, GangState, int]] = []
        """Every record of a gang, in order: its state and generation."""
        self.members: dict[str, dict[str, MemberRecord]] = {}
        """Existing member records, by gang and worker."""
        self.states: dict[str, GangState] = {}
        self.shown: dict[str, ShownToken] = {}
        """Leases, by public id."""
        self.blind: list[tuple[float, float]] = []
        """Times in which revisions may not have been delivered."""
        self.revisions = 0
        """Number of revisions read."""
        self.missed = 0
        """Number of revisions not delivered, from the gaps between those that were."""
        self.gaps = 0
        """Places where revisions were overwritten, or had expired, before they were delivered."""
        self.judged = 0
        """Number of granted gangs, and of those left out."""
        self.left_out = 0
        self.revision = 0
        """The last revision that was read."""
        self._slots: dict[str, int] = {}
        """Registered slots, by worker."""
        self._ending: dict[str, BatchLimit] = {}
        """Gangs being torn down, whose members must all end."""
        self._granting: dict[str, BatchLimit] = {}
        """Gangs with new members, whose own record must follow."""
        self._heard_at = time.monotonic()
        self._terms: dict[int, str] = {}
        """The leading coordinator of each term."""
        self._over: dict[str, int] = {}
        """By gang, the newest generation that has ended."""
        self._gap_at = -_BATCH
        self._unknown: set[str] = set()
        """Gangs that may not have been seen completely."""
        self._subscription: Subscription | None = None
        self._tail: asyncio.Task[None] | None = None

    async def start(self, ledger: KeyValue) -> None:
        """Follow with a watch."""
        self._subscription = await ledger.watch(">", self._see)

    def start_tail(self, tail: LedgerTail) -> None:
        """Follow by reading one revision after the other from a bucket with history."""
        self._tail = asyncio.ensure_future(self._follow(tail))

    async def _follow(self, tail: LedgerTail) -> None:
        while True:
            try:
                entry = await tail.after(self.revision)
            except GanglineError:
                await asyncio.sleep(0.1)  # there is no leader to ask
                continue
            if entry is None:
                await asyncio.sleep(0.02)
            else:
                self._see(entry)

    async def stop(self) -> None:
        if self._subscription is not None:
            await self._subscription.unsubscribe()
        if self._tail is not None:
            self._tail.cancel()
            await asyncio.gather(self._tail, return_exceptions=True)

    def left(self) -> list[str]:
        """Gangs that have members now."""
        return sorted(gang for gang, here in self.members.items() if here)

    def summary(self) -> str:
        """How much of it was judged."""
        return (
            f"the ledger's reader saw {self.revisions} revisions with {self.gaps} gaps, and judged {self.judged} grants"
            f" of gangs; {self.left_out} more may not have been seen whole"
        )

    def announced(self, events: Iterable[GangEvent]) -> list[str]:
        """L8, at the end: every generation was formed once and torn down once, and both were announced."""
        found: list[str] = []
        told: dict[str, set[tuple[str, int]]] = defaultdict(set)
        for event in events:
            told[event.kind.value].add((event.gang, event.generation))
        counts = {state: Counter((gang, n) for gang, at, n in self.history if at is state) for state in GangState}
        for state, kind in ((GangState.FORMED, "formed"), (GangState.TEARING_DOWN, "torn_down")):
            what = kind.replace("_", " ")
            names = counts[state]
            found += [
                f"gang {g}: generation {n} was {what} {times} times" for (g, n), times in names.items() if times > 1
            ]
            only = sorted(told[kind] ^ names.keys())
            found += [f"gang {g}: generation {n} was {what}, but by the ledger or by an event only" for g, n in only]
        open_ = sorted(counts[GangState.FORMED].keys() - counts[GangState.TEARING_DOWN].keys())
        found += [f"gang {gang}: generation {n} was formed and never torn down" for gang, n in open_]
        found += [f"gang {gang} still has members at the end" for gang in self.left()]
        return found + [f"gang {g} is {s.value} at the end" for g, s in self.states.items() if s is not GangState.ENDED]

    def in_turn(self, steps: Sequence[tuple[str, GangState]]) -> list[str]:
        """These first happened in this order."""
        order = [(gang, state) for gang, state, _ in self.history]
        missing = [f"gang {gang} was never {state.value}" for gang, state in steps if (gang, state) not in order]
        places = [] if missing else [order.index(step) for step in steps]
        return missing or ([] if places == sorted(places) else [f"{steps[-1][0]} was {steps[-1][1].value} too early"])

    # -- each revision ------------------------------------------------------------------------------------------------

    def _see(self, entry: KvEntry) -> None:
        now = time.monotonic()
        new = entry.revision > self.revision
        if new:
            self._look_for_gap(entry, now)
            self.revisions += 1
            self.revision = entry.revision
            self._judge_leader(entry)
        self._heard_at = now
        folder, _, rest = entry.key.partition(".")
        if folder in ("gang", "member") and entry.revision < self._gap_at + _BATCH:
            self._unknown.add(rest.rpartition(".")[2])
        elif folder == "lease":
            self._note(entry, now)
        if new:
            self._judge_batches(entry)
            self._take(entry, folder, rest)
        elif folder == "member" and entry.operation is KvOperation.DELETE:
            self._take(entry, folder, rest)  # the watch was restored and delivers values again

    def _look_for_gap(self, entry: KvEntry, now: float) -> None:
        if not self.revision or entry.revision == self.revision + 1:
            return
        self.missed += entry.revision - self.revision - 1
        self.blind.append((self._heard_at, now))
        self.gaps += 1
        if self._tail is None:  # a tail misses only values that have expired
            self._ending.clear()
            self._granting.clear()
            if self._lossy:
                self._gap_at = entry.revision
                self._unknown |= {*self.members, *self.states}

    def _judge_batches(self, entry: KvEntry) -> None:
        for gang in _due(self._ending, entry.revision):
            if self.members.get(gang):
                self._complain(entry, gang, f"is torn down and has members on {sorted(self.members[gang])}")
        for gang in _due(self._granting, entry.revision):
            self._complain(entry, gang, f"has members on {sorted(self.members[gang])}, and was not granted")

    def _take(self, entry: KvEntry, folder: str, rest: str) -> None:
        put = entry.operation is KvOperation.PUT
        if folder in ("gang", "member") and put and not self._lossy:
            for other in self._granting.keys() - {rest.rpartition(".")[2]}:
                self._complain(entry, other, f"is granted in part, and {entry.key} was written")
        if folder == "member":
            worker, _, gang = rest.rpartition(".")
            here = self.members.setdefault(gang, {})
            if not put and not self._lossy and worker in here and self.states.get(gang) is GangState.FORMED:
                self._complain(entry, gang, f"is formed, and its member on {worker} has gone")
            if put:
                here[worker] = MemberRecord.model_validate_json(entry.value)
                self._granting[gang] = BatchLimit.after(entry.revision)
                self._judge_slots(entry, worker, gang)
            else:
                here.pop(worker, None)
                if not here:
                    self._ending.pop(gang, None)
        elif folder == "gang" and put:
            self._judge(entry, GangRecord.model_validate_json(entry.value))
        elif folder == "reg" and put:
            self._slots[rest] = Registration.model_validate_json(entry.value).slots

    def _judge_slots(self, entry: KvEntry, worker: str, gang: str) -> None:
        """L1: gangs that were seen completely have no more slots of a worker than it has registered."""
        seats = [
            seat
            for other, here in self.members.items()
            if other not in self._unknown and worker in here
            for seat in here[worker].seats
        ]
        slots, most = sum(seat.slots for seat in seats), self._slots.get(worker, 0)
        if slots > most > 0:
            self._complain(entry, gang, f"is one of gangs with {slots} of the {most} slots of {worker}", law="L1")

    def _judge(self, entry: KvEntry, record: GangRecord) -> None:
        here = self.members.get(record.id, {})
        self.history.append((record.id, record.state, record.generation))
        self.states[record.id] = record.state
        self._granting.pop(record.id, None)
        self._ending.pop(record.id, None)
        if record.state in (GangState.FORMED, GangState.RETIRING):
            self._judge_formed(entry, record, here)
        elif record.state is GangState.TEARING_DOWN:
            self._ending[record.id] = BatchLimit.after(entry.revision + len(here))
        elif here:
            self._complain(entry, record.id, f"is {record.state} and has members on {sorted(here)}")

    def _judge_formed(self, entry: KvEntry, record: GangRecord, here: dict[str, MemberRecord]) -> None:
        self.formed.setdefault(record.id, set()).add(record.generation)
        if record.id in self._unknown:
            self.left_out += 1
            return
        self.judged += 1
        wanted = {(f"{seat.pool}.{seat.worker}", seat.token) for seat in record.seats}
        found = {(worker, seat.token) for worker, member in here.items() for seat in member.seats}
        if wanted != found or {member.generation for member in here.values()} != {record.generation}:
            self._complain(entry, record.id, f"is formed with {sorted(found)} instead of {sorted(wanted)}")

    def _judge_leader(self, entry: KvEntry) -> None:
        """L8, L9: one coordinator per term, in order, and no change of a generation after its end."""
        if entry.operation is not KvOperation.PUT:
            return
        if entry.key == "leader":
            leader = LeaderRecord.model_validate_json(entry.value)
            newest = max(self._terms, default=0)
            if leader.term < newest or self._terms.setdefault(leader.term, leader.instance) != leader.instance:
                self._depose(entry, f"{leader.instance} leads in term {leader.term}, {self._terms[newest]} in {newest}")
        elif entry.key.startswith("gang."):
            record = GangRecord.model_validate_json(entry.value)
            over = self._over.get(record.id, -1)
            if record.generation < over or (record.generation == over and record.state not in _OVER):
                self._depose(entry, f"{record.id} is {record.state} in generation {record.generation}, {over} was over")
            skips = record.state is GangState.FORMED and max(over, 0) < record.generation - 1
            if skips and record.id not in self._unknown:
                self._depose(entry, f"{record.id} is formed in generation {record.generation}, {over} was over")
            if record.state in _OVER:
                self._over[record.id] = max(over, record.generation)

    def _note(self, entry: KvEntry, now: float) -> None:
        token = MARK + entry.key.rpartition(".")[2]
        if entry.operation is KvOperation.DELETE:
            if token in self.shown:
                self.shown[token].gone = min(self.shown[token].gone, now)
            return
        record = LeaseRecord.model_validate_json(entry.value)
        due = now + record.expires_at - time.time()  # all processes are on one machine
        shown = ShownToken(token=token, worker=record.worker, epoch=record.epoch, seen=now, due=due)
        self.shown.setdefault(token, shown).due = due

    def _complain(self, entry: KvEntry, gang: str, text: str, law: str = "L7") -> None:
        if gang not in self._unknown:
            self.broken.append(f"{law} at revision {entry.revision}: {gang} {text}")

    def _depose(self, entry: KvEntry, text: str) -> None:
        self.deposed.append(f"L9 at revision {entry.revision}: {text}")


def _due(gangs: dict[str, BatchLimit], revision: int) -> list[str]:
    """Remove those whose time is up."""
    now = time.monotonic()
    found = [gang for gang, due in gangs.items() if revision >= due.revision and now >= due.at]
    for gang in found:
        del gangs[gang]
    return found
