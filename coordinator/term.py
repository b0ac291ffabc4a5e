"""One leadership, from the reading of the ledger to its end: carries out every effect of the gang core.

A term makes no decision about gangs. It has a core of its own, so that nothing of an earlier leadership can reach it,
and everything it started ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

from ..bus.port import Bus, KeyValue, Message, NotPermitted, Subscription
from ..schemas.errors import GanglineError
from ..schemas.frames import Load
from ..schemas.gang_errors import ShardConflict
from ..schemas.gang_messages import GangEvent, PingRequest
from ..schemas.gangs import GangState
from ..schemas.names import Names, WorkerId
from ..telemetry.coordinator_metrics import CoordinatorMetrics
from ..telemetry.logs import Log
from . import effects as do
from . import events as on
from .candidacy import Candidacy
from .census import Census
from .chores import Chores
from .core import GangCore
from .desk import Desk
from .election import Role
from .errands import Errands
from .events import WorkerFacts
from .gauges import Gauges
from .leader_key import LeaderKey
from .ledger_reader import Reading, read_ledger, read_members
from .moment import Clock
from .scribe import Scribe
from .set_feed import SetFeed
from .settings import CoordinatorSettings
from .shard_registry import ShardRegistry
from .shards import Shard
from .shell_settings import ShellSettings
from .switchboard import Switchboard
from .traces import Traces

_RETRY_S: Final = 0.1
_GRAIN_S: Final = 0.001
_PING_ROUND_S: Final = 0.1
"""Lost connections are told of one by one; at most so often all workers with members are asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Office:
    """What a term works with; outlives it."""

    bus: Bus
    kv: KeyValue
    names: Names
    clock: Clock
    leader: LeaderKey
    census: Census
    candidacy: Candidacy
    settings: CoordinatorSettings
    shell: ShellSettings
    shard: Shard
    registry: ShardRegistry
    unfit: Callable[[ShardConflict], None]
    """Told that others keep our pools: we must not lead any more."""
    counts: dict[str, list[int]]
    """Requests and errors by operation."""
    log: Log


