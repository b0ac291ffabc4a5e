"""All parts of a serving worker, wired together; every message passes the freeze detector first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..bus.port.bus import ConnectionEvent, KeyValue, Message
from ..bus.streams.history_recorder import HistoryRecorder
from ..runtime.failure_detector import TICK_S, FreezeDetector, LoopWatch
from ..schemas.errors.base import MalformedMessage, PayloadTooLarge, TaskCancelled
from ..schemas.messages.operations import StatsReply
from ..schemas.names import Operation
from ..schemas.records.history import HistoryKind
from ..schemas.text import count_of
from ..telemetry.metrics.router_and_worker import WorkerMetrics
from .execution.executor_registry import ExecutorRegistry
from .execution.runner import TaskRunner
from .gangs.server import GangServer
from .ledger.core_driver import AuditJournal, CoreDriver, JournalSink, LeaseService
from .ledger.lease_history import LeaseHistory
from .ledger.ledger_writer import LedgerWriter
from .registration.description import WorkerDescription, WorkerIdentity, worker_service
from .registration.limit_shares import LimitShares
from .registration.registrar import Registrar, WorkerEvent
from .slots.admission_core import AdmissionCore, next_epoch
from .wire.answer_batcher import AnswerBatcher
from .wire.durable_jobs import DurableJobServer
from .wire.frame_server import FrameServer, InlineRunner
from .wire.operations_server import OperationsServer

SWEEP_TICKS = 4
"""Ticks between two sweeps of old state: one second."""
READER_GONE_S = 60.0
"""A stream ends when its reader has been silent for this long. Routers ask about pending requests at least every 16
s."""

_REASONS = {"frozen": "frozen: the process or its event loop stalled, for example by blocking code in an async task"}
"""The journal's keyword in full, for humans."""


