"""`Worker`: one process of a pool, from its start until it has left."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum

from ..bus.lifecycle import StartPatience, run_until_left
from ..bus.port.bus import Bus
from ..bus.rpc.responder import Listening, listen
from ..runtime.clock import Environment
from ..runtime.lifecycle import Service
from ..schemas.errors.base import ClosedError, WorkerIdTaken, WorkerUnhealthy
from ..schemas.names import CHANNEL_CHARS, Names, WorkerId
from ..schemas.records.history import HistoryKind
from ..schemas.text import count_of
from ..schemas.wire.frames import Load
from ..telemetry.logs import logger_for
from .ledger.core_driver import JournalSink
from .ledger.ledger_writer import LedgerStatistics
from .ledger.settings import WorkerSettings
from .pool.health import HealthWatch
from .pool.pool import Pool
from .registration.description import WorkerIdentity
from .registration.registrar import WorkerEvent
from .server import WorkerServer
from .slots.admission_core import next_epoch

LAST_WORDS_S = 2.0
"""How long a leaving worker waits for cancelled code to stop, and again for its last writes."""


class WorkerState(StrEnum):
    NEW = "new"
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatistics:
    """A snapshot of one worker."""

    worker: WorkerId
    state: WorkerState
    epoch: int
    load: Load
    tasks: dict[str, int]
    """Counts since the start: started, succeeded, failed, cancelled, crashed, rejected."""
    ledger: LedgerStatistics | None
    """None before the start."""
    answers: dict[str, int]
    """Messages and frames sent to routers; frames dropped and bytes kept while disconnected."""
    gangs: dict[str, int]
    """Counts since the start: held, refused, freed, formed, torn_down, stopped, failed, alone; and the members now."""
    memory: dict[str, int]
    """Sizes of what is kept in memory: leases, tasks, jobs, unstored (ends of jobs that no dispatcher has stored),
    senders, reserves, answers, answer_bytes."""


class Worker(Service[WorkerState]):
    """Serves a pool's tasks with a limited number of slots.

    ```python
    async with Worker(pool, bus=bus) as worker:
        await worker.wait_closed()
    ```

    The caller opens the bus before `start` and closes it; the worker does not. `start` claims the id, starts the
    executors, and returns once routers can find this worker.

    Raises:
        WorkerIdTaken: from `start`: another process with this id is alive. From `wait_closed`: it has taken our id.
        WorkerUnhealthy: from `wait_closed`: it has left because a health check failed.
        Unavailable: from `start`: no connection, or no answer from storage, for `start_timeout_s`.
        InvalidSettings: from `start`: a task cannot be served.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        bus: Bus,
        names: Names | None = None,
        settings: WorkerSettings | None = None,
        ambient: Environment | None = None,
        journal: JournalSink | None = None,
    ) -> None:
        """
        Args:
            pool: the tasks to serve.
            bus: an open connection.
            names: the namespace; `gangline` if not given.
            settings: see WorkerSettings.
            ambient: wall clock, randomness and tokens; the system's if not given.
            journal: receives a record of everything that happens to the slots; see worker.ledger.core_driver.
        """
        settings, ambient = settings or WorkerSettings(), ambient or Environment()
        self.id = WorkerId(pool.name, settings.worker_name(ambient))
        super().__init__(f"worker {self.id}", WorkerState)
        self._log = logger_for("worker", pool=self.id.pool, worker=self.id.worker)
        instance = ambient.token()
        self._place = WorkerIdentity(
            worker=self.id,
            instance=instance,
            channel=self._channel_of(instance),
            pool=pool,
            settings=settings,
            names=names or Names(),
            bus=bus,
            ambient=ambient,
            log=self._log,
        )
        self._journal = journal
        self.core = self._place.new_core()
        """For tests and statistics; must not be changed from outside."""
        self._executors = self._place.new_executors(self._on_models)
        self._worker_server: WorkerServer | None = None
        self._subscription: Listening | None = None
        self._forget_connection = _nothing
        self._leaving: asyncio.Task[None] | None = None
        self._grace = asyncio.Event()
        """Set when the grace time has been shortened."""
        self._leave_by = float("inf")
        self._early_grace_s: float | None = None
        """A drain requested during the start; it begins when the start is done."""
        self._health = HealthWatch(pool.health_checks, failed=self._on_unhealthy, log=self._log)

    # -- start ----------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        bus = self.bus
        patiently = StartPatience(self.settings.start_timeout_s, self._log)
        kv = await patiently(lambda: bus.bucket(self.names.ledger_bucket, self.settings.bucket))
        worker_server = self._worker_server = WorkerServer(
            self._place,
            kv=kv,
            core=self.core,
            executors=self._executors,
            journal=self._journal,
            begin_drain=self.begin_drain,
            on_lost=self._on_lost,
            on_unhealthy=self._on_unhealthy,
        )
        previous = await worker_server.registrar.claim()
        await self._executors.start()
        now = worker_server.driver.now()
        if previous >= self.core.epoch:
            self.core.new_epoch(next_epoch(previous, self.ambient.wall()), now)
        worker_server.start_clock()
        # Subscribe before publishing the registration: whoever reads it must find a subscriber.
        channels = dict.fromkeys(("", self._place.channel))
        self._subscription = await listen(
            bus, [self.names.worker_operations(self.id, channel) for channel in channels], worker_server.take
        )
        self._forget_connection = bus.on_connection(worker_server.on_connection)
        await patiently(bus.flush)
        if worker_server.limit_shares is not None:
            await worker_server.limit_shares.start()
        await patiently(worker_server.registrar.publish)
        await worker_server.nats_service.start()
        self.state = WorkerState.SERVING
        worker_server.ledger.reconcile()
        worker_server.registrar.announce(WorkerEvent.JOINED)
        worker_server.happened(HistoryKind.WORKER_JOINED)
        if not self.pool.tasks:
            self._log.warning(
                "the pool has no tasks: decorate functions with @pool.task", extra={"action": "worker.no_tasks"}
            )
        self._log.info(
            "serving %s in epoch %d",
            count_of(self.core.load.total, "slot"),
            self.core.epoch,
            extra={"action": "worker.started"},
        )
        self._health.start()
        if self._early_grace_s is not None:
            self.begin_drain(self._early_grace_s)

    # -- leave ----------------------------------------------------------------------------------------------------

    async def drain(self, grace_s: float | None = None) -> None:
        """Grant nothing new, honour what was granted, finish, cancel what still runs after `grace_s` (None: the
        setting), remove registration and leases, leave. Returns when all of this is done. Ends of durable tasks that no
        dispatcher has stored yet are waited for like tasks, within the same `grace_s`.

        Cancelling the wait does not stop the drain. If called again, the earlier end counts.
        """
        self.begin_drain(grace_s)
        await self._closed.wait()

    async def stop(self) -> None:
        """Leave at once: a drain without a grace time. Running tasks are cancelled, leases are void. Idempotent."""
        await self.drain(0.0)

    def begin_drain(self, grace_s: float | None = None) -> None:
        """`drain` without the wait. During the start, it begins when the start is done."""
        if self.state is WorkerState.NEW:
            self.state = WorkerState.CLOSED
            self._closed.set()
        grace_s = self.settings.drain_grace_s if grace_s is None else grace_s
        if self.state is WorkerState.STARTING:
            self._early_grace_s = grace_s if self._early_grace_s is None else min(grace_s, self._early_grace_s)
            return
        worker_server = self._worker_server
        if worker_server is None or self.state is WorkerState.CLOSED:
            return
        now = worker_server.driver.now()
        self._leave_by = min(self._leave_by, now + grace_s)
        if self._leaving is None:
            worker_server.drain_grace_s = worker_server.description.drain_grace_s = grace_s
            worker_server.description.drain_by = self._place.ambient.wall() + grace_s
        self.core.drain(self._leave_by, now)
        if grace_s <= 0:
            self.core.expire(now)
        worker_server.driver.after()
        if worker_server.limit_shares is not None:
            worker_server.limit_shares.drain()
        self._grace.set()
        if self._leaving is None:
            self.state = WorkerState.DRAINING
            self._log.info("draining within %g s", grace_s, extra={"action": "worker.drain"})
            worker_server.driver.record("drain", grace_s=grace_s)
            worker_server.changed()
            worker_server.registrar.announce(WorkerEvent.DRAINING)
            why = "" if self._failure is None else str(self._failure)
            worker_server.happened(HistoryKind.WORKER_DRAINING, reason=why or f"within {grace_s:g} s")
            self._leaving = worker_server.driver.loop.create_task(
                self._drain(worker_server), name=f"gangline drain {self.id}"
            )

    async def abort(self) -> None:
        """End like a crash: nothing is answered, written or removed, and the keys expire by themselves. For tests of
        how other processes react."""
        if self.state in (WorkerState.NEW, WorkerState.CLOSED):
            self.begin_drain(0.0)
            return
        self.state = WorkerState.CLOSED
        self._forget_connection()
        await self._health.stop()
        if self._leaving is not None:
            self._leaving.cancel()
        if self._worker_server is not None:
            self._worker_server.answer_batcher.mute()
            if self._worker_server.driver.history is not None:
                self._worker_server.driver.history.recorder.abandon()
            now = self._worker_server.driver.now()
            self.core.drain(now, now)
            await self._worker_server.close()
            if self._subscription is not None:
                await self._subscription.unsubscribe()
            self._worker_server.cancel_all(f"worker {self.id} was aborted")
            await self._worker_server.rest(LAST_WORDS_S)
        await self._executors.stop()
        self._closed.set()

    async def _drain(self, worker_server: WorkerServer) -> None:
        while not self.core.may_leave:
            self._grace.clear()
            left_s = self._leave_by - worker_server.driver.now()
            if left_s <= 0:
                break
            resting = asyncio.ensure_future(worker_server.rest(left_s, stored=True))
            shortened = asyncio.ensure_future(self._grace.wait())
            try:
                await asyncio.wait((resting, shortened), return_when=asyncio.FIRST_COMPLETED)
            finally:
                resting.cancel()
                shortened.cancel()
        if unstored := self.core.jobs.unstored:
            self._log.warning(
                "leaving with the ends of %s not confirmed as stored by a dispatcher: it may start again elsewhere",
                count_of(unstored, "durable task"),
                extra={"action": "worker.unstored", "count": unstored},
            )
        try:
            await self._leave()
        except Exception:
            # For example, a lifespan raised at its end. Nobody awaits this task, and the worker has left.
            self._log.exception("did not leave cleanly", extra={"action": "worker.leave_failed"})

    async def _undo_start(self) -> None:
        await self._leave()

    async def _leave(self) -> None:
        """Cancel what still runs, remove all keys, and close."""
        worker_server = self._worker_server
        try:
            if worker_server is not None:
                await self._clear(worker_server)
            self._forget_connection()
            if self._subscription is not None:
                await self._subscription.drain()
            if worker_server is not None:
                await worker_server.close()
            await self._health.stop()
            await self._executors.stop()
        finally:
            self.state = WorkerState.CLOSED
            self._closed.set()
        if self._subscription is not None:
            self._log.info("left", extra={"action": "worker.left"})

    async def _clear(self, worker_server: WorkerServer) -> None:
        now = worker_server.driver.now()
        if self._subscription is not None and not self.core.draining:
            # The start failed when routers may already have known this worker.
            worker_server.driver.record("drain", grace_s=0.0)
        self.core.drain(now, now)
        self.core.expire(now)
        worker_server.driver.after()
        if self.core.tasks or self.core.gangs.leaving:
            count = worker_server.cancel_all(f"worker {self.id} left before the task was done")
            self._log.warning("cancelled %s", count_of(count, "task"), extra={"action": "worker.cancelled_tasks"})
            rests = await worker_server.rest(LAST_WORDS_S)
            if not rests:
                worker_server.runs.insist_all()
                rests = await worker_server.rest(LAST_WORDS_S / 2)
            if not rests:
                self._log.error(
                    "left behind %s that did not stop",
                    count_of(len(self.core.tasks), "task"),
                    extra={"action": "worker.tasks_left"},
                )
        worker_server.answer_batcher.flush()
        if not await worker_server.ledger.settle(LAST_WORDS_S):
            self._log.warning("could not clear the ledger: its keys expire", extra={"action": "ledger.left"})
        await worker_server.gangs.ledger.stop()  # it writes the registration too
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                if worker_server.limit_shares is not None:
                    await worker_server.limit_shares.leave()
                await worker_server.registrar.withdraw()
        except TimeoutError:
            self._log.warning("could not delete the registration: it expires", extra={"action": "registration.left"})
        worker_server.gangs.forsake()
        if self._subscription is not None:
            worker_server.driver.record("leave")
            worker_server.registrar.announce(WorkerEvent.LEFT)
            worker_server.happened(HistoryKind.WORKER_LEFT)

    # -- others ---------------------------------------------------------------------------------------------------

    def resize(self, slots: int) -> None:
        """Change the number of slots, live. If more are in use, nothing new is granted until they fit.

        Raises:
            ClosedError: the worker is not running.
            ValueError: below 0 or above a million.
        """
        if self._worker_server is None or self.state is WorkerState.CLOSED:
            raise ClosedError(f"worker {self.id} is not running")
        self._worker_server.resize(slots)

    def statistics(self) -> WorkerStatistics:
        worker_server = self._worker_server
        return WorkerStatistics(
            worker=self.id,
            state=self.state,
            epoch=self.core.epoch,
            load=self.core.load,
            tasks={} if worker_server is None else worker_server.task_counts(),
            ledger=None if worker_server is None else worker_server.ledger.statistics(),
            answers={} if worker_server is None else worker_server.answer_batcher.statistics(),
            memory=self.core.statistics(),
            gangs={} if worker_server is None else worker_server.gangs.metrics.statistics(),
        )

    def _channel_of(self, instance: str) -> str:
        return instance[-CHANNEL_CHARS:]

    @property
    def bus(self) -> Bus:
        """The connection passed to the constructor."""
        return self._place.bus

    @property
    def pool(self) -> Pool:
        return self._place.pool

    @property
    def channel(self) -> str:
        """See Registration.channel."""
        return self._place.channel

    @property
    def names(self) -> Names:
        return self._place.names

    @property
    def settings(self) -> WorkerSettings:
        return self._place.settings

    @property
    def ambient(self) -> Environment:
        return self._place.ambient

    @property
    def instance(self) -> str:
        """Unique for this object; tells two processes with one id apart."""
        return self._place.instance

    def __repr__(self) -> str:
        load = self.core.load
        return (
            f"<Worker {self.id} {self.state}, epoch {self.core.epoch}, "
            f"{load.running} running + {load.reserved} reserved of {load.total} slots>"
        )

    def _on_models(self, models: tuple[str, ...]) -> None:
        if self._worker_server is not None:
            self._worker_server.models_changed(models)

    def _on_unhealthy(self, reason: str) -> None:
        """Let our gangs restart elsewhere, finish running tasks, leave."""
        if self._failure is not None:
            return
        self._failure = WorkerUnhealthy(f"worker {self.id} leaves: {reason}", details={"worker": str(self.id)})
        self._log.error("%s", self._failure, extra={"action": "worker.unhealthy"})
        if self._worker_server is not None:
            self._worker_server.gangs.fail_all(reason)
        self.begin_drain(None)

    def _on_lost(self, instance: str) -> None:
        """Fence ourselves: unsubscribe from the id that another process has, void the leases, finish, leave."""
        self._failure = WorkerIdTaken(
            f"worker id {self.id} was taken by another process (instance {instance}) while this one was away: "
            "give each process an id of its own",
            details={"worker": str(self.id), "instance": instance},
        )
        self._log.error("%s", self._failure, extra={"action": "worker.id_taken", "instance": instance})
        worker_server = self._worker_server
        if worker_server is None or self._subscription is None:
            return
        unsubscribing = asyncio.ensure_future(self._subscription.unsubscribe())
        unsubscribing.add_done_callback(lambda done: done.cancelled() or done.exception())
        worker_server.fence()
        self.begin_drain(None)


