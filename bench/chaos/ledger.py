"""A reader of the ledger that checks laws L7 and L9 while servers are lost, and records the tokens it shows (L6).

It leaves out what it may not have seen completely.

It watches the normal bucket. A bucket with history would show every revision, but behaves differently: when the marker
of a deleted key expires, the value before it would be the newest again.
"""

from __future__ import annotations

import time
from typing import Final

from bench.chaos.records import Shown
from bench.faults.audit import Audit
from gangline.bus.port.bus import KvEntry, KvOperation
from gangline.schemas.records.gangs import GangRecord, GangState, LeaderRecord, MemberRecord
from gangline.schemas.records.workers import LeaseRecord

_OVER: Final = (GangState.TEARING_DOWN, GangState.ENDED)
_BATCH: Final = 50
"""A batch that was in progress at a gap has been written completely after this many more revisions."""


class LossyAudit(Audit):
    """Judges only gangs that it has seen completely, from their first record on."""

    def __init__(self) -> None:
        super().__init__()
        self.gaps = 0
        """Places where revisions were overwritten, or had expired, before they were delivered."""
        self.judged = 0
        """Number of granted gangs, and of those left out."""
        self.left_out = 0
        self.shown: dict[str, Shown] = {}
        """By token."""
        self.blind: list[tuple[float, float]] = []
        """Times until which revisions may not have been delivered."""
        self.deposed: list[str] = []
        """Breaches of L9."""
        self._heard_at = time.monotonic()
        self._terms: dict[int, str] = {}
        """The leading coordinator of each term."""
        self._over: dict[str, int] = {}
        """By gang, the newest generation that has ended."""
        self._newest = 0
        self._gap_at = -_BATCH
        self._unknown: set[str] = set()

    def summary(self) -> str:
        """How much of it was judged."""
        return (
            f"the ledger's reader saw {self.revisions} revisions with {self.gaps} gaps, and judged {self.judged} grants"
            f" of gangs; {self.left_out} more may not have been seen whole"
        )

    def _see(self, entry: KvEntry) -> None:
        now = time.monotonic()
        if entry.revision > self._newest:
            if self._newest and entry.revision != self._newest + 1:
                self.blind.append((self._heard_at, now))
                self.gaps += 1
                self._gap_at = entry.revision
                self._unknown |= {*self.members, *self.states}
            self._newest = entry.revision
            self._judge_leaders(entry)
        self._heard_at = now
        folder, _, rest = entry.key.partition(".")
        if folder in ("gang", "member") and entry.revision < self._gap_at + _BATCH:
            self._unknown.add(rest.rpartition(".")[2])
        elif folder == "lease":
            self._note(entry, now)
        super()._see(entry)

    def _note(self, entry: KvEntry, now: float) -> None:
        token = entry.key.rpartition(".")[2]
        if entry.operation is KvOperation.DELETE:
            if token in self.shown:
                self.shown[token].gone = min(self.shown[token].gone, now)
            return
        record = LeaseRecord.model_validate_json(entry.value)
        due = now + record.expires_at - time.time()  # all processes are on one machine
        shown = Shown(token=token, worker=record.worker, epoch=record.epoch, seen=now, due=due)
        self.shown.setdefault(token, shown).due = due

    def _judge_leaders(self, entry: KvEntry) -> None:
        """L9: one coordinator per term, in order, and no change of a generation after its end."""
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
            if record.state in _OVER:
                self._over[record.id] = max(over, record.generation)

    def _depose(self, entry: KvEntry, text: str) -> None:
        self.deposed.append(f"L9 at revision {entry.revision}: {text}")

    def _judge_formed(self, entry: KvEntry, record: GangRecord, here: dict[str, MemberRecord]) -> None:
        if record.id in self._unknown:
            self.left_out += 1
            return
        self.judged += 1
        super()._judge_formed(entry, record, here)

    def _complain(self, entry: KvEntry, text: str) -> None:
        if text.partition(" ")[0] not in self._unknown:
            super()._complain(entry, text)
