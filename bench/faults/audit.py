"""A reader of every revision of the ledger that checks law L7."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from bench.faults.history import History
from gangline.bus.port.bus import KeyValue, KvEntry, KvOperation
from gangline.bus.port.types import Subscription
from gangline.schemas.errors.base import GanglineError
from gangline.schemas.names import WorkerId
from gangline.schemas.records.gangs import GangRecord, GangState, MemberRecord

SLACK: Final = 3
"""Maximum number of revisions of other writers within one batch."""
SLACK_S: Final = 1.0
"""Maximum time in which a batch is delivered. A batch counts as incomplete only when both limits are exceeded: the
watch itself may stall when a server dies, and the server may put many writes between those of one batch."""


@dataclass(frozen=True, slots=True)
class Due:
    """A batch in progress must be complete after this revision and this time."""

    revision: int
    at: float


class Audit:
    """Checks each gang's record, in the order of revisions:

    - one with `formed` or `retiring` follows the records of exactly its members, all of its generation;
    - a member's record is followed by such a record, as part of the same batch;
    - one with `tearing_down` is followed by the deletion of all its members, in the same way;
    - one with `queued` or `ended` has no members.

    The server keeps the order of a batch, but may put other writers' messages between its messages.
    """

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.formed: dict[str, set[int]] = {}
        """Formed generations, by gang."""
        self.members: dict[str, dict[str, MemberRecord]] = {}
        """Existing member records, by gang and worker."""
        self.states: dict[str, GangState] = {}
        self.revisions = 0
        """Number of revisions read."""
        self.missed = 0
        """Number of revisions not delivered, from the gaps between those that were: they were overwritten first,
        which happens while a watch is restored after the loss of a server."""
        self._last = 0
        self._ending: dict[str, Due] = {}
        """Gangs being torn down, whose members must all end."""
        self._granting: dict[str, Due] = {}
        """Gangs with new members, whose own record must follow."""
        self._subscription: Subscription | None = None
        self._tail: asyncio.Task[None] | None = None

    async def start(self, ledger: KeyValue) -> None:
        """Follow with a watch."""
        self._subscription = await ledger.watch(">", self._see)

    def start_tail(self, history: History) -> None:
        """Follow by reading one revision after the other from a bucket with history: a watch that loses its server
        would miss values that are overwritten meanwhile. Only expired values can be missed, that is, heartbeats."""
        self._tail = asyncio.ensure_future(self._follow(history))

    async def _follow(self, history: History) -> None:
        while True:
            try:
                entry = await history.after(self._last)
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

    @property
    def revision(self) -> int:
        """The last revision that was read."""
        return self._last

    def left(self) -> list[str]:
        """Gangs that have members now."""
        return sorted(gang for gang, here in self.members.items() if here)

    def _see(self, entry: KvEntry) -> None:
        if entry.revision <= self._last:
            self._again(entry)  # the watch was restored and delivers values again
            return
        self.revisions += 1
        whole = not self._last or entry.revision == self._last + 1
        self.missed += 0 if whole else entry.revision - self._last - 1
        self._last = entry.revision
        if not whole and self._tail is None:
            self._ending.clear()
            self._granting.clear()
        for gang in _due(self._ending, entry.revision):
            if self.members.get(gang):
                self._complain(entry, f"{gang} is torn down and has members on {sorted(self.members[gang])}")
        for gang in _due(self._granting, entry.revision):
            self._complain(entry, f"{gang} has members on {sorted(self.members[gang])}, and was not granted")
        self._take(entry)

    def _again(self, entry: KvEntry) -> None:
        if entry.operation is KvOperation.DELETE and entry.key.startswith("member."):
            self._take(entry)

    def _take(self, entry: KvEntry) -> None:
        folder, _, rest = entry.key.partition(".")
        if folder == "member":
            pool, worker, gang = rest.split(".")
            here = self.members.setdefault(gang, {})
            if entry.operation is KvOperation.DELETE:
                here.pop(str(WorkerId(pool, worker)), None)
            else:
                here[str(WorkerId(pool, worker))] = MemberRecord.model_validate_json(entry.value)
                self._granting[gang] = _soon(entry.revision)
        elif folder == "gang" and entry.operation is KvOperation.PUT:
            self._judge(entry, GangRecord.model_validate_json(entry.value))

    def _judge(self, entry: KvEntry, record: GangRecord) -> None:
        here = self.members.get(record.id, {})
        self.states[record.id] = record.state
        self._granting.pop(record.id, None)
        self._ending.pop(record.id, None)
        if record.state in (GangState.FORMED, GangState.RETIRING):
            self._judge_formed(entry, record, here)
        elif record.state is GangState.TEARING_DOWN:
            self._ending[record.id] = _soon(entry.revision + len(here))
        elif here:
            self._complain(entry, f"{record.id} is {record.state} and has members on {sorted(here)}")

    def _judge_formed(self, entry: KvEntry, record: GangRecord, here: dict[str, MemberRecord]) -> None:
        wanted = {(f"{seat.pool}.{seat.worker}", seat.token) for seat in record.seats}
        found = {(worker, seat.token) for worker, member in here.items() for seat in member.seats}
        if wanted != found or {member.generation for member in here.values()} != {record.generation}:
            self._complain(entry, f"{record.id} is formed with {sorted(found)} instead of {sorted(wanted)}")
        self.formed.setdefault(record.id, set()).add(record.generation)

    def _complain(self, entry: KvEntry, text: str) -> None:
        self.broken.append(f"L7 at revision {entry.revision}: {text}")


def _soon(revision: int) -> Due:
    return Due(revision + SLACK, time.monotonic() + SLACK_S)


def _due(gangs: dict[str, Due], revision: int) -> list[str]:
    """Remove those whose time is up."""
    now = time.monotonic()
    found = [gang for gang, due in gangs.items() if revision >= due.revision and now >= due.at]
    for gang in found:
        del gangs[gang]
    return found
