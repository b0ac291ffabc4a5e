"""Checks gangs against the ledger: whether a hold was committed, and whether a gang still exists.

A failed read frees and stops nothing; it is repeated. There are two cases without an answer from the ledger:

- A *hold* is not freed: as long as the registration cannot be rewritten and the member record cannot be read, a
  commit may have been made, so the slots stay reserved until storage is back.
- A *member* that got no ping for its gang's time to live, and for as long again neither got one nor could read the
  ledger (`LocalMember.alone_at`), is cut off: by then the coordinator has given its place to another. It stops by
  itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pydantic import ValidationError

from ...bus.port.bus import KeyValue, KvEntry
from ...runtime.clock import Environment
from ...runtime.tasks import TaskSet
from ...runtime.timers import Backoff
from ...schemas.errors.base import ClosedError, Unavailable
from ...schemas.messages.gangs import FormRequest
from ...schemas.names import Names, WorkerId, public_id
from ...schemas.records.gangs import GangRecord, GangState, MemberRecord
from ...telemetry.logs import Log
from ..registration.registrar import Registrar
from ..slots.gang_core import LocalMember, TentativeHold, WorkerGangCore

RETRY_S = 0.1
RETRY_MAX_S = 1.0
STANDING = (GangState.FORMED, GangState.RETIRING)
LOST_S = 30.0
"""How long a ledger that was lost with its server may take to be written back by a coordinator."""
MISSING_S = 2.0
"""How long a gang must be missing from a complete ledger."""
MIN_TTL_S = 10.0
"""The same as in the coordinator: members get at least this time to live."""


class GangReconciler:
    """Reads gang records, and acts on them through `form`, `free` and `end`."""

    def __init__(
        self,
        kv: KeyValue,
        names: Names,
        worker: WorkerId,
        registrar: Registrar,
        core: WorkerGangCore,
        *,
        form: Callable[[FormRequest], str | None],
        free: Callable[[TentativeHold], None],
        end: Callable[[LocalMember, str, bool], None],
        missing: Callable[[LocalMember, str], None],
        changed: Callable[[], None],
        ambient: Environment,
        log: Log,
    ) -> None:
        """
        Args:
            form: carries out the operation `form`; returns why not, or None.
            free: called when nothing was committed for this hold.
            end: called when the member's gang is over, with the reason. True: we decided that alone, so report it.
            missing: called before that if the ledger lacks the gang: perhaps no coordinator knows that it ended.
            changed: called when deadlines of the core have moved.
        """
        self._kv = kv
        self._names = names
        self._worker = worker
        self._registrar = registrar
        self._core = core
        self._form = form
        self._free = free
        self._end = end
        self._missing = missing
        self._changed = changed
        self._ambient = ambient
        self._log = log
        self._looks = TaskSet("gang reconciler")
        self._looking: set[LocalMember] = set()
        self._missing_since: dict[LocalMember, float] = {}
        """Members whose gang the ledger lacks."""

    def resolve(self, hold: TentativeHold) -> None:
        """The hold's time is over: find out whether it was committed."""
        self._looks.start(self._resolve(hold))

    def look(self, member: LocalMember) -> None:
        """Find out whether a gang still exists. One check at a time for each."""
        if member not in self._looking:
            self._looking.add(member)
            self._looks.start(self._look(member))

    async def stop(self) -> None:
        """Idempotent."""
        await self._looks.stop()

    # -- holds ----------------------------------------------------------------------------------------------------

    def _stands(self, hold: TentativeHold) -> bool:
        return self._core.holds.get((hold.gang, hold.generation)) is hold

    async def _resolve(self, hold: TentativeHold) -> None:
        backoff = Backoff(RETRY_S, RETRY_MAX_S)
        while self._stands(hold):
            try:
                # First void every commit in flight, then check whether one came before that.
                await self._registrar.fence()
                record = _member_of(await self._kv.get(self._names.member_key(self._worker, hold.gang)))
                granted = record is not None and record.generation == hold.generation and _same(record, hold)
                gang = await self._kv.get(self._names.gang_key(hold.gang)) if granted else None
                if not self._stands(hold):
                    return
                self._decide(hold, _gang_of(gang), granted)
                return
            except ClosedError:
                return
            except (Unavailable, ValidationError) as error:
                self._log.debug("hold not resolved: %s", error, extra={"action": "gang.hold_unresolved"})
            await asyncio.sleep(backoff.next_s() * (0.5 + self._ambient.random.random()))

    def _decide(self, hold: TentativeHold, found: tuple[GangRecord, int] | None, granted: bool) -> None:
        why = "it was not committed"
        if granted and found is not None and found[0].generation == hold.generation and found[0].state in STANDING:
            why = self._form(form_request_of(*found)) or ""
            if not why:
                return
        elif granted:
            why = "its gang has already ended"
        self._log.info(
            "hold of gang %s freed: %s", hold.gang, why, extra={"action": "gang.hold_freed", "gang": hold.gang}
        )
        self._free(hold)

    # -- members --------------------------------------------------------------------------------------------------

    async def _look(self, member: LocalMember) -> None:
        try:
            found: tuple[GangRecord, int] | None = None
            unreadable, complete = "", True
            try:
                found = _gang_of(await self._kv.get(self._names.gang_key(member.gang)))
                if found is None:
                    complete = bool(await self._kv.entries(Names.complete_key, Names.complete_key_of("*")))
            except ClosedError:
                return
            except (Unavailable, ValidationError) as error:
                unreadable = str(error)
        finally:
            self._looking.discard(member)
        if self._core.members.get(member.gang) is not member:
            self._missing_since.pop(member, None)
            return
        now = asyncio.get_running_loop().time()
        if found is not None:
            self._missing_since.pop(member, None)
        if unreadable:
            if now >= member.alone_at:
                self._end(member, f"cut off: no ping and no ledger for {now - member.proven_at:.1f} s", True)
            else:
                self._core.look_again(member, min(now + RETRY_MAX_S, member.alone_at))
        elif found is None:
            self._judge_missing(member, now, complete)
        else:
            self._judge(member, found, now)
        self._changed()

    def _judge_missing(self, member: LocalMember, now: float, complete: bool) -> None:
        """The ledger lacks the gang: it has ended, or the ledger was lost and is being written back."""
        missing_s = now - self._missing_since.setdefault(member, now)
        if missing_s < (MISSING_S if complete else LOST_S):
            self._core.look_again(member, now + RETRY_MAX_S)
            return
        del self._missing_since[member]
        why = "" if complete else f": it was lost, and no coordinator has written it back for {LOST_S:g} s"
        self._log.warning(
            "gang %s: the ledger no longer has it%s",
            member.gang,
            why,
            extra={"action": "gang.missing", "gang": member.gang},
        )
        reason = f"the ledger no longer has this gang{why}"
        self._missing(member, reason)
        self._end(member, reason, False)

    def _judge(self, member: LocalMember, found: tuple[GangRecord, int], now: float) -> None:
        """Act on what the ledger says."""
        record, _ = found
        ours = {seat.token for seat in record.seats if _here(seat.pool, seat.worker, self._worker)}
        if record.state not in STANDING or record.generation < member.generation:
            self._end(member, record.reason or f"the ledger says that it is {record.state.value}", False)
        elif record.generation == member.generation:
            self._core.proven(member, now)
        elif member.over or not ours:
            self._end(member, f"generation {record.generation} has taken its place", False)
        else:
            # A later generation that we do not know: our seats in it are the old ones or held ones.
            why = self._form(form_request_of(*found))
            if why is not None:
                self._end(member, f"generation {record.generation} has taken its place: {why}", False)


def form_request_of(record: GangRecord, revision: int) -> FormRequest:
    """What the coordinator would have told the members of a formed gang."""
    return FormRequest(
        gang=record.id,
        generation=record.generation,
        fence=record.fence_at(revision),
        size=record.spec.size,
        seats=record.seats,
        rendezvous=record.rendezvous,
        ttl_s=max(record.spec.ttl_s, MIN_TTL_S),
        grace_s=record.spec.grace_s,
        start_timeout_s=record.spec.start_timeout_s,
        owner=record.spec.owner,
        traceparent=record.spec.traceparent,
        open=record.gangset is not None,
    )


def _member_of(entry: KvEntry | None) -> MemberRecord | None:
    return None if entry is None else MemberRecord.read(entry.value)


def _gang_of(entry: KvEntry | None) -> tuple[GangRecord, int] | None:
    return None if entry is None else (GangRecord.read(entry.value), entry.revision)


def _same(record: MemberRecord, hold: TentativeHold) -> bool:
    return hold.ids <= {public_id(seat.token) for seat in record.seats}


def _here(pool: str, worker: str, here: WorkerId) -> bool:
    return (pool, worker) == (here.pool, here.worker)