class WorkerServer:
    """Created at a worker's start, on its loop, when the bucket is open."""

    def __init__(
        self,
        place: WorkerIdentity,
        *,
        kv: KeyValue,
        core: AdmissionCore,
        executors: ExecutorRegistry,
        journal: JournalSink | None,
        begin_drain: Callable[[float | None], None],
        on_lost: Callable[[str], None],
        on_unhealthy: Callable[[str], None],
    ) -> None:
        """`begin_drain`, `on_lost` (another process took the id) and `on_unhealthy` are the worker's own."""
        settings = place.settings
        self._place = place
        self._on_unhealthy = on_unhealthy
        self._log = place.log
        self._loop = asyncio.get_running_loop()
        self._frames_subject = place.names.worker(place.worker, Operation.FRAMES)
        self._frames_channel = place.names.worker(place.worker, Operation.FRAMES, place.channel)
        self._ticker: asyncio.TimerHandle | None = None
        self._ticks = 0
        self._connected_at = self._loop.time()
        self._at_rest = asyncio.Event()
        self._held: list[Message] = []
        """Operations received while it is in doubt whether the id is ours; carried out once that is confirmed."""
        self.drain_grace_s = 0.0
        """The grace time of the drain, as first requested."""
        self.core = core
        self.guard = FreezeDetector(settings.freeze_after_s, self._loop.time())
        self._watch = LoopWatch(settings.freeze_after_s / 2, place.pool.functions())
        self.journal = AuditJournal(journal, place.worker, core, place.ambient)
        self.metrics = WorkerMetrics(place.names.namespace, place.worker.pool, place.worker.worker, lambda: core.load)
        self.driver = self._new_books()
        self.ledger = LedgerWriter(
            kv, place.names, place.worker, self.driver.describe, ambient=place.ambient, log=place.log
        )
        self.driver.ledger = self.ledger
        self.driver.history = self._new_history()
        self.answer_batcher = AnswerBatcher(
            place.bus, lambda: (core.epoch, core.told_load), keep_bytes=settings.unsent_bytes, log=place.log
        )
        self.driver.waiters, self.driver.on_room = self.answer_batcher.waiters, self.answer_batcher.invite
        self.runs = TaskRunner(self.driver, executors, stream_window=settings.stream_window)
        self.lease_service = LeaseService(self.driver, settings)
        self.jobs = DurableJobServer(place.bus, place.names, self.driver, self.answer_batcher, log=place.log)
        inline = InlineRunner(self.driver, self.runs, executors, self.answer_batcher)
        self.frame_server = FrameServer(
            place.pool,
            self.driver,
            self.runs,
            inline,
            self.jobs,
            self.lease_service,
            self.answer_batcher,
            log=place.log,
        )
        self.operations = self._new_operations(begin_drain)
        self.description = WorkerDescription(place, core)
        self.registrar = self._new_presence(kv, on_lost)
        self.limit_shares = self._new_limit_shares(kv)
        self.gangs = self._new_gangs(kv)
        self.nats_service = worker_service(place, self.description.registration, self._counts, kv)

    def _new_books(self) -> CoreDriver:
        place = self._place
        driver = CoreDriver(
            self.core,
            place.worker,
            journal=self.journal,
            metrics=self.metrics,
            ambient=place.ambient,
            on_overdue=lambda record: self.runs.overdue(record),
        )
        driver.on_rest = self._at_rest.set
        return driver

    def _new_history(self) -> LeaseHistory | None:
        place, core = self._place, self.core
        writer = f"worker.{place.worker.pool}.{place.worker.worker}"
        recorder = HistoryRecorder.of_service(
            place.bus, place.names, writer, place.settings.history, ambient=place.ambient, log=place.log
        )
        if recorder is None:
            return None
        return LeaseHistory(
            recorder,
            place.worker,
            epoch=lambda: core.epoch,
            living=lambda: core.leases,
            wall=place.ambient.wall,
        )

    def _new_operations(self, begin_drain: Callable[[float | None], None]) -> OperationsServer:
        place = self._place
        operations = OperationsServer(
            place.bus,
            place.pool,
            self.driver,
            self.runs,
            self.lease_service,
            drain=begin_drain,
            resize=self.resize,
            stats=self.stats,
            log=place.log,
        )
        operations.serve(Operation.JOBS, self.jobs.on_list)
        return operations

    def _new_presence(self, kv: KeyValue, on_lost: Callable[[str], None]) -> Registrar:
        place = self._place
        return Registrar(
            place.bus,
            kv,
            place.names,
            place.worker,
            instance=place.instance,
            settings=place.settings,
            ambient=place.ambient,
            registration=self.description.registration,
            heartbeat=self.description.heartbeat,
            on_lost=on_lost,
            on_confirmed=self.ledger.reconcile,
            log=place.log,
        )

    def _new_limit_shares(self, kv: KeyValue) -> LimitShares | None:
        place = self._place
        if not any(limit.divided for limit in self.core.limits.values()):
            return None
        found = LimitShares(
            kv,
            place.names,
            place.worker,
            self.core.limits,
            self.registrar.id_lease,
            instance=place.instance,
            ambient=place.ambient,
            invite=self._invite,
            log=place.log,
        )
        self.registrar.on_sure = found.confirmed
        return found

    def _invite(self, replies: list[str]) -> None:
        if replies:
            self.core.freed += replies
            self.driver.after_end()

    def _new_gangs(self, kv: KeyValue) -> GangServer:
        place = self._place
        return GangServer(
            place.bus,
            kv,
            place.names,
            place.pool,
            self.driver,
            self.runs,
            self.registrar,
            self.operations,
            grace_s=lambda: self.drain_grace_s,
            unhealthy=self._on_unhealthy,
            log=place.log,
        )

    # -- at the door ----------------------------------------------------------------------------------------------

    def take(self, message: Message) -> None:
        """Handle a message on one of the worker's subjects; each is answered exactly once."""
        now = self._loop.time()
        stall_s = self.guard.stall_s(now)
        if stall_s > 0.0 and self.guard.frozen(now):
            self._doubt()
            stall_s = 0.0
        subject = message.subject
        if subject != self._frames_channel and subject != self._frames_subject:
            operation = subject.rpartition(".")[2]
            if self.core.doubted:
                if operation == Operation.TEARDOWN:
                    # Members must stop now, whoever has the id. Only the answer waits.
                    self.operations.take(operation, Message(subject, message.data, headers=message.headers))
                self._held.append(message)
            elif operation == Operation.HOLD and not self.registrar.sure(now):
                # Nothing can be committed without storage, so it costs nothing if a hold waits for it.
                if not self._held:
                    self.registrar.confirm(self._take_held)
                self._held.append(message)
            else:
                self.operations.take(operation, message)
            return
        try:
            self.frame_server.take(message, now, stall_s)
        except (MalformedMessage, PayloadTooLarge) as error:
            self.operations.refuse(message, error)

    def _doubt(self) -> None:
        """The process was frozen, and meanwhile another may have taken our id. Until storage confirms that it is ours,
        start nothing, and send nothing that could be taken for that process's answer. If already in doubt, wait for a
        later confirmation: one requested before this freeze no longer counts."""
        self.core.doubt()
        self.registrar.confirm(self._undoubted)

    def _undoubted(self) -> None:
        self.new_epoch("frozen")
        self._take_held()

    def _take_held(self) -> None:
        held, self._held = self._held, []
        for message in held:
            self.take(message)

    def fence(self) -> None:
        """Another process has the id: void all leases, stop all members of gangs, and start nothing more. Other running
        tasks continue."""
        self._held.clear()
        self.core.fence(self._loop.time())
        self.driver.after()
        self.driver.record("fence")
        self.gangs.end_all("another process has the worker's id")

    def new_epoch(self, why: str) -> None:
        """Void all leases and refuse all requests sent before. Running tasks continue. `why`: for the log."""
        core = self.core
        old = core.epoch
        core.new_epoch(next_epoch(old, self._place.ambient.wall()), self._loop.time())
        self.driver.after()
        self.driver.record("epoch", why=why)
        blocked_in = self._watch.take_found() if why == "frozen" else ""
        self._log.warning(
            "epoch %d after %d (%s): earlier leases are void",
            core.epoch,
            old,
            f"the event loop stood still in {blocked_in}" if blocked_in else _REASONS.get(why, why),
            extra={"action": "worker.epoch", "epoch": core.epoch, **({"blocked_in": blocked_in} if blocked_in else {})},
        )
        self.changed()
        self.happened(HistoryKind.WORKER_EPOCH, reason=why)
        self.metrics.epoch(why)
        self.registrar.announce(WorkerEvent.EPOCH)

    def happened(self, kind: HistoryKind, *, reason: str = "") -> None:
        """Record it in the history, if one is written."""
        if self.driver.history is not None:
            self.driver.history.worker(kind, reason=reason, slots=self.core.load.total)

    # -- time and connection --------------------------------------------------------------------------------------

    def start_clock(self) -> None:
        """Start to detect freezes and to sweep old state."""
        self.guard.tick(self._loop.time())
        self._watch.beat()
        if not getattr(self._loop, "is_virtual", False):
            self._watch.start()
        self._ticker = self._loop.call_later(TICK_S, self._tick)

    def stop_clock(self) -> None:
        """Idempotent."""
        self._watch.stop()
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        now = self._loop.time()
        self._watch.beat()
        if self.guard.tick(now):
            self._doubt()
        self._ticks += 1
        if self._ticks % SWEEP_TICKS == 0:
            self.core.sweep(now)
            self.driver.after()
            if self._place.bus.connected and now - self._connected_at > READER_GONE_S:
                self.runs.end_unread(self.core.senders, now - READER_GONE_S)

    def on_connection(self, event: ConnectionEvent) -> None:
        """After a reconnect: send the kept answers, and rewrite what the server may have lost."""
        if event is ConnectionEvent.RECONNECTED:
            self._connected_at = self._loop.time()
            self.answer_batcher.resume()
            self.registrar.unsure()
            self.registrar.rewrite()

    # -- operators ------------------------------------------------------------------------------------------------

    def resize(self, slots: int) -> None:
        """Change the number of slots, live."""
        old = self.core.load.total
        self.core.resize(slots)
        self.driver.after()
        self.driver.record("resize", slots=slots)
        self.happened(HistoryKind.WORKER_RESIZED, reason=f"from {old}")
        self._log.info(
            "resized from %d to %s", old, count_of(slots, "slot"), extra={"action": "worker.resize", "slots": slots}
        )
        self.changed()

    def models_changed(self, models: tuple[str, ...]) -> None:
        """The loaded models have changed: tell the routers."""
        self.description.models = models
        self.changed()

    def changed(self) -> None:
        """The registration has changed: publish it."""
        self.registrar.rewrite()

    def task_counts(self) -> dict[str, int]:
        """Counts since the start: started, succeeded, failed, cancelled, crashed, rejected."""
        return {**self.runs.counts, "rejected": self.frame_server.rejected}

    def _counts(self) -> dict[str, list[int]]:
        return {
            **self.operations.counts,
            str(Operation.FRAMES): [self.frame_server.messages, self.frame_server.malformed],
        }

    def stats(self) -> StatsReply:
        now = self._loop.time()
        return self.description.statistics(
            self.task_counts(),
            self.ledger.statistics(),
            now,
            self.gangs.seats.times,
            () if self.limit_shares is None else self.limit_shares.statistics(now),
        )

    # -- the end --------------------------------------------------------------------------------------------------

    async def rest(self, timeout_s: float | None, *, stored: bool = False) -> bool:
        """Wait until nothing is held any longer; False if that takes longer than `timeout_s` (None: no limit).

        Args:
            stored: also wait until the dispatchers have stored the ends of durable tasks.
        """
        core = self.core
        try:
            async with asyncio.timeout(timeout_s):
                while not (core.may_leave if stored else core.at_rest):
                    self._at_rest.clear()
                    await self._at_rest.wait()
        except TimeoutError:
            return core.may_leave if stored else core.at_rest
        return True

    def cancel_all(self, why: str) -> int:
        """Cancel all running tasks; returns how many."""
        return self.runs.cancel_all(TaskCancelled(why))

    async def close(self) -> None:
        """Stop every loop and timer. Idempotent. Pending writes are dropped."""
        self.stop_clock()
        self.driver.close()
        self.metrics.close()
        if self.driver.history is not None:
            await self.driver.history.close()
        if self.limit_shares is not None:
            await self.limit_shares.stop()
        await self.gangs.close()
        await self.nats_service.stop()
        await self.lease_service.stop()
        await self.ledger.stop()
        await self.registrar.stop()
