"""One pool of a router: the core that decides, the discovery of workers that feeds it, and the callers that wait."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

from ...bus.key_value.informer import Absent, BucketInformer
from ...bus.port.bus import Bus, KeyValue, KvEntry, KvOperation
from ...runtime.failure_detector import SuspectProber
from ...runtime.tasks import TaskSet
from ...schemas.errors.base import GanglineError
from ...schemas.names import Names
from ...schemas.records.workers import Heartbeat, Registration
from ...schemas.wire.frames import Load, LoadFlag
from ...telemetry.logs import logger_for
from ...telemetry.metrics.router_and_worker import RouterMetrics
from ..routing.outcome import TryOutcome
from ..routing.policy import Candidates, Draw, Policy, PolicyBase, PowerOfTwo, Requirements
from ..routing.pool_core import Effect, PlacementRefused, RoutedRequest, RoutingCore
from ..routing.settings import RouterSettings
from ..routing.worker_table import WorkerEntry
from ..transport.exchange import GAP_S, RequestExchange

_log = logger_for("dispatcher")


class RouteChanged(Exception):  # noqa: N818
    """The request must go to another pool, because its endpoint's route has changed. It is not in progress anywhere;
    find the new pool and place the same request there: it keeps its place in the order of arrival."""


Waiter = asyncio.Future[GanglineError | RouteChanged | None]
"""Ends with None when the request was placed."""


def _never(_endpoint: str, _pool: str) -> bool:
    return False


class RoutedPool:
    """Places requests and settles them. Runs on the event loop; state changes only between awaits."""

    def __init__(
        self,
        name: str,
        *,
        exchange: RequestExchange,
        settings: RouterSettings,
        policy: Policy,
        metrics: RouterMetrics,
        draw: Draw,
        numbers: Iterator[int] | None = None,
        strays: Callable[[str, str], bool] = _never,
    ) -> None:
        """
        Args:
            numbers: order of arrival, shared by all pools of a router.
            strays: whether requests to an endpoint must not (or no longer) use a pool.
        """
        self.name = name
        self.core = RoutingCore(name, settings, guarded(policy, name), draw, numbers)
        self.discovery: WorkerDiscovery | None = None
        self.used_at = self._opened_at = exchange.loop.time()
        self.taken = metrics.taken(name, name)
        """Counts requests accepted for the endpoint of its name."""
        self.held = metrics.held(name)
        """Counts held slots."""
        self._strays = strays
        self._exchange = exchange
        self._settings = settings
        self._metrics = metrics
        self._loop = exchange.loop
        self.settle: Callable[[RoutedRequest], None] = self.core.settle
        """Stop counting the request on its worker. Idempotent. Waiting requests are served when the load of the current
        message is known, or by `pump`."""
        self._questions = TaskSet(f"suspects of {name}", _log)
        self._suspects: SuspectProber[WorkerEntry] = SuspectProber(
            self._questions,
            ask=self._beats,
            on_lost=self._found_lost,
            on_failed=_not_asked,
            unconfirmed_after_s=settings.unconfirmed_after_s,
        )
        self._leaving: set[WorkerEntry] = set()
        """Deletions of their registrations were seen, and are being checked."""
        self._timer: asyncio.TimerHandle | None = None

    # -- requests -------------------------------------------------------------------------------------------------

    async def place(
        self, routed_request: RoutedRequest, deadline: float | None, fate: TryOutcome | None = None
    ) -> WorkerEntry:
        """Find a worker for a request, waiting in the queue if necessary; it is charged there until `settle`.

        Args:
            deadline: loop time at which to give up; None: see RouterSettings.saturated_wait_s.
            fate: outcome of the previous attempt; None for the first.

        Raises:
            QueueFull, UnknownMethod: at once.
            NoWorkers, Saturated, Draining, Disconnected: at once if it may not wait; else at the deadline, or after the
                time in the settings.
            WorkerLost, ResultLost: the previous attempt may have started something and must not be retried.
            RouteChanged: another pool has to take it.
        """
        return self.place_nowait(routed_request, fate) or await self.wait(routed_request, deadline)

    def place_nowait(self, routed_request: RoutedRequest, fate: TryOutcome | None = None) -> WorkerEntry | None:
        """`place` without waiting. None: it is queued now, for `wait`."""
        core, now = self.core, self._loop.time()
        if routed_request.asked_at is None:
            routed_request.asked_at = now
        core.connected = self._exchange.bus.connected
        if (
            fate is not None
            and routed_request.endpoint is not None
            and self._strays(routed_request.endpoint, self.name)
        ):
            core.judge(routed_request, fate, now)
            routed_request.moved = True
            raise RouteChanged
        if core.admit(routed_request, now) if fate is None else core.again(routed_request, fate, now):
            assert routed_request.worker is not None
            return routed_request.worker
        if not routed_request.in_line:
            core.withdraw(routed_request)
            raise core.give_up(routed_request, "right now")
        return None

    def place_at_once(self, routed_request: RoutedRequest) -> bool:
        """`place` for a request that never waits: True if it was placed. Waiting requests are not overtaken."""
        core = self.core
        core.connected = self._exchange.bus.connected
        return core.admit_at_once(routed_request, self._loop.time())

    def move(self, endpoint: str) -> None:
        """Move waiting requests that follow that endpoint's route: their `place` raises RouteChanged."""
        for routed_request in self.core.take_out(endpoint):
            waiter = routed_request.waiter
            assert isinstance(waiter, asyncio.Future), routed_request
            if not waiter.done():  # otherwise its caller has just given up
                waiter.set_result(RouteChanged())

    @property
    def deserted(self) -> bool:
        """Whether it has been without workers for so long that requests need not wait for any."""
        if self.core.view.workers or (since := self.core.empty_since) is None:
            return False
        return self._loop.time() - max(since, self._opened_at) >= self._settings.no_workers_wait_s

    async def wait(self, routed_request: RoutedRequest, deadline: float | None) -> WorkerEntry:
        """The worker of a queued request; see `place`."""
        self.used_at = now = self._loop.time()
        waiter: Waiter = self._loop.create_future()
        routed_request.waiter = waiter
        self._arm(now)
        timer = None if deadline is None else self._loop.call_at(deadline, self._too_late, routed_request, deadline)
        self._metrics.queued(self.name, +1)
        try:
            error = await waiter
        except asyncio.CancelledError:
            # It may have been placed in the same turn of the loop: then the slot goes to the next request.
            self.core.withdraw(routed_request)
            self.pump()
            raise
        finally:
            self._metrics.queued(self.name, -1)
            routed_request.waiter = None
            if timer is not None:
                timer.cancel()
        if error is not None:
            raise error
        assert routed_request.worker is not None
        return routed_request.worker

    def accepted(self, routed_request: RoutedRequest) -> None:
        """A worker accepted the request."""
        self.core.accepted(routed_request, self._loop.time())

    def refused(self, routed_request: RoutedRequest, worker: WorkerEntry, fate: TryOutcome) -> None:
        """An attempt on that worker failed; `place` the request again, or give up."""
        self.core.settle(routed_request)
        self.core.turned_down(routed_request, worker, fate)

    def pump(self, freed: WorkerEntry | None = None) -> None:
        """Serve waiting requests while there is room; `freed`: the only worker that may have gained some."""
        if self.core.waiting:
            self._carry_out(self.core.pump(self._loop.time(), freed))

    def contains(self, worker: WorkerEntry) -> bool:
        """Whether the worker is still the known one of its name."""
        return self.core.view.workers.get(worker.id.worker) is worker

    def suspect(self, worker: WorkerEntry, why: str) -> None:
        """The worker is silent, or a closer observer reports that it has ended: it gets nothing new and is looked up in
        the ledger, which decides. Idempotent."""
        if not self.contains(worker):
            return
        self.core.view.unreachable(worker)
        if self._suspects.suspect(worker, why):
            self._exchange.on_gap()

    # -- AnswerListener -------------------------------------------------------------------------------------------

    def answered(self, worker: WorkerEntry, load: Load, epoch: int) -> None:
        now = self._loop.time()
        if worker.ended:
            if self.core.waiting:
                self._learn(worker, now)
            self.core.ended(worker, now)
        self.used_at = now
        if self.contains(worker):
            self._suspects.clear(worker)
            self.core.loaded(worker, load, epoch, now)
            self.pump(worker)

    def invited(self, worker: WorkerEntry) -> None:
        self.core.invited(worker)

    def unreachable(self, worker: WorkerEntry) -> None:
        self.core.view.unreachable(worker)

    # -- for WorkerDiscovery --------------------------------------------------------------------------------------

    def registered(self, record: Registration, revision: int) -> None:
        """The registration is in the ledger."""
        replaced = self.core.registered(record, revision, self._loop.time())
        if replaced is not None and replaced.known:
            self._exchange.lose_earlier(replaced, record.epoch)
        elif replaced is not None:
            self._lost(replaced, "another instance took its name")
        self._arm_sooner()
        self.pump()

    def leaving(self, worker: str) -> None:
        """A deletion of the worker's registration was seen; storage may have refused it."""
        known = self.core.view.workers.get(worker)
        if known is not None:
            self._leaving.add(known)
            self._suspects.look_up(known)

    def _left(self, known: WorkerEntry) -> None:
        if not self.contains(known):
            return
        if known.own == 0:
            self.core.gone(known, self._loop.time())
            self._suspects.clear(known)
            self._exchange.lose_worker(known)
            self._arm_sooner()
        else:
            # It still answers what it is running before it leaves: its silence will show the end.
            self.core.view.loaded(
                known, Load(known.ongoing, 0, known.total, LoadFlag.DRAINING), known.epoch, self._loop.time()
            )

    def beat(self, worker: str, beat: Heartbeat) -> bool:
        """A heartbeat was received; False if its worker, or that instance of it, is not known."""
        known = self.core.view.workers.get(worker)
        if known is None or known.instance != beat.instance:
            return False
        now = self._loop.time()
        if now - known.heard_at > GAP_S:
            self._exchange.on_gap()
        self._suspects.clear(known)
        flags = LoadFlag.DRAINING if beat.draining else 0
        self.core.view.confirm(known, beat.epoch)
        self.core.loaded(known, Load(beat.running, beat.reserved, beat.total, flags), beat.epoch, now)
        if known.max_models or beat.models:
            self.core.view.has_models(known, beat.models, now)
        self._exchange.confirmed(known)
        self.pump(known)
        return True

    def knows(self, worker: str, instance: str) -> bool:
        """Whether that instance is the known one of that name."""
        known = self.core.view.workers.get(worker)
        return known is not None and known.instance == instance

    def connection(self, connected: bool) -> None:
        """The connection was lost, or is back."""
        self.core.connected = connected
        self._leaving.clear()  # a server that was away may have lost the keys
        if connected:
            # Nothing could be received meanwhile, so the time of silence starts again for all workers.
            self._suspects.clear_all()
            for worker in self.core.view.workers.values():
                worker.heard_at = self._loop.time()
            self.pump()

    # -- time -----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Called a few times a second while connected: finds silent workers and stale loads."""
        for worker in self.core.view.silent(now, self._settings.lost_after_s):
            self.suspect(worker, f"silent for {self._settings.lost_after_s:g} s")
        for worker in self._suspects.unconfirmed(now):
            self._exchange.give_up(worker)
        if self.core.view.age(now):
            self.pump()

    def idle(self, now: float) -> bool:
        """Whether the pool has been unused for long."""
        return self.unused and now - self.used_at > _IDLE_S

    @property
    def unused(self) -> bool:
        """No workers, nothing waiting, nothing in flight."""
        core = self.core
        return not core.view.workers and not core.waiting and not core.placed

    def close(self, error: GanglineError) -> None:
        """Refuse waiting requests."""
        self._carry_out(self.core.refuse_all(error))
        self._suspects.clear_all()
        self._questions.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def statistics(self) -> dict[str, int]:
        """Workers known, requests waiting, requests placed, probes sent so far."""
        core = self.core
        return {
            "workers": len(core.view.workers),
            "waiting": core.waiting,
            "placed": core.placed,
            "probes": core.probes,
        }

    def __repr__(self) -> str:
        return f"RoutedPool({self.core!r})"

    # -- inside ---------------------------------------------------------------------------------------------------

    def _learn(self, worker: WorkerEntry, now: float) -> None:
        """Learn the duration of a plain request: only while others wait, so that calls stay cheap."""
        request, worker.latest = worker.latest, None
        if request is not None and request.method:
            self.core.usual.ended(request.method, now - request.sent_at)

    def _lost(self, worker: WorkerEntry, why: str) -> None:
        self._suspects.clear(worker)
        # A worker that drained and has no open requests has left in order; it was only kept for its last answers.
        level = logging.INFO if worker.draining and not worker.own else logging.WARNING
        extra = {"action": "worker.lost", "worker": str(worker.id)}
        _log.log(level, "worker %s is lost: %s", worker.id, why, extra=extra)
        self._exchange.lose_worker(worker)
        self._arm_sooner()

    async def _beats(self, worker: WorkerEntry) -> bool:
        assert self.discovery is not None  # gangs of sets are never silent
        leaving = worker in self._leaving
        self._leaving.discard(worker)
        beats = await self.discovery.beats(worker.id.worker, worker.instance)
        if leaving and not beats:
            self._left(worker)
        return beats

    def _found_lost(self, worker: WorkerEntry, why: str) -> None:
        if self.core.gone(worker, self._loop.time()):
            self._lost(worker, why)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            waiter = effect.routed_request.waiter
            assert isinstance(waiter, asyncio.Future), effect
            if waiter.done():
                continue  # cancelled in this very turn: its own clean-up withdraws the request
            waiter.set_result(effect.error if isinstance(effect, PlacementRefused) else None)

    def _too_late(self, routed_request: RoutedRequest, deadline: float) -> None:
        if routed_request.waits:
            self.core.withdraw(routed_request)
            self._carry_out(
                [
                    PlacementRefused(
                        routed_request, self.core.give_up(routed_request, by_its_deadline(routed_request, deadline))
                    )
                ]
            )

    def _arm(self, now: float) -> None:
        if self._timer is None:
            delay = self.core.next_wake_s(now)
            if delay is not None:
                self._timer = self._loop.call_later(delay, self._wake)

    def _arm_sooner(self) -> None:
        """Restart the timer, because the reason to wait has changed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._arm(self._loop.time())

    def _wake(self) -> None:
        self._timer = None
        now = self._loop.time()
        self.core.connected = self._exchange.bus.connected
        self._metrics.backoff(self.name)
        self._carry_out(self.core.wake(now))
        self._arm(now)


_IDLE_S = 30.0


def _not_asked(worker: WorkerEntry, error: GanglineError) -> None:
    extra = {"action": "worker.look_up", "worker": str(worker.id)}
    _log.debug("cannot look up worker %s: %s", worker.id, error, extra=extra)


def by_its_deadline(routed_request: RoutedRequest, deadline: float) -> str:
    """Text with the total time that a request had, across all attempts."""
    if routed_request.asked_at is None or deadline <= routed_request.asked_at:
        return "by its deadline"
    return f"by its deadline, {deadline - routed_request.asked_at:.3g} s after it was asked for"


class GuardedPolicy(PolicyBase):
    """Calls a user's policy; its errors are logged and counted, and never propagate. A hook that raises has no effect;
    if `choose` raises, power of two choices is used.

    Failures are counted in `failures`; the first one of each hook is logged with its traceback, then the tenth, the
    hundredth and so on, so that a policy that always fails does not fill the disk.
    """

    def __init__(self, policy: Policy, pool: str) -> None:
        self.policy = policy
        self.failures: Counter[str] = Counter()
        self._pool = pool
        self._otherwise = PowerOfTwo()

    def choose(self, candidates: Candidates, request: Requirements) -> WorkerEntry | None:
        try:
            return self.policy.choose(candidates, request)
        except Exception as error:
            self._failed("choose", error)
            return self._otherwise.choose(candidates, request)

    def routed(self, worker: WorkerEntry, request: Requirements) -> None:
        self._tell("routed", self.policy.routed, worker, request)

    def completed(self, worker: WorkerEntry, request: Requirements) -> None:
        self._tell("completed", self.policy.completed, worker, request)

    def worker_lost(self, worker: WorkerEntry) -> None:
        self._tell("worker_lost", self.policy.worker_lost, worker)

    def _tell(self, name: str, hook: Callable[..., None], *facts: object) -> None:
        try:
            hook(*facts)
        except Exception as error:
            self._failed(name, error)

    def _failed(self, name: str, error: Exception) -> None:
        self.failures[name] = count = self.failures[name] + 1
        if str(count).rstrip("0") == "1":  # 1, 10, 100, ...
            _log.error(
                "%s.%s of pool %s failed (%d so far): requests continue without it",
                type(self.policy).__name__, name, self._pool, count,
                exc_info=error, extra={"action": "policy.failed", "pool": self._pool},
            )  # fmt: skip

    def __repr__(self) -> str:
        return f"GuardedPolicy({self.policy!r}, failures={dict(self.failures)})"


def guarded(policy: Policy, pool: str) -> Policy:
    """The policy with a guard; those shipped with Gangline are returned unchanged."""
    return policy if type(policy).__module__ == PolicyBase.__module__ else GuardedPolicy(policy, pool)


class WorkerDiscovery:
    """Watches the workers of one pool: registrations and heartbeats, listed initially and after each reconnect, then
    watched. The pool keeps their state; there is no second copy here.

    Only ledger entries add or replace a worker: the live feed shows writes before storage has accepted them, so it only
    refreshes known workers and says what to look up. A list that fails or is incomplete removes no worker: a worker is
    removed when its registration is deleted and its heartbeat is no longer in the ledger, when another instance took
    its name, or when it is silent and its heartbeat has expired.
    """

    def __init__(
        self,
        bus: Bus,
        ledger: Callable[[], Awaitable[KeyValue]],
        names: Names,
        pool: str,
        listener: RoutedPool,
        *,
        resync_s: float,
        patience_s: float | None = None,
    ) -> None:
        """For the last two arguments see BucketInformer."""
        self._pool = pool
        self._ledger = ledger
        self._listener = listener
        self._unclaimed: dict[str, Heartbeat] = {}
        """By worker: heartbeats of instances that the listener does not know yet; the registration may be read next."""
        self.informer = BucketInformer[Registration | Heartbeat](
            bus,
            ledger,
            observed=(names.registrations_of(pool), names.alive_of(pool)),
            # In two steps: when another process has taken a worker's name, it rejects what was just sent to the old
            # one, which is then retried, before its registration reports the old one as lost.
            listed=lambda: (names.alive_of(pool), names.registrations_of(pool)),
            parse=self._parse,
            on_change=self._changed,
            on_passing=self._passing,
            absent=Absent.GONE,
            keep=False,
            resync_s=resync_s,
            patience_s=patience_s,
            kind="pool",
            what=f"the workers of pool {pool!r}",
            log=_log.bind(pool=pool),
        )

    async def beats(self, worker: str, instance: str) -> bool:
        """Whether the ledger has a heartbeat of that instance, according to the ledger's leader.

        Raises:
            Disconnected, StorageUnavailable: nothing was read.
        """
        entry = await (await self._ledger()).get(f"alive.{self._pool}.{worker}")
        if entry is None:
            return False
        try:
            return Heartbeat.read(entry.value).instance == instance
        except ValueError:
            return True  # some process is there

    def _parse(self, entry: KvEntry) -> Registration | Heartbeat:
        if entry.key.startswith("alive."):
            return Heartbeat.read(entry.value)
        record = Registration.read(entry.value)
        if entry.key != f"reg.{record.pool}.{record.worker}":
            raise ValueError(f"it names {record.pool}.{record.worker}")
        return record

    def _passing(self, entry: KvEntry) -> bool:
        folder, _, worker = entry.key.split(".")
        if entry.operation is KvOperation.DELETE:
            if folder == "reg":
                self._listener.leaving(worker)
            return True
        try:
            heard = self._parse(entry)
        except ValueError:
            return False
        if isinstance(heard, Heartbeat):
            known = self._listener.beat(worker, heard)
        elif known := self._listener.knows(worker, heard.instance):
            self._listener.registered(heard, entry.revision)
        if not known:
            # If storage does not have it yet, the next heartbeat, a second later, triggers another look-up.
            self.informer.look_up(f"alive.{self._pool}.{worker}", f"reg.{self._pool}.{worker}")
        return True

    def _changed(self, key: str, _old: object, new: Registration | Heartbeat | None) -> None:
        folder, _, worker = key.split(".")
        if new is None:  # a missing entry removes no worker
            if folder == "alive":
                self._unclaimed.pop(worker, None)
        elif isinstance(new, Heartbeat):
            # For a known worker this is not news: it was received when it was written, up to three seconds ago.
            if self._listener.knows(worker, new.instance):
                self._unclaimed.pop(worker, None)
            else:
                self._unclaimed[worker] = new
        elif self._listener.knows(worker, new.instance):
            self._listener.registered(new, self.informer.revision(key))
        elif (beat := self._unclaimed.get(worker)) is not None and beat.instance == new.instance:
            # A registration outlives its worker by up to a minute; only the heartbeat key expires promptly.
            del self._unclaimed[worker]
            self._listener.registered(new, self.informer.revision(key))
            self._listener.beat(worker, beat)
