"""Takes part in the election on the ledger; the decisions are in `election_core`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, assert_never

from pydantic import ValidationError

from ...bus.port.bus import Conflict, ConnectionEvent, KeyValue, KvEntry, KvOperation
from ...bus.port.subjects import Subscription
from ...runtime.clock import EventClock
from ...runtime.tasks import TaskSet
from ...schemas.errors.base import GanglineError
from ...schemas.names import Names
from ...schemas.records.gangs import LeaderAlive, LeaderRecord
from ...telemetry.logs import LineLimit, Log
from . import election_core as on
from .election_core import ElectionCore, ElectionEffect, ElectionRole
from .leader_record import LeaderKey, LeaderLost, leader_of

_GRAIN_S: Final = 0.001
_RETRY_S: Final = 0.2
"""Wait before a failed read of storage is repeated."""


class Elector:
    """Takes part in the election from `start` to `stop`, and reports when leadership begins and ends."""

    def __init__(
        self,
        kv: KeyValue,
        election: ElectionCore,
        leader: LeaderKey,
        clock: EventClock,
        *,
        alive_key: str = Names.leader_alive_key,
        on_lead: Callable[[int], None],
        on_yield: Callable[[str], None],
        on_outage: Callable[[], None],
        log: Log,
    ) -> None:
        """
        Args:
            alive_key: key that the leader renews.
            on_lead: called with the term when we lead. The fence is in `leader`.
            on_yield: called with the reason when we no longer lead, before anything else is done.
            on_outage: called when storage refused something or did not answer.
        """
        self.election = election
        self._kv = kv
        self._leader = leader
        self._clock = clock
        self._alive_key = alive_key
        self._on_lead = on_lead
        self._on_yield = on_yield
        self._on_outage = on_outage
        self._log = log
        self._lines = LineLimit(lambda: clock.now, burst=3, every_s=30.0)
        self._tasks = TaskSet("election", log)
        self._subscriptions: list[Subscription] = []
        self._timer: asyncio.TimerHandle | None = None
        self._started = False
        self._looking = False
        self._look_again = False
        self._alive_revision = 0
        """Revision of our last `leader_alive`."""
        self._claimed: LeaderRecord | None = None
        """What we wrote, or tried to write, last."""

    def __repr__(self) -> str:
        return f"<Elector {self.election!r}>"

    async def start(self) -> None:
        """Take part from now on.

        Raises:
            Unavailable: the keys cannot be followed. The attempt leaves nothing behind, so it may be repeated.
        """
        try:
            for key in (self._leader.key, self._alive_key):
                self._subscriptions.append(await self._kv.watch(key, self._on_entry))
        except BaseException:
            await self._unsubscribe()
            raise
        self._started = True
        self._carry_out(self.election.start())

    async def stop(self) -> None:
        """Give up leadership, if we have it, so that a standby takes over at once. Idempotent."""
        leading = self.election.role is ElectionRole.LEADER
        effects = self.election.handle(on.Resigned(**self._clock.moment()))
        if self._timer is not None:
            self._timer.cancel()
        self._tasks.cancel()
        for effect in effects:
            if isinstance(effect, on.YieldLeadership):
                self._on_yield(effect.reason)
        await self._unsubscribe()
        await self._tasks.rest()
        if leading:
            await self._withdraw()

    async def _unsubscribe(self) -> None:
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.unsubscribe()

    def trusted(self) -> bool:
        """Whether we may act as the leader right now. Checks the clock; `on_yield` has been called before it returns
        False."""
        election = self.election
        if election.role is ElectionRole.LEADER and self._clock.now >= election.trusted_until:
            self.tell(on.ElectionTick(**self._clock.moment()))
        return election.role is ElectionRole.LEADER

    def deposed(self) -> None:
        """One of our writes showed that another process leads."""
        self.tell(on.Deposed(**self._clock.moment()))

    def term_failed(self, reason: str) -> None:
        """The term could not begin: give it up. Another attempt follows when `leader_alive` has expired."""
        self.tell(on.TermFailed(**self._clock.moment(), reason=reason))

    def tell(self, event: on.AnyElectionEvent) -> None:
        """Something happened."""
        self._carry_out(self.election.handle(event))

    def on_connection(self, event: ConnectionEvent) -> None:
        """Changes that only the watch reports may have been missed."""
        if event is ConnectionEvent.RECONNECTED:
            self._look()

    # -- effects ------------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: list[ElectionEffect]) -> None:
        for effect in effects:
            match effect:
                case on.Claim():
                    self._tasks.start(self._claim(effect))
                case on.RenewLeadership():
                    self._tasks.start(self._renew(effect))
                case on.ReadLeader():
                    self._look()
                case on.BecomeLeader():
                    # Won by the answer to the claim, or found by a read when that answer was lost.
                    assert self._claimed is not None and self._claimed.term == effect.term
                    self._leader.take(self._claimed, effect.fence)
                    self._on_lead(effect.term)
                case on.YieldLeadership():
                    self._on_yield(effect.reason)
                case on.ResignLeadership():
                    pass  # only after Resigned, and `stop` handles that
                case on.ElectionWake():
                    self._wake_at(effect.at)
                case _:
                    assert_never(effect)

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # Loops that count in milliseconds fire up to one too early, and would be set again at once.
        delay_s = max(at - self._clock.now, _GRAIN_S)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self.tell(on.ElectionTick(**self._clock.moment()))

    async def _claim(self, claim: on.Claim) -> None:
        self._claimed = claim.record
        try:
            async with asyncio.timeout(self.election.settings.alive_ttl_s):
                fence = await self._leader.claim(claim.record, claim.revision)
        except Conflict:
            self.tell(on.ClaimLost(**self._clock.moment()))
        except (GanglineError, TimeoutError) as error:
            extra = {"action": "election.claim_unknown"}
            self._lines.write(self._log.warning, "the claim to lead was not answered: %s", error, extra=extra)
            await asyncio.sleep(_RETRY_S)
            self.tell(on.ClaimUnknown(**self._clock.moment()))
        else:
            self.tell(on.ClaimWon(**self._clock.moment(), revision=fence))

    async def _renew(self, renew: on.RenewLeadership) -> None:
        settings = self.election.settings
        started_at = self._clock.now
        body = LeaderAlive(term=renew.term, instance=self.election.instance).model_dump_json().encode()
        try:
            async with asyncio.timeout(settings.alive_ttl_s - settings.margin_s):
                if renew.first:
                    self._alive_revision = await self._kv.put(self._alive_key, body, ttl_s=renew.ttl_s)
                else:
                    await self._write_alive(body, renew.ttl_s)
        except LeaderLost:
            self.deposed()
        except (GanglineError, TimeoutError) as error:
            self._on_outage()
            extra = {"action": "election.renewal_failed"}
            self._lines.write(self._log.info, "leadership was not renewed: %s", error, extra=extra)
            self.tell(on.RenewFailed(**self._clock.moment()))
        else:
            self.tell(on.Renewed(**self._clock.moment(), started_at=started_at))

    async def _write_alive(self, body: bytes, ttl_s: float) -> None:
        """Raises LeaderLost: the key is another process's, or another process leads."""
        for _ in range(3):
            try:
                self._alive_revision = await self._kv.put(
                    self._alive_key, body, ttl_s=ttl_s, revision=self._alive_revision
                )
            except Conflict:
                entry = await self._kv.get(self._alive_key)
                found = _alive_of(entry)
                if entry is None:
                    # It expired, or the whole bucket was lost: either way it is still ours if `leader` is.
                    await self._leader.restore()
                    self._alive_revision = 0
                elif found is not None and found.instance == self.election.instance:
                    self._alive_revision = entry.revision
                else:
                    raise LeaderLost from None
            else:
                return
        raise LeaderLost

    async def _withdraw(self) -> None:
        try:
            async with asyncio.timeout(1.0):
                await self._kv.delete(self._alive_key, revision=self._alive_revision)
        except (GanglineError, TimeoutError) as error:
            self._log.info("could not resign; leadership will expire: %s", error, extra={"action": "election.left"})

    # -- looking ------------------------------------------------------------------------------------------------------

    def _on_entry(self, entry: KvEntry) -> None:
        if entry.operation is KvOperation.DELETE:
            self._look()
        elif entry.key == self._leader.key:
            record = leader_of(entry)
            if record is None or (record.instance, record.term) != (self.election.instance, self.election.term):
                self._look()
        # Renewals are not reported: an expiry is seen by the watch or by the election's own timer.

    def _look(self) -> None:
        if not self._started:
            return  # ignore events before the start: who does not take part yet must not be elected
        if self._looking:
            self._look_again = True
            return
        self._looking = True
        self._tasks.start(self._read())

    async def _read(self) -> None:
        try:
            while True:
                self._look_again = False
                try:
                    event = await self._read_once()
                except LeaderLost:
                    self.deposed()
                except GanglineError as error:
                    self._on_outage()
                    self._log.debug("cannot read who leads: %s", error, extra={"action": "election.look_failed"})
                    self._look_again = True
                    await asyncio.sleep(_RETRY_S)
                else:
                    if not self._look_again:
                        self._looking = False
                        self.tell(event)
                        return
        finally:
            self._looking = False

    async def _read_once(self) -> on.LeaderRead:
        """Raises LeaderLost: we led, the bucket vanished, and another process was the first to lead in the new one."""
        entry = await self._kv.get(self._leader.key)
        if entry is None and self.election.role is ElectionRole.LEADER:
            await self._leader.restore()
            entry = await self._kv.get(self._leader.key)
        alive = _alive_of(await self._kv.get(self._alive_key))
        return on.LeaderRead(
            **self._clock.moment(),
            leader=leader_of(entry),
            revision=entry.revision if entry is not None else 0,
            alive_term=alive.term if alive is not None else None,
        )


def _alive_of(entry: KvEntry | None) -> LeaderAlive | None:
    if entry is None:
        return None
    try:
        return LeaderAlive.read(entry.value)
    except ValidationError:
        return None
