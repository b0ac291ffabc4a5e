"""One term of leadership, from reading the ledger to its end: passes events to the gang core and carries out its
effects.

It makes no decision about gangs. Each term has its own core, so nothing of an earlier term can reach it, and everything
that it started ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from ..bus.port.bus import Conflict, KvWrite, Message, NotPermitted
from ..bus.rpc.responder import Listening
from ..bus.streams.history_recorder import HistoryRecorder
from ..runtime.tasks import TaskSet
from ..schemas.errors.base import GanglineError
from ..schemas.messages.gangs import GangReply, PingRequest
from ..schemas.names import Names, WorkerId
from ..schemas.records.gangs import GangState, LedgerComplete
from ..schemas.records.workers import LeaseRecord
from ..schemas.text import count_of
from ..schemas.wire.frames import Load
from ..telemetry.metrics.coordinator import CoordinatorMetrics, Queued, Waiting
from ..telemetry.metrics.instruments import metrics_enabled
from .core.gang_core import SchedulerCore
from .election.election_core import ElectionRole
from .ledger.set_declarations import SetDeclarations
from .ledger.storage import LedgerSnapshot, parse, read_ledger, read_members
from .ledger.worker_registry import LEFT
from .model import effects as do
from .model import events as on
from .scheduling.inventory import WorkerFacts
from .server.effect_executor import CoordinatorContext, GangEffectExecutor
from .server.observation import record_found, record_loss
from .server.shard_router import ShardRouter

_RETRY_S: Final = 0.1
_MEASURE_S: Final = 1.0
"""How often it is measured what gangs wait for."""
_PING_ROUND_S: Final = 0.1
"""Lost connections are reported one by one; all workers with members are pinged at most this often."""


def _is_seated(gang: GangReply, worker: WorkerId) -> bool:
    return any((seat.pool, seat.worker) == (worker.pool, worker.worker) for seat in gang.seats)


class Leadership:
    """Leads from `begin` to `end`."""

    def __init__(self, context: CoordinatorContext, *, number: int, on_ready: Callable[[], None]) -> None:
        """
        Args:
            number: the term.
            on_ready: called when the ledger has been read and requests are served.
        """
        self.number = number
        self.core = SchedulerCore(context.settings, context.shard)
        self._context = context
        self._on_ready = on_ready
        self._log = log = context.log.bind(term=number)
        self._tasks = tasks = TaskSet(f"term {number}", log)
        self._over = False
        self._resigned = False
        self._losses = 0
        """How often the bucket has vanished."""
        self._completing: asyncio.Future[None] | None = None
        self._gained = False
        """Whether the core has what the ledger had."""
        self._listening = Listening()
        self._shard_router: ShardRouter | None = None
        self._ping_round_at = float("-inf")
        self._executor = GangEffectExecutor(
            context, self.core, tasks, term=number, feed=self.feed, trusted=self._trusted, late=self._late, log=log
        )
        self._sets = SetDeclarations(
            context.kv,
            context.leader,
            context.shard,
            context.clock,
            tasks,
            feed=self.feed,
            usable=lambda key, name, record: self._usable(key, sets=((name, record),)),
            deposed=context.elector.deposed,
            log=log,
        )

    def __repr__(self) -> str:
        return f"<Leadership {self.number} {self.core!r}>"

    @property
    def metrics(self) -> CoordinatorMetrics:
        return self._executor.gauges.metrics

    @property
    def waiting(self) -> int:
        """Requests not yet answered."""
        return len(self._executor.request_server)

    # -- life --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Read the ledger, then lead."""
        self._context.leader.on_restored = self._restored
        self._context.late.leads(self.number)
        self._tasks.start(self._begin())

    def end(self, reason: str) -> None:
        """Stop leading at once. Idempotent."""
        if self._over:
            return
        self._resigned = self._context.elector.election.role is ElectionRole.RESIGNED
        if self._shard_router is not None:
            self._shard_router.cancel()
        self._handle(on.LeadershipLost(**self._context.clock.moment(), reason=reason))
        self._over = True
        self._sets.end()
        self._context.worker_registry.listener = None
        self._context.leader.on_restored = None
        self._tasks.cancel()
        self._executor.close(resigned=self._resigned)

    async def prepare_to_leave(self) -> None:
        """Hand the requests that only one of all leaders answers to the others; call before `end`."""
        if self._shard_router is not None:
            await self._shard_router.stop_falling_back()

    async def rest(self) -> None:
        """Wait until nothing of it is left; call after `end`. Until then, callers are told to ask again."""
        router = [self._shard_router.stop()] if self._shard_router is not None else []
        await asyncio.gather(self._listening.drain(), *router)
        await self._sets.stop()
        await self._tasks.rest()

    async def _begin(self) -> None:
        try:
            await self._take_over()
        except Exception as error:  # a leader that cannot lead must not keep others from leading
            self._log.exception("the term could not begin; it is given up", extra={"action": "coordinator.term_failed"})
            self._context.elector.term_failed(f"its term could not begin: {type(error).__name__}")

    async def _take_over(self) -> None:
        context = self._context
        while True:
            losses = self._losses
            if not await self._entered():
                return
            await self._complete(self._write_back)
            reading = await read_ledger(
                context.kv, context.names, shard=context.shard, fence=lambda: context.leader.fence, log=self._log
            )
            if losses == self._losses:
                break
        self._gained = True
        self._gain(reading)
        while True:
            try:
                await self._sets.start(reading.raw_sets)
                break
            except GanglineError as error:
                extra = {"action": "gangset.watch_failed"}
                context.lines.write(self._log.info, "cannot follow the sets: %s", error, extra=extra)
                await asyncio.sleep(_RETRY_S)
        await self._serve()
        if context.shell.disconnects:
            with contextlib.suppress(NotPermitted):  # it would only be faster
                await self._listen(context.shell.disconnects, self._on_disconnect)
        await self._heard_by_the_server()
        self._tasks.start(self._sweep())
        self._tasks.start(self._measure())
        gangs, workers = count_of(len(self.core.gangs()), "gang"), count_of(len(context.worker_registry), "worker")
        context.lines.write(self._log.info, "leads: %s, %s", gangs, workers, extra={"action": "coordinator.leads"})
        self._on_ready()

    async def _complete(self, restore: Callable[[], Awaitable[None]]) -> None:
        """Restore a ledger that is new or was lost, and mark it as complete; returns when it is."""
        context, key = self._context, self._context.shard.complete_key
        while True:
            try:
                if await context.kv.get(key) is None:
                    await restore()
                    body = LedgerComplete(since=context.clock.wall).model_dump_json().encode()
                    await self._commit([KvWrite(key=key, value=body)])
                return
            except NotPermitted as error:
                self._log.warning(
                    "the ledger cannot be restored if it is lost: %s", error, extra={"action": "ledger.not_permitted"}
                )
                return
            except GanglineError as error:
                extra = {"action": "ledger.not_restored"}
                context.lines.write(self._log.info, "the ledger is not complete yet: %s", error, extra=extra)
                await asyncio.sleep(_RETRY_S)

    async def _write_back(self) -> None:
        """Write what the mirror has and the ledger lacks.

        Raises:
            GanglineError: not everything was written.
        """
        context, lost = self._context, self._context.mirror.content()
        results = await context.kv.write(lost.sets) if lost.sets else []
        for result in results:
            if isinstance(result, GanglineError) and not isinstance(result, Conflict):
                raise result
        there = {entry.key for entry in await context.kv.entries(Names.gang_key())} if lost.gangs else set[str]()
        gangs = [batch for key, batch in lost.gangs.items() if key not in there]
        for batch in gangs:
            await self._commit(batch)
        keys = [write.key for write, result in zip(lost.sets, results, strict=False) if isinstance(result, int)]
        declared = Names.gangset_key("")
        sets = [key.removeprefix(declared) for key in keys if key.startswith(declared)]
        if gangs or sets:
            self._warn("wrote back what it had", len(gangs), sets)

    def _warn(self, what: str, gangs: int, sets: Sequence[str]) -> None:
        self._log.warning(
            "the server lost the ledger: %s, %s and %s%s", what, count_of(gangs, "gang"),
            count_of(len(sets), "standing set"), f" ({', '.join(sorted(sets))})" if sets else "",
            extra={"action": "ledger.restored"},
        )  # fmt: skip

    async def _commit(self, batch: Sequence[KvWrite]) -> None:
        """One atomic batch, on the condition that we lead. Its first write must have no condition.

        Raises:
            GanglineError: nothing was written or, if that is not certain, it cannot be written later.
        """
        leader = self._context.leader
        first = replace(batch[0], revision=leader.fence, condition_key=leader.key)
        try:
            revision = await self._context.kv.commit([first, *batch[1:]])
        except Conflict:
            raise
        except GanglineError:
            await self._executor.writer.void()
            raise
        self._context.mirror.committed(batch, revision)

    async def _written_again(self) -> None:
        """The core writes its gangs again, in batches that are in the queue now."""
        while True:
            await asyncio.sleep(_RETRY_S)
            if not self.core.writing:
                return

    async def _entered(self) -> bool:
        """Whether our pools are still ours; if not, another shard took them because it believed us dead."""
        conflict = await self._context.registry.restored()
        if conflict is not None:
            self._context.unfit(conflict)
        return conflict is None

    async def _heard_by_the_server(self) -> None:
        """Only after this may it report that requests are served."""
        while True:
            try:
                await self._context.bus.flush()
                return
            except GanglineError as error:
                self._log.debug("not heard yet: %s", error, extra={"action": "coordinator.flush"})
                await asyncio.sleep(_RETRY_S)

    async def _serve(self) -> None:
        """Serve requests from now on: all of them, or those for our shard."""
        context, request_server = self._context, self._executor.request_server
        if context.shard.pools is None:
            for subject in context.names.gang_subjects:
                await self._listen(subject, request_server.take)
            return
        self._shard_router = ShardRouter(
            context.bus,
            context.kv,
            context.names,
            context.shard,
            self.core,
            request_server,
            shards=lambda: context.registry.shards,
            trusted=self._trusted,
            log=self._log,
        )
        await self._shard_router.listen()

    async def _listen(self, subject: str, handler: Callable[[Message], None]) -> None:
        await self._listening.add(self._context.bus, subject, handler)

    def _gain(self, reading: LedgerSnapshot) -> None:
        context = self._context
        context.worker_registry.merge(reading.registrations, reading.beats)
        presumed = {
            WorkerId(seat.pool, seat.worker)
            for gang, _ in reading.gangs
            if gang.state is not GangState.ENDED
            for seat in gang.seats
        }
        event = on.LeadershipGained(
            **context.clock.moment(),
            term=self.number,
            fence=context.leader.fence,
            gangs=tuple(reading.gangs),
            members=tuple(reading.members),
            sets=tuple(reading.sets),
            statuses=tuple(reading.statuses),
            workers=context.worker_registry.living(presumed),
        )
        context.worker_registry.listener = self
        try:
            effects = self.core.handle(event)
        except Exception as error:
            self._log.warning("the ledger cannot be taken over as it is: %r", error, extra={"action": "ledger.odd"})
            effects = self.core.handle(self._without_unusable(event))
        if context.history is not None:
            record_found(context.history, reading.gangs)
        self._carry_out(effects)

    def _without_unusable(self, event: on.LeadershipGained) -> on.LeadershipGained:
        """Skip each record that a core cannot begin with, and log it: one record must not end every term."""
        gangs = tuple(each for each in event.gangs if self._usable(Names.gang_key(each[0].id), gangs=(each,)))
        aside = {gang.id for gang, _ in event.gangs} - {gang.id for gang, _ in gangs}
        return replace(
            event,
            gangs=gangs,
            members=tuple(each for each in event.members if each[1].gang not in aside),
            sets=tuple(each for each in event.sets if self._usable(Names.gangset_key(each[0]), sets=(each,))),
            statuses=tuple(
                each for each in event.statuses if self._usable(Names.gangset_status_key(each[0]), statuses=(each,))
            ),
        )

    def _usable(self, key: str, **alone: Any) -> bool:
        """Whether a core can begin with this record alone."""
        context = self._context
        event = on.LeadershipGained(**context.clock.moment(), term=self.number, fence=context.leader.fence, **alone)
        try:
            SchedulerCore(context.settings, context.shard).handle(event)
        except Exception as error:
            told = {"action": "record.unusable", "key": key}
            self._log.error("%s cannot be used and is skipped", key, exc_info=error, extra=told)
            return False
        return True

    async def _measure(self) -> None:
        """What gangs wait for, for the exporter's threads, which must not look at the core."""
        while True:
            if metrics_enabled():
                self.metrics.queued = Queued(
                    tuple(
                        Waiting(pool, obstacle, gangs, slots)
                        for (pool, obstacle), (gangs, slots) in self.core.waiting_by_obstacle().items()
                    ),
                    tuple(self.core.kept_slots().items()),
                )
            await asyncio.sleep(_MEASURE_S)

    async def _sweep(self) -> None:
        context = self._context
        while True:
            await asyncio.sleep(context.shell.sweep_s)
            try:
                members = await read_members(context.kv, context.names, self._log, context.shard)
            except GanglineError as error:
                self._log.debug("cannot read the members: %s", error, extra={"action": "gang.sweep"})
                continue
            self.feed(on.MembersRead(**context.clock.moment(), members=members))

    async def _restored(self, fence: int) -> None:
        """The bucket vanished; our record is in a new one."""
        self._losses += 1
        if not self._gained:
            return  # it is read again
        self._warn("writing it again", len(self.core.gangs()), self._sets.names)
        self.feed(on.LedgerVanished(**self._context.clock.moment(), fence=fence))
        if await self._entered():
            await self._sets.restore()
            if self._completing is not None:
                self._completing.cancel()  # it was about an earlier loss
            self._completing = self._tasks.start(self._complete(self._written_again))

    # -- events ------------------------------------------------------------------------------------------------------

    def feed(self, event: on.Happening) -> None:
        """An event. Ignored if our leadership may have expired: after a freeze, messages come before timers."""
        if not self._trusted():
            return
        if isinstance(event, (on.Committed, on.CommitRefused, on.CommitUnknown)):
            self._executor.gauges.answered(event)
        self._handle(event)

    def _trusted(self) -> bool:
        # Checking the clock may end the term.
        return not self._over and self._context.elector.trusted() and not self._over

    def _late(self, message: Message) -> None:
        self._context.late.add(message, self.number)

    def _handle(self, event: on.AnyEvent) -> None:
        self._carry_out(self.core.handle(event))

    def _carry_out(self, effects: list[do.Effect]) -> None:
        if effects:
            self._context.bus.prompt(lambda: self._executor.carry_out(effects))

    def worker_seen(self, facts: WorkerFacts) -> None:
        """See RegistryListener."""
        self.feed(on.WorkerSeen(**self._context.clock.moment(), worker=facts))

    def load_seen(self, worker: WorkerId, epoch: int, load: Load) -> None:
        """See RegistryListener."""
        self.feed(on.LoadSeen(**self._context.clock.moment(), worker=worker, epoch=epoch, load=load))

    def worker_gone(self, worker: WorkerId, reason: str) -> None:
        """See RegistryListener."""
        if reason != LEFT and self._context.history is not None and self._context.shard.keeps(worker.pool):
            gangs = [gang.id for gang in self.core.gangs() if _is_seated(gang, worker)]
            self._tasks.start(self._record_loss(self._context.history, worker, reason, gangs))
        self.feed(on.WorkerGone(**self._context.clock.moment(), worker=worker, reason=reason))

    async def _record_loss(self, history: HistoryRecorder, worker: WorkerId, reason: str, gangs: Sequence[str]) -> None:
        """Its leases are still in the ledger, until they expire."""
        context, leases = self._context, list[LeaseRecord]()
        with contextlib.suppress(GanglineError):
            for entry in await context.kv.entries(context.names.leases_of(worker.pool, worker.worker)):
                lease = parse(LeaseRecord, entry, self._log)
                if lease is not None:
                    leases.append(lease)
        record_loss(history, worker, reason, leases, gangs)

    def _on_disconnect(self, _message: Message) -> None:
        """A connection was lost. Pings will soon show which worker's, if any."""
        now = self._context.clock.now
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
            self._executor.worker_rpc.ping(do.PingWorker(worker=worker, request=PingRequest(gangs=here)))