class Term:
    """Leads from `begin` to `end`."""

    def __init__(self, office: Office, *, number: int, on_ready: Callable[[], None]) -> None:
        """
        Args:
            number: the term.
            on_ready: told when the ledger was read and requests are served.
        """
        self.number = number
        self.core = GangCore(office.settings, office.shard)
        self._office = office
        self._on_ready = on_ready
        self._log = log = office.log.bind(term=number)
        self._chores = chores = Chores(f"term {number}", log)
        self._over = False
        self._resigned = False
        self._timer: asyncio.TimerHandle | None = None
        self._subscriptions: list[Subscription] = []
        self._ping_round_at = float("-inf")
        self._traces = Traces()
        self._gauges = Gauges(
            CoordinatorMetrics(office.names.namespace, self.core.statistics), lambda: office.clock.now, log
        )
        parts = (office.clock, chores)
        self._errands = Errands(
            office.bus,
            office.names,
            *parts,
            core=office.settings,
            shell=office.shell,
            feed=self.feed,
            heard=office.census.heard,
            doubt=office.census.doubt,
            witness=self._traces,
            log=log,
        )
        deposed = office.candidacy.deposed
        self._scribe = Scribe(office.kv, office.leader, *parts, feed=self.feed, deposed=deposed, log=log)
        self._sets = SetFeed(office.kv, office.leader, office.shard, *parts, feed=self.feed, deposed=deposed, log=log)
        self._desk = Desk(
            office.bus,
            office.kv,
            office.names,
            *parts,
            self.core,
            office.census,
            self._traces,
            feed=self.feed,
            trusted=self._trusted,
            counts=office.counts,
            log=log,
        )
        self._switchboard: Switchboard | None = None
        if office.shard.pools is not None:
            self._switchboard = Switchboard(
                office.bus,
                office.kv,
                office.names,
                office.shard,
                chores,
                self.core,
                self._desk,
                shards=lambda: office.registry.shards,
                trusted=self._trusted,
                log=log,
            )

    def __repr__(self) -> str:
        return f"<Term {self.number} {self.core!r}>"

    @property
    def metrics(self) -> CoordinatorMetrics:
        return self._gauges.metrics

    @property
    def waiting(self) -> int:
        """Requests without an answer so far."""
        return len(self._desk)

    # -- life --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Read the ledger, then lead."""
        self._office.leader.on_restored = self._restored
        self._chores.start(self._take_over())

    def end(self, reason: str) -> None:
        """Lead no more, from this instant on. Idempotent."""
        if self._over:
            return
        self._resigned = self._office.candidacy.election.role is Role.RESIGNED
        for effect in self.core.handle(on.LeadershipLost(**self._office.clock.moment(), reason=reason)):
            self._carry_out(effect)
        self._stop()

    async def rest(self) -> None:
        """Wait until nothing of it is left; for after `end`."""
        await self._sets.stop()
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.unsubscribe()
        await self._chores.rest()

    def _stop(self) -> None:
        self._over = True
        office = self._office
        office.census.audience = None
        office.leader.on_restored = None
        if self._timer is not None:
            self._timer.cancel()
        self._chores.cancel()
        self._desk.close(resigned=self._resigned)
        self._traces.close()
        self._gauges.close()

    async def _take_over(self) -> None:
        office = self._office
        if not await self._entered():
            return
        reading = await read_ledger(
            office.kv, office.names, shard=office.shard, fence=lambda: office.leader.fence, log=self._log
        )
        self._gain(reading)
        while True:
            try:
                await self._sets.start(reading.raw_sets)
                break
            except GanglineError as error:
                self._log.info("cannot follow the sets: %s", error, extra={"action": "gangset.watch_failed"})
                await asyncio.sleep(_RETRY_S)
        if self._switchboard is not None:
            self._subscriptions += await self._switchboard.listen()
        else:
            await self._listen(office.names.gang_operations, self._desk.take)
        if office.shell.disconnects:
            with contextlib.suppress(NotPermitted):  # it would only be quicker
                await self._listen(office.shell.disconnects, self._on_disconnect)
        await self._heard_by_the_server()
        self._chores.start(self._sweep())
        self._log.info(
            "leads: %d gangs, %d workers", len(self.core.gangs()), len(office.census),
            extra={"action": "coordinator.leads"},
        )  # fmt: skip
        self._on_ready()

    async def _entered(self) -> bool:
        """Whether our pools are still ours; if not, somebody made sure that we are not alive, and we were."""
        conflict = await self._office.registry.restored()
        if conflict is not None:
            self._office.unfit(conflict)
        return conflict is None

    async def _heard_by_the_server(self) -> None:
        """Only then may anybody be told that requests are served."""
        while True:
            try:
                await self._office.bus.flush()
                return
            except GanglineError as error:
                self._log.debug("not heard yet: %s", error, extra={"action": "coordinator.flush"})
                await asyncio.sleep(_RETRY_S)

    async def _listen(self, subject: str, handler: Callable[[Message], None]) -> None:
        self._subscriptions.append(await self._office.bus.subscribe(subject, handler))

    def _gain(self, reading: Reading) -> None:
        office = self._office
        office.census.merge(reading.registrations, reading.beats)
        presumed = {
            WorkerId(seat.pool, seat.worker)
            for gang, _ in reading.gangs
            if gang.state is not GangState.ENDED
            for seat in gang.seats
        }
        event = on.LeadershipGained(
            **office.clock.moment(),
            term=self.number,
            fence=office.leader.fence,
            gangs=tuple(reading.gangs),
            members=tuple(reading.members),
            sets=tuple(reading.sets),
            workers=office.census.living(presumed),
        )
        office.census.audience = self
        self._handle(event)

    async def _sweep(self) -> None:
        office = self._office
        while True:
            await asyncio.sleep(office.shell.sweep_s)
            try:
                members = await read_members(office.kv, office.names, self._log, office.shard)
            except GanglineError as error:
                self._log.debug("cannot read the members: %s", error, extra={"action": "gang.sweep"})
                continue
            self.feed(on.MembersRead(**office.clock.moment(), members=members))

    async def _restored(self, fence: int) -> None:
        """The bucket vanished, and our record stands in a new one."""
        self._log.warning("the ledger was lost: writing it again", extra={"action": "ledger.restored"})
        self.feed(on.LedgerVanished(**self._office.clock.moment(), fence=fence))
        if await self._entered():
            await self._sets.restore()

    # -- events ------------------------------------------------------------------------------------------------------

    def feed(self, event: on.Happening) -> None:
        """Something happened. Not looked at any more if our leadership may have run out: after a freeze, messages
        come before timers."""
        if not self._trusted():
            return
        if isinstance(event, (on.Committed, on.CommitRefused, on.CommitUnknown)):
            self._gauges.answered(event)
        self._handle(event)

    def _trusted(self) -> bool:
        # The look at the clock may end the term.
        return not self._over and self._office.candidacy.trusted() and not self._over

    def _handle(self, event: on.AnyEvent) -> None:
        loop = asyncio.get_running_loop()
        for effect in self.core.handle(event):
            # What asks is a task, and a task begins in the next turn. What is sent without waiting goes there as well,
            # so that all are started in their order: the owner hears after the workers were told.
            if isinstance(effect, (do.ReleaseHold, do.Broadcast, do.Answer)):
                loop.call_soon(self._carry_out, effect)
            else:
                self._carry_out(effect)

    def worker_seen(self, facts: WorkerFacts) -> None:
        """As census.Audience."""
        self.feed(on.WorkerSeen(**self._office.clock.moment(), worker=facts))

    def load_seen(self, worker: WorkerId, epoch: int, load: Load) -> None:
        """As census.Audience."""
        self.feed(on.LoadSeen(**self._office.clock.moment(), worker=worker, epoch=epoch, load=load))

    def worker_gone(self, worker: WorkerId, reason: str) -> None:
        """As census.Audience."""
        self.feed(on.WorkerGone(**self._office.clock.moment(), worker=worker, reason=reason))

    def _on_disconnect(self, _message: Message) -> None:
        """Some connection was lost. Which worker's, if any, pings tell in a moment."""
        now = self._office.clock.now
        if self._over or now < self._ping_round_at:
            return
        self._ping_round_at = now + _PING_ROUND_S
        asyncio.get_running_loop().call_later(_PING_ROUND_S / 2, self._ping_all)

    def _ping_all(self) -> None:
        if self._over:
            return
        gangs: dict[WorkerId, dict[str, int]] = {}
        for gang in self.core.gangs():
            if gang.state in (GangState.FORMED, GangState.RETIRING):
                for seat in gang.seats:
                    gangs.setdefault(WorkerId(seat.pool, seat.worker), {})[gang.id] = gang.generation
        for worker, here in gangs.items():
            self._errands.ping(do.Ping(worker=worker, request=PingRequest(gangs=here)))

    # -- effects -----------------------------------------------------------------------------------------------------

    def _carry_out(self, effect: do.Effect) -> None:
        if self._over:
            return
        match effect:
            case do.SendHold():
                self._traces.hold(effect.worker, effect.request, effect.traceparent)
                self._errands.hold(effect)
            case do.ReleaseHold():
                self._errands.unhold(effect)
            case do.SendKeep():
                self._errands.keep(effect)
            case do.SendForm():
                request = self._traces.form(effect.worker, effect.request)
                self._errands.form(do.SendForm(worker=effect.worker, request=request))
            case do.SendTeardown():
                self._errands.teardown(effect)
            case do.Ping():
                self._errands.ping(effect)
            case do.Commit():
                self._gauges.committing(effect)
                self._scribe.commit(effect)
            case do.Refence():
                self._scribe.refence(effect)
            case do.Broadcast():
                self._broadcast(effect.event)
            case do.Answer():
                self._desk.answer(effect)
            case do.WakeAt():
                self._wake_at(effect.at)
            case do.Stop():
                self._log.info("leads no more: %s", effect.reason, extra={"action": "coordinator.yields"})
                self._stop()
            case _:
                assert_never(effect)

    def _wake_at(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = asyncio.get_running_loop().call_at(at, self._tick, at)

    def _tick(self, at: float) -> None:
        self._timer = None
        early_s = at - self._office.clock.now
        if early_s > 0:
            # Loops that count in milliseconds ring up to one too early; the core would find nothing due, and ask for
            # no other wake.
            self._timer = asyncio.get_running_loop().call_later(max(early_s, _GRAIN_S), self._tick, at)
            return
        self.feed(on.Tick(**self._office.clock.moment()))

    def _broadcast(self, event: GangEvent) -> None:
        self._gauges.happened(event)
        self._traces.happened(event)
        names, bus = self._office.names, self._office.bus
        try:
            bus.publish(names.gang_event(event.gang), event.model_dump_json(exclude_none=True).encode())
        except GanglineError as error:
            self._log.debug("an event was not sent: %s", error, extra={"action": "event.lost", "gang": event.gang})