def _nothing() -> None:
    return


async def run_worker(worker: Worker, *others: Worker) -> None:
    """Start the workers and return when all have left: drained by a signal, an operator or the program itself.

    The first SIGTERM or SIGINT drains them (with the grace time of their settings), the second stops them at once. A
    signal during the start ends the start. If one fails, the others drain, and then its error is raised: a supervisor
    can restart the process. Cancelling stops the workers without a drain. Needs the main thread.

    Args:
        worker: not yet started; its bus is open, and stays open.
        others: workers of other pools, on the same bus.

    Raises:
        WorkerIdTaken: at the start, or later if another process took the id.
        WorkerUnhealthy: a health check failed, and it has drained.
        Disconnected: the server closed the connection for good.
        Unavailable, InvalidSettings: as `Worker.start`.
    """
    workers = (worker, *others)

    async def serve(one: Worker) -> None:
        try:
            await one.start()
            await one.wait_closed()
        except BaseException:
            for other in workers:
                other.begin_drain()
            raise
        finally:
            await one.stop()

    async def life() -> None:
        tasks = [asyncio.create_task(serve(one), name=f"gangline worker {one.id}") for one in workers]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
        for failed in [task for task in tasks if task.exception() is not None]:
            failed.result()

    def finish() -> bool:
        if all(one.state in (WorkerState.NEW, WorkerState.STARTING) for one in workers):
            return False
        for one in workers:
            one.begin_drain()
        return True

    def stop() -> None:
        for one in workers:
            one.begin_drain(0.0)

    await run_until_left(worker.bus, life(), finish=finish, stop=stop)
