"""A reader of the ledger that holds it to law L7 while servers are lost: what it may not have seen whole it leaves out.

It watches the bucket as it is. A bucket that keeps a history would show every revision, but is another one: when the
marker of a deleted key expires, the value before it would be the newest again.
"""

from __future__ import annotations

from typing import Final

from bench.faults.audit import Audit
from gangline.bus.port import KvEntry
from gangline.schemas.gangs import GangRecord, MemberRecord

_BATCH: Final = 50
"""A batch that was under way at a gap has been written whole after so many revisions more."""


class LossyAudit(Audit):
    """Judges only gangs that it has seen whole, from their first record on."""

    def __init__(self) -> None:
        super().__init__()
        self.gaps = 0
        """Places where revisions were overwritten, or had expired, before they were delivered."""
        self.judged = 0
        """Records of granted gangs, and those that were left out."""
        self.left_out = 0
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
        if entry.revision > self._newest:
            if self._newest and entry.revision != self._newest + 1:
                self.gaps += 1
                self._gap_at = entry.revision
                self._unknown |= {*self.members, *self.states}
            self._newest = entry.revision
        folder, _, rest = entry.key.partition(".")
        if folder in ("gang", "member") and entry.revision < self._gap_at + _BATCH:
            self._unknown.add(rest.rpartition(".")[2])
        super()._see(entry)

    def _judge_formed(self, entry: KvEntry, record: GangRecord, here: dict[str, MemberRecord]) -> None:
        if record.id in self._unknown:
            self.left_out += 1
            return
        self.judged += 1
        super()._judge_formed(entry, record, here)

    def _complain(self, entry: KvEntry, text: str) -> None:
        if text.partition(" ")[0] not in self._unknown:
            super()._complain(entry, text)
